"""Findings of `elastream advise` on jobs of plain PySpark: one planted fault each, or none. 20 minutes.

Each job runs on two local cores with an event log, and nothing of Elastream in it. A fault counts if the finding of its
kind is there; a finding in a job without a fault is false.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from _common import Report, main
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from elastream.advice.advice import advise

QUIET = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4", "spark.driver.host": "127.0.0.1"}


@dataclass(frozen=True)
class Job:
    """A job. start: starts its queries in a folder; feed: files a second of its source, if it reads files."""

    start: Callable[[SparkSession, Path], object]
    seconds: float = 40.0
    settings: Mapping[str, str] = field(default_factory=dict)
    feed: float = 0.0
    first: int = 0


def rate(spark: SparkSession, rows: int = 500, partitions: int = 2) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", rows).option("numPartitions", partitions).load()


def files(spark: SparkSession, folder: Path, **options: int) -> DataFrame:
    reader = spark.readStream.schema("a long, b string").options(**options)
    return reader.json(str(folder / "in"))


def write(frame: DataFrame, folder: Path, every: str | None = "2 seconds", mode: str = "append", name: str = "q",
          form: str = "noop", **more: str) -> StreamingQuery:  # fmt: skip
    writer = frame.writeStream.format(form).outputMode(mode).queryName(name)
    writer = writer.options(checkpointLocation=str(folder / f"checkpoint-{name}"), **more)
    return (writer if every is None else writer.trigger(processingTime=every)).start()


def each_batch(frame: DataFrame, folder: Path, function: Callable[[DataFrame, int], None]) -> StreamingQuery:
    writer = (
        frame.writeStream.foreachBatch(function).queryName("q").option("checkpointLocation", str(folder / "checkpoint"))
    )
    return writer.trigger(processingTime="3 seconds").start()


def counts(frame: DataFrame, delay: str = "5 seconds") -> DataFrame:
    return frame.withWatermark("timestamp", delay).groupBy(f.window("timestamp", "5 seconds"), f.expr("value % 20")).count()


def work(frame: DataFrame, numbers: str) -> DataFrame:
    """Return a frame whose tasks work on so many numbers for each record of 40 kinds."""
    frame = frame.withColumn("value", f.expr("value % 40"))
    return (
        frame.select("*", f.explode(f.expr(f"sequence(1, {numbers})")).alias("i"))
        .groupBy("value")
        .agg(f.sum(f.hash("i", "value")))
    )


def sleep(ms: str) -> Column:
    return f.expr(f"reflect('java.lang.Thread', 'sleep', cast({ms} as bigint))")


def starved(spark: SparkSession, folder: Path) -> None:
    write(rate(spark, 8, 8).withColumn("s", sleep("150")), folder, "24 seconds", name="heavy")
    write(rate(spark, 100), folder, name="light")


def two(spark: SparkSession, folder: Path) -> None:
    write(rate(spark), folder, name="a")
    write(counts(rate(spark)), folder, mode="update", name="b")


def joined(spark: SparkSession, folder: Path) -> None:
    left = rate(spark).withWatermark("timestamp", "5 seconds").selectExpr("value as a", "timestamp as at")
    right = rate(spark, 200).withWatermark("timestamp", "5 seconds").selectExpr("value as b", "timestamp as bt")
    within = "a = b and bt between at - interval 5 seconds and at + interval 5 seconds"
    write(left.join(right, f.expr(within)), folder)


def failing(spark: SparkSession, folder: Path) -> None:
    write(rate(spark).withColumn("x", f.expr("if(value > 9000, raise_error('no'), 1)")), folder)


FAULTS: dict[str, Job] = {
    "partitions": Job(
        lambda s, d: write(counts(rate(s)), d, mode="update"), settings={"spark.sql.shuffle.partitions": "100"}
    ),
    "state": Job(lambda s, d: write(rate(s).groupBy("value").count(), d, mode="update")),
    "state, watermark unused": Job(
        lambda s, d: write(rate(s).withWatermark("timestamp", "2 seconds").groupBy("value").count(), d, mode="update")
    ),
    "limit": Job(lambda s, d: write(files(s, d, maxFilesPerTrigger=1), d, "1 second"), feed=2.0),
    "small files": Job(lambda s, d: write(rate(s).repartition(8), d, "1 second", form="parquet", path=str(d / "out"))),
    "short trigger": Job(lambda s, d: write(files(s, d), d, None), feed=8.0),
    "trigger": Job(lambda s, d: write(rate(s), d, "20 seconds"), seconds=125.0),
    "long_task": Job(
        lambda s, d: write(work(rate(s, 40), "if(value % 40 = 0, 20000000, 10)"), d, "4 seconds", mode="update")
    ),
    "driver": Job(lambda s, d: each_batch(rate(s), d, lambda frame, number: time.sleep(1.8 + 0 * len(frame.collect())))),
    "sink": Job(lambda s, d: write(rate(s, 20).withColumn("s", sleep("50")), d, "3 seconds")),
    "sink, in Python": Job(
        lambda s, d: each_batch(rate(s), d, lambda frame, number: frame.foreachPartition(lambda rows: time.sleep(1.8)))
    ),
    "slots": Job(starved, seconds=110.0),
    "few_tasks": Job(lambda s, d: write(work(rate(s, 100, 1), "400000"), d, "2 seconds", mode="update"), seconds=90.0),
    "surge": Job(lambda s, d: write(files(s, d).withColumn("s", sleep("4")), d, "1 second"), feed=1.0, first=200),
    "failure": Job(failing),
}


def count(frame: DataFrame, number: int) -> None:
    frame.count()


CLEAN: dict[str, Job] = {
    "map": Job(lambda s, d: write(rate(s, 5000), d)),
    "windows": Job(lambda s, d: write(counts(rate(s)), d, mode="update")),
    "windows, every second": Job(lambda s, d: write(counts(rate(s, 2000)), d, "1 second", mode="update")),
    "join": Job(joined),
    "distinct": Job(lambda s, d: write(rate(s).withWatermark("timestamp", "2 seconds").dropDuplicates(["timestamp"]), d)),
    "function": Job(lambda s, d: each_batch(rate(s), d, count)),
    "files in": Job(lambda s, d: write(files(s, d), d, "1 second"), feed=2.0),
    "files in, limited": Job(lambda s, d: write(files(s, d, maxFilesPerTrigger=50), d, "2 seconds"), feed=2.0),
    "files out": Job(
        lambda s, d: write(rate(s).coalesce(1), d, "10 seconds", form="parquet", path=str(d / "out")), seconds=90
    ),
    "two queries": Job(two),
    "steady work": Job(lambda s, d: write(work(rate(s, 100, 8), "2000"), d, "3 seconds", mode="update")),
    "continuous work": Job(lambda s, d: write(rate(s, 20_000), d, "1 second")),
}


def feed(folder: Path, number: int) -> None:
    (folder / f".{number}").write_text("".join(json.dumps({"a": n, "b": str(n % 9)}) + "\n" for n in range(40)))
    os.rename(folder / f".{number}", folder / f"{number}.json")


def kinds(job: Job, folder: Path) -> dict[str, str]:
    """Run a job, and return the evidence of the findings about its log by kind."""
    (folder / "logs").mkdir()
    (folder / "in").mkdir()
    settings = {**QUIET, **job.settings, "spark.eventLog.enabled": "true", "spark.eventLog.dir": (folder / "logs").as_uri()}
    builder = SparkSession.builder.master("local[2]").appName("stranger")
    for key, value in settings.items():
        builder = builder.config(key, value)
    numbers = itertools.count()
    for _ in range(job.first):
        feed(folder / "in", next(numbers))
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("FATAL")
        job.start(spark, folder)
        end = time.monotonic() + job.seconds
        while time.monotonic() < end:
            if job.feed:
                feed(folder / "in", next(numbers))
            time.sleep(1 / (job.feed or 1.0))
        for query in spark.streams.active:
            with suppress(Exception):
                query.stop()
    finally:
        spark.stop()
    (log,) = (folder / "logs").iterdir()
    return {each.kind: each.evidence for each in advise(str(log)).findings}


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    found, false = 0, 0
    for planted, jobs in ((True, FAULTS), (False, CLEAN)):
        for name, job in list(jobs.items())[: 2 if arguments.quick else None]:
            with TemporaryDirectory() as folder:
                there = kinds(job, Path(folder))
            report.figures[name] = there
            found += planted and name.partition(",")[0] in there
            false += not planted and bool(there)
    number = 2 if arguments.quick else len(FAULTS)
    report.at_least("share of planted faults that are found", found / number, 0.9)
    report.at_most("jobs without a fault that have findings", false, 0)
    return report


if __name__ == "__main__":
    main("advice", __doc__, measure, rounds=1)
