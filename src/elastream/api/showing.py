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

from elastream.api.options import RunOptions
from elastream.dashboard.live import PlainView, RunView, view_for
from elastream.dashboard.notebook import NotebookView, in_notebook
from elastream.dashboard.summary import print_summary
from elastream.dataflow.graph import Graph
from elastream.errors import ElastreamError
from elastream.observability.events import EventLog
from elastream.recording.directory import RunDirectory
from elastream.recording.observer import Observer
from elastream.recording.recorder import Recording
from elastream.report.page import write_report
from elastream.report.summary import summarise
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
def shown(graph: Graph, directory: RunDirectory, options: RunOptions, show: bool = True) -> Iterator[tuple[Observer, ...]]:
    """The observers that show a run inside the context; at its end the report is written and the summary printed.

    A run that failed is summed up as far as it went, one that failed before its first observation not at all. Raises
    EnvironmentProblem if the report cannot be written, unless another error ends the run, which then stands.
    """
    console = Console()
    notebook = options.live and in_notebook()
    length = length_of(graph, options.limit)
    view: RunView | None = None
    if show:
        view = NotebookView(length) if notebook else view_for(console, length) if options.live else PlainView(console)
    # In a notebook the result shows the figures, richer than a printed summary.
    summed_up_on = console if show and not notebook else None
    if view is not None:
        view.awaited(graph.name)
    try:
        yield () if view is None else (view,)
    except BaseException:
        if view is not None:
            view.close()
        try:
            concluded(directory, options, summed_up_on)
        except ElastreamError as problem:
            # What ended the run is what its caller is told.
            Console(stderr=True).print(f"elastream: {problem}", markup=False, highlight=False, soft_wrap=True)
        raise
    if view is not None:
        view.close()
    concluded(directory, options, summed_up_on)


def concluded(directory: RunDirectory, options: RunOptions, console: Console | None) -> Path | None:
    """Write the report of the run in `directory`, print its summary on `console`, and return the report's path.

    None, and nothing done, where nothing was observed.
    """
    if not directory.recording.exists():
        return None
    recording = Recording.read(directory.root)
    if not len(recording.times):
        return None
    summary = summarise(recording)
    path = write_report(recording, options.report or directory.report, summary)
    if console is not None:
        print_summary(recording, console, path, summary)
    return path
