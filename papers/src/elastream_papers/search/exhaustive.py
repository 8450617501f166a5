"""Exhaustive plan search with pruning: the thesis's brute force (BR, p. 90).

Alternates by highest possible profit, then hosts by cost, then instances. Pruned: dominated alternates, too few cores,
and instances that miss the throughput. Placement counts only if hosts differ in speed; links are ignored.
"""

import heapq
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product, takewhile

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.policies.value_cost.problem import (
    Conditions,
    Deployment,
    Option,
    Problem,
    cost_of,
    profit_of,
    score,
    value_of,
)
from elastream.units import ROUNDING
from elastream_papers.search.offers import (
    HostOffer,
    Optimum,
    equal_sizes,
    laid_out,
    least_capacity,
    numbers_fixed,
    offers,
    possible_rates,
    relative_throughput,
)

SORTED = 10_000  # most combinations to sort by their bound; more would take the whole time limit
WAYS = 1_000_000  # ways to place an operator's instances at once: 100 MB


def exhausted(
    problem: Problem,
    conditions: Conditions,
    *,
    seconds: float = 60.0,
    least: float | None = None,
    current: Deployment | None = None,
) -> Optimum:
    """Return the plan of the highest profit (4.8) with a relative throughput (4.7) of at least `least`.

    seconds: time limit. least: default the goal's. current: plan in force; fixes fixed operators' instances. Raises
    InputError for conditions of several instants.
    """
    search = _Search(problem, conditions, problem.goal.throughput if least is None else least, seconds, current)
    search.run()
    found = None if search.best is None else score(problem, search.best, conditions)
    profit = -math.inf if found is None else found.profit
    bound = math.inf if search.cut else profit
    return Optimum(search.best, found, bound, not search.cut, time.monotonic() - search.began, search.looked_at)


class _Search:
    """One search with its best plan and profit. cut: the search was incomplete."""

    def __init__(
        self, problem: Problem, conditions: Conditions, least: float, seconds: float, current: Deployment | None
    ) -> None:
        self.problem, self.conditions, self.least = problem, conditions, least
        self.began = time.monotonic()
        self.until = self.began + seconds
        self.offers = tuple(offer for offer in offers(problem, conditions) if offer.speed > 0)
        self.spent = cost_of(problem, Deployment((), (), np.zeros((0, len(problem.operators)), np.int64)), conditions)
        self.fixed = numbers_fixed(problem, current)
        self.even = equal_sizes(problem, [offer.type for offer in self.offers])
        self.best: Deployment | None = None
        self.profit = -math.inf
        self.cut = False
        self.looked_at = 0

    def run(self) -> None:
        """Search until done or out of time."""
        for highest, active in self._alternates():
            if highest > self.profit + ROUNDING:
                self._hosts(active)
            if self.late():
                return

    def late(self) -> bool:
        """Return True if time is over; marks the search as cut."""
        self.cut = self.cut or time.monotonic() > self.until
        return self.cut

    def _alternates(self) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Yield undominated combinations with a bound of their profit, the highest first."""
        rows = [_undominated(options) for options in self.problem.options]
        every = ((self._highest(active), active) for active in takewhile(lambda _: not self.late(), product(*rows)))
        yield from sorted(every, reverse=True) if math.prod(len(row) for row in rows) <= SORTED else every

    def _highest(self, active: tuple[int, ...]) -> float:
        """Return an upper bound of the profit with `active`, at the lowest price of a core."""
        least = self.least_of(active)
        cores = least.max(initial=0.0) if self.problem.shared else least[self.problem.cores > 0].sum()
        price = min((offer.cost / (offer.speed * offer.type.cores) for offer in self.offers), default=math.inf)
        return self._profit(active, cores * price if cores > 0 else 0.0)

    def least_of(self, active: tuple[int, ...]) -> Floats:
        """Return cores (speed 1) that each operator needs if all others were unlimited."""
        problem = self.problem
        return least_capacity(problem, self.conditions, problem.costs(active), problem.selectivities(active), self.least)

    def _profit(self, active: Sequence[int], cost: float) -> float:
        return profit_of(self.problem, self.conditions, value_of(self.problem, active), self.spent + cost)

    def _hosts(self, active: tuple[int, ...]) -> None:
        """Find the cheapest hosts on which `active` reaches the throughput."""
        problem, trial, seen = self.problem, _Instances(self, active), set()
        for cost, counts in self._by_cost():
            if self.late() or self._profit(active, cost) <= self.profit + ROUNDING:
                return
            if not problem.min_hosts <= sum(counts) <= problem.max_hosts:
                continue
            groups = self._groups(counts)
            # Hosts fail if their room at each speed is no larger than that of hosts that failed before.
            room = tuple(sorted((group.speed, group.cores, *group.fits.tolist()) for group in groups))
            if room in seen:
                continue
            seen.add(room)
            if (found := trial.on(groups)) is not None:
                self.best, self.profit = found, score(problem, found, self.conditions).profit
                return

    def _by_cost(self) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Yield numbers of hosts by offer, lowest cost first, each once."""
        costs = [offer.cost for offer in self.offers]
        queue: list[tuple[float, tuple[int, ...], int]] = [(0.0, (0,) * len(costs), 0)]
        while queue:
            cost, counts, last = heapq.heappop(queue)
            yield cost, counts
            if sum(counts) < self.problem.max_hosts:
                for k in range(last, len(counts)):
                    if counts[k] < self.offers[k].most:
                        more = (*counts[:k], counts[k] + 1, *counts[k + 1 :])
                        heapq.heappush(queue, (cost + costs[k], more, k))

    def _groups(self, counts: Sequence[int]) -> list["_Group"]:
        found: dict[float | int, list[tuple[HostOffer, int]]] = {}
        for k, (offer, count) in enumerate(zip(self.offers, counts, strict=True)):
            if count:
                found.setdefault(offer.speed if self.even else k, []).append((offer, count))
        return [_Group(tuple(members)) for members in found.values()]


@dataclass(frozen=True)
class _Group:
    """Hosts of equal effect on instances: offers with their numbers."""

    members: tuple[tuple[HostOffer, int], ...]

    @property
    def speed(self) -> float:
        return self.members[0][0].speed

    @cached_property
    def cores(self) -> float:
        return math.fsum(offer.type.cores * count for offer, count in self.members)

    @cached_property
    def fits(self) -> Integers:
        """Return instances of each operator that fit if alone."""
        found: Integers = np.sum([offer.fits * count for offer, count in self.members], axis=0, dtype=np.int64)
        return found

    def shared_out(self, instances: Integers) -> Iterator[tuple[HostOffer, int, Integers]]:
        """Yield each offer with its number and its part of the instances."""
        left = instances.copy()
        for offer, count in self.members:
            if len(self.members) == 1:
                yield offer, count, left
                return
            taken = np.minimum(left, np.maximum(0, int(offer.fits.max()) * count - (np.cumsum(left) - left)))
            left -= taken
            yield offer, count, taken


class _Instances:
    """Search of instances on given hosts that reach the throughput."""

    def __init__(self, search: _Search, active: tuple[int, ...]) -> None:
        self.search, self.active, self.problem = search, active, search.problem
        self.costs, self.selectivities = self.problem.costs(active), self.problem.selectivities(active)
        self.possible = possible_rates(self.problem, search.conditions, self.selectivities[:, None])[:, 0]
        self.full = self.possible * self.costs
        self.least = search.least_of(active)
        self.rows = np.flatnonzero(self.problem.placed).tolist()
        # Cores that hosts must have. Instances that reserve no cores need none.
        self.cores = np.where(self.problem.cores > 0, self.least, 0.0)

    def on(self, groups: Sequence[_Group]) -> Deployment | None:
        """Return a plan on these hosts that reaches the throughput, or None."""
        held = np.zeros((len(groups), len(self.problem.operators)), dtype=np.int64)
        slowest = min((group.speed for group in groups), default=0.0)
        cores = math.fsum((slowest if self.problem.equal else group.speed) * group.cores for group in groups)
        if self.problem.shared:
            enough = cores >= float(self.least.max(initial=0.0)) - ROUNDING
            return self._checked(groups, held) if enough else None
        if not groups or cores < float(self.cores.sum()) - ROUNDING:
            return None
        room = np.array([group.cores for group in groups])
        return self._next(0, groups, room, np.full(len(self.problem.operators), np.inf), held)

    def _next(
        self, at: int, groups: Sequence[_Group], room: Floats, capacity: Floats, counts: Integers
    ) -> Deployment | None:
        """Place the operator at `rows[at]`, then those after it. room: free cores; capacity: inf if undecided."""
        search, problem = self.search, self.problem
        if at == len(self.rows):
            return self._checked(groups, counts)
        row, after = self.rows[at], self.rows[at + 1 :]
        speeds = np.array([group.speed for group in groups])
        placements = self._placements(row, groups, room)
        if search.late() or not len(placements):
            return None
        search.looked_at += len(placements)
        added, left = placements @ speeds * float(problem.per_instance[row]), room - placements * float(problem.cores[row])
        trial = np.repeat(capacity[:, None], len(placements), axis=1)
        trial[row] = added
        costs, selectivities, possible = (
            np.broadcast_to(each[:, None], trial.shape) for each in (self.costs, self.selectivities, self.possible)
        )
        may = (
            relative_throughput(problem, search.conditions, costs, selectivities, trial, possible)
            >= search.least - ROUNDING
        )
        may &= left.sum(axis=1) >= problem.cores[after].sum() - ROUNDING
        may &= left @ speeds >= self.cores[after].sum() - ROUNDING
        for index in np.flatnonzero(may)[np.argsort(added[may], kind="stable")].tolist():
            counts[:, row] = placements[index]
            found = self._next(at + 1, groups, left[index], trial[:, index], counts)
            if found is not None or search.cut:
                return found
        counts[:, row] = 0
        return None

    def _placements(self, row: int, groups: Sequence[_Group], room: Floats) -> Integers:
        """Return the useful ways to place an operator's instances, shape (ways, groups)."""
        size, number = float(self.problem.cores[row]), self.search.fixed[row]
        speeds = np.array([group.speed for group in groups]) * float(self.problem.per_instance[row])
        free = np.array([float(group.fits[row]) for group in groups])
        if size > 0:
            free = np.minimum(free, np.floor(room / size + ROUNDING))
        useful = np.maximum(1, np.ceil(self.full[row] / speeds - ROUNDING)) if number is None else float(number)
        most = np.minimum(free, useful).astype(np.int64)
        if math.prod((most + 1).tolist()) > WAYS:
            self.search.cut = True
            return np.zeros((0, len(groups)), dtype=np.int64)
        placements = np.stack(np.meshgrid(*(np.arange(each + 1) for each in most), indexing="ij"), axis=-1)
        placements = placements.reshape(-1, len(groups))
        # All work would also be done without the slowest host, so it is useless.
        slowest = np.where(placements > 0, speeds, np.inf).min(axis=1)
        counts = placements.sum(axis=1)
        if number is not None:
            return np.asarray(placements[counts == number])
        found: Integers = placements[
            (counts == 1) | ((counts > 1) & (placements @ speeds - slowest < self.full[row] - ROUNDING))
        ]
        return found

    def _checked(self, groups: Sequence[_Group], counts: Integers) -> Deployment | None:
        chosen = [part for group, each in zip(groups, counts, strict=True) for part in group.shared_out(each)]
        plan = laid_out(self.problem, self.active, chosen)
        if plan is None or score(self.problem, plan, self.search.conditions).mean < self.search.least - ROUNDING:
            return None
        return plan


def _undominated(options: Sequence[Option]) -> list[int]:
    """Return the options that no other of equal selectivity dominates."""
    return [
        row
        for row, option in enumerate(options)
        if not any(
            other.selectivity == option.selectivity
            and (other.value, -other.cost, -at) > (option.value, -option.cost, -row)
            and other.value >= option.value
            and other.cost <= option.cost
            for at, other in enumerate(options)
        )
    ]
