"""An even spread of tasks by the fewest moves."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elastream.core.action import MoveTask
from elastream.core.frames import TaskFrame
from elastream.core.hosts import HostState, HostType
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.policies.common.placement import balance, balance_by_load
from elastream_papers.elastic_allocator.exact import pack
from support.placement_observations import GRAPH, seen


def observe(place, cores, busy=None, draining=(), operators=None):
    """Task n lies on host `place[n]`, of `cores[place[n]]` cores; no host can be leased."""
    states = [HostState.DRAINING if number in draining else HostState.RUNNING for number in range(len(cores))]
    types = [HostType(f"t{each}", cores=each) for each in cores]
    found = seen(place, [math.nan] * len(cores), busy=busy, states=states, types=types, operator=operators)
    return replace(found, context=replace(found.context, host_types={}))


def after(observation, moves):
    place = observation.tasks.host.copy()
    for move in moves:
        place[observation.tasks.rows[str(move.task)]] = observation.hosts.rows[move.host]
    tasks = observation.tasks
    values = {metric: tasks.column(metric) for metric in tasks.metrics}
    return replace(observation, tasks=TaskFrame(tasks.operator, tasks.index, place, tuple(GRAPH.by_name), values))


def counts(observation):
    return np.bincount(observation.tasks.host, minlength=len(observation.hosts)).tolist()


@pytest.mark.parametrize(
    ("place", "cores", "draining", "then"),
    [
        ([0] * 16, [1, 1], set(), [8, 8]),
        ([0] * 12, [1, 2, 3], set(), [2, 4, 6]),
        ([0, 0, 0, 0, 1, 1], [1, 1, 1], {1}, [2, 2, 2]),  # a draining host neither gets nor gives
        ([0, 0], [1, 1, 1], {0}, [2, 0, 0]),  # left to the drain
        ([0, 1, 2, 0, 1], [1, 1, 1], set(), [2, 2, 1]),
        ([], [1, 1], set(), [0, 0]),
    ],
)
def test_hosts_get_tasks_by_their_cores(place, cores, draining, then):
    observation = observe(place, cores, draining=draining)
    moves = balance(observation)
    assert counts(after(observation, moves)) == then
    assert len(moves) == sum(max(0, now - count) for now, count in zip(counts(observation), then, strict=True))
    assert all(isinstance(move, MoveTask) and move.why for move in moves)


def test_each_operator_is_spread_by_itself():
    result = observe([0, 0, 1, 1], [1, 1], operators=[1, 1, 2, 2])
    result = after(result, balance(result))
    for operator in (1, 2):
        assert sorted(result.tasks.host[result.tasks.operator == operator].tolist()) == [0, 1]


def test_a_hot_task_is_left_alone_and_the_others_make_room_for_it():
    observation = observe([0, 0, 0, 1, 1, 1], [1, 1], busy=[0.9, 0.1, 0.1, 0.1, 0.1, 0.1])
    moves = balance_by_load(observation)
    assert {move.task for move in moves} == {TaskId("a", 1), TaskId("a", 2)}


def test_operator_with_a_task_of_unknown_load_is_skipped():
    busy = [0.5, math.nan, 0.1, 0.1, 0.2, 0.2]
    observation = observe([0] * 6, [1, 1], busy, operators=[1] * 4 + [2] * 2)
    assert {move.task.operator for move in balance_by_load(observation)} == {"b"}


def with_values(observation, **values):
    tasks = observation.tasks
    named = {Metric[name.upper()]: each for name, each in values.items()}
    return replace(observation, tasks=TaskFrame(tasks.operator, tasks.index, tasks.host, tuple(GRAPH.by_name), named))


def test_a_difference_within_what_its_samples_disagree_moves_nothing():
    place, busy = [0, 0, 1, 1], [0.5, 0.3, 0.2, 0.2]
    for error, moved in ((0.01, True), (0.1, False), (math.nan, True)):
        noisy = with_values(observe(place, [1, 1], busy), busy_cores=busy, busy_cores_error=[error] * 4)
        assert bool(balance_by_load(noisy)) is moved


def test_state_stays_where_loading_it_takes_longer_than_balance_repays():
    place, busy = [0, 0, 1, 1], [0.5, 0.3, 0.2, 0.2]
    for megabytes, more, moved in (
        (200.0, 0.0, True),
        (10_000.0, 0.0, False),
        (10_000.0, 0.2, True),
        (math.nan, 0.0, True),
    ):
        load = [busy[0] + more, *busy[1:]]  # with more, the host is saturated
        large = with_values(observe(place, [1, 1], load), busy_cores=load, state_size=[megabytes] * 4)
        assert bool(balance_by_load(large)) is moved


def test_what_is_idle_stays_where_it_is():
    observation = observe([0] * 4, [1, 1], busy=[0.004] * 4)
    assert balance_by_load(observation, worth=0.02) == []
    assert len(balance_by_load(observation)) == 2


def test_two_tasks_are_exchanged_where_no_single_move_helps():
    observation = observe([0, 0, 1, 1], [1, 1], busy=[0.6, 0.5, 0.4, 0.3])
    moves = balance_by_load(observation)
    assert len(moves) == 2
    assert sorted(loads(after(observation, moves))) == pytest.approx([0.9, 0.9])
    assert balance_by_load(observe([0, 0, 1, 1], [1, 1], busy=[0.5, 0.4, 0.45, 0.43])) == [], "noise moves nothing"


def zipf(seed, partitions=64, keys=20_000, exponent=1.2):
    """What state partitions take whose keys are drawn by Zipf's law and hashed, as shares of the whole."""
    weights = np.arange(1, keys + 1) ** -exponent
    places = np.random.default_rng(seed).integers(0, partitions, keys)
    return np.bincount(places, weights / weights.sum(), partitions)


def loads(observation):
    return np.bincount(observation.tasks.host, observation.tasks.column(Metric.BUSY_CORES), len(observation.hosts))


@pytest.mark.parametrize("hosts", [2, 3, 8])
def test_skewed_keys_end_within_5_percent_of_best_packing(hosts):
    weights = zipf(hosts)
    for place in (np.zeros(64, dtype=int), np.arange(64) % hosts):
        observation = observe(place, [1.0] * hosts, weights)
        for _ in range(6):
            observation = after(observation, balance_by_load(observation))
        assert loads(observation).max() <= 1.05 * pack(weights, [1.0] * hosts, seconds=5.0).value
        assert balance_by_load(observation) == []


def test_noisy_loads_end_near_best_packing_and_stay():
    random, weights = np.random.default_rng(7), zipf(7)
    observation, moved = observe(np.zeros(64, dtype=int), [1.0] * 4, weights), []
    for _ in range(12):
        noisy = weights * random.normal(1, 0.02, 64).clip(0.9, 1.1)
        moves = balance_by_load(observe(observation.tasks.host, [1.0] * 4, noisy))
        moved.append(len(moves))
        observation = after(observation, moves)
    assert loads(observation).max() <= 1.05 * pack(weights, [1.0] * 4, seconds=5.0).value
    assert moved[6:] == [0] * 6


@given(
    st.integers(2, 6).flatmap(
        lambda hosts: st.tuples(
            st.lists(st.tuples(st.integers(0, hosts - 1), st.floats(0, 1)), max_size=24),
            st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=hosts, max_size=hosts),
            st.sets(st.integers(0, hosts - 1), max_size=1),
        )
    )
)
@example(([(0, 5e-324)], [0.5, 2.0], set()))  # a load that vanishes where a faster host takes it
def test_moves_by_load_relieve_the_fullest_host(case):
    tasks, cores, draining = case
    place, busy = [host for host, _ in tasks], [load for _, load in tasks]
    observation = observe(place, cores, busy, draining)
    moves = balance_by_load(observation)
    result = after(observation, moves)
    assert len({move.task for move in moves}) == len(moves)
    assert all(move.host in observation.usable for move in moves)
    assert balance_by_load(result) == []

    def highest(observed):
        a_core = loads(observed) / np.array(cores)
        return max((load for number, load in enumerate(a_core) if number not in draining), default=0.0)

    assert highest(result) <= highest(observation) * (0.97 if moves else 1.0)


PLACES = st.integers(2, 6).flatmap(
    lambda hosts: st.tuples(
        st.lists(st.integers(0, hosts - 1), max_size=24),
        st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=hosts, max_size=hosts),
    )
)


@given(PLACES, st.data())
def test_moves_go_elsewhere_and_never_add_imbalance(places, data):
    place, cores = places
    draining = data.draw(st.sets(st.integers(0, len(cores) - 1), max_size=1))
    observation = observe(place, cores, draining=draining)
    moves = balance(observation)
    result = after(observation, moves)
    assert len({move.task for move in moves}) == len(moves)
    for move in moves:
        assert place[observation.tasks.rows[str(move.task)]] != observation.hosts.rows[move.host]
        assert move.host in observation.usable
    assert balance(result) == []
    if len(set(cores)) == 1 and not draining:
        now = counts(result)
        assert max(now) - min(now) <= 1
        # The hosts with most tasks keep the one task more that does not divide: no even spread is nearer.
        most = sorted(counts(observation), reverse=True)
        share, rest = divmod(len(place), len(cores))
        assert len(moves) == sum(max(0, held - share - (rank < rest)) for rank, held in enumerate(most))
    staying = [n for n, host in enumerate(place) if host not in draining]
    if staying:
        usable = [number for number in range(len(cores)) if number not in draining]

        def spread(where):
            column = {host: number for number, host in enumerate(usable)}
            count = np.bincount([column[where[n]] for n in staying], minlength=len(usable))
            return (count / [cores[host] for host in usable]).max() * sum(cores[host] for host in usable) / len(staying)

        before, now = spread(place), spread(result.tasks.host.tolist())
        assert now <= before + 1e-9


@given(
    st.integers(2, 3).flatmap(
        lambda hosts: st.tuples(
            st.lists(st.integers(0, hosts - 1), min_size=1, max_size=8),
            st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(0.96, 1.04)), min_size=hosts, max_size=hosts),
        )
    )
)
def test_noise_in_capacities_moves_nothing_to_and_fro(case):
    place, measured = case
    capacities = [[cores for cores, _ in measured], [cores * noise for cores, noise in measured]]
    moved = []
    for number in range(8):
        observation = observe(place, capacities[number % 2])
        moved.append(balance(observation))
        place = after(observation, moved[-1]).tasks.host.tolist()
    assert not any(moved[2:])


def test_small_hosts_beside_a_large_one_get_their_part():
    """Hosts of half a core beside one of four: with twelve tasks the large one holds up all others for a third longer."""
    observation = observe([0] * 12 + [1, 2, 3, 4], [4.0, *[0.5] * 12])
    held = np.bincount(after(observation, balance(observation)).tasks.host, minlength=13)
    assert held[0] <= 10
    assert held[1:].max() == 1
