"""Observed quantities as people read them: with their unit, short, and a dash where nothing is known.

The live view, the report and the command line write the same value the same way, and none of them writes an unknown as 0.
"""

import math
from collections.abc import Mapping
from typing import TypeGuard

from elastream.model.units import format_duration, format_rate

__all__ = ["UNKNOWN", "amount", "clock", "duration_text", "money", "percent", "quantities", "quantity", "rate_text"]

UNKNOWN = "–"


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and not math.isnan(value)


def amount(value: float | None) -> str:
    """A plain number: `"39,810"`, `"0.38"`."""
    if not _known(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == round(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def duration_text(seconds: float | None) -> str:
    """A duration in the unit a person would choose."""
    return format_duration(seconds) if _known(seconds) else UNKNOWN


def rate_text(records_per_second: float | None) -> str:
    """A rate, such as `"550/s"`."""
    return format_rate(records_per_second) if _known(records_per_second) else UNKNOWN


def percent(fraction: float | None) -> str:
    """A fraction as percent; a share just below all of it is not rounded up to all of it."""
    if not _known(fraction):
        return UNKNOWN
    if 0.995 <= fraction < 1:
        return f"{math.floor(fraction * 10_000) / 10_000:.2%}"
    return f"{fraction:.0%}"


def money(value: float | None) -> str:
    """An amount of money in the unit that prices are in: `"12.50"`, small ones with more digits."""
    if not _known(value):
        return UNKNOWN
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.4f}"


def clock(seconds: float) -> str:
    """Time of a run as on a stopwatch: `"1:23"`, `"2:01:07"`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


_BY_WORD = {
    "latency": duration_text,
    "duration": duration_text,
    "time": duration_text,
    "seconds": duration_text,
    "rate": rate_text,
    "throughput": rate_text,
    "utilisation": percent,
    "compliance": percent,
    "share": percent,
    "cpu": percent,
    "cost": money,
}


def quantity(name: str, value: float | None) -> str:
    """`value` as the quantity called `name` is written; the words in the name say which kind it is."""
    for word in reversed(name.lower().replace(".", "_").replace(" ", "_").split("_")):
        if word in _BY_WORD:
            return _BY_WORD[word](value)
    return amount(value)


def quantities(values: Mapping[str, float]) -> str:
    """Several quantities on one line: `"arrival rate 250/s, hosts 3"`."""
    return ", ".join(f"{name.replace('_', ' ')} {quantity(name, value)}" for name, value in values.items())
