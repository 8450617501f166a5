from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.sharing.arbiter import Need, shares

PRIORITIES = st.sampled_from((0.5, 1.0, 2.0, 3.0, 7.0))
NEEDS = st.dictionaries(
    st.sampled_from("abcde"),
    st.builds(Need, st.integers(1, 3), PRIORITIES, st.integers(0, 12), st.booleans()),
    min_size=1,
)
CAPACITY = st.integers(0, 20)


@pytest.mark.parametrize(
    ("capacity", "needs", "expected"),
    [
        (6, {"a": Need(1, 2, 9), "b": Need(1, 1, 9)}, {"a": 4, "b": 2}),
        (6, {"a": Need(1, 2, 2), "b": Need(1, 1, 9)}, {"a": 2, "b": 4}),
        (3, {"a": Need(1, 100, 9), "b": Need(1, 1, 9)}, {"a": 2, "b": 1}),
        (6, {"a": Need(1, 2, 9, critical=True), "b": Need(1, 1, 9)}, {"a": 5, "b": 1}),
        (6, {"a": Need(1, 2, 9, critical=True), "b": Need(1, 1, 9, critical=True)}, {"a": 4, "b": 2}),
        (6, {"a": Need(1, 2, 9), "b": Need(1, 1, 9, critical=True)}, {"a": 4, "b": 2}),
        (6, {"a": Need(1, 1, 1), "b": Need(1, 1, 2)}, {"a": 1, "b": 2}),
        (1, {"a": Need(1, 1, 1), "b": Need(1, 2, 1)}, {"a": 0, "b": 1}),
    ],
    ids=[
        "by priority",
        "what one does not want the other has",
        "a minimum holds against any priority",
        "a critical one takes down to the minimum",
        "never from one that is critical itself",
        "never from a higher priority",
        "what nobody wants stays",
        "too few for the minima",
    ],
)
def test_machines_are_shared_by_the_rule(capacity, needs, expected):
    assert shares(capacity, needs) == expected


@given(CAPACITY, NEEDS)
def test_no_requested_host_is_left_over(capacity, needs):
    dealt = shares(capacity, needs)
    assert sum(dealt.values()) == min(capacity, sum(need.requested for need in needs.values()))


@given(CAPACITY, NEEDS)
def test_where_the_minima_can_be_had_each_has_its_own(capacity, needs):
    if sum(need.minimum for need in needs.values()) <= capacity:
        dealt = shares(capacity, needs)
        assert all(dealt[name] >= min(need.minimum, need.requested) for name, need in needs.items())


@given(CAPACITY, NEEDS, PRIORITIES)
def test_a_higher_priority_never_means_fewer(capacity, needs, priority):
    name = min(needs)
    higher = {**needs, name: replace(needs[name], priority=needs[name].priority + priority)}
    assert shares(capacity, higher)[name] >= shares(capacity, needs)[name]


@given(CAPACITY, NEEDS)
def test_being_critical_never_means_fewer(capacity, needs):
    name = min(needs)
    calm = {**needs, name: replace(needs[name], critical=False)}
    critical = {**needs, name: replace(needs[name], critical=True)}
    assert shares(capacity, critical)[name] >= shares(capacity, calm)[name]


@given(CAPACITY, NEEDS)
def test_of_two_that_differ_in_priority_alone_the_higher_has_no_fewer(capacity, needs):
    name = min(needs)
    twice = {**needs, "z": replace(needs[name], priority=2 * needs[name].priority)}
    assert shares(capacity, twice)["z"] >= shares(capacity, twice)[name]


@given(st.integers(1, 20), NEEDS)
def test_another_machine_takes_none_from_an_uncritical_application(capacity, needs):
    calm = {name: replace(need, critical=False) for name, need in needs.items()}
    before, after = shares(capacity, calm), shares(capacity + 1, calm)
    if sum(need.minimum for need in calm.values()) <= capacity:
        assert all(after[name] >= before[name] for name in calm)
