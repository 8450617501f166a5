"""A run of one query: its session and executors, its load, and what came of it."""

import math
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from pyarrow import dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.bench.nexmark.answers import ANSWERS
from elastream.bench.nexmark.arms import SETTLING_S, Arm, Cluster, Session, Spans, open_arm, wait
from elastream.bench.nexmark.comparison import BATCH, compare, final_rows
from elastream.bench.nexmark.events import Events
from elastream.bench.nexmark.queries import QUERIES, Query
from elastream.bench.nexmark.service import Service, batches_of, service
from elastream.bench.nexmark.sources import kind_of, read_events, with_watermark
from elastream.core.hosts import HostType
from elastream.errors import EnvironmentProblem, InputError, first_line
from elastream.spark.dataflow.sources import HOLD

BATCH_SHARE = 0.4  # of the target latency: from one batch to the next
AFTER = 0.5  # of the load's length, for late events
FLUSH_TIMEOUT_S = 60.0
SIDE = pd.DataFrame({"key": range(10_000), "value": [f"value {number}" for number in range(10_000)]})

Tell: TypeAlias = Callable[[str], object]


@dataclass(frozen=True)
class Setup:
    """Conditions that all runs share.

    Attributes:
        events: Events, with a load that ends.
        cluster: Where executors run.
        target_latency: Seconds from an event's due time to its commit.
        kills: Local hosts that are killed while the load lasts, at equal distances.
    """

    events: Events
    cluster: Cluster
    target_latency: float = 5.0
    kills: int = 0


@dataclass(frozen=True)
class Outcome:
    """Figures of a run.

    Attributes:
        query: Name of the query.
        arm: Name of the arm.
        service: Throughput and latencies.
        host_seconds: Time of all executors from the load's beginning, or their registration, to the last commit.
        cost: Price of their hosts, by their type's billing.
        most_hosts: Most executors at once.
        correct: True if the final rows are the answer's; None if events of the load were not read.
        rows: Final rows.
        remark: Reason why the rows are not correct, or an empty text.
    """

    query: str
    arm: str
    service: Service
    host_seconds: float
    cost: float
    most_hosts: int
    correct: bool | None
    rows: int = 0
    remark: str = ""


def query_of(text: str) -> Query:
    """Return the query that is called `text`, such as q5. Raises InputError if there is none."""
    name = text.strip()
    if name not in QUERIES:
        raise InputError(f"there is no query {name!r} (there are: q0 to q{len(QUERIES) - 1})")
    return QUERIES[name]


def run(setup: Setup, query: Query, arm: Arm, tell: Tell) -> Outcome:
    """Run `query` under `arm` and compare its rows with the answer.

    Raises:
        EnvironmentProblem: Spark or an executor does not start, or the query fails.
    """
    with ExitStack() as stack:
        cluster = setup.cluster
        folder = tempfile.TemporaryDirectory(prefix="nexmark-", dir=cluster.folder, ignore_cleanup_errors=True)
        root = Path(stack.enter_context(folder))
        tell("starts")
        session = stack.enter_context(open_arm(cluster, arm, root, disk=query.python_state))
        job = _start(session.spark, setup, query, cluster.most(arm), root)
        stack.callback(_stop, job)
        stack.enter_context(session.scaling(job, setup.target_latency, root / "autopilot"))
        session.warm_up(root)
        wait(lambda: job.lastProgress is not None or not job.isActive, "the query's first batch")
        time.sleep(SETTLING_S)
        for hold in (root / "control").glob(f"*/{HOLD}"):
            hold.unlink()
        _follow(job, setup, session, tell)
        served = service(batches_of(job.recentProgress), setup.events.load, setup.target_latency)
        costs = costs_of(session.spans, served, cluster.host)
        whole = served.events >= setup.events.load.count(setup.events.load.seconds)
        if whole:
            tell("closes the last windows")
            _flush(job)
        _fail(job, query)
        job.stop()
        outcome = Outcome(query.name, arm.name, served, *costs, correct=None, remark="events of the load were not read")
        if not whole:
            return outcome
        tell("compares the rows with the answer")
        return _judge(outcome, query, setup.events, root / "out")


def _start(spark: SparkSession, setup: Setup, query: Query, hosts: int, root: Path) -> StreamingQuery:
    batch_seconds, checkpoint = BATCH_SHARE * setup.target_latency, root / "checkpoint"
    streams = {}
    for stream in query.streams:
        control = root / "control" / stream
        control.mkdir(parents=True)
        (control / HOLD).touch()
        kind, tasks = kind_of(stream), hosts * setup.cluster.host.slots
        events = read_events(
            spark, setup.events, kind, control, checkpoint=checkpoint, tasks=tasks, batch_seconds=batch_seconds
        )
        streams[stream] = with_watermark(events)
    varied: dict[str, Any] = {"side": spark.createDataFrame(SIDE)} if query.name == "q13" else {}
    if query.name in ("q4", "q6", "q9"):
        varied["longest"] = f"{math.ceil(setup.events.longest_auction)} seconds"
    out = str(root / "out")

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(f"{out}/{BATCH}={batch}")

    writer = query.build(*streams.values(), **varied).writeStream.outputMode(query.mode).foreachBatch(write)
    timed = writer.queryName(query.name).trigger(processingTime=f"{batch_seconds} seconds")
    return timed.option("checkpointLocation", str(checkpoint)).start()


def _follow(job: StreamingQuery, setup: Setup, session: Session, tell: Tell) -> None:
    """Wait until the query has had all events and the closing row, or has had its time; kill hosts on the way."""
    load = setup.events.load
    total, until = load.count(load.seconds), time.monotonic() + (1 + AFTER) * load.seconds + 2 * setup.target_latency
    position = killed = 0
    while job.isActive and position <= total and time.monotonic() < until:
        time.sleep(1.0)
        newest = batches_of([job.lastProgress] if job.lastProgress else [])
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


def _fail(job: StreamingQuery, query: Query) -> None:
    if (error := job.exception()) is not None:
        raise EnvironmentProblem(f"{query.name} failed: {first_line(error)}") from error


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


def _judge(outcome: Outcome, query: Query, events: Events, out: Path) -> Outcome:
    total = events.load.count(events.load.seconds)
    inputs = [events.table(kind_of(stream), 0, total).to_pandas() for stream in query.streams]
    answer = ANSWERS[query.name](*inputs, **({"side": SIDE} if query.name == "q13" else {}))
    rows = final_rows(_written(out), query.key, query.updates)
    if query.name == "q12" and len(rows):  # the window of a bid depends on when it was read
        rows = rows.groupby("bidder")["bid_count"].sum().reset_index()
    difference = compare(rows, answer)
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
