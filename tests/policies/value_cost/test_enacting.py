"""A wanted plan becomes actions that a plant can do, each of them once."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.action import CancelDrain, DrainHost, LeaseHost, MoveTask, ReleaseHost, SetParallelism, SwitchAlternate
from elastream.core.hosts import HostState, HostType
from elastream.core.task_id import TaskId
from elastream.policies.value_cost.policy import enacted
from elastream.policies.value_cost.problem import Deployment, Host
from elastream.simulator import HostFailure
from support.property_examples import examples
from support.scheduling_plants import FAST, FOUR, INSTANT, KINDS, ONE, done, plant, seen, totals


def new(kind: HostType) -> Host:
    return Host("", kind, kind.speed, 0.0, 0.0)


def ran(rate: float = 20.0, hosts=("four",), parallelism=None, until: float = 60.0, **options):
    """A plant after a minute, what is observed of it, and what is read."""
    found = plant(rate, hosts, parallelism, **options)
    found.advance(until)
    return found, found.observe(), seen(found)


def test_switches_come_first_and_a_host_before_its_instances():
    _, observation, at = ran()
    wanted = Deployment(
        (0, 1, 0, 0), (*at.deployment.hosts, new(FAST)), np.array([[0, 1, 1, 0], [0, 1, 1, 0]], dtype=np.int64)
    )
    assert enacted(observation, at.problem, wanted, pace=INSTANT, why="0.5 of 0.8") == (
        SwitchAlternate("score", "quick"),
        LeaseHost("h2", "fast"),
        SetParallelism("score", 2, on=("h2",)),
        SetParallelism("count", 2, on=("h2",)),
    )


def test_instances_that_are_too_many_go_before_others_take_their_room():
    plant_, observation, at = ran(hosts=("one", "one"))
    assert totals(at.deployment) == [0, 1, 1, 0]
    wanted = replace(at.deployment, instances=at.deployment.instances[::-1])
    assert enacted(observation, at.problem, wanted, pace=INSTANT) == ()  # a ring on full hosts stays as it is
    plant_, observation, at = ran(hosts=("four",), parallelism={"score": 3, "count": 1})
    wanted = replace(at.deployment, instances=np.array([[0, 1, 3, 0]]))
    assert enacted(observation, at.problem, wanted, pace=INSTANT) == (
        SetParallelism("score", 1, without=(TaskId("score", 2), TaskId("score", 1))),
        SetParallelism("count", 3, on=("h1", "h1")),
    )
    assert done(plant_, observation, at, wanted) == 2


def test_an_unwanted_host_stays_empty_until_its_paid_time_ends():
    plant_, observation, at = ran(hosts=("four", "four"), parallelism={"score": 2, "count": 2})
    keep = next(row for row, host in enumerate(at.deployment.hosts) if host.name == "h1")
    wanted = replace(at.deployment, hosts=at.deployment.hosts[keep : keep + 1], instances=np.array([[0, 2, 2, 0]]))
    actions = enacted(observation, at.problem, wanted, pace=INSTANT)
    assert {type(action) for action in actions} == {MoveTask}
    assert done(plant_, observation, at, wanted)
    for time, goes in ((120.0, 0), (480.0, 0), (550.0, 1)):
        plant_.advance(time)
        found = enacted(plant_.observe(), at.problem, wanted, pace=INSTANT)
        assert found == (ReleaseHost("h2"),) * goes, time


def test_a_move_waits_for_the_host_that_it_goes_to():
    plant_, observation, at = ran(hosts=("one", "one"))
    wanted = Deployment(at.deployment.active, (new(FOUR),), np.array([[0, 1, 1, 0]]))
    assert enacted(observation, at.problem, wanted, pace=INSTANT) == (LeaseHost("h3", "four"),)
    assert done(plant_, observation, at, wanted) == 1
    plant_.advance(120.0)
    again = Deployment(wanted.active, tuple(h for h in seen(plant_).deployment.hosts if h.name == "h3"), wanted.instances)
    moves = enacted(plant_.observe(), at.problem, again, pace=INSTANT)
    assert sorted((action.task.operator, action.host) for action in moves) == [("count", "h3"), ("score", "h3")]


def test_instances_of_a_lost_host_are_not_added_twice():
    plant_, _, _ = ran(hosts=("four", "one"), settings={"faults": (HostFailure(70.0, "h1"),)})
    plant_.advance(80.0)
    observation, at = plant_.observe(), seen(plant_)
    assert sum(totals(at.deployment)) == 1
    wanted = Deployment(at.deployment.active, (*at.deployment.hosts, new(FOUR)), np.array([[0, 0, 0, 0], [0, 2, 2, 0]]))
    wanted.instances[0] = at.deployment.instances[0]
    assert done(plant_, observation, at, wanted)
    plant_.advance(200.0)
    assert sorted(totals(seen(plant_).deployment)[1:3]) == [2, 3]


def test_no_operator_is_left_without_an_instance():
    _, observation, at = ran(parallelism={"score": 2})
    wanted = replace(at.deployment, instances=np.zeros_like(at.deployment.instances))
    assert enacted(observation, at.problem, wanted, pace=INSTANT) == (
        SetParallelism("score", 1, without=(TaskId("score", 1),)),
    )


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_what_is_enacted_is_done_and_planned_again_it_is_nothing(data):
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    room = int(sum(kind.cores for kind in kinds))
    several = data.draw(st.integers(1, max(1, room - 1)))
    hosts = [kind.name for kind in kinds] if room > several else [*(kind.name for kind in kinds), "one"]
    plant_, observation, at = ran(hosts=hosts, parallelism={"score": several})
    kept = data.draw(st.lists(st.sampled_from(at.deployment.hosts), unique=True))
    chosen = [*kept, *(new(kind) for kind in data.draw(st.lists(st.sampled_from(KINDS), min_size=not kept, max_size=2)))]
    rows = []
    for host in chosen:
        score = data.draw(st.integers(0, int(host.type.cores)))
        rows.append([0, score, data.draw(st.integers(0, int(host.type.cores) - score)), 0])
    active = (0, data.draw(st.integers(0, 1)), 0, 0)
    done(plant_, observation, at, Deployment(active, tuple(chosen), np.array(rows, dtype=np.int64)))
    # Leased hosts have their names now; what waited for them to be up is done in the rounds that follow.
    names = iter([host for host in plant_.observe().leases if host not in observation.leases])
    named = [host if host.name else replace(host, name=next(names)) for host in chosen]
    for round_ in range(1, 6):
        plant_.advance(60.0 + 40.0 * round_)
        wanted = Deployment(active, tuple(named), np.array(rows, dtype=np.int64))
        count = done(plant_, plant_.observe(), at, wanted, pace=0.0)
    assert count == 0
    found = seen(plant_).deployment
    assert found.active == active
    expected = [max(1, each) for each in wanted.instances.sum(axis=0).tolist()[1:3]]
    full = any(sum(row) == host.type.cores for row, host in zip(rows, named, strict=True))
    assert totals(found)[1:3] == expected or full or 0 in wanted.instances.sum(axis=0)[1:3]


# Where tasks share the cores of all hosts.


def test_on_shared_cores_stages_get_a_task_a_slot():
    plant_, observation, at = ran(fused=True, parallelism={"source": 1})
    wanted = replace(at.deployment, hosts=(*at.deployment.hosts, new(FAST)), instances=np.zeros((2, 4), dtype=np.int64))
    assert enacted(observation, at.problem, wanted, pace=INSTANT) == (
        LeaseHost("h2", "fast"),
        SetParallelism("source", 4),
    )
    assert done(plant_, observation, at, wanted) == 2
    assert enacted(plant_.observe(), at.problem, seen(plant_).deployment, pace=INSTANT) == ()
    plant_.advance(120.0)
    assert enacted(plant_.observe(), at.problem, seen(plant_).deployment, pace=INSTANT) == (SetParallelism("source", 6),)


def test_on_shared_cores_a_host_is_drained_when_paid_time_ends():
    plant_, _, at = ran(fused=True, hosts=("four", "one"), parallelism={"source": 5}, until=300.0)
    less = replace(at.deployment, hosts=at.deployment.hosts[:1], instances=at.deployment.instances[:1])
    assert enacted(plant_.observe(), at.problem, less, pace=INSTANT) == ()
    plant_.advance(500.0)
    observation = plant_.observe()
    assert enacted(observation, at.problem, less, pace=INSTANT) == (DrainHost("h2"), SetParallelism("source", 4))
    assert done(plant_, observation, at, less) == 2
    again = replace(less, hosts=(*less.hosts, new(ONE)), instances=np.zeros((2, 4), dtype=np.int64))
    observation = plant_.observe()
    assert observation.leases["h2"].state is HostState.DRAINING
    assert CancelDrain("h2") in enacted(observation, at.problem, again, pace=INSTANT)
    assert enacted(observation, at.problem, less, pace=INSTANT) == (ReleaseHost("h2"),)
