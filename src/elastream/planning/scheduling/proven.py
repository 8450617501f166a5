"""Finds the plan of the highest profit with a proof, or a plan and a proven bound: what every other search is measured by.

A constraint solver (OR-Tools CP-SAT) chooses alternates, the number of hosts of each offer and the instances of each operator
on them. Flow makes this linear: what an operator takes is at most what arrives and at most what its cores can work (4.4), and
more never harms. The solver works on integers: every number is rounded such that no real plan is lost, so that its bound holds
for the real ones, and a plan that it finds is scored by the equations themselves. It is imported on use; its import is slow.

Links are not in the model. They can only lower a throughput: the bound holds with them too, and the plan is scored with them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from elastream.model.observation import Floats, Integers
from elastream.planning.scheduling.offers import NEARLY, Offer, alike, laid_out, numbers_fixed, offers, possible_rates
from elastream.planning.scheduling.problem import (
    Conditions,
    Deployment,
    Problem,
    Score,
    cost_of,
    profit_of,
    score,
    value_of,
)

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver, IntVar, LinearExpr

__all__ = ["Optimum", "optimum"]

RATE = 1_000_000
"""Integer units of the most that an operator can take: rounding loses less than a millionth of it."""
FACTOR = 1_000_000
"""Integer units of the largest factor in a sum of rates or of cores."""
PROFIT = 1_000_000_000
"""Integer units of a profit of 1."""
ENOUGH = 1e-6
"""Difference of profit below which a plan counts as optimal: a thousandth of what any figure here is given to."""
MARGIN = 1e-4
"""Throughput to plan for beyond the least, where a plan was within rounding of the least and missed it: well above what the
rounding of the longest of chains adds up to."""
APART = 40
"""Most hosts that are told apart, where instances of unlike sizes found no room on hosts counted together."""


@dataclass(frozen=True)
class Optimum:
    """The best plan found. deployment, score: None where there is none. bound: no plan that reaches the throughput has a
    higher profit; -inf: none reaches it. optimal: whether the gap is proven to be at most ENOUGH. seconds: of the solver."""

    deployment: Deployment | None
    score: Score | None
    bound: float
    optimal: bool
    seconds: float

    @property
    def profit(self) -> float:
        """Profit of the plan; -inf without one."""
        return -math.inf if self.score is None else self.score.profit

    @property
    def gap(self) -> float:
        """By how much the best plan may have a higher profit; 0 if optimal, inf without a plan."""
        return 0.0 if self.optimal else max(0.0, self.bound - self.profit)


def optimum(
    problem: Problem,
    conditions: Conditions,
    *,
    seconds: float = 60.0,
    least: float | None = None,
    current: Deployment | None = None,
    workers: int = 1,
) -> Optimum:
    """The plan with the highest profit (4.8) of those whose relative throughput (4.7) is at least `least`.

    seconds: time limit of the solver. least: the goal's throughput, if None. current: the plan in force, of
    whose fixed operators the number of instances stays; None: one of each. workers: threads of the solver; with one, the
    same plan is found every time, unless the time limit is reached.

    Raises InputError for conditions of several instants.
    """
    least = problem.goal.throughput if least is None else least
    every = offers(problem, conditions)
    among = _as_slow(problem, every)
    parts = [_optimum(problem, conditions, each, least, current, seconds / len(among), workers) for each in among]
    best = max(parts, key=lambda part: part.profit)
    bound, took = max(part.bound for part in parts), math.fsum(part.seconds for part in parts)
    optimal = all(part.optimal for part in parts)
    return replace(best, bound=bound, optimal=optimal and bound - best.profit <= ENOUGH or bound == -math.inf, seconds=took)


def _as_slow(problem: Problem, every: tuple[Offer, ...]) -> list[tuple[Offer, ...]]:
    """The offers; where all hosts wait for the slowest, those at least as fast as each, and as slow."""
    if not (problem.shared and problem.equal):
        return [every]
    speeds = sorted({offer.speed for offer in every})
    return [tuple(replace(offer, speed=speed) for offer in every if offer.speed >= speed) for speed in speeds]


def _optimum(
    problem: Problem,
    conditions: Conditions,
    every: tuple[Offer, ...],
    least: float,
    current: Deployment | None,
    seconds: float,
    workers: int,
) -> Optimum:
    """The best plan of hosts of these offers."""
    fixed = numbers_fixed(problem, current)
    found, bound, took, proven = _Model(problem, conditions, every, least, fixed).solve(seconds, workers)
    if found is None:
        return Optimum(None, None, -math.inf if proven else bound, proven, took)
    plan = _real(problem, conditions, found, least)
    tries = 0
    while plan is None and tries < 2 and took < seconds:
        # Rounded in favour of a plan that misses by less than that; or instances that found no room on their hosts.
        misfit = laid_out(problem, found.active, found.chosen) is None
        among, wanted = (_told_apart(every, found), least) if misfit else (every, least + MARGIN)
        again, _, more, _ = _Model(problem, conditions, among, wanted, fixed).solve(max(1.0, seconds - took), workers)
        took, tries = took + more, tries + 1
        if again is None:
            break
        found = again
        plan = _real(problem, conditions, found, least)
    if plan is None:
        return Optimum(None, None, bound, False, took)
    scored = score(problem, plan, conditions)
    return Optimum(plan, scored, max(bound, scored.profit), proven and bound - scored.profit <= ENOUGH, took)


@dataclass(frozen=True)
class _Found:
    """What the solver chose."""

    active: tuple[int, ...]
    chosen: tuple[tuple[Offer, int, Integers], ...]


def _real(problem: Problem, conditions: Conditions, found: _Found, least: float) -> Deployment | None:
    """The plan, where all instances have room and it reaches `least`."""
    plan = laid_out(problem, found.active, found.chosen)
    return plan if plan is not None and score(problem, plan, conditions).mean >= least - NEARLY else None


def _told_apart(every: Sequence[Offer], found: _Found) -> tuple[Offer, ...]:
    """The offers with a few single hosts instead of numbers of hosts, about as many as were chosen of each."""
    numbers = {id(offer): count for offer, count, _ in found.chosen}
    spare = max(1, (APART - sum(numbers.values())) // len(every))
    return tuple(
        replace(offer, most=1)
        for offer in every
        for _ in range(min(offer.most, numbers.get(id(offer), 0) + spare))
    )


class _Model:
    """The problem in integers. Everything is by operator, then by option or by offer."""

    def __init__(
        self,
        problem: Problem,
        conditions: Conditions,
        every: Sequence[Offer],
        least: float,
        fixed: Sequence[int | None],
    ) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.conditions, self.offers, self.fixed = problem, conditions, every, fixed
        self.model: CpModel = cp_model.CpModel()
        self.sum = cp_model.LinearExpr.weighted_sum
        self.given: Floats = conditions.queues / conditions.seconds
        self.given[problem.sources] += conditions.rates[0]
        most, self.least_rates = self._extremes()
        self.most = most
        self.unit: Floats = np.where(most > 0, most, 1.0) / RATE
        self.choice = [
            [self.model.new_bool_var(f"{name} {option.name}") for option in options]
            for name, options in zip(problem.operators, problem.options, strict=True)
        ]
        for row in self.choice:
            self.model.add_exactly_one(row)
        self.needs: Floats = most * [max(option.cost for option in options) for options in problem.options]
        self.hosts = [self.model.new_int_var(0, self._most_hosts(offer), f"hosts {k}") for k, offer in enumerate(every)]
        self.model.add(sum(self.hosts) <= problem.max_hosts)
        self.model.add(sum(self.hosts) >= problem.min_hosts)
        self._order()
        self.held: dict[tuple[int, int], IntVar] = {}
        parts = self._shared_cores() if problem.shared else self._own_cores()
        if parts:
            self.model.add(sum(parts) >= math.floor((least - NEARLY) * RATE * len(parts)) - len(parts))
        self._objective()

    def solve(self, seconds: float, workers: int) -> tuple[_Found | None, float, float, bool]:
        """(what was found or None, bound of the profit, seconds taken, whether it is proven to be the best or that none is)."""
        from ortools.sat.python import cp_model

        solver: CpSolver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = 0
        solver.parameters.absolute_gap_limit = ENOUGH / 2 * PROFIT
        status = solver.solve(self.model)
        took = float(solver.wall_time)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, math.inf, took, status == cp_model.INFEASIBLE
        bound = self.base + float(solver.best_objective_bound) / PROFIT
        active = tuple(next(a for a, each in enumerate(row) if solver.boolean_value(each)) for row in self.choice)
        chosen = []
        for k, (offer, number) in enumerate(zip(self.offers, self.hosts, strict=True)):
            if count := int(solver.value(number)):
                instances = np.zeros(len(self.problem.operators), dtype=np.int64)
                for (operator, at), each in self.held.items():
                    if at == k:
                        instances[operator] = solver.value(each)
                chosen.append((offer, count, instances))
        return _Found(active, tuple(chosen)), bound, took, status == cp_model.OPTIMAL

    def _extremes(self) -> tuple[Floats, Floats]:
        """The most and the least that each operator can take, over all options."""
        found = []
        for pick in (max, min):
            each = np.array([pick(option.selectivity for option in options) for options in self.problem.options])
            found.append(possible_rates(self.problem, self.conditions, each[:, None])[:, 0])
        return found[0], found[1]

    def _useful(self, row: int, offer: Offer) -> int:
        """Instances on hosts of `offer` beyond which one more is of no use: they work everything that can come, and one."""
        speed = offer.speed * float(self.problem.per_instance[row])
        useful = self.fixed[row] or (math.ceil(self.needs[row] / speed) + 1 if speed > 0 else 1)
        return max(0, min(int(offer.fits[row]) * min(offer.most, self.problem.max_hosts), useful))

    def _most_hosts(self, offer: Offer) -> int:
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
                self.model.add(self.hosts[k] >= self.hosts[k + 1])

    def _flow(self, what: str, *, at_most: bool) -> list[list["IntVar"]]:
        """Rates by operator and option, 0 of those not chosen, in units of `unit`: at most, or at least, what arrives.

        What an operator takes is rounded up, and what could come at most is rounded down: both in favour of the throughput.
        """
        problem, model = self.problem, self.model
        slack = 2 if at_most else -1
        found = [
            [model.new_int_var(0, RATE + 2 if most > 0 else 0, f"{what} {row} {a}") for a in range(len(options))]
            for row, (options, most) in enumerate(zip(problem.options, self.most, strict=True))
        ]
        for row, (each, choices) in enumerate(zip(found, self.choice, strict=True)):
            if self.most[row] <= 0:
                continue
            for rate, chosen in zip(each, choices, strict=True):
                model.add(rate <= (RATE + 2) * chosen)
            factors: list[int] = []
            variables: list[IntVar] = []
            into = np.flatnonzero(problem.network.weights[row] > 0).tolist()
            for source in into:
                for rate, option in zip(found[source], problem.options[source], strict=True):
                    exact = problem.network.weights[row, source] * option.selectivity * self.unit[source] / self.unit[row]
                    factors.append(math.ceil(exact * FACTOR) if at_most else math.floor(exact * FACTOR))
                    variables.append(rate)
            outside = self.given[row] / self.unit[row] * FACTOR
            arrives = self.sum(variables, factors) + (math.ceil(outside) if at_most else math.floor(outside))
            total = self.sum(each, [FACTOR] * len(each))
            model.add(total <= arrives + slack * FACTOR) if at_most else model.add(total >= arrives + slack * FACTOR)
        return found

    def _own_cores(self) -> list["IntVar"]:
        """Instances hold cores of hosts, and what they take has cores to work it (4.4). Returns the parts of the outputs."""
        problem, model = self.problem, self.model
        taken, sizes = self._flow("taken", at_most=True), problem.per_instance
        for row in np.flatnonzero(problem.placed).tolist():
            instances = []
            for k, offer in enumerate(self.offers):
                self.held[row, k] = model.new_int_var(0, self._useful(row, offer), f"instances {row} {k}")
                instances.append(self.held[row, k])
                if not alike(problem, [offer.type]):
                    model.add(self.held[row, k] <= int(offer.fits[row]) * self.hosts[k])
            number = self.fixed[row]
            model.add(sum(instances) >= 1) if number is None else model.add(sum(instances) == number)
            self._worked(taken[row], row, instances, [offer.speed * float(sizes[row]) for offer in self.offers])
        placed = np.flatnonzero(problem.placed).tolist()
        for k, offer in enumerate(self.offers):
            if not placed:
                break
            if alike(problem, [offer.type]):
                model.add(sum(self.held[row, k] for row in placed) <= int(offer.fits[placed[0]]) * self.hosts[k])
                continue
            for need_of, has in ((problem.cores, offer.type.cores), (problem.memory, offer.type.memory)):
                if (need_of[placed] > 0).any() and math.isfinite(has):
                    parts = [math.floor(need_of[row] / has * FACTOR) for row in placed]
                    model.add(self.sum([self.held[row, k] for row in placed], parts) <= FACTOR * self.hosts[k])
        return self._outputs(taken)

    def _worked(
        self, taken: list["IntVar"], row: int, instances: Sequence["IntVar"], speeds: Sequence[float]
    ) -> None:
        """What an operator takes costs no more cores than its instances have."""
        need = self.needs[row]
        if need <= 0:
            return
        scale = RATE * FACTOR / need  # integer units of a core: the costliest option takes FACTOR of them a unit of rate
        factors = [
            math.floor(option.cost * self.unit[row] * scale * (1 - NEARLY)) for option in self.problem.options[row]
        ]
        cores = [math.ceil(min(speed * scale, 2.0 * RATE * FACTOR)) for speed in speeds]
        self.model.add(self.sum(taken, factors) <= self.sum(instances, cores) + 2 * FACTOR)

    def _outputs(self, taken: list[list["IntVar"]]) -> list["IntVar"]:
        """Part of what it could that each output takes, in units of 1/RATE (4.7)."""
        same = self.most - self.least_rates <= self.most * NEARLY
        rows = [row for row in self.problem.outputs.tolist() if self.most[row] > 0]
        possible = [] if same[rows].all() else self._flow("possible", at_most=False)
        terms: list[IntVar] = []
        for row in rows:
            part = self.model.new_int_var(0, RATE, f"part {row}")
            if same[row]:
                # The same whatever is chosen: a unit of the rate is a unit of the part.
                self.model.add(part <= sum(taken[row]) + 1)
            else:
                could = self.model.new_int_var(0, RATE + 2, f"could {row}")
                self.model.add(could == sum(possible[row]))
                product = self.model.new_int_var(0, (RATE + 2) * RATE, f"product {row}")
                self.model.add_multiplication_equality(product, [part, could])
                self.model.add(product <= RATE * sum(taken[row]) + 2 * RATE)
            terms.append(part)
        return terms

    def _shared_cores(self) -> list["IntVar"]:
        """Where all operators take turns on all cores, all take the same part of what they could: cores over work."""
        problem, possible = self.problem, self._flow("possible", at_most=False)
        rows = [row for row in range(len(problem.operators)) if self.most[row] > 0]
        need = float(self.needs.sum())
        part = self.model.new_int_var(0, RATE, "part")
        if need > 0:
            scale = RATE * FACTOR / need
            factors, variables = [], []
            for row in rows:
                for rate, option in zip(possible[row], problem.options[row], strict=True):
                    factors.append(math.floor(option.cost * self.unit[row] * scale * (1 - NEARLY)))
                    variables.append(rate)
            # Both in units of 1/RATE of `need`, so that their product fits in 64 bits.
            work, cores = (self.model.new_int_var(0, 4 * RATE, name) for name in ("work", "cores"))
            self.model.add(FACTOR * work >= self.sum(variables, factors) - 2 * FACTOR)
            speeds = [math.ceil(min(offer.speed * offer.type.cores * scale, 4.0 * RATE * FACTOR)) for offer in self.offers]
            self.model.add(FACTOR * cores <= self.sum(self.hosts, speeds) + FACTOR)
            product = self.model.new_int_var(0, 4 * RATE * RATE, "product")
            self.model.add_multiplication_equality(product, [part, work])
            self.model.add(product <= RATE * cores + 2 * RATE)
        return [part]

    def _objective(self) -> None:
        """Profit above that of the first options and no hosts: linear in the options' values and in the hosts."""
        problem, conditions = self.problem, self.conditions
        first = [0] * len(problem.operators)
        start = value_of(problem, first)
        self.base = profit_of(problem, conditions, start, _spent(problem, conditions))
        terms: list[LinearExpr | IntVar] = []
        factors: list[int] = []
        for row, choices in enumerate(self.choice):
            for a, chosen in enumerate(choices):
                value = value_of(problem, [*first[:row], a, *first[row + 1 :]])
                gained = profit_of(problem, conditions, value, 0.0) - profit_of(problem, conditions, start, 0.0)
                if gained:
                    terms.append(chosen)
                    factors.append(math.ceil(gained * PROFIT))
        for offer, number in zip(self.offers, self.hosts, strict=True):
            terms.append(number)
            factors.append(-math.floor(problem.line.sigma * offer.cost * PROFIT))
        self.model.maximize(self.sum(terms, factors))


def _spent(problem: Problem, conditions: Conditions) -> float:
    """Money of the period if every leased host is given back now."""
    nothing = Deployment((), (), np.zeros((0, len(problem.operators)), dtype=np.int64))
    return cost_of(problem, nothing, conditions)

