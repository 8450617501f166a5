"""Elastic Allocator: the models of load and bandwidth, the greedy matching, its time limit and its rest."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.model.action import MoveTask, TaskId
from elastream.model.cloud import HostState
from elastream.model.errors import InputError
from elastream.planning.elastic_allocator import (
    ElasticAllocator,
    Level,
    Objective,
    allocate,
    levels,
    link_use,
    needs_of,
    node_load,
    utilisation,
)
from elastream.planning.exact import deviation, least_deviation
from planning.placement_cases import HOST, pairs, seen


def load_after(place, needs, base):
    total = np.array(base, dtype=float)
    np.add.at(total, place, np.array(needs, dtype=float))
    return total


def test_the_load_of_a_node_is_what_its_operators_need_and_what_the_system_keeps():
    # Section IV-A by hand: one operator keeps up, of the other only half is done, so that it needs twice what it has.
    assert node_load([1.0, 0.5], [100, 200], [100, 100], 4.0, 0.1) == pytest.approx((1.0 + 1.0) / 4 + 0.1)


def test_an_operator_that_is_faster_than_its_input_needs_no_less_for_it():
    assert node_load([1.0], [50], [100], 2.0) == 0.5


def test_link_use_is_what_was_there_and_what_tasks_bring():
    assert link_use([0, 0, 2], [10, 20, 5], [1, 1, 1]).tolist() == [31, 1, 6]


def test_levels_go_by_the_more_used_resource():
    used = np.array([[0.1, 0.39], [0.1, 0.4], [0.79, 0.1], [0.8, 0.0], [0.0, 1.2]])
    light, moderate, heavy = Level.LIGHT, Level.MODERATE, Level.HEAVY
    assert levels(used).tolist() == [light, moderate, moderate, heavy, heavy]


def test_utilisation_counts_nothing_beyond_what_a_host_has():
    assert utilisation(np.array([1.5, 0.5]), np.array([1.0, 1.0])) == 0.75


def test_deviation_is_the_root_of_the_squares_off_the_mean():
    # R_dev by hand: 0.2 and 0.6 are 0.2 off their mean each.
    assert deviation(np.array([0.2, 0.6]), np.ones(2)) == pytest.approx(math.sqrt(0.08))


def test_tasks_go_where_they_even_out_what_is_used():
    # By hand: 0.3 to the host at 0.1 (0.4), then 0.2 to the one at 0.3 (0.5): 0.4, 0.5, 0.5.
    found = allocate([[0.3], [0.2]], [[0.1], [0.3], [0.5]], np.ones((3, 1)))
    assert found.place.tolist() == [0, 1]
    assert found.rest == 0


def test_a_task_goes_to_no_host_that_lacks_room_in_any_resource():
    found = allocate([[0.1, 0.5]], [[0.0, 0.6], [0.5, 0.3]], np.ones((2, 2)))
    assert found.place.tolist() == [1]


def test_a_part_of_hosts_can_be_kept_free():
    needs, base = [[0.3]], [[0.55], [0.45]]
    assert allocate(needs, base, np.ones((2, 1)), most=0.8).rest == 0
    assert allocate(needs, base, np.ones((2, 1)), most=0.7).rest == 1


def test_when_time_is_up_the_rest_is_spread_evenly_over_light_hosts():
    found = allocate(np.full((6, 1), 0.01), [[0.1], [0.1], [0.9]], np.ones((3, 1)), trials=0)
    assert found.rest == 6
    assert found.trials == 0
    assert sorted(found.place.tolist()) == [0, 0, 0, 1, 1, 1]


def test_a_time_limit_is_kept():
    needs = np.random.default_rng(1).uniform(0, 0.1, (40, 2))
    for limit in (0, 50, 1000, 20_000):
        assert allocate(needs, np.zeros((5, 2)), np.ones((5, 2)), trials=limit).trials <= limit


def test_more_time_is_never_worse():
    needs = np.random.default_rng(2).uniform(0, 0.2, (20, 2))
    found = [
        deviation(load_after(allocate(needs, np.zeros((5, 2)), np.ones((5, 2)), trials=t).place, needs, np.zeros((5, 2))),
                  np.ones((5, 2)))
        for t in (0, 100, 10_000, 1_000_000)
    ]  # fmt: skip
    assert found == sorted(found, reverse=True)


def test_utilisation_as_the_objective_puts_no_more_on_a_host_than_it_has_and_evens_out_ties():
    found = allocate([[0.5], [0.5]], [[0.5], [0.4], [0.0]], np.ones((3, 1)), objective=Objective.UTILISATION)
    assert utilisation(load_after(found.place, [[0.5], [0.5]], [[0.5], [0.4], [0.0]]), np.ones((3, 1))) == pytest.approx(
        1.9 / 3
    )
    assert 2 in found.place


def test_larger_hosts_take_more():
    place = allocate(np.full((9, 1), 0.1), np.zeros((2, 1)), [[1.0], [2.0]]).place
    assert np.bincount(place).tolist() == [3, 6]


@pytest.mark.parametrize(
    "question",
    [
        ([[0.1]], [[0.0, 0.0]], [[1.0, 1.0]]),
        ([[math.nan]], [[0.0]], [[1.0]]),
        ([[0.1]], np.zeros((0, 1)), np.zeros((0, 1))),
    ],
    ids=["shapes", "unknown", "no host"],
)
def test_what_cannot_be_answered_is_refused(question):
    with pytest.raises(InputError):
        allocate(*question)


@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(2, 7))
@settings(max_examples=25)
def test_greedy_matching_is_within_five_percent_of_the_exact_placement(seed, hosts, tasks):
    random = np.random.default_rng(seed)
    needs = random.uniform(0.02, 0.25, (tasks, 2)) * min(1.0, 1.5 * hosts / tasks)
    base, sizes = random.uniform(0.0, 0.3, (hosts, 2)), np.ones((hosts, 2))
    found = deviation(load_after(allocate(needs, base, sizes).place, needs, base), sizes)
    best = least_deviation(needs, base, sizes, seconds=3.0)
    # The solver reckons in two-thousandths of a host.
    assert found <= 1.05 * best.value + 1e-3


def test_a_need_is_what_was_seen_times_what_is_held_up():
    observation = seen([0, 1], [0.5, 0.5], busy=[0.2, 0.3], exchange=pairs((0, 1, 7.0), (-1, 0, 3.0)))
    assert needs_of(observation) == pytest.approx(np.array([[0.2, 10.0], [0.3, 7.0]]))


def test_the_policy_spreads_what_lies_on_one_host():
    actions = ElasticAllocator().plan(seen([0, 0], [0.6, 0.0], busy=[0.3, 0.3]))
    assert actions in ((MoveTask(TaskId("a", 0), "h2"),), (MoveTask(TaskId("a", 1), "h2"),))


def test_the_policy_moves_only_the_operators_it_is_for():
    observation = seen([0, 0, 0], [0.9, 0.0], busy=[0.3, 0.3, 0.3], operator=[1, 1, 2])
    assert ElasticAllocator(operators=["b"]).plan(observation) == (MoveTask(TaskId("b", 0), "h2"),)


def test_the_policy_leaves_what_is_even_where_it_is():
    assert not ElasticAllocator().plan(seen([0, 1], [0.3, 0.3], busy=[0.3, 0.3]))


def test_while_needs_are_unknown_nothing_is_moved():
    assert not ElasticAllocator().plan(seen([0, 0], [0.6, 0.0]))
    assert not ElasticAllocator().plan(seen([0, 0], [0.6, 0.0], busy=[0.3, math.nan]))


def test_an_objective_that_there_is_not_is_refused():
    with pytest.raises(InputError, match="throughput"):
        ElasticAllocator(objective="throughput")


@given(st.data())
@settings(max_examples=100)
def test_tasks_are_moved_only_to_hosts_that_take_them(data):
    hosts, tasks = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 8))
    place = data.draw(st.lists(st.integers(0, hosts - 1), min_size=tasks, max_size=tasks))
    busy = data.draw(st.lists(st.sampled_from([0.0, 0.3, 0.9]), min_size=tasks, max_size=tasks))
    states = data.draw(st.lists(st.sampled_from([HostState.RUNNING, HostState.DRAINING]), min_size=hosts, max_size=hosts))
    observation = seen(place, [0.5] * hosts, busy=busy, states=states, types=[HOST] * hosts)
    for action in ElasticAllocator().plan(observation):
        assert action.host in observation.usable
        row = observation.tasks.rows[str(action.task)]
        assert observation.hosts.ids[observation.tasks.host[row]] in observation.usable
