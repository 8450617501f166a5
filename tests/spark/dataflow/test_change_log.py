"""The change log of months: few files are read, and nothing that `latest` says depends on what was merged."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.spark.dataflow import change_log
from elastream.spark.dataflow.change_log import tidy, write_changes
from elastream.spark.dataflow.sinks import begin_results, latest
from support.property_examples import examples

WORDS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 99), max_size=4)


class Frame:
    def __init__(self, rows: dict[str, int]) -> None:
        self.rows = rows

    def toArrow(self) -> pa.Table:
        columns = {"word": list(self.rows), "count": list(self.rows.values())}
        return pa.table(columns, pa.schema([("word", pa.string()), ("count", pa.int64())]))


def write(path: Path, batch: int, rows: dict[str, int], at: float = 0.0) -> None:
    write_changes(Frame(rows), path, batch, ["word"], 1e12)  # type: ignore[arg-type]
    os.utime(path / f"batch={batch}", (at, at))


def raw(path: Path) -> dict[str, int]:
    """What a reader sees who takes the folder for what it is: the last row of each key, in the order of batches."""
    folders = sorted(path.glob("batch=*"), key=lambda each: int(each.name[6:]))
    return {row["word"]: row["count"] for each in folders for row in pq.read_table(each / "changes.parquet").to_pylist()}


@settings(max_examples=examples(40))
@given(st.data())
def test_merging_and_compaction_keep_the_newest_rows_in_order(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("log")
    begin_results(path, ["word"])
    table: dict[str, int] = {}
    for batch in range(data.draw(st.integers(1, 60))):
        rows = data.draw(WORDS)
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


def test_a_full_disk_is_a_warning_and_the_batch_is_written(tmp_path, monkeypatch, caplog):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    begin_results(tmp_path, ["word"])
    monkeypatch.setattr(change_log, "tidy", full)
    write(tmp_path, 0, {"a": 1})
    assert latest(tmp_path)["count"].tolist() == [1]
    assert "cannot compact the change log" in caplog.text
