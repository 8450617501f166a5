"""Findings of `elastream advise` on jobs of plain PySpark, and its predictions for another fleet. 45 minutes.

Each job runs on two local cores with an event log, and nothing of Elastream in it. A fault counts if the finding of its
kind is there; a finding in a job without a fault is false.

Five jobs run on one core and on two. Each record predicts the other fleet, from each source of advice. Their records
wait rather than compute, so that other programs on the machine count little.

`--part log` reads an event log of a gigabyte.
"""

import itertools
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from _common import Report, main_of_parts
from _sources import advices
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from elastream.advice.advice import advise
from elastream.errors import EnvironmentProblem

# Seconds between batches of the job whose log is made large, and its size (bytes).
EVERY_S, LARGE, BATCH = 2.0, 10**9, "streaming.sql.batchId"
QUIET = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4", "spark.driver.host": "127.0.0.1"}


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        start: Starts its queries in a folder.
        feed: Files a second of its source, if it reads files, and `first` at once.
        burst: Times as many come in 3 of 30 seconds.
    """

    start: Callable[[SparkSession, Path], object]
    seconds: float = 40.0
    settings: Mapping[str, str] = field(default_factory=dict)
    feed: float = 0.0
    first: int = 0
    burst: float = 1.0


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


def joined_without_range(spark: SparkSession, folder: Path) -> None:
    left = rate(spark, 100).withWatermark("timestamp", "1 second").selectExpr("value as a", "timestamp as at")
    right = rate(spark, 100).withWatermark("timestamp", "1 second").selectExpr("value as b", "timestamp as bt")
    write(left.join(right, f.expr("a = b")), folder)


def many_files(frame: DataFrame, number: int) -> None:
    with TemporaryDirectory() as folder:
        frame.repartition(12).write.mode("append").parquet(folder)


def write_slowly(frame: DataFrame, number: int) -> None:
    frame.withColumn("s", sleep("50")).write.format("noop").mode("append").save()


def sorted_in_parts(frame: DataFrame, number: int) -> None:
    frame.withColumn("i", f.expr("explode(sequence(1, 100))")).orderBy(f.rand()).write.format("noop").mode("append").save()


def flaky(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    attempt = TaskContext.get()
    if attempt is not None and attempt.attemptNumber() == 0:
        raise ValueError("connection reset")
    yield from batches


def batch_jobs(spark: SparkSession, folder: Path) -> None:
    def repeat() -> None:
        with suppress(Exception):
            while True:
                spark.range(0, 64, 1, 16).withColumn("s", sleep("250")).write.format("noop").mode("overwrite").save()

    threading.Thread(target=repeat, daemon=True).start()
    write(rate(spark, 50), folder, "1 second")


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
    "wait": Job(lambda s, d: write(rate(s, 20).withColumn("s", sleep("80")), d, "3 seconds")),
    "sink": Job(lambda s, d: each_batch(rate(s, 20), d, write_slowly)),
    "sink, in Python": Job(
        lambda s, d: each_batch(rate(s), d, lambda frame, number: frame.foreachPartition(lambda rows: time.sleep(2.2)))
    ),
    "slots": Job(starved, seconds=110.0),
    "few_tasks": Job(lambda s, d: write(work(rate(s, 100, 1), "400000"), d, "2 seconds", mode="update"), seconds=90.0),
    "surge": Job(lambda s, d: write(files(s, d).withColumn("s", sleep("4")), d, "1 second"), feed=1.0, first=200),
    "failure": Job(failing),
    "state, join without a range": Job(joined_without_range, seconds=60.0),
    "state, keys of a deduplication": Job(
        lambda s, d: write(rate(s).withWatermark("timestamp", "2 seconds").dropDuplicates(["value"]), d)
    ),
    "limit, without a trigger": Job(lambda s, d: write(files(s, d, maxFilesPerTrigger=1), d, None), feed=16.0, first=40),
    "small files, of a function": Job(lambda s, d: each_batch(rate(s), d, many_files)),
    "spill": Job(
        lambda s, d: each_batch(rate(s), d, sorted_in_parts),
        settings={"spark.shuffle.spill.numElementsForceSpillThreshold": "2000"},
    ),
    "failed tasks": Job(
        lambda s, d: write(rate(s, 20).mapInPandas(flaky, "timestamp timestamp, value long"), d),
        settings={"spark.master": "local[2,6]"},
    ),
    "slots, batch jobs": Job(batch_jobs, seconds=60.0),
}


def slow(frame: DataFrame, ms: int) -> DataFrame:
    return frame.withColumn("w", sleep(str(ms)))


def keyed(frame: DataFrame, keys: int) -> DataFrame:
    groups = frame.withWatermark("timestamp", "5 seconds").groupBy(
        f.window("timestamp", "5 seconds"), f.expr(f"value % {keys}")
    )
    return groups.agg(f.count("w"), f.max("w"))


def slowly_joined(spark: SparkSession, folder: Path) -> None:
    left = slow(rate(spark, 100, 4), 4).withWatermark("timestamp", "5 seconds")
    right = rate(spark, 300, 4).withWatermark("timestamp", "5 seconds").selectExpr("value as b", "timestamp as bt")
    within = "value = b and bt between timestamp - interval 5 seconds and timestamp + interval 5 seconds"
    write(left.join(right, f.expr(within)), folder, "3 seconds")


def wait(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for each in batches:
        time.sleep(0.003 * len(each))
        yield each


SMALL_FILES = {"spark.sql.files.maxPartitionBytes": "4096", "spark.sql.files.openCostInBytes": "4096"}
# Jobs that run on one core and on two.
FLEETS: dict[str, Job] = {
    "windows": Job(lambda s, d: write(keyed(slow(rate(s, 150, 4), 3), 50), d, mode="update"), seconds=90.0),
    "bursts": Job(
        lambda s, d: write(slow(files(s, d), 2).groupBy(f.expr("a % 20")).agg(f.max("w")), d, None, "update"),
        seconds=90.0, settings=SMALL_FILES, feed=4.0, burst=5.0,
    ),
    "join": Job(slowly_joined, seconds=90.0),
    "Python": Job(
        lambda s, d: write(rate(s, 150, 4).mapInPandas(wait, "timestamp timestamp, value long"), d, "1 second"),
        seconds=90.0,
    ),
    "work by key": Job(
        lambda s, d: write(slow(keyed(slow(rate(s, 100, 4), 3), 40), 12), d, "4 seconds", "update"),
        seconds=90.0, settings={"spark.sql.shuffle.partitions": "8"},
    ),
}  # fmt: skip
TARGET_S, ERROR = 10.0, 0.25


def count(frame: DataFrame, number: int) -> None:
    frame.count()


def five(spark: SparkSession, folder: Path) -> None:
    for number in range(5):
        write(rate(spark, 20), folder, "4 seconds", name=f"q{number}")


def each_row(spark: SparkSession, folder: Path) -> None:
    def work(row: Row) -> None:
        sum(range(20_000))

    frame = rate(spark, 200).writeStream.foreach(work)
    frame.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="4 seconds").start()


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
    "one file for each trigger": Job(lambda s, d: write(files(s, d), d, "1 second"), feed=1.0),
    "trigger of 5 seconds": Job(lambda s, d: write(rate(s), d, "5 seconds"), seconds=60.0),
    "five queries": Job(five),
    "rows to Python": Job(each_row),
    "keys that fill up": Job(
        lambda s, d: write(rate(s, 100).groupBy(f.expr("cast(rand() * 500 as int)")).count(), d, mode="update")
    ),
    "continuous work": Job(lambda s, d: write(rate(s, 20_000), d, "1 second")),
}


def feed(folder: Path, number: int) -> None:
    (folder / f".{number}").write_text("".join(json.dumps({"a": n, "b": str(n % 9)}) + "\n" for n in range(40)))
    os.rename(folder / f".{number}", folder / f"{number}.json")


def logged(job: Job, folder: Path, cores: int = 2) -> Path:
    """Run a job, and return its event log."""
    (folder / "logs").mkdir()
    (folder / "in").mkdir()
    settings = {**QUIET, **job.settings, "spark.eventLog.enabled": "true", "spark.eventLog.dir": (folder / "logs").as_uri()}
    settings = {"spark.master": f"local[{cores}]", **settings}
    builder = SparkSession.builder.appName("stranger")
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
            burst = job.burst if (end - time.monotonic()) % 30 < 3 else 1.0
            time.sleep(1 / (burst * job.feed or 1.0))
        for query in spark.streams.active:
            with suppress(Exception):
                query.stop()
    finally:
        spark.stop()
    (log,) = (folder / "logs").iterdir()
    return log


def predicted(jobs: Mapping[str, Job]) -> Iterator[dict[str, Any]]:
    """Yield p50 and p99 (seconds) of each job on one and two cores, as measured and as the other record predicts."""
    for name, job in jobs.items():
        with TemporaryDirectory() as folder:
            logs = {}
            for cores in (2, 1):
                (Path(folder) / str(cores)).mkdir()
                logs[cores] = logged(job, Path(folder) / str(cores), cores)
            for cores, log in logs.items():
                other = 3 - cores
                real = advise(str(logs[other]), TARGET_S).sizing.logged
                for source, advice in advices(log, cores, TARGET_S):
                    point = next((each for each in advice.sizing.curve if each.hosts == other), None)
                    pairs = ((real.p50, real.p99), (point.p50, point.p99) if point else (math.nan, math.nan))
                    held = all(abs(there / here - 1) <= ERROR for here, there in zip(*pairs, strict=True))
                    yield {
                        "job": name,
                        "to": other,
                        "source": source,
                        "real": pairs[0],
                        "predicted": pairs[1],
                        "held": held,
                    }


def find(report: Report, quick: bool) -> None:
    found, false = 0, 0
    for planted, jobs in ((True, FAULTS), (False, CLEAN)):
        for name, job in list(jobs.items())[: 2 if quick else None]:
            with TemporaryDirectory() as folder:
                findings = advise(str(logged(job, Path(folder)))).findings
            there = {each.kind: each.evidence for each in findings}
            report.figures[name] = there
            found += planted and name.partition(",")[0] in there
            false += not planted and bool(there)
    number = 2 if quick else len(FAULTS)
    report.at_least("share of planted faults that are found", found / number, 0.9)
    report.at_most("jobs without a fault that have findings", false, 0)


def predict(report: Report, quick: bool) -> None:
    rows = list(predicted(dict(list(FLEETS.items())[: 1 if quick else None])))
    report.figures["fleets"] = rows
    for source in dict.fromkeys(row["source"] for row in rows):
        held = [row["held"] for row in rows if row["source"] == source]
        report.at_least(f"predictions within 25 % from {source}", sum(held) / len(held), 0.8)


class Repeated:
    """An event log whose batches from the fourth on come again and again, with other numbers and times."""

    def __init__(self, log: Path) -> None:
        self._lines = [line for part in sorted(log.glob("events_*")) for line in part.read_text().splitlines()]
        events = [json.loads(line) for line in self._lines]
        kinds = [str(event["Event"]).rpartition(".")[2] for event in events]
        fourth = next(at for at, event in enumerate(events) if event.get("Properties", {}).get(BATCH) == "3")
        last = max(at for at, kind in enumerate(kinds) if kind.endswith("QueryProgressEvent"))
        self._first = max(at for at in range(fourth) if kinds[at] == "SparkListenerSQLExecutionStart")
        self._body = self._lines[self._first : last + 1]
        jobs = [event for event in events[self._first : last] if event["Event"] == "SparkListenerJobStart"]
        self._batches = int(jobs[-1]["Properties"][BATCH]) - 2
        self._jobs = jobs[-1]["Job ID"] - jobs[0]["Job ID"] + 1
        self._stages = max(jobs[-1]["Stage IDs"]) - min(jobs[0]["Stage IDs"]) + 1
        self._ms = round(1e3 * EVERY_S) * self._batches

    def write(self, file: Path, size: int) -> None:
        with file.open("w") as out:
            out.writelines(f"{line}\n" for line in self._lines[: self._first])
            for time_ in itertools.count():
                if out.tell() >= size:
                    return
                out.writelines(f"{self._again(line, time_)}\n" for line in self._body)

    def _again(self, line: str, times: int) -> str:
        steps = {"Job ID": self._jobs, "Stage ID": self._stages, "Parent ID": self._stages}

        def number(match: re.Match[str]) -> str:
            return f"{match[1]}{int(match[3]) + times * steps.get(match[2], self._batches)}"

        def later(match: re.Match[str]) -> str:
            at = datetime.fromisoformat(match[2]) + timedelta(milliseconds=times * self._ms)
            return f"{match[1]}{at.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}"

        def stages(match: re.Match[str]) -> str:
            return f'"Stage IDs":[{",".join(str(int(each) + times * self._stages) for each in match[1].split(","))}]'

        line = re.sub(r'("(Job ID|Stage ID|Parent ID|batchId|streaming\.sql\.batchId)"\s*:\s*"?)(\d+)', number, line)
        line = re.sub(r'"Stage IDs":\[([\d,]+)\]', stages, line)
        line = re.sub(r'("timestamp"\s*:\s*")([\dT:.-]+Z)', later, line)
        shift = times * self._ms
        return re.sub(
            r'("(?:Submission|Completion|Launch|Finish) Time":)(\d+)', lambda m: f"{m[1]}{int(m[2]) + shift}", line
        )


def read_large(report: Report, quick: bool) -> None:
    """Measure the command on an event log of a gigabyte, in a process of its own."""
    settings = {"spark.sql.shuffle.partitions": "24", "spark.eventLog.compress": "false"}
    every = f"{EVERY_S:g} seconds"
    job = Job(lambda spark, folder: write(counts(rate(spark, 2000)), folder, every, "update"), 30.0, settings)
    with TemporaryDirectory() as folder:
        large, size = Path(folder, "large"), LARGE // (20 if quick else 1)
        Repeated(logged(job, Path(folder))).write(large, size)
        began = time.monotonic()
        command = [str(Path(sys.executable).with_name("elastream")), "advise", str(large)]
        _, status, used = os.wait4(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid, 0)
        seconds, most = time.monotonic() - began, used.ru_maxrss * 1024 / 1e6
    report.figures["event log"] = {"MB": size / 1e6, "seconds": seconds, "MB of memory": most}
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise EnvironmentProblem("elastream advise failed")
    report.at_most("seconds for an event log of 1 GB", seconds, 60.0)
    report.at_most("MB of memory for it", most, 1000.0)


PARTS = {"findings": find, "fleets": predict, "log": read_large}

if __name__ == "__main__":
    main_of_parts("advice", __doc__, PARTS)
