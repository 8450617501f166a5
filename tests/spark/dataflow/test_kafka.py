"""Kafka as source and sink: what the options are, and records through a real broker, counted.

The broker is the released one, in KRaft mode, one process for this module. Where Java, Maven or a repository that has the
jars is missing, the tests that need them are skipped and say so.
"""

import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyspark
import pytest
from kafka.admin import KafkaAdminClient
from pyspark.sql import DataFrame, SparkSession

from elastream.bench.comparison import compare
from elastream.bench.kafka import Topic, producing
from elastream.bench.nexmark.events import Events
from elastream.bench.nexmark.workload import WATERMARK_DELAY
from elastream.bench.service import batches_of
from elastream.bench.sources import read_events, with_watermark
from elastream.bench.workload import Reading
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, Observation
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import KafkaTopic, collect, kafka, records
from elastream.dataflow.operators import Kind, Operator
from elastream.dataflow.signals import Feed, Signal, SignalReading
from elastream.dataflow.stages import lay_out
from elastream.freshness.wakes import SourceSpec
from elastream.freshness.watching import KafkaWatch
from elastream.guards.pollers import Pollers
from elastream.loads import constant
from elastream.recording.directory import RunDirectory
from elastream.settings import AutopilotSettings
from elastream.spark.attach import attach
from elastream.spark.dataflow.kafka import kafka_package, kafka_settings, sink_options, source_options, with_connector
from elastream.spark.dataflow.readers import Steering
from elastream.spark.dataflow.sinks import collected
from elastream.spark.dataflow.sources import HOLD, check_source, open_source
from elastream.spark.jvm.capabilities import probe
from elastream.spark.jvm.session import unfetched_packages
from elastream.spark.queries.compiler import start_queries
from elastream.spark.telemetry import kafka_offsets
from elastream.spark.telemetry.kafka_offsets import OffsetCommits, committing, offsets_read
from support.clusters import free_port, kafka_broker, kafka_connector
from support.commands import invoke
from support.shared_session import forget_jvm
from support.waiting import wait_until


def test_the_package_is_the_connector_of_this_spark() -> None:
    assert kafka_package() == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    assert kafka_package("4.2.0").endswith(":4.2.0")


def test_a_session_fetches_the_connector_into_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert kafka_settings() == {"spark.jars.packages": kafka_package(), "spark.jars.ivy": "/somewhere/elastream/ivy"}


def test_packages_of_the_user_are_joined_with_the_connector() -> None:
    joined = with_connector({"spark.jars.packages": "org.x:y:1", "spark.a": "b"})
    assert joined["spark.jars.packages"] == f"{kafka_package()},org.x:y:1"
    assert joined["spark.a"] == "b"


@pytest.mark.parametrize("name", ["spark.jars", "spark.jars.packages"])
def test_connector_of_the_user_replaces_the_fetched_one(name: str) -> None:
    own = {name: "lib:spark-sql-kafka-0-10_2.13:4.0.0"}
    assert with_connector(own) == own


def test_packages_that_cannot_be_fetched_are_named_with_the_cause() -> None:
    package = "org.apache.spark#spark-sql-kafka-0-10_2.13;4.2.0"
    log = (
        f"Server access error at url https://repo/x.pom (java.net.UnknownHostException: repo)\n"
        f'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: {package}: not found]\n'
    )
    sentence = unfetched_packages(log)
    assert sentence.startswith("the packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 cannot be fetched")
    assert "(java.net.UnknownHostException: repo)" in sentence
    assert "spark.jars.repositories" in sentence
    assert unfetched_packages("something else\n") == ""


def test_a_topic_is_read_from_its_beginning_by_default() -> None:
    assert source_options(kafka("lines", "a:1,b:2")) == {
        "kafka.bootstrap.servers": "a:1,b:2",
        "subscribe": "lines",
        "startingOffsets": "earliest",
    }
    assert source_options(kafka("lines", startingOffsets="latest"))["startingOffsets"] == "latest"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a broker."""
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as servers:
        yield servers


@pytest.fixture(scope="module")
def connector() -> str:
    """`spark.jars` of the connector."""
    return kafka_connector()


@pytest.fixture(scope="module")
def spark(broker: str, connector: str) -> Iterator[SparkSession]:
    """A session with the connector."""
    forget_jvm()  # jars are found by a JVM that is started with them
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "FATAL")
            .config("spark.python.authenticate.socketTimeout", "300s")
            .config("spark.jars", connector)
            .getOrCreate()
        )
        yield session
        session.stop()
    forget_jvm()


def drain(stream: DataFrame, folder: Path) -> DataFrame:
    """All that is there now, through a streaming query with a checkpoint, into parquet."""
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    wait_until(lambda: not query.isActive)
    assert query.exception() is None
    return stream.sparkSession.read.parquet(str(folder / "out"))


def write(spark: SparkSession, topic: KafkaTopic, first: int, last: int) -> None:
    records = spark.range(first, last).selectExpr("cast(id % 10 as string) as key", "concat('line ', id) as value")
    records.write.format("kafka").options(**sink_options(topic)).save()


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.kafka
def test_every_record_of_a_topic_is_read_once_through_a_restart(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    topic = kafka("lines", broker)
    operator = Operator("lines", Kind.SOURCE, reads=topic)
    check_source(operator)
    watch = KafkaWatch(SourceSpec("kafka", "lines", str(tmp_path / "checkpoint"), servers=broker))
    for first, last in ((0, 500), (500, 1200)):
        write(spark, topic, first, last)
        assert watch.look().waiting == last - first
        steering = Steering(operator.name, tmp_path)
        stream = open_source(spark, operator, control=tmp_path / "control", steering=steering, batch_seconds=1.0)
        assert stream.columns == ["key", "value", "timestamp"]
        found = drain(stream, tmp_path).collect()
        assert sorted(row["value"] for row in found) == sorted(f"line {n}" for n in range(last))
        assert all(row["key"] == row["value"][-1] for row in found)
        assert watch.look().waiting == 0
    watch.close()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.kafka
def test_records_cross_a_kafka_edge_once_and_results_are_messages(
    spark: SparkSession,
    broker: str,
    tmp_path: Path,
) -> None:
    flow, numbers_due = Dataflow("over kafka"), 700
    rows = [{"n": n} for n in range(1000)]
    numbers = flow.source(records(rows, "n long"), load=constant(numbers_due * 1000, 0.001))
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
        while sum(p["numInputRows"] for p in first.recentProgress) < numbers_due:
            first.processAllAvailable()
        second.processAllAvailable()
    finally:
        for each in running:
            each.query.stop()
    expected = Counter(f"{n}!" for n in range(numbers_due))
    assert Counter(collected("shouts").column("value").to_pylist()) == expected
    found = spark.read.format("kafka").options(**source_options(kafka("shouts", broker))).load()
    assert Counter(row["v"] for row in found.selectExpr("cast(value as string) v").collect()) == expected


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.kafka
def test_a_query_over_a_topic_shows_partitions_and_backlog(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    topic = kafka("watched", broker)
    write(spark, topic, 0, 2000)
    held_back = source_options(topic) | {"maxOffsetsPerTrigger": "30"}
    counts = spark.readStream.format("kafka").options(**held_back).load().groupBy("key").count()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    writer = counts.writeStream.queryName("q").format("noop").outputMode("update").trigger(processingTime="1 second")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    can = probe(spark)
    assert can.driver is not None
    plant = attach(spark, can, AutopilotSettings())
    try:

        def behind_and_seen() -> Observation | None:
            assert query.isActive, query.exception()
            seen = plant.observe()
            return seen if len(seen.tasks) == 2 and seen.operators.value("q", Metric.BACKLOG) > 0 else None

        seen = wait_until(behind_and_seen, look=0.2, otherwise=plant.observe)
        assert {str(task) for task in seen.tasks.tasks} == {"q/aggregate0#0", "q/aggregate0#1"}
        behind = 2000 - 30 * (plant.queries.all[0].newest + 1)
        assert seen.operators.value("q", Metric.BACKLOG) == pytest.approx(behind, abs=200), "of all partitions, not of one"
    finally:
        plant.close()
        query.stop()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.kafka
def test_offsets_are_committed_to_a_group_or_warned_about_once(
    spark: SparkSession, broker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from kafka import KafkaAdminClient

    topic = kafka("grouped", broker, group="grouped-app")
    write(spark, topic, 0, 700)
    stream = spark.readStream.format("kafka").options(**source_options(topic)).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    refused = kafka("grouped", broker, group="")
    with committing(spark, [topic, refused]):
        wait_until(lambda: query.lastProgress is not None)
        query.processAllAvailable()
    with caplog.at_level(logging.WARNING, kafka_offsets.__name__):
        soon = {f"kafka.{what}.timeout.ms": "50" for what in ("request", "default.api")}
        commits = OffsetCommits(spark, [kafka("grouped", "127.0.0.1:1", group="nowhere", **soon)])
        commits.commit()
        commits.commit()
    query.stop()
    admin = KafkaAdminClient(bootstrap_servers=broker)
    try:
        found = admin.list_group_offsets("grouped-app")["grouped-app"]
    finally:
        admin.close()
    assert sum(each.offset for each in found.values()) == 700
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        "offsets of 'grouped' are not committed to the group 'nowhere'"
    ]


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.kafka
@pytest.mark.slow
def test_events_of_the_benchmark_pass_through_topics_of_their_own(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    events, control, parts = Events(load=constant("500/s", lasts=4.0)), tmp_path / "control", list[pd.DataFrame]()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    bids = read_events(spark, events, "bid", Reading(control, tmp_path / "checkpoint", 2, broker))
    (control / "bid" / HOLD).touch()
    with producing(control):
        writer = with_watermark(bids, "date_time", WATERMARK_DELAY).writeStream.foreachBatch(
            lambda rows, _: parts.append(rows.toPandas())
        )
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        (control / "bid" / HOLD).unlink()
        try:
            wait_until(
                lambda: (
                    not query.isActive or any(batch.position == 2001 for batch in batches_of(query.recentProgress, control))
                )
            )
            assert query.exception() is None
        finally:
            query.stop()
            spark.conf.unset("spark.sql.session.timeZone")
    assert not compare(pd.concat(parts), events.table("bid", 0, 2000).to_pandas())
    admin = KafkaAdminClient(bootstrap_servers=broker)
    wait_until(lambda: Topic.of(control / "bid").name not in admin.list_topics())
    admin.close()


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.kafka
@pytest.mark.slow
def test_benchmark_runs_through_a_broker(broker: str, connector: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from elastream.cli import main; main()", "bench", "nexmark", "--queries", "q0"]
    load = ["--rate", "50/s", "--lasts", "10s", "--target-latency", "20s", "--arms", "fixed:1"]
    brokers = ["--kafka", broker, "--setting", f"spark.jars={connector}"]
    done = subprocess.run([*program, *load, *brokers, "--json", str(tmp_path / "f.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads((tmp_path / "f.json").read_text())["runs"]
    assert (run["correct"], run["service"]["events"]) == (True, 500)


@pytest.mark.kafka
@pytest.mark.cluster
def test_a_rate_above_what_the_benchmark_sends_is_refused(broker: str) -> None:
    result = invoke("bench", "nexmark", "--queries", "q0", "--kafka", broker, "--rate", "90k/s")
    assert result.exit_code == 2
    assert "a rate of 90.0k/s is more than one producer for Kafka sends: it sends" in result.stderr
    admin = KafkaAdminClient(bootstrap_servers=broker)
    wait_until(lambda: not any("bench-rate" in topic for topic in admin.list_topics()))
    admin.close()


def test_a_broker_that_does_not_answer_is_named_before_a_cluster_starts() -> None:
    servers = f"127.0.0.1:{free_port()}"
    result = invoke("bench", "demand", "nexmark:q0", "--kafka", servers)
    assert result.exit_code == 2
    assert f"Kafka broker {servers}: KafkaTimeoutError: Unable to bootstrap" in result.stderr


def test_of_several_queries_that_read_a_topic_the_least_counts() -> None:
    def progress(end: object, description: str = "KafkaV2[Subscribe[lines]]") -> dict[str, object]:
        return {"sources": [{"description": description, "endOffset": end}]}

    assert offsets_read([progress({"lines": {"0": 7, "1": 3}}), progress({"lines": {"0": 5, "1": 9}})]) == {
        "lines": {0: 5, 1: 3}
    }
    assert offsets_read([progress(None), progress({"n": 3}, "RateStreamV2"), {}]) == {}


@pytest.mark.kafka
@pytest.mark.cluster
def test_a_signal_is_the_newest_message_of_a_topic_at_its_time(broker: str, caplog: pytest.LogCaptureFixture) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=broker)

    def send(price: int, minutes_ago: float, partition: int) -> None:
        at = round((time.time() - 60 * minutes_ago) * 1000)
        producer.send("prices", json.dumps({"price": price}).encode(), partition=partition, timestamp_ms=at).get(30)

    clock = time.monotonic
    pollers = Pollers(clock)
    try:
        pollers.follow([Signal("price", feed=Feed("kafka", "prices", 0.05, "price", broker))])
        wait_until(lambda: "there is no topic 'prices'" in caplog.text)
        send(1, 10, 0)  # which makes the topic
        send(3, 8, 2)
        send(2, 9, 1)
        wait_until(lambda: pollers.newest().get("price", SignalReading(None, 0.0)).value == 3.0)
        send(7, 0, 1)
        wait_until(lambda: pollers.newest()["price"].value == 7.0)
        assert clock() - pollers.newest()["price"].time < 60
        send(5, 3, 2)  # older than what was heard
        send(9, 0, 0)
        wait_until(lambda: pollers.newest()["price"].value == 9.0)
    finally:
        pollers.close()
        producer.close()
