"""Cuts of an arc of state partitions so that neighbours on a ring are evenly loaded (thesis, section 6.5).

An overloaded host's clockwise neighbour takes over a part of its interval; one without room first asks its own, hop by hop.
These hosts form an *arc*. A token that moves by 1 / P moves one of P state partitions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.ring import Ring

# Most hosts that one change balances: to cut P partitions among n hosts takes n P^2 steps.
FARTHEST = 16
# Part of `gain` by which more hosts must lower the highest level, since a change is made in any case.
FURTHER = 0.25

# Multiple of the least possible level that allows for rounding.
ENOUGH = 1 + 1e-12


@dataclass(frozen=True)
class Arc:
    """Neighbours on a ring, clockwise, and their state partitions, clockwise from the first one's token.

    Attributes:
        fixed: Busy cores of each host beside its partitions.
    """

    hosts: tuple[str, ...]
    first: int
    count: int
    loads: Floats
    owned: tuple[int, ...]
    fixed: Floats
    capacity: Floats

    def levels(self, owned: Sequence[int]) -> Floats:
        reach = np.concatenate([[0.0], np.cumsum(self.loads)])
        ends = np.cumsum(owned)
        return np.asarray((self.fixed + reach[ends] - reach[ends - np.asarray(owned)]) / self.capacity)

    def tokens(self, owned: Sequence[int]) -> dict[str, float]:
        """Return the token of each host but the first, whose token does not move."""
        begins = self.first + np.cumsum(owned)[:-1]
        return {host: int(at) % self.count / self.count for host, at in zip(self.hosts[1:], begins.tolist(), strict=True)}

    def part(self, hosts: int) -> "Arc":
        owned = self.owned[:hosts]
        return replace(
            self,
            hosts=self.hosts[:hosts],
            loads=self.loads[: sum(owned)],
            owned=owned,
            fixed=self.fixed[:hosts],
            capacity=self.capacity[:hosts],
        )


def even_cut(arc: Arc) -> tuple[int, ...] | None:
    """Return the partitions by host that minimise the highest level, then the sum of squared levels; None if too few."""
    if arc.loads.size < len(arc.hosts):
        return None
    reach = np.concatenate([[0.0], np.cumsum(arc.loads)])
    some = np.arange(reach.size)[:, None] < np.arange(reach.size)
    levels = [
        np.where(some, (fixed + reach - reach[:, None]) / capacity, np.inf)
        for fixed, capacity in zip(arc.fixed, arc.capacity, strict=True)
    ]
    lowest = _best(levels, np.maximum)[0]
    squares = [np.where(each <= lowest * ENOUGH, each**2, np.inf) for each in levels]
    return _best(squares, np.add)[1]


def _best(costs: Sequence[Floats], together: Callable[[Floats, Floats], Floats]) -> tuple[float, tuple[int, ...]]:
    """Return the least total cost and each host's partitions.

    Args:
        costs: By host: cost of owning the partitions from a row up to a column.
    """
    best = np.full(costs[0].shape[0], np.inf)
    best[0] = 0.0
    begins: list[Integers] = []
    for each in costs:
        totals = together(best[:, None], each)
        begins.append(totals.argmin(axis=0))
        best = totals.min(axis=0)
    ends = [best.size - 1]
    for begin in reversed(begins):
        ends.append(int(begin[ends[-1]]))
    return float(best[-1]), tuple(end - begin for end, begin in pairwise(ends))[::-1]


def half_cut(arc: Arc) -> tuple[int, ...] | None:
    """Return the thesis's step: each host moves half-way to the one before it, the last first."""
    owned = list(arc.owned)
    for host in range(len(owned) - 1, 0, -1):
        moved = owned[host - 1] // 2
        owned[host - 1], owned[host] = owned[host - 1] - moved, owned[host] + moved
    return tuple(owned) if min(owned) >= 1 and tuple(owned) != arc.owned else None


def wider_cut(whole: Arc, hosts: int, owned: tuple[int, ...] | None, gain: float) -> tuple[Arc, tuple[int, ...]] | None:
    """Return the arc to balance and its partitions by host; None if nothing helps.

    The thesis's chain ends at the first host with room, so a skew takes a change for each neighbour. Here further hosts
    take part, twice as many each time, if that lowers the highest level of the `whole` ring.

    Args:
        owned: Cut of the first `hosts` alone; None without one. Further hosts must then improve by `gain`.
    """
    now = whole.levels(whole.owned)

    def highest(arc: Arc, cut: tuple[int, ...]) -> float:
        return float(max(arc.levels(cut).max(), now[len(arc.hosts) :].max(initial=-np.inf)))

    best = None if owned is None else (whole.part(hosts), owned)
    lowest = float(now.max()) if best is None else highest(*best)
    farthest = min(len(whole.hosts), FARTHEST)
    while hosts < farthest:
        hosts = min(2 * hosts, farthest)
        arc = whole.part(hosts)
        least = gain if best is None else FURTHER * gain
        if (cut := even_cut(arc)) is not None and (level := highest(arc, cut)) < (1 - least) * lowest:
            best, lowest = (arc, cut), level
    return best


def midpoint(ring: Ring, host: str) -> float:
    """Return the token half-way between `host` and its clockwise neighbour, the default for a new host."""
    return (ring.tokens[host] + ring.length(host) / 2) % 1.0
