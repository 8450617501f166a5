"""A console as wide as the terminal, and tables without lines."""

import os

from rich.console import Console
from rich.table import Table

# Columns of a console that is no terminal: nothing wraps in a pipe or a file.
UNBOUNDED = 100_000


def make_console(stderr: bool = False) -> Console:
    """Return a console of the terminal's width. Without a terminal and COLUMNS, no line wraps."""
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(stderr=stderr, width=UNBOUNDED)
    return console


def plain_table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
