"""The question of `proven` as a mixed integer model, solved by HiGHS.

Flow makes it linear: what an operator takes is at most what arrives and at most what its cores can work (4.4), and more
never harms. The solver is imported on use; its import is slow.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.policies.value_cost.offers import NEARLY, HostOffer, alike, possible_rates
from elastream.policies.value_cost.problem import Conditions, Deployment, Problem, cost_of, profit_of, value_of

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
                    model.add_linear_constraint(sum(parts) <= (1 + NEARLY) * self.hosts[k])
        self._leaves(taken)

    def _leaves(self, taken: Sequence[Sequence["Variable"]]) -> None:
        """Of what could reach each output it takes a part; the mean of the parts is enough (4.7).

        Where what could reach one is a choice, the part times that is relaxed to its convex hull (McCormick's envelope).
        """
        rows = [row for row in self.problem.outputs.tolist() if self.most[row] > 0]
        varies = [row for row in rows if self.most[row] - self.fewest[row] > self.most[row] * NEARLY]
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
