"""Recorded loads: files of counts or rates per interval. Errors name file and line.

Intervals follow from the distances between lines; late scrapes and gaps are known.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from elastream.core.wording import counted
from elastream.errors import DataflowError, InputError
from elastream.loads import columns, moments, numerals
from elastream.loads.pattern import MAX_PIECES, Pattern, Section
from elastream.loads.roles import SUM, Request, Roles, choose
from elastream.loads.tables import Row, Table, read_table
from elastream.units import duration

TOTALS = frozenset({"total", "totals", "all", "sum", "overall", "grand total"})  # names of a sum among what it adds
ROUNDED_DIGITS = 6  # of a time as a spreadsheet shows it: 1.74079E+09
EXACT = 1e-6  # share of an interval within which a distance is a multiple of it
JITTER = 0.05  # share of an interval by which a scrape may be early or late
MAX_JITTERED_S = 72_000.0  # longer intervals are days and months: one of 30 days is no early one of 31
HOUR_S = 3600.0
MIN_PART_OF_DAY_S = 9_000.0  # longer intervals in a time zone may have an hour more or less


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


@dataclass(frozen=True, slots=True)
class Intervals:
    """Consecutive intervals of a file.

    Attributes:
        first: Time of the first one; None without times.
    """

    seconds: Sequence[float]
    index: Mapping[float, int]
    first: float | None


def intervals_of(file: Path, several: Sequence[Series], default: float | None, *, local: bool, zoned: bool) -> Intervals:
    """Return the intervals that all series cover.

    Args:
        default: Length without times (seconds).
        local: True if times are local ones of a zone that nobody names.
        zoned: True if times are those of a zone: a day may have 23 hours.

    Raises:
        InputError: Times are out of order or no whole intervals apart, or the interval is unknown.
    """
    lines = {point.time: point.line for points in several for point in points if point.time is not None}
    if not lines or (len(lines) == 1 and all(len(points) == 1 for points in several)):
        if default is None:
            problem, way = ("one line", "a line") if lines else ("no times", "a column of times")
            raise InputError(f"{file} has {problem}, so its interval is unknown: add {way} or set `interval`")
        return Intervals([default] * len(several[0]), dict.fromkeys(lines, 0), next(iter(lines), None))
    for points in several:
        _check_order(file, points, local)
    times = sorted(lines)
    usual = _usual(times)
    own = [(len(points), _usual([point.time or 0.0 for point in points])) for points in several if len(points) > 1]
    apart = [size for size, each in own if abs(each - usual) > 2 * JITTER * usual]
    if len(apart) == len(own) or any(size > 2 for size in apart):  # of two times, lines between may be missing
        raise InputError(f"{file}: its series have values at different times, so they cannot be added")
    late = usual < (MIN_PART_OF_DAY_S if zoned else MAX_JITTERED_S)
    tolerance = 3 * JITTER if late else HOUR_S / usual + EXACT if zoned else EXACT
    seconds, index = _laid_out(file, times, lines, usual, tolerance)
    regular = _regular(index, len(seconds), usual) if late else None
    if regular is None and late:
        _laid_out(file, times, lines, usual, JITTER)
    return Intervals(regular or seconds, index, times[0])


def _usual(times: Sequence[float]) -> float:
    return statistics.median_low(later - earlier for earlier, later in pairwise(times))


def _check_order(file: Path, points: Series, local: bool) -> None:
    times = [point.time for point in points]
    if len(times) > 1 and len({*times}) == 1:
        raise InputError(f"{file}: the times do not increase from line to line")
    for before, point in pairwise(points):
        assert before.time is not None
        assert point.time is not None
        if not point.time > before.time:
            early = f"{before.time - point.time:g} s before" if point.time < before.time else "at the time of"
            hint = _hint("an hour that comes twice needs", local)
            raise InputError(f"{file}, line {point.line}: {early} the line before it; lines must be in order of time{hint}")


def _hint(what: str, local: bool) -> str:
    return f" ({what} `time_zone`, if these are local times)" if local else ""


def _laid_out(
    file: Path, times: Sequence[float], lines: Mapping[float, int], usual: float, tolerance: float
) -> tuple[list[float], dict[float, int]]:
    seconds: list[float] = []
    index = {times[0]: 0}
    for before, time in pairwise(times):
        number = round((time - before) / usual)
        if number < 1 or abs((time - before) / usual - number) > tolerance:
            raise InputError(
                f"{file}, line {lines[time]}: {time - before:g} s after the line before it, not a multiple of {usual:g} s"
            )
        if len(seconds) + number > MAX_PIECES:
            raise InputError(
                f"{file}, line {lines[time]}: {time - before:g} s after the line before it, {number:,} intervals of "
                f"{usual:g} s: a time is wrong, or this is no gap of one load"
            )
        seconds += [(time - before) / number] * number
        index[time] = len(seconds)
    return [*seconds, usual], index


def _regular(index: Mapping[float, int], number: int, usual: float) -> list[float] | None:
    """Return equal intervals if the times are only early or late by a little, or else None."""
    first, last = min(index), max(index)
    mean = (last - first) / index[last]
    if all(abs(time - first - at * usual) <= EXACT * usual for time, at in index.items()):
        return [usual] * number
    spread = _spread(index, mean)
    whole = float(round(mean)) if mean >= 1 else round(mean, 3)
    # The jitter of the first and last time is all that keeps the mean from a round number.
    mean = whole if whole and _spread(index, whole) <= 2 * spread else mean
    return [mean] * number if spread <= 2 * JITTER * mean else None


def _spread(index: Mapping[float, int], interval: float) -> float:
    late = [time - at * interval for time, at in index.items()]
    return max(late) - min(late)


def filled(file: Path, points: Series, intervals: Intervals, gaps: str, *, local: bool) -> list[float]:
    """Return the value of each interval. A gap has the value before it under "hold", and 0 under "empty".

    Raises:
        InputError: There is a gap and another rule, or nothing to hold.
    """
    at = {index if point.time is None else intervals.index[point.time]: point for index, point in enumerate(points)}
    values: list[float] = []
    for interval in range(len(intervals.seconds)):
        point = at.get(interval)
        if point is not None and point.value is not None:
            values.append(point.value)
        elif gaps == "empty":
            values.append(0.0)
        elif gaps == "hold" and values:
            values.append(values[-1])
        else:
            raise _gap(file, at, interval, intervals, gaps, local)
    return values


def _gap(file: Path, at: Mapping[int, Point], interval: int, intervals: Intervals, gaps: str, local: bool) -> InputError:
    ways = f"write {file.name}:gaps=hold to repeat the line before, or gaps=empty for no records"
    if gaps == "hold":
        ways = "there is no line before it to hold; gaps=empty takes it as no records"
    if interval in at:
        return InputError(f"{file}, line {at[interval].line}: a gap, no value: {ways}")
    later = next((each for each in range(interval, len(intervals.seconds)) if each in at), None)
    missing = counted((later or len(intervals.seconds)) - interval, "interval")
    seconds = intervals.seconds[interval]
    hint = _hint("an hour that the clock leaves out needs", local and seconds == HOUR_S)
    line = at[later].line if later is not None else at[max(at)].line
    where = "before" if later is not None else "after"
    return InputError(f"{file}, line {line}: a gap, {missing} of {seconds:g} s {where} it missing: {ways}{hint}")


Gaps: TypeAlias = Literal["refuse", "hold", "empty"]
GAPS: tuple[Gaps, ...] = get_args(Gaps)
Names: TypeAlias = str | Sequence[str]


def trace(
    path: str | Path,
    interval: float | str | None = None,
    *,
    gaps: Gaps = "refuse",
    count: Names | None = None,
    rate: Names | None = None,
    time: str | None = None,
    series: Names | None = None,
    time_zone: str = "",
) -> Pattern:
    """Read a recorded load: CSV or TSV (`.gz` too), Parquet, or a range result of Prometheus as JSON.

    The names of columns say what they hold; one that can mean several things is refused. Arrivals are even within an
    interval.

    Args:
        interval: Replaces the recorded interval, so `"1s"` plays minutes as seconds; required without times.
        gaps: Meaning of a missing line or value: an error ("refuse"), the one before it ("hold") or no records ("empty").
        count: Column of counts; several are added.
        rate: Column of records per second, or per the time in its name; several are added.
        series: Series by name; several are added, and "*" adds all.
        time_zone: Zone of times without an offset, such as "Europe/Vienna". Default: UTC.

    Raises:
        InputError: Something is wrong, missing, or can mean several things; names file and line.
    """
    file = Path(path)
    if gaps not in GAPS:
        raise InputError(f"{file}: gaps is {gaps!r}; it must be {', '.join(map(repr, GAPS[:-1]))} or {GAPS[-1]!r}")
    if time_zone and not moments.is_zone(time_zone):
        raise InputError(f"{file}: there is no time zone {time_zone!r}; an example is 'Europe/Vienna'")
    length = None if interval is None else duration(interval)
    request = Request(_as_names(count), _as_names(rate), time, _as_names(series), time_zone, length)
    table = read_table(file)
    if not table.rows:
        raise InputError(f"{file} holds no count: it needs a line per interval, with the count in its last column")
    roles = choose(table, request)
    several, local = read_series(table, roles, request)
    intervals = intervals_of(file, several, length, local=local, zoned=bool(time_zone))
    values = [filled(file, points, intervals, gaps, local=local) for points in several]
    counts = [sum(each) for each in zip(*values, strict=True)]
    if roles.per is not None:
        counts = [count * seconds / roles.per for count, seconds in zip(counts, intervals.seconds, strict=True)]
    lasts = intervals.seconds if length is None else [length] * len(counts)
    if not min(lasts) > 0:
        raise InputError(f"{file}: an interval of {min(lasts):g} s; it must be above 0")
    first = intervals.first
    begins = first if length is None and first is not None and first >= moments.MIN_EPOCH_S else None
    try:
        sections = [Section(each, count / each, count / each, count) for each, count in zip(lasts, counts, strict=True)]
    except DataflowError as error:
        raise InputError(f"{file}: {error}") from None
    return Pattern(tuple(sections), begins=begins)


def _as_names(names: Names | None) -> tuple[str, ...]:
    return () if names is None else tuple(map(str, names)) if isinstance(names, list | tuple) else (str(names),)
