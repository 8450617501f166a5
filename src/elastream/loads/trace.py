"""Reads recorded loads: CSV files of counts per interval; errors name file and line."""

import csv
import gzip
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Literal, TextIO, TypeAlias, get_args

from elastream.errors import InputError
from elastream.loads.pattern import Pattern, Section
from elastream.units import duration

UNITS: Mapping[str, float] = {
    **dict.fromkeys(("time", "timestamp", "datetime", "date", "t", "ts", "epoch", "unix"), 1.0),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "millis", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
"""Words in the name of a column of times -> seconds of the unit that its numbers are in; the finest of several counts."""
MILLISECONDS_FROM = 1e11
"""Numbers of seconds above this lie more than 3,000 years after 1970: they are milliseconds."""


def lines_of(file: Path) -> Iterator[tuple[int, list[str]]]:
    """(Line number, fields) of each line of a CSV file (`.gz` too) that holds something.

    Raises InputError for a file that is not there, or is no CSV.
    """
    try:
        with (
            gzip.open(file, "rt", encoding="utf-8-sig")
            if file.suffix == ".gz"
            else file.open(encoding="utf-8-sig") as lines
        ):
            reader = csv.reader(lines, delimiter=_delimiter(lines))
            for fields in reader:
                if any(fields):
                    yield reader.line_num, fields
    except FileNotFoundError:
        raise InputError(f"there is no file {file}") from None
    except (OSError, UnicodeDecodeError, EOFError, csv.Error) as error:
        raise InputError(f"{file} cannot be read as {'gzipped ' if file.suffix == '.gz' else ''}CSV: {error}") from None


def _delimiter(lines: TextIO) -> str:
    """What separates columns: a comma, or in a first line without one a semicolon or a tab."""
    first = lines.readline()
    lines.seek(0)
    return next((mark for mark in ",;\t" if mark in first), ",")


def words_in(name: str) -> list[str]:
    """The words in the name of a column."""
    return re.findall(r"[a-z]+", name.lower())


def seconds_of(text: str, unit: float | None, place: str) -> float:
    """A time in seconds: ISO 8601, or a number of `unit` seconds; None: numbers have no unit, and are refused.

    Raises InputError that begins with `place`, and ValueError for text that is no time.
    """
    try:
        number = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text.strip())
        # Local times without an offset are taken as UTC: they must not jump at this machine's daylight-saving changes.
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    if unit is None:
        raise InputError(
            f"{place}: the first column has numbers ({text.strip()}), and its name is none of a time: call it 'seconds', "
            "'minutes', 'hours', 'days' or 'ms', or leave only the column of counts and set `interval`"
        )
    if unit == 1.0 and number > MILLISECONDS_FROM:
        raise InputError(
            f"{place}: the time {text.strip()} is no number of seconds; if it is milliseconds, call the column 'ms'"
        )
    return number * unit


Row: TypeAlias = tuple[int, float | None, float]
"""(line number, timestamp in seconds or None, count)."""

COUNTED = ("count", "counts", "records", "requests", "events", "messages", "arrivals", "hits", "value", "values", "n")
RATED = ("rate", "rps", "per_second")
"""Words in the name of the column of counts, and of one of records per second."""


@dataclass(frozen=True, slots=True)
class TraceColumns:
    """Where a file has what. times: column of times, or None; unit: seconds of one of its numbers; None: only texts.

    counts: column of counts, from the left, or -1 for the last; rates: whether it has records per second instead.
    """

    times: int | None = None
    unit: float | None = 1.0
    counts: int = -1
    rates: bool = False


Gaps: TypeAlias = Literal["refuse", "hold", "empty"]
GAPS: tuple[Gaps, ...] = get_args(Gaps)
"""What a missing line may mean."""


def trace(path: str | Path, interval: float | str | None = None, *, gaps: Gaps = "refuse") -> Pattern:
    """Read a load from a CSV file (`.gz` too): one line per interval with its count, arrivals even within.

    A header, where there is one, says which column is which: times (`time`, `timestamp`: ISO 8601, or numbers of seconds;
    `ms`, `seconds`, `minutes`, `hours`, `days`: numbers of those), and counts (`count`, `records`, `requests`, ...) or
    records per second (`rate`). Without one, times are in the first of several columns and counts in the last. The interval
    is the median distance of two lines; with one column `interval` is required. If both are given, `interval` replaces the
    recorded one: `trace(path, "1s")` plays recorded minutes as seconds. gaps: what a missing line means: an error
    ("refuse"), the line before it ("hold"), or no records ("empty").

    Raises InputError with file and line for a column that is no time, a gap, an invalid count, times out of order, or a
    file without counts.
    """
    file = Path(path)
    if gaps not in GAPS:
        raise InputError(f"{file}: gaps is {gaps!r}; it must be {', '.join(map(repr, GAPS[:-1]))} or {GAPS[-1]!r}")
    form, rows = _read(file)
    if not rows:
        raise InputError(f"{file} holds no count: it needs a line per interval, with the count in its last column")
    counts = _filled(file, rows, gaps)
    recorded = None if interval is not None and not form.rates else _usual_distance(file, rows, interval)
    if form.rates and recorded is not None:
        counts = [count * recorded for count in counts]
    seconds = duration(interval) if interval is not None else recorded
    assert seconds is not None
    if not seconds > 0:
        raise InputError(f"{file}: an interval of {seconds:g} s; it must be above 0")
    return Pattern(tuple(Section(seconds, count / seconds, count / seconds, count) for count in counts))


def _read(file: Path) -> tuple[TraceColumns, list[Row]]:
    form = TraceColumns()
    rows: list[Row] = []
    for number, fields in lines_of(file):
        place = f"{file}, line {number}"
        if not rows and number == 1:
            if _is_header(fields):
                form = _named(fields, place)
                continue
            form = TraceColumns(times=0 if len(fields) > 1 else None)
        rows.append(_row(fields, form, number, place))
    return form, rows


def _is_header(fields: Sequence[str]) -> bool:
    """Whether no field is a number; a first line that holds any is a record."""
    for field in fields:
        try:
            float(field)
        except ValueError:
            continue
        return False
    return True


def _named(names: Sequence[str], place: str) -> TraceColumns:
    """Columns by the names in a header. Raises InputError where several could be the counts, and none is called so."""
    if len(names) == 1:
        return TraceColumns()
    times = next((at for at, name in enumerate(names) if UNITS.keys() & set(words_in(name))), None)
    others = [at for at in range(len(names)) if at != (0 if times is None else times)]
    counts = next((at for word in COUNTED for at in others if word in words_in(names[at])), None)
    rates = next((at for at in others if any(word in RATED for word in (*words_in(names[at]), names[at].lower()))), None)
    if counts is None and rates is None and len(others) > 1:
        listed = ", ".join(repr(names[at]) for at in others)
        raise InputError(f"{place}: which of the columns {listed} holds the counts is not said: call it 'count'")
    chosen = counts if counts is not None else rates if rates is not None else others[-1]
    if times is None:
        return TraceColumns(0, None, chosen, counts is None and rates is not None)
    unit = min(UNITS[word] for word in words_in(names[times]) if word in UNITS)
    return TraceColumns(times, unit, chosen, counts is None and rates is not None)


def _row(fields: Sequence[str], form: TraceColumns, line: int, place: str) -> Row:
    try:
        time = None if form.times is None or len(fields) < 2 else seconds_of(fields[form.times], form.unit, place)
        count = float(fields[form.counts])
    except (ValueError, IndexError):
        raise InputError(f"{place}: {','.join(fields)!r} is not a time and a count") from None
    if not 0 <= count < math.inf:
        raise InputError(f"{place}: a count of {fields[form.counts].strip()} records; it must be 0 or more")
    return line, time, count


def _usual_distance(file: Path, rows: list[Row], given: float | str | None = None) -> float:
    """Seconds from a line to the next; given: used where there are no times. Raises InputError where neither is known."""
    times = [time for _, time, _ in rows if time is not None]
    if given is not None and (not times or len(rows) == 1):
        return duration(given)
    if len(times) == len(rows) == 1:
        raise InputError(f"{file} has one line, so its interval is unknown: add a line or set `interval`")
    if len(times) != len(rows) or len(times) < 2:
        raise InputError(f"{file} has no times, so its interval is unknown: add a column of times or set `interval`")
    distance = statistics.median_low(b - a for a, b in pairwise(times))
    if not distance > 0:
        raise InputError(f"{file}: the times do not increase from line to line")
    return distance


def _filled(file: Path, rows: list[Row], gaps: str) -> list[float]:
    """Counts with gaps handled as `gaps` says. Times, if given, must be whole numbers of intervals apart."""
    if len(rows) < 2 or rows[0][1] is None:
        return [count for _, _, count in rows]
    usual = _usual_distance(file, rows)
    counts = [rows[0][2]]
    for (_, before, last), (line, time, count) in pairwise(rows):
        assert before is not None  # _usual_distance rejects files where only some lines have a time
        assert time is not None
        apart = (time - before) / usual
        missing = round(apart) - 1
        if time <= before:
            early = f"{before - time:g} s before" if time < before else "at the time of"
            said = f"{early} the line before it; lines must be in order of time"
            raise InputError(f"{file}, line {line}: {said}")
        if missing < 0 or abs(apart - round(apart)) > 1e-6:
            raise InputError(
                f"{file}, line {line}: {time - before:g} s after the line before it, not a multiple of {usual:g} s"
            )
        if missing and gaps == "refuse":
            raise InputError(
                f"{file}, line {line}: a gap, {missing} interval{'s' if missing > 1 else ''} of {usual:g} s before it "
                f"missing: the load '{{trace: {{path: {file.name}, gaps: hold}}}}' repeats the line before, 'gaps: empty' "
                "takes it as no records"
            )
        counts += [last if gaps == "hold" else 0.0] * missing
        counts.append(count)
    return counts
