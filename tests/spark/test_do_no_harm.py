"""Autopilot grows and shrinks three times beside work of others: none of their tasks is lost, and no stage runs again.

Times of their jobs are printed, relative to the same job before: `pytest -s`.
"""

import contextlib
import statistics
from dataclasses import dataclass

import pytest
from pyspark.sql import functions as F

from elastream import Autopilot
from elastream.core.action import DrainHost, LeaseHost, ReleaseHost
from elastream.core.hosts import HostState
from elastream.core.plant import Plan, Policy
from elastream.policies.common.measures import tasks_on
from support.clusters import free_port
from support.foreign_sessions import local_cluster
from support.foreign_work import KINDS, Repeated, failed_tasks, slowly
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]
QUICK = ("continuous", "batch_job", "cached_table")
FEW, MANY = 2, 3
# Jobs of others may take this many times as long as without changes of hosts, by rounds of each before and after them.
BAR, ALONE = 1.1, 3


@dataclass(frozen=True)
class Steered(Policy):
    """Wants as many hosts as `wanted["hosts"]` says, and gives back those without work of others first."""

    wanted: dict
    name = "steered"

    def plan(self, observation, memory=None):
        running = [host for host, lease in observation.leases.items() if lease.state is HostState.RUNNING]
        missing = self.wanted["hosts"] - len(running) - len(observation.coming)
        kind = next(iter(observation.context.host_types))
        actions = [LeaseHost(observation.host_name(number), kind) for number in range(missing)]
        if missing < 0 and not observation.coming:
            movable = [host for host in running if host not in observation.pinned]
            surplus = sorted(movable, key=lambda host: host in observation.occupied)[:-missing]
            actions += [DrainHost(host) for host in surplus]
        actions += [ReleaseHost(host) for host in observation.draining if not tasks_on(observation, host)]
        return Plan(tuple(actions))


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    settings = {"spark.sql.shuffle.partitions": "3", "spark.executor.cores": "2"}
    with contextlib.suppress(ImportError):
        import grpc  # noqa: F401 - a Connect client needs it

        settings["spark.plugins"] = "org.apache.spark.sql.connect.SparkConnectPlugin"
        settings["spark.connect.grpc.binding.port"] = str(free_port())
    root = tmp_path_factory.mktemp("session")
    with local_cluster(root, 600, settings, executors=MANY, cores=2) as session:
        yield session


@pytest.fixture(scope="module")
def pilot(spark, tmp_path_factory):
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 60).load()
    writer = rows.groupBy((F.col("value") % 20).alias("k")).count().writeStream.queryName("counts").format("noop")
    writer = writer.outputMode("update").option("checkpointLocation", str(tmp_path_factory.mktemp("counts")))
    query = writer.trigger(processingTime="500 milliseconds").start()
    with Autopilot(spark, policy=Steered({"hosts": FEW}), period=0.5, max_hosts=MANY).watch(query) as pilot:
        wait_until(lambda: pilot.plant is not None)
        reaches(pilot, FEW)
        yield pilot
        assert query.isActive, query.exception()


def reaches(pilot, hosts):
    """Wait until Autopilot has so many hosts, and none that comes or goes."""
    pilot._policy.wanted["hosts"] = hosts
    wait_until(lambda: len(pilot.plant.hosts.usable) == len(pilot.plant.hosts.active) == hosts)


def test_executor_with_cached_blocks_waits_until_they_are_dropped(spark, pilot):
    reaches(pilot, MANY)
    table = spark.sparkContext.parallelize(range(12), 12).mapPartitions(slowly(0.5)).persist()
    assert table.count() == 12
    plant = pilot.plant
    wait_until(lambda: all("cached data" in plant.hosts.others(host) for host in plant.hosts.usable))
    pilot._policy.wanted["hosts"] = FEW
    wait_until(lambda: not plant.hosts.settled)
    looks = plant.looks
    wait_until(lambda: plant.looks > looks + 3)
    assert len(plant.hosts.active) == MANY
    table.unpersist(True)
    reaches(pilot, FEW)


@pytest.mark.parametrize("kind", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in KINDS])
def test_no_task_of_others_is_lost_while_hosts_come_and_go(spark, pilot, tmp_path, kind):
    before = failed_tasks(spark)
    with KINDS[kind](spark, tmp_path) as work:
        begun = rounds(work)
        for _ in range(3):
            reaches(pilot, MANY)
            reaches(pilot, FEW)
        ended = rounds(work)
    reaches(pilot, FEW)
    assert failed_tasks(spark) == before
    if isinstance(work, Repeated):
        # The first run loads classes and starts workers.
        beside, alone = work.times[begun : ended - ALONE], work.times[1:begun] + work.times[ended - ALONE : ended]
        print(f"{kind}: {verdict(beside, alone)}")


def rounds(work):
    """Wait until a job has run ALONE times more, the one under way not counted; return its runs so far."""
    if not isinstance(work, Repeated):
        return 0
    before = len(work.times)
    wait_until(lambda: len(work.times) > before + ALONE or work._fault is not None)
    return before + ALONE + 1


def verdict(beside, alone):
    """Return how much slower jobs were while hosts came and went; undecided if the jobs alone differ by more."""
    slower, noise = statistics.median(beside) / statistics.median(alone), max(alone) / min(alone)
    word = "held" if slower <= BAR else "missed" if noise <= BAR else "undecided"
    return f"{slower:.2f} x of {statistics.median(alone):.2f} s, {word} (alone they differ by {noise:.2f} x)"
