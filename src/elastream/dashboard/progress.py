"""Progress of a computation of several parts: a bar on a terminal, elsewhere lines."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LINE_INTERVAL_S = 10.0


@contextmanager
def progress_bar(console: Console, *, line_seconds: float = LINE_INTERVAL_S) -> Iterator[Callable[[str, int, int], None]]:
    """Show progress; yield its update function (description, runs done, total runs). No terminal: lines on stderr."""
    if not console.is_terminal:
        yield _lines(Console(stderr=True), line_seconds)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("compiling", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _lines(console: Console, seconds: float) -> Callable[[str, int, int], None]:
    last = time.monotonic()

    def say(what: str, done: int, total: int) -> None:
        nonlocal last
        if done < total and time.monotonic() - last >= seconds:
            last = time.monotonic()
            console.print(f"{done} of {total} done: {what}", highlight=False, soft_wrap=True)

    return say
