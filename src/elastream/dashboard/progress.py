"""How far a computation of several parts is: a bar on a terminal, elsewhere a line at intervals."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal."""


@contextmanager
def progress_bar(console: Console, *, line_seconds: float = EVERY) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar; yields its update function (description, runs done, total runs).

    Where there is no terminal, a line at most every ten seconds says the same, on standard error: what a command found out
    is read by others, and is the same however long it took.
    """
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
