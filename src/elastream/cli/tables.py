"""Prints tables of figures such that no figure is lost, however narrow the terminal is."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from elastream.evaluation.page import Table

BETWEEN = 2
"""Blanks from one column to the next."""
PROSE = 30
"""Characters above which a cell is text, which may be wrapped; figures are shorter, and never are."""


def print_table(console: "Console", table: "Table") -> None:
    """Print `table`; where it is wider than the terminal, in several parts that each begin with the first column.

    Where there is no terminal and COLUMNS is not set, each row is one line, however long.
    """
    from rich.console import Console
    from rich.text import Text

    columns = list(zip(table.header, *table.rows, strict=True))
    piped = not console.is_terminal and "COLUMNS" not in os.environ
    if piped:
        widths = [max(map(len, column)) for column in columns]
        console = Console(file=console.file, width=max(80, sum(widths) + BETWEEN * len(widths), len(table.caption)))
    else:
        room = max(20, console.width)
        widths = [_width(column, room // 2) for column in columns]
        widths[0] = min(widths[0], room // 2)  # names may be folded
    console.print(Text(table.caption, style="italic"))
    for part in _parts(widths, console.width):
        console.print(_part(table, part, widths))
    console.print()


def _width(column: Sequence[str], most: int) -> int:
    """Characters that a column needs: a header wraps between its words, long texts wrap, figures do not."""
    header, *cells = column
    need = max(len(word) for word in header.split())
    longest = max(map(len, cells), default=0)
    return max(need, longest if longest <= PROSE else max(PROSE, min(longest, most)))


def _parts(widths: Sequence[int], room: int) -> list[list[int]]:
    """Columns of each part, the first of the table in all of them."""
    parts, used = [[0]], widths[0]
    for number, width in enumerate(widths[1:], start=1):
        if used + BETWEEN + width > room and len(parts[-1]) > 1:
            parts.append([0])
            used = widths[0]
        parts[-1].append(number)
        used += BETWEEN + width
    return parts


def _part(table: "Table", part: Sequence[int], widths: Sequence[int]) -> object:
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, padding=(0, BETWEEN, 0, 0), pad_edge=False)
    for number in part:
        prose = number == 0 or any(len(row[number]) > PROSE for row in table.rows)
        shown.add_column(table.header[number], justify="left" if prose else "right", width=widths[number], overflow="fold")
    for row, good in zip(table.rows, table.good or (None,) * len(table.rows), strict=True):
        shown.add_row(*(Text(row[number]) for number in part), style="red" if good is False else None)
    return shown
