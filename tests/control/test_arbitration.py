"""What may be tried together, and what may not, each with the reason that people read."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.suite import any_action
from elastream.control.arbitration import arbitrate, bound_remark
from elastream.core.action import (
    CancelDrain,
    DrainHost,
    LeaseHost,
    MoveTask,
    ReleaseHost,
    RenewHost,
    SetParallelism,
    SwitchAlternate,
    SwitchEdge,
)
from elastream.core.decision import Proposal, Unknown
from elastream.core.frames import Frame
from elastream.core.metrics import Metric, Rows
from elastream.core.plant import Plan
from elastream.core.task_id import TaskId
from support import states
from support.fake_plant import FakePlant

TASK = TaskId("count", 0)


def observed(drained=(), requested=(), **options):
    """Three running hosts h1..h3 of at most five, where some are drained or others asked for."""
    plant = FakePlant(hosts=3, **{"max_hosts": 5, **options})
    plant.clock.advance(1.0)
    plant.observe()
    for host in drained:
        plant.apply(DrainHost(host))
    for host in requested:
        plant.apply(LeaseHost(host, "small"))
    return plant.observe()


def reasons(actions, observation=None, under_way=()):
    answered = arbitrate([Proposal(action, "policy") for action in actions], observation or observed(), under_way)
    return [proposal.refused for proposal in answered]


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        ([LeaseHost("h4", "small"), LeaseHost("h4", "small")], "the plan has it already"),
        ([LeaseHost("h4", "small"), LeaseHost("h4", "big")], "contradicts 'lease h4 (small)'"),
        ([LeaseHost("h4", "small"), ReleaseHost("h4")], "h4 is not leased"),
        ([SetParallelism("source", 2), SetParallelism("source", 3)], "contradicts 'source x 2'"),
        ([MoveTask(TASK, "h2"), MoveTask(TASK, "h3")], "contradicts 'move count#0 to h2'"),
        ([MoveTask(TASK, "h2"), DrainHost("h2")], "contradicts 'move count#0 to h2'"),
        ([DrainHost("h2"), MoveTask(TASK, "h2")], "h2 takes no tasks"),
        ([RenewHost("h2"), ReleaseHost("h2")], "contradicts 'renew h2'"),
        ([DrainHost("h2"), SetParallelism("source", 2, on=("h2",))], "h2 takes no tasks"),
        ([SwitchAlternate("words", "split_fast"), SwitchAlternate("words", "split")], "contradicts"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " + ".join(type(action).__name__ for action in value),
)
def test_the_second_of_two_that_do_not_go_together_is_refused(actions, reason):
    first, second = reasons(actions)
    assert first == ""
    assert reason in second


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (SwitchAlternate("nobody", "x"), "no operator 'nobody'"),
        (SwitchAlternate("words", "x"), "operator 'words' has no alternate 'x'"),
        (SwitchAlternate("words", "split"), "running already"),
        (SwitchEdge("where", "nowhere"), "choice 'where' has no target 'nowhere'"),
        (SetParallelism("count", 2), "parallelism of count cannot be changed"),
        (SetParallelism("source", 0), "at least one"),
        (SetParallelism("source", 1), "that parallelism already"),
        (SetParallelism("source", 2, on=("h9",)), "h9 takes no tasks"),
        (MoveTask(TASK, "h9"), "h9 takes no tasks"),
        (LeaseHost("h4", "huge"), "no host type huge"),
        (LeaseHost("h1", "small"), "leased already"),
        (DrainHost("h9"), "h9 is not leased"),
        (CancelDrain("h1"), "h1 is running, not draining"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(action, reason):
    assert reason in reasons([action])[0]


def test_a_drained_host_may_be_released_in_the_same_plan():
    assert reasons([DrainHost("h2"), ReleaseHost("h2")]) == ["", ""]


def test_what_the_plant_cannot_do_is_refused():
    observation = observed()
    object.__setattr__(observation.context, "capabilities", frozenset({"LeaseHost"}))
    assert reasons([MoveTask(TASK, "h2"), LeaseHost("h4", "small")], observation) == ["this plant has no MoveTask", ""]


def test_what_is_under_way_is_not_requested_again():
    assert reasons([SetParallelism("source", 2, why="again")], under_way=[SetParallelism("source", 2)]) == [
        "it is under way already"
    ]


def test_state_moves_only_where_memory_has_room():
    observation = states.observed([0, 0, 1], heap=900.0)
    object.__setattr__(observation.context, "capabilities", frozenset({"MoveTask"}))
    first, second, _ = observation.tasks.tasks
    full = "memory: h2 may take 330 MB of heap more, and 600 MB would move there"
    assert reasons([MoveTask(first, "h2"), MoveTask(second, "h2")], observation) == ["", full]


def test_a_release_makes_no_room_for_leases_before_it_is_over():
    plan = [ReleaseHost("h1"), LeaseHost("h4", "small"), LeaseHost("h5", "small"), LeaseHost("h6", "small")]
    assert reasons(plan) == ["", "", "", "max_hosts: at most 5 hosts may be leased"]


def late(latency=9.0, backlog=500.0, **options):
    """Records take so long, and so many wait, on all the hosts that may be leased."""
    seen = observed(**{"max_hosts": 3, **options})
    waiting = [backlog if name == "source" else 0.0 for name in seen.operators.ids]
    return replace(
        seen,
        operators=Frame(seen.operators.ids, {Metric.BACKLOG: waiting}),
        application=Frame(seen.application.ids, {Metric.LATENCY_P99: [latency]}),
    )


@pytest.mark.parametrize("plan", [Plan(), Plan((RenewHost("h1"),)), Plan((MoveTask(TASK, "h2"),))])
def test_the_host_limit_is_reported_if_records_are_late(plan):
    assert (
        bound_remark(late(), plan)
        == "max_hosts: at most 3 hosts may be leased, and records take 9.0 s, above the target of 2.0 s"
    )


@pytest.mark.parametrize(
    ("seen", "plan"),
    [
        (late(), Plan(remarks=("max_hosts: at most 3 hosts may be leased, and 9 are needed",))),
        (late(), Plan((SetParallelism("source", 2),))),
        (late(), Plan(unknown=(Unknown(Metric.BUSY_CORES, Rows.OPERATOR, "count"),))),
        (late(max_hosts=4), Plan()),
        (late(max_hosts=4, requested=["h4"]), Plan()),
        (late(latency=1.0), Plan()),
        (late(backlog=0.0), Plan()),
        (late(target_latency=None), Plan()),
    ],
    ids=["said", "done", "unknown", "more may be leased", "one comes", "in time", "nothing waits", "no target"],
)
def test_the_host_limit_is_not_reported_if_it_explains_no_lateness(seen, plan):
    assert bound_remark(seen, plan) == ""


def test_enough_hosts_stay_and_those_that_are_coming_do_not_count_for_them():
    observation = observed(min_hosts=2, requested=("h4",))
    assert reasons([DrainHost("h1"), ReleaseHost("h2")], observation) == ["", "min_hosts: at least 2 hosts must stay"]


def test_a_drain_that_is_cancelled_counts_as_staying():
    observation = observed(min_hosts=3, drained=("h3",))
    assert reasons([DrainHost("h1")], observation) == ["min_hosts: at least 3 hosts must stay"]
    assert reasons([CancelDrain("h3"), ReleaseHost("h3")], observed(drained=("h3",)))[1]


def test_a_host_that_was_requested_may_be_given_back_at_once():
    assert reasons([ReleaseHost("h4")], observed(requested=("h4",), min_hosts=3)) == [""]


def test_what_was_refused_before_stays_refused_and_blocks_nothing():
    proposals = [Proposal(DrainHost("h2"), "a", "no"), Proposal(MoveTask(TASK, "h2"), "b")]
    assert [p.refused for p in arbitrate(proposals, observed())] == ["no", ""]


CONTEXT = observed().context


@given(st.lists(any_action(CONTEXT), max_size=8), st.sets(st.sampled_from(["h1", "h2", "h3"])), st.integers(1, 3))
def test_granted_actions_are_proposed_ones_and_never_contradict_each_other(actions, drained, min_hosts):
    observation = observed(drained=drained, min_hosts=min_hosts)
    proposals = [Proposal(action, f"p{number}") for number, action in enumerate(actions)]
    answered = arbitrate(proposals, observation)
    assert [(p.action, p.by) for p in answered] == [(p.action, p.by) for p in proposals]
    granted = [p.action for p in answered if not p.refused]
    assert len(set(granted)) == len(granted)
    about = [action.subject for action in granted if not isinstance(action, ReleaseHost | RenewHost | CancelDrain)]
    assert len(set(about)) == len(about)
    leaving = {action.host for action in granted if isinstance(action, DrainHost | ReleaseHost)}
    assert not leaving & {action.host for action in granted if isinstance(action, MoveTask | LeaseHost | CancelDrain)}
    working = set(observation.usable) | {action.host for action in granted if isinstance(action, CancelDrain)}
    assert len(working - leaving) >= min(min_hosts, len(observation.usable))
    leased = len(observation.leases) + sum(isinstance(action, LeaseHost) for action in granted)
    assert leased <= observation.context.max_hosts
    assert [p.refused for p in arbitrate([Proposal(a, "again") for a in granted], observation)] == [""] * len(granted)


@pytest.mark.parametrize(("running", "first", "granted"), [(0, False, 4), (1, False, 19), (3, False, 57), (1, True, 100)])
def test_a_round_but_the_first_multiplies_hosts_by_twenty_at_most(running, first, granted):
    plant = FakePlant(hosts=max(1, running), max_hosts=200)
    plant.clock.advance(1.0)
    if not running:
        plant.lose("h1")
    wanted = [Proposal(LeaseHost(f"x{number}", "small"), "policy") for number in range(100)]
    answered = arbitrate(wanted, plant.observe(), (), first=first)
    assert [not each.refused for each in answered] == [number < granted for number in range(100)]
    if granted < 100:
        assert answered[-1].refused == f"at most {granted} hosts may be added in one round, to {running}"
