"""The thesis's four planning algorithms, for first deployments and as policies."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from elastream.core.plant import Policy
from elastream.documents.registry import POLICY, made
from elastream.documents.user_code import References
from elastream.policies.value_cost.greedy import deployed
from elastream.policies.value_cost.problem import Conditions, Deployment, Goal, Problem, Score, score

# first plan: all generations, within a minute (thesis: up to a thousand seconds)
FIRST: Mapping[str, Any] = {"generations": 2000, "patience": 2000, "seconds": 60.0}
# Each of a run's 144 rounds, from the plan in force. An idle machine never meets the time box, so runs are reproducible.
ROUND: Mapping[str, Any] = {"population": 40, "generations": 60, "seconds": 30.0}


class FoundPlan(NamedTuple):
    """A plan and its promised results."""

    deployment: Deployment
    score: Score


def searched(algorithm: str, problem: Problem, conditions: Conditions, seconds: float) -> tuple[FoundPlan, float]:
    """Return (first deployment by `algorithm`, bound of the profit or NaN). seconds: of the exact model, at most."""
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
    """Return the parameters of a policy for this goal."""
    return {
        "throughput": goal.throughput,
        "tolerance": goal.tolerance,
        "break_even_best": goal.break_even_best,
        "break_even_worst": goal.break_even_worst,
        "profit_period": goal.period,
        "over": goal.over,
    }


def policy_of(algorithm: str, goal: Goal, **more: Any) -> Policy:
    """Return the policy with this goal. more: its own parameters."""
    own = dict(ROUND) if algorithm == "genetic" else {}
    found: Policy = made(POLICY, algorithm, parameters(goal) | own | more, References(Path()))
    return found
