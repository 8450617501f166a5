"""Cheapest hosts for a set of instances, by iterative repacking (`RepackFreeVMs`, Table 4.1).

After Kang and Park, "Algorithms for the variable sized bin packing problem" (2003): fill bins of one size, put the rest
into the next smaller one. Price lists differ from theirs, so every size is tried first, and dear sizes are not filled.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostType
from elastream.policies.value_cost.problem import Problem
from elastream.units import ROUNDING

HOUR = 3600.0


def power(type: HostType) -> float:
    """Return the cores of speed 1 of a host of `type`."""
    return type.cores * type.speed


def rate_of(type: HostType) -> float:
    """Return the price of a host of `type` (money/h)."""
    return type.price * HOUR / type.billing.unit


def largest(types: Sequence[HostType]) -> HostType | None:
    """Return the largest type (Algorithm 3, line 14); ties by price, then name."""
    return min(types, key=lambda t: (-power(t), rate_of(t), t.name), default=None)


@dataclass
class Bin:
    """Host to lease, with its instances of each operator; without any where cores are shared."""

    type: HostType
    counts: Integers
    cores: float
    memory: float

    @classmethod
    def empty(cls, type: HostType, operators: int) -> "Bin":
        """Return an empty host of `type`."""
        return cls(type, np.zeros(operators, dtype=np.int64), type.cores, type.memory)

    def room(self, cores: float, memory: float) -> int:
        """Return how many such instances fit."""
        by_cores = (self.cores + ROUNDING) / cores if cores > 0 else math.inf
        by_memory = (self.memory + ROUNDING) / memory if memory > 0 else math.inf
        return max(0, math.floor(min(by_cores, by_memory, 1e9)))

    def put(self, operator: int, count: int, cores: float, memory: float) -> None:
        """Put `count` such instances here."""
        self.counts[operator] += count
        self.cores -= count * cores
        self.memory -= count * memory


def packed(problem: Problem, order: Sequence[int], needs: Floats, least: Integers, most: int) -> tuple[Bin, ...] | None:
    """Return the cheapest, then fewest hosts that give operators `needs`, or None.

    Args:
        order: Operators in packing order, so that neighbours share hosts.
        needs: Cores of speed 1 of each operator; with shared cores their sum, shape (1,).
        least: Minimum instances of each operator.
        most: Maximum number of hosts.
    """
    sizes = sorted(_worth_asking(problem.types), key=lambda t: (-power(t), rate_of(t), t.name))
    rates = [rate_of(kind) / power(kind) for kind in sizes]
    best: tuple[float, int, tuple[Bin, ...]] | None = None
    for first in range(len(sizes)):
        kept, rest, few = list[Bin](), needs, least
        for number in range(first, len(sizes)):
            all_of_it = _filled(problem, order, rest, few, sizes[number], most - len(kept))
            if all_of_it is not None:
                bins = (*kept, *all_of_it)
                if (
                    best is None
                    or (_price(bins), len(bins)) < (best[0] - ROUNDING, best[1])
                    or (_price(bins) < best[0] + ROUNDING and len(bins) < best[1])
                ):
                    best = _price(bins), len(bins), bins
            if rates[number] <= min(rates[number:]) + ROUNDING:
                kept += _filled(problem, order, rest, few, sizes[number], most - len(kept), full=True) or ()
                rest, few = _left(problem, needs, least, kept)
            if best is not None and _price(kept) > best[0]:
                break
    return None if best is None else best[2]


def _worth_asking(types: Sequence[HostType]) -> list[HostType]:
    """Return the types that no other type dominates."""

    def at_least(a: HostType, b: HostType) -> bool:
        return a.cores >= b.cores and a.memory >= b.memory and a.speed >= b.speed and rate_of(a) <= rate_of(b)

    named = sorted(types, key=lambda t: t.name)
    return [
        each
        for place, each in enumerate(named)
        if not any(
            at_least(other, each) and (not at_least(each, other) or before < place)
            for before, other in enumerate(named)
            if other is not each
        )
    ]


def _filled(
    problem: Problem,
    order: Sequence[int],
    needs: Floats,
    least: Integers,
    type: HostType,
    most: int,
    *,
    full: bool = False,
) -> list[Bin] | None:
    """Return hosts of `type` with instances for `needs`, or None. `full` returns full hosts only."""
    if problem.shared:
        hosts = float(needs[0]) / power(type)
        count = math.floor(hosts + ROUNDING) if full else math.ceil(hosts - ROUNDING)
        return None if count > most else [Bin.empty(type, len(problem.operators)) for _ in range(max(0, count))]
    smallest = _smallest(problem)
    bins, open_ones = list[Bin](), list[Bin]()
    for operator in order:
        if not problem.placed[operator]:
            continue
        cores, memory = float(problem.cores[operator]), float(problem.memory[operator])
        wanted = float(needs[operator]) / (type.speed * float(problem.per_instance[operator]))
        count = math.floor(wanted + ROUNDING) if full else max(int(least[operator]), math.ceil(wanted - ROUNDING))
        while count > 0:
            into = next((one for one in open_ones if one.room(cores, memory)), None)
            if into is None:
                into = Bin.empty(type, len(problem.operators))
                if not into.room(cores, memory) or len(bins) >= most:
                    return None
                bins.append(into)
                open_ones.append(into)
            put = min(count, into.room(cores, memory))
            into.put(operator, put, cores, memory)
            count -= put
            open_ones = [one for one in open_ones if one.room(*smallest)]
    return [one for one in bins if not one.room(*smallest)] if full else bins


def _smallest(problem: Problem) -> tuple[float, float]:
    placed = problem.placed
    return float(problem.cores[placed].min(initial=math.inf)), float(problem.memory[placed].min(initial=math.inf))


def _left(problem: Problem, needs: Floats, least: Integers, bins: Sequence[Bin]) -> tuple[Floats, Integers]:
    if problem.shared:
        return np.maximum(needs - math.fsum([power(each.type) for each in bins]), 0.0), least
    if not bins:
        return needs, least
    counts = np.array([each.counts for each in bins])
    speeds = np.array([each.type.speed for each in bins])
    capacity = (speeds @ counts) * problem.per_instance
    return np.maximum(needs - capacity, 0.0), np.maximum(least - counts.sum(axis=0), 0)


def _price(bins: Sequence[Bin]) -> float:
    return math.fsum([rate_of(each.type) for each in bins])
