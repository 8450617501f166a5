"""The change log and what is read back from it, with no Spark session."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.dataflow.endpoints import Collected, ParquetSink, kafka
from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.parts import DAY
from elastream.spark.dataflow.change_log import write_changes
from elastream.spark.dataflow.sinks import (
    begin_results,
    check_sink,
    collect_batch,
    collected,
    latest,
    replace_results,
)
from support.property_examples import examples


class Frame:
    """Stands for Spark's DataFrame where only its rows are asked for."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def toArrow(self) -> pa.Table:
        return pa.Table.from_pylist(self.rows, schema=pa.schema([("word", pa.string()), ("count", pa.int64())]))


changes = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 100), max_size=6)


@settings(max_examples=examples(40))
@given(batches=st.lists(changes, min_size=1, max_size=12), data=st.data())
def test_latest_is_the_last_word_on_every_key_even_after_replays(tmp_path_factory, batches, data):
    path = tmp_path_factory.mktemp("log")
    begin_results(path, ["word"])
    table: dict[str, int] = {}
    for number, batch in enumerate(batches):
        rows = [{"word": word, "count": count} for word, count in batch.items()]
        if data.draw(st.booleans(), label="crashes and is replayed"):
            write_changes(Frame(rows[: len(rows) // 2]), path, number, ["word"], DAY)  # type: ignore[arg-type]
        write_changes(Frame(rows), path, number, ["word"], DAY)  # type: ignore[arg-type]
        table |= batch
    found = latest(path)
    assert dict(zip(found["word"], found["count"], strict=True)) == table


def test_the_key_may_be_given_and_need_not_be_what_the_log_says(tmp_path: Path):
    (tmp_path / "batch=0").mkdir()
    pq.write_table(pa.table({"day": [1, 1, 2], "hour": [1, 1, 2], "n": [5, 6, 7]}), tmp_path / "batch=0" / "x.parquet")
    assert latest(tmp_path, key="day")["n"].tolist() == [6, 7]
    assert latest(tmp_path, key=["day", "hour"])["n"].tolist() == [6, 7]
    with pytest.raises(InputError, match="does not name its key columns"):
        latest(tmp_path)
    with pytest.raises(InputError, match=r"has no key column 'week' \(it has: day, hour, n\)"):
        latest(tmp_path, key="week")


def test_a_folder_without_a_change_log_is_distinguished_from_an_empty_one(tmp_path: Path):
    with pytest.raises(InputError, match="holds no change log"):
        latest(tmp_path)
    begin_results(tmp_path, ["word"])
    assert latest(tmp_path).empty


def test_results_are_continued_by_their_run_replaced_or_refused(tmp_path: Path):
    sink = ParquetSink(str(tmp_path))
    check_sink(sink, changes=True)
    begin_results(tmp_path, ["word"], run="mine")
    write_changes(Frame([{"word": "old", "count": 1}]), tmp_path, 7, ["word"], DAY)  # type: ignore[arg-type]
    for other in ("", "theirs"):
        with pytest.raises(EnvironmentProblem, match=r"earlier run \(batch=7\): --resume RUN goes on .* --fresh replaces"):
            check_sink(sink, changes=True, run=other)
        with pytest.raises(EnvironmentProblem, match="holds the results of an earlier run"):
            begin_results(tmp_path, ["word"], run=other)
    check_sink(sink, changes=True, run="mine")
    begin_results(tmp_path, ["word"], run="mine", fresh=False)
    assert latest(tmp_path)["word"].tolist() == ["old"]
    check_sink(sink, changes=True, run=None)
    replace_results([sink, Collected("counts"), ParquetSink()])
    assert list(tmp_path.iterdir()) == []
    begin_results(tmp_path, ["word"], run="theirs")
    assert latest(tmp_path).empty
    assert json.loads((tmp_path / "_key.json").read_text()) == {"format": 1, "run": "theirs", "key": ["word"]}


def test_what_is_replaced_are_results_and_nothing_else(tmp_path: Path):
    for name in ("_spark_metadata", "batch=0"):
        (tmp_path / name).mkdir()
    part = "part-00000-52d3c2b5-1f0e-4d3c-8d2a-0a1b2c3d4e5f-c000.snappy.parquet"
    for name in (part, f".{part}.crc", "_key.json", "thesis.pdf", "part-time.txt"):
        (tmp_path / name).touch()
    replace_results([ParquetSink(str(tmp_path)), ParquetSink(str(tmp_path / "nowhere"))])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["part-time.txt", "thesis.pdf"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match=r"cannot write results to .*file/out"):
        begin_results(tmp_path / "file" / "out", ["word"])


def test_collected_rows_are_those_of_each_batch_once():
    for number, count in ((0, 1), (1, 2), (1, 3)):
        collect_batch(Frame([{"word": "a", "count": count}]), "rows of this test", number)  # type: ignore[arg-type]
    assert collected("rows of this test").column("count").to_pylist() == [1, 3]
    with pytest.raises(InputError, match="nothing has been collected under 'elsewhere'"):
        collected("elsewhere")


def test_a_topic_that_is_written_has_no_group():
    with pytest.raises(InputError, match="the Kafka topic 'counts' is written: only what is read has offsets for a group"):
        check_sink(kafka("counts", group="app"), changes=False)
