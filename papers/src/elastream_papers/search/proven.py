"""Optimal plans with a proof, or a proven bound: the yardstick of every other search.

A mixed integer model (`linear_model`) of alternates, hosts by offer, and instances. Combinations of selectivities are
solved singly or by branch and bound. Plans are scored by the equations; links only lower the throughput.
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
    equal_sizes,
    laid_out,
    numbers_fixed,
    offers,
    possible_rates,
)

if TYPE_CHECKING:
    from ortools.math_opt.python.mathopt import LinearSum, Model, Variable


ENOUGH = 1e-5  # least difference of profit that counts
SLACK = 1e-6  # part of a throughput that solver tolerances may miss

Allowed: TypeAlias = tuple[tuple[int, ...], ...]  # permitted options by operator


@dataclass(frozen=True)
class Solution:
    """The solver's choice: offers, each with its number of hosts and instances."""

    active: tuple[int, ...]
    chosen: tuple[tuple[HostOffer, int, Integers], ...]


class LinearModel:
    """Linear model of the problem. Rates are parts of an operator's maximum."""

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
        self.external: Floats = conditions.queues / conditions.seconds
        self.external[problem.sources] += conditions.rates[0]
        self.most, self.fewest = self._extreme(max), self._extreme(min)
        costs = [max(options[a].cost for a in rows) for options, rows in zip(problem.options, allowed, strict=True)]
        self.needs: Floats = self.most * costs
        self.choice = [[self.model.add_binary_variable() for _ in rows] for rows in allowed]
        for row in self.choice:
            self.model.add_linear_constraint(sum(row) == 1)
        self.hosts = [self.model.add_integer_variable(lb=0, ub=self._most_hosts(offer)) for offer in every]
        self.instances_on: dict[tuple[int, int], Variable] = {}
        self.fits = bool(every) or not (problem.min_hosts or problem.placed.any())
        if every:
            self.model.add_linear_constraint(sum(self.hosts) <= problem.max_hosts)
            self.model.add_linear_constraint(sum(self.hosts) >= problem.min_hosts)
            self._order()
            self._shared_cores() if problem.shared else self._own_cores()
            self._objective()

    def solve(self, seconds: float, beaten: float) -> tuple[Solution | None, float]:
        """Return (solution or None, bound of the profit). beaten: a profit to exceed."""
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
                for (operator, at), each in self.instances_on.items():
                    if at == k:
                        instances[operator] = round(values[each])
                chosen.append((offer, count, instances))
        return Solution(active, tuple(chosen)), bound

    def _extreme(self, pick: Callable[[list[float]], float]) -> Floats:
        """Return the extreme rate of each operator over the permitted options."""
        options = zip(self.problem.options, self.allowed, strict=True)
        each = np.array([pick([among[a].selectivity for a in rows]) for among, rows in options])
        return possible_rates(self.problem, self.conditions, each[:, None])[:, 0]

    def _useful(self, row: int, offer: HostOffer) -> int:
        """Return how many instances of an operator are useful on hosts of `offer`."""
        speed = offer.speed * float(self.problem.per_instance[row])
        useful = self.fixed[row] or (math.ceil(self.needs[row] / speed) + 1 if speed > 0 else 1)
        return max(0, min(int(offer.fits[row]) * min(offer.most, self.problem.max_hosts), useful))

    def _most_hosts(self, offer: HostOffer) -> int:
        """Return how many hosts of `offer` are useful."""
        problem = self.problem
        if problem.shared:
            each = offer.speed * offer.type.cores
            useful = math.ceil(self.needs.sum() / each) if each > 0 else 0
        else:
            useful = sum(self._useful(row, offer) for row in np.flatnonzero(problem.placed).tolist())
        return min(offer.most, problem.max_hosts, useful + problem.min_hosts)

    def _order(self) -> None:
        """Break symmetry: equal offers of one host are leased in order."""
        for k, (one, other) in enumerate(zip(self.offers, self.offers[1:], strict=False)):
            if one.most == other.most == 1 and one.host == other.host:
                self.model.add_linear_constraint(self.hosts[k] >= self.hosts[k + 1])

    def _flow(self, *, at_most: bool) -> list[list["Variable"]]:
        """Return rates by operator and option, 0 unless chosen, bounded by the arrivals."""
        problem, model = self.problem, self.model
        found = [[model.add_variable(lb=0.0, ub=1.0 if most > 0 else 0.0) for _ in rows]
                 for rows, most in zip(self.allowed, self.most.tolist(), strict=True)]  # fmt: skip
        for row, (each, choices) in enumerate(zip(found, self.choice, strict=True)):
            most = float(self.most[row])
            if most <= 0:
                continue
            for rate, chosen in zip(each, choices, strict=True):
                model.add_linear_constraint(rate <= chosen)
            arrives: LinearSum | float = float(self.external[row]) / most
            for source in np.flatnonzero(problem.network.weights[row] > 0).tolist():
                sent = float(problem.network.weights[row, source] * self.most[source]) / most
                for rate, a in zip(found[source], self.allowed[source], strict=True):
                    arrives += sent * problem.options[source][a].selectivity * rate
            total = sum(each)
            model.add_linear_constraint(total <= arrives if at_most else total >= arrives)
        return found

    def _work_of(self, rates: Sequence[Sequence["Variable"]], row: int) -> "LinearSum | float":
        options, most = self.problem.options[row], float(self.most[row])
        return sum(most * options[a].cost * rate for rate, a in zip(rates[row], self.allowed[row], strict=True))

    def _own_cores(self) -> None:
        """Constrain rates to the instances' cores (4.4), and the output to the goal (4.7)."""
        problem, model = self.problem, self.model
        taken = self._flow(at_most=True)
        placed = np.flatnonzero(problem.placed).tolist()
        for row in placed:
            instances, cores = [], []
            for k, offer in enumerate(self.offers):
                each = self.instances_on[row, k] = model.add_integer_variable(lb=0, ub=self._useful(row, offer))
                instances.append(each)
                cores.append(offer.speed * float(problem.per_instance[row]) * each)
                if not equal_sizes(problem, [offer.type]):
                    model.add_linear_constraint(each <= int(offer.fits[row]) * self.hosts[k])
            number = self.fixed[row]
            model.add_linear_constraint(sum(instances) >= 1 if number is None else sum(instances) == number)
            if self.needs[row] > 0:
                model.add_linear_constraint(self._work_of(taken, row) <= sum(cores))
        for k, offer in enumerate(self.offers if placed else ()):
            if equal_sizes(problem, [offer.type]):
                here = sum(self.instances_on[row, k] for row in placed)
                model.add_linear_constraint(here <= int(offer.fits[placed[0]]) * self.hosts[k])
                continue
            for need_of, has in ((problem.cores, offer.type.cores), (problem.memory, offer.type.memory)):
                if (need_of[placed] > 0).any() and math.isfinite(has):
                    parts = [float(need_of[row] / has) * self.instances_on[row, k] for row in placed]
                    model.add_linear_constraint(sum(parts) <= (1 + ROUNDING) * self.hosts[k])
        self._constrain_output(taken)

    def _constrain_output(self, taken: Sequence[Sequence["Variable"]]) -> None:
        """Constrain the mean relative output (4.7), relaxed to the convex hull (McCormick's envelope)."""
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
        """Constrain operators that share all cores to equal parts of their rates."""
        possible = self._flow(at_most=False)
        rows = [row for row in range(len(self.problem.operators)) if self.needs[row] > 0]
        if rows:
            work = sum(self._work_of(possible, row) for row in rows)
            cores = [offer.speed * offer.type.cores * number for offer, number in zip(self.offers, self.hosts, strict=True)]
            self.model.add_linear_constraint(sum(cores) >= self.least * work)

    def _objective(self) -> None:
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


MARGIN = 1e-5  # extra throughput for a plan that missed the least within `SLACK`
COMBINATIONS = 64  # most combinations of selectivities to solve one by one
APART = 40  # most hosts modelled singly, if unequal instances did not fit

Part: TypeAlias = tuple[tuple[HostOffer, ...], Allowed]  # one model: its hosts and options


def optimum(
    problem: Problem,
    conditions: Conditions,
    *,
    seconds: float = 60.0,
    least: float | None = None,
    current: Deployment | None = None,
    combinations: int = COMBINATIONS,
) -> Optimum:
    """Return the plan of the highest profit (4.8) with a relative throughput (4.7) of at least `least`.

    seconds: time limit, the only source of differences. least: default the goal's. current: plan in force; fixes fixed
    operators' instances. combinations: most combinations of selectivities that are solved one by one. Raises InputError
    for conditions of several instants.
    """
    least = problem.goal.throughput if least is None else least
    return _Proof(problem, conditions, least, current, seconds, combinations).optimum()


class _Proof:
    """One search for the optimum, by one model or several."""

    def __init__(
        self,
        problem: Problem,
        conditions: Conditions,
        least: float,
        current: Deployment | None,
        seconds: float,
        one_by_one: int,
    ) -> None:
        self.problem, self.conditions, self.least = problem, conditions, least
        self.fixed = numbers_fixed(problem, current)
        self.offers = offers(problem, conditions)
        self.one_by_one = one_by_one
        self.began = time.monotonic()
        self.until = self.began + seconds
        self.best: Deployment | None = None
        self.profit = -math.inf

    def optimum(self) -> Optimum:
        """Return the best of all models, with their bound."""
        every = tuple(tuple(range(len(options))) for options in self.problem.options)
        combinations = list(_combinations(self.problem, self.one_by_one)) or [every]
        relaxed = len(combinations) > self.one_by_one
        parts = [(among, allowed) for among in self._speed_classes() for allowed in ([every] if relaxed else combinations)]
        bound = max(self.profit, self._best_first(parts) if relaxed else self._solve_all(parts))
        scored = None if self.best is None else score(self.problem, self.best, self.conditions)
        proven = bound == -math.inf or bound - self.profit <= ENOUGH
        return Optimum(self.best, scored, bound, proven, time.monotonic() - self.began)

    def _solve_all(self, parts: Sequence[Part]) -> float:
        return max(self._solve_part(among, allowed, len(parts) - number) for number, (among, allowed) in enumerate(parts))

    def _best_first(self, parts: Sequence[Part]) -> float:
        """Return the bound of relaxed models by branch and bound on selectivities."""
        left: list[tuple[float, int, Part]] = []
        solved = closed = -math.inf
        for number, part in enumerate(parts):
            solved = self._solve_part(*part, 2 * (len(parts) - number))
            heapq.heappush(left, (-solved, number, part))
        count = len(parts)
        while left and -left[0][0] > self.profit + ENOUGH and time.monotonic() < self.until:
            bound, _, (among, allowed) = heapq.heappop(left)
            children = _divided(self.problem, allowed)
            if not children:  # no relaxation is left: the remaining gap is the solver's own
                closed = max(closed, -bound)
            for child in children:
                solved = min(-bound, self._solve_part(among, child, len(left) + 2))
                heapq.heappush(left, (-solved, count, (among, child)))
                count += 1
        return max(closed, -left[0][0] if left else -math.inf)

    def _speed_classes(self) -> list[tuple[HostOffer, ...]]:
        """Return the offers; if all hosts wait for the slowest, the faster ones slowed to each speed."""
        if not (self.problem.shared and self.problem.equal):
            return [self.offers]
        speeds = sorted({offer.speed for offer in self.offers})
        return [tuple(replace(each, speed=speed) for each in self.offers if each.speed >= speed) for speed in speeds]

    def _solve_part(self, among: tuple[HostOffer, ...], allowed: Allowed, left: int) -> float:
        """Solve one model, keep its plan if better, return its bound. left: unsolved models."""
        until = time.monotonic() + (self.until - time.monotonic()) / left
        found, bound = self._solve(among, allowed, self.least, until)
        for _ in range(3):
            if found is None or self._keep_if_better(found):
                break
            if laid_out(self.problem, found.active, found.chosen) is None:
                found, _ = self._solve(_with_single_hosts(among, found), allowed, self.least, until)
            else:  # within the slack of the throughput, or of selectivities whose combinations were relaxed
                found, _ = self._solve(
                    among, _with_selectivities_of(self.problem, found.active), self.least + MARGIN, until
                )
        return bound

    def _solve(
        self, among: tuple[HostOffer, ...], allowed: Allowed, least: float, until: float
    ) -> tuple[Solution | None, float]:
        model = LinearModel(self.problem, self.conditions, among, allowed, least, self.fixed)
        return model.solve(max(0.1, until - time.monotonic()), self.profit)

    def _keep_if_better(self, found: Solution) -> bool:
        """Return True if a solution's plan reaches the throughput; keep the best."""
        plan = laid_out(self.problem, found.active, found.chosen)
        if plan is None:
            return False
        scored = score(self.problem, plan, self.conditions)
        if scored.mean < self.least - ROUNDING:
            return False
        if scored.profit > self.profit:
            self.best, self.profit = plan, scored.profit
        return True


def _combinations(problem: Problem, most: int) -> Iterator[Allowed]:
    """Yield combinations of equal selectivities, at most one more than `most`."""
    rows = []
    for options in problem.options:
        by_selectivity: dict[float, list[int]] = {}
        for row, option in enumerate(options):
            by_selectivity.setdefault(option.selectivity, []).append(row)
        rows.append([tuple(each) for each in by_selectivity.values()])
    for number, each in enumerate(product(*rows)):
        if number > most:
            return
        yield each


def _divided(problem: Problem, allowed: Allowed) -> tuple[Allowed, ...]:
    """Split `allowed` at the operator with the widest selectivities; empty if none differ."""
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


def _with_selectivities_of(problem: Problem, active: Sequence[int]) -> Allowed:
    return tuple(
        tuple(row for row, option in enumerate(options) if option.selectivity == options[chosen].selectivity)
        for options, chosen in zip(problem.options, active, strict=True)
    )


def _with_single_hosts(every: Sequence[HostOffer], found: Solution) -> tuple[HostOffer, ...]:
    """Return each offer once per host: as many as the solution chose, and some more, up to about `APART` in all."""
    numbers = {id(offer): count for offer, count, _ in found.chosen}
    spare = max(1, (APART - sum(numbers.values())) // len(every))
    return tuple(
        replace(offer, most=1) for offer in every for _ in range(min(offer.most, numbers.get(id(offer), 0) + spare))
    )
