import inspect
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core import action as actions
from elastream.core.action import KINDS, Action, LeaseHost, MoveTask, SetParallelism, from_json, to_json
from elastream.core.task_id import TaskId

NAMES = st.text(min_size=1, max_size=5)
TASKS = st.builds(TaskId, NAMES, st.integers(0, 99))
ANY = st.one_of(
    st.builds(actions.SwitchAlternate, NAMES, NAMES, NAMES),
    st.builds(actions.SwitchEdge, NAMES, NAMES, NAMES),
    st.builds(SetParallelism, NAMES, st.integers(1, 50), st.lists(NAMES).map(tuple), st.lists(TASKS).map(tuple), NAMES),
    st.builds(MoveTask, TASKS, NAMES, NAMES),
    st.builds(actions.Repartition, st.integers(1, 99), NAMES),
    st.builds(LeaseHost, NAMES, NAMES, NAMES, NAMES),
    st.builds(
        actions.SetTokens,
        NAMES,
        st.lists(st.tuples(NAMES, st.floats(0, 1, exclude_max=True)), min_size=1, max_size=4).map(tuple),
        NAMES,
    ),
    st.builds(actions.RenewHost, NAMES, NAMES),
    st.builds(actions.DrainHost, NAMES, NAMES),
    st.builds(actions.CancelDrain, NAMES, NAMES),
    st.builds(actions.ReleaseHost, NAMES, NAMES),
)


@given(ANY)
def test_an_action_survives_the_journal(action):
    again = from_json(json.loads(json.dumps(to_json(action))))
    assert again == action
    assert again.why == action.why


@given(ANY)
def test_every_action_can_be_described(action):
    assert action.describe()


def test_the_reason_does_not_make_two_actions_differ():
    assert LeaseHost("h1", "small", why="load") == LeaseHost("h1", "small", why="other")


def test_the_set_of_actions_is_closed():
    classes = {each for each in vars(actions).values() if isinstance(each, type) and issubclass(each, Action)}
    assert set(KINDS.values()) == {each for each in classes if not inspect.isabstract(each)}
    with pytest.raises(ValueError, match="'Explode' is not an action"):
        from_json({"action": "Explode"})
