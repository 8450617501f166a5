"""Makes the archive of Java classes from which hosts of this machine start, where there is none for this environment yet.

A run makes one too, in idle time, but its own hosts start without. So set-up has one host do what hosts do: a task that
crosses into Python, and a micro-batch with state.
"""

import contextlib
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from elastream.clouds.local import archive, java
from elastream.clouds.local.local import Local
from elastream.core.hosts import HostType
from elastream.spark.hosts.warmup import warm_up
from elastream.spark.jvm import session
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.executors import Executors

HOST = HostType("archived", cores=1.0, slots=1, memory=1000.0)
LIMIT = 180.0
POLL = 0.1


def main() -> str:
    """Make it; why there is none afterwards, empty where there is one."""
    wanted = archive.archive_for(java.find_java())
    if wanted is None:
        return "this Java has no archives of classes"
    if wanted.usable():
        return ""
    until = time.monotonic() + LIMIT
    with tempfile.TemporaryDirectory(prefix="archive-") as name, contextlib.ExitStack() as closing:
        folder = Path(name)
        provider = Local(HOST, max_hosts=1).open(folder)
        closing.callback(provider.close)
        provider.lease({"h1": HOST})
        endpoint = provider.terms.endpoint
        assert endpoint is not None, "hosts of this machine bring their own cluster"
        settings = session.settings_for(
            driver_address=endpoint.driver_address,
            executor_memory=endpoint.executor_memory,
            executor_cores=endpoint.executor_cores,
            state_partitions=1,
            host_cores=[0.5],
            java_options=endpoint.java_options,
        )
        spark = session.open_session(endpoint.master, "archive", folder, {**settings, **endpoint.settings}, endpoint.secret)
        closing.callback(spark.stop)
        driver = DriverSide(spark)
        executors = Executors(driver)
        while not (there := executors.by_address()):
            if time.monotonic() > until:
                return f"no executor came within {LIMIT:g} s"
            provider.hosts()  # starts those that wait
            time.sleep(POLL)
        (executor,) = there.values()
        warm_up(spark, driver, executor, folder)
        batches(spark, folder, until)
        return wanted.make(provider.cluster.loaded_classes())


def batches(spark: SparkSession, folder: Path, until: float) -> None:
    """Two micro-batches with state, or as many as there are time for."""
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counted = ticks.selectExpr("value % 3 as third").groupBy("third").count()
    query = (
        counted.writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    while query.isActive and (query.lastProgress or {"batchId": 0})["batchId"] < 1 and time.monotonic() < until:
        time.sleep(POLL)
    query.stop()


if __name__ == "__main__":
    if why := main():
        print(f"hosts start slower than they could: {why}", file=sys.stderr)
