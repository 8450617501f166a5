"""Tasks of a real cluster, measured: what a dataflow costs by state partition, and what its stages send each other."""

import time

import numpy as np
import pytest
from pyspark.sql import functions as F

from elastream import Dataflow, HostType, Local
from elastream.core.action import MoveTask
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.dataflow.endpoints import parquet, records
from elastream.errors import EnvironmentProblem
from elastream.loads import constant
from elastream.recording.directory import RunDirectory
from elastream.settings import RunSettings
from elastream.spark.jvm.driver_side import DriverSide, TaskLoads
from elastream.spark.jvm.state_partitions import stateful_stages
from elastream.spark.queries.query import StatefulTasks
from elastream.spark.start import start_plant
from elastream.spark.telemetry.traffic import MapOutputs
from support.waiting import observed

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TINY = HostType("tiny", cores=1.0, slots=1, memory=1000.0)
LINES = [f"{'abcdefghij'[n % 10]} {'klmnopqrst'[n // 10 % 10]} {n % 7}" for n in range(500)]


def words_of(line):
    return line.split()


@pytest.fixture(scope="module")
def plant(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    flow = Dataflow("letters")
    lines = flow.source(records([{"value": line} for line in LINES], "value string"), load=constant("2000/s"))
    words = lines.flat_map(words_of, returns="word string", name="split")
    words.key_by("word").count().sink(parquet(folder / "out"))
    plant = start_plant(
        flow.graph,
        RunDirectory.create(folder / "runs", "letters"),
        RunSettings(cloud=Local(TINY, max_hosts=2, min_hosts=2), target_latency=3.0, state_partitions=4),
    )
    yield plant
    plant.close()


@pytest.fixture(scope="module")
def chained(plant, tmp_path_factory):
    """Two stages with state in a row, which no dataflow of ours has in one query: numbers told apart, then counted."""
    spark = plant.spark
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 6000).option("numPartitions", 2).load()
    query = (
        numbers.select(F.col("value"), (F.col("value") % 11).alias("key"))
        .dropDuplicates(["value"])
        .groupBy("key")
        .count()
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(tmp_path_factory.mktemp("chained")))
        .trigger(processingTime="1 second")
        .start()
    )
    yield query
    query.stop()


def test_what_each_state_partition_costs_is_measured(plant):
    seen = observed(plant, lambda o: len(o.tasks) == 4 and not np.isnan(o.tasks.column(Metric.BUSY_CORES)).any())
    busy, occupied = seen.tasks.column(Metric.BUSY_CORES), seen.tasks.column(Metric.UTILISATION)
    assert (busy > 0).all()
    assert (occupied >= busy * 0.9).all()  # a task keeps its slot at least while it computes
    assert occupied.sum() < 2.2  # two slots
    assert (seen.tasks.column(Metric.TRAFFIC) > 0).all()
    assert np.isnan(seen.tasks.column(Metric.MEMORY)).all()


def test_the_feed_of_a_keyed_operator_has_no_host_and_crosses_hosts(plant):
    for index, host in enumerate(("h1", "h2", "h1", "h2")):
        plant.apply(MoveTask(TaskId("count", index), host))
    before = plant.queries.telemetry.batches
    seen = observed(plant, lambda o: not plant.placing.targets() and plant.queries.telemetry.batches > before + 8)
    assert seen.exchange.known
    assert set(seen.exchange.source.tolist()) == {-1}
    assert sorted(seen.exchange.target.tolist()) == [0, 1, 2, 3]
    # Sizes are kept rounded up to the next power of 1.1.
    assert seen.exchange.rate.sum() == pytest.approx(seen.tasks.column(Metric.TRAFFIC).sum(), rel=0.12)
    assert seen.links.ids == ("h1>h2", "h2>h1")
    crossing = seen.links.column(Metric.TRAFFIC).sum()
    assert 0 < crossing < seen.exchange.rate.sum()
    assert seen.hosts.value("h1", Metric.BANDWIDTH) == pytest.approx(crossing)
    assert np.isnan(seen.links.column(Metric.BANDWIDTH)).all()  # nothing limits them here


def test_bytes_between_stateful_stages_add_up_to_all_reads(plant, chained):
    while chained.lastProgress is None or chained.lastProgress["batchId"] < 3:
        assert chained.exception() is None
        time.sleep(0.2)
    driver, loads, outputs = DriverSide(plant.spark), TaskLoads(plant.spark), MapOutputs(plant.spark)
    execution = chained._jsq.streamingQuery()
    while (stages := stateful_stages(driver, execution)) is None:  # a batch is being planned
        time.sleep(0.2)
    assert [[operator.kind for operator in stage.operators] for stage in stages] == [
        ["StreamingDeduplicate"],
        ["StateStoreSave"],
    ]
    watch = StatefulTasks(loads, execution, stages, senders=True)
    told = watch.poll()
    flows = outputs.flows(told)
    assert [(flow.sender.ranks, flow.receiver.ranks) for flow in flows] == [((), (0,)), ((0,), (1,))]
    for flow in flows:
        local, remote = flow.receiver.local_bytes, flow.receiver.remote_bytes
        assert flow.bytes.sum(axis=0) == pytest.approx(local + remote, rel=0.11, abs=2)
        assert flow.bytes.sum() >= (local + remote).sum()  # rounded up, never down by more than a byte a block
        executors = {where: number for number, where in enumerate(sorted({*flow.sender.executor, *flow.receiver.executor}))}
        between = flow.between(executors, len(executors))
        assert np.trace(between) == pytest.approx(local.sum(), rel=0.11, abs=2)
        assert between.sum() - np.trace(between) == pytest.approx(remote.sum(), rel=0.11, abs=2)
    first = next(load for load in told if load.ranks == (0,))
    assert first.records.sum() == 6000
    assert first.ranks[0] in {operator.rank for operator in stages[0].operators}


def test_nothing_is_reported_twice(plant, chained):
    execution = chained._jsq.streamingQuery()
    watch = StatefulTasks(TaskLoads(plant.spark), execution, stateful_stages(DriverSide(plant.spark), execution))
    first = watch.poll(batches=2)
    batches = [load.batch for load in first]
    assert len(set(batches)) == 2
    assert all(load.ranks for load in first)
    assert all(load.batch > max(batches) for load in watch.poll(batches=2))


def test_what_a_spark_does_not_have_is_reported_in_one_sentence(plant, tmp_path):
    source = tmp_path / "Asks.java"
    source.write_text("public static String ask(Object context) { return ((org.apache.spark.Nowhere) context).it(); }")
    with pytest.raises(EnvironmentProblem, match=r"^this Spark lacks .*[^\n]*$"):
        DriverSide(plant.spark, source)
