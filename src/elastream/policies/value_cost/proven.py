"""Finds the plan of the highest profit with a proof, or a plan and a proven bound: what every other search is measured by.

A mixed integer model (`linear_model`): alternates, the number of hosts of each offer, and the instances of each operator on
them. What could leave the dataflow depends on selectivities: combinations of these are solved one by one, or, if they are
too many, in relaxations, each of a range of them, that are divided where their bound is loose. A plan that is found is
scored by the equations themselves.

Links are not in the model. They can only lower a throughput: the bound holds with them, too, and the plan is scored with
them.
"""

import heapq
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeAlias

import numpy as np

from elastream.policies.value_cost.linear_model import ENOUGH, Allowed, LinearModel, Solution
from elastream.policies.value_cost.offers import NEARLY, HostOffer, laid_out, numbers_fixed, offers
from elastream.policies.value_cost.optimum import Optimum
from elastream.policies.value_cost.problem import Conditions, Deployment, Problem, score

MARGIN = 1e-5
"""Throughput to plan for beyond the least, where a plan was within `SLACK` of the least and missed it."""
COMBINATIONS = 64
"""Most combinations of selectivities that are solved one by one."""
APART = 40
"""Most hosts that are told apart, where instances of unlike sizes found no room on hosts counted together."""

Part: TypeAlias = tuple[tuple[HostOffer, ...], Allowed]
"""One model: the hosts and the options that it may choose."""


def optimum(
    problem: Problem,
    conditions: Conditions,
    *,
    seconds: float = 60.0,
    least: float | None = None,
    current: Deployment | None = None,
) -> Optimum:
    """The plan with the highest profit (4.8) of those whose relative throughput (4.7) is at least `least`.

    seconds: time limit. least: the goal's throughput, if None. current: the plan in force, of whose fixed operators the
    number of instances stays; None: one of each. The same plan is found every time, unless the time limit is reached.

    Raises InputError for conditions of several instants.
    """
    least = problem.goal.throughput if least is None else least
    return _Proof(problem, conditions, least, current, seconds).optimum()


class _Proof:
    """One search for the optimum, as one model or several, within its time."""

    def __init__(
        self, problem: Problem, conditions: Conditions, least: float, current: Deployment | None, seconds: float
    ) -> None:
        self.problem, self.conditions, self.least = problem, conditions, least
        self.fixed = numbers_fixed(problem, current)
        self.offers = offers(problem, conditions)
        self.began = time.monotonic()
        self.until = self.began + seconds
        self.best: Deployment | None = None
        self.profit = -math.inf

    def optimum(self) -> Optimum:
        """The best of all models, with the bound of all."""
        every = tuple(tuple(range(len(options))) for options in self.problem.options)
        combinations = list(_combinations(self.problem)) or [every]
        relaxed = len(combinations) > COMBINATIONS
        parts = [(among, allowed) for among in self._as_slow() for allowed in ([every] if relaxed else combinations)]
        bound = max(self.profit, self._best_first(parts) if relaxed else self._each(parts))
        scored = None if self.best is None else score(self.problem, self.best, self.conditions)
        proven = bound == -math.inf or bound - self.profit <= ENOUGH
        return Optimum(self.best, scored, bound, proven, time.monotonic() - self.began)

    def _each(self, parts: Sequence[Part]) -> float:
        """The bound of all models, solved one by one."""
        return max(self._solved(among, allowed, len(parts) - number) for number, (among, allowed) in enumerate(parts))

    def _best_first(self, parts: Sequence[Part]) -> float:
        """The bound of relaxed models: that with the highest is divided by selectivities until none is above the plan
        found, or time is over. What could leave is a choice in a smaller range then, and the relaxation nearer."""
        left: list[tuple[float, int, Part]] = []
        solved = closed = -math.inf
        for number, part in enumerate(parts):
            solved = self._solved(*part, 2 * (len(parts) - number))
            heapq.heappush(left, (-solved, number, part))
        count = len(parts)
        while left and -left[0][0] > self.profit + ENOUGH and time.monotonic() < self.until:
            bound, _, (among, allowed) = heapq.heappop(left)
            children = _divided(self.problem, allowed)
            if not children:  # nothing is relaxed any more: what is left is the solver's own gap
                closed = max(closed, -bound)
            for child in children:
                solved = min(-bound, self._solved(among, child, len(left) + 2))
                heapq.heappush(left, (-solved, count, (among, child)))
                count += 1
        return max(closed, -left[0][0] if left else -math.inf)

    def _as_slow(self) -> list[tuple[HostOffer, ...]]:
        """The offers; where all hosts wait for the slowest, those at least as fast as each, and as slow."""
        if not (self.problem.shared and self.problem.equal):
            return [self.offers]
        speeds = sorted({offer.speed for offer in self.offers})
        return [tuple(replace(each, speed=speed) for each in self.offers if each.speed >= speed) for speed in speeds]

    def _solved(self, among: tuple[HostOffer, ...], allowed: Allowed, left: int) -> float:
        """Solve one model, keep its plan if it is the best, and return its bound. left: models not solved yet."""
        until = time.monotonic() + (self.until - time.monotonic()) / left
        found, bound = self._solve(among, allowed, self.least, until)
        for _ in range(3):
            if found is None or self._kept(found):
                break
            if laid_out(self.problem, found.active, found.chosen) is None:
                found, _ = self._solve(_told_apart(among, found), allowed, self.least, until)
            else:  # within the slack of the throughput, or of selectivities whose combinations were relaxed
                found, _ = self._solve(among, _same(self.problem, found.active), self.least + MARGIN, until)
        return bound

    def _solve(
        self, among: tuple[HostOffer, ...], allowed: Allowed, least: float, until: float
    ) -> tuple[Solution | None, float]:
        model = LinearModel(self.problem, self.conditions, among, allowed, least, self.fixed)
        return model.solve(max(0.1, until - time.monotonic()), self.profit)

    def _kept(self, found: Solution) -> bool:
        """Whether that is a plan that reaches the throughput; the best of them is kept."""
        plan = laid_out(self.problem, found.active, found.chosen)
        if plan is None:
            return False
        scored = score(self.problem, plan, self.conditions)
        if scored.mean < self.least - NEARLY:
            return False
        if scored.profit > self.profit:
            self.best, self.profit = plan, scored.profit
        return True


def _combinations(problem: Problem) -> Iterator[Allowed]:
    """Options that have the same selectivity of each operator, in all combinations, up to one more than are solved."""
    rows = []
    for options in problem.options:
        by_selectivity: dict[float, list[int]] = {}
        for row, option in enumerate(options):
            by_selectivity.setdefault(option.selectivity, []).append(row)
        rows.append([tuple(each) for each in by_selectivity.values()])
    for number, each in enumerate(product(*rows)):
        if number > COMBINATIONS:
            return
        yield each


def _divided(problem: Problem, allowed: Allowed) -> tuple[Allowed, ...]:
    """`allowed` in two, by the selectivities of the operator whose differ most; nothing where none differ."""
    rows = [[problem.options[row][a].selectivity for a in options] for row, options in enumerate(allowed)]
    spreads = [max(each) - min(each) for each in rows]
    at = int(np.argmax(spreads))
    if spreads[at] <= 0:
        return ()
    middle = (max(rows[at]) + min(rows[at])) / 2
    halves = (
        tuple(a for a, s in zip(allowed[at], rows[at], strict=True) if (s > middle) is upper) for upper in (True, False)
    )
    return tuple((*allowed[:at], half, *allowed[at + 1 :]) for half in halves)


def _same(problem: Problem, active: Sequence[int]) -> Allowed:
    """Options that have the selectivities of `active`."""
    return tuple(
        tuple(row for row, option in enumerate(options) if option.selectivity == options[chosen].selectivity)
        for options, chosen in zip(problem.options, active, strict=True)
    )


def _told_apart(every: Sequence[HostOffer], found: Solution) -> tuple[HostOffer, ...]:
    """The offers with a few single hosts instead of numbers of hosts, about as many as were chosen of each."""
    numbers = {id(offer): count for offer, count, _ in found.chosen}
    spare = max(1, (APART - sum(numbers.values())) // len(every))
    return tuple(
        replace(offer, most=1) for offer in every for _ in range(min(offer.most, numbers.get(id(offer), 0) + spare))
    )
