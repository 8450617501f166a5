"""The allocation plan outlives who wrote it: versions are whole, in order, and on disk before they count."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.task_id import TaskId
from elastream.errors import InputError
from elastream.spark.placement.allocation import AllocationStore

A, B = TaskId("count", 0), TaskId("count", 1)


def test_a_version_changes_some_tasks_and_leaves_the_others(tmp_path):
    store = AllocationStore(tmp_path / "plan.jsonl")
    store.publish({A: "h1", B: "h1"}, at=1.0)
    store.publish({B: "h2"}, at=2.0, why="even")
    assert store.latest.version == 2
    assert dict(store.latest.hosts) == {A: "h1", B: "h2"}
    assert store.latest.why == "even"
    assert dict(store.publish({A: None}, at=3.0).hosts) == {B: "h2"}


def test_what_changes_nothing_makes_no_version(tmp_path):
    store = AllocationStore(tmp_path / "plan.jsonl")
    store.publish({A: "h1"}, at=1.0)
    size = store.path.stat().st_size
    assert store.publish({A: "h1", B: None}, at=2.0).version == 1
    assert store.path.stat().st_size == size


def test_a_reader_takes_over_what_a_writer_adds(tmp_path):
    writer = AllocationStore(tmp_path / "plan.jsonl")
    reader = AllocationStore(tmp_path / "plan.jsonl")
    writer.publish({A: "h1"}, at=1.0)
    assert reader.latest.version == 0
    assert dict(reader.refresh().hosts) == {A: "h1"}
    read = reader.bytes_read
    assert reader.refresh().version == 1
    assert reader.bytes_read == read


@given(cut=st.integers(1, 200))
def test_a_line_torn_by_a_crash_is_cut_off(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("plan") / "plan.jsonl"
    store = AllocationStore(path)
    store.publish({A: "h1"}, at=1.0)
    whole = path.read_bytes()
    store.publish({A: "h2", B: "h2"}, at=2.0)
    both = path.read_bytes()
    length = max(len(whole), len(both) - cut)
    path.write_bytes(both[:length])
    again = AllocationStore(path)
    assert again.latest.version == 1
    again.publish({B: "h3"}, at=3.0)
    assert dict(AllocationStore(path).latest.hosts) == {A: "h1", B: "h3"}


@given(
    st.lists(
        st.dictionaries(
            st.builds(TaskId, st.sampled_from(["a", "b:left"]), st.integers(0, 3)),
            st.sampled_from(["h1", "h2", None]),
        )
    )
)
def test_reading_it_again_gives_what_was_written(tmp_path_factory, changes):
    path = tmp_path_factory.mktemp("plan") / "plan.jsonl"
    store, expected = AllocationStore(path), {}
    for change in changes:
        store.publish(change, at=0.0)
        expected = {task: host for task, host in {**expected, **change}.items() if host is not None}
    assert dict(AllocationStore(path).latest.hosts) == expected == dict(store.latest.hosts)


def test_damage_elsewhere_is_named(tmp_path):
    path = tmp_path / "plan.jsonl"
    AllocationStore(path).publish({A: "h1"}, at=1.0)
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(InputError, match=r"plan.jsonl, line 1: not a version"):
        AllocationStore(path)


def test_a_version_that_is_missing_is_damage(tmp_path):
    path = tmp_path / "plan.jsonl"
    store = AllocationStore(path)
    store.publish({A: "h1"}, at=1.0)
    store.publish({A: "h2"}, at=2.0)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[1])
    with pytest.raises(InputError, match="version 2 follows version 0"):
        AllocationStore(path)
    assert json.loads(lines[0])["version"] == 1


def test_two_who_plan_at_once_get_versions_in_one_order(tmp_path):
    path = tmp_path / "plan.jsonl"
    one, other = AllocationStore(path), AllocationStore(path)
    versions = [
        store.publish({TaskId("count", number): "h1"}, at=0.0).version for number, store in enumerate([one, other] * 5)
    ]
    assert versions == list(range(1, 11))
    assert len(AllocationStore(path).latest.hosts) == 10


def test_a_long_plan_is_written_anew_under_processes_that_read_it(tmp_path):
    path = tmp_path / "plan.jsonl"
    mine, other = (AllocationStore(path, max_bytes=2000) for _ in range(2))
    for number in range(100):
        writer = mine if number % 7 else other
        writer.publish(
            {TaskId("count", 0): f"h{number}", TaskId("count", 1): None if number % 2 else "h1"}, at=float(number)
        )
    assert path.stat().st_size < 4000
    for store in (mine, other, AllocationStore(path)):
        assert store.refresh().version == 100
        assert store.latest.hosts == {TaskId("count", 0): "h99"}
