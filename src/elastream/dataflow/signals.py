"""Signals: named values for guards, known or unknown, each with the time of its reading."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

SignalValue: TypeAlias = float | bool | str


class SignalKind(StrEnum):
    NUMBER = "number"
    TRUTH = "truth"
    TEXT = "text"

    def admits(self, value: SignalValue) -> bool:
        """Return True if `value` has this type and is known: neither NaN nor infinite."""
        match self:
            case SignalKind.NUMBER:
                return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            case SignalKind.TRUTH:
                return isinstance(value, bool)
            case SignalKind.TEXT:
                return isinstance(value, str)


@dataclass(frozen=True, slots=True)
class Feed:
    """Endpoint at which an external signal is polled.

    Attributes:
        every: Time between polls (seconds).
        field: Path to the value in a JSON object, joined with `.`. Empty: the whole text is the value.
    """

    kind: str
    place: str
    every: float = 1.0
    field: str = ""
    servers: str = ""


@dataclass(frozen=True, slots=True)
class Signal:
    """Declared signal.

    Attributes:
        name: Name in guards.
        stale: Age at which a value counts as unknown (seconds).
        feed: Endpoint of an external signal.
    """

    name: str
    kind: SignalKind = SignalKind.NUMBER
    stale: float = math.inf
    feed: Feed | None = None


@dataclass(frozen=True, slots=True)
class SignalReading:
    """Value of a signal (None: unknown) and its time (seconds of the run)."""

    value: SignalValue | None
    time: float


# Newest reading of each signal, by name.
Signals: TypeAlias = Mapping[str, SignalReading]
