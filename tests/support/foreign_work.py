"""Work of others in a session that Autopilot manages: jobs that repeat until they are told to end, queries that go on.

Each kind is a context; leaving it ends the work, and fails if any of its results was wrong.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from support.waiting import wait_until

# Workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS, KEYS = 400, 7
EXPECTED = {key: len(range(key, ROWS, KEYS)) for key in range(KEYS)}
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Repeated:
    """A job that runs again and again on a thread of its own; `times` has the seconds of each round."""

    def __init__(self, job: Callable[[], object]) -> None:
        self.times: list[float] = []
        self._job, self._told, self._fault = job, threading.Event(), None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._told.is_set():
                began = time.monotonic()
                self._job()
                self.times.append(time.monotonic() - began)
        except BaseException as fault:
            self._fault = fault

    def end(self) -> None:
        self._told.set()
        wait_until(lambda: not self._thread.is_alive())
        if self._fault is not None:
            raise self._fault


@contextlib.contextmanager
def repeated(job: Callable[[], object]) -> Iterator[Repeated]:
    """Run `job` once alone, then again and again until the context is left."""
    work = Repeated(job)
    wait_until(lambda: work.times or work._fault is not None)
    try:
        yield work
    finally:
        work.end()


def counted(frame: DataFrame) -> None:
    assert {row["k"]: row["count"] for row in frame.groupBy("k").count().collect()} == EXPECTED


def keyed(spark: SparkSession, partitions: int = 6) -> DataFrame:
    return spark.range(ROWS).repartition(partitions).select((F.col("id") % KEYS).alias("k"), "id")


def slowly(pause: float) -> Callable[[Any], Iterator[int]]:
    def count(rows: Any) -> Iterator[int]:
        time.sleep(pause)
        yield sum(1 for _ in rows)

    return count


def batch_job(spark: SparkSession, root: Path) -> Any:
    rows = spark.sparkContext.parallelize(range(ROWS), 8)
    return repeated(lambda: _equal(rows.mapPartitions(slowly(0.5)).sum(), ROWS))


def shuffle_files(spark: SparkSession, root: Path) -> Any:
    """A stage that reads the shuffle files of the one before for long."""
    pairs = spark.sparkContext.parallelize(range(ROWS), 6).map(lambda row: (row % KEYS, 1))
    return repeated(lambda: _equal(sum(pairs.groupByKey(4).mapPartitions(slowly(1.0)).collect()), KEYS))


@contextlib.contextmanager
def long_task(spark: SparkSession, root: Path) -> Iterator[None]:
    """One task that ends when it is told to."""
    told = str(root / "told")

    def wait(rows: Any) -> Iterator[int]:
        while not os.path.exists(told):
            time.sleep(0.1)
        yield sum(1 for _ in rows)

    work = Repeated(lambda: _equal(spark.sparkContext.parallelize(range(10), 1).mapPartitions(wait).sum(), 10))
    wait_until(lambda: spark.sparkContext.statusTracker().getActiveStageIds())
    yield
    Path(told).touch()
    work.end()
    assert len(work.times) >= 1


def second_session(spark: SparkSession, root: Path) -> Any:
    other = spark.newSession()
    return repeated(lambda: counted(keyed(other)))


CLIENT = """
import os, sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
while not os.path.exists(sys.argv[2]):
    rows = spark.range(400).repartition(6).groupBy((F.col("id") % 7).alias("k")).count().collect()
    assert sum(row["count"] for row in rows) == 400 and len(rows) == 7
    open(sys.argv[3], "a").write("round\\n")
"""


@contextlib.contextmanager
def connect_client(spark: SparkSession, root: Path) -> Iterator[None]:
    pytest.importorskip("grpc")
    port = spark.conf.get("spark.connect.grpc.binding.port")
    told, rounds = root / "told", root / "rounds"
    client = [sys.executable, "-c", CLIENT, f"sc://127.0.0.1:{port}", str(told), str(rounds)]
    process = subprocess.Popen(client, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: rounds.exists() or process.poll() is not None)
        yield
    finally:
        told.touch()
        _, errors = process.communicate()
    assert process.returncode == 0, errors[-2000:]


def pandas_udf(spark: SparkSession, root: Path) -> Any:
    import pandas as pd

    @F.pandas_udf("long")
    def same(values: pd.Series) -> pd.Series:
        return values

    return repeated(lambda: counted(keyed(spark).select(same("k").alias("k"))))


def barrier_stage(spark: SparkSession, root: Path) -> Any:
    def together(rows: Any) -> Iterator[int]:
        from pyspark import BarrierTaskContext

        BarrierTaskContext.get().barrier()
        return slowly(0.5)(rows)

    rows = spark.sparkContext.parallelize(range(ROWS), 2)
    return repeated(lambda: _equal(rows.barrier().mapPartitions(together).sum(), ROWS))


def broadcast_join(spark: SparkSession, root: Path) -> Any:
    small = spark.range(KEYS).withColumnRenamed("id", "k")
    return repeated(lambda: counted(keyed(spark).join(F.broadcast(small), "k")))


def cached_table(spark: SparkSession, root: Path) -> Any:
    """A table that is cached, read several times, and dropped."""

    def job() -> None:
        table = keyed(spark).cache()
        for _ in range(3):
            counted(table)
        table.unpersist(blocking=True)

    return repeated(job)


@contextlib.contextmanager
def _goes_on(spark: SparkSession, query: Any) -> Iterator[Any]:
    try:
        yield query
        assert query.isActive, query.exception()
    finally:
        query.stop()


def continuous(spark: SparkSession, root: Path) -> Any:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 20).option("numPartitions", 1).load()
    writer = rows.selectExpr("value").writeStream.queryName("continuous").format("noop")
    query = writer.option("checkpointLocation", str(root / "c")).trigger(continuous="1 second").start()
    wait_until(lambda: "epoch" in query.status["message"] or query.exception() is not None)
    return _goes_on(spark, query)


def real_time(spark: SparkSession, root: Path) -> Any:
    jvm = spark._jvm
    try:
        trigger = jvm.org.apache.spark.sql.streaming.Trigger.RealTime("5 seconds")
        source = jvm.org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream
        rows = source.singlePartition(spark._jsparkSession, jvm.org.apache.spark.sql.Encoders.LONG()).toDF()
    except (Py4JError, TypeError):
        pytest.skip(f"Spark {spark.version} has no real-time mode, or no source to try it with")
    writer = DataFrame(rows, spark).writeStream.queryName("real-time").format("console").outputMode("update")
    writer._jwrite.trigger(trigger)
    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ROCKSDB)  # real-time mode refuses a session in which another one is set
    query = writer.option("checkpointLocation", str(root / "c")).start()
    spark.conf.set(PROVIDER, before)
    return _goes_on(spark, query)


def foreach_batch(spark: SparkSession, root: Path) -> Any:
    def twice(frame: DataFrame, number: int) -> None:
        before = frame.count()
        frame.write.format("noop").mode("overwrite").save()
        assert frame.count() == before

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 60).load()
    writer = rows.writeStream.queryName("each").foreachBatch(twice).option("checkpointLocation", str(root / "c"))
    return _goes_on(spark, writer.trigger(processingTime="500 milliseconds").start())


KINDS: dict[str, Callable[[SparkSession, Path], Any]] = {
    each.__name__: each
    for each in (
        continuous,
        real_time,
        batch_job,
        long_task,
        second_session,
        connect_client,
        pandas_udf,
        barrier_stage,
        broadcast_join,
        cached_table,
        shuffle_files,
        foreach_batch,
    )
}


def failed_tasks(spark: SparkSession) -> int:
    """Return the tasks that failed or ran again so far, on executors that are gone, too."""
    everyone = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(everyone.apply(number).failedTasks() for number in range(everyone.size()))


def _equal(one: object, other: object) -> None:
    assert one == other
