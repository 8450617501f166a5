"""The live view of a run in a notebook: an output that is updated in place."""

import html
import io
import sys
import time
from typing import Any

from rich.console import Console

from elastream.dashboard.live import Screen
from elastream.recording.observer import Ending, Header

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
