"""Demand: the fewest executors that hold the service level at a load.

The metric is Theodolite's (Henning, Hasselbring: "A configurable method for benchmarking scalability of cloud-native
applications", Empirical Software Engineering 27, 2022): for each load, resources are tried until the lag no longer grows.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from elastream.bench.arms import Arm
from elastream.bench.runs import Outcome, Setup, run
from elastream.bench.suite import run_figures
from elastream.bench.workload import Workload
from elastream.evaluation.page import Page, Table
from elastream.report.plots import Curve, Plot
from elastream.units import format_rate

GROWTH = 0.01  # of the load, that the lag may grow by

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Demand:
    """Fewest executors at a load, by repetition.

    Attributes:
        rate: Events per second.
        executors: Fewest executors of each repetition; None if the most were too few.
        runs: Outcomes of all trials.
    """

    rate: float
    executors: tuple[int | None, ...]
    runs: tuple[Outcome, ...]

    @property
    def median(self) -> float | None:
        """Return the median; None if the most were too few in half of the repetitions."""
        found = sorted(float("inf") if each is None else each for each in self.executors)
        middle = statistics.median_low(found)
        return None if middle == float("inf") else middle


def holds(outcome: Outcome, target_latency: float) -> bool:
    """Return True if the lag does not grow and 99 % of the events are in time."""
    served = outcome.service
    return served.lag_growth <= GROWTH and served.p99 <= target_latency and outcome.correct is not None


def demand(
    at: Sequence[tuple[float, Workload]], setup: Setup, up_to: int, repetitions: int, tell: Tell
) -> Sequence[Demand]:
    """Measure the demand of workloads at rising rates, by binary search.

    The search begins at the demand of the rate before, since demand does not fall.
    """
    demands, low, total = [], 1, len(at) * repetitions
    for number, (rate, workload) in enumerate(at):
        trials = [
            _trial(setup, workload, low, up_to, partial(_tell, tell, number * repetitions + done, total))
            for done in range(repetitions)
        ]
        found = tuple(each for each, _ in trials)
        demands.append(Demand(rate, found, tuple(outcome for _, outcomes in trials for outcome in outcomes)))
        low = min((each for each in found if each is not None), default=up_to)
    return demands


def _tell(tell: Tell, done: int, total: int, text: str) -> None:
    tell(text, done, total)


def _trial(
    setup: Setup, workload: Workload, low: int, up_to: int, tell: Callable[[str], object]
) -> tuple[int | None, Sequence[Outcome]]:
    outcomes: list[Outcome] = []

    def enough(executors: int) -> bool:
        rate = format_rate(workload.load.count(workload.load.seconds) / workload.load.seconds)
        say = f"{workload.name} at {rate}, {executors} executors"
        outcomes.append(run(setup, workload, Arm(f"fixed:{executors}", executors), lambda text: tell(f"{say}: {text}")))
        return holds(outcomes[-1], setup.target_latency)

    return fewest(enough, low, up_to), outcomes


def fewest(enough: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the smallest number from `low` to `high` that is enough, None if `high` is not, by binary search."""
    if low > high or not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return high


def table_of(demands: Sequence[Demand], cores: float, target_latency: float, up_to: int) -> Table:
    """Return the demand by load."""
    rows = []
    for each in demands:
        middle, spread = each.median, [f"more than {up_to}" if one is None else str(one) for one in each.executors]
        shown = f"more than {up_to}" if middle is None else f"{middle:g}"
        in_cores = "-" if middle is None else f"{middle * cores:g}"
        rows.append((format_rate(each.rate), shown, in_cores, ", ".join(spread), str(len(each.runs))))
    caption = f"Fewest executors with which lag does not grow and 99 % of the events are in time ({target_latency:g} s)"
    return Table(caption, ("load", "executors", "cores", "by repetition", "runs"), tuple(rows))


def page_of(workload: str, demands: Sequence[Demand], table: Table, cores: float) -> Page:
    """Return the page: the demand as a curve and a table."""
    rates = np.array([each.rate for each in demands])
    median = np.array([math.nan if each.median is None else each.median * cores for each in demands])
    plot = Plot("Demand by load", "events/s", "cores", (Curve("median", rates, median, 0),))
    return Page(f"Demand of {workload}", (plot, table))


def figures_of(workload: str, demands: Sequence[Demand]) -> dict[str, Any]:
    """Return the figures of all trials for JSON."""
    by_load = [
        {"rate": each.rate, "executors": list(each.executors), "runs": [run_figures(run) for run in each.runs]}
        for each in demands
    ]
    return {"workload": workload, "demand": by_load}
