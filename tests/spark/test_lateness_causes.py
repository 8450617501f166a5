"""The cause of a query's lateness is named: eight that are planted, each alone, and none for ten jobs that are in time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from elastream import Autopilot
from elastream.core.lateness import Cause
from elastream.recording.observer import Observer
from support.foreign_sessions import local_cluster
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]
# Batches with records of a healthy job that are looked at.
ENOUGH = 8


@dataclass
class Diagnoses(Observer):
    """An observer of the diagnoses of each query, of its batches with records, and of what the policy remarks."""

    by_query: dict[str, list[Any]] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def observed(self, observation: Any) -> None:
        for name, diagnosis in observation.diagnoses.items():
            self.by_query.setdefault(name, []).append(diagnosis)
        for batch in observation.batches:
            self.batches[batch.segment] = self.batches.get(batch.segment, 0) + (batch.records > 0)

    def decided(self, decision: Any) -> None:
        self.notes.append(decision.note)

    def sentences(self, query: str) -> list[str]:
        return [each.sentence for each in self.by_query.get(query, ()) if each.sentence]


@contextmanager
def watched(spark: SparkSession, target: float, *queries: Any) -> Iterator[Diagnoses]:
    """Diagnose queries, and change nothing; the queries stop at the end."""
    diagnoses = Diagnoses()
    try:
        with Autopilot(
            spark, target_latency=target, max_hosts=2, observe_only=True, period=1.0, observers=[diagnoses]
        ).watch(*queries):
            yield diagnoses
        for query in queries:
            assert query.exception() is None, query.exception()
    finally:
        for query in queries:
            query.stop()


@pytest.fixture(scope="module")
def spark(request, tmp_path_factory):
    """Open a session with two slots; a parameter limits its cores."""
    settings = {"spark.sql.shuffle.partitions": "4", "spark.scheduler.mode": "FAIR", **getattr(request, "param", {})}
    with local_cluster(tmp_path_factory.mktemp("session"), 600, settings) as session:
        yield session


def folder(root: Path, name: str) -> Path:
    (root / name).mkdir()
    return root / name


def records(spark: SparkSession, rate: int) -> DataFrame:
    """Return a stream of `rate` records/s."""
    return spark.readStream.format("rate").option("rowsPerSecond", rate).option("numPartitions", 2).load()


def equal_batches(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    """Return a stream of which each batch reads `rows` records, so that no batch grows with the time of the one before."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    return source.option("numPartitions", partitions).load()


def files(spark: SparkSession, root: Path, number: int, most: int) -> DataFrame:
    """Return a stream of a folder with `number` files, of which a batch reads `most`."""
    source = folder(root, "in")
    for each in range(number):
        (source / f"{each:04}.csv").write_text("\n".join(str(row) for row in range(50)))
    return spark.readStream.schema("value long").option("maxFilesPerTrigger", most).csv(str(source))


def worked(frame: DataFrame, steps: int) -> DataFrame:
    """Let an executor's JVM work on each record; 10,000 steps take a core one or two milliseconds."""
    return frame.withColumn("value", F.expr(f"aggregate(sequence(1, {steps}), value, (a, x) -> hash(a, x) + 0L)"))


def waits(frame: DataFrame, milliseconds: int) -> DataFrame:
    """Let an executor's JVM wait for each record, as for a remote service."""
    return frame.filter(F.expr(f"reflect('java.lang.Thread', 'sleep', {milliseconds}L) is null"))


def counts(frame: DataFrame) -> DataFrame:
    return frame.groupBy((F.col("value") % 5).alias("k")).count()


def by_hot_key(frame: DataFrame) -> DataFrame:
    """Shuffle by a key that nine tenths of the records have."""
    return frame.repartition(4, F.when(F.col("value") % 10 == 0, F.col("value")).otherwise(0))


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    left, right = (each.withWatermark("timestamp", "5 seconds") for each in (left, right))
    return left.join(right, ["value", "timestamp"])


def written(frame: DataFrame, root: Path, every: str = "1 second", mode: str = "append", sink: Any = "noop") -> Any:
    """Start a query that has the name of the folder `root`."""
    writer = frame.writeStream.queryName(root.name).outputMode(mode).option("checkpointLocation", str(root / "checkpoint"))
    writer = writer.foreachBatch(sink) if callable(sink) else writer.format(sink)
    return writer.trigger(processingTime=every).start()


def pause(seconds: float, only: int | None = None) -> Callable[[DataFrame, int], None]:
    """Return a function that collects a batch and waits in the driver, in each batch or in `only` one."""

    def collect(batch: DataFrame, number: int) -> None:
        batch.collect()
        time.sleep(seconds if only in (None, number) else 0)

    return collect


def three_actions(batch: DataFrame, number: int) -> None:
    batch = batch.persist()
    batch.write.format("noop").mode("overwrite").save()
    batch.filter("value > 1").count()
    batch.head(1)
    batch.unpersist()


@dataclass(frozen=True)
class Late:
    """A late query, with its cause and words of the sentence that names it."""

    start: Callable[[SparkSession, Path], Any]
    cause: Cause
    words: str


LATE = {
    "trigger": Late(lambda spark, root: written(counts(records(spark, 20)), root, "5 seconds", "update"),
                    Cause.TRIGGER, "because of its trigger: batches start every 5.0 s"),
    "sink": Late(lambda spark, root: written(waits(equal_batches(spark, 60, 2), 100), root),
                 Cause.SINK, "its tasks wait"),
    "driver": Late(lambda spark, root: written(counts(records(spark, 20)), root, mode="update", sink=pause(3)),
                   Cause.DRIVER, "its foreachBatch function spends"),
    "hot key": Late(lambda spark, root: written(worked(by_hot_key(equal_batches(spark, 600, 2)), 40_000), root),
                    Cause.LONG_TASK, "a key with many records"),
    "one partition": Late(lambda spark, root: written(worked(equal_batches(spark, 600, 1), 40_000), root),
                          Cause.FEW_TASKS, "has 1 task for 2 slots"),
    "file limit": Late(lambda spark, root: written(counts(files(spark, root, 500, 1)), root, mode="update"),
                       Cause.LIMIT, "raise maxFilesPerTrigger"),
    "too few hosts": Late(lambda spark, root: written(worked(equal_batches(spark, 1200, 8), 40_000), root),
                          Cause.HOSTS, "its tasks fill 2 slots"),
}  # fmt: skip

# Jobs that are in time with a target of 60 s, in groups that run at once, but for one slow batch of 75 s.
HEALTHY = {
    "a projection": lambda spark, root: written(records(spark, 50), root, "2 seconds"),
    "counts": lambda spark, root: written(counts(records(spark, 50)), root, "2 seconds", "update"),
    "a long trigger": lambda spark, root: written(counts(records(spark, 50)), root, "5 seconds", "complete"),
    "a function": lambda spark, root: written(records(spark, 50), root, "2 seconds", sink=pause(0.5)),
    "one slow batch": lambda spark, root: written(records(spark, 50), root, "2 seconds", sink=pause(75, only=3)),
    "three actions": lambda spark, root: written(equal_batches(spark, 500, 2), root, "2 seconds", sink=three_actions),
    "a limit that is not reached": lambda spark, root: written(files(spark, root, 40, 100), root, "2 seconds"),
    "a hot key": lambda spark, root: written(worked(by_hot_key(records(spark, 50)), 2000), root, "2 seconds"),
    "a sink that waits a little": lambda spark, root: written(waits(records(spark, 10), 20), root, "2 seconds"),
    "a join": lambda spark, root: written(joined(records(spark, 20), records(spark, 20)), root, "3 seconds"),
}
NAMES = list(HEALTHY)


@pytest.mark.parametrize("cause", LATE)
def test_planted_cause_is_named(spark, tmp_path, cause):
    planted = LATE[cause]
    with watched(spark, 2.0, planted.start(spark, folder(tmp_path, "q"))) as diagnoses:
        wait_until(lambda: diagnoses.sentences("q"), progress=lambda: dict(diagnoses.batches))
        count = len(diagnoses.by_query["q"])
        wait_until(lambda: len(diagnoses.by_query["q"]) > count + 3, progress=lambda: dict(diagnoses.batches))
    named = [each for each in diagnoses.by_query["q"] if each.sentence]
    print(f"{cause}: {named[-1].sentence}")
    assert {each.cause for each in named} == {planted.cause}
    assert all(planted.words in each.sentence for each in named)
    assert {each.hosts_help for each in named} == {planted.cause is Cause.HOSTS}


@pytest.mark.parametrize("names", [NAMES[:5], NAMES[5:]], ids=["first five", "last five"])
def test_no_cause_is_named_for_jobs_that_are_in_time(spark, tmp_path, names):
    queries = [HEALTHY[name](spark, folder(tmp_path, name)) for name in names]
    with watched(spark, 60.0, *queries) as diagnoses:
        enough = [name for name in names if name != "a limit that is not reached"]
        wait_until(lambda: all(diagnoses.batches.get(name, 0) >= ENOUGH for name in enough),
                   progress=lambda: dict(diagnoses.batches))  # fmt: skip
    print(diagnoses.batches)
    assert {name: sentences for name in names if (sentences := diagnoses.sentences(name))} == {}


@pytest.mark.parametrize("spark", [{"spark.cores.max": "1"}], indirect=True, ids=["one core"])
def test_limit_of_the_session_is_named(spark, tmp_path):
    query = written(worked(equal_batches(spark, 600, 4), 40_000), folder(tmp_path, "q"))
    with watched(spark, 2.0, query) as diagnoses:
        wait_until(lambda: diagnoses.sentences("q") and any("spark.cores.max" in note for note in diagnoses.notes),
                   progress=lambda: dict(diagnoses.batches))  # fmt: skip
    print(*{note for note in diagnoses.notes if "spark.cores.max" in note}, sep="\n")
    assert {each.cause for each in diagnoses.by_query["q"] if each.sentence} == {Cause.HOSTS}
