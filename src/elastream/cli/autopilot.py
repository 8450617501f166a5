"""`elastream autopilot JOB`: runs a PySpark job with Autopilot beside it, without a change to the job."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastream.cli.options import is_quiet, named_by, options_of
from elastream.errors import InputError
from elastream.settings import AutopilotSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from elastream.api.autopilot import Autopilot

Job = Annotated[Path, typer.Argument(metavar="JOB", help="Python program that starts streaming queries.")]
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
    """Run a PySpark job with Autopilot beside it, for every streaming query of its sessions.

    The job is executed in this process, as by `python JOB`. Options of Autopilot stand before JOB.
    """
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


def watch_sessions(make: "Callable[[SparkSession], Autopilot]") -> None:
    """Start the Autopilot that `make` returns for the first session of each Spark application in this process."""
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
