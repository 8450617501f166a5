"""A query of each kind of state is stopped, repartitioned twice and resumed: it equals a batch query over all rows."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import __version__ as SPARK
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupStateTimeout

from elastream.checkpoints.repartition import SINCE, repartition
from elastream.checkpoints.state import checkpoint_state
from elastream.errors import ElastreamError
from elastream.spark.jvm.releases import release_of
from support.nexmark_streams import ON_DISK

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(release_of(SPARK) < SINCE, reason="this release of Spark cannot repartition state"),
]

# Files of rows before each repartition, and after both. The last row of all closes windows.
FILES, ROWS, WIDTHS, CLOSING = 3, 60, (5, 3), -1
TIMER = datetime(2026, 4, 1, tzinfo=UTC)
STRICT = "spark.sql.streaming.statefulOperator.useStrictDistribution"
SCHEMA, TOTALS = "k int, at timestamp, v int", "k int, n long, sum long"
Rows = list[tuple[Any, ...]]


@pytest.fixture
def on_disk(local_spark: SparkSession) -> Iterator[SparkSession]:
    settings = {**ON_DISK, "spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    for key, value in settings.items():
        local_spark.conf.set(key, value)
    yield local_spark
    for key in settings:
        local_spark.conf.unset(key)


def write_rows(folder: Path, number: int) -> None:
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [(n * n % 23, begin + timedelta(minutes=n / 4), n) for n in range(number * ROWS, (number + 1) * ROWS)]
    rows += [(CLOSING, datetime(2099, 1, 1, tzinfo=UTC), 0)] if number == FILES - 1 else []
    lines = [f'{{"k": {k}, "at": "{at:%Y-%m-%dT%H:%M:%S}Z", "v": {v}}}\n' for k, at, v in rows]
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.json").write_text("".join(lines))
    os.utime(folder / f"{number}.json", (number, number))


def joined(rows: DataFrame) -> DataFrame:
    # Both sides read the files, and the checkpoint knows them as two sources.
    right = rows.where("v % 3 = 0").selectExpr("k as right_k", "at as right_at", "v as right_v")
    near = f.expr("k = right_k and right_at between at and at + interval 30 minutes")
    return rows.join(right, near, "leftOuter").select("k", "v", "right_v")


def deduplicated(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["k"]).select("k")


def sessions(rows: DataFrame) -> DataFrame:
    sessions = rows.groupBy(f.session_window("at", "5 minutes"), "k").agg(f.count("*"), f.sum("v"))
    return sessions.select("k", "session_window.start", "session_window.end", "count(1)", "sum(v)")


def counts_of_counts(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(f.window("at", "5 minutes"), "k").agg(f.count("*").alias("n"))
    longer = counts.groupBy(f.window(f.window_time("window"), "15 minutes"), "k").agg(f.sum("n"), f.count("*"))
    return longer.select("k", "window.start", "sum(n)", "count(1)")


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(f.count("*"), f.sum("v"))


def with_group_state(rows: DataFrame) -> DataFrame:
    def added(key, frames, state):
        n, total = state.get if state.exists else (0, 0)
        for frame in frames:
            n, total = n + len(frame), total + int(frame["v"].sum())
        state.update((n, total))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "sum": [total]})

    if not rows.isStreaming:
        return totals(rows)
    timeout = GroupStateTimeout.NoTimeout
    return rows.groupBy("k").applyInPandasWithState(added, TOTALS, "n long, sum long", "update", timeout)


def with_own_state(rows: DataFrame) -> DataFrame:
    from pyspark.sql.streaming import StatefulProcessor

    class Adding(StatefulProcessor):
        """Returns the totals of a key once its timer expires, which is at the closing row."""

        def init(self, handle):
            self.handle = handle
            self.values, self.counts = (
                handle.getListState("values", "v int"),
                handle.getMapState("counts", "v int", "n int"),
            )

        def handleInputRows(self, key, rows, timerValues):
            for frame in rows:
                self.values.appendList([(int(each),) for each in frame["v"]])
                for each in frame["v"]:
                    self.counts.updateValue((int(each),), (1,))
            self.handle.registerTimer(int(TIMER.timestamp() * 1000))
            yield pd.DataFrame({"k": [], "n": [], "sum": []})

        def handleExpiredTimer(self, key, **_):  # noqa: N802
            values, counts = [each[0] for each in self.values.get()], [each[0] for each in self.counts.values()]
            yield pd.DataFrame({"k": [key[0]], "n": [sum(counts)], "sum": [sum(values)]})

        def close(self):
            pass

    if not rows.isStreaming:
        return totals(rows)
    return rows.groupBy("k").transformWithStateInPandas(Adding(), TOTALS, "Update", "EventTime")


def rows_of(frame: DataFrame) -> Rows:
    return [tuple(row) for row in frame.collect() if row["k"] != CLOSING]


def run_to_the_end(spark: SparkSession, query: Callable[[DataFrame], DataFrame], folder: Path, checkpoint: Path, mode: str):
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
    found: Rows = []
    writer = query(rows.withWatermark("at", "2 hours")).writeStream.outputMode(mode)
    writer = writer.foreachBatch(lambda frame, _: found.extend(rows_of(frame)))
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return found


QUERIES = [
    (joined, "append"),
    (deduplicated, "append"),
    (sessions, "append"),
    (counts_of_counts, "append"),
    (with_group_state, "update"),
    (with_own_state, "update"),
]


@pytest.mark.parametrize(("query", "mode"), QUERIES, ids=[query.__name__ for query, _ in QUERIES])
def test_resumed_query_equals_a_batch_query(on_disk: SparkSession, tmp_path: Path, query: Any, mode: str) -> None:
    if query is with_own_state:
        pytest.importorskip("google.protobuf", reason="Spark's transformWithState in Python needs protobuf")
    folder, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    write_rows(folder, 0)
    found = run_to_the_end(on_disk, query, folder, checkpoint, mode)
    for number, width in enumerate(WIDTHS, 1):
        repartition(on_disk, checkpoint, width, lambda _: None, stopped=True)
        assert checkpoint_state(checkpoint).width == width
        write_rows(folder, number)
        found += run_to_the_end(on_disk, query, folder, checkpoint, mode)
    newest = {row[0]: row for row in found}.values() if mode == "update" else found
    assert Counter(newest) == Counter(rows_of(query(on_disk.read.schema(SCHEMA).json(str(folder)))))


def counted(rows: DataFrame) -> DataFrame:
    return rows.agg(f.lit(0).alias("k"), f.count("*"))


def counted_by_a_part_of_the_key(rows: DataFrame) -> DataFrame:
    return rows.repartition("k").groupBy("k", "v").count()


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        (counted, "keeps the state of stateStoreSave in partition 0 at any width, because it has no keys"),
        (counted_by_a_part_of_the_key, "stateStoreSave does not place its state by its keys' hash: nothing is changed"),
    ],
    ids=["no key", "a part of the key"],
)
def test_state_that_no_query_would_find_is_refused(
    on_disk: SparkSession, tmp_path: Path, query: Any, sentence: str
) -> None:
    on_disk.conf.set(STRICT, "false")  # as before Spark 3.3
    try:
        write_rows(tmp_path / "rows", 0)
        run_to_the_end(on_disk, query, tmp_path / "rows", tmp_path / "checkpoint", "update")
    finally:
        on_disk.conf.unset(STRICT)
    with pytest.raises(ElastreamError, match=sentence):
        repartition(on_disk, tmp_path / "checkpoint", 5, lambda _: None, stopped=True)
    assert checkpoint_state(tmp_path / "checkpoint").width == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoint", "rows"]


def test_checkpoint_in_a_folder_of_any_name_is_repartitioned(on_disk: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "a b, 50%" / "c#1"
    write_rows(tmp_path / "rows", 0)
    found = run_to_the_end(on_disk, deduplicated, tmp_path / "rows", checkpoint, "append")
    assert repartition(on_disk, checkpoint, 5, lambda _: None, stopped=True).rows == len(found)
    assert checkpoint_state(checkpoint).width == 5
