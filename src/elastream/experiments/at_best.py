"""What a run could leave at about the most: hosts of the mean speed, paid by the second, that process all that comes.

No policy of whole hosts and whole hours gets there. How far it is away tells how much two policies can differ at all.
"""

from collections.abc import Iterator

import numpy as np

from elastream.experiments.deployed import Site, problem_at
from elastream.experiments.ec2 import INSTANT, RUN
from elastream.model.observation import Floats
from elastream.planning.scheduling.greedy import with_option
from elastream.planning.scheduling.packing import power, rate_of
from elastream.planning.scheduling.problem import HOUR, Problem, value_of

__all__ = ["at_best"]


def at_best(site: Site) -> tuple[float, float, float]:
    """(profit, value, money) of a run in which every instant has the alternates that leave most (4.8), and just the cores
    that these work."""
    problem, _ = problem_at(site)
    trace = site.settings.speed_trace
    speed = 1.0 if trace is None else float(trace.factors.mean())
    price = min(rate_of(kind) / power(kind) for kind in problem.types) / speed
    starts = np.arange(round(RUN / INSTANT)) * INSTANT
    values, money = [], 0.0
    active = [int(np.argmax([option.value for option in options])) for options in problem.options]
    for start in starts.tolist():
        rates = np.zeros(len(problem.operators))
        for row in problem.sources.tolist():
            load = site.loads[problem.operators[row]]
            rates[row] = (load.count(start + INSTANT) - load.count(start)) / INSTANT
        active = _best(problem, rates, price, active)
        values.append(value_of(problem, active))
        money += _work(problem, rates, active) * price * INSTANT / HOUR
    value = float(np.mean(values))
    return problem.line.profit(value, money), value, money


def _work(problem: Problem, rates: Floats, active: list[int]) -> float:
    """Cores of speed 1 that all operators work."""
    return float(problem.network.unlimited(rates, problem.selectivities(active)) @ problem.costs(active))


def _best(problem: Problem, rates: Floats, price: float, active: list[int]) -> list[int]:
    """The alternates whose value, less what their cores cost for the period, is highest: one after the other is tried
    until none is better."""

    def worth(each: list[int]) -> float:
        hourly = _work(problem, rates, each) * price
        return value_of(problem, each) - problem.line.sigma * hourly * problem.goal.period / HOUR

    def others() -> Iterator[list[int]]:
        for row, options in enumerate(problem.options):
            yield from (with_option(active, row, option) for option in range(len(options)) if option != active[row])

    best = worth(active)
    while (found := max(others(), key=worth, default=None)) is not None and (reached := worth(found)) > best + 1e-12:
        active, best = found, reached
    return active
