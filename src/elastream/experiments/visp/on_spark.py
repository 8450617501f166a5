"""VISP on Spark: the manufacturing dataflow really run, `examples/manufacturing.py`, its hosts leased by billing time unit
against queue thresholds, in pairs of runs of one load.

Items are judged as in the paper, by how long they took against their operators' service levels. `SCALE` lists what was
scaled to two cores. `on_spark_page` renders the results; `experiment` is the simulated form.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from elastream.api.result import RunResult
from elastream.core.frames import Floats
from elastream.core.hosts import Billing, Lease, total_cost
from elastream.core.observation import MicroBatch
from elastream.core.plant import Policy
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.errors import ElastreamError
from elastream.experiments.applications import application
from elastream.experiments.findings import Check
from elastream.experiments.visp.bars import Statistic
from elastream.experiments.visp.experiment import LEVELS
from elastream.experiments.visp.manufacturing import PENALTY, RUN_SECONDS, TABLE_2
from elastream.loads import steps
from elastream.loads.pattern import Pattern, dues
from elastream.policies.btu import Btu
from elastream.policies.queue_threshold import QueueThreshold
from elastream.recording.directory import RunDirectory
from elastream.simulator import Settings
from elastream.simulator.result import released_early
from elastream.spark.worker.composition import latest_batch, offsets_of

UNIT, PAPERS_UNIT = 60.0, 600.0
"""Seconds of a billing time unit here, and of the paper's BTU10: its times are a tenth here, where they can be."""
MONITORING, PROVISIONING = 1.5, 6.0
QUEUE, SECOND_QUEUE = 5.0, 25.0
"""Items waiting that call for an instance, and for two (the paper: 50 and 250): the rate is an eighth of the paper's."""
STEP, QUICK_STEP = 24.0, 16.0
"""Seconds of a step of the load (the paper: 240)."""
PAIRS = 3
PAPERS_ITEMS = 1.7e6
"""Items that Table 3's penalties mean (`paper.implied_items`)."""
POLICIES: Mapping[str, Policy] = {
    "btu": Btu(scaling_threshold=QUEUE, period=MONITORING, scaling=PROVISIONING, partial_release=True),
    "threshold": QueueThreshold(upper=QUEUE, second_upper=SECOND_QUEUE),
}
PERIODS: Mapping[str, float] = {"btu": MONITORING, "threshold": PROVISIONING}
JUDGED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "parse": ("production_data", ("parse", "performance", "oee")),
    "report": ("production_data", ("parse", "performance", "oee", "report")),
    "availability_sensor": ("availability_sensor", ("filter_availability",)),
    "temperature_sensor": ("temperature_sensor", ("monitor_temperature",)),
}
"""Query: the sensor whose items it gets in order, one for each, and the operators between the two, whose service levels add
up. Of the three that follow O1 one counts: they work on parts of one item side by side, and their levels are alike."""
QUERIES = 6


@dataclass(frozen=True, slots=True)
class VispSparkRun:
    """What a run came to. late: items beyond each level. penalty: money for one. series: rows of (seconds, records/s
    offered, parse's instances, hosts)."""

    policy: str
    items: int
    late: Mapping[str, int]
    waited: float
    cost: float
    penalty: float
    leases: int
    prolongings: int
    early_releases: int
    mean_hosts: float
    restarts: int
    wrong: str
    seconds: float
    confinement: str
    series: tuple[tuple[float, ...], ...]

    def compliance(self, level: str) -> float:
        """Fraction of the items within the level."""
        return 1 - self.late[level] / self.items

    def total_cost(self, level: str) -> float:
        """What hosts cost, and a penalty for each item late at that level."""
        return self.cost + self.penalty * self.late[level]

    @property
    def metrics(self) -> dict[str, float]:
        """Figures by name, those of the simulated form's among them."""
        return {
            **{f"{level} compliance": self.compliance(level) for level in LEVELS},
            "resource cost": self.cost,
            **{f"{level} total cost": self.total_cost(level) for level in LEVELS},
            "host leases": self.leases,
            "host prolongings": self.prolongings,
            "early host releases": self.early_releases,
            "hosts (mean)": self.mean_hosts,
            "time over service level (median)": self.waited,
            "items": self.items,
            "query restarts": self.restarts,
        }


def machines(quick: bool) -> Pattern:
    """The stepwise pattern: gone through twice, or once with `quick`."""
    return steps(2, 5, 8, 5, every=QUICK_STEP if quick else STEP).repeated(1 if quick else 2)


def run_pair(quick: bool, swapped: bool) -> Iterator[VispSparkRun]:
    """Both policies under the same load, one after the other. swapped: the baseline first."""
    example = application("manufacturing")
    names = list(POLICIES)
    for name in reversed(names) if swapped else names:
        yield run_one(example, name, machines(quick))


def run_one(example: ModuleType, name: str, load: Pattern) -> VispSparkRun:
    """Run the example under one policy on a cluster of its own. Raises ElastreamError where it does not finish."""
    host = replace(example.HOST, billing=Billing(UNIT), stop=1.0)
    with tempfile.TemporaryDirectory(prefix="visp-") as made:
        folder = Path(made)
        try:
            line, results, result = example.carry_out(
                POLICIES[name], load, folder / "results", host, PERIODS[name], runs=folder / "runs", show=False
            )
        except SystemExit as error:
            raise ElastreamError(f"the run of {name}: {error}") from error
        loads = {sensor: line.load(sensor) for sensor, _ in JUDGED.values()}
        return summed_up(name, result, loads, load, example.SLACK, difference(example, line, results))


def difference(example: ModuleType, line: Any, results: Path) -> str:
    """What the example's own check finds wrong; empty where all is as it must be."""
    try:
        example.check(line, results)
    except SystemExit as error:
        return str(error)
    return ""


def summed_up(
    name: str, result: RunResult, loads: Mapping[str, ArrivalPattern], load: Pattern, slack: float, wrong: str = ""
) -> VispSparkRun:
    """The figures of a run under the `loads` of its sensors, of which `load` is the number of machines.

    slack: what the example multiplies Table 2's durations by.
    """
    recording = result.recording
    assert recording.ending is not None
    begun = {sensor: began(result.directory, sensor) - recording.header.started for sensor in loads}
    took = np.concatenate([
        times_over(
            [batch for batch in recording.batches if batch.segment == query],
            loads[sensor],
            begun[sensor],
            slack * sum(TABLE_2[operator].duration / 1000 for operator in operators),
        )
        for query, (sensor, operators) in JUDGED.items()
    ])  # fmt: skip
    ended, leases, facts = recording.ending.time, recording.hosts, recording.ending.facts
    offered = [load.rate(time - min(begun.values())) for time in recording.times]
    return VispSparkRun(
        name,
        len(took),
        {level: int((took > factor).sum()) for level, factor in LEVELS.items()},
        float(np.median(took)),
        total_cost(leases, ended),
        penalty(len(took), load.seconds),
        len(leases),
        sum(lease.units(ended) - 1 for lease in leases),
        sum(early(lease, ended) for lease in leases),
        float(np.mean(recording.leased)),
        int(facts["query runs"]) - QUERIES,
        wrong,
        ended,
        str(recording.header.environment["hosts"]),
        tuple(zip(recording.times, offered, recording.parallelism("parse"), recording.leased, strict=True)),
    )


def times_over(batches: Sequence[MicroBatch], load: ArrivalPattern, begun: float, level: float) -> Floats:
    """Of each item, in the order of coming, its time from being due to the commit of the batch that took it, over `level`.

    begun: second of the run at which the load began. A batch takes items in order: their numbers tell when they were due.
    """
    counts = np.array([batch.records for batch in batches], dtype=np.int64)
    ends = np.repeat([batch.end for batch in batches], counts)
    return np.asarray((ends - begun - dues(load, np.arange(len(ends)))) / level, dtype=np.float64)


def began(folder: Path, sensor: str) -> float:
    """Epoch second at which the load of a sensor began, from the checkpoint of its query."""
    checkpoint = RunDirectory(folder).checkpoint(sensor)
    return float(offsets_of(checkpoint, latest_batch(checkpoint, "commits"))[0]["started"])


def penalty(items: int, seconds: float) -> float:
    """Money for a late item: so that all of them, if late, cost what all of the paper's do, in billing units of a host an
    hour of the load."""
    return PENALTY * PAPERS_ITEMS / items * (seconds / UNIT) / (RUN_SECONDS / PAPERS_UNIT)


def early(lease: Lease, ended: float) -> bool:
    """Whether a host was given back early, and not because the run ended."""
    return lease.until is not None and lease.until < ended and released_early(lease, Settings().early_margin)


def tabulate(runs: Sequence[VispSparkRun]) -> dict[str, dict[str, Statistic]]:
    """Policy -> metric -> its values, in the order of pairs."""
    return {
        name: {
            metric: Statistic.of(run.metrics[metric] for run in runs if run.policy == name) for metric in runs[0].metrics
        }
        for name in POLICIES
    }


def bars(runs: Sequence[VispSparkRun]) -> tuple[Check, ...]:
    """Our bars, by pairs: of few pairs an interval is wide, and of one there is none."""
    btu, threshold = (tabulate(runs)[name] for name in POLICIES)

    def gained(metric: str, sign: float = 1.0) -> list[float]:
        pairs = zip(btu[metric].values, threshold[metric].values, strict=True)
        return [sign * (ours - theirs) for ours, theirs in pairs]

    total = "near-real-time total cost"
    wrong = [f"{run.policy}: {run.wrong}" for run in runs if run.wrong]
    released = sum(run.early_releases for run in runs if run.policy == "btu")
    restarts = sum(run.restarts for run in runs)
    return (
        Check.mean_at_least(
            "near-real-time compliance over the threshold's (points)",
            [100 * each for each in gained("near-real-time compliance")],
            0.0, "our bar; paper: 85 % against 67 % (Table 3)", digits=1,
        ),
        Check.mean_at_least(
            "near-real-time total cost below the threshold's (of it)",
            [saved / theirs for saved, theirs in zip(gained(total, -1.0), threshold[total].values, strict=True)],
            0.0, "our bar; paper: 12 % (Table 3)", digits=3,
        ),
        Check.at_most("early host releases by billing time unit, in all runs", released, 0, "our bar"),
        Check("results against the sensors' data", "; ".join(wrong) or "exact", "exact", not wrong, "our bar"),
        Check.at_most("query restarts, in all runs", restarts, 0, "our bar"),
    )  # fmt: skip
