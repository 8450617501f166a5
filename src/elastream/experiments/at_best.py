"""What a run could leave at about the most: hosts of the mean speed, paid by the second, whose instances process all that
comes.

No policy of whole hosts and whole hours gets there. How far it is away tells how much two policies can differ at all.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from elastream.core.frames import Floats
from elastream.core.hosts import HostType
from elastream.experiments.deployed import Site, problem_at
from elastream.experiments.ec2 import INSTANT, RUN
from elastream.policies.value_cost.greedy import with_option
from elastream.policies.value_cost.packing import NEARLY, rate_of
from elastream.policies.value_cost.problem import HOUR, Problem, value_of


def at_best(site: Site) -> tuple[float, float, float]:
    """(profit, value, money) of a run in which every instant has the alternates that leave most (4.8), and of each operator
    just the instances that its records need, on cores of the type that cost least for them."""
    problem, _ = problem_at(site)
    trace = site.settings.speed_trace
    speed = 1.0 if trace is None else float(trace.factors.mean())
    starts = np.arange(round(RUN / INSTANT)) * INSTANT
    values, money = [], 0.0
    active = [int(np.argmax([option.value for option in options])) for options in problem.options]
    for start in starts.tolist():
        rates = np.zeros(len(problem.operators))
        for row in problem.sources.tolist():
            load = site.loads[problem.operators[row]]
            rates[row] = (load.count(start + INSTANT) - load.count(start)) / INSTANT
        active = _best(problem, rates, speed, active)
        values.append(value_of(problem, active))
        money += _hourly(problem, rates, speed, active) * INSTANT / HOUR
    value = float(np.mean(values))
    return problem.line.profit(value, money), value, money


def _hourly(problem: Problem, rates: Floats, speed: float, active: Sequence[int]) -> float:
    """Money an hour of the instances that work `rates`, all cores being `speed` times as fast as rated."""
    works = problem.network.unlimited(rates, problem.selectivities(active)) * problem.costs(active)

    def of(kind: HostType) -> Floats:
        each = kind.speed * speed * problem.per_instance
        held = problem.cores / kind.cores * rate_of(kind)
        return np.where(problem.placed, np.maximum(1, np.ceil(works / each - NEARLY)) * held, 0.0)

    return float(np.min([of(kind) for kind in problem.types], axis=0).sum())


def _best(problem: Problem, rates: Floats, speed: float, active: list[int]) -> list[int]:
    """The alternates whose value, less what their instances cost for the period, is highest: one after the other is tried
    until none is better."""

    def worth(each: list[int]) -> float:
        money = _hourly(problem, rates, speed, each) * problem.goal.period / HOUR
        return value_of(problem, each) - problem.line.sigma * money

    def others() -> Iterator[list[int]]:
        for row, options in enumerate(problem.options):
            yield from (with_option(active, row, option) for option in range(len(options)) if option != active[row])

    best = worth(active)
    while (found := max(others(), key=worth, default=None)) is not None and (reached := worth(found)) > best + NEARLY:
        active, best = found, reached
    return active
