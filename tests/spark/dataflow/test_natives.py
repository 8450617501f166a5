"""Native operators as running queries: rows against plain PySpark, and alternates that are switched live."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow, Stream
from elastream.dataflow.endpoints import collect, parquet, records
from elastream.dataflow.stages import lay_out
from elastream.errors import DataflowError
from elastream.loads import constant
from elastream.recording.directory import RunDirectory
from elastream.spark.dataflow.sinks import collected
from elastream.spark.queries.compiler import start_queries
from elastream.spark.queries.segments import RunningSegment
from elastream.spark.queries.switching import switch
from elastream.spark.worker.composition import CompositionCodec, composition_in_offsets, latest_batch, offsets_of
from elastream.spark.worker.runner import explain_failure
from support.waiting import wait_until

pytestmark = pytest.mark.spark

SCHEMA = "id long, city string, tags array<string>, at timestamp_ntz"
ROWS = [{"id": n, "city": ["oslo", "rome", None][n % 3], "tags": ["a", "b"][: n % 4], "at": None} for n in [*range(40)] * 3]
CITIES = [("oslo", "NO"), ("rome", "IT")]


@pytest.fixture
def spark(local_spark: SparkSession) -> SparkSession:
    return local_spark


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., tuple[RunningSegment, ...]]]:
    started: list[RunningSegment] = []

    def run(
        flow: Dataflow, composition: Composition | None = None, folder: RunDirectory | None = None
    ) -> tuple[RunningSegment, ...]:
        directory = folder or RunDirectory.create(tmp_path / "runs", flow.name)
        wanted = composition or Composition.default(flow.graph)
        running = start_queries(
            spark, lay_out(flow.graph), directory, wanted, state_partitions=1, batch_seconds=60, interval=0.0
        )
        started.extend(running)
        return running

    yield run
    for each in started:
        each.query.stop()


def finish(running: tuple[RunningSegment, ...], total: int) -> None:
    def done() -> bool:
        for each in running:
            if (error := each.query.exception()) is not None:
                raise AssertionError(explain_failure(error)) from error
        progress = running[0].query.lastProgress
        return bool(progress) and int(json.loads(progress["sources"][0]["endOffset"])["n"]) == total

    wait_until(done, otherwise=lambda: [each.query.lastProgress for each in running])
    for each in running:
        each.query.processAllAvailable()


def source(flow: Dataflow, total: int = len(ROWS), rate: float | None = None) -> Stream:
    """`total` records; without a rate all are due at once."""
    per_second = rate or total * 1000
    return flow.source(records(ROWS, SCHEMA), load=constant(per_second, total / per_second))


def sorted_rows(rows: Any) -> list[str]:
    return sorted(repr(tuple(row.values()) if isinstance(row, dict) else tuple(row)) for row in rows)


def cities(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(CITIES, "city string, country string")


def test_each_native_operator_returns_the_rows_of_plain_pyspark(spark, start):
    flow = Dataflow("natives")
    stream = source(flow).filter("id > 3").where(F.col("id") < 38).with_column("twice", "id * 2")
    stream = stream.with_columns({"name": "upper(city)", "thrice": F.col("id") * 3}).drop("at")
    stream = stream.explode("tags", into="tag").join(cities, on="city", how="left").transform(with_length)
    stream = stream.sql("SELECT *, id + twice AS sum FROM {stream} WHERE id <> 5").drop_duplicates("id", "tag")
    stream = stream.select("id", "city", "country", "tag", "name", "length", F.col("sum") + 1, "thrice AS t")
    stream.sink(collect("natives"))
    finish(start(flow), len(ROWS))

    plain = spark.createDataFrame([Row(**row) for row in ROWS], SCHEMA).where("id > 3 AND id < 38")
    plain = plain.selectExpr("*", "id * 2 AS twice", "upper(city) AS name", "id * 3 AS thrice").drop("at")
    plain = plain.withColumn("tag", F.explode("tags")).join(cities(spark), "city", "left").transform(with_length)
    plain = plain.where("id <> 5").dropDuplicates(["id", "tag"])
    expected = plain.selectExpr("id", "city", "country", "tag", "name", "length", "id * 3 + 1", "thrice").collect()
    assert sorted_rows(collected("natives").to_pylist()) == sorted_rows(expected)
    assert len(expected) == 40


def with_length(frame: DataFrame) -> DataFrame:
    return frame.withColumn("length", F.coalesce(F.length("city"), F.lit(0)))


def labelled(label: str) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: frame.select("id", F.lit(label).alias("label"))


@dataclass
class Kept:
    """A sink that keeps the rows of each attempt at a batch, and fails after writing while it is told to."""

    attempts: list[tuple[int, list[tuple[Any, ...]]]] = field(default_factory=list)
    failing: bool = False

    def write(self, rows: DataFrame, batch: int) -> None:
        self.attempts.append((batch, sorted(tuple(row) for row in rows.collect())))
        if self.failing:
            self.failing = False
            raise RuntimeError("the sink was told to fail")


def until_failed(running: tuple[RunningSegment, ...]) -> None:
    wait_until(lambda: not running[0].query.isActive)


def until_in_force(running: tuple[RunningSegment, ...], version: int) -> None:
    """Wait until a batch under `version`, or a later one, is committed."""

    def done() -> bool:
        checkpoint = running[0].checkpoint
        ran = composition_in_offsets(checkpoint, batch) if (batch := latest_batch(checkpoint, "commits")) >= 0 else None
        return not running[0].query.isActive or (ran is not None and ran.version >= version)

    wait_until(done)


@dataclass
class Expected:
    """The rows of each batch in plain Python, by what Spark's offset log has of it. It forgets a batch after a while."""

    codec: CompositionCodec
    rows: list[list[tuple[Any, ...]]] = field(default_factory=list)
    totals: dict[str, tuple[int, int]] = field(default_factory=dict)
    compositions: set[int] = field(default_factory=set)
    end: int = 0

    def read(self, checkpoint: Any) -> None:
        """Add the batches that were planned since the last call."""
        for batch in range(len(self.rows), latest_batch(checkpoint) + 1):
            (offset,) = offsets_of(checkpoint, batch)
            alternates = self.codec.decode(int(offset["code"])).alternates
            ids = [ROWS[n % len(ROWS)]["id"] for n in range(self.end, int(offset["n"]))]
            kept = [id for id in ids if alternates["some"] == "all" or id % 2]
            label, times = alternates["label"], {"once": 1, "twice": 2}[alternates["times"]]
            n, evens = self.totals.get(label, (0, 0))
            self.totals[label] = n + len(kept), evens + sum(id % 2 == 0 for id in kept)
            self.rows.append([(label, *self.totals[label], times)] if kept else [])
            self.compositions.add(int(offset["code"]))
            self.end = int(offset["n"])


@pytest.mark.parametrize(
    ("switches", "between_failures"),
    [pytest.param(10, 4, id="few"), pytest.param(1000, 50, id="thousand", marks=pytest.mark.slow)],
)
def test_batches_run_the_alternates_of_their_composition_also_in_a_replay(start, tmp_path, switches, between_failures):
    out, flow, chance = Kept(), Dataflow("switched"), random.Random(1)
    # One of them may return null: the state behind them has one schema all the same.
    labels = {"a": labelled("a"), "b": lambda df: df.select("id", F.when(df.id >= 0, "b").alias("label"))}
    stream = flow.source(records(ROWS, SCHEMA), load="200/s").transform(labels, name="label")
    some = stream.filter({"all": "id >= 0", "odd": "id % 2 = 1"}, name="some").key_by("label")
    totals = some.aggregate({"n": "count(*)", "evens": "count_if(id % 2 = 0)"})
    totals.transform({"once": counted(1), "twice": counted(2)}, name="times").sink(out)
    directory, layout = RunDirectory.create(tmp_path / "runs", flow.name), lay_out(flow.graph)
    requested, running = Composition.default(flow.graph), start(flow, None, directory)
    expected, attempts = Expected(CompositionCodec(flow.graph)), Counter[int]()

    def check() -> None:
        expected.read(running[0].checkpoint)
        different = [batch for batch, rows in out.attempts if rows != expected.rows[batch]]
        assert different == []
        attempts.update(batch for batch, _ in out.attempts)
        out.attempts.clear()

    choices = [
        dict(zip(("label", "some", "times"), each, strict=True))
        for each in product("ab", ("all", "odd"), ("once", "twice"))
    ]
    for number in range(1, switches + 1):
        chosen = chance.choice([each for each in choices if each != requested.alternates])
        requested = replace(requested, version=requested.version + 1, alternates=chosen)
        switch(layout, running, requested)
        if number % between_failures == 0:
            out.failing = True
            until_failed(running)
            check()
            # What is requested when the query starts again is not what the failed batch ran under.
            requested = replace(requested, alternates=chance.choice([each for each in choices if each != chosen]))
            running = start(flow, requested, directory)
            requested = running[0].began
        else:
            until_in_force(running, requested.version)
        expected.read(running[0].checkpoint)
    running[0].query.stop()
    check()
    assert sum(count > 1 for count in attempts.values()) >= switches // between_failures
    assert len(expected.compositions) >= min(8, switches // 2)


def counted(times: int) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: frame.withColumn("times", F.lit(times))


def test_alternates_that_keep_state_are_refused(start):
    flow = Dataflow("state")
    stream = source(flow).transform({"all": lambda frame: frame, "once": lambda frame: frame.dropDuplicates(["id"])})
    stream.sink(collect("state"))
    with pytest.raises(DataflowError, match=r"alternate 'once' of operator 'all' keeps state .Deduplicate.*of its own"):
        start(flow)


def test_a_job_begins_and_ends_with_dataframes_of_its_own(spark, start, tmp_path):
    """Files are read by Spark's own source, so that a log beside the checkpoint tells each batch its alternates."""
    (tmp_path / "in").mkdir()
    flow, out = Dataflow("edges"), str(tmp_path / "out")
    lines = flow.from_dataframe(lambda spark: spark.readStream.text(str(tmp_path / "in")))
    words = lines.transform(
        {"whole": lambda df: df, "upper": lambda df: df.select(F.upper("value").alias("value"))}, name="w"
    )
    words.to_dataframe(lambda df: df.withColumn("n", F.length("value")).writeStream.format("json").option("path", out))
    running = start(flow)
    layout, requested = lay_out(flow.graph), Composition.default(flow.graph)
    for version, (alternate, text) in enumerate([("whole", "a"), ("upper", "b"), ("whole", "c"), ("upper", "d")]):
        switch(layout, running, replace(requested, version=version, alternates={"w": alternate}))
        for number in range(3):  # a switch takes effect two batches after the newest planned one
            (tmp_path / "in" / f"{text}{number}.txt").write_text(text)
            running[0].query.processAllAvailable()
    rows = [(row.value, row.n) for row in spark.read.json(out).collect()]
    assert len(rows) == 12
    assert {value.lower() for value, _ in rows} == set("abcd")
    assert {"a", "B", "c", "D"} <= {value for value, _ in rows}
    assert sum(batch["numInputRows"] for batch in running[0].query.recentProgress) == 12


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda s: s.transform(lambda df: 3), r"operator 'transform' returned a int: it must return a DataFrame"),
        (
            lambda s: s.transform(lambda df: df.select("nothing")),
            r"the DataFrame code of .transform. is invalid",
        ),
        (lambda s: s.transform(lambda df: 1 / 0), "the function of operator 'transform' failed: ZeroDivisionError"),
        (
            lambda s: s.transform({"a": lambda df: df.select("id"), "b": lambda df: df.select("city")}),
            "the alternates of operator 'a' return different columns: 'a' id bigint, 'b' city string",
        ),
        (
            lambda s: s.transform(
                {"a": lambda df: df, "b": lambda df: df.withColumn("at", F.now()).withWatermark("at", "1 minute")}
            ),
            "alternate 'b' of operator 'a' sets a watermark",
        ),
        (
            lambda s: s.transform(lambda df: df.select("id"), returns="id long, city string"),
            "operator 'transform' returns the columns id, where `returns` has id, city",
        ),
    ],
)
def test_dataframe_code_that_cannot_run_is_one_sentence(start, write, sentence):
    flow = Dataflow("wrong")
    write(source(flow)).sink(collect("wrong"))
    with pytest.raises(DataflowError, match=sentence):
        start(flow)


def test_alternates_have_the_physical_plan_of_plain_pyspark(spark, start, tmp_path):
    def numbers(session: SparkSession) -> DataFrame:
        return session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()

    def work(frame: DataFrame) -> DataFrame:
        return frame.where("value % 10 < 3").select("value", F.hex("value").alias("text"))

    flow = Dataflow("plan")
    stream = flow.from_dataframe(numbers).transform(
        {"work": work, "other": lambda df: work(df).withColumn("text", F.lit(""))}
    )
    stream.sink(parquet(tmp_path / "ours"))
    ours = start(flow)[0].query
    writer = work(numbers(spark)).writeStream.format("parquet").option("path", str(tmp_path / "plain"))
    plain = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_until(lambda: ours.lastProgress is not None and plain.lastProgress is not None)
        plans = [re.sub(r"#\d+L?", "", query._jsq.explainInternal(False)) for query in (ours, plain)]
    finally:
        plain.stop()
    assert "Filter" in plans[0]
    assert plans[0] == plans[1]
