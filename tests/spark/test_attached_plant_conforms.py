"""The plant over a stranger's session keeps the contract that policies rely on, with hosts of a provider."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from conformance.suite import PlantCase, conformance_suite
from elastream.clouds.local.hosts import LocalHosts
from elastream.core.promises import PlantKind
from elastream.settings import AutopilotSettings
from elastream.spark.attach import AttachedPlant, Leasing, attach
from elastream.spark.jvm.capabilities import probe
from support.foreign_sessions import TINY, one_executor

OPENED = ExitStack()


def start() -> AttachedPlant:
    """A session on a cluster of its own, one executor that is just there, and a count that runs."""
    root = Path(tempfile.mkdtemp(prefix="attached-"))
    spark, cluster = OPENED.enter_context(one_executor(root / "cluster", max_hosts=5, state_partitions=4))
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
    counts = rows.groupBy((F.col("value") % 20).alias("k")).count().writeStream.outputMode("update").format("noop")
    counts.option("checkpointLocation", str(root / "checkpoint")).trigger(processingTime="500 milliseconds").start()
    hosts = LocalHosts(cluster, min_hosts=1, max_hosts=5)
    can = probe(spark, hosts)
    assert can.driver is not None
    return attach(spark, can, AutopilotSettings(max_hosts=4), Leasing(hosts, kinds=[TINY]))


@pytest.fixture(scope="module", autouse=True)
def closed():
    yield
    OPENED.close()


@pytest.mark.spark
@pytest.mark.slow
class TestAttachedPlant(
    conformance_suite(PlantCase("attached", start, PlantKind.WATCHED, settle=300.0, examples=2, shared=True))
):  # type: ignore[misc]
    """The whole suite on one plant."""
