"""The display of a run: its live view, and the report and summary at its end."""

import html
import io
import logging
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from elastream.dashboard.console import make_console
from elastream.dashboard.live import PlainView, RunView, Screen, view_for
from elastream.dashboard.summary import print_summary
from elastream.dataflow.graph import Graph
from elastream.errors import ElastreamError, in_one_line
from elastream.recording.directory import RunDirectory
from elastream.recording.observer import Ending, Header
from elastream.recording.recorder import Recording
from elastream.report.page import report_problem
from elastream.report.summary import summarise
from elastream.settings import CommandSettings

log = logging.getLogger("elastream")

# Characters; unused height is left out.
WIDTH, HEIGHT = 100, 26
# Each update is sent to a browser.
UPDATE_INTERVAL_S = 1.0
HTML_FORMAT = "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',Consolas,monospace;line-height:1.3\">{code}</pre>"


def in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class NotebookView(Screen):
    def __init__(self, length: float | None = None) -> None:
        console = Console(
            file=io.StringIO(), record=True, width=WIDTH, height=HEIGHT, color_system="truecolor", force_terminal=True,
            force_jupyter=False,
        )  # fmt: skip
        super().__init__(console, length)
        self._handle: Any = None
        self._next = 0.0
        self._starting = ""

    def awaited(self, flow: str, text: str) -> None:
        if text != self._starting:
            self._starting = text
            self._show(f"<pre>{html.escape(flow)}: {html.escape(text)}</pre>")

    def started(self, header: Header) -> None:
        super().started(header)
        self._paint()

    def ended(self, ending: Ending) -> None:
        self._next = 0.0
        self._paint()

    def _paint(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + UPDATE_INTERVAL_S
        self._console.print(self.screen())
        self._show(self._console.export_html(inline_styles=True, code_format=HTML_FORMAT))

    def _show(self, text: str) -> None:
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(text), display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(HTML(text))  # type: ignore[no-untyped-call]


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
