"""A run of one query: its session and executors, its load, and what came of it."""

import math
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import pandas as pd
from pyarrow import dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.bench.arms import SETTLING_S, Arm, Cluster, Session, Spans, open_arm, wait
from elastream.bench.comparison import BATCH
from elastream.bench.kafka import producing
from elastream.bench.service import Service, batches_of, service
from elastream.bench.workload import Reading, Workload
from elastream.core.hosts import HostType
from elastream.errors import EnvironmentProblem, first_line
from elastream.loads.pattern import Pattern
from elastream.spark.dataflow.sources import HOLD

BATCH_SHARE = 0.4  # of the target latency: from one batch to the next
AFTER = 0.5  # of the load's length, for late events
FLUSH_TIMEOUT_S = 60.0

Tell: TypeAlias = Callable[[str], object]


@dataclass(frozen=True)
class Setup:
    """Conditions that all runs share.

    Attributes:
        cluster: Where executors run.
        target_latency: Seconds from an event's due time to its commit.
        kafka: Servers of a Kafka broker that carries the events; empty: events are made where they are read.
        kills: Local hosts that are killed while the load lasts, evenly spaced.
    """

    cluster: Cluster
    target_latency: float = 5.0
    kills: int = 0
    kafka: str = ""


@dataclass(frozen=True)
class Outcome:
    """Figures of a run.

    Attributes:
        workload: Name of the workload.
        arm: Name of the arm.
        service: Throughput and latencies.
        host_seconds: Time of all executors from the load's beginning, or their registration, to the last commit.
        cost: Price of their hosts, by their type's billing.
        most_hosts: Most executors at once.
        correct: True if the final rows are the answer's; None if events of the load were not read.
        rows: Final rows.
        remark: Reason why the rows are not correct, or an empty text.
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


def run(setup: Setup, workload: Workload, arm: Arm, tell: Tell) -> Outcome:
    """Run `workload` under `arm` and compare its rows with the answer.

    Raises:
        EnvironmentProblem: Spark or an executor does not start, or the query fails.
    """
    with ExitStack() as stack:
        cluster = setup.cluster
        folder = tempfile.TemporaryDirectory(prefix="bench-", dir=cluster.folder, ignore_cleanup_errors=True)
        root = Path(stack.enter_context(folder))
        tell("starts")
        session = stack.enter_context(open_arm(cluster, arm, root, disk=workload.disk, kafka=bool(setup.kafka)))
        job = _start(session.spark, setup, workload, cluster.most(arm), root)
        control = root / "control"
        stack.enter_context(producing(control))
        stack.callback(_stop, job)
        stack.enter_context(session.scaling(job, setup.target_latency, root / "autopilot"))
        session.warm_up(root)
        wait(lambda: job.lastProgress is not None or not job.isActive, "the query's first batch")
        time.sleep(SETTLING_S)
        for hold in control.glob(f"*/{HOLD}"):
            hold.unlink()
        _follow(job, setup, workload.load, session, control, tell)
        served = service(batches_of(job.recentProgress, control), workload.load, setup.target_latency)
        costs = costs_of(session.spans, served, cluster.host)
        whole = served.events >= workload.load.count(workload.load.seconds)
        if whole:
            tell("closes the last windows")
            _flush(job)
        _fail(job, workload)
        job.stop()
        outcome = Outcome(workload.name, arm.name, served, *costs, correct=None, remark="events of the load were not read")
        if not whole:
            return outcome
        tell("compares the rows with the answer")
        return _judge(outcome, workload, root / "out")


def _start(spark: SparkSession, setup: Setup, workload: Workload, hosts: int, root: Path) -> StreamingQuery:
    batch_seconds, checkpoint, out = BATCH_SHARE * setup.target_latency, root / "checkpoint", str(root / "out")
    reading = Reading(root / "control", checkpoint, hosts * setup.cluster.host.slots, batch_seconds, setup.kafka)
    rows = workload.result(spark, reading)
    for control in reading.control.iterdir():
        (control / HOLD).touch()

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(f"{out}/{BATCH}={batch}")

    writer = rows.writeStream.outputMode(workload.mode).foreachBatch(write).queryName(workload.name)
    timed = writer.trigger(processingTime=f"{batch_seconds} seconds")
    return timed.option("checkpointLocation", str(checkpoint)).start()


def _follow(job: StreamingQuery, setup: Setup, load: Pattern, session: Session, control: Path, tell: Tell) -> None:
    """Wait until the query has had all events and the closing row, or has had its time; kill hosts on the way."""
    total, until = load.count(load.seconds), time.monotonic() + (1 + AFTER) * load.seconds + 2 * setup.target_latency
    position = killed = 0
    while job.isActive and position <= total and time.monotonic() < until:
        time.sleep(1.0)
        newest = batches_of([job.lastProgress] if job.lastProgress else [], control)
        position = newest[-1].position if newest else position
        tell(f"{min(1.0, position / total):.0%} of the events")
        if killed < setup.kills and position >= total * (killed + 1) / (setup.kills + 1):
            killed += session.kill_executor()


def _flush(job: StreamingQuery) -> None:
    """Wait for the batches without events that move the watermark past the last windows."""
    waiting = threading.Thread(target=_all_processed, args=(job,), daemon=True)
    waiting.start()
    waiting.join(FLUSH_TIMEOUT_S)


def _all_processed(job: StreamingQuery) -> None:
    try:
        job.processAllAvailable()
    except Exception:  # the query failed or was stopped: its own exception says why
        return


def _fail(job: StreamingQuery, workload: Workload) -> None:
    if (error := job.exception()) is not None:
        raise EnvironmentProblem(f"{workload.name} failed: {first_line(error)}") from error


def _stop(job: StreamingQuery) -> None:
    if job.isActive:
        job.stop()


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


def _judge(outcome: Outcome, workload: Workload, out: Path) -> Outcome:
    difference = workload.difference(_written(out))
    if not difference:
        return replace(outcome, correct=True, rows=difference.rows, remark="")
    remark = f"{difference.missing} rows are missing and {difference.surplus} are too many; it {difference.example}"
    return replace(outcome, correct=False, rows=difference.rows, remark=remark)


def _written(out: Path) -> pd.DataFrame:
    files = [file for file in out.glob("*/*.parquet") if file.stat().st_size]
    if not files:
        return pd.DataFrame()
    rows: pd.DataFrame = dataset.dataset(files, partitioning="hive", partition_base_dir=str(out)).to_table().to_pandas()
    return rows
