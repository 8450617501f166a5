"""Every policy that can be named is a value: one object serves any number of runs, and none of them notices the others."""

from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.every_policy import EVERY, RISING, Seen, Shown, looped, plant
from support.policy_run import OneRun
from support.property_examples import examples


def answers(seen: Seen) -> list[tuple[object, ...]]:
    """What the policy said round by round, and what broke."""
    return [(d.time, d.proposals, d.predicted, d.note, d.faults, d.unknown) for d in seen.recording.decisions]


@pytest.mark.parametrize("name", EVERY)
def test_a_policy_holds_settings_only_and_none_of_them_can_be_set(name: str) -> None:
    policy = EVERY[name]()
    assert is_dataclass(policy)
    for field in fields(policy):
        assert field.init, f"{field.name} is no setting"
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(policy, field.name, None)


@pytest.mark.parametrize("name", EVERY)
def test_a_policy_acts_on_the_load_of_the_property_below(name: str) -> None:
    if name == "even":
        pytest.skip("tasks are placed evenly from the start")
    seen = looped(EVERY[name](), plant(name, RISING), 19)
    assert any(d.proposals for d in seen.recording.decisions)


@pytest.mark.parametrize("name", EVERY)
@given(loads=st.lists(st.sampled_from([0, 50, 300, 900]), min_size=4, max_size=16))
@settings(max_examples=examples(20))
def test_one_object_answers_two_loops_alike_in_any_order(name: str, loads: list[int]) -> None:
    policy, rounds = EVERY[name](), len(loads) - 1
    first = looped(policy, plant(name, loads), rounds)
    assert answers(looped(policy, plant(name, loads), rounds)) == answers(first)
    shown = [answers(looped(policy, Shown(first.observations), rounds)) for _ in range(2)]
    assert shown[0] == shown[1]
    one, other = OneRun(policy), OneRun(policy)
    for observation in first.observations:
        told, again = one.plan(observation), other.plan(observation)
        assert (told.actions, told.predicted, told.remarks, told.refused, told.unknown) == (
            again.actions, again.predicted, again.remarks, again.refused, again.unknown,
        )  # fmt: skip
        assert all(decision.note == "" or "failed" not in decision.note for decision in first.recording.decisions)
