"""Where the tokens of a ring are to be so that neighbours are evenly loaded: cuts of an arc of state partitions.

Thesis, section 6.5: an overloaded host negotiates with its neighbour clockwise, which moves counter-clockwise and takes
over a part of its interval; one that has nothing to spare first asks its own neighbour, hop by hop. Host and asked
neighbours are an *arc*; moving a token by 1 / P moves one of P state partitions. Pure functions of numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elastream.model.observation import Floats
from elastream.model.ring import Ring

__all__ = ["Arc", "evened", "halved", "middle"]

STEPS = 60
"""Halvings of the range in which the least possible level lies: finer than doubles are."""


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


def evened(arc: Arc) -> tuple[int, ...] | None:
    """How many partitions each host is to own so that the highest level is lowest, each at least one; None for too few.

    Found by halving: for a given level hosts take partitions clockwise as long as they stay below it.
    """
    hosts, partitions = len(arc.hosts), arc.loads.size
    if partitions < hosts:
        return None
    low, high = 0.0, float(((arc.fixed + arc.loads.sum()) / arc.capacity).max())
    best = _filled(arc, math.inf)
    for _ in range(STEPS):
        level = (low + high) / 2
        if (found := _filled(arc, level)) is None:
            low = level
        else:
            best, high = found, level
    return best


def _filled(arc: Arc, level: float) -> tuple[int, ...] | None:
    """Partitions of each host where none is above `level`; None where some would be left over."""
    owned, row, left = [], 0, len(arc.hosts)
    for host in range(len(arc.hosts)):
        left -= 1
        room = level * arc.capacity[host] - arc.fixed[host]
        taken = 0
        while row < arc.loads.size - left and arc.loads[row] <= room:
            room -= arc.loads[row]
            row, taken = row + 1, taken + 1
        if not taken:
            return None
        owned.append(taken)
    return tuple(owned) if row == arc.loads.size else None


def halved(arc: Arc) -> tuple[int, ...] | None:
    """The thesis's step: each host moves by half of the distance to the one before it, the last first; None for too few."""
    owned = list(arc.owned)
    for host in range(len(owned) - 1, 0, -1):
        moved = owned[host - 1] // 2
        owned[host - 1], owned[host] = owned[host - 1] - moved, owned[host] + moved
    return tuple(owned) if min(owned) >= 1 and tuple(owned) != arc.owned else None


def middle(ring: Ring, host: str) -> float:
    """The token mid-way between `host` and its neighbour clockwise: where a new host joins if nothing says otherwise."""
    return (ring.tokens[host] + ring.length(host) / 2) % 1.0
