"""Public PySpark streaming jobs, moved into dataflows by their transformations only: their rows stay equal.

Each job is given as its author's transformations from DataFrame to DataFrame. Plain PySpark runs them on all rows at once;
a dataflow runs the same functions, beside keyed and native operators where the job has a `groupBy`.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow, Stream
from elastream.dataflow.endpoints import collect, records
from elastream.dataflow.stages import lay_out
from elastream.loads import constant
from elastream.recording.directory import RunDirectory
from elastream.spark.dataflow.sinks import collected
from elastream.spark.queries.compiler import start_queries
from elastream.spark.worker.runner import explain_failure
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

MONDAY = datetime(2026, 3, 2, 9)


class Job(NamedTuple):
    """A public job: its input, itself in plain PySpark, and as a dataflow; `latest`: key whose newest row counts."""

    schema: str
    rows: Sequence[dict[str, Any]]
    plain: Callable[[DataFrame], DataFrame]
    dataflow: Callable[[Stream], Stream]
    latest: tuple[str, ...] = ()


# -- 1. Spark's structured_network_wordcount.py ---------------------------------------------------------------------------


def words_of(lines: DataFrame) -> DataFrame:
    return lines.select(F.explode(F.split(lines.value, " ")).alias("word"))


WORD_COUNT = Job(
    "value string",
    [{"value": line} for line in ("the cat sat on the mat", "a dog and a cat", "on and on")] * 30,
    lambda lines: words_of(lines).groupBy("word").count(),
    lambda lines: lines.transform(words_of).key_by("word").count(),
    ("word",),
)


# -- 2. Spark's structured_network_wordcount_windowed.py: words by sliding windows of event time --------------------------


def by_window(words: DataFrame) -> DataFrame:
    return words.select("word", F.window("timestamp", "60 seconds", "30 seconds").alias("w")).select("word", "w.start")


def stamped_words(lines: DataFrame) -> DataFrame:
    return lines.select(F.explode(F.split(lines.value, " ")).alias("word"), lines.timestamp)


WINDOWED_WORD_COUNT = Job(
    "value string, timestamp timestamp",
    [
        {
            "value": ["apache spark", "spark streaming", "apache hadoop"][n % 3],
            "timestamp": MONDAY + timedelta(seconds=7 * n),
        }
        for n in range(80)
    ],
    lambda lines: (
        stamped_words(lines)
        .groupBy("word", F.window("timestamp", "60 seconds", "30 seconds"))
        .count()
        .select("word", "window.start", "count")
    ),
    lambda lines: lines.transform(stamped_words).transform(by_window).key_by("word", "start").count(),
    ("word", "start"),
)


# -- 3. Databricks' "Streaming ETL" of cloud audit logs: parse JSON, flatten, filter, derive -------------------------------

AUDIT = "eventName string, userIdentity struct<userName: string, type: string>, eventTime string, requestId string"


def parsed(raw: DataFrame) -> DataFrame:
    events = raw.select(F.from_json("line", f"Records array<struct<{AUDIT}>>").alias("log"))
    return events.select(F.explode("log.Records").alias("record")).select("record.*")


def flattened(events: DataFrame) -> DataFrame:
    times = events.withColumn("at", F.to_timestamp("eventTime")).drop("eventTime")
    users = times.withColumn("user", F.lower("userIdentity.userName")).where(F.col("userIdentity.type") == "IAMUser")
    return users.drop("userIdentity").withColumn("day", F.to_date("at"))


def audit_line(n: int) -> str:
    def event(k: int) -> dict[str, Any]:
        who = {"userName": ["Ann", "BOB", None][k % 3], "type": ["IAMUser", "Root"][k % 2]}
        return {
            "eventName": f"Get{k % 5}",
            "userIdentity": who,
            "eventTime": f"2026-03-02T09:{k % 60:02d}:00Z",
            "requestId": str(k),
        }

    return "not json" if n % 17 == 0 else json.dumps({"Records": [event(3 * n + k) for k in range(n % 4)]})


AUDIT_LOGS = Job(
    "line string",
    [{"line": audit_line(n)} for n in range(90)],
    lambda raw: flattened(parsed(raw)),
    lambda raw: raw.transform(parsed).transform(flattened),
)


# -- 4. Nexmark, queries 1, 2, 21 and 22: bids in another currency, some auctions, channels, parts of a URL -----------

BIDS = "auction long, bidder long, price long, channel string, url string, at timestamp"
CHANNELS = [("apple", 0), ("google", 1), ("facebook", 2)]


def in_euros(bids: DataFrame) -> DataFrame:
    return bids.withColumn("price", F.round(F.lit(0.908) * F.col("price"), 3))


def with_directories(bids: DataFrame) -> DataFrame:
    parts = F.split("url", "/")
    return bids.select("*", *(F.try_element_at(parts, F.lit(n + 3)).alias(f"dir{n}") for n in (1, 2, 3))).drop("url")


def channels(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(CHANNELS, "channel string, channel_id int")


NEXMARK = Job(
    BIDS,
    [
        {
            "auction": 1000 + n % 7, "bidder": n % 13, "price": 10 * n, "at": MONDAY + timedelta(seconds=n),
            "channel": ["apple", "google", "baidu"][n % 3], "url": "https://nexmark.test/" + "/".join("abc"[: n % 4]),
        }
        for n in range(150)
    ],
    lambda bids: with_directories(in_euros(bids).where("auction % 3 <> 0")).join(
        channels(bids.sparkSession), "channel", "left"
    ),
    lambda bids: bids.transform(in_euros)
    .where("auction % 3 <> 0")
    .transform(with_directories)
    .join(channels, on="channel", how="left"),
)  # fmt: skip


# -- 5. Spark's guide, "Operations on streaming DataFrames": devices without duplicates, strong signals, means ---------

DEVICES = "device string, deviceType string, signal double, time timestamp, guid string"


def strong(devices: DataFrame) -> DataFrame:
    return devices.select("device", "deviceType", "signal").where("signal > 10")


DEVICE_EVENTS = Job(
    DEVICES,
    [
        {
            "device": f"d{n % 11}", "deviceType": "abc"[n % 3], "signal": float(n % 40), "guid": str(n % 60),
            "time": MONDAY + timedelta(seconds=n % 60),
        }
        for n in [*range(60)] * 3
    ],
    lambda devices: strong(devices.dropDuplicates(["guid"])).groupBy("deviceType").agg(
        F.avg("signal").alias("mean"), F.count("*").alias("n")
    ),
    lambda devices: devices.drop_duplicates("guid", within_watermark="1 h", by="time")
    .transform(strong)
    .durable()
    .key_by("deviceType")
    .aggregate({"mean": F.avg("signal"), "n": "count(*)"}),
    ("deviceType",),
)  # fmt: skip

JOBS = {
    "network word count": WORD_COUNT,
    "windowed word count": WINDOWED_WORD_COUNT,
    "audit logs": AUDIT_LOGS,
    "Nexmark bids": NEXMARK,
    "device events": DEVICE_EVENTS,
}


@pytest.mark.parametrize("name", JOBS)
def test_public_job_as_a_dataflow_returns_the_rows_of_plain_pyspark(local_spark: SparkSession, tmp_path: Path, name: str):
    job, total = JOBS[name], len(JOBS[name].rows)
    flow = Dataflow(name.replace(" ", "_"))
    source = flow.source(records(job.rows, job.schema), load=constant(total * 5, 0.2))
    job.dataflow(source).sink(collect(name))
    wanted = Composition.default(flow.graph, {"source": 2})
    directory = RunDirectory.create(tmp_path / "runs", flow.name)
    running = start_queries(local_spark, lay_out(flow.graph), directory, wanted, state_partitions=2, batch_seconds=60)

    def done() -> bool:
        for each in running:
            if (error := each.query.exception()) is not None:
                raise AssertionError(explain_failure(error)) from error
        progress = running[0].query.lastProgress
        return bool(progress) and int(json.loads(progress["sources"][0]["endOffset"])["n"]) == total

    try:
        wait_until(done)
        for each in running:
            each.query.processAllAvailable()
    finally:
        for each in running:
            each.query.stop()
    plain = job.plain(local_spark.createDataFrame([tuple(row.values()) for row in reordered(job)], job.schema))
    rows = collected(name).to_pandas(types_mapper=None)
    if job.latest:
        rows = rows.groupby(list(job.latest), dropna=False, as_index=False).last()
    assert as_text(rows[plain.columns].to_dict("records")) == as_text(plain.toPandas().to_dict("records"))


def reordered(job: Job) -> list[dict[str, Any]]:
    """The rows with their columns in the order of the schema."""
    names = [part.split()[0] for part in job.schema.split(", ")]
    return [{name: row[name] for name in names} for row in job.rows]


def as_text(rows: list[dict[Any, Any]]) -> list[str]:
    """The rows in a fixed order; a time without its zone and a missing value have one spelling each."""

    def plain(value: Any) -> str | None:
        return None if value is None or value != value else str(value).removesuffix("+00:00")

    return sorted(str([(name, plain(value)) for name, value in row.items()]) for row in rows)
