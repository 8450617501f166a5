"""An even spread of tasks by the fewest moves."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from conformance.fake_plant import word_count
from elastream.model.action import MoveTask, TaskId
from elastream.model.cloud import HostState, HostType, Lease
from elastream.model.observation import Context, Frame, Metric, Observation, TaskFrame
from elastream.model.stages import lay_out
from elastream.planning.placement import balance, imbalance

LAYOUT = lay_out(word_count().graph)
NAMES = tuple(LAYOUT.graph.by_name)


def observe(place, cores, busy=None, draining=(), operators=None):
    """Task n lies on host `place[n]`, of `cores[place[n]]` cores."""
    leases = {}
    for number, each in enumerate(cores):
        lease = Lease(f"h{number}", HostType(f"t{each}", cores=each), 0.0).to(HostState.STARTING, 0.0)
        lease = lease.to(HostState.RUNNING, 1.0)
        leases[lease.host] = lease.to(HostState.DRAINING, 2.0) if number in draining else lease
    operators = operators or ["count"] * len(place)
    tasks = TaskFrame(
        [NAMES.index(operator) for operator in operators],
        range(len(place)),
        place,
        NAMES,
        {} if busy is None else {Metric.BUSY_CORES: busy},
    )
    context = Context(LAYOUT)
    return Observation(10.0, context, Frame(NAMES), hosts=Frame(tuple(leases)), tasks=tasks, leases=leases)


def after(observation, moves):
    place = observation.tasks.host.copy()
    for move in moves:
        place[observation.tasks.rows[str(move.task)]] = observation.hosts.rows[move.host]
    tasks = observation.tasks
    values = {metric: tasks.column(metric) for metric in tasks.metrics}
    return replace(observation, tasks=TaskFrame(tasks.operator, tasks.index, place, NAMES, values))


def counts(observation):
    return np.bincount(observation.tasks.host, minlength=len(observation.hosts)).tolist()


def test_a_new_host_gets_its_share():
    observation = observe([0] * 16, [1, 1])
    assert counts(after(observation, balance(observation))) == [8, 8]
    assert len(balance(observation)) == 8


def test_hosts_get_tasks_by_their_cores():
    observation = observe([0] * 12, [1, 2, 3])
    assert counts(after(observation, balance(observation))) == [2, 4, 6]


def test_nothing_is_moved_where_all_is_even():
    assert balance(observe([0, 1, 2, 0, 1], [1, 1, 1])) == []
    assert balance(observe([], [1, 1])) == []
    assert balance(observe([0, 0], [1])) == []


def test_a_draining_host_neither_gets_nor_gives():
    observation = observe([0, 0, 0, 0, 1, 1], [1, 1, 1], draining={1})
    moves = balance(observation)
    assert {move.host for move in moves} == {"h2"}
    assert counts(after(observation, moves)) == [2, 2, 2]


def test_an_operator_whose_tasks_are_all_on_a_draining_host_is_left_to_the_drain():
    assert balance(observe([0, 0], [1, 1, 1], draining={0})) == []


def test_each_operator_is_spread_by_itself():
    observation = observe([0, 0, 1, 1], [1, 1], operators=["count", "count", "words", "words"])
    result = after(observation, balance(observation))
    for operator in ("count", "words"):
        mine = result.tasks.operator == NAMES.index(operator)
        assert sorted(result.tasks.host[mine].tolist()) == [0, 1]


def test_a_hot_task_is_left_alone_and_the_others_make_room_for_it():
    observation = observe([0, 0, 0, 1, 1, 1], [1, 1], busy=[0.9, 0.1, 0.1, 0.1, 0.1, 0.1])
    moves = balance(observation)
    assert {move.task for move in moves} == {TaskId("count", 1), TaskId("count", 2)}


def test_noise_in_busy_time_moves_nothing():
    assert balance(observe([0, 0, 1, 1], [1, 1], busy=[0.5, 0.4, 0.45, 0.4])) == []


def test_tasks_whose_work_is_not_known_weigh_the_same():
    observation = observe([0] * 4, [1, 1], busy=[0.5, math.nan, 0.1, 0.1])
    assert counts(after(observation, balance(observation))) == [2, 2]


PLACES = st.integers(2, 6).flatmap(
    lambda hosts: st.tuples(
        st.lists(st.integers(0, hosts - 1), max_size=24),
        st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=hosts, max_size=hosts),
    )
)


@given(PLACES, st.data())
def test_moves_go_elsewhere_never_add_imbalance_and_are_all_that_is_needed(places, data):
    place, cores = places
    busy = data.draw(st.none() | st.lists(st.floats(0, 1), min_size=len(place), max_size=len(place)))
    draining = data.draw(st.sets(st.integers(0, len(cores) - 1), max_size=1))
    observation = observe(place, cores, busy, draining)
    moves = balance(observation)
    result = after(observation, moves)
    assert len({move.task for move in moves}) == len(moves)
    for move in moves:
        assert place[observation.tasks.rows[str(move.task)]] != observation.hosts.rows[move.host]
        assert move.host in observation.usable
    assert balance(result) == []
    weights = busy if busy is not None and sum(busy) > 0 else [1.0] * len(place)
    staying = [n for n, host in enumerate(place) if host not in draining]
    if staying:
        usable = [number for number in range(len(cores)) if number not in draining]

        def spread(where):
            column = {host: number for number, host in enumerate(usable)}
            return imbalance(
                [column[where[n]] for n in staying], [weights[n] for n in staying], [cores[host] for host in usable]
            )

        before, now = spread(place), spread(result.tasks.host.tolist())
        assert math.isnan(before) or now <= before + 1e-9


@given(
    st.integers(2, 8).flatmap(
        lambda hosts: st.lists(st.integers(0, hosts - 1), min_size=1, max_size=40).map(lambda p: (p, hosts))
    )
)
def test_equal_tasks_on_equal_hosts_are_evened_out_by_the_fewest_moves_there_are(case):
    place, hosts = case
    observation = observe(place, [1.0] * hosts)
    moves = balance(observation)
    now = counts(after(observation, moves))
    assert max(now) - min(now) <= 1
    # The hosts with most tasks keep the one task more that does not divide: no even spread is nearer.
    most = sorted(np.bincount(place, minlength=hosts).tolist(), reverse=True)
    share, rest = divmod(len(place), hosts)
    assert len(moves) == sum(max(0, held - share - (rank < rest)) for rank, held in enumerate(most))


def test_a_move_names_the_task_and_says_why():
    (move,) = balance(observe([0, 0], [1, 1]))
    assert isinstance(move, MoveTask)
    assert move.why
