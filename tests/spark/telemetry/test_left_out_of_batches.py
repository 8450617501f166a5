"""What the driver takes in of records that tasks left out: committed batches, each once, whatever happens in between."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from elastream.dataflow.builder import Dataflow
from elastream.dataflow.stages import lay_out
from elastream.recording.dead_letters import letters
from elastream.recording.directory import RunDirectory
from elastream.recording.lines import JournalProblem
from elastream.recording.paths import names_in, path_of
from elastream.spark.telemetry import left_out as left_out_of_batches
from elastream.spark.telemetry.left_out import LeftOutCounts
from elastream.spark.worker.left_out import LeftOut


def flow(on_error: str = "dead_letter"):
    made = Dataflow("numbers")
    made.source(None).map(lambda n: n, returns="n long", name="f", on_error=on_error).sink(None)
    return lay_out(made.graph)


def left_out(directory: RunDirectory, batch: int, records: list[int], attempt: int = 0) -> None:
    task = LeftOut(directory.left_out("source"), batch, "source", 0, (attempt, False))
    task.add("f", "f", True, "no", records)
    task.flush()


def kept(directory: RunDirectory) -> list[tuple[int, int]]:
    return [(each["batch"], each["record"]) for each in letters(directory.dead_letters)]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def test_committed_batches_count_once_and_others_wait(directory):
    watch = LeftOutCounts(flow(), directory)
    assert watch.counts == {"f": 0}
    left_out(directory, 0, [1, 2])
    left_out(directory, 2, [3])
    left_out(directory, 3, [4])
    watch.committed({"source": 2, "other": 7})
    assert (kept(directory), watch.counts) == ([(0, 1), (0, 2), (2, 3)], {"f": 3})
    left_out(directory, 2, [3], attempt=9)  # a task that was taken for lost, and ran on
    watch.committed({"source": 3})
    assert (kept(directory), watch.counts) == ([(0, 1), (0, 2), (2, 3), (3, 4)], {"f": 4})
    assert not [*directory.left_out("source").iterdir()]
    watch.close()


def test_elsewhere_the_tasks_files_stay_until_the_log_is_copied(tmp_path, monkeypatch):
    """Another machine goes on from a copy of this log, which is seconds old."""
    now = [1000.0]
    monkeypatch.setattr(left_out_of_batches, "time", SimpleNamespace(monotonic=lambda: now[0]))
    there = RunDirectory(tmp_path, path_of(f"memory://bucket/{tmp_path.name}"))
    watch = LeftOutCounts(flow(), there)
    left_out(there, 0, [1, 2])
    for _ in range(2):
        watch.committed({"source": 0})
        assert names_in(there.left_out("source")) == ["0"]
    now[0] += left_out_of_batches.FILES_STAY_S
    watch.committed({"source": 0})
    assert not there.left_out("source").exists() or names_in(there.left_out("source")) == []
    assert (kept(there), watch.counts) == ([(0, 1), (0, 2)], {"f": 2})
    watch.close()


def test_a_full_disk_delays_the_counting_of_the_tasks_files(directory, monkeypatch, caplog):
    watch = LeftOutCounts(flow(), directory)
    left_out(directory, 0, [1])
    take = watch._log.take

    def full(found):
        raise JournalProblem("the dead letters cannot be written: No space left on device")

    monkeypatch.setattr(watch._log, "take", full)
    watch.committed({"source": 0})
    watch.committed({"source": 0})
    assert watch.counts == {"f": 0}
    assert caplog.text.count("are not in the log yet: the dead letters cannot be written") == 1
    monkeypatch.setattr(watch._log, "take", take)
    watch.committed({"source": 0})
    assert kept(directory) == [(0, 1)]
    watch.close()


def test_a_task_that_was_killed_in_the_middle_of_a_line_spoils_nothing(directory):
    left_out(directory, 0, [1], attempt=3)
    (path,) = (directory.left_out("source") / "0").iterdir()
    path.write_bytes(path.read_bytes() + b'{"operator": "f", "al')
    watch = LeftOutCounts(flow(), directory)
    watch.committed({"source": 0})
    assert kept(directory) == [(0, 1)]
    watch.close()
