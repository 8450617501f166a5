"""Parsers of quantities such as `"50ms"`, `"550/s"` and `"2 GB"`, to floats in one base unit each."""

import math
import re
from collections.abc import Mapping
from typing import TypeGuard

from elastream.errors import ElastreamError

# Shorter pauses between observations or plans (seconds) only keep a core busy.
MIN_PAUSE_S = 0.01
# 31 years in seconds: a longer finite duration is a typing mistake or a wrong clock.
MAX_DURATION_S = 1e9

# Largest error of a sum of decimal fractions (cores, shares, seconds): a smaller difference must decide nothing.
ROUNDING = 1e-9

_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d_,]*)?(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(.*?)\s*$", re.DOTALL)
_PART_OF_DURATION = re.compile(r"\s*(\d[\d_]*(?:\.\d+)?)\s*([^\W\d_]+)")
# Digits that commas group in threes. A zero never begins a group of thousands: 0,040 is a decimal.
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?![\d,_])")
_SECONDS = {
    "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "m": 60.0, "min": 60.0,
    "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "day": 86400.0,
}  # fmt: skip
_MEGABYTES = {
    "b": 1e-6, "kb": 1e-3, "mb": 1.0, "gb": 1e3, "kib": 2**10 / 1e6, "mib": 2**20 / 1e6, "gib": 2**30 / 1e6,
    "k": 1e-3, "m": 1.0, "g": 1e3, "tb": 1e6, "t": 1e6,
    "ki": 2**10 / 1e6, "mi": 2**20 / 1e6, "gi": 2**30 / 1e6, "ti": 2**40 / 1e6, "tib": 2**40 / 1e6,
}  # fmt: skip
_FACTORS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6}  # m is a thousandth in Kubernetes, and no rate here
_BYTES_PER_SECOND = {
    "bit": 1 / 8, "kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8, "b/s": 1.0, "kb/s": 1e3, "mb/s": 1e6, "gb/s": 1e9,
}  # fmt: skip


def _split(text: object, what: str) -> tuple[float, str]:
    match = _NUMBER.match(text) if isinstance(text, str) else None
    digits = match.group(1).replace("_", "") if match else ""
    if not match or not digits:
        raise ElastreamError(f"{text!r} is not {what}")
    if "," in digits and not _THOUSANDS.match(digits):
        raise ElastreamError(f"{text!r} is not {what}: a comma separates thousands; a decimal has a point")
    digits = digits.replace(",", "")
    try:
        number = float(digits)
    except ValueError:
        raise ElastreamError(f"{text!r} is not {what}") from None
    if math.isinf(number):
        raise ElastreamError(f"{text!r} is not {what}: it is too large")
    return number, match.group(2)


def duration(value: float | str) -> float:
    """Return a duration in seconds, from a number of seconds or text such as `"50ms"`, `"10 min"`, `"1h30m"`.

    Raises:
        ElastreamError: Another text, a negative duration, or a finite one above 31 years.
    """
    seconds = _compound(value) if isinstance(value, str) else None
    if seconds is None:
        seconds = _in(_SECONDS, value, "a duration", " such as '50ms'", "{!r} is not one of us, ms, s, min, h, d")
    if MAX_DURATION_S < seconds < math.inf:
        raise ElastreamError(f"{value!r} is not a sensible duration: it is longer than 31 years")
    return seconds


def pause(value: float | str, what: str) -> float:
    """Return the time (seconds) from one `what` to the next. Raises ElastreamError below MIN_PAUSE_S."""
    seconds = duration(value)
    if not MIN_PAUSE_S <= seconds < math.inf:
        least = format_duration(MIN_PAUSE_S)
        raise ElastreamError(f"{value!r} is not a time from one {what} to the next: the least is {least}")
    return seconds


def rate(value: float | str) -> float:
    """Return records per second, from a number or text such as `"550/s"`, `"12,000 / min"`, `"1.5M/s"`.

    Raises:
        ElastreamError: Another text, or a negative rate.
    """
    if _is_number(value):
        number, per = float(value), 1.0
    else:
        number, unit = _split(value, "a rate such as '550/s'")
        factor, slash, unit = unit.replace(" ", "").rpartition("/")
        if factor == "m":
            raise ElastreamError(f"{value!r} is not a rate: m can mean a thousandth or a million; a million is M")
        if factor not in _FACTORS or (unit and not (slash and unit.lower() in _SECONDS)):
            raise ElastreamError(f"{value!r} is not a rate: write it per s, min or h, such as '550/s' or '40k/s'")
        unit = unit.lower()
        number, per = number * _FACTORS[factor], _SECONDS[unit] if unit else 1.0
    return _positive(value, number / per, "a rate")


def memory(value: float | str) -> float:
    """Return megabytes (10^6 bytes), from a number of megabytes or text such as `"512 MB"`, `"2Gi"`."""
    return _in(_MEGABYTES, value, "an amount of memory", "", "{!r} is not one of kB, MB, GB, TB, KiB, MiB, GiB, Ki, Mi, Gi")


def cores(value: float | str) -> float:
    """Return cores, from a number or text such as `"2"` or `"500m"`, which are thousandths as in Kubernetes."""
    if _is_number(value):
        return float(value)
    number, unit = _split(value, "a number of cores such as 2 or '500m'")
    if unit not in ("", "m"):
        raise ElastreamError(f"{value!r} is not a number of cores such as 2 or '500m'")
    return _positive(value, number / 1000 if unit else number, "a number of cores")


_TRUTHS = {
    **dict.fromkeys(("true", "yes", "on", "t", "y", "1"), True),
    **dict.fromkeys(("false", "no", "off", "f", "n", "0"), False),
}


def truth(value: object) -> bool:
    """Return a truth value, from one or text such as `"yes"`, `"no"`, `"on"`, `"off"`.

    Raises:
        ElastreamError: Another value.
    """
    if isinstance(value, bool | int | str) and (text := str(value).strip().lower()) in _TRUTHS:
        return _TRUTHS[text]
    raise ElastreamError(f"{value!r} is neither true nor false")


def bytes_per_second(value: float | str) -> float:
    """Return bytes per second, from a number or text such as `"100mbit"`, `"12 MB/s"`."""
    return _in(_BYTES_PER_SECOND, value, "a bandwidth", "", "write it as '100mbit' or '12 MB/s'")


def price(value: float | str) -> tuple[float, float | None]:
    """Return an amount of money and the time it pays for (seconds), from text such as `"0.04/h"`.

    A number pays for a billing time unit (time None).

    Raises:
        ElastreamError: Another text, or a negative price.
    """
    if _is_number(value):
        return _positive(value, float(value), "a price"), None
    number, unit = _split(value, "a price such as '0.04/h'")
    unit = unit.lower()
    per = unit.removeprefix("/").strip()
    if unit and (per == unit or per not in _SECONDS):
        raise ElastreamError(f"{value!r} is not a price: write it per s, min, h or d, such as '0.04/h'")
    return _positive(value, number, "a price"), _SECONDS[per] if unit else None


def _in(units: Mapping[str, float], value: float | str, what: str, example: str, hint: str) -> float:
    """Return `value` in the base unit of `units`, also of plain numbers."""
    number, written = (float(value), "") if _is_number(value) else _split(value, what + example)
    unit = written.lower()
    if unit not in units and unit:
        raise ElastreamError(f"{value!r} is not {what}: {hint.format(unit)}")
    return _positive(value, number * units.get(unit, 1.0), what)


def _compound(text: str) -> float | None:
    seconds, smallest, end, parts = 0.0, math.inf, 0, 0
    while part := _PART_OF_DURATION.match(text, end):
        unit = _SECONDS.get(part.group(2).lower(), math.inf)
        if not unit < smallest:
            return None
        seconds += float(part.group(1).replace("_", "")) * unit
        smallest, end, parts = unit, part.end(), parts + 1
    return seconds if parts > 1 and not text[end:].strip() else None


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _positive(value: float | str, number: float, what: str) -> float:
    if not number >= 0:
        raise ElastreamError(f"{value!r} is not {what}: it is {'negative' if number < 0 else 'not a number'}")
    return number


def format_duration(seconds: float) -> str:
    """Return a duration in a readable unit: `"48 ms"`, `"1.9 s"`, `"2.5 min"`, `"3.0 h"`."""
    magnitude = abs(seconds)
    if magnitude < 0.9995:
        return f"{seconds * 1e3:.0f} ms" if magnitude >= 0.0095 else f"{seconds * 1e3:.2g} ms"
    if magnitude < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if magnitude < 7200 else f"{seconds / 3600:.1f} h"


def format_rate(records_per_second: float) -> str:
    """Return a rate as `"550/s"`, `"12.3k/s"`, `"3.30M/s"`; slow ones as `"2.5/s"`, `"18/h"`, `"0.5/d"`."""
    for factor, suffix, digits in ((1e6, "M", 2), (1e4, "k", 1)):
        if records_per_second >= factor:
            scale = 1e6 if suffix == "M" else 1e3
            return f"{records_per_second / scale:.{digits}f}{suffix}/s"
    if records_per_second >= 9.95 or not records_per_second > 0:
        return f"{records_per_second:.0f}/s"
    for per, unit, least in ((1.0, "s", 0.1), (3600.0, "h", 1.0), (86400.0, "d", 0.0)):
        slow = records_per_second * per
        if slow >= least:
            return f"{slow:.0f}/{unit}" if slow >= 9.95 else f"{slow:.2g}/{unit}"
    raise AssertionError("the last unit takes any rate")
