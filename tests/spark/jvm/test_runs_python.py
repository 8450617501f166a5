"""Whether the tasks of queries run Python, by the plans of their batches: executors are warmed up accordingly."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from elastream.spark.hosts import warmup
from elastream.spark.hosts.warmup import warm_up
from elastream.spark.jvm.driver_side import DriverSide, TaskLoads, java_queries, jvm_of, runs_python
from elastream.spark.jvm.executors import Executor
from elastream.spark.telemetry.stage_load import read_work
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def unchanged(frame: DataFrame) -> DataFrame:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # in here, it travels whole
        yield from batches

    return frame.mapInArrow(same, frame.schema)


def noop(frame: DataFrame) -> DataStreamWriter:
    return frame.writeStream.format("noop")


def by_function(frame: DataFrame) -> DataStreamWriter:
    return frame.writeStream.foreachBatch(lambda batch, number: None)


@pytest.mark.parametrize(
    ("of", "sink", "said"),
    [
        (lambda rows: rows.groupBy("value").count(), noop, False),
        (unchanged, noop, True),
        (lambda rows: rows, by_function, True),
    ],
    ids=["state", "python", "foreachBatch"],
)
def test_a_plan_says_whether_its_tasks_run_python(
    local_spark: SparkSession, of: Callable[[DataFrame], DataFrame], sink: Callable[[DataFrame], Any], said: bool
) -> None:
    driver = DriverSide(local_spark)
    assert runs_python(driver, local_spark), "of no query nobody knows"
    rows = local_spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = sink(of(rows)).outputMode("update").trigger(processingTime="100 milliseconds").start()
    try:
        wait_until(lambda: query.lastProgress is not None)
        assert runs_python(driver, local_spark) == said
        warm_up(local_spark, driver, Executor("driver", "localhost", slots=1), None)  # as it goes with and without
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("function", "python"),
    [
        (lambda batch, number: batch.rdd.foreachPartition(lambda rows: None), True),
        (lambda batch, number: batch.write.format("noop").mode("append").save(), False),
    ],
    ids=["rows", "frame"],
)
def test_stage_of_a_function_says_if_its_tasks_run_python(
    local_spark: SparkSession, function: Callable[[DataFrame, int], None], python: bool
) -> None:
    rows = local_spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = rows.writeStream.foreachBatch(function).trigger(processingTime="100 milliseconds").start()
    try:
        wait_until(lambda: query.lastProgress is not None or query.exception() is not None)
        loads = TaskLoads(local_spark)
        execution = java_queries(local_spark).get(jvm_of(local_spark).java.util.UUID.fromString(query.id))
        stages, _ = read_work(loads.ask("work", loads.context, execution, -1))
        assert {stage.python for stage in stages[0]} == {python}
    finally:
        query.stop()


@pytest.mark.parametrize("scheme", ["", "nowhere:"], ids=["writable", "no file system"])
def test_warm_up_leaves_no_file_and_goes_on_without_one(
    local_spark: SparkSession, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, run = [], warmup._run

    def spied(spark: SparkSession, executor: Executor, scratch: str | None, workers: int) -> None:
        run(spark, executor, scratch, workers)
        ran.append((scratch, workers))

    monkeypatch.setattr(warmup, "_run", spied)
    folder = f"{scheme}{tmp_path}"
    warm_up(local_spark, DriverSide(local_spark), Executor("driver", "localhost", slots=1), folder)
    assert ran == [(None if scheme else folder, 1)], "of no query nobody knows, so Python is warm in either case"
    assert list(tmp_path.iterdir()) == []
