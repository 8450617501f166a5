"""How far apart the hosts of a run are while it lasts: traces of latency and bandwidth by pair of hosts.

As with speeds, a trace holds factors on what is declared, for regions and host types. A link is the same in both
directions.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from elastream.errors import InputError
from elastream.loads.pattern import Floats, Integers
from elastream.loads.speeds import BETWEEN, SLOT, WITHIN, drifting, logistic, refuse_misshapen, slot_at, table_of

PAIRS = 2016
"""Rows of a generated trace: the pairs of 64 hosts. Assumed: a run with more pairs begins again with the first row."""

NEAR, WIDE = 0.51, 2.05
"""Of `Ec2Links`, in units of the logistic scale: centre of a link's closeness (rated latency over that observed) and of
its bandwidth over the rated one. Section 1.3: over 45 % of pairs are below 0.70 in latency, 22 % below 0.80 in bandwidth
(held by tests/workload/test_links.py). Of fluctuations it gives no figures for links but calls them similar: they are
those of hosts."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkTrace:
    """Latency and bandwidth between hosts, as factors on what is declared: 2 and 0.5 are twice as far and half as wide.

    latency, bandwidth: a row a pair of hosts in the order of `pair_number`, a column a slot of `interval` seconds. The
    first row follows the last, and the first slot. Raises InputError for values that are not above 0.
    """

    latency: Floats
    bandwidth: Floats
    interval: float = SLOT

    def __post_init__(self) -> None:
        for name in ("latency", "bandwidth"):
            object.__setattr__(self, name, table_of("links between hosts", getattr(self, name)))
        refuse_misshapen("links between hosts", self.interval, self.latency, self.bandwidth)

    def slot(self, now: float) -> int:
        """Number of the slot that `now` is in."""
        return slot_at(now, self.interval)

    def at(self, source: Integers, target: Integers, now: float) -> tuple[Floats, Floats]:
        """(Factors on latency, on bandwidth) at `now` from each of `source` to each of `target`, hosts by `number_of`.

        Shape (sources, targets) each; 1 from a host to itself.
        """
        rows, same = self.rows_of(source, target), source[:, None] == target[None, :]
        latency, bandwidth = self.column(now)
        return np.where(same, 1.0, latency[rows]), np.where(same, 1.0, bandwidth[rows])

    def rows_of(self, source: Integers, target: Integers) -> Integers:
        """Row of the link from each of `source` to each of `target`, hosts by `number_of`; shape (sources, targets)."""
        found: Integers = pair_number(source[:, None], target[None, :]) % self.latency.shape[0]
        return found

    def column(self, now: float) -> tuple[Floats, Floats]:
        """(Factors on latency, on bandwidth) of every row at `now`; shape (rows,) each."""
        slot = self.slot(now) % self.latency.shape[1]
        return self.latency[:, slot], self.bandwidth[:, slot]

    def over(self, seconds: float) -> "LinkTrace":
        """Itself, whatever the length of the run: it begins anew where it is shorter."""
        return self


class LinkSource(Protocol):
    """What gives a trace for a run: a generator, or a trace itself."""

    def over(self, seconds: float) -> LinkTrace:
        """The trace for a run of `seconds`; one for a longer run begins with the same values."""
        ...


@dataclass(frozen=True, slots=True)
class Ec2Links:
    """Links as section 1.3 of the thesis measured EC2's: 47 % of pairs below 0.70 in latency, 22 % below 0.80 in bandwidth.

    "More than 45%" is taken as 47. Latency and bandwidth of a pair vary independently, which is assumed.
    """

    pairs: int = PAIRS
    seed: int = 1

    def __post_init__(self) -> None:
        if self.pairs < 1:
            raise InputError(f"a trace of {self.pairs} pairs of hosts: at least one is needed")

    def over(self, seconds: float) -> LinkTrace:
        """Each pair for `seconds`."""
        closeness, bandwidth = (self._drawn(kind, centre, seconds) for kind, centre in enumerate((NEAR, WIDE)))
        return LinkTrace(1 / closeness, bandwidth, SLOT)

    def _drawn(self, kind: int, centre: float, seconds: float) -> Floats:
        draw = np.random.default_rng((self.seed, kind))
        level = centre + BETWEEN * draw.standard_normal(self.pairs)
        drifts = drifting(draw, self.pairs, math.ceil(seconds / SLOT))
        return np.stack([logistic(level + WITHIN * drift) for drift in drifts], axis=1)


def pair_number(a: Integers, b: Integers) -> Integers:
    """Numbers of the pairs of hosts `a` and `b`, by their numbers: those among the first n hosts come before all others."""
    later = np.maximum(a, b)
    found: Integers = later * (later - 1) // 2 + np.minimum(a, b)
    return found


def pairs_of(hosts: int) -> list[tuple[int, int]]:
    """The pairs of the first `hosts` hosts in the order of `pair_number`."""
    return [(earlier, later) for later in range(hosts) for earlier in range(later)]
