"""The log of a file source, and what a limited one holds back."""

import math

import pytest

from elastream.recording.file_log import FileLog, files_in
from elastream.spark.telemetry.batches import SourceLimit
from elastream.spark.telemetry.held_files import held_files
from support.batch_progress import START, batches, drop, line, logged, source

ONE_FILE = SourceLimit("files", 1, files="")


def taken(folder, entry, rows=10):
    """Return the progress of a batch that read entry `entry` of the log."""
    offsets = ({"logOffset": entry - 1} if entry else None, {"logOffset": entry})
    progress = source(*offsets, rows, description=f"FileStreamSource[file:{folder}]")
    return batches("q", line(entry, entry, 0.5, progress), limits=(ONE_FILE,))[0].sources[0]


def held(tmp_path, limit=ONE_FILE, folder="in"):
    place = f"FileStreamSource[file:{tmp_path / folder}]"
    return held_files(f"file:{tmp_path}", 0, place, limit, START)


def test_the_log_is_read_through_what_compacts_it(tmp_path):
    old = [(number, f"/in/{number}", float(number)) for number in range(9)]
    logged(tmp_path, 9, ("/in/9", 9.0), compact=old)
    logged(tmp_path, 10, ("/in/10", 10.0))
    log = FileLog(tmp_path / "sources" / "0")
    log.refresh()
    assert [file.modified - START for file in log.files(8, 10)] == [9.0, 10.0]
    assert log.waiting() is None


def test_files_are_found_as_spark_finds_them(tmp_path):
    for name in ("day=1", "_temporary", ".staging"):
        drop(tmp_path / name, "part", 0.0, 1)
    drop(tmp_path, "_SUCCESS", 0.0, 1)
    assert list(files_in(str(tmp_path))) == [str(tmp_path / "day=1" / "part")]
    assert list(files_in(f"{tmp_path}/day=*/p*")) == [str(tmp_path / "day=1" / "part")]
    assert list(files_in(str(tmp_path / "day=1" / "part"))) == [str(tmp_path / "day=1" / "part")]


def test_braces_of_a_glob_are_alternatives(tmp_path):
    for name in ("a.json", "b.txt", "c.tmp"):
        drop(tmp_path / "in", name, 0.0, 1)
    log = FileLog(tmp_path / "sources" / "0", f"{tmp_path}/{{in,gone}}", "[^c].{json,{txt,tmp}}")
    assert sorted(file.path for file in log.waiting()) == [f"{tmp_path}/in/a.json", f"{tmp_path}/in/b.txt"]


def test_files_that_a_limit_holds_back_are_the_backlog(tmp_path):
    folder, files = tmp_path / "in", held(tmp_path)
    for number in range(4):
        drop(folder, f"f{number}", number, 100)
    logged(tmp_path, 0, (folder / "f0", 0.0))
    progress = files.looked(files.dated(taken(folder, 0)), START + 5.0)
    assert (progress.behind, progress.everything, progress.waiting) == (30.0, False, START)
    logged(tmp_path, 1, (folder / "f1", 1.0))
    progress = files.dated(taken(folder, 1))
    assert (progress.behind, progress.waiting) == (20.0, START + 1.0)


def test_file_that_is_older_than_its_arrival_waits_since_the_look_before(tmp_path):
    folder, files = tmp_path / "in", held(tmp_path)
    drop(folder, "first", 0.0, 100)
    logged(tmp_path, 0, (folder / "first", 0.0))
    files.looked(files.dated(taken(folder, 0)), START + 50.0)
    drop(folder, "copied", -1e6, 100)
    files.looked(taken(folder, 0), START + 60.0)
    logged(tmp_path, 1, (folder / "copied", -1e6))
    assert files.dated(taken(folder, 1)).waiting == START + 50.0


def test_only_files_that_the_source_reads_wait(tmp_path):
    folder, files = tmp_path / "in", held(tmp_path, ONE_FILE._replace(files="*.csv"))
    for name in ("a.csv", "b.csv", "c.tmp"):
        drop(folder, name, 0.0, 100)
    logged(tmp_path, 0, (folder / "a.csv", 0.0))
    assert files.dated(taken(folder, 0)).behind == 10.0


@pytest.mark.parametrize("most", [1, 2], ids=["as many as allowed", "fewer than allowed"])
def test_folder_that_cannot_be_listed_tells_by_the_number_of_files(tmp_path, most):
    folder = tmp_path / "in"
    drop(folder, "a", 0.0, 100)
    drop(folder, "b", 0.0, 100)
    logged(tmp_path, 0, (folder / "a", 0.0))
    files = held(tmp_path, SourceLimit("files", most, files="?"))
    progress = files.looked(files.dated(taken(folder, 0)), START + 5.0)
    assert math.isnan(progress.behind)
    assert progress.everything is (None if most == 1 else True)


@pytest.mark.parametrize(
    ("checkpoint", "description", "limit"),
    [
        ("hdfs://name/c", "FileStreamSource[file:/in]", ONE_FILE),
        ("file:/c", "DeltaSource[file:/in]", ONE_FILE),
        ("file:/c", "FileStreamSource[file:/in]", SourceLimit()),
    ],
    ids=["a checkpoint elsewhere", "no log of files", "no limit"],
)
def test_what_has_no_log_here_holds_back_nothing_known(checkpoint, description, limit):
    assert held_files(checkpoint, 0, description, limit, START) is None


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (ONE_FILE, ("1 file", "maxFilesPerTrigger")),
        (SourceLimit("bytes", 500), ("500 bytes", "maxBytesPerTrigger")),
        (SourceLimit("other"), ("a part", "")),
    ],
)
def test_limit_and_its_option_have_words(limit, words):
    assert (limit.text, limit.option("FileStreamSource[file:/in]")) == words
