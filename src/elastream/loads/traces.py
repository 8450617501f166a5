"""Recorded loads: files of counts or rates per interval. Errors name file and line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from elastream.errors import DataflowError, InputError
from elastream.loads import moments
from elastream.loads.intervals import filled, intervals_of
from elastream.loads.pattern import Pattern, Section
from elastream.loads.roles import Request, choose
from elastream.loads.series import read_series
from elastream.loads.tables import read_table
from elastream.units import duration

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
        rate: Column of records per second, or per the time in its name; several are added.
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
    request = Request(_listed(count), _listed(rate), time, _listed(series), time_zone, length)
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


def _listed(names: Names | None) -> tuple[str, ...]:
    return () if names is None else tuple(map(str, names)) if isinstance(names, list | tuple) else (str(names),)
