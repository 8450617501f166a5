"""The plant over a stranger's session keeps the contract that policies rely on, with hosts of a provider."""

import tempfile
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from conformance.suite import PlantCase, conformance_suite
from elastream import HostType, Local
from elastream.spark.attached import AttachedPlant
from elastream.spark.capabilities import probe
from elastream.spark.local import LocalCluster
from elastream.spark.session import open_session, settings_for
from spark_jvm import forget_jvm

TINY = HostType("tiny", cores=1.0, slots=1, memory=1000.0)
OPENED = []


def start() -> AttachedPlant:
    """A session on a cluster of its own, one executor that is just there, and a count that runs."""
    root = Path(tempfile.mkdtemp(prefix="attached-"))
    cluster = LocalCluster(Local(TINY, max_hosts=5), root / "cluster")
    master = cluster.start()
    cluster.lease("stranger")
    forget_jvm()
    settings = settings_for(
        driver_address=cluster.driver_address,
        executor_memory=cluster.executor_memory_mb,
        executor_cores=1,
        state_partitions=2,
    )
    spark = open_session(master, "stranger", cluster.folder, settings)
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
    counts = rows.groupBy((F.col("value") % 20).alias("k")).count().writeStream.outputMode("update").format("noop")
    counts.option("checkpointLocation", str(root / "checkpoint")).trigger(processingTime="500 milliseconds").start()
    can = probe(spark, cluster)
    assert can.driver is not None
    OPENED.append((spark, cluster))
    return AttachedPlant(spark, can.driver, can.task_loads, max_hosts=4, provider=cluster, kinds=[TINY])


@pytest.fixture(scope="module", autouse=True)
def closed():
    yield
    for spark, cluster in OPENED:
        spark.stop()
        cluster.close()
    forget_jvm()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
class TestAttachedPlant(conformance_suite(PlantCase("attached", start, settle=120.0, examples=2, shared=True))):  # type: ignore[misc]
    """The whole suite on one plant."""
