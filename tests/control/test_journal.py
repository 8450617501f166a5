"""The life of an action, and what a crash of the controller leaves of it."""

import json

import pytest

from elastream.control.journal import TRANSITIONS, ActionState, Journal
from elastream.core.action import DrainHost, LeaseHost, MoveTask, SetParallelism
from elastream.core.hosts import LifecycleError
from elastream.core.task_id import TaskId
from elastream.errors import InputError

LEASE = LeaseHost("h2", "small", why="load")


def tried(journal, action, at=1.0):
    return journal.step(journal.grant(action, "threshold", at), ActionState.TRIED, at)


def test_an_action_is_on_disk_before_its_outcome_is_known(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    entry = journal.grant(LEASE, "threshold", 1.0)
    assert (tmp_path / "journal.jsonl").read_text() == ""
    entry = journal.step(entry, ActionState.TRIED, 1.0)
    (line,) = map(json.loads, (tmp_path / "journal.jsonl").read_text().splitlines())
    assert (line["state"], line["action"], line["host"], line["by"]) == ("tried", "LeaseHost", "h2", "threshold")
    journal.step(entry, ActionState.ACCEPTED, 2.0)
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 2


def test_what_was_tried_and_not_concluded_is_found_after_a_crash(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.step(tried(journal, LEASE), ActionState.DONE, 2.0)
    tried(journal, DrainHost("h1"))
    journal.step(tried(journal, SetParallelism("words", 2, on=("h2",))), ActionState.ACCEPTED, 3.0)
    journal.step(tried(journal, MoveTask(TaskId("count", 1), "h2")), ActionState.FAILED, 3.0, "gone")
    found = Journal(tmp_path / "journal.jsonl")
    assert [entry.action for entry in found.unconcluded] == [DrainHost("h1"), SetParallelism("words", 2, on=("h2",))]
    assert {entry.state for entry in found.unconcluded} == {ActionState.INTERRUPTED}
    assert found.entries[3].reason == "gone"
    assert found.grant(LEASE, "threshold", 9.0).number == 5


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "journal.jsonl"
    tried(Journal(path), LEASE)
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(InputError, match=r"journal.jsonl, line 1"):
        Journal(path)


def test_the_table_decides_where_an_action_may_go():
    entry = Journal().grant(LEASE, "threshold", 1.0)
    with pytest.raises(LifecycleError, match=r"from granted to done at 2.0 s \(it was planned at 1.0 s, granted at 1"):
        entry.to(ActionState.DONE, 2.0)
    assert set(TRANSITIONS) == set(ActionState)


@pytest.mark.parametrize("state", ActionState)
def test_every_state_can_be_reached_and_every_life_can_end(state):
    def reachable(start):
        found, ahead = set(), [start]
        while ahead:
            here = ahead.pop()
            found.add(here)
            ahead += [following for following in TRANSITIONS[here] if following not in found]
        return found

    assert state in reachable(ActionState.PLANNED)
    assert any(not TRANSITIONS[end] for end in reachable(state))


def test_journal_keeps_unfinished_actions_and_the_newest_others(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, capacity=5)
    waits = journal.step(tried(journal, LEASE), ActionState.ACCEPTED, 1.0)
    for number in range(2, 200):
        journal.step(
            tried(journal, MoveTask(TaskId("count", number), "h1"), float(number)), ActionState.DONE, float(number)
        )
        assert len(journal.entries) <= 10
        assert len(path.read_bytes().splitlines()) <= 60
    assert journal.unconcluded == (waits,)
    found = Journal(path)
    assert [entry.number for entry in found.unconcluded] == [1]
    assert found.entries[-1].number == 199
    assert found.grant(LEASE, "threshold", 300.0).number == 200
