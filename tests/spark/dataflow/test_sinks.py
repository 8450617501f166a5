"""The change log and what is read back from it, with no Spark session."""

import json
import os
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
from elastream.spark.dataflow import change_log
from elastream.spark.dataflow.change_log import tidy, write_changes
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


WORDS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 99), max_size=4)


def write(path: Path, batch: int, rows: dict[str, int], at: float = 0.0) -> None:
    frame = Frame([{"word": word, "count": count} for word, count in rows.items()])
    write_changes(frame, path, batch, ["word"], 1e12)  # type: ignore[arg-type]
    os.utime(path / f"batch={batch}", (at, at))


def raw(path: Path) -> dict[str, int]:
    """What a reader sees who takes the folder for what it is: the last row of each key, in the order of batches."""
    folders = sorted(path.glob("batch=*"), key=lambda each: int(each.name[6:]))
    return {row["word"]: row["count"] for each in folders for row in pq.read_table(each / "changes.parquet").to_pylist()}


@settings(max_examples=examples(40))
@given(st.data())
def test_replays_merging_and_compaction_keep_the_newest_rows_in_order(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("log")
    begin_results(path, ["word"])
    table: dict[str, int] = {}
    for batch in range(data.draw(st.integers(1, 60))):
        rows = data.draw(WORDS)
        if data.draw(st.booleans()):  # the first attempt was cut short
            write(path, batch, dict(list(rows.items())[: len(rows) // 2]), at=float(batch))
        write(path, batch, rows, at=float(batch))
        table |= rows
        if data.draw(st.booleans()):
            limits = {"merge_batches": 5, "spare_batches": 2, "max_past_batches": 8}
            tidy(path, batch, ["word"], before=batch - data.draw(st.integers(3, 20)), **limits)
            # A replay of the newest batch, as after a crash.
            write(path, batch, rows, at=float(batch))
    found = latest(path)
    assert list(zip(found["word"], found["count"], strict=True)) == list(table.items())
    assert found.columns.tolist() == ["word", "count"]
    assert raw(path) == table


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
        with pytest.raises(
            EnvironmentProblem, match=r"earlier run \(batch=7\): --resume RUN continues it, --fresh replaces"
        ):
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


def test_a_full_disk_is_a_warning_and_the_batch_is_written(tmp_path, monkeypatch, caplog):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    begin_results(tmp_path, ["word"])
    monkeypatch.setattr(change_log, "tidy", full)
    write(tmp_path, 0, {"a": 1})
    assert latest(tmp_path)["count"].tolist() == [1]
    assert "cannot compact the change log" in caplog.text
