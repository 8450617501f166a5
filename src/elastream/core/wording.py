"""Short texts of observed quantities for people; unknown is a dash."""

import math
import re
from collections.abc import Callable, Mapping
from typing import TypeGuard

from elastream.core.metrics import Quantity, quantity_of
from elastream.dataflow.signals import SignalValue
from elastream.units import format_duration, format_rate

UNKNOWN = "–"


def _is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and not math.isnan(value)


def amount(value: float | None) -> str:
    """Return a number as text with grouped thousands, or with up to three digits: `"39,810"`, `"0.38"`."""
    if not _is_known(value):
        return UNKNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == round(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def signal_text(value: SignalValue | None) -> str:
    if value is None or value != value:
        return "unknown"
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else f"{value:.6g}"


def gist(sentence: str) -> str:
    """Return a sentence without figures, for comparison."""
    return re.sub(r"\b\d[\d.,]*[kM]?", "#", sentence)


def hosts_text(hosts: float) -> str:
    return f"{amount(hosts)} host" + ("" if hosts == 1 else "s")


def at_most(hosts: int, limit: str = "max_hosts") -> str:
    """Return the start of remarks that need more hosts than `limit` allows."""
    return f"{limit}: at most {counted(hosts, 'host')} may be leased"


def duration_text(seconds: float | None) -> str:
    return format_duration(seconds) if _is_known(seconds) else UNKNOWN


def rate_text(records_per_second: float | None) -> str:
    return format_rate(records_per_second) if _is_known(records_per_second) else UNKNOWN


def percent(fraction: float | None) -> str:
    """Return a percentage; just below 1 is not 100 %."""
    if not _is_known(fraction):
        return UNKNOWN
    if 0.995 <= fraction < 1:
        return f"{math.floor(fraction * 10_000) / 10_000:.2%}"
    return f"{fraction:.0%}"


def percent_off(relative: float) -> str:
    return UNKNOWN if math.isnan(relative) else f"{relative:+.1%}"


def money(value: float | None) -> str:
    if not _is_known(value):
        return UNKNOWN
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.4f}"


def counted(number: float, one: str, many: str = "") -> str:
    return f"{number:,.0f} {one if number == 1 else many or one + 's'}"


def clock(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def memory_text(megabytes: float | None) -> str:
    return f"{amount(megabytes)} MB" if _is_known(megabytes) else UNKNOWN


def bytes_text(bytes_per_second: float | None) -> str:
    if not _is_known(bytes_per_second):
        return UNKNOWN
    factor, unit = next((each for each in _BYTES if bytes_per_second >= each[0]), (1.0, "B/s"))
    return f"{bytes_per_second / factor:.1f} {unit}" if factor > 1 else f"{bytes_per_second:.0f} {unit}"


_BYTES = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))
# Text of a value by its quantity.
WRITERS: Mapping[Quantity, Callable[[float | None], str]] = {
    Quantity.RATE: rate_text,
    Quantity.RECORDS: amount,
    Quantity.SECONDS: duration_text,
    Quantity.FRACTION: percent,
    Quantity.SPEED: amount,
    Quantity.CORES: amount,
    Quantity.COUNT: amount,
    Quantity.MEGABYTES: memory_text,
    Quantity.BYTE_RATE: bytes_text,
    Quantity.MONEY: money,
}


def quantity(name: str, value: float | None) -> str:
    return WRITERS[quantity_of(name)](value)


def quantities(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {quantity(name, value)}" for name, value in values.items())
