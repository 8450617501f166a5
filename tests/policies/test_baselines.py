"""Even and random placement."""

from elastream.core.action import LeaseHost
from elastream.core.hosts import HostState
from elastream.policies.elastic_allocator.policy import ElasticAllocator
from elastream.policies.otd import Otd
from elastream.policies.placements import Even, Random
from support.placement_observations import seen


def where(observation, actions):
    places = {str(task): observation.hosts.ids[h] for task, h in zip(observation.tasks.tasks, observation.tasks.host)}  # noqa: B905
    return {**places, **{str(action.task): action.host for action in actions}}


def test_even_deals_tasks_over_hosts_in_turn():
    observation = seen([0, 0, 0, 0], [0.5, 0.5, 0.5])
    assert where(observation, Even().plan(observation).actions) == {"a#0": "h1", "a#1": "h2", "a#2": "h3", "a#3": "h1"}
    assert not Even().plan(seen([0, 1, 2, 0], [0.5, 0.5, 0.5])).actions


def test_even_leaves_other_operators_where_they_are():
    observation = seen([0, 0, 0], [0.5, 0.5], operator=[1, 1, 2])
    assert {action.task.operator for action in Even(["a"]).plan(observation).actions} == {"a"}


def test_random_draws_the_same_again_for_the_same_seed():
    observation = seen([0] * 20, [0.5] * 4)
    first = Random(1).plan(observation).actions
    assert first == Random(1).plan(observation).actions
    assert first != Random(2).plan(observation).actions


def test_nothing_goes_to_a_host_that_drains():
    observation = seen([0] * 6, [0.5] * 3, states=[HostState.RUNNING, HostState.DRAINING, HostState.RUNNING])
    for policy in (Even(), Random(3)):
        assert "h2" not in where(observation, policy.plan(observation).actions).values()


def test_without_hosts_nothing_is_done():
    assert not Even().plan(seen([], [])).actions
    assert not Random().plan(seen([], [])).actions


def test_hosts_that_are_to_be_there_are_leased():
    observation = seen([0, 0], [0.5])
    for policy in (Even(hosts=3), Random(hosts=3), Otd(hosts=3), ElasticAllocator(hosts=3)):
        assert sum(isinstance(action, LeaseHost) for action in policy.plan(observation).actions) == 2
