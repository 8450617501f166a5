"""What has been written to a durable edge, by number: the log of its files, and the batches that its reader plans."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.dataflow.edges import EdgeReader
from elastream.spark.dataflow.readers import Steering
from support.property_examples import examples

SCHEMA = pa.schema([("n", pa.int64())])


def write(folder: Path, batch: int, *files: list[int], at: float = 1000.0) -> None:
    """A batch's folder as `sinks.write_batch` leaves it."""
    place = folder / f"batch={batch}"
    place.mkdir(parents=True)
    (place / "_SUCCESS").touch()
    for number, rows in enumerate(files):
        pq.write_table(pa.table({"n": pa.array(rows, pa.int64())}), place / f"part-{number:05d}.parquet")
    os.utime(place, (at, at))


def reader(folder: Path, partitions: int = 2, rows_each: int = 1, seconds: float = 1e6) -> EdgeReader:
    steering = Steering("a-b", folder / "wanted.json", partitions)
    return EdgeReader(steering, folder / "records", rows_each, seconds, SCHEMA, folder / "commits")


def rows_of(found: EdgeReader, start, end) -> list[list[int]]:
    return [
        [n for batch in found.read(part) for n in batch.column("n").to_pylist()] for part in found.partitions(start, end)
    ]


def test_records_are_numbered_batch_by_batch_and_file_by_file(tmp_path):
    write(tmp_path, 0, [1, 2], [3], at=1000.0)
    write(tmp_path, 1)
    log = EdgeLog(tmp_path)
    assert log.refresh() == 3
    write(tmp_path, 2, [4, 5], at=1007.0)
    write(tmp_path, 4, [9])  # not before batch 3
    assert log.refresh() == 5
    assert [(Path(piece.path).parent.name, piece.first, piece.rows) for piece in log.pieces(1, 4)] == [
        ("batch=0", 1, 1),
        ("batch=0", 0, 1),
        ("batch=2", 0, 1),
    ]
    assert (log.written(2), log.written(3)) == (1000.0, 1007.0)
    assert log.written(5) != log.written(5)  # not written yet
    assert (log.by(999.0), log.by(1000.0), log.by(1010.0)) == (0, 3, 5)


def test_a_batch_is_planned_only_from_written_records(tmp_path):
    found = reader(tmp_path)
    start = found.initialOffset()
    assert found.latestOffset(start) == start
    write(tmp_path / "records", 0, [1, 2, 3])
    end = found.latestOffset(start)
    assert (end["edge"], end["n"]) == ("a-b", 3)
    assert rows_of(found, start, end) == [[1], [2, 3]]
    assert found.latestOffset(end) == end


@settings(max_examples=examples(40))
@given(
    written=st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5),
    width=st.integers(1, 6),
    data=st.data(),
)
def test_ranges_hold_every_record_once_also_in_a_replay(tmp_path_factory, written, width, data):
    folder = tmp_path_factory.mktemp("edge")
    total = 0
    for batch, sizes in enumerate(written):
        files = []
        for size in sizes:
            files.append(list(range(total, total + size)))
            total += size
        write(folder / "records", batch, *files)
    found = reader(folder, width)
    cuts = sorted(data.draw(st.lists(st.integers(0, total), max_size=3)))
    offset = found.initialOffset()
    found.latestOffset(offset)
    seen = []
    for first, last in zip([0, *cuts], [*cuts, total], strict=True):
        if first == last:
            continue
        start, end = {**offset, "n": first}, {**offset, "n": last, "partitions": width}
        parts = rows_of(found, start, end)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert rows_of(reader(folder, 1), start, end) == parts  # another process, which has seen nothing yet
        found.commit(start)
        seen += [n for part in parts for n in part]
    assert seen == list(range(total))


def test_read_batches_are_removed_but_still_counted(tmp_path):
    limits = {"spare_batches": 2, "removed_batches": 3}
    for batch in range(10):
        write(tmp_path, batch, [batch] if batch % 3 else [], at=1000.0 + batch)
    reader, late = EdgeLog(tmp_path, **limits), EdgeLog(tmp_path, **limits)
    assert reader.refresh() == 6
    late.refresh()
    reader.retire(upto=1, before=2000.0)  # only batches 0 and 1 were read: too few at a time
    assert len(list(tmp_path.glob("batch=*"))) == 10
    reader.retire(upto=6, before=1006.0)
    assert sorted(each.name for each in tmp_path.glob("batch=*")) == [f"batch={n}" for n in (6, 7, 8, 9)]
    reader.retire(upto=6, before=2000.0)  # the newest two stay
    fresh = EdgeLog(tmp_path, **limits)
    for batch in range(10, 14):
        write(tmp_path, batch, [batch], at=1000.0 + batch)
    for log in (reader, late, fresh):
        assert log.refresh() == 10
        assert [Path(piece.path).parent.name for piece in log.pieces(6, 10)] == [f"batch={n}" for n in range(10, 14)]
    assert fresh.by(1.0) == 4  # what is gone was written before
    fresh.retire(upto=10, before=2000.0)
    assert sorted(each.name for each in tmp_path.glob("batch=*")) == ["batch=12", "batch=13"]


def test_a_log_that_was_left_behind_goes_on_with_what_is_there(tmp_path):
    write(tmp_path, 0, [1, 2])
    behind, reader = EdgeLog(tmp_path), EdgeLog(tmp_path, spare_batches=1, removed_batches=1)
    behind.refresh()
    for batch in range(1, 6):
        write(tmp_path, batch, [batch])
    reader.refresh()
    reader.retire(upto=7, before=2000.0)
    assert behind.refresh() == 7
    assert behind.written(3) != behind.written(3)
