"""Migrations on a real cluster: state is there before the task is, and a query that starts again finds its places.

Two executors, one query a kind of state. What is counted in the end is what a batch query counts.
"""

import json
import math
import time
from contextlib import contextmanager
from functools import cache

import pandas as pd
import pytest
from pyspark import __version__ as SPARK
from pyspark.sql import functions as F

from elastream.clouds.local.cluster import LocalCluster
from elastream.clouds.local.local import Local
from elastream.core.hosts import HostType
from elastream.core.migration import MigrationState
from elastream.core.task_id import TaskId
from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.executors import Executors, Location
from elastream.spark.jvm.jars import copies_settings
from elastream.spark.jvm.releases import STANDBY_SINCE, release_of
from elastream.spark.jvm.session import open_session, settings_for
from elastream.spark.jvm.standby import StageReplicas, StandbyRegistry
from elastream.spark.jvm.state_partitions import StatePartitions
from elastream.spark.placement.allocation import AllocationStore
from elastream.spark.telemetry.state_files import written_files
from elastream_papers.nstorm.schemes import CYCLES, Cycles, Follower, Scheme
from support.shared_session import end_shared_session
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

TINY = HostType("tiny", cores=1.0, slots=1, memory=1000.0)
ROWS, KEYS, PARTITIONS = 200, 40, 4
ROUNDS = 4
"""Of all state back and forth, under the scheme that loads it ahead."""
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
IN_MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


@cache
def executors(session):
    return Executors(DriverSide(session))


@pytest.fixture(scope="module")
def cluster_session(tmp_path_factory):
    end_shared_session()
    folder = tmp_path_factory.mktemp("cluster")
    cluster = LocalCluster(Local(TINY, max_hosts=2, min_hosts=2), folder)
    master = cluster.start()
    session = None
    try:
        for host in ("h1", "h2"):
            cluster.spawn(host)
        settings = settings_for(
            driver_address=cluster.driver_address,
            executor_memory=cluster.executor_memory_mb,
            executor_cores=1,
            state_partitions=PARTITIONS,
            state_store="disk",
            java_options=cluster.java_options,
        )
        closed = cluster.secrets
        copies = copies_settings() if release_of(SPARK) >= STANDBY_SINCE else {}
        settings = {**settings, **copies, **closed.session_settings}
        session = open_session(master, "migration", folder, settings, closed.shared)
        wait_until(lambda: len(executors(session).by_address()) == 2)
        yield session
    finally:
        cluster.close()
        if session is not None:
            session.stop()


@pytest.fixture
def desk(cluster_session):
    """Where copies of state are asked for; a test that has it is skipped on a release with which none are kept."""
    if release_of(SPARK) < STANDBY_SINCE:
        with pytest.raises(EnvironmentProblem) as refused:
            copies_settings()
        pytest.skip(str(refused.value))
    return StandbyRegistry(cluster_session)


@pytest.fixture(params=["memory", pytest.param("disk", marks=pytest.mark.slow)])
def spark(request, cluster_session):
    """The session, whose queries keep their state in the executors' heap or on their disks; both over checked files."""
    on_disk = cluster_session.conf.get(PROVIDER)
    if request.param == "memory":
        cluster_session.conf.set(PROVIDER, IN_MEMORY)
    yield cluster_session
    cluster_session.conf.set(PROVIDER, on_disk)


def add_up(key, frames, state):
    total = sum(len(frame) for frame in frames) + (state.get[0] if state.exists else 0)
    state.update((total,))
    yield pd.DataFrame({"k": [key[0]], "n": [total]})


def keyed(frame):
    return frame.select((F.col("value") % KEYS).alias("k"))


KINDS = {
    "aggregation": lambda frame: frame.groupBy("k").count(),
    "deduplication": lambda frame: frame.dropDuplicates(["k"]),
    "function with state": lambda frame: frame.groupBy("k").applyInPandasWithState(
        add_up, "k long, n long", "n long", "update", "NoTimeout"
    ),
}
# Every kind and every store.
STORES_AND_KINDS = [("memory", "aggregation"), ("disk", "deduplication"), ("disk", "function with state")]


def started(spark, kind, checkpoint):
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    writer = KINDS[kind](keyed(source)).writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.outputMode("append" if kind == "deduplication" else "update").trigger(processingTime="0 seconds").start()


def batches_more(query, number):
    def last():
        progress = query.lastProgress
        return -1 if progress is None else progress["batchId"]

    target = last() + number
    wait_until(lambda: last() >= target)


def lands(query, states, partition, place):
    """Whether batches run `partition` at `place` once told; a batch under way may overwrite what they were told."""
    states.move(partition, place)
    batches_more(query, 2)
    return states.where()[partition] == place


def stays(query, states, partition, place, other):
    """Whether `partition` is loaded at `other` and stays at `place`; a batch that asks in between may go the wrong way."""
    states.move(partition, place)
    batches_more(query, 1)
    return states.load({partition: other}, keep=True) and states.where()[partition] == place


def places(spark):
    return [Location(address, each.id) for address, each in sorted(executors(spark).by_address().items())]


def is_exact(spark, kind, checkpoint):
    """What the state says against what a batch query says of the records that were committed."""
    committed = max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit()) + 1
    state = spark.read.format("statestore").load(str(checkpoint))
    if kind == "deduplication":
        return state.count() == KEYS
    value = {"aggregation": "value.count", "function with state": "value.groupState.n"}[kind]
    rows = state.selectExpr("key.*", f"{value} as n").collect()
    expected = keyed(spark.range(committed * ROWS).withColumnRenamed("id", "value")).groupBy("k").count().collect()
    return sorted(map(tuple, rows)) == sorted(map(tuple, expected))


@pytest.mark.slow
@pytest.mark.parametrize(("spark", "kind"), STORES_AND_KINDS, indirect=["spark"])
def test_state_is_loaded_where_it_goes_and_nothing_is_lost(spark, kind, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    query = started(spark, kind, checkpoint)
    try:
        states = StatePartitions(spark, query, PARTITIONS)
        assert states.load({0: places(spark)[0]}, keep=True) == ()  # nothing is there before the first batch
        batches_more(query, 3)
        one, other = places(spark)
        wait_until(lambda: all(lands(query, states, partition, one) for partition in range(PARTITIONS)))
        wait_until(lambda: stays(query, states, 0, one, other))
        wait_until(lambda: states.load({1: other}, keep=False))
        wait_until(lambda: lands(query, states, 2, other))
    finally:
        query.stop()
    assert is_exact(spark, kind, checkpoint)


class Stepped:
    """A deduplication that has a batch when it is fed, with one state partition, which all metrics of state are of.

    It opens its store once a batch; an aggregation does twice, and the metrics are of the second time.
    """

    def __init__(self, spark, folder):
        self.input = folder / "input"
        self.input.mkdir()
        self.fed = 0
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        source = spark.readStream.schema("value long").json(str(self.input))
        writer = keyed(source).dropDuplicates(["k"]).writeStream.format("noop")
        self.query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))

    def batch(self):
        """Feed it, and give the metrics of its state after the batch."""
        made = self.input.parent / "records"
        made.write_text("\n".join(json.dumps({"value": number}) for number in range(self.fed, self.fed + ROWS)))
        made.rename(self.input / f"{self.fed}.json")
        self.query.processAllAvailable()
        self.fed += 1
        (self.state,) = self.query.lastProgress["stateOperators"]
        return self.state["customMetrics"]


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [True, False])
def test_a_batch_finds_the_state_that_was_loaded_ahead_and_loads_nothing(spark, ahead, tmp_path):
    stepped = Stepped(spark, tmp_path)
    try:
        stepped.batch()
        stepped.batch()
        states = StatePartitions(spark, stepped.query, 1)
        (other,) = set(places(spark)) - {states.where()[0]}
        if ahead:
            assert states.load({0: other}, keep=False) == {0}
        else:
            states.move(0, other)
        metrics = stepped.batch()
        assert states.where()[0] == other
    finally:
        stepped.query.stop()
    if "loadedMapCacheHitCount" in metrics:
        # Of this executor since it has the partition: one miss is the load's, or else the batch's own.
        assert (metrics["loadedMapCacheHitCount"], metrics["loadedMapCacheMissCount"]) == (int(ahead), 1)
    elif "rocksdbNumReplayChangelogFiles" in metrics:
        assert metrics.get("rocksdbNumLoadedFromDfs", int(not ahead)) == int(not ahead)  # since 4.2
        assert (metrics["rocksdbNumReplayChangelogFiles"] > 0) == (not ahead)
    else:
        pytest.skip("this release of Spark does not tell how RocksDB got its state")


@pytest.mark.slow
def test_a_snapshot_is_written_with_the_next_batch_on_request(spark, tmp_path):
    stepped = Stepped(spark, tmp_path)
    try:
        stepped.batch()
        states = StatePartitions(spark, stepped.query, 1)
        asked = states.snapshot(0)
        assert asked == (release_of(SPARK) >= (4, 2))
        stepped.batch()
        stepped.batch()
        written = {number for number, whole, _ in written_files(tmp_path / "checkpoint/state/0/0") if whole}
        assert written == ({2} if asked else set())
    finally:
        stepped.query.stop()
    assert is_exact(spark, "deduplication", tmp_path / "checkpoint")


def keeps(desk, copies, partition, place):
    """Whether `place` has a copy of `partition` that holds what it sees committed; it is to keep one."""
    copies.follow({partition: [place]})
    return copies.lag(desk.reports()[0]).get(partition, {}).get(place.executor) == 0


def follows(desk, copies, partition, place):
    """Whether `place` has a copy of `partition`. With batches shorter than reports are apart none seems up to date."""
    copies.follow({partition: [place]})
    return copies.lag(desk.reports()[0]).get(partition, {}).get(place.executor, math.nan) < math.inf


def holds(desk, place):
    """Committed batches that the copies of `place` hold."""
    return [each.version for each in desk.reports()[0] if each.executor == place.executor and each.ready]


@contextmanager
def hidden(folder):
    """What is in `folder` is not to be found meanwhile: whoever reads it fails."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.mkdir()
    try:
        yield
    finally:
        for each in aside.iterdir():
            each.rename(folder / each.name)
        aside.rmdir()


def test_a_task_opens_the_copy_that_its_executor_kept_and_reads_no_file(spark, desk, tmp_path):
    stepped = Stepped(spark, tmp_path)
    try:
        stepped.batch()
        states = StatePartitions(spark, stepped.query, 1)
        (other,) = set(places(spark)) - {states.where()[0]}
        copies, before = StageReplicas(desk, states), len(desk.opened())
        wait_until(lambda: keeps(desk, copies, 0, other))  # it is loaded
        stepped.batch()
        wait_until(lambda: holds(desk, other) == [2])  # it has followed
        assert copies.bytes(desk.reports()[0])[0][other.executor] > 0
        states.move(0, other)
        with hidden(tmp_path / "checkpoint" / "state" / "0" / "0"):
            metrics = stepped.batch()
        assert states.where()[0] == other
        wait_until(lambda: len(desk.opened()) > before)
        (opened,) = desk.opened()[before:]
        assert (opened.executor, opened.replica_version, opened.version, opened.files) == (other.executor, 2, 2, 0)
        stepped.batch()
        copies.forget()  # or the next test would find them
    finally:
        stepped.query.stop()
    assert stepped.state["numRowsTotal" if "loadedMapCacheHitCount" in metrics else "numRowsUpdated"] == (
        KEYS if "loadedMapCacheHitCount" in metrics else 0
    )
    assert is_exact(spark, "deduplication", tmp_path / "checkpoint")


@pytest.mark.slow
@pytest.mark.parametrize(("spark", "kind"), STORES_AND_KINDS, indirect=["spark"])
def test_copies_that_are_taken_back_and_forth_under_way_lose_nothing(spark, desk, kind, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    query = started(spark, kind, checkpoint)
    try:
        states = StatePartitions(spark, query, PARTITIONS)
        batches_more(query, 3)
        copies, before = StageReplicas(desk, states), len(desk.opened())

        def elsewhere():
            """Where it does not run: Spark may run it where it was not told to, for a batch."""
            (other,) = set(places(spark)) - {states.where()[0]}
            return other

        for _ in range(4):
            wait_until(lambda: follows(desk, copies, 0, elsewhere()), otherwise=desk.reports)
            other = elsewhere()
            wait_until(lambda other=other: lands(query, states, 0, other), otherwise=states.where)
        wait_until(lambda: len(desk.opened()) > before)
        copies.forget()
    finally:
        query.stop()
    assert all(opened.files <= opened.version - opened.replica_version for opened in desk.opened()[before:])
    assert is_exact(spark, kind, checkpoint)


@pytest.mark.slow
@pytest.mark.parametrize("spark", ["memory"], indirect=True)
@pytest.mark.parametrize("scheme", [Scheme.RESTART, Scheme.ONLINE, Scheme.LAZY])
def test_every_scheme_brings_the_query_to_the_new_plan(spark, scheme, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    plan = AllocationStore(tmp_path / "plan.jsonl")
    one, other = (place.address for place in places(spark))
    assert set(CYCLES) == set(Scheme)
    follower = Follower(
        spark,
        lambda: started(spark, "aggregation", checkpoint),
        AllocationStore(plan.path),
        scheme,
        operator="count",
        partitions=PARTITIONS,
        cycles=Cycles(0.5, 0.1),
    )

    def warm():
        return sum(MigrationState.WARM in dict(map(reversed, each.history)) for each in follower.placing.landed)

    try:
        # A batch that begins while state is loaded may take it along: of several moves some find it loaded.
        for host in (one, other) * (ROUNDS if scheme is Scheme.LAZY else 1):
            wanted = {TaskId("count", index): host for index in range(PARTITIONS)}
            version = plan.publish(wanted, at=time.time()).version
            wait_until(lambda version=version: follower.acted == version and not follower.placing.targets())
            wait_until(lambda host=host: {at.address for at in follower.placing.where().values()} == {host})
        assert follower.failure is None
        assert (follower.restarts > 0) == (scheme is Scheme.RESTART)
        if scheme is Scheme.LAZY:
            # By loaders in threads of their own, which have no active session.
            assert warm(), f"{warm()} of {len(follower.placing.landed)}"
    finally:
        follower.close()
    assert is_exact(spark, "aggregation", checkpoint)
