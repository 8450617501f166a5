"""Times as files write them: ISO 8601, dates with slashes or dots, numbers of a unit, seconds since 1970.

Times without a zone are UTC.
"""

import re
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from elastream.errors import InputError, first_line
from elastream.loads.numerals import is_number

# Smaller times (before 1980) are those since a trace's start; larger ones (after 2100) have another unit.
MIN_EPOCH_S, MAX_EPOCH_S = 315_532_800, 4_102_444_800
MAX_START_S = 1e6  # eleven days: a larger first time is one since 1970 in a unit that nobody names
EPOCH_UNITS = (1.0, 1e-3, 1e-6, 1e-9)  # units of times since 1970, which their sizes tell apart
_YEARS = range(1970, 2101)
_SHEET_DAYS = (29_221, 73_051)  # 1980 and 2100 in days since 1900, as spreadsheets count

# Python reads more: `2026-03-01 00.01` as a hundredth of a second after midnight.
_ISO = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}(?::?\d{2})?)?)?"
    r"|\d{8}T\d{4}(?:\d{2})?(?:Z|[+-]\d{2}(?::?\d{2})?)?"
)
_DATE = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})(?:,?[ T]+(.+))?")
_YEAR_FIRST = re.compile(r"(\d{4})([/.])(\d{1,2})\2(\d{1,2})(.*)")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})([.]\d+)?)?(?:\s*([AaPp])\.?[Mm]\.?)?(\s*(?:Z|[+-]\d{2}:?\d{2}))?")


def is_date(text: str) -> bool:
    return not is_number(text) and (_iso(text) is not None or bool(_dates(text)))


def is_clock(text: str) -> bool:
    """Return True if `text` is a time of day, such as `13:05` or `1:05 PM`."""
    return _CLOCK.fullmatch(text.strip()) is not None


def seconds_of(text: str, unit: float | None, place: str) -> float:
    """Return a time in seconds: ISO 8601, or a number of `unit` seconds.

    Raises:
        InputError: A number without a unit, or one that makes no sense in it; starts with `place`.
        ValueError: The text is no time.
    """
    try:
        number = float(text)
    except ValueError:
        moment = _iso(text)
        if moment is None:
            raise
        return _seconds(moment)
    if unit is None:
        raise InputError(
            f"{place}: the first column has numbers ({text.strip()}), and its name is none of a time: call it 'seconds', "
            "'minutes', 'hours', 'days' or 'ms', or leave only the column of counts and set `interval`"
        )
    if number * unit > MAX_EPOCH_S:
        raise InputError(
            f"{place}: the time {text.strip()} is not a number of seconds; if it is milliseconds, call the column 'ms'"
        )
    return number * unit


def epoch_unit(number: float) -> float | None:
    """Return the unit in which `number` is a time between 1980 and 2100, or None."""
    return next((unit for unit in EPOCH_UNITS if MIN_EPOCH_S <= number * unit <= MAX_EPOCH_S), None)


def in_seconds(numbers: Sequence[float], unit: float | None, name: str) -> list[float]:
    """Return times in seconds, since 1970 or since a start.

    Args:
        unit: The unit in the name of the column (seconds), if any.

    Raises:
        ValueError: The first number makes no sense in the unit, or can mean several times.
    """
    first = numbers[0]
    since_1970 = epoch_unit(first)
    if unit is None:
        unit = since_1970 or 1.0
        step = numbers[1] - first if len(numbers) > 1 else 0.0
        if since_1970 is None and (abs(first) > MAX_START_S or "date" in name.lower()):
            raise ValueError(f"{first:.16g} is not a number of seconds, neither since 1970 nor since a start")
        if _is_day_of_sheet(first, step) or _has_digits_of_date(first) or (step == 1 and first in _YEARS):
            raise ValueError(f"{first:.16g} can be a date, and can be seconds: write a date such as 2026-03-01")
    elif since_1970 not in (None, unit) or first * unit > MAX_EPOCH_S:
        raise ValueError(f"{first:.16g} in {name!r} does not look like its unit; rename the column 'timestamp'")
    # A division by a whole number is exact where a product with its inverse is not.
    return [number / round(1 / unit) if unit < 1 else number * unit for number in numbers]


def _is_day_of_sheet(first: float, step: float) -> bool:
    return _SHEET_DAYS[0] <= first < _SHEET_DAYS[1] and (step <= 1 or not float(step).is_integer())


def _has_digits_of_date(first: float) -> bool:
    return bool(re.fullmatch(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])([01]\d|2[0-3])?", f"{first:.0f}"))


def read_dates(texts: Sequence[str]) -> tuple[list[float], bool]:
    """Return times in seconds since 1970, and True if they are local ones, without an offset.

    Raises:
        ValueError: A text is no date, some have an offset and some not, or the order of day and month is open.
    """
    moments = [_iso(text) for text in texts]
    if None in moments:
        moments = [*_in_order(texts)]
    aware = {moment is not None and moment.tzinfo is not None for moment in moments}
    if len(aware) > 1:
        raise ValueError("some times have an offset from UTC, and others have none")
    return [_seconds(moment) for moment in moments if moment is not None], aware == {False}


def is_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def localised(times: Sequence[float], zone: str) -> list[float]:
    """Return local times of `zone` as seconds since 1970; the order of lines tells an hour that comes twice.

    Raises:
        ValueError: There is no such zone, a time does not exist, or an hour that comes twice is there once.
    """
    import pandas as pd

    local = pd.DatetimeIndex(pd.to_datetime([round(time * 1e9) for time in times], unit="ns"))
    try:
        moments = local.tz_localize(zone, ambiguous="infer", nonexistent="raise")
    except Exception as error:  # of pandas, zoneinfo and, before pandas 3, pytz
        raise ValueError(f"the times cannot be those of {zone}: {first_line(error)}") from None
    return [value / 1e9 for value in moments.as_unit("ns").astype("int64").tolist()]


def _seconds(moment: datetime) -> float:
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _iso(text: str) -> datetime | None:
    text = text.strip()
    if _ISO.fullmatch(text) is None:
        text = _as_iso(text)
    try:
        return datetime.fromisoformat(text) if _ISO.fullmatch(text) else None
    except ValueError:
        return None


def _as_iso(text: str) -> str:
    if year_first := _YEAR_FIRST.fullmatch(text):
        year, _, month, day, rest = year_first.groups()
        text = f"{year}-{int(month):02}-{int(day):02}{rest}"
    return re.sub(r" ?UTC$", "+00:00", re.sub(r" ([+-]\d\d:?\d\d)$", r"\1", text))


def _dates(text: str) -> list[datetime | None]:
    """Return the moment that `text` is with the day first, and with the month first; empty if it is neither."""
    match = _DATE.fullmatch(text.strip())
    clock = None if match is None else _CLOCK.fullmatch((match.group(5) or "0:00").strip())
    if match is None or clock is None:
        return []
    first, _, second, year, _ = match.groups()
    hour, minute, seconds, fraction, half, offset = clock.groups()
    if half is not None and not 1 <= int(hour) <= 12:
        return []
    hours = int(hour) if half is None else int(hour) % 12 + 12 * (half in "Pp")
    orders = ((first, second), (second, first))
    moments = []
    time = f"{hours:02}:{minute}:{seconds or '00'}{fraction or ''}{(offset or '').strip()}"
    for day, month in orders:
        moments.append(_iso(f"{year}-{int(month):02}-{int(day):02}T{time}"))
    return moments if any(moments) else []


def _in_order(texts: Sequence[str]) -> list[datetime]:
    both = [_dates(text) or [_iso(text)] * 2 for text in texts]
    wrong = next((text for text, moments in zip(texts, both, strict=True) if not any(moments)), None)
    if wrong is not None:
        raise ValueError(f"{wrong.strip()!r} is not a time")
    orders = [[moment for moment in column if moment is not None] for column in zip(*both, strict=True)]
    possible = [order for order in orders if len(order) == len(texts)]
    irregular = [_irregularity(order) for order in possible]
    best = min(irregular, default=0)
    if irregular.count(best) != 1 and any(order != possible[0] for order in possible):
        raise ValueError(f"{texts[0].strip()!r} can be two dates, with the day or the month first: write 2026-03-01")
    if not possible:
        raise ValueError("no order of day and month fits all dates: write 2026-03-01")
    return possible[irregular.index(best)]


def _irregularity(moments: Sequence[datetime]) -> int:
    if len({moment.tzinfo is None for moment in moments}) > 1:
        return 0
    different = list(dict.fromkeys(moments))
    if len({(moment.day, moment.time()) for moment in different}) == 1:
        return 0  # a line per month
    steps = [later - earlier for earlier, later in pairwise(different)]
    usual = statistics.median_low(steps) if steps else timedelta(0)
    return sum(abs(step - usual) > 0.05 * abs(usual) for step in steps)
