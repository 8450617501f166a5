"""State of checkpoints on file systems that are not mounted: fsspec's memory, an object store, a mount table."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastream.checkpoints.state import CheckpointState, checkpoint_root, checkpoint_state, checkpoints_of
from elastream.recording.file_systems import FILES_REACHED_BY
from elastream.recording.paths import AnyPath, RemotePath, path_of, tree, write_whole
from support.checkpoints import BATCH, checkpoint
from support.commands import invoke
from support.object_store import object_store

NUMBER = itertools.count()
MOUNT = "<configuration><property><name>fs.viewfs.mounttable.t.link./c</name><value>{}</value></property></configuration>"


@pytest.fixture(params=["memory", "object store", "mounted"])
def elsewhere(request, tmp_path: Path, monkeypatch) -> RemotePath:
    monkeypatch.setenv(FILES_REACHED_BY, "{}")  # which the command replaces
    if request.param == "mounted":
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        (tmp_path / "core-site.xml").write_text(MOUNT.format((tmp_path / "there").as_uri()))
        monkeypatch.setenv(FILES_REACHED_BY, json.dumps({"fs.viewfs.mounttable.t.link./c": (tmp_path / "there").as_uri()}))
        return RemotePath("viewfs://t/c/a b")
    if request.param == "object store":
        monkeypatch.setattr(RemotePath, "renames", property(lambda self: False))
    return RemotePath(f"memory://bucket/50%, of {next(NUMBER)}")


def put(folder: Path, place: AnyPath) -> AnyPath:
    for each in tree(folder):
        write_whole(place.joinpath(each.name), (folder / each.name).read_bytes())
    return place


def without_place_and_ages(state: CheckpointState[Any]) -> CheckpointState[Any]:
    parts = [tuple(replace(part, snapshot_age=0) for part in each.partitions) for each in state.operators]
    operators = tuple(replace(each, partitions=found) for each, found in zip(state.operators, parts, strict=True))
    return replace(state, folder=None, operators=operators)


def test_state_is_that_of_the_checkpoint_on_a_local_disk(tmp_path: Path, elsewhere: RemotePath) -> None:
    folder = checkpoint(tmp_path / "c", rows=(1, 30, 2), committed=BATCH - 1)
    put(folder, elsewhere)
    assert without_place_and_ages(checkpoint_state(elsewhere)) == without_place_and_ages(checkpoint_state(folder))


def test_command_shows_a_checkpoint_by_its_address(tmp_path: Path, elsewhere: RemotePath) -> None:
    put(checkpoint(tmp_path / "c", rows=(1, 3)), elsewhere)
    (query,) = json.loads(invoke("state", elsewhere, "--json").stdout)
    assert (query["folder"], query["operators"][0]["rows"]) == (str(elsewhere), 4)
    assert str(elsewhere) in invoke("state", elsewhere).stdout


def test_run_with_files_elsewhere_is_named_by_its_folder_or_address(tmp_path: Path, elsewhere: RemotePath) -> None:
    run, manifest = tmp_path / "run", {"format": 1, "flow": "f", "started": 0.0, "files": str(elsewhere)}
    run.mkdir()
    (run / "run.json").write_text(json.dumps(manifest))
    write_whole(elsewhere / "driver" / "run.json", (run / "run.json").read_bytes())
    assert "no batch of the run has begun" in invoke("state", run).stderr
    for name in ("source", "source.4-partitions", "counts"):
        put(checkpoint(tmp_path / name, rows=(1,)), elsewhere / "checkpoint" / name)
    for place in (run, elsewhere):
        assert list(checkpoints_of(checkpoint_root(place))) == ["counts", "source"]


def test_place_that_is_no_checkpoint_is_named(elsewhere: RemotePath) -> None:
    result = invoke("state", elsewhere)
    assert (result.exit_code, result.stderr) == (2, f"elastream: there is no folder {elsewhere}\n")
    write_whole(elsewhere / "file", b"")
    result = invoke("state", elsewhere)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"elastream: {elsewhere} is neither a checkpoint nor a run: ")


def test_snapshot_that_vanishes_after_the_listing_is_unknown(tmp_path: Path, elsewhere: RemotePath, monkeypatch) -> None:
    put(checkpoint(tmp_path / "c", rows=(1, 1)), elsewhere)
    read = RemotePath.read_bytes

    def vanished(path: RemotePath) -> bytes:
        if path.name == "1.zip":
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return read(path)

    monkeypatch.setattr(RemotePath, "read_bytes", vanished)
    (operator,) = checkpoint_state(elsewhere).operators
    assert operator.bytes != operator.bytes


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("nosuch://a/c", "folders on nosuch:// cannot be opened here: "),
        ("dbfs:/checkpoints/c", "folders on dbfs:// cannot be opened here: "),
        ("hdfs://127.0.0.1:1/c", "no name node of hdfs://127.0.0.1:1 answers on WebHDFS"),
        ("s3a://", "s3a:// is the address of no folder"),
    ],
)
def test_file_system_that_cannot_be_read_is_one_sentence(address: str, sentence: str, monkeypatch) -> None:
    monkeypatch.setenv(FILES_REACHED_BY, "{}")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    result = invoke("state", address)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert sentence in result.stderr


def test_repartition_elsewhere_is_refused_without_a_request(tmp_path: Path) -> None:
    result = invoke("repartition", "hdfs://127.0.0.1:1/c", "--partitions", "4")
    told = "hdfs://127.0.0.1:1/c is not on this machine: copy the checkpoint to a local disk and repartition the copy"
    assert (result.exit_code, result.stderr) == (2, f"elastream: {told}\n")
    manifest = {"format": 1, "flow": "f", "started": 0.0, "files": "hdfs://127.0.0.1:1/r"}
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    result = invoke("repartition", tmp_path, "--partitions", "4")
    assert result.exit_code == 2
    assert "hdfs://127.0.0.1:1/r/checkpoint is not on this machine: its partitions stay" in result.stderr


def test_object_store_lists_the_whole_tree_once(tmp_path: Path, monkeypatch) -> None:
    folder = checkpoint(tmp_path / "c", rows=tuple(range(300)), logs=3)
    objects = {f"a b/c,50%/{each.name}": (folder / each.name).read_bytes() for each in tree(folder)}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with object_store(objects) as store:
        endpoint = {"fs.s3a.endpoint": f"http://127.0.0.1:{store.server_port}"}
        monkeypatch.setenv(FILES_REACHED_BY, json.dumps(endpoint))
        state = checkpoint_state(path_of("s3a://bucket/a b/c,50%"))
        requests = list(store.requests)
    assert without_place_and_ages(state) == without_place_and_ages(checkpoint_state(folder))
    assert all(part.snapshot_age > 0 for part in state.operators[0].partitions)
    # One for the folder `offsets`, and pages of 1000 files; the files of offsets and metadata, and each snapshot.
    assert requests.count("LIST") <= 3 + -(-len(objects) // 1000)
    assert requests.count("GET") == 2 + 300
