"""What a plan misses of what is wanted, by how much, and why: in sentences."""

import math

import numpy as np

from elastream.model.observation import Floats
from elastream.model.wording import at_most
from elastream.planning.scheduling.packing import HOUR, NEARLY, rate_of
from elastream.planning.scheduling.problem import Conditions, Deployment, Problem, capacities, limits, score, throughput

__all__ = ["loss", "missed"]


def missed(problem: Problem, wanted: Deployment, conditions: Conditions) -> tuple[str, ...]:
    """A sentence on the throughput that `wanted` does not reach; none where it is within the tolerance."""
    found, goal = score(problem, wanted, conditions), problem.goal
    if found.feasible(goal):
        return ()
    lacking = _lacking(problem, wanted, conditions)
    said = f"relative throughput {found.mean:.2f} planned, {goal.throughput - found.mean:.2f} below the goal"
    if not lacking.any():
        return (f"{said}: links between hosts let no more through",)
    total = float(lacking.max() if problem.shared else lacking.sum())
    said, why = f"{said}, for want of {total:.3g} cores of speed 1", _why(problem, wanted, lacking)
    if not why and len(wanted.hosts) >= problem.max_hosts:
        return (f"{at_most(problem.max_hosts)}, and {said}",)
    return (said + why,)


def loss(problem: Problem, wanted: Deployment, conditions: Conditions) -> tuple[str, ...]:
    """A sentence on hosts that cost more than the value of `wanted` is worth; none where there is a profit."""
    line, value = problem.line, score(problem, wanted, conditions).value
    even = (line.at_highest + (value - line.highest) / line.sigma) * HOUR / problem.goal.period
    hourly = math.fsum([rate_of(host.type) for host in wanted.hosts])
    if hourly <= even * (1 + NEARLY):
        return ()
    return (f"at a loss: the hosts cost {hourly:.3g} an hour, and a value of {value:.2f} breaks even at {even:.3g}",)


def _lacking(problem: Problem, wanted: Deployment, conditions: Conditions) -> Floats:
    """Cores of speed 1 that each operator lacks to pass on as much as the goal says; where they are shared, all
    together."""
    capacity = capacities(problem, wanted, conditions)
    flows = throughput(problem, wanted.active, capacity, conditions, limits(problem, wanted, conditions))
    need = problem.goal.throughput * (flows.possible * problem.costs(wanted.active)).mean(axis=0)
    if problem.shared:
        need = np.full_like(need, need.sum())
    found: Floats = np.maximum(need - capacity.mean(axis=0), 0.0)
    return np.where(found > NEARLY * np.maximum(need, 1.0), found, 0.0)


def _why(problem: Problem, wanted: Deployment, lacking: Floats) -> str:
    row = int(np.argmax(lacking))
    name, cores, memory = problem.operators[row], float(problem.cores[row]), float(problem.memory[row])
    if not problem.types:
        return ": there is no type of host to lease"
    holding = [kind for kind in problem.types if kind.cores >= cores - NEARLY and kind.memory >= memory - NEARLY]
    if problem.placed[row] and not holding:
        return f": no type of host has the {cores:g} cores and {memory:g} MB that an instance of {name!r} needs"
    if problem.fixed[row]:
        return f": the number of instances of {name!r} cannot be changed"
    return ""
