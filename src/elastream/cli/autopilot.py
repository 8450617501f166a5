"""`elastream autopilot JOB`: runs a job with Autopilot beside it, without a change to the job."""

import argparse
import os
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from elastream.cli.beside import packed
from elastream.cli.options import NAME_FORM, is_quiet, named_by, options_of
from elastream.core.scaling import ScalingRules
from elastream.errors import EnvironmentProblem, InputError
from elastream.settings import AutopilotCommandSettings, AutopilotSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Job = Annotated[
    Path,
    typer.Argument(metavar="JOB", help="Python program that starts streaming queries, spark-pipelines, or spark-submit."),
]
SUBMIT, PIPELINES = "spark-submit", "spark-pipelines"
PIPELINES_SINCE = (4, 1)
LISTENER = "elastream.beside.AutopilotListener"
# Options of spark-submit without a value.
FLAGS = frozenset({"--verbose", "-v", "--supervise", "--version", "--help", "-h", "--usage-error"})
Policy = Annotated[str | None, typer.Option(metavar=NAME_FORM, help="Policy, a short name or file.py:Class.")]
Cloud = Annotated[
    str | None, typer.Option(metavar=NAME_FORM, help="Cloud to lease hosts from, a short name or file.py:Class.")
]
Arguments = Annotated[list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="Arguments of the job.")]


@options_of(AutopilotCommandSettings)
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
    freshness = settings.pop("freshness", None)
    if job.name == SUBMIT:
        if freshness is not None:
            raise InputError("--freshness works with Python programs and spark-pipelines, and not yet with spark-submit")
        named = {name: each for name, each in (("policy", policy), ("cloud", cloud)) if each is not None}
        submit(job, arguments or [], settings | named | ({"show": False} if is_quiet(context) else {}))
    if job.name == PIPELINES:
        check_pipeline(arguments or [])
    elif not job.is_file():
        raise InputError(f"there is no job {job}: name a Python program, after the options of autopilot")
    if policy is not None:
        settings["policy"] = named_by(policy, "policy", job)
    if cloud is not None:
        settings["cloud"] = named_by(cloud, "cloud", job)
    if is_quiet(context):
        settings["show"] = False
    checked = AutopilotSettings(**settings)  # an invalid one is an error before the job starts
    if freshness is not None:
        keep_job_fresh(job, arguments or [], freshness, checked, settings)
        return
    run_job(job, arguments or [], settings)


def check_pipeline(arguments: Sequence[str]) -> None:
    """Raise InputError or EnvironmentProblem if spark-pipelines cannot run."""
    if "run" not in arguments:
        raise InputError("spark-pipelines: add `run`, as in spark-pipelines --master spark://host:7077 run --spec FILE")
    from elastream.spark.jvm.releases import installed, release_of  # refuses another Spark, which the command line reports

    if release_of(version := installed()) < PIPELINES_SINCE:
        raise EnvironmentProblem(f"spark-pipelines needs Spark 4.1 or later, and this is {version}")
    for module in ("grpc", "grpc_status", "yaml"):
        if find_spec(module) is None:
            raise EnvironmentProblem(f"spark-pipelines needs the module {module}: pip install 'pyspark[pipelines]'")


def run_job(job: Path, arguments: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Execute a Python program or spark-pipelines, with an Autopilot for each of its applications."""
    from elastream.api.autopilot import Autopilot

    pilots: list[Autopilot] = []

    def begin(session: "SparkSession") -> None:
        if pilots:  # its session has ended, and its folder is for the next one
            pilots.pop().stop("its session ended")
        pilots.append(Autopilot(session, **settings))
        pilots[0].watch()

    watch_sessions(begin)
    if job.name == PIPELINES:
        run_pipeline(list(arguments))
        return
    sys.argv = [str(job), *arguments]
    sys.path.insert(0, str(job.resolve().parent))
    runpy.run_path(str(job), run_name="__main__")


def run_pipeline(arguments: list[str]) -> None:
    """Execute spark-pipelines in this process. Options of spark-submit precede `run`."""
    at = arguments.index("run")
    options, sys.argv = arguments[:at], [PIPELINES, *arguments[at:]]
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--master")
    if (master := parser.parse_known_args(options)[0].master) is not None:
        os.environ["MASTER"] = master
    os.environ |= {"PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"]), "SPARK_API_MODE": "connect"}
    runpy.run_module("pyspark.pipelines.cli", run_name="__main__")


def keep_job_fresh(
    job: Path, arguments: Sequence[str], freshness: float, checked: AutopilotSettings, settings: Mapping[str, Any]
) -> None:
    """Execute a job repeatedly, so that records are committed in time, without a session in between.

    Raises:
        InputError: A setting is missing, or needs a continuous Autopilot.
    """
    from elastream.clouds.provider import Cloud
    from elastream.core.hosts import Billing, HostType
    from elastream.freshness.planner import HostBounds
    from elastream.freshness.process import keep_fresh
    from elastream.freshness.wakes import RunReporter, WakeOrder
    from elastream.recording.directory import PRIVATE, RunDirectory, local_folder
    from elastream.systems import check_system

    check_system("--freshness")
    if checked.folder is None:
        raise InputError("--freshness: measurements are kept for later runs; name a folder, --folder runs/mine")
    resident: dict[str, object] = {"metrics": checked.metrics, "metrics-port": checked.metrics_port, "page": checked.page}
    resident["target-latency"] = checked.target_latency
    if names := [name for name, value in resident.items() if value]:
        raise InputError(f"--freshness: --{names[0]} needs a continuous Autopilot; leave it out")
    folder = local_folder(checked.folder, "the folder of an Autopilot")
    (folder / "control").mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    directory = RunDirectory(folder.resolve())
    cloud = checked.cloud if isinstance(checked.cloud, Cloud) else None
    kind = checked.host_type or (
        cloud.types[0] if cloud else HostType("executor", cores=1, billing=Billing(1.0), start=0.0)
    )
    most = checked.max_hosts or (cloud.max_hosts if cloud else checked.min_hosts)

    def work(order: WakeOrder) -> None:
        from elastream.api.bounded_job import JobQueries

        queries = JobQueries(RunReporter(directory, order))
        if job.name == PIPELINES:
            watch_sessions(queries.follow_pipeline)
        else:
            queries.follow()
        own = {**settings, "target_latency": freshness, "folder": directory.root, "show": False}
        run_job(job, arguments, {**own, "min_hosts": order.hosts})
        queries.report()

    keep_fresh(directory, freshness, HostBounds(kind, checked.min_hosts, most), work)


def submit(command: Path, arguments: Sequence[str], settings: Mapping[str, Any]) -> NoReturn:
    """Become `spark-submit` with a listener in the driver that starts Autopilot.

    Raises:
        ElastreamError: The command does not exist, a setting is invalid, or the driver would run elsewhere.
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
    """Return the arguments of spark-submit, with the listener beside the job's own.

    Args:
        jar: For the driver's class path.

    Raises:
        InputError: The driver would run on the cluster.
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


def watch_sessions(begin: "Callable[[SparkSession], object]") -> None:
    """Call `begin` with the first session of each application."""
    from pyspark.sql import SparkSession

    applications: set[str] = set()
    open_session = SparkSession.__init__

    def opened(session: "SparkSession", *arguments: Any, **options: Any) -> None:
        open_session(session, *arguments, **options)
        application = str(session.sparkContext.applicationId)
        if application not in applications:
            applications.add(application)
            begin(session)

    SparkSession.__init__ = opened  # type: ignore[method-assign,assignment]
