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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.policies.value_cost.problem import Conditions, Deployment, Problem, cost_of, profit_of, score, value_of
from elastream.units import ROUNDING
from elastream_papers.search.offers import (
    HostOffer,
    Optimum,
    alike,
    laid_out,
    numbers_fixed,
    offers,
    possible_rates,
)

if TYPE_CHECKING:
    from ortools.math_opt.python.mathopt import LinearSum, Model, Variable


ENOUGH = 1e-5
"""Difference of profit below which a plan counts as optimal: a tenth of a thousandth of the value."""
SLACK = 1e-6
"""Part of a throughput that may be missed in the model: what the solver's own tolerances may come to."""

Allowed: TypeAlias = tuple[tuple[int, ...], ...]
"""Rows of the options of each operator that a model may choose."""


@dataclass(frozen=True)
class Solution:
    """What the solver chose. chosen: offers, each with its number of hosts and the instances on them."""

    active: tuple[int, ...]
    chosen: tuple[tuple[HostOffer, int, Integers], ...]


class LinearModel:
    """The problem as a linear model. Rates are in parts of the most that an operator can take."""

    def __init__(
        self,
        problem: Problem,
        conditions: Conditions,
        every: Sequence[HostOffer],
        allowed: Allowed,
        least: float,
        fixed: Sequence[int | None],
    ) -> None:
        from ortools.math_opt.python import mathopt

        self.problem, self.conditions, self.offers, self.allowed, self.fixed = problem, conditions, every, allowed, fixed
        self.least = least * (1 - SLACK)
        self.model: Model = mathopt.Model()
        self.given: Floats = conditions.queues / conditions.seconds
        self.given[problem.sources] += conditions.rates[0]
        self.most, self.fewest = self._extreme(max), self._extreme(min)
        costs = [max(options[a].cost for a in rows) for options, rows in zip(problem.options, allowed, strict=True)]
        self.needs: Floats = self.most * costs
        self.choice = [[self.model.add_binary_variable() for _ in rows] for rows in allowed]
        for row in self.choice:
            self.model.add_linear_constraint(sum(row) == 1)
        self.hosts = [self.model.add_integer_variable(lb=0, ub=self._most_hosts(offer)) for offer in every]
        self.held: dict[tuple[int, int], Variable] = {}
        self.fits = bool(every) or not (problem.min_hosts or problem.placed.any())
        if every:
            self.model.add_linear_constraint(sum(self.hosts) <= problem.max_hosts)
            self.model.add_linear_constraint(sum(self.hosts) >= problem.min_hosts)
            self._order()
            self._shared_cores() if problem.shared else self._own_cores()
            self._objective()

    def solve(self, seconds: float, beaten: float) -> tuple[Solution | None, float]:
        """(what was found or None, bound of the profit). beaten: a profit that is to be exceeded."""
        from ortools.math_opt.python import mathopt

        if not self.fits:
            return None, -math.inf
        if beaten > -math.inf:
            self.model.add_linear_constraint(self.profit >= beaten)
        params = mathopt.SolveParameters(
            time_limit=timedelta(seconds=seconds), relative_gap_tolerance=0.0, absolute_gap_tolerance=ENOUGH / 2
        )
        try:
            result = mathopt.solve(self.model, mathopt.SolverType.HIGHS, params=params)
        except (AttributeError, RuntimeError, ValueError):
            # HiGHS ends some small models with an internal error, which the library cannot even raise as its own.
            result = mathopt.solve(self.model, mathopt.SolverType.GSCIP, params=params)
        if result.termination.reason == mathopt.TerminationReason.INFEASIBLE:
            return None, -math.inf
        bound = float(result.best_objective_bound())
        if not result.has_primal_feasible_solution():
            return None, bound
        values = result.variable_values()
        active = tuple(
            rows[int(np.argmax([values[each] for each in choices]))]
            for rows, choices in zip(self.allowed, self.choice, strict=True)
        )
        chosen = []
        for k, (offer, number) in enumerate(zip(self.offers, self.hosts, strict=True)):
            if count := round(values[number]):
                instances = np.zeros(len(self.problem.operators), dtype=np.int64)
                for (operator, at), each in self.held.items():
                    if at == k:
                        instances[operator] = round(values[each])
                chosen.append((offer, count, instances))
        return Solution(active, tuple(chosen)), bound

    def _extreme(self, pick: Callable[[list[float]], float]) -> Floats:
        """The most or the least that each operator can take, over the options allowed."""
        options = zip(self.problem.options, self.allowed, strict=True)
        each = np.array([pick([among[a].selectivity for a in rows]) for among, rows in options])
        return possible_rates(self.problem, self.conditions, each[:, None])[:, 0]

    def _useful(self, row: int, offer: HostOffer) -> int:
        """Instances on hosts of `offer` beyond which one more is of no use: they work everything that can come, and one."""
        speed = offer.speed * float(self.problem.per_instance[row])
        useful = self.fixed[row] or (math.ceil(self.needs[row] / speed) + 1 if speed > 0 else 1)
        return max(0, min(int(offer.fits[row]) * min(offer.most, self.problem.max_hosts), useful))

    def _most_hosts(self, offer: HostOffer) -> int:
        """Hosts of `offer` beyond which one more is of no use; as many as there must be at least are never too many."""
        problem = self.problem
        if problem.shared:
            each = offer.speed * offer.type.cores
            useful = math.ceil(self.needs.sum() / each) if each > 0 else 0
        else:
            useful = sum(self._useful(row, offer) for row in np.flatnonzero(problem.placed).tolist())
        return min(offer.most, problem.max_hosts, useful + problem.min_hosts)

    def _order(self) -> None:
        """Equal offers of one host each are interchangeable (symmetry): the first of them are leased first."""
        for k, (one, other) in enumerate(zip(self.offers, self.offers[1:], strict=False)):
            if one.most == other.most == 1 and one.host == other.host:
                self.model.add_linear_constraint(self.hosts[k] >= self.hosts[k + 1])

    def _flow(self, *, at_most: bool) -> list[list["Variable"]]:
        """Rates by operator and option allowed, 0 of those not chosen: at most, or at least, what arrives."""
        problem, model = self.problem, self.model
        found = [[model.add_variable(lb=0.0, ub=1.0 if most > 0 else 0.0) for _ in rows]
                 for rows, most in zip(self.allowed, self.most.tolist(), strict=True)]  # fmt: skip
        for row, (each, choices) in enumerate(zip(found, self.choice, strict=True)):
            most = float(self.most[row])
            if most <= 0:
                continue
            for rate, chosen in zip(each, choices, strict=True):
                model.add_linear_constraint(rate <= chosen)
            arrives: LinearSum | float = float(self.given[row]) / most
            for source in np.flatnonzero(problem.network.weights[row] > 0).tolist():
                sent = float(problem.network.weights[row, source] * self.most[source]) / most
                for rate, a in zip(found[source], self.allowed[source], strict=True):
                    arrives += sent * problem.options[source][a].selectivity * rate
            total = sum(each)
            model.add_linear_constraint(total <= arrives if at_most else total >= arrives)
        return found

    def _worked(self, rates: Sequence[Sequence["Variable"]], row: int) -> "LinearSum | float":
        """Cores of speed 1 that an operator works."""
        options, most = self.problem.options[row], float(self.most[row])
        return sum(most * options[a].cost * rate for rate, a in zip(rates[row], self.allowed[row], strict=True))

    def _own_cores(self) -> None:
        """Instances hold cores of hosts; what operators take has cores to work it (4.4), and enough leaves (4.7)."""
        problem, model = self.problem, self.model
        taken = self._flow(at_most=True)
        placed = np.flatnonzero(problem.placed).tolist()
        for row in placed:
            instances, cores = [], []
            for k, offer in enumerate(self.offers):
                each = self.held[row, k] = model.add_integer_variable(lb=0, ub=self._useful(row, offer))
                instances.append(each)
                cores.append(offer.speed * float(problem.per_instance[row]) * each)
                if not alike(problem, [offer.type]):
                    model.add_linear_constraint(each <= int(offer.fits[row]) * self.hosts[k])
            number = self.fixed[row]
            model.add_linear_constraint(sum(instances) >= 1 if number is None else sum(instances) == number)
            if self.needs[row] > 0:
                model.add_linear_constraint(self._worked(taken, row) <= sum(cores))
        for k, offer in enumerate(self.offers if placed else ()):
            if alike(problem, [offer.type]):
                here = sum(self.held[row, k] for row in placed)
                model.add_linear_constraint(here <= int(offer.fits[placed[0]]) * self.hosts[k])
                continue
            for need_of, has in ((problem.cores, offer.type.cores), (problem.memory, offer.type.memory)):
                if (need_of[placed] > 0).any() and math.isfinite(has):
                    parts = [float(need_of[row] / has) * self.held[row, k] for row in placed]
                    model.add_linear_constraint(sum(parts) <= (1 + ROUNDING) * self.hosts[k])
        self._leaves(taken)

    def _leaves(self, taken: Sequence[Sequence["Variable"]]) -> None:
        """Of what could reach each output it takes a part; the mean of the parts is enough (4.7).

        Where what could reach one is a choice, the part times that is relaxed to its convex hull (McCormick's envelope).
        """
        rows = [row for row in self.problem.outputs.tolist() if self.most[row] > 0]
        varies = [row for row in rows if self.most[row] - self.fewest[row] > self.most[row] * ROUNDING]
        possible = self._flow(at_most=False) if varies else []
        parts = []
        for row in rows:
            part = self.model.add_variable(lb=0.0, ub=1.0)
            takes = sum(taken[row])
            lowest = float(self.fewest[row] / self.most[row]) if row in varies else 1.0
            self.model.add_linear_constraint(lowest * part <= takes)
            if row in varies:
                self.model.add_linear_constraint(part + sum(possible[row]) - 1 <= takes)
            parts.append(part)
        if parts:
            self.model.add_linear_constraint(sum(parts) >= self.least * len(parts))

    def _shared_cores(self) -> None:
        """Where all operators take turns on all cores, all take the same part of what they could: cores over work."""
        possible = self._flow(at_most=False)
        rows = [row for row in range(len(self.problem.operators)) if self.needs[row] > 0]
        if rows:
            work = sum(self._worked(possible, row) for row in rows)
            cores = [offer.speed * offer.type.cores * number for offer, number in zip(self.offers, self.hosts, strict=True)]
            self.model.add_linear_constraint(sum(cores) >= self.least * work)

    def _objective(self) -> None:
        """The profit: linear in the options' values and in the hosts."""
        problem, conditions = self.problem, self.conditions
        first = [rows[0] for rows in self.allowed]
        start = value_of(problem, first)
        free = profit_of(problem, conditions, start, 0.0)
        nothing = Deployment((), (), np.zeros((0, len(problem.operators)), dtype=np.int64))
        self.profit: LinearSum = profit_of(problem, conditions, start, cost_of(problem, nothing, conditions)) + sum(
            -problem.line.sigma * offer.cost * number for offer, number in zip(self.offers, self.hosts, strict=True)
        )
        for row, (choices, rows) in enumerate(zip(self.choice, self.allowed, strict=True)):
            for chosen, a in zip(choices, rows, strict=True):
                value = value_of(problem, [*first[:row], a, *first[row + 1 :]])
                gained = profit_of(problem, conditions, value, 0.0) - free
                if gained:
                    self.profit += gained * chosen
        self.model.maximize(self.profit)


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
        if scored.mean < self.least - ROUNDING:
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
