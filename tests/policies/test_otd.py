"""OTD: load classes, its four cases, and the one pair a round."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.action import MoveTask
from elastream.core.hosts import HostState, HostType
from elastream.core.observation import UNMEASURED, Exchange
from elastream.core.task_id import TaskId
from elastream.errors import InputError
from elastream.policies.otd import Case, LoadClass, Otd, OtdRules, Workers, classes, otd_round
from support.placement_observations import HOST, allocation_score, pairs, seen
from support.policy_run import OneRun
from support.property_examples import examples

TRIANGLE = pairs((0, 1, 5.0), (1, 0, 1.0), (0, 2, 4.0), (1, 2, 2.0), (-1, 0, 100.0))
"""Task 0 exchanges 6 with task 1 and 4 with task 2; these two exchange 2."""
AS_PUBLISHED = OtdRules(relief=0.0)


def workers(utilisation, queue=None, node=None, takes=None) -> Workers:
    n = len(utilisation)
    return Workers(
        np.arange(n) if node is None else np.array(node),
        np.array(utilisation, dtype=float),
        np.full(n, math.nan) if queue is None else np.array(queue, dtype=float),
        np.ones(n, dtype=bool) if takes is None else np.array(takes),
    )


def decide(utilisation, place, exchange=TRIANGLE, load=None, rules=AS_PUBLISHED, **columns):
    load = np.full(len(place), math.nan) if load is None else np.array(load, dtype=float)
    return otd_round(workers(utilisation, **columns), np.array(place), load, exchange, rules)


def test_load_classes_go_by_cpu_and_by_queue():
    found = classes(workers([0.5, 0.8, 0.95, 0.2, math.nan, 0.1], queue=[0, 0, 0, 5000, math.nan, math.nan]), OtdRules())
    low, normal, high, unknown = LoadClass.LOW, LoadClass.NORMAL, LoadClass.HIGH, LoadClass.UNKNOWN
    assert found.tolist() == [low, normal, high, high, unknown, low]
    assert classes(workers([0.1, 0.99], takes=[False, False]), OtdRules()).tolist() == [unknown] * 2, "they take no tasks"


@pytest.mark.parametrize("rate", [100.0, 100_000.0])
def test_a_queue_is_long_by_the_seconds_its_worker_needs(rate):
    three = replace(
        workers([0.5] * 4, queue=[2 * rate, 20 * rate, 500.0, 2000.0]), processed=np.array([rate, rate, 0.0, math.nan])
    )
    assert three.long(OtdRules()).tolist() == [False, True, False, True]
    with pytest.raises(InputError, match="long_wait 0 s; both must be above 0"):
        OtdRules(long_wait=0.0)


def test_case_1_moves_from_the_busiest_worker_to_one_of_low_load():
    pair = decide([0.95, 0.99, 0.3], [0, 1, 2])
    assert (pair.case, pair.task, pair.worker, pair.change) == (Case.BALANCE, 1, 2, 2.0)


def test_case_1_moves_even_what_talks_less_there():
    pair = decide([0.95, 0.3], [0, 0, 1])
    assert (pair.task, pair.worker, pair.change) == (0, 1, 4.0 - 6.0)


@pytest.mark.parametrize(
    ("utilisation", "exchange", "case"),
    [
        ([0.95, 0.8], TRIANGLE, Case.SHORTAGE),
        ([0.8, 0.8], TRIANGLE, Case.NONE),
        ([math.nan, math.nan], TRIANGLE, Case.NONE),
        ([0.2, 0.2], UNMEASURED, Case.COMMUNICATION),
    ],
    ids=["case 2", "case 4", "unknown load", "unknown exchange"],
)
def test_nothing_moves(utilisation, exchange, case):
    pair = decide(utilisation, [0, 1, 1], exchange=exchange)
    assert (pair.task, pair.case) == (-1, case)


def test_case_3_moves_the_task_that_gains_most():
    pair = decide([0.3, 0.3], [0, 1, 1])
    assert (pair.case, pair.task, pair.worker, pair.change) == (Case.COMMUNICATION, 0, 1, 10.0)


def test_case_3_moves_nothing_for_a_gain_below_the_threshold():
    # Tasks exchange 8 on average: 24 / 3. The gain of 10 is above a threshold of 1, and below one of 2.
    assert decide([0.3, 0.3], [0, 1, 1], rules=OtdRules(threshold=1.0)).task == 0
    assert decide([0.3, 0.3], [0, 1, 1], rules=OtdRules(threshold=2.0)).task == -1


def test_a_worker_of_the_same_node_is_preferred_where_others_would_cost():
    # Workers 0 and 1 are one node, worker 2 another: a move within the node changes nothing, one to the other node costs 6.
    pair = decide([0.95, 0.5, 0.2], [0, 0, 1], node=[0, 0, 1])
    assert (pair.worker, pair.change) == (1, 0.0)


def test_of_a_node_the_least_loaded_worker_is_the_one():
    assert decide([0.95, 0.5, 0.3], [0, 0, 0], node=[0, 1, 1]).worker == 2


def test_a_full_worker_is_relieved_even_without_exchanges():
    pair = decide([1.0, 0.2], [0, 0, 0], exchange=UNMEASURED, load=[0.1, 0.4, 0.5])
    assert (pair.case, pair.task, pair.worker) == (Case.BALANCE, 1, 1)
    assert math.isnan(pair.change)


def test_as_published_an_idle_task_may_move_off_a_full_worker():
    load = [0.5, 0.0, 0.5]
    exchange = pairs((1, 3, 5.0))
    published = decide([1.0, 0.1], [0, 0, 0, 1], exchange, [*load, 0.1])
    relieving = decide([1.0, 0.1], [0, 0, 0, 1], exchange, [*load, 0.1], rules=OtdRules())
    assert published.task == 1
    assert relieving.task in (0, 2)


def test_with_relief_a_lone_heavy_task_stays_and_the_next_worker_tries():
    pair = decide([1.0, 0.95, 0.1], [0, 1, 1], UNMEASURED, [1.0, 0.5, 0.45], rules=OtdRules())
    assert pair.task in (1, 2)
    assert decide([1.0, 0.1], [0], UNMEASURED, [1.0], rules=OtdRules()).task == -1


def test_with_relief_nothing_is_brought_together_that_fills_a_worker():
    # Tasks 0 and 1 talk most, and need one host and more together; task 2 fits in with either.
    cpu, place, exchange, load = [0.4, 0.6, 0.6], [0, 1, 2, 2], pairs((0, 1, 5.0), (2, 1, 1.0)), [0.4, 0.6, 0.1, 0.5]
    assert decide(cpu, place, exchange, load).change == 5.0
    pair = decide(cpu, place, exchange, load, rules=OtdRules())
    assert (pair.task, pair.worker, pair.change) == (2, 1, 1.0)


def together(time):
    return seen([0, 1, 1], [0.3, 0.3], exchange=TRIANGLE, time=time)


@pytest.mark.parametrize("hosts", [0, 4])
def test_where_nothing_can_be_leased_tasks_are_moved_all_the_same(hosts):
    seen_there = together(0.0)
    alone = replace(seen_there, context=replace(seen_there.context, host_types={}))
    (move,) = Otd(hosts=hosts).plan(alone).actions
    assert isinstance(move, MoveTask)


def test_the_policy_moves_one_task_a_round_and_waits_between_rounds():
    policy = OneRun(Otd())
    assert policy.plan(together(5.0)).actions == (MoveTask(TaskId("a", 0), "h2"),)
    assert not policy.plan(together(7.0)).actions


@pytest.mark.parametrize("times", [(5.0, 10.0), (5.0, 7.0, 9.0, 11.0)], ids=["its own period", "a shorter period"])
def test_a_failed_move_is_not_repeated_until_something_moved(times):
    policy = OneRun(Otd())
    actions = [action for time in times for action in policy.plan(together(time)).actions]
    assert actions[0] == MoveTask(TaskId("a", 0), "h2")
    assert actions[0] not in actions[1:]


def test_a_shortage_is_a_remark_that_names_hosts():
    plan = Otd().plan(seen([0, 1], [0.99, 0.8]))
    assert not plan.actions
    (remark,) = plan.remarks
    assert "h1" in remark
    assert "h2" not in remark
    assert not Otd().plan(seen([0, 1], [0.5, 0.5])).remarks


def test_regions_can_be_the_nodes():
    types = [HostType("n1", cores=1, region="r1"), HostType("n2", cores=1, region="r1"), HOST]
    observation = seen([0, 1, 2], [0.3, 0.3, 0.3], exchange=TRIANGLE, types=types)
    assert Otd(node="host").plan(observation).actions != Otd(node="region").plan(observation).actions


@pytest.mark.parametrize("wrong", [{"low": 0.9, "high": 0.8}, {"relief": 0.5}, {"threshold": -1.0}, {"node": "rack"}])
def test_parameters_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Otd(**wrong)


@st.composite
def situations(draw):
    hosts = draw(st.integers(1, 5))
    tasks = draw(st.integers(0, 12))
    place = draw(st.lists(st.integers(0, hosts - 1), min_size=tasks, max_size=tasks))
    cpu = draw(st.lists(st.sampled_from([0.1, 0.5, 0.75, 0.95, 1.0, math.nan]), min_size=hosts, max_size=hosts))
    busy = draw(st.lists(st.sampled_from([0.0, 0.2, 0.5, math.nan]), min_size=tasks, max_size=tasks))
    states = draw(
        st.lists(
            st.sampled_from([HostState.RUNNING, HostState.DRAINING, HostState.STARTING]), min_size=hosts, max_size=hosts
        )
    )
    entry = st.tuples(st.integers(-1, tasks - 1), st.integers(-1, tasks - 1), st.floats(0, 100))
    entries = draw(st.lists(entry, max_size=30)) if tasks else []
    exchange = Exchange(*map(np.array, zip(*entries, strict=True))) if entries else draw(st.just(UNMEASURED))
    return seen(place, cpu, busy=busy, exchange=exchange, states=states)


@given(situations(), st.sampled_from([0.0, 0.1]))
@settings(max_examples=examples(150))
def test_at_most_one_task_moves_to_a_host_that_takes_it(observation, relief):
    actions = Otd(relief=relief).plan(observation).actions
    assert len(actions) <= 1
    for action in actions:
        assert action.host in observation.usable
        assert observation.hosts.ids[observation.tasks.host[observation.tasks.rows[str(action.task)]]] != action.host


@given(situations(), st.sampled_from([0.0, 0.1]))
@settings(max_examples=examples(150))
def test_the_change_of_the_chosen_pair_is_what_both_scores_say(observation, relief):
    pair = Otd(relief=relief).decide(observation)
    if pair.task >= 0 and observation.exchange.known:
        place = observation.tasks.host
        scores = [allocation_score(observation.exchange, place, pair.task, n) for n in (pair.worker, place[pair.task])]
        assert pair.change == pytest.approx((scores[0] - scores[1]) / 2, abs=1e-6)


@given(situations())
@settings(max_examples=examples(100))
def test_as_published_no_other_pair_gains_more_in_case_3(observation):
    pair = Otd(relief=0.0).decide(observation)
    if pair.case is Case.COMMUNICATION and observation.exchange.known:
        place, exchange = observation.tasks.host, observation.exchange
        usable = [observation.hosts.rows[host] for host in observation.usable if observation.hosts.value(host, "cpu") < 0.7]
        gains = [
            (allocation_score(exchange, place, t, h) - allocation_score(exchange, place, t, place[t])) / 2
            for t in range(len(place))
            for h in usable
            if h != place[t] and observation.hosts.ids[place[t]] in observation.usable
        ]
        if pair.task >= 0:
            assert pair.change == pytest.approx(max(gains), abs=1e-6)
