"""A user's session and query, on hosts limited to a part of a core, so that the driver keeps its share."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from _common import wait_until
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elastream import Autopilot, HostType, Local
from elastream.clouds.local.cluster import LocalCluster
from elastream.spark.attach import AttachedPlant
from elastream.spark.jvm.session import open_session, settings_for

HOST = HostType("third", cores=0.35, slots=1, memory=1000.0)
"""Four of them use 1.4 cores; two are the least that these benchmarks run on."""
KEYS, STATES = 64, 16
SPARKS_OWN: Mapping[str, str] = {"spark.locality.wait": "3s"}
"""Elastream's own sessions wait less for an executor that is gone; a stranger's waits as Spark does."""


def executors(spark: SparkSession) -> int:
    return int(spark.sparkContext._jsc.sc().statusStore().executorList(True).size()) - 1


def await_executors(spark: SparkSession, number: int, limit: float = 120.0) -> None:
    wait_until(lambda: executors(spark) >= number, limit)


@contextmanager
def session_on_hosts(
    first: int,
    most: int,
    *,
    host: HostType = HOST,
    states: int = STATES,
    more: Mapping[str, str] = SPARKS_OWN,
) -> Iterator[tuple[SparkSession, LocalCluster, Path]]:
    """A session on hosts h1, h2... up to `first`, without a quota yet, and a folder for checkpoints. states: of a query."""
    root = Path(tempfile.mkdtemp(prefix="stranger-"))
    cluster = LocalCluster(Local(host, max_hosts=most), root / "cluster")
    master = cluster.start()
    spark = None
    try:
        for number in range(1, first + 1):
            cluster.spawn(f"h{number}", host)
        settings = settings_for(
            driver_address=cluster.driver_address,
            executor_memory=cluster.executor_memory_mb,
            executor_cores=1,
            state_partitions=states,
            host_cores=[0.5],
        )
        closed = cluster.secrets
        settings = {**settings, **closed.session_settings, **more}
        spark = open_session(master, "stranger", cluster.folder, settings, closed.shared)
        await_executors(spark, first)
        yield spark, cluster, root
    finally:
        cluster.close()
        if spark is not None:
            spark.stop()
        shutil.rmtree(root, ignore_errors=True)


def start_work(
    spark: SparkSession, root: Path, steps: int, share: str = "1", trigger: str = "100 milliseconds"
) -> StreamingQuery:
    """Count each key, and then compute, in the same tasks, `steps` times `share` (an expression of the key k)."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5 * KEYS).option("numPartitions", 2).load()
    counts = rows.groupBy((F.col("value") % KEYS).alias("k")).count()
    many = f"sequence(1L, cast(1 + {steps} * {share} as long))"
    worked = counts.selectExpr("k", f"aggregate({many}, count, (a, x) -> (a * 31 + x) % 1000003) as n")
    writer = worked.writeStream.outputMode("update").format("noop").trigger(processingTime=trigger)
    return writer.option("checkpointLocation", str(root / f"checkpoint-{steps}")).start()


def newest(query: StreamingQuery) -> int:
    """Return the id of the newest batch that has ended; -1 if there is none."""
    return -1 if query.lastProgress is None else int(query.lastProgress["batchId"])


def attached(pilot: Autopilot, limit: float = 120.0) -> AttachedPlant:
    wait_until(lambda: pilot.plant is not None, limit)
    assert pilot.plant is not None
    return pilot.plant


def ended(query: StreamingQuery, batches: int, limit: float = 180.0) -> None:
    until = newest(query) + batches
    wait_until(lambda: newest(query) >= until or not query.isActive, limit)


def seconds_of(query: StreamingQuery, first: int) -> list[float]:
    return [p["durationMs"]["triggerExecution"] / 1e3 for p in query.recentProgress if p["batchId"] >= first]
