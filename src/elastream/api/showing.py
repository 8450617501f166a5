"""What a person sees of a run: its live view, and at its end the report's path and the summary.

The same from the command line, from a program and from a notebook.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from elastream.dashboard.live import PlainView, RunView, view_for
from elastream.dashboard.notebook import NotebookView, in_notebook
from elastream.dashboard.summary import print_summary
from elastream.dataflow.graph import Graph
from elastream.errors import ElastreamError, in_one_line
from elastream.observability.events import EventLog
from elastream.recording.directory import RunDirectory
from elastream.recording.observer import Observer
from elastream.recording.recorder import Recording
from elastream.report.page import report_problem
from elastream.report.summary import summarise
from elastream.settings import CommandSettings
from elastream.spark.jvm.cluster_events import event_sink

log = logging.getLogger("elastream")


def length_of(graph: Graph, limit: float | None) -> float | None:
    """Seconds that a run of `graph` lasts at least: as long as its loads, at most `limit`; None if it has no end."""
    loads = [pattern.seconds for pattern in graph.loads.values()]
    length = max(loads) if loads and len(loads) == len(graph.sources) else math.inf
    length = min(length, math.inf if limit is None else limit)
    return length if math.isfinite(length) else None


def told_to_cluster(spark: SparkSession) -> list[Observer]:
    """An observer that has events of a run told to the cluster manager of `spark`, where that takes any."""
    sink = event_sink(spark)
    return [] if sink is None else [EventLog(sinks=[sink], logged=False)]


@contextmanager
def shown(graph: Graph, directory: RunDirectory, settings: CommandSettings) -> Iterator[tuple[Observer, ...]]:
    """Yield the observers that show a run; at its end write the report and print the summary.

    A failed run is summed up as far as it went; one that failed before its first observation is not summed up. Neither
    report nor summary may cost a run its result, or hide its error: a problem with them is one sentence on stderr.
    """
    console = Console()
    notebook = settings.live and in_notebook()
    length = length_of(graph, None if settings.limit is None else float(settings.limit))
    view: RunView | None = None
    if settings.show:
        view = NotebookView(length) if notebook else view_for(console, length) if settings.live else PlainView(console)
    # In a notebook the result shows the figures, richer than a printed summary.
    summed_up_on = console if settings.show and not notebook else None
    if view is not None:
        view.awaited(graph.name)
    try:
        yield () if view is None else (view,)
    finally:
        if view is not None:
            view.close()
        try:
            problem = conclude(directory, settings.report or directory.report, summed_up_on)
        except Exception as error:
            problem = f"the run cannot be summed up: {in_one_line(error)}"
            log.warning("%s", problem, exc_info=not isinstance(error, ElastreamError))
        if problem:
            Console(stderr=True).print(f"elastream: {problem}", markup=False, highlight=False, soft_wrap=True)


def conclude(directory: RunDirectory, report: Path, console: Console | None) -> str:
    """Write the `report` of the run in `directory` and print its summary on `console`; do nothing if nothing was observed.

    Returns one sentence if the report cannot be written, otherwise an empty string.
    """
    if not directory.recording.exists():
        return ""
    recording = Recording.read(directory.root)
    if not len(recording.times):
        return ""
    summary = summarise(recording)
    problem = report_problem(recording, report, summary)
    if console is not None:
        print_summary(recording, console, None if problem else report, summary)
    return problem
