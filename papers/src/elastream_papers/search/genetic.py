"""Genetic plan search (thesis, 4.7): two strands, profit as fitness, a growing penalty.

PyGAD selects by ranks, keeps the elite and crosses over by a bit mask.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Integers
from elastream.errors import InputError
from elastream.policies.value_cost.greedy import deployed
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
from elastream_papers.search.offers import coming, offers, possible_rates, relative_throughput, selected

ELITE = 0.05  # surviving part of the population (p. 79)
# Profit lost for a throughput of 1 below the goal, times the iteration (alpha, p. 79: not given). From the second iteration
# on missing throughput costs more than its cores.
SHORTFALL = 1.0
# Least gain of a change to the plan in force, as part of the cheapest host's cost (alpha', p. 79: not given). Relative to a
# host, so that large plans do not keep useless ones.
WORTH = 0.1
AGED = 100  # iterations until a change's penalty reaches `WORTH`
GAIN = 1e-4  # least gain in profit that counts
MUTATED = 0.5  # part of the first population derived from the plan in force


@dataclass(frozen=True, slots=True)
class GeneticSettings:
    """Limits of the search.

    population: plans at a time. patience: generations without a gain. seconds: time box. Equal seeds find equal plans,
    unless it ends the search. Raises InputError for useless values.
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
    """Best plan of a search, or None.

    feasible: reaches the throughput; else the nearest plan. changes: genes that differ from the plan in force. cut: by
    the time box.
    """

    deployment: Deployment | None
    score: Score | None
    feasible: bool
    changes: int
    generations: int
    cut: bool
    seconds: float

    @property
    def profit(self) -> float:
        """Profit of the plan; -inf if none or infeasible."""
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
    """Return a plan of high profit (4.8) with a relative throughput (4.7) of at least `least`.

    current: plan in force; fixes fixed operators' instances. adapting: penalise changes, count the time ahead
    (`offers.coming`). least: default the goal's. Raises InputError for conditions of several instants.
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
    first = _first(genes, start, settings.population, chance)
    first[0] = genes.encoded(deployed(problem, conditions, current))  # CE's plan: so none worse is found

    def next_generation(offspring: Integers, _: Any) -> Integers:
        genes.mutate(offspring, chance)
        return offspring

    def after(ga: Any) -> str | None:
        return "stop" if ga.generations_completed - fitness.gained >= settings.patience else None

    elite = max(1, round(ELITE * settings.population))
    search = pygad.GA(
        num_generations=settings.generations,
        num_parents_mating=settings.population,
        initial_population=first,
        gene_type=int,
        fitness_func=lambda ga, plan, index: 0.0,
        parent_selection_type="rank",
        keep_elitism=elite,
        crossover_type="uniform",
        mutation_type=next_generation,
        on_generation=after,
        stop_criteria=f"time_{settings.seconds}" if math.isfinite(settings.seconds) else None,
        random_seed=settings.seed,
        suppress_warnings=True,
    )
    # Evaluate whole populations, survivors included: their penalty grows with each generation.
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
    """Return the first population: random plans, and descendants of the plan in force."""
    kept = 0 if start is None else max(1, int(MUTATED * population))
    found = np.array([genes.random(chance) for _ in range(population - kept)]).reshape(-1, genes.length)
    if start is None:
        return found
    descended = np.array([genes.fitted(start, chance) if number % 2 else start for number in range(kept)])
    genes.mutate(descended[1:], chance)
    return np.concatenate((found, descended))


class Fitness:
    """Profit less penalties of a population.

    change: penalty of a change to `start`, the plan in force. missing: throughput that the best plan lacks. gained:
    generation of the last gain.
    """

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
        self._set_profit_terms()
        self.best: Integers = np.zeros(genes.length, dtype=np.int64)
        self.missing = math.inf
        self.gained = 0
        self._gain, self._counted = -math.inf, (math.inf, -math.inf)

    def _set_profit_terms(self) -> None:
        """Set the profit's linear terms: options and money."""
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
        """Return True if links may limit a plan; then plans are evaluated one by one."""
        problem, bandwidth = self.problem, self.conditions.bandwidth
        rated = [each.type.bandwidth for each in self.genes.every if each.type.bandwidth is not None]
        slowest = min([*rated, *(float(each.min()) for each in bandwidth.values())], default=math.inf)
        most = np.array([max(option.selectivity for option in options) for options in problem.options])
        rates = possible_rates(problem, self.conditions, most[:, None])[:, 0] * most * np.nan_to_num(problem.record_bytes)
        sends = rates[problem.edges[:, 0]] * problem.parts
        return not problem.shared and bool((sends > slowest).any())

    def of(self, population: NDArray[Any], iteration: int) -> Floats:
        """Return the fitness of each chromosome (4.8, less the penalty of p. 79); keeps the best plan."""
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
        """Return by plan the missing throughput; each violation of instances or hosts adds 1."""
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
        found = relative_throughput(problem, self.conditions, costs, selectivities, capacity, possible)
        if self.linked:
            for row in np.flatnonzero(found >= self.least - ROUNDING).tolist():
                found[row] = self._linked(plans[row], capacity[:, row])
        hosts = (offer >= 0).sum(axis=1)
        lacking += np.maximum(0, problem.min_hosts - hosts)
        total: Floats = np.maximum(0.0, self.least - found - ROUNDING) + lacking
        return total

    def _shared_cores(self, offer: Integers) -> Floats:
        """Return shared cores (speed 1) of each plan; all as slow as the slowest if they wait for it."""
        speeds, cores = self.speeds[offer], self.cores[offer]
        if self.problem.equal:
            slowest = np.where(speeds > 0, speeds, np.inf).min(axis=1, initial=np.inf)
            speeds = np.minimum(speeds, slowest[:, None])
        found: Floats = (speeds * cores).sum(axis=1)
        return found

    def _linked(self, plan: Integers, capacity: Floats) -> float:
        deployment = self.genes.decoded(plan)
        links = limits(self.problem, deployment, self.conditions)
        return float(throughput(self.problem, deployment.active, capacity, self.conditions, links).application[0])

    def _keep(self, plans: Integers, missing: Floats, gains: Floats, iteration: int) -> None:
        least = float(missing.min())
        if least > self.missing:
            return
        row = int(np.where(missing <= least, gains, -np.inf).argmax())
        if least < self.missing or gains[row] > self._gain:
            self.best, self.missing, self._gain = plans[row].copy(), least, float(gains[row])
        if self.missing < self._counted[0] - GAIN or (self.missing <= ROUNDING and self._gain > self._counted[1] + GAIN):
            self.gained, self._counted = iteration - 1, (self.missing, self._gain)
