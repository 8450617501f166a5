"""Genetic search for plans (thesis, 4.7): chromosomes of two strands, profit as fitness, and a penalty that grows.

PyGAD selects by ranks, keeps the elite and crosses over by a bit mask; `genes` knows plans and mutations.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Integers
from elastream.errors import InputError
from elastream.policies.value_cost.problem import (
    Conditions,
    Deployment,
    Problem,
    Score,
    cost_of,
    limits,
    profit_of,
    score,
    throughput,
    value_of,
)
from elastream.units import ROUNDING
from elastream_papers.search.genes import Genes
from elastream_papers.search.offers import coming, offers, possible_rates, reached, selected

ELITE = 0.05
"""Part of the population that is kept as it is (p. 79)."""
SHORTFALL = 1.0
"""Profit that a throughput of 1 below the goal takes away, times the iteration (alpha, p. 79: not given). From the second
iteration on a throughput missed costs more than the cores for it: what is leased breaks even at a profit of 0."""
WORTH = 0.1
"""Part of what the cheapest host costs for which one change to the plan in force is made (alpha', p. 79: not given): of
all plans seen the best is chosen by it. A host is worth less of a profit the more there are, so that a fixed one would keep
what nobody needs in large plans; less than a host, changes decide between plans that are as good."""
AGED = 100
"""Iterations after which the penalty of a change is its `WORTH`: it grows as a plan survives."""
GAIN = 1e-4
"""Gain in profit that counts as one: a hundredth of what figures here are given to."""
MUTATED = 0.5
"""Part of the first population that the plan in force and mutations of it are, where there is one."""


@dataclass(frozen=True, slots=True)
class GeneticSettings:
    """How long to search. population: plans at a time. generations: at most; patience: without a gain, after which it ends;
    seconds: the time box. seed: the same seed finds the same plan, unless the time box ends the search.

    Raises InputError for what nothing can be found with.
    """

    population: int = 100
    generations: int = 5000
    patience: int = 300
    seconds: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.population < 4:
            raise InputError(f"a population of {self.population} plans: it must be 4 or more, to be crossed and kept")
        for name in ("generations", "patience"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be 1 generation or more")
        if not self.seconds > 0:
            raise InputError(f"a time box of {self.seconds:g} s: it must be above 0")


@dataclass(frozen=True)
class Evolved:
    """The best plan found. deployment, score: None where nothing can be leased. feasible: whether it reaches the
    throughput; else it is the plan that comes nearest. changes: genes in which it differs from the plan in force.
    generations: that were bred; cut: whether the time box ended the search; seconds: it took."""

    deployment: Deployment | None
    score: Score | None
    feasible: bool
    changes: int
    generations: int
    cut: bool
    seconds: float

    @property
    def profit(self) -> float:
        """Profit of the plan; -inf without one, and where it does not reach the throughput."""
        return -math.inf if self.score is None or not self.feasible else self.score.profit


def evolved(
    problem: Problem,
    conditions: Conditions,
    settings: GeneticSettings | None = None,
    *,
    current: Deployment | None = None,
    adapting: bool = False,
    least: float | None = None,
) -> Evolved:
    """Return a plan with a high profit (4.8) of those whose relative throughput (4.7) is at least `least`.

    current: plan in force, which fixes the instances of fixed operators. adapting: changes to it are penalised, and profit
    is that of the time ahead (`offers.coming`). least: the goal's throughput if None. Raises InputError for conditions of
    several instants.
    """
    import pygad

    settings = settings or GeneticSettings()
    least = problem.goal.throughput if least is None else least
    began = time.monotonic()
    adapting = adapting and current is not None
    every = offers(problem, conditions, ahead=coming(problem, conditions) if adapting else None)
    genes = Genes(problem, conditions, every, least, current)
    if not genes.positions:
        return Evolved(None, None, False, 0, 0, False, time.monotonic() - began)
    chance = np.random.default_rng(settings.seed)
    start = genes.encoded(current) if adapting and current is not None else None
    fitness = Fitness(problem, conditions, genes, least, start)

    def bred(offspring: Integers, _: Any) -> Integers:
        genes.mutate(offspring, chance)
        return offspring

    def after(ga: Any) -> str | None:
        return "stop" if ga.generations_completed - fitness.gained >= settings.patience else None

    elite = max(1, round(ELITE * settings.population))
    search = pygad.GA(
        num_generations=settings.generations,
        num_parents_mating=settings.population,
        initial_population=_first(genes, start, settings.population, chance),
        gene_type=int,
        fitness_func=lambda ga, plan, index: 0.0,
        parent_selection_type="rank",
        keep_elitism=elite,
        crossover_type="uniform",
        mutation_type=bred,
        on_generation=after,
        stop_criteria=f"time_{settings.seconds}" if math.isfinite(settings.seconds) else None,
        random_seed=settings.seed,
        suppress_warnings=True,
    )
    # Of a population at a time, and anew of those that are kept: the penalty grows as they survive.
    search.cal_pop_fitness = lambda: fitness.of(search.population, search.generations_completed + 1)
    search.run()
    plan = genes.decoded(fitness.best)
    return Evolved(
        plan,
        score(problem, plan, conditions),
        fitness.missing <= ROUNDING,
        0 if start is None else int((fitness.best != start).sum()),
        search.generations_completed,
        search.generations_completed < min(settings.generations, fitness.gained + settings.patience),
        time.monotonic() - began,
    )


def _first(genes: Genes, start: Integers | None, population: int, chance: np.random.Generator) -> Integers:
    """The first population: random plans, and where there is one in force, that and what descends from it: mutations, and
    as many that are made to fit first."""
    kept = 0 if start is None else max(1, int(MUTATED * population))
    found = np.array([genes.random(chance) for _ in range(population - kept)]).reshape(-1, genes.length)
    if start is None:
        return found
    descended = np.array([genes.fitted(start, chance) if number % 2 else start for number in range(kept)])
    genes.mutate(descended[1:], chance)
    return np.concatenate((found, descended))


class Fitness:
    """Profit less penalties, of a whole population; where a plan is in force (`start`), profit of a period like what is
    coming. change: profit that a change to it takes away. best: the best plan seen; missing: what it lacks of the
    throughput; gained: after how many generations it was last better by a `GAIN`."""

    def __init__(
        self, problem: Problem, conditions: Conditions, genes: Genes, least: float, start: Integers | None
    ) -> None:
        self.problem, self.conditions, self.genes = problem, conditions, genes
        self.least, self.start = least, start
        # Row -1 is no host.
        self.costs: Floats = np.array([*(each.cost for each in genes.every), 0.0])
        self.speeds: Floats = np.array([*(each.speed for each in genes.every), 0.0])
        self.cores: Floats = np.array([*(each.type.cores for each in genes.every), 0.0])
        nothing = Deployment((), (), np.zeros((0, genes.operators), dtype=np.int64))
        self.spent = cost_of(problem, nothing, conditions) if start is None else 0.0
        dear = [each.cost for each in genes.every if each.cost > ROUNDING]
        self.change = WORTH * max(GAIN, problem.line.sigma * min(dear, default=0.0))
        self.linked = self._links_limit()
        self._worth()
        self.best: Integers = np.zeros(genes.length, dtype=np.int64)
        self.missing = math.inf
        self.gained = 0
        self._gain, self._counted = -math.inf, (math.inf, -math.inf)

    def _worth(self) -> None:
        """Profit as a sum: of the first options at no cost, of each other option, and of each unit of money."""
        problem, count = self.problem, self.genes.operators
        first = [0] * count
        start = value_of(problem, first)
        self.base = self._profit_of(start, self.spent)
        free = self._profit_of(start, 0.0)
        self.gains = np.zeros((count, int(self.genes.options.max())))
        for row, options in enumerate(problem.options):
            for a in range(len(options)):
                value = value_of(problem, [*first[:row], a, *first[row + 1 :]])
                self.gains[row, a] = self._profit_of(value, 0.0) - free

    def _profit_of(self, value: float, cost: float) -> float:
        if self.start is not None:
            return self.problem.line.profit(value, cost)
        return profit_of(self.problem, self.conditions, value, cost)

    def _links_limit(self) -> bool:
        """Whether links may limit a plan, a single pair of hosts all of an edge: then each plan is looked at by itself."""
        problem, bandwidth = self.problem, self.conditions.bandwidth
        rated = [each.type.bandwidth for each in self.genes.every if each.type.bandwidth is not None]
        slowest = min([*rated, *(float(each.min()) for each in bandwidth.values())], default=math.inf)
        most = np.array([max(option.selectivity for option in options) for options in problem.options])
        rates = possible_rates(problem, self.conditions, most[:, None])[:, 0] * most * np.nan_to_num(problem.record_bytes)
        sends = rates[problem.edges[:, 0]] * problem.parts
        return not problem.shared and bool((sends > slowest).any())

    def of(self, population: NDArray[Any], iteration: int) -> Floats:
        """Fitness of each chromosome (4.8, less the penalty of p. 79); shape (plans,). The best one is kept."""
        plans = np.asarray(population, dtype=np.int64)
        missing, profit = self._missing(plans), self._profit(plans)
        changes = np.zeros(len(plans)) if self.start is None else (plans != self.start).sum(axis=1)
        self._keep(plans, missing, profit - self.change * changes, iteration)
        # Printed with a plus before the changes, which would reward them.
        found: Floats = profit - (SHORTFALL * missing + self.change * changes / AGED) * iteration
        return found

    def _profit(self, plans: Integers) -> Floats:
        offer, _ = self.genes.hosts(plans)
        count = self.genes.operators
        gained = self.gains[np.arange(count), plans[:, :count]].sum(axis=1)
        found: Floats = self.base + gained - self.problem.line.sigma * self.costs[offer].sum(axis=1)
        return found

    def _missing(self, plans: Integers) -> Floats:
        """By how much each plan misses the throughput; of one without an instance of each operator, with another number
        where that is fixed, or with too few hosts, 1 for each of these besides."""
        problem, count = self.problem, self.genes.operators
        offer, held = self.genes.hosts(plans)
        costs, selectivities = selected(problem, plans[:, :count].T)
        if problem.shared:
            capacity = np.broadcast_to(self._shared_cores(offer), costs.shape)
            lacking = np.zeros(len(plans))
        else:
            work = np.einsum("nh,nhp->pn", self.speeds[offer], held, optimize=True)
            capacity = np.where(problem.placed[:, None], work * problem.per_instance[:, None], np.inf)
            instances, fixed = held.sum(axis=1), self.genes.fixed
            wrong = np.where(fixed >= 0, instances != fixed, instances == 0)
            lacking = wrong[:, self.genes.rows].sum(axis=1).astype(np.float64)
        possible = possible_rates(problem, self.conditions, selectivities)
        found = reached(problem, self.conditions, costs, selectivities, capacity, possible)
        if self.linked:
            for row in np.flatnonzero(found >= self.least - ROUNDING).tolist():
                found[row] = self._linked(plans[row], capacity[:, row])
        hosts = (offer >= 0).sum(axis=1)
        lacking += np.maximum(0, problem.min_hosts - hosts)
        total: Floats = np.maximum(0.0, self.least - found - ROUNDING) + lacking
        return total

    def _shared_cores(self, offer: Integers) -> Floats:
        """Cores of speed 1 that all operators share, of each plan; all as slow as the slowest where they wait for it."""
        speeds, cores = self.speeds[offer], self.cores[offer]
        if self.problem.equal:
            slowest = np.where(speeds > 0, speeds, np.inf).min(axis=1, initial=np.inf)
            speeds = np.minimum(speeds, slowest[:, None])
        found: Floats = (speeds * cores).sum(axis=1)
        return found

    def _linked(self, plan: Integers, capacity: Floats) -> float:
        """Throughput of one plan with its links."""
        deployment = self.genes.decoded(plan)
        links = limits(self.problem, deployment, self.conditions)
        return float(throughput(self.problem, deployment.active, capacity, self.conditions, links).application[0])

    def _keep(self, plans: Integers, missing: Floats, gains: Floats, iteration: int) -> None:
        """The best plan so far: of those that miss least, the one that gains most."""
        least = float(missing.min())
        if least > self.missing:
            return
        row = int(np.where(missing <= least, gains, -np.inf).argmax())
        if least < self.missing or gains[row] > self._gain:
            self.best, self.missing, self._gain = plans[row].copy(), least, float(gains[row])
        if self.missing < self._counted[0] - GAIN or (self.missing <= ROUNDING and self._gain > self._counted[1] + GAIN):
            self.gained, self._counted = iteration - 1, (self.missing, self._gain)
