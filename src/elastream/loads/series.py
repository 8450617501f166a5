"""Times and values of each series of a table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from elastream.errors import InputError
from elastream.loads import columns, moments, numerals
from elastream.loads.roles import SUM, Request, Roles
from elastream.loads.tables import Row, Table

TOTALS = frozenset({"total", "totals", "all", "sum", "overall", "grand total"})  # names of a sum among what it adds
ROUNDED_DIGITS = 6  # of a time as a spreadsheet shows it: 1.74079E+09


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement: the number of its line, its time (seconds, or None) and value (None for a missing one)."""

    line: int
    time: float | None
    value: float | None


Series: TypeAlias = Sequence[Point]


def read_series(table: Table, roles: Roles, request: Request) -> tuple[list[Series], bool]:
    """Return the series, and True if their times are local ones of a zone that nobody names.

    Raises:
        InputError: A time or number is wrong or can mean two things, or there are several series.
    """
    times, local = _times(table, roles.times, request)
    groups = list(_groups(table, roles, request, times).values())
    if local and request.time_zone:
        for lines in groups:
            try:
                zoned = moments.localised([times[at] or 0.0 for at in lines], request.time_zone)
            except ValueError as error:
                raise InputError(f"{table.file}: {error}") from None
            for at, time in zip(lines, zoned, strict=True):
                times[at] = time
    values = [_values(table, column) for column in roles.values]
    numbers = [row.number for row in table.rows]
    several = [[Point(numbers[at], times[at], column[at]) for at in lines] for lines in groups for column in values]
    return [*several], local and not request.time_zone


def _times(table: Table, chosen: tuple[int, ...], request: Request) -> tuple[list[float | None], bool]:
    """Return the time of each row, and True if they have no offset from UTC."""
    rows = table.rows
    if not chosen:
        return [None] * len(rows), False
    texts = [" ".join(row.cells[at].strip() for at in chosen) for row in rows]
    first, name = f"{table.file}, line {rows[0].number}", table.name(chosen[0])
    try:
        if not numerals.is_number(texts[0]):
            times, local = moments.read_dates(texts)
            return [*times], local
        if (digits := max(map(_digits_before_exponent, texts))) and digits <= ROUNDED_DIGITS:
            raise ValueError(f"{texts[0]} is rounded to {digits} digits")
        numbers = [_number(row, text, "," if "," in text else ".") for row, text in zip(rows, texts, strict=True)]
        by_name = table.names is not None and (request.time is not None or columns.is_time(name))
        return [*moments.in_seconds(numbers, columns.time_unit(name) if by_name else None, name)], False
    except _NotAPointError as error:
        raise error.placed(table) from None
    except ValueError as error:
        wrong = (row for row, text in zip(rows, texts, strict=True) if not moments.is_date(text))
        if not numerals.is_number(texts[0]) and (row := next(wrong, None)) is not None:
            raise _NotAPointError(row).placed(table) from None
        raise InputError(f"{first}: {error}") from None


def _digits_before_exponent(text: str) -> int:
    mantissa, exponent, _ = text.lower().partition("e")
    return sum(map(str.isdigit, mantissa)) if exponent else 0


class _NotAPointError(ValueError):
    """A row whose time or value is none."""

    def __init__(self, row: Row) -> None:
        super().__init__(row)
        self.row = row

    def placed(self, table: Table) -> InputError:
        return InputError(f"{table.file}, line {self.row.number}: {','.join(self.row.cells)!r} is not a time and a count")


def _number(row: Row, text: str, mark: str) -> float:
    try:
        return numerals.number_of(text, mark)
    except ValueError:
        raise _NotAPointError(row) from None


def _values(table: Table, column: int) -> list[float | None]:
    texts = [row.cells[column] for row in table.rows]
    try:
        # The separator of a single column says nothing about decimals.
        separator = table.mark if table.width > 1 or not table.mark else ";"
        mark = numerals.decimal_mark(texts, separator)
        values = [
            None if numerals.is_missing(text) else _number(row, text, mark)
            for row, text in zip(table.rows, texts, strict=True)
        ]
    except _NotAPointError as error:
        raise error.placed(table) from None
    except numerals.AmbiguousNumberError as error:
        raise InputError(f"{table.file}: column {table.name(column)!r}: {error}") from None
    for row, value in zip(table.rows, values, strict=True):
        if value is not None and not 0 <= value < math.inf:
            text = row.cells[column].strip()
            raise InputError(f"{table.file}, line {row.number}: a count of {text} records; it must be 0 or more")
    return values


def _groups(table: Table, roles: Roles, request: Request, times: Sequence[float | None]) -> Mapping[str, list[int]]:
    groups: dict[str, list[int]] = {}
    names: dict[str, list[str]] = {}
    varying = [at for at in roles.labels if len({*table.column(at)}) > 1] or roles.labels
    for at, row in enumerate(table.rows):
        cells = [row.cells[label].strip() for label in varying]
        groups.setdefault(", ".join(cells), []).append(at)
        names.setdefault(", ".join(cells), [*cells, ", ".join(cells)])
    if not request.series:
        _check_one(table, roles, groups, times)
        return {"": [*range(len(times))]}
    if SUM in request.series:
        total = next((name for name in groups if name.lower() in TOTALS), None)
        if total is not None and len(groups) > 1:
            raise InputError(
                f"{table.file}: the series {total!r} can be the sum of the others: write {table.file.name}:series={total}, "
                "or name those to add"
            )
        return groups
    chosen: dict[str, list[int]] = {}
    for name in request.series:
        matching = [series for series, own in names.items() if name in own]
        if len(matching) != 1:
            problem = f"{len(matching)} series have" if matching else "no series has"
            raise InputError(f"{table.file}: {problem} the name {name!r}; there is {_listed(groups)}")
        chosen[matching[0]] = groups[matching[0]]
    return chosen


def _check_one(table: Table, roles: Roles, groups: Mapping[str, list[int]], times: Sequence[float | None]) -> None:
    mixed = any(a is not None and b is not None and not b > a for a, b in pairwise(times))
    named = any(columns.is_label(table.name(at)) for at in roles.labels)
    if len(groups) > 1 and (mixed or named):
        name = table.file.name
        raise InputError(
            f"{table.file} holds {len(groups)} series ({_listed(groups)}): write {name}:series={next(iter(groups))} for "
            f"one of them, or {name}:series={SUM} for their sum"
        )


def _listed(groups: Mapping[str, list[int]]) -> str:
    return ", ".join(map(repr, list(groups)[:4])) + ", ..." * (len(groups) > 4)
