"""Sources watched without Spark: files of a folder against a file source's log, Kafka's offsets against a checkpoint."""

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from elastream.freshness.wakes import SourceSpec
from elastream.freshness.watching import FileWatch, KafkaOffsets, KafkaWatch, Watched, bytes_read


class TopicPartition(NamedTuple):
    topic: str
    partition: int


def entry(checkpoint: Path, number: int, files: list[Path]) -> None:
    log = checkpoint / "sources" / "0"
    log.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": f.as_uri(), "timestamp": 1000, "batchId": number}) for f in files]
    (log / str(number)).write_text("\n".join(["v1", *lines]))


def commit(checkpoint: Path, batch: int, offset: object) -> None:
    for kind, text in (("offsets", f"v1\n{{}}\n{json.dumps(offset)}"), ("commits", "v1\n{}")):
        (checkpoint / kind).mkdir(parents=True, exist_ok=True)
        (checkpoint / kind / str(batch)).write_text(text)


def folder_of(tmp_path: Path, **sizes: int) -> dict[str, Path]:
    (tmp_path / "in").mkdir()
    for name, size in sizes.items():
        (tmp_path / "in" / name).write_bytes(b"x" * size)
    return {name: tmp_path / "in" / name for name in sizes}


def test_files_wait_until_their_batch_is_committed(tmp_path):
    files = folder_of(tmp_path, a=10, b=20, c=40)
    spec = SourceSpec("files", str(tmp_path / "in"), str(tmp_path / "cp"))
    watch = FileWatch(spec)
    assert watch.look().waiting == 70
    entry(tmp_path / "cp", 0, [files["a"]])
    commit(tmp_path / "cp", 0, {"logOffset": 0})
    entry(tmp_path / "cp", 1, [files["b"]])  # planned by a run that was killed
    look = watch.look()
    assert look.waiting == 60
    assert look.oldest == min(os.stat(files[name]).st_ctime for name in "bc")
    assert bytes_read(spec, -1) == 30
    commit(tmp_path / "cp", 1, {"logOffset": 1})
    assert watch.look().waiting == 40


def test_file_that_appears_between_looks_is_counted_as_an_arrival(tmp_path):
    folder_of(tmp_path, a=10)
    watch = FileWatch(SourceSpec("files", str(tmp_path / "in"), str(tmp_path / "cp")))
    assert watch.look().arrived == 0
    (tmp_path / "in" / "b").write_bytes(b"x" * 7)
    assert watch.look().arrived == 7
    assert watch.look().arrived == 0


def test_folder_with_braces_is_looked_at(tmp_path):
    folder_of(tmp_path, a=10)
    watch = FileWatch(SourceSpec("files", f"{tmp_path}/{{in,later}}", str(tmp_path / "cp"), names="{a,b}"))
    assert watch.look().waiting == 10


def in_a_run(tmp_path, **sizes):
    """Return files and their watch after a run has begun. The first file was modified long ago."""
    files = folder_of(tmp_path, **sizes)
    os.utime(next(iter(files.values())), (0.5, 0.5))
    watch = FileWatch(SourceSpec("files", str(tmp_path / "in"), str(tmp_path / "cp")))
    watch.look()
    watch.begin_run()
    return files, watch


def test_file_that_a_run_passed_over_waits_no_more_until_it_changes(tmp_path):
    files, watch = in_a_run(tmp_path, old=10, new=20)
    (tmp_path / "in" / "later").write_bytes(b"x")
    entry(tmp_path / "cp", 0, [files["new"]])  # its modification is after that of the old one
    commit(tmp_path / "cp", 0, {"logOffset": 0})
    assert watch.end_run() == "1 file"
    assert watch.look().waiting == 1
    watch.begin_run()
    assert watch.end_run() == "1 file", "the later one, of which nothing was read"
    assert watch.look() == (0.0, math.inf, 0.0)
    os.utime(files["old"])
    assert watch.look().waiting == 10


def test_files_that_a_job_left_when_it_ended_early_go_on_waiting(tmp_path):
    files, watch = in_a_run(tmp_path, first=10, second=20)
    entry(tmp_path / "cp", 0, [files["first"]])
    commit(tmp_path / "cp", 0, {"logOffset": 0})
    assert watch.end_run() == ""
    assert watch.look().waiting == 20


def test_records_behind_an_open_transaction_start_one_run(tmp_path):
    ends = {"t/0": 5, "t/1": 7}
    watch = KafkaWatch(SourceSpec("kafka", "t", str(tmp_path)), lambda topics: ({"t/0": 0, "t/1": 0}, dict(ends)))
    watch.look()
    watch.begin_run()
    commit(tmp_path, 0, {"t": {"0": 5, "1": 0}})
    assert watch.end_run() == "7 records"
    assert watch.look() == (0.0, math.inf, 0.0)
    ends["t/1"] = 8
    assert watch.look().waiting == 1
    watch.begin_run()
    commit(tmp_path, 1, {"t": {"0": 5, "1": 8}})
    assert watch.end_run() == ""
    ends["t/1"] = 9
    assert watch.look().waiting == 1


def test_empty_folder_waits_for_nothing(tmp_path):
    folder_of(tmp_path)
    assert FileWatch(SourceSpec("files", str(tmp_path / "in"), str(tmp_path / "cp"))).look() == (0.0, math.inf, 0.0)


def test_kafka_waits_behind_the_committed_offsets_since_the_poll_before(tmp_path):
    ends = {"t/0": 5, "t/1": 0}
    clock = iter([100.0, 110.0, 120.0, 130.0])
    spec = SourceSpec("kafka", "t", str(tmp_path))
    watch = KafkaWatch(spec, lambda topics: ({"t/0": 0, "t/1": 0}, dict(ends)), clock=lambda: next(clock))
    commit(tmp_path, 0, {"t": {"0": 5}})
    assert watch.look() == (0.0, math.inf, 0.0)
    ends["t/1"] = 3
    assert watch.look() == (3.0, 100.0, 3.0)
    ends["t/0"] = 9
    assert watch.look() == (7.0, 100.0, 4.0)
    commit(tmp_path, 1, {"t": {"0": 5, "1": 3}})
    assert watch.look() == (4.0, 110.0, 0.0)


def test_topics_may_have_spaces_between_them(tmp_path):
    watch = KafkaWatch(SourceSpec("kafka", "t, u", str(tmp_path)), lambda topics: ({}, {f"{each}/0": 1 for each in topics}))
    watch.look()
    assert set(watch._ends) == {"t/0", "u/0"}


def test_kafka_offsets_passed_over_end_with_their_topic(tmp_path):
    ends = {"t/0": 10}
    watch = KafkaWatch(SourceSpec("kafka", "t", str(tmp_path)), lambda topics: ({"t/0": 0}, dict(ends)))
    watch.look()
    watch.begin_run()
    watch.end_run()
    assert watch.look().waiting == 0
    ends["t/0"] = 3  # of another topic with its name
    assert watch.look().waiting == 3
    ends["t/0"] = 12
    assert watch.look().waiting == 12


def test_kafka_records_of_before_the_first_poll_wait_since_an_unknown_time(tmp_path):
    watch = KafkaWatch(SourceSpec("kafka", "t", str(tmp_path)), lambda topics: ({"t/0": 2}, {"t/0": 5}))
    assert watch.look() == (3.0, -math.inf, 0.0)


def test_bytes_become_records_by_what_a_run_read(tmp_path):
    folder_of(tmp_path, a=100)
    spec = SourceSpec("files", str(tmp_path / "in"), str(tmp_path / "cp"))
    watched = Watched([spec])
    watched.record_run({spec.name: 50.0}, {spec.name: 200.0})
    assert watched.look()[0].records == 25


def test_missing_topic_is_an_error_and_not_an_empty_one():
    class Consumer:
        def partitions_for_topic(self, topic):
            return None if topic == "gone" else {0}

        def beginning_offsets(self, parts):
            return dict.fromkeys(parts, 0)

        end_offsets = beginning_offsets

    errors = SimpleNamespace(KafkaError=RuntimeError)
    reader = KafkaOffsets.__new__(KafkaOffsets)
    reader._kafka, reader._consumer = SimpleNamespace(TopicPartition=TopicPartition, errors=errors), Consumer()
    assert reader(["t"]) == ({"t/0": 0}, {"t/0": 0})
    with pytest.raises(OSError, match="no topic 'gone'"):
        reader(["t", "gone"])
