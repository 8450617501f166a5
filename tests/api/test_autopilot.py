"""Autopilot beside queries that know nothing of it, in one session with two executors."""

import logging
from dataclasses import dataclass

import pytest
from pyspark.sql import functions as F

from elastream import Autopilot, ElastreamError
from elastream.core.action import LeaseHost, MoveTask, ReleaseHost, Status
from elastream.core.hosts import HostState, HostType
from elastream.core.plant import Plan, Policy
from elastream.core.task_id import TaskId
from elastream.policies.by_load import ByLoad
from elastream.settings import AutopilotSettings
from elastream.spark.attach import Leasing, attach
from elastream.spark.jvm.capabilities import Capabilities, probe
from support.foreign_sessions import two_executors
from support.waiting import wait_until

PARTITIONS = 3
ONE_SLOT = HostType("one slot", cores=1, slots=1, price=0.0, start=10.0)
pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with two_executors(tmp_path_factory.mktemp("session"), 600, shuffle_partitions=str(PARTITIONS)) as session:
        yield session


def records(spark):
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 60).load()


def start_counts(spark, checkpoint, name="counts", per_key=None):
    keyed = records(spark).withColumn("k", F.col("value") % 20 if per_key is None else per_key(F.col("value")))
    writer = keyed.groupBy("k").count().writeStream.queryName(name).outputMode("update").format("noop")
    return writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="500 milliseconds").start()


def start_join(spark, checkpoint):
    sides = [
        records(spark)
        .select((F.col("value") % 20).alias(f"k{n}"), F.col("timestamp").alias(f"t{n}"))
        .withWatermark(f"t{n}", "5 seconds")
        for n in (1, 2)
    ]
    joined = sides[0].join(sides[1], F.expr("k1 = k2 and t2 between t1 and t1 + interval 1 second"))
    writer = joined.writeStream.queryName("joined").format("noop").option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="1 second").start()


@pytest.fixture(scope="module")
def queries(spark, tmp_path_factory):
    root = tmp_path_factory.mktemp("checkpoints")
    started = [start_counts(spark, root / "counts"), start_join(spark, root / "joined")]
    wait_until(lambda: all(query.lastProgress and query.lastProgress["batchId"] >= 2 for query in started))
    return started


def tasks(pilot):
    plant = pilot.plant
    return {} if plant is None else {str(task): at.executor for task, at in plant.placing.where().items()}


@dataclass(frozen=True)
class Swap(Policy):
    """Wants the first partition of every stage on the host that had it not when this policy saw it first."""

    first: dict

    name = "swap"

    def plan(self, observation, memory=None):
        hosts = observation.hosts.ids
        for task, row in zip(observation.tasks.tasks, observation.tasks.host.tolist(), strict=True):
            if task.index == 0:
                self.first.setdefault(task, next(host for host in hosts if host != hosts[row]))
        return Plan(tuple(MoveTask(task, host, why="a test") for task, host in self.first.items()))


def settings_of(spark):
    live = dict(spark.conf.getAll)
    return dict(spark.sparkContext.getConf().getAll()), live


def test_a_number_of_hosts_that_makes_no_sense_is_said_at_once():
    with pytest.raises(ElastreamError, match="min_hosts 3 and max_hosts 2"):
        Autopilot(None, min_hosts=3, max_hosts=2)
    with pytest.raises(ElastreamError, match="not a duration"):
        Autopilot(None, period="often")


def test_only_the_queries_that_are_named_are_watched(spark, queries):
    with Autopilot(spark, period=0.5, observe_only=True).watch(queries[1]) as pilot:
        wait_until(lambda: tasks(pilot))
        assert [query.name for query in pilot.plant.queries.all] == ["joined"]


def test_partitions_land_where_the_policy_wants_and_settings_stay(spark, queries, caplog):
    caplog.set_level(logging.INFO, "elastream.autopilot")
    before, runs, policy = settings_of(spark), [query.runId for query in queries], Swap({})
    with Autopilot(spark, period=0.5, policy=policy).watch(*queries) as pilot:
        wanted = {TaskId("counts/aggregate0", 0), TaskId("joined/join0", 0)}
        wait_until(lambda: wanted <= {each.task for each in pilot.plant.placing.landed} if pilot.plant else False)
        wait_until(lambda: all(pilot.plant.reconciler.locations().get(task) == host for task, host in policy.first.items()))
    assert not pilot.running
    assert settings_of(spark) == before
    assert [query.runId for query in queries] == runs
    assert all(query.isActive for query in queries)
    assert any("move joined/join0#0 to h" in record.message and "(a test)" in record.message for record in caplog.records)


def test_observe_only_says_what_it_would_do_and_does_nothing(spark, queries, caplog):
    caplog.set_level(logging.INFO, "elastream.autopilot")
    with Autopilot(spark, period=0.3, policy=Swap({}), observe_only=True).watch(*queries) as pilot:
        wait_until(lambda: any("would move" in record.message for record in caplog.records))
        wait_until(lambda: pilot._loop._round >= 5)
        assert pilot.plant.placing.plan.latest.version == 0
        assert not pilot.plant.placing.landed


def test_without_telemetry_of_tasks_nothing_is_known_and_nothing_is_done(spark, queries):
    plant = attach(spark, Capabilities(probe(spark).driver), AutopilotSettings())
    try:
        wait_until(lambda: {"counts/aggregate0", "joined/join0"} <= set(plant.observe().context.graph.by_name))
        observation = plant.observe()
        assert len(observation.tasks) == 0
        assert ByLoad().plan(observation).actions == ()
    finally:
        plant.close()


def test_restarted_query_is_followed_and_a_failing_one_does_no_harm(spark, queries, tmp_path):
    with Autopilot(spark, period=0.3).watch() as pilot:
        again = start_counts(spark, tmp_path / "again", "again")
        failing = start_counts(spark, tmp_path / "failing", "failing", lambda n: F.raise_error(F.lit("as meant")))
        wait_until(lambda: any(name.startswith("again/") for name in tasks(pilot)))
        wait_until(lambda: failing.exception() is not None)
        again.stop()
        again = start_counts(spark, tmp_path / "again", "again")

        def runs():
            return {query.name: query.runs for query in pilot.plant.queries.all}

        wait_until(lambda: runs()["again"] == 2 and any(name.startswith("again/") for name in tasks(pilot)))
        assert pilot.running
        again.stop()


def test_executor_without_partitions_is_given_back_and_requested_again(spark, queries):
    can, runs = probe(spark), [query.runId for query in queries]
    plant = attach(spark, can, AutopilotSettings(max_hosts=2), Leasing(asks=can.asks, kinds=[ONE_SLOT]))

    def observed(holds):
        return lambda: holds(plant.observe())

    try:
        wait_until(observed(lambda o: len(o.tasks) == 2 * PARTITIONS))
        assert plant.apply(ReleaseHost("h2")).succeeded
        wait_until(observed(lambda o: "h2" not in o.leases))
        assert {lease.host: lease.state for lease in plant.ledger}["h2"] is HostState.RELEASED
        assert set(plant.reconciler.locations().values()) == {"h1"}
        assert plant.apply(ReleaseHost("h1")).status is Status.REFUSED
        assert plant.apply(LeaseHost("h3", "one slot")).succeeded
        wait_until(observed(lambda o: o.usable == ("h1", "h3")))
        assert [query.runId for query in queries] == runs
    finally:
        plant.close()


def test_pilot_ends_with_its_query_and_says_where_its_recording_is(spark, queries, tmp_path, caplog, capsys):
    caplog.set_level(logging.INFO, "elastream.autopilot")
    query = start_counts(spark, tmp_path / "short", "short")
    pilot = Autopilot(spark, period=0.3, folder=tmp_path / "run").watch(query)
    wait_until(lambda: tasks(pilot))
    query.stop()
    assert pilot.join(60)
    said = [record.message for record in caplog.records if record.name == "elastream.autopilot"]
    assert said[-1].endswith("all watched queries ended")
    told = [line for line in capsys.readouterr().err.splitlines() if "autopilot" in line]
    assert told[0] == f"autopilot records to {tmp_path / 'run'}"
    assert told[-1] == f"autopilot stopped; elastream report {tmp_path / 'run'} shows what it did"
    assert pilot.result.summary.rounds >= 1
    assert pilot.result.report.exists()
    assert len(pilot.result.frames.decisions) == pilot.result.summary.rounds


def test_a_session_that_is_stopped_under_it_ends_it_without_a_fault(spark, queries, caplog):
    pilot = Autopilot(spark, period=0.3).watch()
    wait_until(lambda: tasks(pilot))
    spark.stop()
    assert pilot.join(60)
    assert [
        record.message for record in caplog.records if record.name == "elastream.autopilot" and record.levelno > 30
    ] == []
