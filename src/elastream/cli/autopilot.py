"""`elastream autopilot JOB`: runs a job with Autopilot beside it, without a change to the job."""

import os
import runpy
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from elastream.cli.beside import packed
from elastream.cli.options import is_quiet, named_by, options_of
from elastream.core.scaling import ScalingRules
from elastream.errors import InputError
from elastream.settings import AutopilotSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from elastream.api.autopilot import Autopilot

Job = Annotated[
    Path,
    typer.Argument(metavar="JOB", help="Python program that starts streaming queries, or spark-submit for any other job."),
]
SUBMIT = "spark-submit"
LISTENER = "elastream.beside.AutopilotListener"
# Options of spark-submit without a value.
FLAGS = frozenset({"--verbose", "-v", "--supervise", "--version", "--help", "-h", "--usage-error"})
NAME_FORM = "NAME[:key=value,...]"
Policy = Annotated[str | None, typer.Option(metavar=NAME_FORM, help="Policy, a short name or file.py:Class.")]
Cloud = Annotated[
    str | None, typer.Option(metavar=NAME_FORM, help="Cloud to lease hosts from, a short name or file.py:Class.")
]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="Arguments of the job.")]


@options_of(AutopilotSettings)
def autopilot(
    context: typer.Context,
    job: Job,
    arguments: Arguments = None,
    policy: Policy = None,
    cloud: Cloud = None,
    **settings: Any,
) -> None:
    """Run a job with Autopilot beside it, for every streaming query of its sessions.

    A Python program is executed in this process, as by `python JOB`. Jobs in Scala or Java, and jobs with options of
    spark-submit, run by `elastream autopilot spark-submit ...`. Options of Autopilot stand before JOB.
    """
    if "scaling" in settings:
        settings["scaling"] = ScalingRules().with_pairs(settings["scaling"])
    if job.name == SUBMIT:
        named = {name: each for name, each in (("policy", policy), ("cloud", cloud)) if each is not None}
        submit(job, arguments or [], settings | named | ({"show": False} if is_quiet(context) else {}))
    if not job.is_file():
        raise InputError(f"there is no job {job}: name a Python program, after the options of autopilot")
    if policy is not None:
        settings["policy"] = named_by(policy, "policy", job)
    if cloud is not None:
        settings["cloud"] = named_by(cloud, "cloud", job)
    if is_quiet(context):
        settings["show"] = False
    AutopilotSettings(**settings)  # an invalid one is an error before the job starts
    from elastream.api.autopilot import Autopilot

    watch_sessions(lambda session: Autopilot(session, **settings))
    sys.argv = [str(job), *(arguments or [])]
    sys.path.insert(0, str(job.resolve().parent))
    runpy.run_path(str(job), run_name="__main__")


def submit(command: Path, arguments: Sequence[str], settings: Mapping[str, Any]) -> NoReturn:
    """Become `spark-submit` with a listener in the driver that starts Autopilot.

    Raises:
        ElastreamError: There is no such command, a setting is invalid, or the driver is to run elsewhere.
    """
    program = shutil.which(command)
    if program is None:
        raise InputError(f"there is no command {command}: name Spark's spark-submit")
    named = {kind: named_by(settings[kind], kind) for kind in ("policy", "cloud") if kind in settings}
    AutopilotSettings(**{**settings, **named})
    from elastream.spark.jvm.jars import BESIDE, jar_of

    jar = jar_of(BESIDE)
    own = {"spark.elastream.python": sys.executable, "spark.elastream.autopilot": packed(settings)}
    os.execv(program, [program, *submit_options(arguments, str(jar), own)])


def submit_options(arguments: Sequence[str], jar: str, own: Mapping[str, str]) -> list[str]:
    """Return the arguments of spark-submit, with the listener beside the job's own ones.

    Args:
        jar: For the driver's class path.

    Raises:
        InputError: The driver is to run on the cluster.
    """
    job, listeners, path, rest = [], [LISTENER], [jar], list(arguments)
    while rest and rest[0].startswith("-"):
        name, _, value = rest.pop(0).partition("=")
        if name in FLAGS:
            job.append(name)
            continue
        value = value or (rest.pop(0) if rest else "")
        key, _, setting = value.partition("=") if name in ("--conf", "-c") else (name, "", value)
        match key:
            case "spark.extraListeners":
                listeners.append(setting)
            case "--driver-class-path" | "spark.driver.extraClassPath":
                path.append(setting)
            case "--deploy-mode" | "spark.submit.deployMode" if setting == "cluster":
                raise InputError("--deploy-mode cluster: the driver would run where Elastream may not be; use client mode")
            case _:
                job += [name, value]
    settings = {**own, "spark.extraListeners": ",".join(listeners)}
    confs = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    return [*job, "--driver-class-path", os.pathsep.join(path), *confs, *rest]


def watch_sessions(make: "Callable[[SparkSession], Autopilot]") -> None:
    from pyspark.sql import SparkSession

    applications: set[str] = set()
    open_session = SparkSession.__init__

    def opened(session: "SparkSession", *arguments: Any, **options: Any) -> None:
        open_session(session, *arguments, **options)
        application = str(session.sparkContext.applicationId)
        if application not in applications:
            applications.add(application)
            make(session).watch()

    SparkSession.__init__ = opened  # type: ignore[method-assign,assignment]
