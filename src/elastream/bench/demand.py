"""Demand: the fewest executors that hold the service level at a load, and what Autopilot uses there.

The metric is Theodolite's (Henning, Hasselbring: "A configurable method for benchmarking scalability of cloud-native
applications", Empirical Software Engineering 27, 2022): for each load, resources are tried until the lag no longer grows.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from elastream.bench import suite
from elastream.bench.arms import Arm, arm_of
from elastream.bench.runs import BATCH_SHARE, Outcome, Setup, run
from elastream.bench.workload import Workload
from elastream.errors import InputError
from elastream.evaluation.page import Page, Table
from elastream.report.plots import Curve, Plot
from elastream.units import format_rate

GROWTH = 0.01  # of the load, that the lag may grow by
BATCHES = 4  # least number in half a load: growth of the lag is a line through three

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Demand:
    """Fewest executors at a load; None for a repetition whose most were too few."""

    rate: float
    executors: tuple[int | None, ...]
    runs: tuple[Outcome, ...]
    elastic: tuple[Outcome, ...] = ()

    @property
    def all_runs(self) -> Sequence[Outcome]:
        return *self.runs, *self.elastic

    @property
    def host_seconds(self) -> float:
        """Return the median host-seconds of the fewest executors, over the load; NaN if the most were too few."""
        needed = [f"fixed:{each}" for each in self.executors if each is not None]
        return statistics.median([each.host_seconds for each in self.runs if each.arm in needed] or [math.nan])

    @property
    def median(self) -> float | None:
        """Return the median; None if the most were too few in half of the repetitions."""
        counts = sorted(float("inf") if each is None else each for each in self.executors)
        middle = statistics.median_low(counts)
        return None if middle == float("inf") else middle


def holds(outcome: Outcome, target_latency: float) -> bool:
    """Return True if the lag does not grow and 99% of the events are in time."""
    served = outcome.service
    return served.lag_growth <= GROWTH and served.p99 <= target_latency and outcome.correct is not None


def demand(
    at: Sequence[tuple[float, Workload]], setup: Setup, up_to: int, repetitions: int, tell: Tell, *, autopilot: bool = False
) -> Sequence[Demand]:
    """Measure the demand of workloads at rising rates, by binary search. Raises InputError if a load is too short."""
    least = 2 * BATCHES * BATCH_SHARE * setup.target_latency
    for _, workload in at:
        if (seconds := workload.load.seconds) < least:
            lacks = f"a load of {seconds:g} s has too few batches to see lag grow"
            raise InputError(f"{lacks}: let it last {least:g} s or longer, or lower the target latency")
    demands, low, total = [], 1, len(at) * repetitions
    for number, (rate, workload) in enumerate(at):
        trials, elastic = [], []
        for done in range(repetitions):
            say = partial(_tell, tell, number * repetitions + done, total)
            trials.append(_trial(setup, workload, low, up_to, say))
            if autopilot:
                elastic += run(setup, [[workload]], arm_of("autopilot"), say)
        fewest = tuple(each for each, _ in trials)
        runs = tuple(outcome for _, outcomes in trials for outcome in outcomes)
        demands.append(Demand(rate, fewest, runs, tuple(elastic)))
        low = min((each for each in fewest if each is not None), default=up_to)
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
        outcomes.extend(run(setup, [[workload]], Arm(f"fixed:{executors}", executors), lambda text: tell(f"{say}: {text}")))
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
    rows = []
    for each in demands:
        middle, spread = each.median, [f"more than {up_to}" if one is None else str(one) for one in each.executors]
        shown = f"more than {up_to}" if middle is None else f"{middle:g}"
        in_cores = "-" if middle is None else f"{middle * cores:g}"
        seconds = "-" if math.isnan(each.host_seconds) else f"{each.host_seconds:.0f}"
        rows.append((format_rate(each.rate), shown, in_cores, ", ".join(spread), seconds, str(len(each.runs))))
    caption = f"Fewest executors with which lag does not grow and 99 % of the events are in time ({target_latency:g} s)"
    columns = ("load", "executors", "cores", "by repetition", "host-seconds", "runs")
    return Table(caption, columns, tuple(rows))


def runs_table(demands: Sequence[Demand], target_latency: float) -> Table:
    """Return the figures of all runs by load and arm."""
    tables = [(format_rate(each.rate), suite.table_of(each.all_runs, target_latency)) for each in demands]
    rows = tuple((f"{name} at {rate}", *rest) for rate, table in tables for name, *rest in table.rows)
    return Table(tables[0][1].caption, suite.COLUMNS, rows, tuple(mark for _, table in tables for mark in table.good))


def elastic_table(demands: Sequence[Demand], target_latency: float) -> Table | None:
    """Return what Autopilot used at each load, beside the fewest executors; None if it was not tried."""
    rows = []
    for each in demands:
        if not each.elastic:
            continue
        used = [run.host_seconds for run in each.elastic]
        executors = statistics.median(run.host_seconds / run.service.seconds for run in each.elastic if run.service.seconds)
        compliant = sum(holds(run, target_latency) for run in each.elastic)
        rows.append(
            (
                format_rate(each.rate),
                f"{executors:.2f}",
                f"{statistics.median(used):.0f}",
                "-" if math.isnan(each.host_seconds) else f"{statistics.median(used) / each.host_seconds:.2f}",
                f"{statistics.median(run.service.in_time for run in each.elastic):.1%}",
                f"{compliant} of {len(used)}",
            )
        )
    columns = ("load", "mean executors", "host-seconds", "of the fewest fixed", "in time", "held")
    return Table("Elastic demand: what Autopilot uses for the load", columns, tuple(rows)) if rows else None


def page_of(
    workload: str, demands: Sequence[Demand], tables: Sequence[Table], cores: float, facts: Mapping[str, Any]
) -> Page:
    rates = np.array([each.rate for each in demands])
    median = np.array([math.nan if each.median is None else each.median * cores for each in demands])
    curves = [Curve("fewest fixed", rates, median, 0)]
    if any(each.elastic for each in demands):
        used = [[run.host_seconds / run.service.seconds for run in each.elastic if run.service.seconds] for each in demands]
        mean = np.array([statistics.median(each or [math.nan]) * cores for each in used])
        curves.append(Curve("mean under Autopilot", rates, mean, 1))
    plot = Plot("Demand by load", "events/s", "cores", tuple(curves))
    return Page(f"Demand of {workload}", (plot, *tables, suite.conditions_table(facts)))


def figures_of(workload: str, demands: Sequence[Demand], facts: Mapping[str, Any]) -> dict[str, Any]:
    by_load = [
        {
            "rate": each.rate,
            "executors": list(each.executors),
            "host_seconds": None if math.isnan(each.host_seconds) else each.host_seconds,
            "runs": [suite.run_figures(run) for run in each.runs],
            "autopilot": [suite.run_figures(run) for run in each.elastic],
        }
        for each in demands
    ]
    return {"workload": workload, "conditions": dict(facts), "demand": by_load}
