"""A driver's half of a run is copied, fetched on another machine, and never older than what it has to be."""

import itertools
import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.errors import InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.mirror import SELDOM, Mirror, check_not_overtaken, copy_now, fetch_run, mirrored
from elastream.recording.paths import RemotePath, names_in
from support.waiting import wait_until

NUMBER = itertools.count()


def fresh(tmp_path, name="run"):
    root = tmp_path / name
    root.mkdir(exist_ok=True)
    return RunDirectory(root, RemotePath(f"memory://mirrors/run{next(NUMBER)}"))


def contents(root: Path):
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_what_changed_is_copied_and_what_was_removed_is_removed(tmp_path):
    directory = fresh(tmp_path)
    (directory.root / "control").mkdir()
    (directory.root / "control" / "wanted.json").write_text("1")
    (directory.root / "cluster").mkdir()
    (directory.root / "cluster" / "driver.log").write_text("talk")
    kept = Mirror(directory)
    kept.sync()
    copy = directory.files / "driver"
    assert (copy / "control" / "wanted.json").read_text() == "1"
    assert "cluster" not in names_in(copy)
    (directory.root / "control" / "wanted.json").unlink()
    (directory.root / "journal.jsonl").write_text("a line")
    kept.sync()
    assert not (copy / "control" / "wanted.json").exists()
    assert (copy / "journal.jsonl").read_text() == "a line"


def test_large_files_are_copied_seldom_and_at_the_end(tmp_path):
    directory, clock = fresh(tmp_path), Clock()
    kept, file = Mirror(directory, clock), directory.root / "recording.jsonl"
    copy = directory.files / "driver" / "recording.jsonl"
    file.write_bytes(b"a" * 300_000)
    kept.sync()
    assert len(copy.read_bytes()) == 300_000
    file.write_bytes(b"a" * 300_001)
    kept.sync()
    assert len(copy.read_bytes()) == 300_000
    clock.now = SELDOM
    kept.sync()
    assert len(copy.read_bytes()) == 300_001
    file.write_bytes(b"a" * 300_002)
    kept.sync(last=True)
    assert len(copy.read_bytes()) == 300_002


names = st.sampled_from(["run.json", "journal.jsonl", "control/wanted.json", "tables/versions/a/1.arrow"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(names, st.one_of(st.none(), st.binary(max_size=20))), max_size=12))
def test_after_any_writes_and_removals_the_copy_is_what_there_is(tmp_path_factory, steps):
    directory = fresh(tmp_path_factory.mktemp("any"))
    kept = Mirror(directory)
    (directory.root / "run.lock").write_text("1")
    (directory.root / "leases.jsonl").write_text("")
    for number, (name, content) in enumerate(steps):
        file = directory.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True) if content is None else file.write_bytes(content)
        if number % 3 == 0:
            kept.sync()
    kept.sync(last=True)
    there = fetched_elsewhere(directory, tmp_path_factory.mktemp("there"))
    (there / ".fetched").unlink()
    assert contents(there) == {name: what for name, what in contents(directory.root).items() if name != "run.lock"}


def fetched_elsewhere(directory, place):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(platform, "node", lambda: "another")
        return fetch_run(directory.files)


def test_it_is_fetched_where_another_machine_goes_on_and_not_where_it_is(tmp_path):
    directory = fresh(tmp_path)
    (directory.root / "run.json").write_text("{}")
    with mirrored(directory):
        assert fetch_run(directory.files) == directory.root
        there = fetched_elsewhere(directory, tmp_path)
    assert there != directory.root
    assert contents(there).keys() == {"run.json", ".fetched"}


def test_a_half_that_was_overtaken_is_refused(tmp_path):
    directory = fresh(tmp_path)
    (directory.root / "run.json").write_text("{}")
    Mirror(directory)
    check_not_overtaken(directory)
    copy_now(directory, directory.root / "run.json")
    brought = replace(directory, root=fetched_elsewhere(directory, tmp_path))
    check_not_overtaken(brought)
    Mirror(replace(directory, root=tmp_path / "other"))
    for each in (directory, brought):
        with pytest.raises(
            InputError, match=r"is not what the run last was: .*other on .* went on with it; resume memory://"
        ):
            check_not_overtaken(each)


def test_what_is_no_run_is_refused(tmp_path):
    directory = fresh(tmp_path)
    Mirror(directory)
    with pytest.raises(InputError, match="it has no copy of its driver's files"):
        fetched_elsewhere(directory, tmp_path)
    with pytest.raises(InputError, match=r"is not a folder of a run that can be resumed: it has no driver-of\.json"):
        fetch_run(RemotePath("memory://mirrors/none"))


def test_a_file_is_copied_before_anything_depends_on_it(tmp_path):
    directory = fresh(tmp_path)
    (directory.root / "tables.jsonl").write_text("one")
    copy_now(directory, directory.root / "tables.jsonl")
    assert (directory.files / "driver" / "tables.jsonl").read_text() == "one"
    copy_now(RunDirectory(tmp_path), tmp_path / "none")


def test_a_driver_whose_run_another_took_is_told_and_writes_no_more(tmp_path):
    directory, told = fresh(tmp_path), []
    with mirrored(directory, period=0.01, renewal=0.01) as if_lost:
        if_lost(lambda: told.append("lost"))
        (directory.files / "driver.json").write_text(json.dumps({"claim": "another's", "number": 1}))
        wait_until(lambda: told)
        (directory.root / "journal.jsonl").write_text("too late")
    assert told == ["lost"]
    assert not (directory.files / "driver" / "journal.jsonl").exists()
    assert (directory.files / "driver.json").exists()


def test_a_run_on_this_machine_needs_none(tmp_path):
    with mirrored(RunDirectory(tmp_path)) as if_lost:
        if_lost(lambda: None)
    assert list(tmp_path.iterdir()) == []
