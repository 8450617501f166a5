"""Recorded loads: CSV files of counts per interval. Errors name file and line."""

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

# word in a column's name -> seconds of its numbers; the finest of several words counts
TIME_UNITS: Mapping[str, float] = {
    **dict.fromkeys(("time", "timestamp", "datetime", "date", "t", "ts", "epoch", "unix"), 1.0),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "millis", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
# Smaller times (before 1980) are those since a trace's start.
MIN_EPOCH_S = 315_532_800
MAX_EPOCH_S = 1e11  # larger numbers (3,000 years after 1970) are milliseconds


def read_lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of each non-empty line of a CSV file (`.gz` too).

    Raises:
        InputError: The file is missing or no CSV.
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
    first = lines.readline()
    lines.seek(0)
    return next((mark for mark in ",;\t" if mark in first), ",")


def words_in(name: str) -> list[str]:
    """Return the words in the name of a column."""
    return re.findall(r"[a-z]+", name.lower())


def seconds_of(text: str, unit: float | None, place: str) -> float:
    """Return a time in seconds: ISO 8601, or a number of `unit` seconds.

    Raises:
        InputError: A number without a unit, or milliseconds as seconds; starts with `place`.
        ValueError: The text is no time.
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
    if unit == 1.0 and number > MAX_EPOCH_S:
        raise InputError(
            f"{place}: the time {text.strip()} is no number of seconds; if it is milliseconds, call the column 'ms'"
        )
    return number * unit


Row: TypeAlias = tuple[int, float | None, float]  # (line number, timestamp in seconds or None, count)

COUNT_WORDS = ("count", "counts", "records", "requests", "events", "messages", "arrivals", "hits", "value", "values", "n")
RATE_WORDS = ("rate", "rps", "per_second")  # words in the names of the columns of counts, and of records per second


@dataclass(frozen=True, slots=True)
class TraceColumns:
    """Columns of a file."""

    times: int | None = None  # column of times, or None
    unit: float | None = 1.0  # seconds of one of its numbers; None for text only
    counts: int = -1  # column of counts; -1 for the last
    rates: bool = False  # `counts` has records per second


Gaps: TypeAlias = Literal["refuse", "hold", "empty"]
GAPS: tuple[Gaps, ...] = get_args(Gaps)


def trace(path: str | Path, interval: float | str | None = None, *, gaps: Gaps = "refuse") -> Pattern:
    """Read a load from a CSV file (`.gz` too) with one count per interval; arrivals are even within it.

    A header names the columns: times (`time`, `timestamp`: ISO 8601 or seconds; `ms`, `minutes`, `hours`, `days`), and
    counts (`count`, `records`, ...) or records per second (`rate`). Without a header, times are first and counts last.

    Args:
        path: The file.
        interval: Replaces the recorded interval, so `"1s"` plays minutes as seconds; required without times.
        gaps: Meaning of a missing line: an error ("refuse"), the line before it ("hold") or no records ("empty").

    Raises:
        InputError: An invalid time or count, a gap, times out of order, or no counts; names file and line.
    """
    file = Path(path)
    if gaps not in GAPS:
        raise InputError(f"{file}: gaps is {gaps!r}; it must be {', '.join(map(repr, GAPS[:-1]))} or {GAPS[-1]!r}")
    columns, rows = _read(file)
    if not rows:
        raise InputError(f"{file} holds no count: it needs a line per interval, with the count in its last column")
    counts = _fill_gaps(file, rows, gaps)
    recorded = None if interval is not None and not columns.rates else _interval_of(file, rows, interval)
    if columns.rates and recorded is not None:
        counts = [count * recorded for count in counts]
    seconds = duration(interval) if interval is not None else recorded
    assert seconds is not None
    if not seconds > 0:
        raise InputError(f"{file}: an interval of {seconds:g} s; it must be above 0")
    first = rows[0][1]
    begins = first if interval is None and first is not None and first >= MIN_EPOCH_S else None
    return Pattern(tuple(Section(seconds, count / seconds, count / seconds, count) for count in counts), begins=begins)


def _read(file: Path) -> tuple[TraceColumns, list[Row]]:
    columns = TraceColumns()
    rows: list[Row] = []
    for number, fields in read_lines(file):
        place = f"{file}, line {number}"
        if not rows and number == 1:
            if _is_header(fields):
                columns = _columns_by_name(fields, place)
                continue
            columns = TraceColumns(times=0 if len(fields) > 1 else None)
        rows.append(_row(fields, columns, number, place))
    return columns, rows


def _is_header(fields: Sequence[str]) -> bool:
    for field in fields:
        try:
            float(field)
        except ValueError:
            continue
        return False
    return True


def _columns_by_name(names: Sequence[str], place: str) -> TraceColumns:
    if len(names) == 1:
        return TraceColumns()
    times = next((at for at, name in enumerate(names) if TIME_UNITS.keys() & set(words_in(name))), None)
    others = [at for at in range(len(names)) if at != (0 if times is None else times)]
    counts = next((at for word in COUNT_WORDS for at in others if word in words_in(names[at])), None)
    rates = next((at for at in others if {*words_in(names[at]), names[at].lower()} & set(RATE_WORDS)), None)
    if counts is None and rates is None and len(others) > 1:
        listed = ", ".join(repr(names[at]) for at in others)
        raise InputError(f"{place}: which of the columns {listed} holds the counts is not said: call it 'count'")
    chosen = counts if counts is not None else rates if rates is not None else others[-1]
    if times is None:
        return TraceColumns(0, None, chosen, counts is None and rates is not None)
    unit = min(TIME_UNITS[word] for word in words_in(names[times]) if word in TIME_UNITS)
    return TraceColumns(times, unit, chosen, counts is None and rates is not None)


def _row(fields: Sequence[str], columns: TraceColumns, line: int, place: str) -> Row:
    try:
        time = None if columns.times is None or len(fields) < 2 else seconds_of(fields[columns.times], columns.unit, place)
        count = float(fields[columns.counts])
    except (ValueError, IndexError):
        raise InputError(f"{place}: {','.join(fields)!r} is not a time and a count") from None
    if not 0 <= count < math.inf:
        raise InputError(f"{place}: a count of {fields[columns.counts].strip()} records; it must be 0 or more")
    return line, time, count


def _interval_of(file: Path, rows: list[Row], default: float | str | None = None) -> float:
    """Return the seconds between lines; `default` applies without times. Raises InputError if both are missing."""
    times = [time for _, time, _ in rows if time is not None]
    if default is not None and (not times or len(rows) == 1):
        return duration(default)
    if len(times) == len(rows) == 1:
        raise InputError(f"{file} has one line, so its interval is unknown: add a line or set `interval`")
    if len(times) != len(rows) or len(times) < 2:
        raise InputError(f"{file} has no times, so its interval is unknown: add a column of times or set `interval`")
    distance = statistics.median_low(b - a for a, b in pairwise(times))
    if not distance > 0:
        raise InputError(f"{file}: the times do not increase from line to line")
    return distance


def _fill_gaps(file: Path, rows: list[Row], gaps: str) -> list[float]:
    """Return the counts with gaps filled by the rule `gaps`; times must be whole intervals apart."""
    if len(rows) < 2 or rows[0][1] is None:
        return [count for _, _, count in rows]
    usual = _interval_of(file, rows)
    counts = [rows[0][2]]
    for (_, before, last), (line, time, count) in pairwise(rows):
        assert before is not None  # _usual_distance rejects files where only some lines have a time
        assert time is not None
        intervals = (time - before) / usual
        missing = round(intervals) - 1
        if time <= before:
            early = f"{before - time:g} s before" if time < before else "at the time of"
            order = f"{early} the line before it; lines must be in order of time"
            raise InputError(f"{file}, line {line}: {order}")
        if missing < 0 or abs(intervals - round(intervals)) > 1e-6:
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
