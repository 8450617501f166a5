"""The life of a migration is its table, and the table leads somewhere."""

import pytest

from elastream.core.hosts import LifecycleError
from elastream.core.migration import TRANSITIONS, Migration, MigrationState
from elastream.core.task_id import TaskId

TASK = TaskId("count", 3)
PATH = (MigrationState.WARMING, MigrationState.WARM, MigrationState.FLIPPED, MigrationState.LANDED)


def test_the_whole_way_is_remembered_with_its_times() -> None:
    migration = Migration(TASK, "h2", 1.0)
    for at, state in enumerate(PATH, start=2):
        migration = migration.to(state, float(at))
    assert [state for _, state in migration.history] == [MigrationState.WANTED, *PATH]
    assert migration.history[-1] == (5.0, MigrationState.LANDED)
    assert migration.flips == 1
    assert not migration.under_way


def test_the_plan_never_flips_while_the_new_executor_loads() -> None:
    with pytest.raises(LifecycleError, match=r"count#3 to 'h2' cannot go from warming to flipped .*wanted at 1.0 s"):
        Migration(TASK, "h2", 1.0).to(MigrationState.WARMING, 2.0).to(MigrationState.FLIPPED, 3.0)


def test_what_has_ended_stays_ended() -> None:
    for state in (MigrationState.LANDED, MigrationState.DROPPED):
        assert TRANSITIONS[state] == {}


def test_every_state_on_the_way_can_be_given_up_and_can_land() -> None:
    for following in TRANSITIONS.values():
        if following:
            assert MigrationState.DROPPED in following
            assert MigrationState.LANDED in following or MigrationState.FLIPPED in following


def test_every_edge_says_when() -> None:
    assert all(reason for following in TRANSITIONS.values() for reason in following.values())
    assert set(TRANSITIONS) == set(MigrationState)
