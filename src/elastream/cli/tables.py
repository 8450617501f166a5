"""Tables of figures that show each figure in full on a terminal of any width."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from elastream.evaluation.page import Table

COLUMN_GAP = 2
# Longer cells are text, which may wrap; figures are shorter and never wrap.
MIN_TEXT_WIDTH = 30


def print_table(console: "Console", table: "Table") -> None:
    """Print `table`, in parts that each begin with the first column if the terminal is too narrow.

    Without a terminal and COLUMNS, each row is one line.
    """
    from rich.console import Console
    from rich.text import Text

    columns = list(zip(table.header, *table.rows, strict=True))
    piped = not console.is_terminal and "COLUMNS" not in os.environ
    if piped:
        widths = [max(map(len, column)) for column in columns]
        console = Console(file=console.file, width=max(80, sum(widths) + COLUMN_GAP * len(widths), len(table.caption)))
    else:
        room = max(20, console.width)
        widths = [_width(column, room // 2) for column in columns]
        widths[0] = min(widths[0], room // 2)  # names may wrap
    console.print(Text(table.caption, style="italic"))
    for part in _parts(widths, console.width):
        console.print(_part(table, part, widths))
    console.print()


def _width(column: Sequence[str], most: int) -> int:
    header, *cells = column
    need = max(map(len, header.split()), default=0)
    longest = max(map(len, cells), default=0)
    return max(need, longest if longest <= MIN_TEXT_WIDTH else max(MIN_TEXT_WIDTH, min(longest, most)))


def _parts(widths: Sequence[int], room: int) -> list[list[int]]:
    parts, used = [[0]], widths[0]
    for number, width in enumerate(widths[1:], start=1):
        if used + COLUMN_GAP + width > room and len(parts[-1]) > 1:
            parts.append([0])
            used = widths[0]
        parts[-1].append(number)
        used += COLUMN_GAP + width
    return parts


def _part(table: "Table", part: Sequence[int], widths: Sequence[int]) -> object:
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, padding=(0, COLUMN_GAP, 0, 0), pad_edge=False)
    for number in part:
        is_text = number == 0 or any(len(row[number]) > MIN_TEXT_WIDTH for row in table.rows)
        shown.add_column(
            table.header[number], justify="left" if is_text else "right", width=widths[number], overflow="fold"
        )
    for row, good in zip(table.rows, table.good or (None,) * len(table.rows), strict=True):
        shown.add_row(*(Text(row[number]) for number in part), style="red" if good is False else None)
    return shown
