"""Where a run's folder can be."""

from pathlib import Path

import pytest

from elastream import Autopilot
from elastream.model.errors import InputError
from elastream.recording.directory import RunDirectory


@pytest.mark.parametrize("where", ["hdfs://namenode:8020/runs", "s3a://bucket/runs", "file:///runs", "abfss://a@b/runs"])
def test_a_run_folder_on_a_file_system_that_is_not_mounted_is_refused_with_nothing_made(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for make in (
        lambda: RunDirectory.create(Path(where), "flow"),
        lambda: RunDirectory(Path(where).resolve()),
        lambda: Autopilot(None, folder=where),
    ):
        with pytest.raises(InputError, match=r"cannot be a run's folder: .* must be a path that this machine has mounted"):
            make()
    assert list(tmp_path.iterdir()) == []


def test_it_is_named_as_it_was_given():
    with pytest.raises(InputError, match=r"^hdfs://namenode:8020/runs cannot"):
        RunDirectory(Path("hdfs://namenode:8020/runs"))


def test_a_folder_whose_name_has_a_colon_is_a_folder(tmp_path):
    assert RunDirectory.create(tmp_path / "a: b", "flow: x").root.is_dir()
