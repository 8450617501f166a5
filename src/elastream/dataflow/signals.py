"""Signals: the named values that guards read, each known or unknown, with the moment at which it was taken.

System signals come from an observation's metrics, domain signals from a diagnostic branch of the dataflow, external ones
from a poller; guards treat all three alike.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

SignalValue: TypeAlias = float | bool | str


class SignalKind(StrEnum):
    """Type of a signal's values."""

    NUMBER = "number"
    TRUTH = "truth"
    TEXT = "text"

    def admits(self, value: SignalValue) -> bool:
        """Whether `value` is of this type and known: neither NaN nor infinite."""
        match self:
            case SignalKind.NUMBER:
                return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            case SignalKind.TRUTH:
                return isinstance(value, bool)
            case SignalKind.TEXT:
                return isinstance(value, str)


@dataclass(frozen=True, slots=True)
class Feed:
    """Where an external signal is polled. kind: `"file"`, `"http"` or `"kafka"`; place: path, address or topic.

    every: seconds between polls. field: names down to the value in a JSON object, joined with `.`; empty: what is read is
    the value. servers: Kafka's.
    """

    kind: str
    place: str
    every: float = 1.0
    field: str = ""
    servers: str = ""


@dataclass(frozen=True, slots=True)
class Signal:
    """A declared signal. stale: seconds after which a value counts as unknown. feed: of an external one."""

    name: str
    kind: SignalKind = SignalKind.NUMBER
    stale: float = math.inf
    feed: Feed | None = None


@dataclass(frozen=True, slots=True)
class SignalReading:
    """One value of a signal, None where unknown; taken: when, in seconds on the clock of the run."""

    value: SignalValue | None
    taken: float


Signals: TypeAlias = Mapping[str, SignalReading]
"""The newest reading of each signal, by name."""
