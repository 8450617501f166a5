"""A run of queries: their session and executors, their load, and what came of it."""

import math
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import pandas as pd
from pyarrow import dataset
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from elastream.bench.arms import Arm, Cluster, Pool, Session, Spans, open_arm, wait
from elastream.bench.comparison import BATCH
from elastream.bench.kafka import producing
from elastream.bench.service import Batch, Service, batches_of, service
from elastream.bench.workload import Reading, Workload
from elastream.core.hosts import HostType
from elastream.errors import EnvironmentProblem
from elastream.spark.dataflow.sources import HOLD
from elastream.spark.jvm.driver_side import why_in_java

BATCH_SHARE = 0.4  # of the target latency: from one batch to the next
AFTER, AFTER_S = 0.5, 120.0  # of the load's length, but at least so long, for late events
AFTER_KILL_S = 60.0  # for an executor that starts again
FLUSH_TIMEOUT_S = 60.0
LOOK_S = 0.5
# Spark gives the Python process of a source 10 s to start, which may be too short on a machine under other load.
STARTS, SLOW_PYTHON = 3, "Python worker failed to connect back"
IN_TIME = 0.99  # of the events: below it, a remark says why a query is late
OUT_AT, IN_AT = 0.2, 0.8  # of the events: when a scaling run gets another host

Tell: TypeAlias = Callable[[str], object]
# Workloads of a session. Those of a group run together, and the groups one after another.
Groups: TypeAlias = Sequence[Sequence[Workload]]


@dataclass(frozen=True)
class Setup:
    """Conditions that all runs share.

    Attributes:
        target_latency: Seconds from an event's due time to its commit, for workloads without a target of their own.
        kafka: Servers of a Kafka broker that carries the events, if any.
        kills: Local hosts that are killed while the load lasts, evenly spaced.
        scales: True if Autopilot adds a host during each load, and gives it back.
    """

    cluster: Cluster
    target_latency: float = 5.0
    kills: int = 0
    kafka: str = ""
    scales: bool = False

    def target(self, workload: Workload) -> float:
        """Return the target latency of a workload (seconds)."""
        return self.target_latency if workload.target_latency is None else workload.target_latency


@dataclass(frozen=True)
class Outcome:
    """Figures of a workload in a run.

    Attributes:
        host_seconds: Time of all executors from the load's beginning, or their registration, to the last commit; of
            workloads that run together, the share of this one by the time of its tasks.
        cost: Price of their hosts, by their type's billing, with the same share.
        correct: True if the final rows are the answer's; None if events of the load were not read.
        remark: Reasons why rows are wrong or events late, or empty.
        target: Target latency (seconds).
    """

    workload: str
    arm: str
    service: Service
    host_seconds: float
    cost: float
    most_hosts: int
    correct: bool | None
    rows: int = 0
    remark: str = ""
    target: float = 0.0


@dataclass(frozen=True)
class Job:
    """A workload that runs as a query, with its files in `root`."""

    workload: Workload
    query: StreamingQuery
    root: Path
    target: float

    @property
    def control(self) -> Path:
        return self.root / "control"

    @property
    def events(self) -> int:
        load = self.workload.load
        return load.count(load.seconds)

    def begun(self) -> bool:
        """Return True if the query has had its first batch, or has ended."""
        return self.query.lastProgress is not None or not self.query.isActive

    @property
    def position(self) -> int:
        """Return the events that the query has had; one more than there are after the closing row."""
        newest = batches_of([self.query.lastProgress] if self.query.lastProgress else [], self.control)
        return newest[-1].position if newest else 0

    @property
    def batches(self) -> Sequence[Batch]:
        return batches_of(self.query.recentProgress, self.control)

    def check(self) -> None:
        if (error := self.query.exception()) is not None:
            raise EnvironmentProblem(f"{self.workload.name} failed: {why_in_java(error)}") from error

    def stop(self) -> None:
        if self.query.isActive:
            self.query.stop()


def run(setup: Setup, groups: Groups, arm: Arm, tell: Tell) -> list[Outcome]:
    """Run groups of workloads under `arm` in one session, and compare their rows with the answers.

    Raises:
        EnvironmentProblem: Spark or an executor does not start, or a query fails.
    """
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="bench-", dir=setup.cluster.folder, ignore_cleanup_errors=True)
        root = Path(stack.enter_context(folder))
        tell("starts")
        pools = pools_of(setup, groups)
        session = stack.enter_context(open_arm(setup.cluster, arm, root, kafka=bool(setup.kafka), pools=pools))
        return [outcome for group in groups for outcome in _run_group(setup, group, arm, session, root, tell)]


def pools_of(setup: Setup, groups: Groups) -> Sequence[Pool]:
    """Return a scheduler pool for each target latency of workloads that run together; a shorter target weighs more."""
    targets = sorted({setup.target(each) for group in groups if len(group) > 1 for each in group})
    return [Pool(f"{target:g} s", max(1, round(targets[-1] / target))) for target in targets]


def _run_group(
    setup: Setup, group: Sequence[Workload], arm: Arm, session: Session, root: Path, tell: Tell
) -> Sequence[Outcome]:
    names = ", ".join(workload.name for workload in group)

    def say(text: str) -> None:
        tell(f"{names}: {text}")

    with ExitStack() as stack:
        jobs = []
        for workload in group:
            jobs.append(job := _start(session, setup, workload, root / workload.name, setup.cluster.most(arm)))
            stack.callback(job.stop)
            stack.enter_context(producing(job.control))
        targets = [(job.query, job.target) for job in jobs]
        stack.enter_context(session.scaling(targets, root / f"autopilot-{group[0].name}", scripted=setup.scales))
        session.warm_up(root)
        session.settle()
        for hold in [hold for job in jobs for hold in job.control.glob(f"*/{HOLD}")]:
            hold.unlink()
        _follow(jobs, setup, session, say)
        services = [service(job.batches, job.workload.load, job.target) for job in jobs]
        shares = shares_of([session.task_seconds().get(job.query.id, 0.0) for job in jobs])
        whole = [_close(job, say) for job in jobs]
        for job in jobs:
            job.check()
            job.stop()
        outcomes = []
        for job, served, share in zip(jobs, services, shares, strict=True):
            seconds, cost, most = costs_of(session.spans, served, setup.cluster.host)
            figures = served, seconds * share, cost * share, most
            outcomes.append(Outcome(job.workload.name, arm.name, *figures, correct=None, target=job.target))
        return [
            _judge(outcome, job, session.causes, say)
            if all_read
            else replace(outcome, remark="events of the load were not read")
            for outcome, job, all_read in zip(outcomes, jobs, whole, strict=True)
        ]


def shares_of(seconds: Sequence[float]) -> Sequence[float]:
    total = math.fsum(seconds)
    return [each / total for each in seconds] if total > 0 else [1 / len(seconds)] * len(seconds)


def _start(session: Session, setup: Setup, workload: Workload, root: Path, hosts: int) -> Job:
    for _ in range(STARTS):
        job = _started(session, setup, workload, root, hosts)
        wait(job.begun, f"the first batch of {workload.name}")
        if SLOW_PYTHON not in str(job.query.exception() or ""):
            break
    job.check()
    return job


def _started(session: Session, setup: Setup, workload: Workload, root: Path, hosts: int) -> Job:
    target = setup.target(workload)
    checkpoint, out = root / "checkpoint", str(root / "out")
    reading = Reading(root / "control", checkpoint, hosts * setup.cluster.host.slots, setup.kafka)

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(f"{out}/{BATCH}={batch}")

    with session.starting(disk=workload.disk, pool=f"{target:g} s"):
        rows = workload.result(session.spark, reading)
        for control in reading.control.iterdir():
            (control / HOLD).touch()
        writer = rows.writeStream.outputMode(workload.mode).foreachBatch(write).queryName(workload.name)
        timed = writer.trigger(processingTime=trigger_interval(target))
        return Job(workload, timed.option("checkpointLocation", str(checkpoint)).start(), root, target)


def trigger_interval(target: float) -> str:
    # Spark reads no fraction of a nanosecond, such as in "2.4000000000000004 seconds".
    return f"{max(1, round(1000 * BATCH_SHARE * target))} milliseconds"


def _follow(jobs: Sequence[Job], setup: Setup, session: Session, tell: Tell) -> None:
    """Wait until all queries have had all events and the closing row, or have had their time.

    Kills and scales hosts meanwhile.
    """
    longest, target = max(job.workload.load.seconds for job in jobs), max(job.target for job in jobs)
    late = max(AFTER * longest, AFTER_S) + AFTER_KILL_S * setup.kills
    until = time.monotonic() + longest + late + 2 * target
    killed = 0
    while all(job.query.isActive for job in jobs) and time.monotonic() < until:
        done = min(job.position / job.events if job.events else math.inf for job in jobs)
        if all(job.position > job.events for job in jobs):
            return
        tell(f"{min(1.0, done):.0%} of the events")
        session.requested = 1 + (setup.scales and OUT_AT <= done < IN_AT)
        if killed < setup.kills and done >= (killed + 1) / (setup.kills + 1):
            killed += session.kill_executor()
        time.sleep(LOOK_S)


def _close(job: Job, tell: Tell) -> bool:
    """Wait for the batches that close the last windows; return False if events are missing."""
    if job.position < job.events:
        return False
    tell("closes the last windows")
    waiting = threading.Thread(target=_all_processed, args=(job.query,), daemon=True)
    waiting.start()
    waiting.join(FLUSH_TIMEOUT_S)
    return True


def _all_processed(query: StreamingQuery) -> None:
    try:
        query.processAllAvailable()
    except Exception:  # the query failed or was stopped: its own exception says why
        return


def costs_of(spans: Spans, served: Service, host: HostType) -> tuple[float, float, int]:
    """Return host-seconds, cost and most hosts at once between the load's beginning and the last commit."""
    end = served.began + served.seconds
    clipped = [(max(a, served.began), min(end if b is None else b, end)) for a, b in spans]
    leases = [(a, b) for a, b in clipped if b > a]
    steps = sorted([(a, 1) for a, _ in leases] + [(b, -1) for _, b in leases])
    at_once = most = 0
    for _, step in steps:
        at_once += step
        most = max(most, at_once)
    seconds = math.fsum(b - a for a, b in leases)
    return seconds, math.fsum(host.billing.units(b - a) * host.price for a, b in leases), most


def _judge(outcome: Outcome, job: Job, causes: Mapping[str, str], tell: Tell) -> Outcome:
    tell("compares the rows with the answer")
    difference = job.workload.difference(_read_output(job.root / "out"))
    remarks = [causes[outcome.workload]] if outcome.service.in_time < IN_TIME and outcome.workload in causes else []
    if difference:
        wrong = f"{difference.missing} rows are missing and {difference.surplus} are too many; it {difference.example}"
        remarks.append(wrong)
    return replace(outcome, correct=not difference, rows=difference.rows, remark="; ".join(remarks))


def _read_output(out: Path) -> pd.DataFrame:
    files = [file for file in out.glob("*/*.parquet") if file.stat().st_size]
    if not files:
        return pd.DataFrame()
    rows: pd.DataFrame = dataset.dataset(files, partitioning="hive", partition_base_dir=str(out)).to_table().to_pandas()
    return rows
