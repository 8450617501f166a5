"""Key tables in CSV and Parquet: the columns of the key, then the alternate. Errors name file and line."""

import csv
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastream.dataflow.key_table import Key, KeyTable, Selection
from elastream.errors import InputError
from elastream.recording.key_table_log import ALTERNATE


def load_key_table(path: Path, selection: Selection) -> KeyTable:
    """Read the table in `path` for the operator of `selection`. Raises InputError if it is invalid."""
    header, rows = _parquet(path) if path.suffix == ".parquet" else _csv(path, selection)
    columns = [*selection.columns, ALTERNATE]
    if list(header) != columns:
        raise InputError(
            f"{path}, line 1: the columns are {', '.join(header) or 'missing'}; a key table of operator "
            f"{selection.operator!r} has {', '.join(columns)}"
        )
    alternate_by_key: dict[Key, str] = {}
    for place, key, alternate in rows:
        if key in alternate_by_key:
            raise InputError(f"{path}{place}: the key {', '.join(map(str, key))} is in it twice")
        if alternate not in selection.alternates:
            raise InputError(
                f"{path}{place}: operator {selection.operator!r} has no alternate {alternate!r} "
                f"(it has: {', '.join(selection.alternates)})"
            )
        alternate_by_key[key] = alternate
    return KeyTable(selection.dataflow, selection.operator, tuple(selection.columns), alternate_by_key)


# Place in the file, key, alternate.
Rows = Iterator[tuple[str, Key, str]]


def _csv(path: Path, selection: Selection) -> tuple[Sequence[str], Rows]:
    try:
        content = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a key table: byte {error.start} is not UTF-8") from error
    lines = csv.reader(content.splitlines(keepends=True))
    header = next(lines, [])
    kinds = list(selection.columns.values())

    def rows() -> Rows:
        for cells in lines:
            if not cells:
                continue
            place = f", line {lines.line_num}"
            if len(cells) != len(kinds) + 1:
                raise InputError(f"{path}{place}: {len(cells)} cells, not {len(kinds) + 1}")
            try:
                key = tuple(_READ.get(kind or "", str)(cell) for kind, cell in zip(kinds, cells, strict=False))
            except ValueError as error:
                raise InputError(f"{path}{place}: {error}") from None
            yield place, key, cells[-1]

    return header, rows()


def _parquet(path: Path) -> tuple[Sequence[str], Rows]:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        table = pa.parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} is not a key table: {error}") from error
    *keys, alternates = (column.to_pylist() for column in table.columns) if table.num_columns else ([],)
    rows = zip(*keys, alternates, strict=True)
    return table.column_names, ((f", row {number}", row[:-1], row[-1]) for number, row in enumerate(rows, start=1))


def _integer(cell: str) -> int:
    try:
        return int(cell)
    except ValueError:
        raise ValueError(f"{cell!r} is not a whole number") from None


def _truth(cell: str) -> bool:
    if cell.lower() not in ("true", "false"):
        raise ValueError(f"{cell!r} is neither true nor false")
    return cell.lower() == "true"


def _date(cell: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(cell)
    except ValueError:
        raise ValueError(f"{cell!r} is not a date such as 2026-11-22") from None


# By Spark's type; cells of other types stay text.
_READ: Mapping[str, Callable[[str], Any]] = {
    "tinyint": _integer, "smallint": _integer, "int": _integer, "bigint": _integer, "boolean": _truth, "date": _date,
}  # fmt: skip
