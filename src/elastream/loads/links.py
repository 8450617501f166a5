"""Traces of links, which are equal in both directions."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from elastream.errors import InputError
from elastream.loads.pattern import Floats, Integers
from elastream.loads.speeds import (
    DEVIATION_BETWEEN,
    DEVIATION_WITHIN,
    SLOT_S,
    as_table,
    check_shape,
    drifts_of,
    logistic,
    slot_at,
)

# rows of a generated trace: the pairs of 64 hosts; assumed: further pairs start again at the first row
GENERATED_PAIRS = 2016

# `Ec2Links`, in units of the logistic scale: centres of closeness (rated over observed latency) and bandwidth. Section
# 1.3: over 45 % of pairs are below 0.70 in latency, 22 % below 0.80 in bandwidth (tests/loads/test_links.py). It calls
# fluctuations of links similar to those of hosts.
CLOSENESS_CENTRE, BANDWIDTH_CENTRE = 0.51, 2.05


@dataclass(frozen=True, slots=True, eq=False)
class LinkTrace:
    """Latency and bandwidth between hosts, as factors on declared values.

    Attributes:
        latency: One row per pair (`pair_number`), one column per slot of `interval` seconds; both wrap around.
        bandwidth: The same shape.

    Raises:
        InputError: A value is not above 0.
    """

    latency: Floats
    bandwidth: Floats
    interval: float = SLOT_S

    def __post_init__(self) -> None:
        for name in ("latency", "bandwidth"):
            object.__setattr__(self, name, as_table("links between hosts", getattr(self, name)))
        check_shape("links between hosts", self.interval, self.latency, self.bandwidth)

    def slot(self, now: float) -> int:
        return slot_at(now, self.interval)

    def at(self, source: Integers, target: Integers, now: float) -> tuple[Floats, Floats]:
        """Return (latency, bandwidth) factors at `now` from each source to each target, by host number; 1 to itself."""
        rows, is_self = self.rows_of(source, target), source[:, None] == target[None, :]
        latency, bandwidth = self.column(now)
        return np.where(is_self, 1.0, latency[rows]), np.where(is_self, 1.0, bandwidth[rows])

    def rows_of(self, source: Integers, target: Integers) -> Integers:
        return np.asarray(pair_number(source[:, None], target[None, :]) % self.latency.shape[0])

    def column(self, now: float) -> tuple[Floats, Floats]:
        slot = self.slot(now) % self.latency.shape[1]
        return self.latency[:, slot], self.bandwidth[:, slot]

    def over(self, seconds: float) -> "LinkTrace":
        return self


class LinkSource(Protocol):
    def over(self, seconds: float) -> LinkTrace:
        """Return the trace for a run of `seconds`; a longer one starts with the same values."""
        ...


@dataclass(frozen=True, slots=True)
class Ec2Links:
    """EC2 links as in section 1.3 of the thesis: 47 % of pairs below 0.70 in latency, 22 % below 0.80 in bandwidth.

    "More than 45%" is taken as 47. Latency and bandwidth vary independently (assumed).
    """

    pairs: int = GENERATED_PAIRS
    seed: int = 1

    def __post_init__(self) -> None:
        if self.pairs < 1:
            raise InputError(f"a trace of {self.pairs} pairs of hosts: at least one is needed")

    def over(self, seconds: float) -> LinkTrace:
        closeness = self._drawn(0, CLOSENESS_CENTRE, seconds)
        return LinkTrace(1 / closeness, self._drawn(1, BANDWIDTH_CENTRE, seconds), SLOT_S)

    def _drawn(self, kind: int, centre: float, seconds: float) -> Floats:
        draw = np.random.default_rng((self.seed, kind))
        level = centre + DEVIATION_BETWEEN * draw.standard_normal(self.pairs)
        drifts = drifts_of(draw, self.pairs, math.ceil(seconds / SLOT_S))
        return np.stack([logistic(level + DEVIATION_WITHIN * drift) for drift in drifts], axis=1)


def pair_number(a: Integers, b: Integers) -> Integers:
    """Return the number of each pair of hosts; pairs among the first n hosts come before all others."""
    later = np.maximum(a, b)
    return np.asarray(later * (later - 1) // 2 + np.minimum(a, b))


def pairs_of(hosts: int) -> list[tuple[int, int]]:
    return [(earlier, later) for later in range(hosts) for earlier in range(later)]
