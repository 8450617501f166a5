"""Where a run's folder can be."""

from pathlib import Path

import pytest

from elastream import Autopilot
from elastream.errors import InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import Manifest, directory_of, write_manifest
from elastream.recording.paths import RemotePath, path_of


@pytest.mark.parametrize("where", ["hdfs://namenode:8020/runs", "s3a://bucket/runs", "abfss://a@b/runs"])
def test_the_folder_of_an_autopilot_is_on_this_machine(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in (where, Path(where)):
        with pytest.raises(InputError, match=f"^{where} cannot be the folder of an Autopilot: .* name a path of it"):
            Autopilot(None, folder=given)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_name_has_a_colon_is_a_folder(tmp_path):
    assert RunDirectory.create(tmp_path / "a: b", "flow: x").root.is_dir()


def test_what_executors_read_and_write_is_in_the_runs_folder(tmp_path):
    directory = RunDirectory.create(tmp_path, "flow")
    assert directory.files is None
    assert directory.checkpoint("one") == directory.root / "checkpoint" / "one"
    assert directory.inputs("one") == directory.control("one")


def test_or_elsewhere_and_the_drivers_half_stays_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = RunDirectory.create(path_of("memory://bucket/of-directory"), "flow")
    assert directory.root.parent == tmp_path / "runs"
    assert directory.files == RemotePath(f"memory://bucket/of-directory/{directory.root.name}")
    assert isinstance(directory.composition_request, Path)
    assert isinstance(directory.control("one"), Path)
    for place in (
        directory.checkpoint("one"),
        directory.edge("a", "b"),
        directory.inputs("one"),
        directory.results("out"),
        directory.left_out("one"),
        directory.tables_in_use,
    ):
        assert str(place).startswith(f"{directory.files}/")
    write_manifest(directory, Manifest("flow", 0.0, files=str(directory.files)))
    assert directory_of(directory.root) == directory
