"""Policies that search whole plans: genetic, genetic then greedy, and exhaustive.

"Adaptive and resilient stream processing on cloud infrastructure" (Kumbhare, 2016), 4.7, 4.9 and p. 99.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from elastream.errors import InputError
from elastream.policies.value_cost.greedy import deployed, enduring
from elastream.policies.value_cost.policy import Centralised, SearchRequest, SearchResult, ValueCost, search_result
from elastream.policies.value_cost.problem import score
from elastream.units import ROUNDING
from elastream_papers.search.exhaustive import exhausted
from elastream_papers.search.genetic import GeneticSettings, evolved
from elastream_papers.search.proven import optimum


@dataclass(frozen=True)
class _Breeding(ValueCost):
    """Limits of policies that search genetically."""

    population: int = 100
    generations: int = 5000
    patience: int = 300
    seconds: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.settings  # raises for useless parameters

    @property
    def settings(self) -> GeneticSettings:
        return GeneticSettings(self.population, self.generations, self.patience, self.seconds, self.seed)


@dataclass(frozen=True)
class Genetic(_Breeding):
    """GA: a genetic search in every round (thesis, 4.7); parameters of `GeneticSettings`.

    Starts from random plans if the plan in force is far below the goal. Otherwise changes to it, and unpaid host time, cost
    profit.
    """

    name: ClassVar[str] = "genetic"

    def search(self, request: SearchRequest) -> SearchResult:
        """Return the plan bred in this round; the plan in force if no stage is due."""
        return (
            _genetic_plan(request, self.settings) if _due(request) else search_result(request, request.situation.deployment)
        )


@dataclass(frozen=True)
class Hybrid(_Breeding, Centralised):
    """Hybrid of GA and CE (thesis, p. 99): genetic first deployment, greedy adaptation."""

    name: ClassVar[str] = "hybrid"

    def search(self, request: SearchRequest) -> SearchResult:
        """Return the genetic search's plan in the first round, Algorithm 4's later."""
        return super().search(request) if request.round else _genetic_plan(request, self.settings)


@dataclass(frozen=True)
class Exhaustive(ValueCost):
    """BR: exhaustive search with pruning (thesis, p. 90), for small dataflows and low rates.

    seconds: limit of a round; then an exact model has as long, and its proof is a remark. Searches first, below the
    goal, and above it as paid time ends.
    """

    seconds: float = 30.0

    name: ClassVar[str] = "exhaustive"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seconds > 0:
            raise InputError(f"seconds is {self.seconds:g}; it must be above 0")

    def search(self, request: SearchRequest) -> SearchResult:
        """Return the best plan, with its proof if the time ends; CE's if none is feasible."""
        problem, conditions, now = request.situation.problem, request.situation.conditions, request.situation.deployment
        reached = score(problem, now, conditions).mean
        # Above the goal, a release saves nothing before its paid time ends, and the next queue would lease a host again.
        spare = reached > self.throughput + self.tolerance and bool(request.due)
        if not _due(request) or (request.round and reached >= problem.goal.lowest and not spare):
            return search_result(request, now)
        found = exhausted(problem, conditions, seconds=self.seconds, current=now)
        if found.optimal and found.deployment is not None:
            return search_result(request, found.deployment)
        proven = optimum(problem, conditions, seconds=self.seconds, current=now)
        plan = found.deployment if found.profit >= proven.profit else proven.deployment
        if plan is None:
            none = "reaches" if proven.optimal or found.optimal else "was found in time that reaches"
            said = f"no plan on the hosts that may be leased {none} the relative throughput: the greedy plan is taken"
            return _with_remark(search_result(request, deployed(problem, conditions, now)), said)
        gap = max(0.0, proven.bound - max(found.profit, proven.profit))
        said = f"not all plans were searched in {self.seconds:g} s: none has a profit more than {gap:.2g} above this one's"
        return search_result(request, plan) if proven.optimal else _with_remark(search_result(request, plan), said)


def _due(request: SearchRequest) -> bool:
    """Return True if a stage is due: a plan has both alternates and hosts."""
    return request.round == 0 or request.alternates or request.resources


def _genetic_plan(request: SearchRequest, settings: GeneticSettings) -> SearchResult:
    """Return the plan of a genetic search, from the plan in force if that is near the goal.

    As in Algorithm 4, that plan stays within the tolerance, except when a host's paid time ends.
    """
    problem, conditions, now = request.situation.problem, request.situation.conditions, request.situation.deployment
    goal, reached = problem.goal, score(problem, now, conditions).mean
    adapting, least = request.round > 0 or reached >= goal.lowest - ROUNDING, goal.throughput
    if request.round and reached > goal.lowest:
        if reached < goal.throughput + goal.tolerance and not request.due:
            return search_result(request, now)
        conditions = enduring(problem, conditions)
        least = min(least, score(problem, now, conditions).mean)
    settings = replace(settings, seed=settings.seed + request.round)
    found = evolved(problem, conditions, settings, current=now, adapting=adapting, least=least)
    result = search_result(request, now if found.deployment is None else found.deployment)
    cut = f"the search was ended by its {settings.seconds:g} s, after {found.generations} generations"
    return _with_remark(result, cut) if found.cut else result


def _with_remark(result: SearchResult, remark: str) -> SearchResult:
    return replace(result, remarks=(remark, *result.remarks))
