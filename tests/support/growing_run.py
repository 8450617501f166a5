"""A streaming query of a user's session on a cluster that exists: its hosts grow to three, one is lost, and shrink to one.

The same for every cluster: what differs is the session, the cloud and how an executor is killed.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from elastream import Autopilot
from elastream.core.action import LeaseHost, MoveTask, ReleaseHost
from elastream.core.hosts import HostState
from elastream.core.plant import Plan, Policy
from support.clusters import kill_executor
from support.waiting import wait_until

KEYS = 40


@dataclass(eq=False)
class Wanted(Policy):
    """As many hosts as `wanted` says, state partitions in turn on them; hosts of which some have been lost are replaced."""

    wanted: int = 1

    name = "wanted"

    def plan(self, observation, memory=None):
        there = [
            name for name, lease in observation.leases.items() if lease.active and lease.state is not HostState.RELEASING
        ]
        usable = [name for name in observation.usable if name in there]
        if len(there) < self.wanted:
            (kind,) = observation.context.host_types
            return Plan((LeaseHost(observation.host_name(), kind, why="a test"),))
        # The host that came first is the user's own.
        leaving = [ReleaseHost(name, why="a test") for name in usable[self.wanted :] if len(there) > self.wanted]
        if leaving:
            return Plan(tuple(leaving))
        if len(usable) < self.wanted:
            return Plan()
        at = [observation.hosts.ids[row] if row >= 0 else "" for row in observation.tasks.host.tolist()]
        moves = [
            MoveTask(task, host, why="a test")
            for task, now in zip(observation.tasks.tasks, at, strict=True)
            if now != (host := usable[task.index % len(usable)])
        ]
        return Plan(tuple(moves))


def counted_query(spark: SparkSession, folder: Path) -> Any:
    """A count by key with state, of numbers that begin with 0, ten and more a batch."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    by_key = rows.groupBy((F.col("value") % KEYS).alias("key")).agg(F.count("*").alias("n"), F.max("value").alias("last"))
    writer = by_key.writeStream.outputMode("complete").format("memory").queryName("counted")
    return (
        writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="500 milliseconds").start()
    )


def wrong_counts(spark: SparkSession) -> list:
    """Keys whose count is not that of all numbers up to the last one."""
    rows = spark.sql("select key, n, last from counted").collect()
    assert len(rows) == KEYS
    return [row for row in rows if row.n != (row.last - row.key) // KEYS + 1]


def grows_loses_and_shrinks(
    spark: SparkSession,
    cloud: Any,
    folder: Path,
    *,
    kill: Callable[[str], object] | None = None,
    executors: Callable[[], int] | None = None,
    most: int = 3,
) -> Autopilot:
    """Run the whole of it; returns the Autopilot, which has ended.

    kill: ends an executor, by id. executors: how many the cluster says that the application has. most: hosts at the widest.
    """
    application = str(spark.sparkContext.applicationId)
    kill = kill or (lambda executor: kill_executor(executor, application))
    query = counted_query(spark, folder)
    run_id = query.runId
    policy, log = Wanted(1), folder / "pilot.log"
    handler = logging.FileHandler(log)
    logging.getLogger("elastream").addHandler(handler)
    pilot = Autopilot(spark, cloud=cloud, max_hosts=most, period=1.0, policy=policy, folder=folder / "pilot").watch(query)
    try:
        wait_until(lambda: pilot.plant is not None or not pilot.running)
        assert pilot.plant is not None, log.read_text()
        hosts = pilot.plant.hosts
        wait_until(lambda: len(hosts.usable) == 1, progress=lambda: hosts.usable, otherwise=lambda: said(pilot))
        policy.wanted = most
        wait_until(lambda: len(hosts.usable) == most, progress=lambda: hosts.usable, otherwise=lambda: said(pilot))
        assert executors is None or executors() == most
        last = hosts.usable[-1]
        assert kill(hosts.executor(last).id)
        wait_until(lambda: hosts.state(last) is HostState.LOST)
        assert "gone" in hosts.reason(last)
        wait_until(lambda: len(hosts.usable) == most, progress=lambda: hosts.usable, otherwise=lambda: said(pilot))
        policy.wanted = 1
        wait_until(
            lambda: len(hosts.usable) == 1 and hosts.settled, progress=lambda: hosts.usable, otherwise=lambda: said(pilot)
        )
        if executors is not None:
            wait_until(lambda: executors() == 1)
        before = query.lastProgress["batchId"]
        wait_until(lambda: query.lastProgress["batchId"] > before + 2)
        assert query.runId == run_id
        assert query.isActive
    finally:
        pilot.stop()
        query.stop()
        logging.getLogger("elastream").removeHandler(handler)
    assert wrong_counts(spark) == []
    return pilot


def said(pilot: Autopilot) -> Any:
    hosts = pilot.plant.hosts
    return {name: (lease.state.value, hosts.reason(name)) for name, lease in hosts.leases.items()}
