"""Reads recorded loads: CSV files of counts per interval; errors name file and line."""

import csv
import gzip
import math
import statistics
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

from elastream.model.errors import InputError
from elastream.model.units import duration
from elastream.workload.pattern import Pattern, Section

__all__ = ["trace"]

Row: TypeAlias = tuple[int, float | None, float]
"""(line number, timestamp in seconds or None, count)."""


def trace(
    path: str | Path, interval: float | str | None = None, *, gaps: Literal["refuse", "hold", "empty"] = "refuse"
) -> Pattern:
    """Read a load from a CSV file (`.gz` too): one line per interval, the count in the last column, arrivals even within.

    With two or more columns the first is a time (ISO 8601, or a number of seconds), and the interval is the median distance
    of two lines; with one column `interval` is required. If both are given, `interval` replaces the recorded one:
    `trace(path, "1s")` plays recorded minutes as seconds. A first line that is not a record is a header. gaps: what a
    missing line means: an error ("refuse"), the line before it ("hold"), or no records ("empty").

    Raises InputError with file and line for a gap, an invalid count, times out of order, or a file without counts.
    """
    file = Path(path)
    rows = list(_rows(file))
    if not rows:
        raise InputError(f"{file} holds no count: it needs a line per interval, with the count in its last column")
    counts = _filled(file, rows, gaps)
    if interval is not None:
        seconds = duration(interval)
    else:
        seconds = _usual_distance(file, rows)
    return Pattern(tuple(Section(seconds, count / seconds, count / seconds, count) for count in counts))


def _rows(file: Path) -> Iterator[Row]:
    try:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
            reader = csv.reader(lines)
            for fields in reader:
                if not fields:
                    continue
                try:
                    time = _time(fields[0]) if len(fields) > 1 else None
                    count = float(fields[-1])
                except ValueError:
                    if reader.line_num == 1:
                        continue
                    raise InputError(
                        f"{file}, line {reader.line_num}: {','.join(fields)!r} is not a time and a count"
                    ) from None
                if not 0 <= count < math.inf:
                    raise InputError(
                        f"{file}, line {reader.line_num}: a count of {fields[-1].strip()} records; it must be 0 or more"
                    )
                yield reader.line_num, time, count
    except FileNotFoundError:
        raise InputError(f"there is no file {file}") from None
    except (OSError, UnicodeDecodeError, EOFError, csv.Error) as error:
        raise InputError(f"{file} cannot be read as {'gzipped ' if file.suffix == '.gz' else ''}CSV: {error}") from None


def _time(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text.strip())
        # Local times without an offset are taken as UTC: they must not jump at this machine's daylight-saving changes.
        return (moment - datetime(1970, 1, 1, tzinfo=moment.tzinfo)).total_seconds()


def _usual_distance(file: Path, rows: list[Row]) -> float:
    times = [time for _, time, _ in rows if time is not None]
    if len(times) != len(rows) or len(times) < 2:
        raise InputError(f"{file} has no times, so its interval is unknown: add a column of times or set `interval`")
    distance = statistics.median(b - a for a, b in pairwise(times))
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
        if missing < 0 or abs(apart - round(apart)) > 1e-6:
            raise InputError(
                f"{file}, line {line}: {time - before:g} s after the line before it, not a multiple of {usual:g} s"
            )
        if missing and gaps == "refuse":
            raise InputError(
                f"{file}, line {line}: a gap, {missing} interval{'s' if missing > 1 else ''} of {usual:g} s before it "
                "missing (gaps='hold' repeats the line before, gaps='empty' takes it as no records)"
            )
        counts += [last if gaps == "hold" else 0.0] * missing
        counts.append(count)
    return counts
