"""Autopilot beside whatever classic PySpark makes a streaming query of: its partitions are found, told apart and moved.

One session with two executors and Spark's own settings; state in RocksDB where an operator needs it.
"""

import sys
from dataclasses import dataclass, field
from itertools import pairwise

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

from elastream import Autopilot
from elastream.core.action import MoveTask, ReleaseHost, Status
from elastream.core.plant import Plan, Policy
from elastream.core.task_id import TaskId
from elastream.policies import Otd
from support.foreign_sessions import two_executors
from support.foreign_work import real_time
from support.waiting import wait_until

PARTITIONS = 2
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
# Executors do not find this file: what runs there travels with the query.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
COUNT = StructType([StructField("n", LongType())])
pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    settings = {
        "shuffle_partitions": str(PARTITIONS),
        "adaptive_enabled": "true",
        "streaming_numRecentProgressUpdates": "9999",
    }
    with two_executors(tmp_path_factory.mktemp("session"), 700, **settings) as session:
        yield session


def records(spark, rows=60):
    """Numbers with a key of ten, in order: of n whole batches every key has the same count.

    Their times begin after the epoch's first second, which is where a watermark begins: what is not behind it is late.
    """
    read = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("startTimestamp", 10**9)
    return read.load().withColumn("k", F.col("value") % 10)


class Counting(StatefulProcessor):
    """How many rows each key has had."""

    def init(self, handle):
        self.seen = handle.getValueState("seen", COUNT)

    def handleInputRows(self, key, rows, timerValues):
        n = sum(len(part) for part in rows) + (self.seen.get()[0] if self.seen.exists() else 0)
        self.seen.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    def close(self):
        pass


def count_in_pandas(key, parts, state):
    n = sum(len(part) for part in parts) + (state.get[0] if state.exists else 0)
    state.update((n,))
    yield pd.DataFrame({"k": [key[0]], "n": [n]})


def with_transform_with_state(spark):
    spark.conf.set(PROVIDER, ROCKSDB)
    counted = records(spark).groupBy("k").transformWithStateInPandas(
        Counting(), outputStructType="k long, n long", outputMode="Update", timeMode="None"
    )  # fmt: skip
    return counted, {"transform-with-state0"}


def with_state_in_pandas(spark):
    grouped = records(spark).groupBy("k")
    counted = grouped.applyInPandasWithState(count_in_pandas, "k long, n long", COUNT, "update", "NoTimeout")
    return counted, {"apply-in-pandas-with-state0"}


def aggregated_in_rocksdb(spark):
    spark.conf.set(PROVIDER, ROCKSDB)
    return records(spark).groupBy("k").agg(F.count("*").alias("n")), {"aggregate0"}


def twice_in_one_task(spark):
    """A key passes once until the watermark has left it behind, and is counted each time: both by the key, in one stage."""
    rows = records(spark).withWatermark("timestamp", "2 seconds").dropDuplicatesWithinWatermark(["k"])
    return rows.groupBy("k").agg(F.count("*").alias("n")), {"aggregate0+streaming-deduplicate-within-watermark1"}


def under_one_key(spark):
    """Two partitions that leave duplicates out send all that they let through to one that counts."""
    rows = records(spark).withWatermark("timestamp", "1 minute").dropDuplicates(["value", "timestamp"])
    return rows.groupBy(F.lit(0).alias("k")).agg(F.count("*").alias("n")), {"aggregate0", "deduplicate1"}


def joined_in_rocksdb(spark):
    spark.conf.set(PROVIDER, ROCKSDB)

    def side(n):
        columns = (F.col(name).alias(f"{name}_{n}") for name in ("value", "k", "timestamp"))
        return records(spark, 20).select(*columns).withWatermark(f"timestamp_{n}", "5 seconds")

    # Each record meets one of the next batch: until then it is state, wherever that is.
    near = "value_a + 20 = value_b and timestamp_b between timestamp_a and timestamp_a + interval 2 seconds"
    return side("a").join(side("b"), F.expr(near)).select(F.col("value_a").alias("value")), {"join0"}


@dataclass(frozen=True)
class Away(Policy):
    """Wants every partition on the host that had it not when this policy saw it first."""

    wanted: dict = field(default_factory=dict)

    name = "away"

    def plan(self, observation, memory=None):
        hosts = observation.usable
        for task, row in zip(observation.tasks.tasks, observation.tasks.host.tolist(), strict=True):
            self.wanted.setdefault(task, next(host for host in hosts if host != observation.hosts.ids[row]))
        return Plan(tuple(MoveTask(task, host, why="a test") for task, host in self.wanted.items()))


@pytest.fixture
def started(spark, tmp_path):
    """Starts a query whose batches end in `out`, by way of foreachBatch, and stops it."""
    running = []

    def start(build, out, session=spark):
        before = session.conf.get(PROVIDER)
        frame, stages = build(session)
        writer = frame.writeStream.queryName("q").outputMode("append" if build is joined_in_rocksdb else "update")
        writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(processingTime="300 milliseconds")
        running.append(writer.foreachBatch(lambda batch, number: out.append((number, batch.collect()))).start())
        session.conf.set(PROVIDER, before)
        return running[-1], stages

    yield start
    for query in running:
        query.stop()


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(with_transform_with_state, marks=pytest.mark.slow),
        pytest.param(with_state_in_pandas, marks=pytest.mark.slow),
        pytest.param(aggregated_in_rocksdb, marks=pytest.mark.slow),
        pytest.param(joined_in_rocksdb, marks=pytest.mark.slow),
        twice_in_one_task,
    ],
)
@pytest.mark.cluster
def test_every_partition_lands_where_planned_and_counts_stay_right(spark, started, build, caplog):
    out, policy = [], Away()
    # One of them in a session beside, as a notebook's or a Connect client's is: all of the application are watched.
    beside = build is twice_in_one_task
    query, stages = started(build, out, spark.newSession() if beside else spark)
    run = query.runId
    with Autopilot(spark, period=0.5, policy=policy).watch(*(() if beside else (query,))) as pilot:
        names = {TaskId(f"q/{stage}", n) for stage in stages for n in range(PARTITIONS)}

        def seen():
            return [(each.newest, each.stages, each.batches) for each in (pilot.plant.queries.all if pilot.plant else ())]

        wait_until(lambda: set(policy.wanted) >= names or not query.isActive, otherwise=seen)
        assert query.exception() is None
        assert set(policy.wanted) == names
        wait_until(lambda: {each.task for each in pilot.plant.placing.landed} == names)
        wait_until(
            lambda: all(pilot.plant.reconciler.locations().get(task) == host for task, host in policy.wanted.items())
        )
        moved = len(out)
        wait_until(lambda: len(out) > moved + (20 if build is twice_in_one_task else 2))
    assert (query.isActive, query.runId) == (True, run)
    if build is joined_in_rocksdb:
        met = sorted(row["value"] for _, rows in out for row in rows)
        assert met == list(range(len(met))), "each record has met its partner once, through all moves"
        assert met
    elif build is twice_in_one_task:
        passed = [(number, {row["k"]: row["n"] for row in rows}) for number, rows in out if rows]
        assert [counted for _, counted in passed] == [dict.fromkeys(range(10), n + 1) for n in range(len(passed))]
        assert len({after - before for (before, _), (after, _) in pairwise(passed)}) == 1, (
            "each key was let through on time"
        )
    else:
        taken = {each["batchId"]: each["numInputRows"] for each in query.recentProgress}
        number, rows = next((number, rows) for number, rows in reversed(out) if rows and number in taken)
        # A batch that only moves a watermark on takes no rows.
        expected = sum(n for batch, n in taken.items() if batch <= number) / 10
        assert {row["n"] for row in rows} == {expected}, "every key has had as many rows, through all moves"
    assert [record.message for record in caplog.records if record.levelno > 30] == []


@pytest.mark.slow
def test_otd_brings_together_what_exchanges_most(spark, started):
    out = []
    query, _ = started(under_one_key, out)
    # Load is never high here: what is left to do is Algorithm 2's.
    with Autopilot(spark, period=0.5, policy=Otd(low=99.0, high=100.0, period=0.5)).watch(query) as pilot:
        wait_until(lambda: pilot.plant is not None and pilot.plant.observe().exchange.known)

        def brought():
            return [each for each in pilot.plant.placing.landed if "bytes/s less between hosts" in each.why]

        wait_until(brought, otherwise=lambda: (pilot.plant.observe().tasks, pilot.plant.observe().hosts))
        moved = len(out)
        wait_until(lambda: len(out) > moved + 2)
    taken = {each["batchId"]: each["numInputRows"] for each in query.recentProgress}
    number, rows = next((number, rows) for number, rows in reversed(out) if rows and number in taken)
    assert [row["n"] for row in rows] == [sum(n for batch, n in taken.items() if batch <= number)]


@pytest.mark.slow
def test_a_query_without_state_is_watched_and_left_alone(spark, tmp_path, caplog):
    writer = records(spark).writeStream.queryName("stateless").format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(processingTime="300 milliseconds").start()
    try:
        with Autopilot(spark, period=0.3).watch(query) as pilot:
            wait_until(lambda: pilot.plant is not None and pilot.plant.looks > 3 and len(pilot.plant.queries.all) == 1)
            assert pilot.plant.queries.all[0].operators == ()
            assert not pilot.plant.placing.tasks
            wait_until(lambda: pilot.plant.queries.all[0].newest > 3)
        assert query.isActive
    finally:
        query.stop()


@pytest.fixture
def in_real_time(spark, tmp_path):
    """A query in real-time mode: its one task goes on for as long as a batch."""
    with real_time(spark, tmp_path / "fast") as query:
        yield query


@pytest.mark.slow
def test_query_in_real_time_mode_keeps_its_executors(spark, started, in_real_time, caplog):
    out = []
    query, _ = started(aggregated_in_rocksdb, out)
    with Autopilot(spark, period=0.5, max_hosts=2, policy=Away()).watch() as pilot:
        wait_until(lambda: pilot.plant is not None and pilot.plant.placing.landed and pilot.plant.queries.left_alone)
        assert [each.name for each in pilot.plant.queries.live] == ["q"], "the other one is looked after as always"
        assert pilot.plant.queries.left_alone == ("real-time",)
        wait_until(lambda: any(pilot.plant.hosts.endless(host) for host in pilot.plant.hosts.usable))
        (host, *_) = [host for host in pilot.plant.hosts.usable if pilot.plant.hosts.endless(host)]
        outcome = pilot.plant.apply(ReleaseHost(host))
        assert outcome.status is Status.REFUSED
        assert "real-time" in outcome.reason
        assert len(pilot.plant.hosts.usable) == 2
    assert query.isActive
    assert [each.message for each in caplog.records if "'real-time' runs in real-time mode" in each.message]


@pytest.mark.slow
def test_query_that_was_idle_for_long_is_known(spark, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("\n".join(f"{n % 10}" for n in range(100)))
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    counts = spark.readStream.schema("k string").text(str(tmp_path / "in")).groupBy("k").count()
    writer = counts.writeStream.queryName("idle").format("noop").outputMode("update")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(processingTime="200 milliseconds").start()
    spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    try:
        query.processAllAvailable()
        batch = query.lastProgress["batchId"]
        wait_until(lambda: [each["batchId"] for each in query.recentProgress].count(batch + 1) > 3)  # it had nothing to do
        with Autopilot(spark, period=0.3, observe_only=True).watch(query) as pilot:
            wait_until(lambda: pilot.plant is not None and len(pilot.plant.observe().tasks) == PARTITIONS)
    finally:
        query.stop()
