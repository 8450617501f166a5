"""Cells of the experiment: one load under one price, target and host start, and a run of one policy in it."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from elastream.core.frames import Floats
from elastream.core.hosts import Billing, HostType, Lease
from elastream.core.plant import Policy
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate
from elastream.documents.registry import POLICY, made, named_in
from elastream.documents.user_code import References
from elastream.evaluation.compare import compare, scene_of
from elastream.evaluation.comparison import Bound, Comparison, Peak, Trial
from elastream.evaluation.policies.loads import (
    HOUR_S,
    KINDS,
    LONG_NOISE,
    NOISE,
    ONE_BURST,
    ONE_STEP,
    WORK_S,
    Course,
    day_of,
    generated,
)
from elastream.evaluation.trials import tried
from elastream.settings import SimulateSettings

OURS = "horizon"
RIVALS = (
    "threshold", "btu", "plasticc", "ds2", "hpa", "flink", "databricks", "dra", "ewma", "daedalus", "contune",
)  # fmt: skip
ARMS = (OURS, *RIVALS)
# They read the tasks or durations of micro-batches, which operators with queues of their own have not.
OF_BATCHES = ("databricks", "dra", "ewma")
PRICES: Mapping[str, Billing] = {
    "by the second": Billing(1.0),
    "by the minute": Billing(60.0, 600.0),  # ten minutes at least
    "by the hour": Billing(3600.0),
}
TARGETS_S, STARTS_S = (30.0, 5.0, 300.0), (60.0, 15.0)
SEEDS = 5
IN_TIME = 0.99
# Seconds between plans.
PERIOD_S = 15.0
# Most hosts, as a multiple of those that the load's peak fills.
MOST = 2.0
# Cores that an instance reserves, unchained.
INSTANCE_CORES = 0.5
HOURS, LONG_HOURS, QUICK_HOURS = 6.0, 48.0, 2.0
QUICK_KINDS = (ONE_STEP, ONE_BURST, "bursts", NOISE)


@dataclass(frozen=True, slots=True)
class Cell:
    """Conditions of a comparison.

    Attributes:
        load: Kind of a generated load, or the file of a recorded one.
        price: Way of billing, a key of `PRICES`.
        target: Target latency (seconds).
        start: Seconds that a host takes to start.
        hours: Length of a generated load; 0 for a recorded one.
    """

    load: str
    seed: int
    chained: bool
    price: str
    target: float
    start: float
    hours: float

    def __str__(self) -> str:
        chained = "chained" if self.chained else "unchained"
        return f"{short(self.load)}, seed {self.seed}, {chained}, {self.price}, {self.target:g} s, start {self.start:g} s"

    @property
    def course(self) -> Course:
        return generated(self.load, self.seed, self.hours) if self.hours else day_of(self.load, self.seed)

    @property
    def arms(self) -> Sequence[str]:
        if self.load == LONG_NOISE:
            return (OURS,)
        return ARMS if self.chained else [arm for arm in ARMS if arm not in OF_BATCHES]

    @property
    def host(self) -> HostType:
        billing = PRICES[self.price]
        return HostType("small", 1.0, price=billing.unit / HOUR_S, billing=billing, start=self.start)


@dataclass(frozen=True, slots=True)
class Case:
    cell: Cell
    arm: str

    def __str__(self) -> str:
        return f"{self.cell}: {self.arm}"


def short(load: str) -> str:
    """Return the name of a load, without the folder and options of a recorded one."""
    return load.rpartition("/")[2].partition(":")[0]


def grid(recorded: Sequence[str], *, quick: bool = False, sample: int | None = None) -> list[Cell]:
    if quick:
        cells = [Cell(load, 0, True, "by the second", 30.0, 60.0, QUICK_HOURS) for load in QUICK_KINDS]
    else:
        lengths = {**dict.fromkeys(KINDS, HOURS), LONG_NOISE: LONG_HOURS, **dict.fromkeys(recorded, 0.0)}
        cells = [
            Cell(load, seed, chained, price, target, start, lengths[load])
            for load, seed, chained, price, target, start in product(
                lengths, range(SEEDS), (True, False), PRICES, TARGETS_S, STARTS_S
            )
        ]
    return cells if sample is None else random.Random(0).sample(cells, min(sample, len(cells)))


def run_case(case: Case) -> dict[str, Any]:
    """Run a policy; return its figures, and for ours also those of the load and of what is compared with it."""
    cell, course = case.cell, case.cell.course
    policy: Policy = made(POLICY, *named_in(case.arm, POLICY), References())
    graph, settings = dataflow(course), settings_of(cell, course, bound=case.arm == OURS and len(cell.arms) > 1)
    if not settings.bound:
        scene, _ = scene_of(graph, {case.arm: policy}, settings)
        return {"arm": figures_of(tried(scene, case.arm, policy, lambda _: None), cell, course)}
    comparison = compare(graph, {case.arm: policy}, settings)
    (trial,) = comparison.trials
    return {"arm": figures_of(trial, cell, course), **_baselines(comparison, trial)}


def gathered(cells: Sequence[Cell], results: Mapping[Case, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row a cell: its conditions, what is compared with, and the figures of each policy."""
    rows = []
    for cell in cells:
        of_cell = {arm: results[Case(cell, arm)] for arm in cell.arms}
        yardsticks = {name: value for name, value in of_cell[OURS].items() if name != "arm"}
        policies = {arm: result["arm"] for arm, result in of_cell.items()}
        rows.append({**asdict(cell), "fill": cell.course.fill, **yardsticks, "policies": policies})
    return rows


def figures_of(trial: Trial, cell: Cell, course: Course) -> dict[str, Any]:
    series, ledger = trial.result.series, trial.result.ledger
    figures: dict[str, Any] = {
        "cost": trial.cost,
        "in time": in_time(trial, course),
        "in time from the start": trial.compliance or 0.0,
        "mean hosts": trial.mean_hosts,
        "leases": trial.result.leases,
        "leases after the first hour": sum(each.since > HOUR_S for each in ledger),
    }
    if course.jump is not None and cell.load == ONE_STEP:
        figures |= actions_after(course.jump[0], ledger)
    if course.jump is not None and cell.load == ONE_BURST:
        figures |= lateness(series, course, cell)
    return figures


def in_time(trial: Trial, course: Course) -> float:
    """Return the part of the records in time after the first hour; those that wait at the end and are late are not."""
    series = trial.result.series
    judged = (series[:, 0] > HOUR_S) & ~np.isnan(series[:, 5]) & (series[:, 6] > 0)
    if not judged.any():
        return 0.0
    share = min(1.0, float(np.average(series[judged, 5], weights=series[judged, 6])))
    total, first = course.pattern.period_total, course.pattern.count(HOUR_S)
    return share * (1 - min(1.0, trial.overdue * total / max(total - first, 1.0)))


def actions_after(time: float, ledger: Sequence[Lease]) -> dict[str, int]:
    return {
        "rounds up": _rounds([each.since for each in ledger if each.since >= time]),
        "rounds down": _rounds([each.until for each in ledger if each.until is not None and each.until >= time]),
    }


def _rounds(times: Sequence[float]) -> int:
    ordered = np.sort(np.array(times))
    return int((np.diff(ordered) > PERIOD_S + 1).sum()) + 1 if ordered.size else 0


def lateness(series: Floats, course: Course, cell: Cell) -> dict[str, float]:
    """Return the seconds from the burst's begin to the last late record, and the fewest possible, by a fluid model.

    The fewest: as many hosts as there may be are requested in the first round after the burst begins.
    """
    assert course.jump is not None
    begin, _ = course.jump
    late = (series[:, 0] > begin) & (series[:, 5] < 1 - 1e-9) & (series[:, 6] > 0)
    last = float(series[late, 0].max()) - begin if late.any() else 0.0
    rate = course.pattern.rate(begin)
    before = series[series[:, 0] <= begin]
    has = float(before[-1, 2]) / WORK_S if len(before) else 0.0
    most = most_hosts(course) / WORK_S
    ready = PERIOD_S * (math.floor(begin / PERIOD_S) + 1) - begin + cell.start
    works_off = ((most - has) * ready / rate - cell.target) / (most / rate - 1)
    return {"late until, s": last, "at best, s": max(ready, works_off)}


def most_hosts(course: Course) -> int:
    return max(2, math.ceil(MOST * course.peak * WORK_S))


def _baselines(comparison: Comparison, trial: Trial) -> dict[str, Any]:
    constant, bound = comparison.peak, comparison.bound
    return {
        "constant": {"hosts": constant.hosts, "cost": constant.cost} if isinstance(constant, Peak) else None,
        "bound": {"cost": bound.cost, "whole hosts": bound.whole} if isinstance(bound, Bound) else str(bound),
        "over bound": None if math.isnan(over := comparison.over_bound(trial)) else over,
    }


def _same(row: str) -> str:
    return row


def dataflow(course: Course) -> Graph:
    """Return a dataflow of one operator that the load passes."""
    flow = Dataflow("policies")
    work = Alternate("work", _same, cost=WORK_S)
    flow.source(None, load=course.pattern).map([work], returns="row string", cores=INSTANCE_CORES).sink(None)
    return flow.graph


def settings_of(cell: Cell, course: Course, *, bound: bool) -> SimulateSettings:
    return SimulateSettings(
        host_types=[cell.host], fused=cell.chained, target_latency=cell.target, target=IN_TIME, period=PERIOD_S,
        max_hosts=most_hosts(course), bound=bound, show=False,
    )  # fmt: skip
