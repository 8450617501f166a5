"""Where the tokens of a ring are to be so that neighbours are evenly loaded: cuts of an arc of state partitions.

Thesis, section 6.5: an overloaded host negotiates with its neighbour clockwise, which moves counter-clockwise and takes
over a part of its interval; one that has nothing to spare first asks its own neighbour, hop by hop. Host and asked
neighbours are an *arc*; moving a token by 1 / P moves one of P state partitions. Pure functions of numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.ring import Ring

FARTHEST = 16
"""Hosts among which one change evens load, at most: to cut P partitions among n hosts takes n P^2 steps."""
FURTHER = 0.25
"""Part of `gain` by which more hosts must lower the highest level: a change is made anyway, its moves go side by side."""

ENOUGH = 1 + 1e-12
"""Times the least possible level: sums of loads are rounded."""


@dataclass(frozen=True)
class Arc:
    """Neighbours on a ring, clockwise, and the state partitions that they own together, clockwise from the first's token.

    first: number of the first partition, `count` how many the operator has. loads: cores that each keeps busy. owned: how
    many each host owns now. fixed: cores that each is busy with otherwise. capacity: cores of each.
    """

    hosts: tuple[str, ...]
    first: int
    count: int
    loads: Floats
    owned: tuple[int, ...]
    fixed: Floats
    capacity: Floats

    def levels(self, owned: Sequence[int]) -> Floats:
        """Busy cores over cores of each host where they own so many partitions each."""
        reach = np.concatenate([[0.0], np.cumsum(self.loads)])
        ends = np.cumsum(owned)
        found: Floats = (self.fixed + reach[ends] - reach[ends - np.asarray(owned)]) / self.capacity
        return found

    def tokens(self, owned: Sequence[int]) -> dict[str, float]:
        """Token of each host but the first, whose token does not move."""
        begins = self.first + np.cumsum(owned)[:-1]
        return {host: int(at) % self.count / self.count for host, at in zip(self.hosts[1:], begins.tolist(), strict=True)}

    def part(self, hosts: int) -> "Arc":
        """The arc of its first so many hosts."""
        owned = self.owned[:hosts]
        return replace(
            self,
            hosts=self.hosts[:hosts],
            loads=self.loads[: sum(owned)],
            owned=owned,
            fixed=self.fixed[:hosts],
            capacity=self.capacity[:hosts],
        )


def evened(arc: Arc) -> tuple[int, ...] | None:
    """How many partitions each host is to own so that the highest level is lowest, each at least one; None for too few.

    Of those the one with the least sum of squared levels, so that the others are even as well, whoever is highest.
    """
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
    """(least cost of all, partitions of each host for it); costs: by host, of owning those from a row on up to a column."""
    best = np.full(costs[0].shape[0], np.inf)
    best[0] = 0.0
    begins: list[Integers] = []
    for each in costs:
        found = together(best[:, None], each)
        begins.append(found.argmin(axis=0))
        best = found.min(axis=0)
    ends = [best.size - 1]
    for begin in reversed(begins):
        ends.append(int(begin[ends[-1]]))
    return float(best[-1]), tuple(end - begin for end, begin in pairwise(ends))[::-1]


def halved(arc: Arc) -> tuple[int, ...] | None:
    """The thesis's step: each host moves by half of the distance to the one before it, the last first; None for too few."""
    owned = list(arc.owned)
    for host in range(len(owned) - 1, 0, -1):
        moved = owned[host - 1] // 2
        owned[host - 1], owned[host] = owned[host - 1] - moved, owned[host] + moved
    return tuple(owned) if min(owned) >= 1 and tuple(owned) != arc.owned else None


def widened(whole: Arc, hosts: int, owned: tuple[int, ...] | None, gain: float) -> tuple[Arc, tuple[int, ...]] | None:
    """The arc to be evened, from the first of `hosts` on, and how many partitions each is to own; None where none helps.

    The thesis's chain ends with the first host that has room, and a skew passes on along the ring, a change for each
    neighbour. Here hosts behind it take part as well, twice as many each time, where that lowers the highest level of the
    `whole` ring further. owned: the cut of the first `hosts` alone, None without one; then it must lower it by `gain`.
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
        if (cut := evened(arc)) is not None and (level := highest(arc, cut)) < (1 - least) * lowest:
            best, lowest = (arc, cut), level
    return best


def middle(ring: Ring, host: str) -> float:
    """The token mid-way between `host` and its neighbour clockwise: where a new host joins if nothing says otherwise."""
    return (ring.tokens[host] + ring.length(host) / 2) % 1.0
