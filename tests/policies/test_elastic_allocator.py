"""Elastic Allocator: the models of load and bandwidth, and the policy."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.action import MoveTask
from elastream.core.frames import Frame
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch
from elastream.core.task_id import TaskId
from elastream.errors import InputError
from elastream.policies.elastic_allocator.policy import ElasticAllocator, background_of, needs_of, overload
from support.placement_observations import HOST, pairs, seen
from support.property_examples import examples


def test_operator_that_falls_behind_needs_more_than_it_has():
    # Section IV-A by hand: one operator keeps up, of the second only half is done, the third waits for input.
    assert overload(np.array([100.0, 200.0, 50.0]), np.array([100.0, 100.0, 100.0])).tolist() == [1.0, 2.0, 1.0]


def test_a_need_is_what_was_seen_times_what_is_held_up():
    observation = seen([0, 1], [0.5, 0.5], busy=[0.2, 0.3], exchange=pairs((0, 1, 7.0), (-1, 0, 3.0)))
    assert needs_of(observation) == pytest.approx(np.array([[0.2, 10.0], [0.3, 7.0]]))


def test_what_others_use_of_a_host_counts_as_its_load_before():
    # h2 does nothing for us, but 0.8 of its core is in use: C0 of section IV.
    busy = {"busy": [0.3, 0.3], "place": [0, 0]}
    assert not ElasticAllocator().plan(seen(busy["place"], [0.6, 0.8], busy=busy["busy"])).actions
    assert len(ElasticAllocator().plan(seen(busy["place"], [0.6, 0.0], busy=busy["busy"])).actions) == 1


def test_background_is_the_use_that_no_task_explains():
    observation = seen([0, 1], [0.9, math.nan], busy=[0.3, 0.2], exchange=pairs((0, 1, 40.0), (-1, 0, 10.0)))
    hosts = Frame(observation.hosts.ids, {Metric.CPU: [0.9, math.nan], Metric.BANDWIDTH: [150.0, 40.0]})
    found = background_of(replace(observation, hosts=hosts))
    assert found == pytest.approx(np.array([[0.6, 100.0], [0.0, 0.0]]))


def test_use_of_fast_cores_is_counted_in_cores_of_speed_1():
    fast = replace(HOST, speed=2.0)
    observation = seen([0, 1], [0.3, 0.2], busy=[0.3, 0.2], types=[fast, HOST])
    assert needs_of(observation)[:, 0] == pytest.approx([0.6, 0.2])
    assert background_of(observation) == pytest.approx(np.zeros((2, 2))), "all of it is the tasks'"


def test_no_moves_follow_until_the_new_places_are_measured():
    policy = ElasticAllocator(period=2.0)
    first = policy.plan(seen([0, 0], [0.6, 0.0], busy=[0.3, 0.3], time=20.0))
    assert len(first.actions) == 1
    of_before = {"busy": [0.3, 0.3], "place": [1, 0], "cpu": [0.9, 0.0]}  # as if work that went along had stayed
    memory = first.memory
    for time in (22.0, 24.0, 28.0):
        plan = policy.plan(seen(**of_before, time=time), memory)
        assert not plan.actions
        memory = plan.memory
    assert not policy.plan(seen([1, 0], [0.3, 0.3], busy=[0.3, 0.3], time=32.0), memory).actions
    for time in range(32, 92, 2):  # it has stayed
        memory = (plan := policy.plan(seen(**of_before, time=float(time)), memory)).memory
        if plan.actions:
            break
    assert plan.actions == (MoveTask(TaskId("a", 1), "h2", why=plan.actions[0].why),)


def test_a_round_due_while_settling_is_held_right_afterwards():
    policy = ElasticAllocator(period=60.0)
    memory = policy.plan(seen([0, 0], [0.0, 0.0], busy=[0.0, 0.0], time=0.0)).memory
    for time in (30.0, 58.0):  # a host comes
        memory = policy.plan(seen([0, 0], [0.6, 0.0, 0.0][: 2 + (time > 50)], busy=[0.3, 0.3], time=time), memory).memory
    plan = policy.plan(seen([0, 0], [0.6, 0.0, 0.0], busy=[0.3, 0.3], time=60.0), memory)
    assert not plan.actions
    assert policy.plan(seen([0, 0], [0.6, 0.0, 0.0], busy=[0.3, 0.3], time=68.0), plan.memory).actions


def test_places_have_settled_once_a_batch_in_them_was_committed():
    def at(time, *batches):
        known = seen([0, 0], [0.6, 0.0], busy=[0.3, 0.3], time=time)
        return replace(known, batches=tuple(MicroBatch("s", start, 40.0, 10.0) for start in batches))

    policy = ElasticAllocator(period=2.0)
    plan = policy.plan(at(50.0, 10.0))
    assert plan.actions
    for time in (62.0, 70.0, 88.0):
        plan = policy.plan(at(time), plan.memory)
        assert not plan.actions, "no batch has been seen since"
    plan = policy.plan(at(91.0, 50.5), plan.memory)
    assert plan.actions, "the same measurements, of a batch in these places, ask for the same moves"


def test_a_host_of_unknown_use_counts_as_before_and_not_as_idle():
    policy, memory = ElasticAllocator(period=2.0), None
    for number, use in enumerate((0.5, math.nan, 0.5)):
        memory = policy.plan(seen([0, 1], [use, 0.5], busy=[0.1, 0.1], time=20.0 + 2 * number), memory).memory
        assert memory.background["h1"][0] == pytest.approx(0.4)


def test_what_hosts_do_beside_their_tasks_is_a_measured_mean():
    policy, memory = ElasticAllocator(period=2.0), None
    for number in range(50):  # one measurement says that one host is fuller, the next that the other is
        use = [0.5, 0.3] if number % 2 else [0.3, 0.5]
        plan = policy.plan(seen([0, 0, 1, 1], use, busy=[0.1] * 4, time=20.0 + 2 * number), memory)
        memory = plan.memory
        assert number < 3 or not plan.actions
    assert memory.background["h1"] == pytest.approx((0.2, 0.0), abs=0.01)


def test_a_host_takes_no_more_tasks_than_slots_where_tasks_fill_them():
    wide = replace(HOST, cores=4.0, slots=2)
    observation = seen([0, 0, 1, 1, 1], [0.5, 0.5, 0.0], busy=[0.1] * 5, types=[wide] * 2 + [replace(wide, slots=1)])
    at = dict(zip(map(str, observation.tasks.tasks), observation.tasks.host.tolist(), strict=True))
    for action in ElasticAllocator(slots=True).plan(observation).actions:
        at[str(action.task)] = observation.hosts.rows[action.host]
    assert np.bincount(list(at.values()), minlength=3).tolist() == [2, 2, 1]


def test_the_policy_moves_only_the_operators_it_is_for():
    observation = seen([0, 0, 0], [0.9, 0.0], busy=[0.3, 0.3, 0.3], operator=[1, 1, 2])
    assert ElasticAllocator(operators=["b"]).plan(observation).actions == (MoveTask(TaskId("b", 0), "h2"),)


@pytest.mark.parametrize(
    ("place", "cpu", "busy"),
    [
        ([0, 0], [0.6, 0.0], None),
        ([0, 0], [0.6, 0.0], [0.3, math.nan]),
        ([0, 1], [0.3, 0.3], [0.3, 0.3]),
        ([0, 0], [0.008, 0.0], [0.004, 0.004]),
    ],
    ids=["needs unknown", "a need unknown", "even", "within a hundredth of a host"],
)
def test_nothing_is_moved(place, cpu, busy):
    assert not ElasticAllocator().plan(seen(place, cpu, busy=busy)).actions


def test_an_objective_that_there_is_not_is_refused():
    with pytest.raises(InputError, match="throughput"):
        ElasticAllocator(objective="throughput")


@given(st.data())
@settings(max_examples=examples(100))
def test_tasks_are_moved_only_to_hosts_that_take_them(data):
    hosts, tasks = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 8))
    place = data.draw(st.lists(st.integers(0, hosts - 1), min_size=tasks, max_size=tasks))
    busy = data.draw(st.lists(st.sampled_from([0.0, 0.3, 0.9]), min_size=tasks, max_size=tasks))
    states = data.draw(st.lists(st.sampled_from([HostState.RUNNING, HostState.DRAINING]), min_size=hosts, max_size=hosts))
    observation = seen(place, [0.5] * hosts, busy=busy, states=states, types=[HOST] * hosts)
    for action in ElasticAllocator().plan(observation).actions:
        assert action.host in observation.usable
        row = observation.tasks.rows[str(action.task)]
        assert observation.hosts.ids[observation.tasks.host[row]] in observation.usable
