"""A durable edge over Kafka, and Kafka as a sink of a compiled query, on the broker and session of `test_kafka`."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from test_kafka import broker, spark  # noqa: F401 - fixtures

from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, kafka, records
from elastream.dataflow.stages import lay_out
from elastream.loads import constant
from elastream.recording.directory import RunDirectory
from elastream.spark.dataflow.kafka import source_options
from elastream.spark.dataflow.sinks import collected
from elastream.spark.queries.compiler import start_queries

NUMBERS = 700


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
def test_records_cross_a_kafka_edge_once_and_results_are_messages(
    spark: SparkSession,  # noqa: F811
    broker: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    flow = Dataflow("over kafka")
    rows = [{"n": n} for n in range(1000)]
    numbers = flow.source(records(rows, "n long"), load=constant(NUMBERS * 1000, 0.001))
    texts = numbers.map(lambda n: {"value": str(n), "n": n}, returns="value string, n long", name="text").durable("kafka")
    back = texts.map(lambda row: row["value"] + "!", returns="value string", name="shout")
    back.sink(kafka("shouts", broker), name="topic")
    back.sink(collect("shouts"), name="memory")
    running = start_queries(
        spark,
        lay_out(flow.graph),
        RunDirectory.create(tmp_path, flow.name),
        Composition.default(flow.graph, {"source": 2}),
        state_partitions=2,
        batch_seconds=60,
    )
    try:
        first, second = (each.query for each in running)
        first.processAllAvailable()
        while sum(p["numInputRows"] for p in first.recentProgress) < NUMBERS:
            first.processAllAvailable()
        second.processAllAvailable()
    finally:
        for each in running:
            each.query.stop()
    expected = Counter(f"{n}!" for n in range(NUMBERS))
    assert Counter(collected("shouts").column("value").to_pylist()) == expected
    found = spark.read.format("kafka").options(**source_options(kafka("shouts", broker))).load()
    assert Counter(row["v"] for row in found.selectExpr("cast(value as string) v").collect()) == expected
