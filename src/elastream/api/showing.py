"""The display of a run: its live view, and the report and summary at its end."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from elastream.dashboard.console import make_console
from elastream.dashboard.live import PlainView, RunView, view_for
from elastream.dashboard.notebook import NotebookView, in_notebook
from elastream.dashboard.summary import print_summary
from elastream.dataflow.graph import Graph
from elastream.errors import ElastreamError, in_one_line
from elastream.recording.directory import RunDirectory
from elastream.recording.recorder import Recording
from elastream.report.page import report_problem
from elastream.report.summary import summarise
from elastream.settings import CommandSettings

log = logging.getLogger("elastream")


def length_of(graph: Graph, limit: float | None) -> float | None:
    """Return the seconds that the loads of `graph` last, at most `limit`; None if they have no end."""
    loads = [pattern.seconds for pattern in graph.loads.values()]
    length = max(loads) if loads and len(loads) == len(graph.sources) else math.inf
    length = min(length, math.inf if limit is None else limit)
    return length if math.isfinite(length) else None


@contextmanager
def shown(graph: Graph, directory: RunDirectory, settings: CommandSettings) -> Iterator[tuple[RunView, ...]]:
    """Yield the views that show a run; at its end write the report and print the summary.

    A problem with the report or summary is one sentence on stderr, so that it neither fails the run nor hides its error.
    """
    console = make_console()
    notebook = settings.live and in_notebook()
    length = length_of(graph, None if settings.limit is None else float(settings.limit))
    view: RunView | None = None
    if settings.show:
        view = NotebookView(length) if notebook else view_for(console, length) if settings.live else PlainView(console)
    # In a notebook the result itself shows the figures.
    summary_console = console if settings.show and not notebook else None
    try:
        yield () if view is None else (view,)
    finally:
        if view is not None:
            view.close()
        try:
            problem = conclude(directory, settings.report or directory.report, summary_console)
        except Exception as error:
            problem = f"the run cannot be summed up: {in_one_line(error)}"
            log.warning("%s", problem, exc_info=not isinstance(error, ElastreamError))
        if problem:
            Console(stderr=True).print(f"elastream: {problem}", markup=False, highlight=False, soft_wrap=True)


def conclude(directory: RunDirectory, report: Path, console: Console | None) -> str:
    """Write a run's report and print its summary if anything was observed; return why the report is missing, or ""."""
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
