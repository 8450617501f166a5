"""A run of one query: its session and hosts, its load, and what came of it."""

import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from pyarrow import dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.api.autopilot import Autopilot
from elastream.bench.nexmark.answers import ANSWERS
from elastream.bench.nexmark.comparison import BATCH, compare, final_rows
from elastream.bench.nexmark.events import Events
from elastream.bench.nexmark.queries import QUERIES, Query
from elastream.bench.nexmark.service import Service, batches_of, service
from elastream.bench.nexmark.sources import kind_of, read_events, with_watermark
from elastream.clouds.local.cluster import LocalCluster
from elastream.clouds.local.local import Local
from elastream.clouds.provider import SMALL
from elastream.core.hosts import HostType
from elastream.errors import EnvironmentProblem, InputError, first_line
from elastream.spark.dataflow.sources import HOLD
from elastream.spark.hosts.warmup import warm_up
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.executors import Executors
from elastream.spark.jvm.session import open_session, settings_for

BATCH_SHARE = 0.4  # of the target latency: from one batch to the next
START_TIMEOUT_S = 300.0
SETTLING_S = 6.0  # after the warm-up: the first batches of a query are slow on every cluster
AFTER = 0.5  # of the load's length, for late events
FLUSH_TIMEOUT_S = 60.0
PERIOD_S = 2.0
SIDE = pd.DataFrame({"key": range(10_000), "value": [f"value {number}" for number in range(10_000)]})
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.numRecentProgressUpdates": "2000",
}

Tell: TypeAlias = Callable[[str], object]
Spans: TypeAlias = Sequence[tuple[float, float | None]]
"""Beginning and end of each host, in seconds since 1970; None: it is there yet."""


@dataclass(frozen=True)
class Setup:
    """Conditions that all runs share.

    Attributes:
        events: Events, with a load that ends.
        target_latency: Seconds from an event's due time to its commit.
        max_hosts: Most hosts of an arm that scales.
        host: Type of all hosts.
    """

    events: Events
    target_latency: float = 5.0
    max_hosts: int = 2
    host: HostType = SMALL


@dataclass(frozen=True)
class Arm:
    """A way to give a query its hosts: a fixed number, or Autopilot."""

    name: str
    hosts: int = 0  # 0: Autopilot


@dataclass(frozen=True)
class Outcome:
    """Figures of a run.

    Attributes:
        query: Name of the query.
        arm: Name of the arm.
        service: Throughput and latencies.
        host_seconds: Time of all hosts from the load's beginning to the last commit.
        cost: Price of these hosts, by their type's billing.
        most_hosts: Most hosts at once.
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


def arm_of(text: str) -> Arm:
    """Return the arm that `text` names: `fixed:N` or `autopilot`. Raises InputError for other text."""
    name, _, number = text.strip().partition(":")
    if name == "fixed" and number.isdecimal() and int(number) > 0:
        return Arm(f"fixed:{int(number)}", int(number))
    if name == "fixed":
        raise InputError(f"the arm {text!r} needs a number of hosts, such as fixed:2")
    if text.strip() != "autopilot":
        raise InputError(f"there is no arm {text!r} (there are: fixed:N, autopilot)")
    return Arm("autopilot")


def query_of(text: str) -> Query:
    """Return the query that is called `text`, such as q5. Raises InputError if there is none."""
    name = text.strip()
    if name not in QUERIES:
        raise InputError(f"there is no query {name!r} (there are: q0 to q{len(QUERIES) - 1})")
    return QUERIES[name]


def run(setup: Setup, query: Query, arm: Arm, tell: Tell) -> Outcome:
    """Run `query` under `arm` on local hosts and compare its rows with the answer.

    Raises:
        EnvironmentProblem: Spark or a host does not start, or the query fails.
    """
    with tempfile.TemporaryDirectory(prefix="nexmark-", ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        root = Path(folder)
        hosts = arm.hosts or setup.max_hosts
        tell("starts")
        spark, cluster = stack.enter_context(_session(setup, hosts, arm.hosts, root, disk=query.python_state))
        job = _start(spark, setup, query, hosts, root)
        stack.callback(_stop, job)
        pilot: Autopilot | None = None
        if arm.hosts:
            _warm(spark, root, arm.hosts)
            for number in range(arm.hosts):
                cluster.confine(_host(number), setup.host.cores)
        else:
            pilot = stack.enter_context(_autopilot(spark, setup, job, root))
            _warm(spark, root, 1)
        _wait(lambda: job.lastProgress is not None or not job.isActive, "the query's first batch")
        time.sleep(SETTLING_S)
        for hold in (root / "control").glob(f"*/{HOLD}"):
            hold.unlink()
        _follow(job, setup, tell)
        served = service(batches_of(job.recentProgress), setup.events.load, setup.target_latency)
        spans = [(0.0, None)] * arm.hosts if pilot is None else _leases(pilot)
        costs = _costs(spans, served, setup.host)
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


@contextmanager
def _session(
    setup: Setup, hosts: int, first: int, root: Path, *, disk: bool
) -> Iterator[tuple[SparkSession, LocalCluster]]:
    """Open a session on a local cluster with `first` of at most `hosts` hosts."""
    cluster = LocalCluster(Local(setup.host, max_hosts=hosts), root / "cluster")
    master = cluster.start()
    spark = None
    try:
        for number in range(first):
            cluster.spawn(_host(number), setup.host)
        settings = settings_for(
            driver_address=cluster.driver_address,
            executor_memory=cluster.executor_memory_mb,
            executor_cores=setup.host.slots,
            state_partitions=hosts * setup.host.slots,
            state_store="disk" if disk else "memory",
            host_cores=[setup.host.cores],
        )
        closed = cluster.secrets
        spark = open_session(
            master, "nexmark", cluster.folder, {**settings, **closed.session_settings, **SETTINGS}, closed.shared
        )
        yield spark, cluster
    finally:
        cluster.close()
        if spark is not None:
            spark.stop()


def _host(number: int) -> str:
    return f"bench{number}"


def _start(spark: SparkSession, setup: Setup, query: Query, hosts: int, root: Path) -> StreamingQuery:
    batch_seconds, checkpoint = BATCH_SHARE * setup.target_latency, root / "checkpoint"
    streams = {}
    for stream in query.streams:
        control = root / "control" / stream
        control.mkdir(parents=True)
        (control / HOLD).touch()
        kind, tasks = kind_of(stream), hosts * setup.host.slots
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


@contextmanager
def _autopilot(spark: SparkSession, setup: Setup, job: StreamingQuery, root: Path) -> Iterator[Autopilot]:
    cloud = Local(setup.host, max_hosts=setup.max_hosts)
    pilot = Autopilot(
        spark,
        target_latency=setup.target_latency,
        cloud=cloud,
        max_hosts=setup.max_hosts,
        period=PERIOD_S,
        folder=root / "autopilot",
        show=False,
    )
    with pilot.watch(job):
        _wait(lambda: pilot.plant is not None and bool(pilot.plant.hosts.usable), "Autopilot's first host")
        yield pilot


def _leases(pilot: Autopilot) -> Spans:
    assert pilot.plant is not None
    epoch, leases = pilot.plant.clock.epoch, pilot.plant.hosts.leases
    return [(epoch + each.since, None if each.until is None else epoch + each.until) for each in list(leases.values())]


def _warm(spark: SparkSession, root: Path, hosts: int) -> None:
    driver = DriverSide(spark)
    _wait(lambda: len(Executors(driver).look()) >= hosts, f"executors on {hosts} hosts")
    for executor in Executors(driver).look().values():
        warm_up(spark, driver, executor, root)


def _follow(job: StreamingQuery, setup: Setup, tell: Tell) -> None:
    """Wait until the query has had all events and the closing row, or has had its time."""
    load = setup.events.load
    total, until = load.count(load.seconds), time.monotonic() + (1 + AFTER) * load.seconds + 2 * setup.target_latency
    position = 0
    while job.isActive and position <= total and time.monotonic() < until:
        time.sleep(1.0)
        newest = batches_of([job.lastProgress] if job.lastProgress else [])
        position = newest[-1].position if newest else position
        tell(f"{min(1.0, position / total):.0%} of the events")


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


def _wait(holds: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while not holds():
        if time.monotonic() > until:
            raise EnvironmentProblem(f"{what} did not come within {START_TIMEOUT_S:g} s")
        time.sleep(0.2)


def _costs(spans: Spans, served: Service, host: HostType) -> tuple[float, float, int]:
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
