"""The thesis's four ways to plan, by name: for a first deployment, and as policies that adapt it."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from elastream.core.plant import Policy
from elastream.documents.registry import POLICY, made
from elastream.documents.user_code import References
from elastream.policies.value_cost.greedy import deployed
from elastream.policies.value_cost.problem import Conditions, Deployment, Goal, Problem, Score, score

FIRST: Mapping[str, Any] = {"generations": 2000, "patience": 2000, "seconds": 60.0}
"""The genetic search of a first plan: all of its generations, within a minute. The thesis's takes up to a thousand
seconds."""
ROUND: Mapping[str, Any] = {"population": 40, "generations": 60, "seconds": 30.0}
"""The genetic search in each of the 144 rounds of a run, which begins at the plan in force. The box is not met on a
machine that does nothing else, so that a run is the same every time."""


class FoundPlan(NamedTuple):
    """A plan and what it promises."""

    deployment: Deployment
    score: Score


def searched(algorithm: str, problem: Problem, conditions: Conditions, seconds: float) -> tuple[FoundPlan, float]:
    """(the first deployment by `algorithm`, the profit that none exceeds or NaN). seconds: of the exact model, at most."""
    bound = math.nan
    match algorithm:
        case "exact":
            from elastream_papers.search.proven import optimum

            best = optimum(problem, conditions, seconds=seconds)
            plan, bound = best.deployment, best.bound
        case "genetic":
            from elastream_papers.search.genetic import GeneticSettings, evolved

            plan = evolved(problem, conditions, GeneticSettings(**FIRST)).deployment
        case _:
            plan = deployed(problem, conditions, sharded=algorithm == "sh")
    assert plan is not None, f"{algorithm} found no plan"
    return FoundPlan(plan, score(problem, plan, conditions)), bound


def parameters(goal: Goal) -> dict[str, Any]:
    """The parameters of policies that say what is wanted."""
    return {
        "throughput": goal.throughput,
        "tolerance": goal.tolerance,
        "break_even_best": goal.break_even_best,
        "break_even_worst": goal.break_even_worst,
        "profit_period": goal.period,
        "over": goal.over,
    }


def policy_of(algorithm: str, goal: Goal, **more: Any) -> Policy:
    """The policy called so, with this goal. more: parameters of its own."""
    own = dict(ROUND) if algorithm == "genetic" else {}
    found: Policy = made(POLICY, algorithm, parameters(goal) | own | more, References(Path()))
    return found
