"""Shaped loads as a Spark source: any range replays alike, counts are exact through restarts, batches never mix."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from elastream.dataflow.endpoints import ArrivalPattern, Files, KafkaTopic, Records, SourceSpec, TextFiles
from elastream.dataflow.operators import Kind, Operator
from elastream.errors import InputError
from elastream.loads import constant
from elastream.spark.dataflow.corpus import store_corpus
from elastream.spark.dataflow.readers import Steering, committed
from elastream.spark.dataflow.sources import HELD, HOLD, LOAD, ShapedReader, check_source, open_source
from elastream.spark.dataflow.stamps import QUANTILES, observation_name
from elastream.spark.worker.composition import (
    BatchComposition,
    CompositionRequest,
    code_in_offsets,
    latest_batch,
    write_request,
)
from support.waiting import wait_until

WORDS = tuple({"word": word} for word in ("to", "be", "or", "not", "to", "be", "that"))
SCHEMA = pa.schema([("word", pa.string())])


def source(spec: SourceSpec) -> Operator:
    return Operator("lines", Kind.SOURCE, reads=spec)


def steered(folder: Path, partitions: int = 2) -> Steering:
    return Steering("lines", folder / "wanted.json", partitions)


def reader(folder: Path, load: ArrivalPattern, partitions: int = 2, steering: Steering | None = None) -> ShapedReader:
    """A reader as Spark would make it, without Spark."""
    store_corpus(Records(WORDS, "word string"), pa.schema([("word", pa.string())]), folder / "corpus.arrow")
    (folder / LOAD).write_bytes(cloudpickle.dumps(load))
    return ShapedReader(folder, steering or steered(folder, partitions), 1.0, SCHEMA)


def begun(seconds_ago: float) -> dict[str, Any]:
    return {"n": 0, "t": 0.0, "started": time.time() - seconds_ago, "version": 0, "code": 0, "partitions": 2}


def rows(source: ShapedReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for part in source.partitions(start, end) for batch in source.read(part) for row in batch.to_pylist()]


def test_a_range_of_offsets_gives_the_same_records_every_time(tmp_path: Path) -> None:
    start, end = {**begun(9), "n": 5}, {**begun(9), "n": 23}
    first = rows(reader(tmp_path, constant("1/s")), start, end)
    assert [row["word"] for row in first] == [WORDS[n % 7]["word"] for n in range(5, 23)]
    assert rows(reader(tmp_path, constant("9/s"), partitions=5), start, {**end, "partitions": 5}) == first


@given(st.integers(0, 10**12), st.integers(1, 10**6), st.integers(1, 64))
def test_partitions_are_even_contiguous_and_never_empty(first: int, count: int, width: int) -> None:
    planner = ShapedReader(Path(), steered(Path()), 1.0, SCHEMA)
    parts = planner.partitions({"n": first}, {"n": first + count, "partitions": width})
    assert parts[0].first == first
    assert parts[-1].last == first + count
    assert all(a.last == b.first for a, b in pairwise(parts))
    sizes = [part.last - part.first for part in parts]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) == min(width, count)


def test_a_load_does_not_begin_while_it_is_held(tmp_path: Path) -> None:
    planner = reader(tmp_path, constant("1000/s", "3s"))
    start = planner.initialOffset()
    (tmp_path / HOLD).touch()
    assert [planner.latestOffset(start) for _ in range(3)] == [start] * 3
    (tmp_path / HOLD).unlink()
    began = planner.latestOffset(start)
    assert began == start  # nothing is due at the very beginning
    assert planner.reportLatestOffset() is not None


def test_a_load_that_has_begun_is_not_held_by_a_restart(tmp_path: Path) -> None:
    planner = reader(tmp_path, constant("10/s", "3s"))
    (tmp_path / HOLD).touch()
    assert planner.latestOffset(begun(60))["n"] == 30


def test_batches_grow_under_a_backlog_and_take_all_of_it_in_the_end(tmp_path: Path) -> None:
    planner, offset, sizes = reader(tmp_path, constant("1000/s", "5s")), begun(60), []
    while (end := planner.latestOffset(offset)) != offset:
        sizes.append(end["n"] - offset["n"])
        offset = end
    assert sizes[:4] == [100, 100, 200, 400]
    assert sum(sizes) == 5000


def test_waiting_for_a_trigger_is_no_time_that_a_batch_took(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    entry = tmp_path / "commits" / "7"
    entry.touch()
    os.utime(entry, (1000.5, 1000.5))
    assert committed(tmp_path / "commits", since=1000.0, now=1002.0) == 1000.5
    assert committed(tmp_path / "commits", since=1001.0, now=1002.0) == 1002.0
    assert committed(tmp_path / "nowhere", since=1000.0, now=1002.0) == 1002.0
    assert committed(None, since=1000.0, now=1002.0) == 1002.0


def test_a_composition_takes_effect_with_the_next_batch_and_not_before(tmp_path: Path) -> None:
    planner, start = reader(tmp_path, constant("100/s", "3s"), partitions=3), begun(60)
    first = planner.latestOffset(start)
    assert (first["version"], first["code"], first["partitions"]) == (0, 0, 3)
    write_request(tmp_path / "wanted.json", CompositionRequest(4, 11, {"lines": 8, "others": 3}))
    second = planner.latestOffset(first)
    assert (second["version"], second["code"], second["partitions"]) == (4, 11, 8)
    last = planner.latestOffset(second)
    write_request(tmp_path / "wanted.json", CompositionRequest(5, 12, {"lines": 8}))
    assert last["n"] == 300
    assert planner.latestOffset(last) == last


def test_a_source_that_is_held_says_so_takes_nothing_and_shows_what_is_due(tmp_path: Path) -> None:
    planner, start = reader(tmp_path, constant("10/s", "3s")), begun(60)
    write_request(tmp_path / "wanted.json", CompositionRequest(7, 1, paused=True))
    assert planner.latestOffset(start) == start
    assert (tmp_path / HELD).read_text() == "7"
    report = planner.reportLatestOffset()
    assert report is not None
    assert report["n"] == 30
    write_request(tmp_path / "wanted.json", CompositionRequest(8, 2))
    end = planner.latestOffset(start)
    assert (end["n"], end["version"], end["code"]) == (30, 8, 2)


def test_nothing_waits_behind_a_batch_without_records(tmp_path: Path) -> None:
    planner = reader(tmp_path, constant("10/s", "3s"))
    last = planner.latestOffset(begun(60))
    assert planner.latestOffset(last) == last
    assert planner.reportLatestOffset() == last


def test_a_version_without_records_gets_an_empty_batch(tmp_path: Path) -> None:
    steering = Steering(
        "lines", tmp_path / "wanted.json", wave=True, checkpoint=tmp_path / "checkpoint", before=BatchComposition(3, 1)
    )
    planner = reader(tmp_path, constant("10/s", "3s"), steering=Steering.of(steering.option()))
    write_request(tmp_path / "wanted.json", CompositionRequest(3, 1))
    last = planner.latestOffset(begun(60))
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / "0").write_text("v1\n{}\n" + json.dumps(last))
    assert planner.latestOffset(last) == last
    write_request(tmp_path / "wanted.json", CompositionRequest(4, 2))
    told = planner.latestOffset(last)
    assert told == {**last, "version": 4, "code": 2}
    assert rows(planner, last, told) == []
    (tmp_path / "checkpoint" / "offsets" / "1").write_text("v1\n{}\n" + json.dumps(told))
    assert planner.latestOffset(told) == told


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (TextFiles("/no/such/place"), "no file or folder /no/such/place"),
        (TextFiles("s3a://bucket/text", constant(1)), "needs local files, not s3a://bucket/text"),
        (Files("/no/such/place", "n long"), "no file or folder"),
        (Records((), "n long"), "list of records is empty"),
        (KafkaTopic("", "127.0.0.1:9092"), "has no name"),
        (KafkaTopic("t", "127.0.0.1"), "'127.0.0.1' is not host:port"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(spec: SourceSpec, says: str) -> None:
    with pytest.raises(InputError) as refused:
        check_source(source(spec))
    assert says in str(refused.value)


@pytest.fixture
def spark(local_spark: SparkSession) -> SparkSession:
    return local_spark


def wait_for(query: StreamingQuery, done: Callable[[], bool]) -> None:
    """Until `done`; fails with the query's own error where it dies first."""

    def done_or_failed() -> bool:
        assert query.exception() is None, str(query.exception())
        return done()

    wait_until(done_or_failed, otherwise=lambda: query.lastProgress)


def taken(checkpoint: Path) -> int:
    """Records in committed batches, from Spark's own logs."""
    done = [int(name) for name in os.listdir(checkpoint / "commits") if name.isdigit()] if checkpoint.exists() else []
    if not done:
        return 0
    return int(json.loads((checkpoint / "offsets" / str(max(done))).read_text().splitlines()[-1])["n"])


def written_by_batch(out: Path) -> dict[int, pa.Table]:
    """What each batch wrote, from the log of Spark's file sink; every tenth entry repeats all before it."""
    batches: dict[int, pa.Table] = {}
    known: set[str] = set()
    for log in sorted((out / "_spark_metadata").glob("[0-9]*"), key=lambda path: int(path.stem)):
        paths = [json.loads(line)["path"].removeprefix("file://") for line in log.read_text().splitlines()[1:]]
        fresh = [path for path in paths if path not in known]
        known.update(fresh)
        if fresh:
            batches[int(log.stem)] = pa.concat_tables(pq.read_table(path, partitioning=None) for path in fresh)
    return batches


@pytest.mark.spark
@pytest.mark.cluster
def test_counts_are_exact_through_restarts_and_no_batch_mixes_compositions(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.txt").write_text("or not\n\nto be\n")
    (tmp_path / "in" / "a.txt").write_text("to be\n")
    lines = ["to be", "or not", "to be"]
    load = constant("500/s", "3s")
    spec = TextFiles(str(tmp_path / "in"), load)
    checkpoint, control, out = tmp_path / "checkpoint", tmp_path / "control", tmp_path / "out"

    def start() -> StreamingQuery:
        stream = open_source(spark, source(spec), control=control, steering=steered(control), batch_seconds=1.0)
        return stream.writeStream.format("parquet").option("checkpointLocation", str(checkpoint)).start(str(out))

    target = load.count(load.seconds)
    version = 0
    for share in (0.4, 1.0):
        query = start()
        try:
            seen = -1

            def on_the_way(share: float = share) -> bool:
                nonlocal seen, version
                if latest_batch(checkpoint) > seen:
                    seen, version = latest_batch(checkpoint), version + 1
                    write_request(
                        control / "wanted.json", CompositionRequest(version, 100 + version, {"lines": 1 + version % 3})
                    )
                return taken(checkpoint) >= share * target

            wait_for(query, on_the_way)
        finally:
            query.stop()

    batches = written_by_batch(out)
    records = [value for batch in batches.values() for value in batch["value"].to_pylist()]
    assert len(records) == target == 1500
    assert Counter(records) == Counter(lines[n % 3] for n in range(target))
    assert len({code_in_offsets(checkpoint, number) for number in batches}) > 2


@pytest.mark.spark
@pytest.mark.cluster
def test_records_of_every_type_arrive_as_they_are_stored(spark: SparkSession, tmp_path: Path) -> None:
    stored = spark.sql(
        "select id as n, double(id)/3 as x, array(id, id+1) as ids, timestamp_seconds(id) as at, "
        "cast(id as decimal(9,2)) as price, map('a', id) as m, date(timestamp_seconds(id)) as d from range(20)"
    )
    stored.coalesce(1).write.parquet(str(tmp_path / "in"))
    spec = Files(
        str(tmp_path / "in"),
        "n long, x double, ids array<long>, at timestamp, price decimal(9,2), m map<string,long>, d date",
        "parquet",
        constant("20/s", "1s"),
    )
    stream = open_source(spark, source(spec), control=tmp_path / "control", steering=steered(tmp_path), batch_seconds=1.0)
    query = (
        stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "cp")).start(str(tmp_path / "out"))
    )
    try:
        wait_for(query, lambda: taken(tmp_path / "cp") >= 20)
    finally:
        query.stop()
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("n").collect()
    assert found == spark.read.parquet(str(tmp_path / "in")).orderBy("n").collect()


@dataclass(frozen=True)
class Ticks:
    """Numbers with a timestamp each, which is the second of their number."""

    timestamp: str = "timestamp"
    schema: str = "value long"

    def read(self, spark: SparkSession) -> DataFrame:
        numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
        return numbers.select("value", F.col("value").cast("timestamp").alias("timestamp"))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.cluster
def test_a_batch_reports_the_quantiles_of_its_records_time_stamps(spark: SparkSession, tmp_path: Path) -> None:
    operator = Operator("a b", Kind.SOURCE, reads=Ticks())
    frame = open_source(spark, operator, control=tmp_path, steering=steered(tmp_path), batch_seconds=1)
    writer = frame.writeStream.foreachBatch(lambda rows, _: rows.collect())
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_for(query, lambda: any(each.numInputRows for each in query.recentProgress))
        first = next(each for each in query.recentProgress if each.numInputRows)
    finally:
        query.stop()
    ((name, row),) = first.observedMetrics.items()
    assert name == observation_name("a b") == "elastream a%20b"
    # Number 0 has the epoch's first second as its timestamp, which is none.
    assert (row.records, row.stamped) == (100, 99)
    assert len(row["at"]) == len(QUANTILES)
    assert (row["at"][0], row["at"][-1]) == (1.0, 99.0)
    assert row["at"] == sorted(row["at"])


@pytest.mark.spark
@pytest.mark.cluster
def test_a_source_whose_timestamp_is_no_column_of_it_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    operator = Operator("s", Kind.SOURCE, reads=Ticks("when"))
    with pytest.raises(InputError, match="returned no column 'when', which its `timestamp` names"):
        open_source(spark, operator, control=tmp_path, steering=steered(tmp_path), batch_seconds=1)
