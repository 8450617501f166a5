"""What recorded files have in common: CSV, gzipped or not, and times in whatever unit the name of their column says."""

import csv
import gzip
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from elastream.model.errors import InputError

__all__ = ["UNITS", "lines_of", "seconds_of", "words_in"]

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
