"""State of checkpoints, read from files as Spark writes them."""

import errno
import fcntl
import json
import math
import os
import shutil
import time
import zipfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastream.checkpoints import repartition as changes
from elastream.checkpoints.repartition import (
    FORMAT,
    Prediction,
    Repartitioned,
    _exchange,
    _link,
    check_repartition,
    in_format,
    repartition,
)
from elastream.checkpoints.state import checkpoint_state, checkpoints_of
from elastream.cli.state import _session
from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.manifest import APPLICATION
from support.checkpoints import BATCH, checkpoint
from support.commands import invoke


def test_rows_bytes_and_change_logs_of_each_partition(tmp_path: Path) -> None:
    state = checkpoint_state(checkpoint(tmp_path / "c", rows=(1, 3)))
    (operator,) = state.operators
    zipped = sum((tmp_path / "c/state/0" / each / "1.zip").stat().st_size for each in "01")
    assert (state.width, state.batch, state.committed, operator.name) == (2, BATCH, BATCH, "dedupe")
    assert (operator.rows, operator.bytes) == (4, 4000 + zipped + 2 * 10)
    assert [part.logs for part in operator.partitions] == [2, 2]


def test_changes_after_the_newest_committed_batch_do_not_count(tmp_path: Path) -> None:
    state = checkpoint_state(checkpoint(tmp_path / "c", rows=(1,), logs=9, committed=3))
    assert state.operators[0].partitions[0].logs == 3


def test_memory_store_tells_no_rows(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", rows=(0,), store="HDFSBackedStateStoreProvider", logs=0)
    (folder / "state/0/0/1.zip").rename(folder / "state/0/0/1.snapshot")
    state = checkpoint_state(folder)
    assert math.isnan(state.operators[0].rows)
    assert any("RocksDB only" in sentence for sentence in state.remarks())


def test_counts_of_a_join_are_no_rows(tmp_path: Path) -> None:
    partition = checkpoint(tmp_path / "c", rows=(5,)) / "state" / "0" / "0"
    for name in ("left-keyToNumValues", "left-keyWithIndexToValue"):
        shutil.copytree(partition, tmp_path / name)
        (tmp_path / name).rename(partition / name)
    (operator,) = checkpoint_state(tmp_path / "c").operators
    assert operator.rows == 10


def test_changes_of_a_batch_that_ran_again_count_once(tmp_path: Path) -> None:
    partition = checkpoint(tmp_path / "c", rows=(5,), logs=0) / "state" / "0" / "0"
    for name, content, at in (("a", b"1", 1), ("b", b"123", 2)):
        (partition / f"3_{name}.changelog").write_bytes(content)
        os.utime(partition / f"3_{name}.changelog", (at, at))
    (part,) = checkpoint_state(tmp_path / "c").operators[0].partitions
    assert (part.logs, part.bytes) == (1, 5000 + (partition / "1.zip").stat().st_size + 3)


def test_folder_that_may_not_be_read_is_one_sentence(tmp_path: Path, monkeypatch) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1,))

    def refused(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refused)
    done = invoke("state", str(folder))
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "Permission denied" in done.stderr


def test_state_on_another_disk_is_copied(tmp_path: Path, monkeypatch) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    folder = checkpoint(tmp_path / "c", rows=(1,))
    shutil.copytree(folder, tmp_path / "d", copy_function=partial(_link, folder))
    assert checkpoint_state(tmp_path / "d").megabytes == checkpoint_state(folder).megabytes


def test_only_state_is_linked_whatever_the_folders_name(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "state" / "_metadata" / "c", rows=(1,))
    shutil.copytree(folder, tmp_path / "d", copy_function=partial(_link, folder))
    linked = {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file() and each.stat().st_nlink > 1}
    assert linked == {"state/0/0/1.zip", "state/0/0/2.changelog", "state/0/0/3.changelog"}


def test_rows_that_rocksdb_does_not_track_are_unknown(tmp_path: Path) -> None:
    (operator,) = checkpoint_state(checkpoint(tmp_path / "c", rows=(-1, -1))).operators
    assert math.isnan(operator.rows)


def test_remark_names_a_partition_with_most_of_the_bytes(tmp_path: Path) -> None:
    said = checkpoint_state(checkpoint(tmp_path / "c", rows=(90, 1, 1, 1), logs=3)).remarks()
    assert len(said) == 1
    assert "partition 0 holds" in said[0]
    assert checkpoint_state(checkpoint(tmp_path / "even", rows=(2, 2, 2, 2), logs=3)).remarks() == []


@pytest.mark.parametrize(
    ("change", "partitions", "sentence"),
    [
        ({}, 0, "partitions is 0: it must be from 1 to 10,000"),
        ({}, 10_001, "it must be from 1 to 10,000"),
        ({}, 2, "has 2 state partitions already"),
        ({"store": "HDFSBackedStateStoreProvider"}, 4, "Spark repartitions RocksDB only"),
        ({"committed": 3}, 4, "batch 4 of"),
    ],
)
def test_refused_repartition_is_one_sentence_and_touches_nothing(
    tmp_path: Path, change: dict, partitions: int, sentence: str
) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1, 1), **change)
    before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")}
    result = invoke("repartition", "--partitions", str(partitions), folder)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")} == before


def test_state_in_one_folder_has_no_skew(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", rows=(7, 0, 0, 0), logs=3)
    for number in (1, 2, 3):
        shutil.rmtree(folder / "state" / "0" / str(number))
    state = checkpoint_state(folder)
    assert (state.width, state.operators[0].rows, state.operators[0].skew, state.remarks()) == (4, 7, 1, [])


# Of a count of all rows, as Spark writes it.
NO_KEYS = (
    b'\x00\x02v2\x00\x00\x00\x01\x00\x1d{"type":"struct","fields":[]}\x00\x00\x00\x01\x00\x09{"type":"struct","fields":[{'
)


@pytest.mark.parametrize("rows", [(7,), (7, 0)])
def test_state_without_keys_is_refused(tmp_path: Path, rows: tuple[int, ...]) -> None:
    folder = checkpoint(tmp_path / "c", rows=rows)
    if len(rows) > 1:
        shutil.rmtree(folder / "state/0/1")
    else:
        (folder / "state/0/0/_metadata").mkdir()
        (folder / "state/0/0/_metadata/schema").write_bytes(NO_KEYS)
    with pytest.raises(InputError, match=r"keeps the state of dedupe in partition 0 at any width, because it has no keys"):
        check_repartition(checkpoint_state(folder), 4, stopped=True)


def test_open_first_batch_is_named_before_state_that_it_has_not_written(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", rows=(7, 0), committed=BATCH - 1)
    shutil.rmtree(folder / "state/0/1")
    with pytest.raises(InputError, match="is not committed"):
        check_repartition(checkpoint_state(folder), 4, stopped=True)


def test_two_processes_never_repartition_one_checkpoint(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1, 1))
    (tmp_path / "c.repartitioning").mkdir()  # of the first
    first = os.open(folder, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    with pytest.raises(EnvironmentProblem, match="another process repartitions"):
        repartition(SimpleNamespace(version="4.2.0"), folder, 4, print, stopped=True)
    assert (tmp_path / "c.repartitioning").exists()
    os.close(first)


def test_checkpoint_of_another_user_is_refused(tmp_path: Path, monkeypatch) -> None:
    folder, user = checkpoint(tmp_path / "c", rows=(1, 1)), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(
        InputError, match=f"belongs to user {user}, whose query could not write the files of user {user + 1}"
    ):
        check_repartition(checkpoint_state(folder), 4)


def test_file_system_without_exchange_is_found_before_a_session(tmp_path: Path, monkeypatch) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1, 1))
    monkeypatch.setattr(changes, "RENAME_EXCHANGE", 1 << 10)
    result = invoke("repartition", folder, "--partitions", "4")
    sentence = f"folders in {tmp_path} cannot be exchanged in one step (Invalid argument): nothing is changed"
    assert (result.exit_code, result.stderr) == (2, f"elastream: {sentence}\n")
    assert list(tmp_path.iterdir()) == [folder]


def test_state_without_metadata_of_operators_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1, 1))
    (folder / "state/0/_metadata/metadata").unlink()
    (folder / "state/0/_metadata").rmdir()
    with pytest.raises(InputError, match="was written by a Spark before 4"):
        check_repartition(checkpoint_state(folder), 4)


def test_earlier_checkpoint_in_the_way_is_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1, 1))
    (tmp_path / "c.2-partitions").mkdir()
    with pytest.raises(InputError, match=r"c\.2-partitions exists: remove or rename this earlier checkpoint first"):
        check_repartition(checkpoint_state(folder), 4)


@pytest.mark.parametrize("written", ["commits", "offsets", "state/0/1"])
def test_query_that_just_wrote_is_running(tmp_path: Path, written: str) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1, 1), committed=3)
    os.utime(folder / written)
    with pytest.raises(InputError, match="stop the query first"):
        check_repartition(checkpoint_state(folder), 4, skip_open_batch=True)


def test_open_batch_may_be_quiet_for_as_long_as_one_before(tmp_path: Path) -> None:
    folder, now = checkpoint(tmp_path / "c", rows=(1, 1), committed=3), time.time()
    for number, ago in enumerate((800, 300, 299, 298)):
        (folder / "commits" / str(number)).write_text("v1\n{}")
        os.utime(folder / "commits" / str(number), (now - ago, now - ago))
    os.utime(folder / "commits", (now - 298, now - 298))
    with pytest.raises(
        InputError, match=r"was written (29[89]|30\d) s ago: stop the query first, and wait until 500 s have passed"
    ):
        check_repartition(checkpoint_state(folder), 4, skip_open_batch=True)
    os.utime(folder / "commits", (now - 510, now - 510))
    check_repartition(checkpoint_state(folder), 4, skip_open_batch=True)


def test_query_with_rare_batches_is_not_taken_for_stopped(tmp_path: Path) -> None:
    folder, now = checkpoint(tmp_path / "c", rows=(1, 1)), time.time()
    for number in range(BATCH):
        (folder / "commits" / str(number)).write_text("v1\n{}")
    for number in range(BATCH + 1):
        os.utime(folder / "commits" / str(number), (now - 300 + 60 * number,) * 2)
    os.utime(folder / "commits", (now - 60, now - 60))
    with pytest.raises(InputError, match=r"was written 6\d s ago: stop the query first, and wait until 120 s have passed"):
        check_repartition(checkpoint_state(folder), 4)
    os.utime(folder / "commits", (now - 130, now - 130))
    check_repartition(checkpoint_state(folder), 4)


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    for command in (["state"], ["repartition", "--partitions", "4"]):
        result = invoke(*command, tmp_path)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"elastream: {tmp_path} is neither a checkpoint nor a run")


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("nothing", "there is no folder nothing"),
        ("c/offsets", "c/offsets is a part of the checkpoint c: name that one"),
        ("c/state/0/1", "c/state/0/1 is a part of the checkpoint c: name that one"),
    ],
)
def test_place_that_is_no_checkpoint_is_named_by_both(tmp_path: Path, monkeypatch, place: str, sentence: str) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint(Path("c"), rows=(1, 1))
    for command in (["state"], ["repartition", "--partitions", "4"]):
        result = invoke(*command, place)
        assert (result.exit_code, result.stderr) == (2, f"elastream: {sentence}\n")


def test_address_of_this_machine_is_its_path(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1, 1))
    assert invoke("state", f"file://{folder}").exit_code == 0


def test_file_that_spark_still_writes_does_not_count(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1,))
    (folder / "state/0/_metadata/.metadata.1.tmp").write_text('{"operatorName"')
    assert checkpoint_state(folder).operators[0].name == "dedupe"


def test_torn_offsets_are_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1,))
    (folder / "offsets" / str(BATCH)).write_text("v1\n{torn")
    with pytest.raises(InputError, match="cannot be read as a checkpoint"):
        checkpoint_state(folder)


def test_checkpoint_without_a_number_of_partitions_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1,))
    (folder / "offsets" / str(BATCH)).write_text('v9\n{"conf": {}}\n{}')
    with pytest.raises(InputError, match="names no number of state partitions"):
        checkpoint_state(folder)


def test_size_with_an_unreadable_snapshot_is_unknown(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1, 1))
    (folder / "state/0/0/1.zip").write_bytes(b"torn")
    assert "nan" not in invoke("state", folder).stdout


@pytest.mark.parametrize(
    "metadata", ['{"sstFiles":[1]}', '{"sstFiles":1}', '{"numKeys":"x"}', '{"sstFiles":[{"sizeBytes":"1"}]}']
)
def test_snapshot_with_odd_metadata_is_unknown(tmp_path: Path, metadata: str) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1,))
    with zipfile.ZipFile(folder / "state/0/0/1.zip", "w") as packed:
        packed.writestr("metadata", f"v1\n{metadata}")
    assert math.isnan(checkpoint_state(folder).operators[0].bytes)


def test_folders_are_exchanged_or_stay(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    (one / "of one").touch()
    _exchange(one, other)
    assert (other / "of one").exists()
    with pytest.raises(EnvironmentProblem, match="nothing is changed"):
        _exchange(one, tmp_path / "missing")
    assert one.exists()


class Conf(dict):
    set, unset = dict.__setitem__, dict.__delitem__


@pytest.mark.parametrize("before", [{}, {FORMAT: "1"}])
def test_format_of_state_files_is_that_of_the_checkpoint(tmp_path: Path, before: dict) -> None:
    conf, commit = Conf(before), tmp_path / "3"
    commit.write_text("v2\n{}")
    with in_format(conf, commit):
        assert conf == {FORMAT: "2"}
    assert conf == before


def test_spark_that_cannot_repartition_is_refused_before_a_session(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    result = invoke("repartition", checkpoint(tmp_path / "c", rows=(1, 1)), "--partitions", "4")
    sentence = "state is repartitioned by Spark 4.2 or newer, and this is 4.1.4"
    assert (result.exit_code, result.stderr) == (2, f"elastream: {sentence}\n")


def test_json_holds_every_partition(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1, 3))
    assert checkpoints_of(folder) == {"": folder}
    result = invoke("state", folder, "--json")
    (query,) = json.loads(result.stdout)
    assert [part["rows"] for part in query["operators"][0]["partitions"]] == [1.0, 3.0]
    assert invoke("state", folder).exit_code == 0


def test_run_without_state_needs_no_repartition(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": 1, "flow": "f", "started": 0.0}')
    shutil.rmtree(checkpoint(tmp_path / "checkpoint" / "source", rows=(1,)) / "state")
    result = invoke("repartition", tmp_path, "--partitions", "4")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "source has no state" in result.stderr


def test_checkpoint_before_a_repartition_is_no_query_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": 1, "flow": "f", "started": 0.0}')
    for name in ("source", "source.4-partitions", "source.repartitioning"):
        checkpoint(tmp_path / "checkpoint" / name, rows=(1,))
    assert list(checkpoints_of(tmp_path / "checkpoint")) == ["source"]


def test_recording_of_an_autopilot_has_no_checkpoint(tmp_path: Path) -> None:
    identity = json.dumps({APPLICATION: "local-1"})
    (tmp_path / "run.json").write_text(f'{{"format": 1, "flow": "queries", "started": 0.0, "identity": {identity}}}')
    result = invoke("state", tmp_path)
    sentence = f"{tmp_path} records an Autopilot: name the checkpoint of one of its queries"
    assert (result.exit_code, result.stderr) == (2, f"elastream: {sentence}\n")


def test_repartition_cut_off_before_the_manifest_is_completed(tmp_path: Path) -> None:
    for name in "ab":
        checkpoint(tmp_path / "checkpoint" / name, rows=(1, 1))
    identity = {"the number of state partitions": "4"}
    (tmp_path / "run.json").write_text(json.dumps({"format": 1, "flow": "f", "started": 0.0, "identity": identity}))
    assert invoke("repartition", tmp_path, "--partitions", "2").exit_code == 0
    assert json.loads((tmp_path / "run.json").read_text())["identity"] == {"the number of state partitions": "2"}
    assert invoke("repartition", tmp_path, "--partitions", "2").exit_code == 2


def test_undone_repartition_leaves_nothing_in_the_way_of_the_next(tmp_path: Path, monkeypatch) -> None:
    old, new = checkpoint(tmp_path / "c.2-partitions", rows=(1, 1)), checkpoint(tmp_path / "c", rows=(1, 1, 1))
    (new / "offsets" / str(BATCH)).rename(new / "offsets" / str(BATCH + 1))
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a kill before the new one is removed
    changes.undo(new, Repartitioned(old, 2, 3, 1, 1.0, Prediction()))
    assert checkpoint_state(new).width == 2
    check_repartition(checkpoint_state(new), 3, stopped=True)


def test_comma_above_a_checkpoint_does_not_split_the_sessions_path(tmp_path: Path, monkeypatch) -> None:
    paths, beside = list[Path](), tmp_path / "a, b"
    beside.mkdir()

    def opened(master: str, name: str, folder: Path, settings: dict) -> SimpleNamespace:
        (folder / "scratch").mkdir()
        paths.append(folder)
        return SimpleNamespace(stop=lambda: paths.append(next(beside.glob("*/scratch"))))

    monkeypatch.setattr("elastream.spark.jvm.session.open_session", opened)
    with _session(beside):
        pass
    assert "," not in str(paths[0])
    assert len(paths) == 2
    assert list(beside.iterdir()) == []
