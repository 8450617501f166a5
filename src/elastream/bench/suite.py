"""A suite of the benchmark: workloads under arms, in random order, as a table, a page and figures."""

import os
import platform
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyspark

from elastream.bench.arms import DYNAMIC_ALLOCATION, Arm
from elastream.bench.kafka import sending_rate
from elastream.bench.runs import IN_TIME, Groups, Outcome, Setup, run
from elastream.bench.workload import Workload
from elastream.errors import InputError
from elastream.evaluation.checks import MeanInterval
from elastream.evaluation.page import Page, Prose, Table
from elastream.recording.form import without_nan
from elastream.spark.dataflow.kafka import check_servers
from elastream.units import format_rate

MEASURED_EVENTS, SENT_EVENTS = 100_000, 20_000

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Suite:
    """Workloads in sessions, under arms, in rounds. `sessions`: groups of workloads that share one."""

    setup: Setup
    sessions: Sequence[Groups]
    arms: Sequence[Arm]
    rounds: int = 1
    seed: int = 1

    @property
    def workloads(self) -> Sequence[Workload]:
        return [workload for groups in self.sessions for group in groups for workload in group]

    @property
    def runs(self) -> list[tuple[Groups, Arm]]:
        """Return all runs, each round in a random order."""
        order = random.Random(self.seed)
        pairs = [(groups, arm) for groups in self.sessions for arm in self.arms]
        return [pair for _ in range(self.rounds) for pair in order.sample(pairs, len(pairs))]

    def run(self, tell: Tell) -> list[Outcome]:
        outcomes: list[Outcome] = []
        total = len(self.workloads) * len(self.arms) * self.rounds
        for groups, arm in self.runs:
            outcomes += run(self.setup, groups, arm, partial(_tell, tell, arm, len(outcomes), total))
        return outcomes


def _tell(tell: Tell, arm: Arm, done: int, total: int, text: str) -> None:
    tell(f"{arm.name}: {text}", done, total)


def highest_rate(workload: Workload) -> float:
    """Return the highest rate of a workload's load (events/s)."""
    return max(max(piece.first, piece.last) for piece in workload.load.pieces)


def check(workloads: Sequence[Workload], kafka: str = "") -> None:
    """Check that this machine can run workloads.

    Raises:
        EnvironmentProblem: This PySpark lacks what a workload needs, or no broker answers.
        InputError: Events cannot be made as fast as they fall due, or a server is not host:port.
    """
    for workload in workloads:
        workload.check()
    if kafka:
        check_servers(kafka, "Kafka broker")
    rate, cores = max(map(highest_rate, workloads)), os.cpu_count() or 1
    if kafka:
        most, who = sending_rate(kafka, workloads[0].make(SENT_EVENTS)), "one producer for Kafka sends: it sends"
    else:
        since, who = time.process_time(), f"this machine can make: its {cores} cores make"
        deque(workloads[0].make(MEASURED_EVENTS), maxlen=0)
        most = cores * MEASURED_EVENTS / max(time.process_time() - since, 1e-9)
    if rate > most:
        raise InputError(f"a rate of {format_rate(rate)} is more than {who} {format_rate(most)}")


COLUMNS = (
    "workload",
    "arm",
    "events/s",
    "p50, s",
    "p99, s",
    "in time",
    "host-seconds",
    "cost",
    "longest batch, s",
    "state, MB",
    "rows",
    "answers",
)


def table_of(outcomes: Sequence[Outcome], target: float) -> Table:
    """Return the figures by query and arm: medians over rounds."""
    pairs = sorted({(each.workload, each.arm) for each in outcomes}, key=_order)
    groups = [[each for each in outcomes if (each.workload, each.arm) == pair] for pair in pairs]
    rows = tuple(_row(group, target) for group in groups)
    good = tuple(False if any(each.correct is False for each in group) else None for group in groups)
    return Table(f"Latency from an event's due time to its commit; in time within {target:g} s", COLUMNS, rows, good)


def _order(pair: tuple[str, str]) -> tuple[str, int, str]:
    """Return a key that sorts q2 before q10."""
    letters = pair[0].rstrip("0123456789")
    return letters, int(pair[0][len(letters) :] or 0), pair[1]


def _row(group: Sequence[Outcome], target: float) -> tuple[str, ...]:
    own = group[0].target

    def median(figure: Callable[[Outcome], float]) -> float:
        return statistics.median(map(figure, group))

    return (
        group[0].workload + (f" (within {own:g} s)" if own not in (0.0, target) else ""),
        group[0].arm,
        f"{median(lambda each: each.service.throughput):,.0f}",
        f"{median(lambda each: each.service.p50):.2f}",
        f"{median(lambda each: each.service.p99):.2f}",
        f"{median(lambda each: each.service.in_time):.1%}",
        f"{median(lambda each: each.host_seconds):.0f}",
        f"{median(lambda each: each.cost):g}",
        f"{median(lambda each: each.service.longest_batch):.1f}",
        f"{median(lambda each: each.service.state_bytes) / 1e6:.1f}",
        f"{group[-1].rows:,}",
        _verdict(group),
    )


def _verdict(group: Sequence[Outcome]) -> str:
    if any(each.correct is False for each in group):
        return "WRONG"
    if any(each.correct is None for each in group):
        return "incomplete"
    return "correct" if any(each.rows for each in group) else "no rows"


def against(outcomes: Sequence[Outcome]) -> Table | None:
    """Compare each arm that scales with the best fixed arm and with the others, round by round; None if there is none.

    The best fixed arm is the smallest that had 99 % of the events in time in its median round.
    """
    runs: dict[tuple[str, str], list[Outcome]] = {}
    for each in outcomes:
        runs.setdefault((each.workload, each.arm), []).append(each)
    rows, good = [], []
    for (workload, arm), ours in sorted(runs.items(), key=lambda item: _order(item[0])):
        if arm.startswith("fixed"):
            continue
        fixed = {name: each for (of, name), each in runs.items() if of == workload and name.startswith("fixed")}
        holding = [
            name for name, each in fixed.items() if statistics.median(run.service.in_time for run in each) >= IN_TIME
        ]
        best = min(holding or fixed, key=lambda name: (1 if holding else -1) * int(name.partition(":")[2]), default=None)
        for other in dict.fromkeys([best, *(name for of, name in runs if of == workload and name not in (arm, *fixed))]):
            if other is None or (not other.startswith("fixed") and other < arm):
                continue  # the other has that row
            pairs = list(zip(ours, runs[workload, other], strict=False))
            time = MeanInterval.of([a.host_seconds / b.host_seconds for a, b in pairs if b.host_seconds])
            rate = MeanInterval.of([a.service.throughput / b.service.throughput for a, b in pairs if b.service.throughput])
            share = MeanInterval.of([100 * (a.service.in_time - b.service.in_time) for a, b in pairs])
            signs = {time.at_most(1.0), share.at_least(0.0)}
            verdict = "better" if signs == {True} else "worse" if signs == {False} else "undecided"
            kind = f"{other}, best fixed" if other == best and holding else other
            rows.append((workload, arm, kind, time.shown(2), share.shown(1), rate.shown(3), str(time.runs), verdict))
            good.append({"better": True, "worse": False}.get(verdict))
    header = (
        "workload",
        "arm",
        "against",
        "host-seconds, ratio",
        "in time, points more",
        "events/s, ratio",
        "rounds",
        "verdict",
    )
    caption = "Arms with Autopilot or dynamic allocation against others, in the same rounds: mean and 95 % interval"
    return Table(caption, header, tuple(rows), tuple(good)) if rows else None


def conditions(suite: Suite, shape: str, more: Mapping[str, object]) -> Mapping[str, Any]:
    """Return the conditions of the runs, with `more`, and facts about the machine."""
    load, cluster = suite.workloads[0].load, suite.setup.cluster
    host = cluster.host
    return {
        "load": f"{shape}, {load.count(load.seconds):,} events in {load.seconds:g} s",
        "highest rate": format_rate(highest_rate(suite.workloads[0])),
        **more,
        "seed": suite.seed,
        "target latency, s": suite.setup.target_latency,
        "executors": f"at most {cluster.max_hosts} of {host.cores:g} cores and {host.memory:g} MB",
        "cluster": cluster.master or "local hosts",
        "events": f"through Kafka at {suite.setup.kafka}" if suite.setup.kafka else "made where they are read",
        "state partitions": cluster.partitions,
        "killed hosts": suite.setup.kills,
        "scaled out and in": suite.setup.scales,
        "queries that run together": max(len(group) for groups in suite.sessions for group in groups),
        **({"dynamic allocation": _short(DYNAMIC_ALLOCATION)} if any(arm.dynamic for arm in suite.arms) else {}),
        "rounds": suite.rounds,
        "spark": pyspark.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load of the machine": round(os.getloadavg()[0], 2),
    }


def _short(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name.rpartition('dynamicAllocation.')[2]}={value}" for name, value in settings.items())


def page_of(title: str, outcomes: Sequence[Outcome], suite: Suite, facts: Mapping[str, Any]) -> Page:
    workloads = tuple((each.name, *each.facts) for each in suite.workloads)
    remarks = tuple(Prose(f"{each.workload} under {each.arm}: {each.remark}.") for each in outcomes if each.remark)
    return Page(
        title,
        (
            table_of(outcomes, suite.setup.target_latency),
            *remarks,
            *([compared] if (compared := against(outcomes)) else []),
            Table("Workloads", ("workload", "rows", "state", "limits of Spark"), workloads),
            conditions_table(facts),
        ),
    )


def conditions_table(facts: Mapping[str, Any]) -> Table:
    return Table("Conditions", ("condition", "value"), tuple((name, str(value)) for name, value in facts.items()))


def figures_of(outcomes: Sequence[Outcome], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"conditions": dict(facts), "runs": [run_figures(each) for each in outcomes]}


def run_figures(outcome: Outcome) -> dict[str, Any]:
    service = {**asdict(outcome.service), "throughput": outcome.service.throughput}
    figures: dict[str, Any] = without_nan({**asdict(outcome), "service": service})
    return figures
