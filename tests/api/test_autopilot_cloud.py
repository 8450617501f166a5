"""Hosts of a cloud that Autopilot opens beside somebody else's session: they join its master, work, and go without harm."""

import logging

import pytest
from pyspark.sql import functions as F

from elastream import Autopilot, HostType, Local
from elastream.clouds.local.hosts import LocalHosts
from elastream.core.action import LeaseHost, MoveTask
from elastream.core.plant import Plan, Policy
from elastream.spark.attach import join
from support.foreign_sessions import TINY, one_executor
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with one_executor(tmp_path_factory.mktemp("cluster")) as (session, _):
        yield session


@pytest.fixture
def query(spark, tmp_path):
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
    counts = rows.groupBy((F.col("value") % 20).alias("k")).count().writeStream.outputMode("update").format("noop")
    counts = counts.option("checkpointLocation", str(tmp_path / "checkpoint")).queryName("q")
    running = counts.trigger(processingTime="500 milliseconds").start()
    yield running
    running.stop()


class OneMore(Policy):
    """Leases one host, and wants the first partition there."""

    name = "one more"

    def plan(self, observation, memory=None):
        if len(observation.leases) < 2:
            return Plan((LeaseHost(observation.host_name(0), "tiny", why="a test"),))
        tasks = [task for task in observation.tasks.tasks if task.index == 0 and len(observation.usable) == 2]
        return Plan(tuple(MoveTask(task, observation.usable[-1], why="a test") for task in tasks))


def test_host_joins_takes_a_partition_and_goes_while_the_query_runs(spark, query, caplog):
    caplog.set_level(logging.INFO, "elastream.autopilot")
    with Autopilot(spark, period=0.5, policy=OneMore(), cloud=Local(TINY, max_hosts=2), max_hosts=2).watch(query) as pilot:
        wait_until(lambda: pilot.plant is not None and [each.task.index for each in pilot.plant.placing.landed] == [0])
        plant = pilot.plant
        assert set(plant.reconciler.locations().values()) <= {"h1", "h2"}
    assert pilot.join(60)
    assert pilot.remaining_hosts == []
    batch = query.lastProgress["batchId"]
    wait_until(lambda: query.lastProgress["batchId"] > batch + 2)
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    assert executors.size() == 2, "the driver and the executor that was there before"
    said = [record.message for record in caplog.records]
    assert any(message.startswith("lease h2") for message in said)
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []


def test_cloud_that_cannot_be_is_one_line_and_partitions_are_watched(spark, query, caplog):
    small = HostType("small", cores=0.8, slots=1, memory=700.0)
    with Autopilot(spark, period=0.5, cloud=Local(small), max_hosts=2).watch(query) as pilot:
        wait_until(lambda: pilot.plant is not None and len(pilot.plant.observe().tasks) == 2)
        assert pilot.plant.context.host_types == {}
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("hosts cannot be leased: an executor of this session takes")


def test_next_autopilot_adopts_hosts_of_a_provider_that_runs_on(spark, query, tmp_path):
    (tmp_path / "hosts").mkdir()
    provider = join(Local(TINY, max_hosts=2), spark, tmp_path / "hosts")
    try:
        found = []
        for _ in range(2):
            pilot = Autopilot(spark, period=0.5, policy=OneMore(), cloud=provider, max_hosts=2, folder=tmp_path / "kept")
            with pilot.watch(query):
                wait_until(lambda pilot=pilot: pilot.plant is not None and len(pilot.plant.hosts.usable) == 2)
                found.append({host: pilot.plant.hosts.leases[host] for host in pilot.plant.hosts.leased})
            assert pilot.join(60)
        assert [[*leases] for leases in found] == [["h2"], ["h2"]]
        assert found[1]["h2"].since < 0 < found[0]["h2"].since
        assert [*provider.hosts()] == ["h2"]
    finally:
        provider.close()


def test_original_number_of_executors_is_restored_on_request(tmp_path):
    with one_executor(tmp_path / "cluster", max_hosts=2) as (spark, cluster):
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
        counts = rows.groupBy((F.col("value") % 20).alias("k")).count().writeStream.outputMode("update").format("noop")
        query = counts.option("checkpointLocation", str(tmp_path / "checkpoint")).queryName("q")
        running = query.trigger(processingTime="500 milliseconds").start()
        options = {
            "period": 0.5,
            "policy": OneMore(),
            "cloud": LocalHosts(cluster, 1, 2),
            "max_hosts": 2,
            "restore": "original",
        }
        with Autopilot(spark, **options).watch(running) as pilot:
            wait_until(lambda: pilot.plant is not None and [at.task.index for at in pilot.plant.placing.landed] == [0])
        assert pilot.join(60)
        executors = spark.sparkContext._jsc.sc().statusStore().executorList
        wait_until(lambda: executors(True).size() == 2)  # the driver and the executor that was there before
        batch = running.lastProgress["batchId"]
        wait_until(lambda: running.lastProgress["batchId"] > batch + 2)
        running.stop()
