"""Which hosts hold given needs most cheaply: iterative repacking into bins of several sizes (`RepackFreeVMs`, Table 4.1).

After Kang and Park, "Algorithms for the variable sized bin packing problem" (2003), which the thesis cites: bins of one
size are filled, what fills none of them goes into the next smaller size, and so on. Their bins cost no more a unit the
larger they are. A price list need not keep that: so every size is begun with, and one that is dearer than a smaller one
is not filled.
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
    """Cores of speed 1 of a host of `type`."""
    return type.cores * type.speed


def rate_of(type: HostType) -> float:
    """Money an hour of a host of `type`."""
    return type.price * HOUR / type.billing.unit


def largest(types: Sequence[HostType]) -> HostType | None:
    """The largest type (Algorithm 3, line 14); of equals the cheapest; None without any."""
    return min(types, key=lambda t: (-power(t), rate_of(t), t.name), default=None)


@dataclass
class Bin:
    """A host to be leased, and the instances of each operator on it; none where cores are shared."""

    type: HostType
    counts: Integers
    cores: float
    memory: float

    @classmethod
    def empty(cls, type: HostType, operators: int) -> "Bin":
        """A host of `type` with nothing on it."""
        return cls(type, np.zeros(operators, dtype=np.int64), type.cores, type.memory)

    def room(self, cores: float, memory: float) -> int:
        """How many instances that need so much there is room for."""
        by_cores = (self.cores + ROUNDING) / cores if cores > 0 else math.inf
        by_memory = (self.memory + ROUNDING) / memory if memory > 0 else math.inf
        return max(0, math.floor(min(by_cores, by_memory, 1e9)))

    def put(self, operator: int, count: int, cores: float, memory: float) -> None:
        """Put `count` instances of `operator` here, each of which needs so much."""
        self.counts[operator] += count
        self.cores -= count * cores
        self.memory -= count * memory


def packed(problem: Problem, order: Sequence[int], needs: Floats, least: Integers, most: int) -> tuple[Bin, ...] | None:
    """The cheapest hosts found that give operators `needs`, at most `most` of them; None where no type holds them.

    Of equally cheap ones the fewest. order: operators as they are put next to each other. needs: cores of speed 1 of each
    operator; where cores are shared, of all of them at once, shape (1,). least: instances that each operator has at least.
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
    """Types without those that another is no worse than in anything; of equal ones the first by name."""

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
    """Hosts of `type` with instances for `needs`; None where it holds none of an operator, or `most` hosts are too few.

    full: only hosts without room, and only instances without which needs would be lacking: what is left is less than one.
    """
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
    """Cores and memory of the least demanding instance."""
    placed = problem.placed
    return float(problem.cores[placed].min(initial=math.inf)), float(problem.memory[placed].min(initial=math.inf))


def _left(problem: Problem, needs: Floats, least: Integers, bins: Sequence[Bin]) -> tuple[Floats, Integers]:
    """What `bins` do not give of `needs` and `least`."""
    if problem.shared:
        return np.maximum(needs - math.fsum([power(each.type) for each in bins]), 0.0), least
    if not bins:
        return needs, least
    counts = np.array([each.counts for each in bins])
    speeds = np.array([each.type.speed for each in bins])
    given = (speeds @ counts) * problem.per_instance
    return np.maximum(needs - given, 0.0), np.maximum(least - counts.sum(axis=0), 0)


def _price(bins: Sequence[Bin]) -> float:
    """Money an hour of `bins`."""
    return math.fsum([rate_of(each.type) for each in bins])
