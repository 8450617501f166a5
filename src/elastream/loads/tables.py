"""Files with a table, as texts: CSV with any separator, Parquet, range results of Prometheus, exports of CloudWatch."""

import codecs
import csv
import datetime
import gzip
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from elastream.core.wording import counted
from elastream.errors import InputError, first_line
from elastream.loads.numerals import is_missing, is_number

SUFFIXES = (".csv", ".tsv", ".parquet", ".json")
MARKS = "\t;|,"  # separators; the later ones stand in texts and numbers more often
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    cells: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    """The table of a file.

    Attributes:
        mark: Separator of its cells; empty if numbers are not written by people.
        queried: True if the values come from a query, which the file does not name.
    """

    file: Path
    names: tuple[str, ...] | None
    rows: Sequence[Row]
    mark: str = ""
    queried: bool = False

    @property
    def width(self) -> int:
        return len(self.names) if self.names is not None else len(self.rows[0].cells) if self.rows else 0

    def column(self, at: int) -> list[str]:
        return [row.cells[at] for row in self.rows]

    def name(self, at: int) -> str:
        return self.names[at] if self.names is not None else str(at + 1)

    def named(self, name: str) -> int:
        """Return the column of a name, or raise InputError."""
        names = self.names or ()
        if names.count(name.strip()) != 1:
            problem = "several columns are" if name.strip() in names else "no column is"
            there = ", ".join(map(repr, names))
            raise InputError(f"{self.file}, line 1: {problem} called {name!r}; there is {there}")
        return names.index(name.strip())

    def is_text(self, at: int) -> bool:
        cells = (row.cells[at] for row in self.rows if not is_missing(row.cells[at]))
        return (first := next(cells, None)) is not None and not is_number(first) and not any(map(is_number, cells))


def kind_of(file: Path) -> str:
    return Path(file.name.lower().removesuffix(".gz")).suffix


def read_table(file: Path) -> Table:
    """Read a file by its suffix; other suffixes than `SUFFIXES` are CSV.

    Raises:
        InputError: The file is missing, damaged, or has lines of several widths.
    """
    match kind_of(file):
        case ".parquet":
            return _read_parquet(file)
        case ".json":
            return _read_prometheus(file)
        case _:
            return _read_text(file)


def read_lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of each non-empty line of a CSV file (`.gz` too).

    Raises:
        InputError: The file is missing or no CSV.
    """
    _, rows = _lines_of(file)
    return ((row.number, list(row.cells)) for row in rows if any(row.cells))


def _lines_of(file: Path) -> tuple[str, list[Row]]:
    packed = file.suffix.lower() == ".gz"
    try:
        with gzip.open(file) if packed else file.open("rb") as data, _decoded(data) as lines:
            mark, skipped = _separator(lines)
            reader = csv.reader(lines, delimiter=mark, strict=True)
            return mark, [Row(reader.line_num + skipped, fields or [""]) for fields in reader]
    except FileNotFoundError:
        raise InputError(f"there is no file {file}") from None
    except (OSError, ValueError, EOFError, csv.Error) as error:
        raise InputError(f"{file} cannot be read as {'gzipped ' if packed else ''}CSV: {error}") from None


def _decoded(data: gzip.GzipFile | io.BufferedReader) -> TextIO:
    mark = data.read(2)
    data.seek(0)
    encoding = "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    return io.TextIOWrapper(data, encoding=encoding, newline="")


def _separator(lines: TextIO) -> tuple[str, int]:
    """Return the separator and the number of lines that only name it, as Excel writes them."""
    first = lines.readline()
    if named := re.fullmatch(r'"?sep=(.)"?\s*', first):
        return named.group(1), 1
    lines.seek(0)
    bare = re.sub(r'"(?:[^"]|"")*"|\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)', "", first)
    return next((mark for mark in MARKS if mark in bare), ","), 0


def _read_text(file: Path) -> Table:
    mark, rows = _lines_of(file)
    full = [at for at, row in enumerate(rows) if any(row.cells)]
    rows = rows[full[0] : full[-1] + 1] if full else []
    if max((len(row.cells) for row in rows), default=0) > 1:
        rows = [row for row in rows if any(row.cells)]
    rows, header = _without_preamble(rows)
    if header is None and rows and _is_header(rows[0].cells):
        header, rows = [rows[0].cells[0].removeprefix("#").lstrip(), *rows[0].cells[1:]], rows[1:]
    if header is not None:
        while len(header) > 1 and not header[-1].strip():
            header.pop()
        header = [name.strip() for name in header]
    width = len(header) if header is not None else len(rows[0].cells) if rows else 0
    return Table(file, None if header is None else tuple(header), [_fit(file, row, width) for row in rows], mark)


def _fit(file: Path, row: Row, width: int) -> Row:
    cells = list(row.cells)
    while len(cells) > width and not cells[-1].strip():
        cells.pop()
    if len(cells) != width:
        quotes = ": a comma in a number needs quotes around it" if len(cells) > width else ""
        raise InputError(
            f"{file}, line {row.number}: {counted(len(cells), 'field')}, and the first line has {width}{quotes}"
        )
    return Row(row.number, cells)


def _is_header(cells: Sequence[str]) -> bool:
    """Return True if no cell can be a time or a number. The name of an index may be empty."""
    texts = [cell.strip() for cell in cells]
    return any(texts) and not any(
        text and (is_number(text) or is_missing(text) or _DATE.match(text) or re.fullmatch(r"[\d.,:/ -]+", text))
        for text in texts
    )


def _without_preamble(rows: list[Row]) -> tuple[list[Row], list[str] | None]:
    """Return the rows below the names, and the names, of an export of CloudWatch's console. Others have none."""
    if not rows or rows[0].cells[0].strip().lower() != "full label":
        return rows, None
    labels: Sequence[str] = rows[0].cells
    for at, row in enumerate(rows):
        head = row.cells[0].strip().lower()
        if head == "label":
            labels = row.cells
        if head == "timestamp":
            return rows[at + 1 :], ["timestamp", *labels[1:]]
    return rows, None


def _read_parquet(file: Path) -> Table:
    import pandas as pd
    import pyarrow as pa

    try:
        frame = pd.read_parquet(file)
    except FileNotFoundError:
        raise InputError(f"there is no file {file}") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{file} cannot be read as Parquet: {first_line(error)}") from None
    if not isinstance(frame.index, pd.RangeIndex):
        frame = frame.reset_index()
    columns = [
        [
            "" if empty else str(value.isoformat() if isinstance(value, datetime.date) else value)
            for value, empty in zip(frame[name].astype(object), frame[name].isna(), strict=True)
        ]
        for name in frame.columns
    ]
    rows = [Row(number, cells) for number, cells in enumerate(zip(*columns, strict=True), 1)]
    return Table(file, tuple(map(str, frame.columns)), rows)


def _read_prometheus(file: Path) -> Table:
    try:
        document = json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"there is no file {file}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read as JSON: {first_line(error)}") from None
    return table_of_prometheus(document, file)


def is_of_prometheus(document: object) -> bool:
    return isinstance(document, Mapping) and ("resultType" in document or {"status", "data"} <= document.keys())


def table_of_prometheus(document: Any, file: Path) -> Table:
    """Return the table of a range query's result: a column per label, one of times, and one of values.

    Raises:
        InputError: It is none.
    """
    if is_of_prometheus(document) and document.get("status", "success") != "success":
        raise InputError(f"{file} is an error of Prometheus: {document.get('error', 'no reason given')}")
    result = document.get("data", document) if is_of_prometheus(document) else None
    if not isinstance(result, Mapping) or result.get("resultType") != "matrix":
        raise InputError(f"{file} is not a range result of Prometheus, a 'matrix' with the values of each series over time")
    try:
        series = [(dict(each["metric"]), each["values"]) for each in result["result"]]
        names = {metric.pop("__name__", "value") for metric, _ in series}
        labels = sorted({label for metric, _ in series for label in metric})
        rows = [
            [*(str(metric.get(label, "")) for label in labels), _moment(time), str(value)]
            for metric, values in series
            for time, value in values
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} is not a range result of Prometheus: {first_line(error)}") from None
    value = names.pop() if len(names) == 1 else "value"
    numbered = [Row(number, cells) for number, cells in enumerate(rows, 1)]
    return Table(file, (*labels, "timestamp", value), numbered, queried=True)


def _moment(time: Any) -> str:
    if isinstance(time, bool) or not isinstance(time, int | float) or not math.isfinite(time):
        raise ValueError(f"{time!r} is not a time")
    return repr(time)
