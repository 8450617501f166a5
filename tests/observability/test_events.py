"""Events by fixed reasons: of what there is one, and how often."""

import json
import logging
from dataclasses import replace

import pytest

from elastream.control.loop import Loop
from elastream.control.rollback import ROLLED_BACK
from elastream.core.action import DrainHost, LeaseHost, MoveTask, Outcome, ReleaseHost, Status, SwitchAlternate
from elastream.core.alarm import Alarm
from elastream.core.decision import Decision, Fault, Proposal, Unknown
from elastream.core.event import Reason, RunEvent, types_of
from elastream.core.metrics import Metric, Rows
from elastream.core.plant import Plan
from elastream.core.scaling import ScalingRules
from elastream.core.task_id import TaskId
from elastream.core.wording import at_most
from elastream.errors import EnvironmentProblem
from elastream.observability.events import REPEAT_INTERVAL_S, EventBook, EventLog
from elastream.policies.common.reach import HALF_HELP, NO_HELP
from support.fake_plant import FakePlant


def decision(time=0.0, *, refused=(), done=(), **more):
    proposals = tuple(Proposal(action, "policy", why) for action, why in refused)
    return Decision(1, time, "policy", proposals=proposals, outcomes=tuple(Outcome(*each) for each in done), **more)


def said(events):
    return [(event.reason, event.message) for event in events]


def test_hosts_that_come_are_one_event_a_round():
    leases = [(LeaseHost(f"h{n}", "small", why="late"), Status.ACCEPTED) for n in (2, 3)]
    assert said(EventBook().decided(decision(done=leases))) == [(Reason.SCALED_UP, "2 hosts come (h2, h3): late")]


def test_a_host_that_is_drained_and_then_released_went_once():
    book = EventBook()
    assert said(book.decided(decision(done=[(DrainHost("h2"), Status.ACCEPTED)]))) == [
        (Reason.SCALED_DOWN, "1 host goes (h2)")
    ]
    assert book.decided(decision(9.0, done=[(ReleaseHost("h2"), Status.DONE)])) == []


UNKNOWN = "no batch of 'q' has ended for 2.0 min: the need for its hosts is unknown"


@pytest.mark.parametrize(
    ("action", "why", "reason", "kind", "about"),
    [
        (LeaseHost("h9", "small"), "max_hosts: at most 4", Reason.SCALING_LIMITED, "Warning", "max_hosts"),
        (LeaseHost("h9", "small"), "budget: at most 4", Reason.SCALING_LIMITED, "Warning", "budget"),
        (LeaseHost("h9", "small"), "stabilization_down: wait", Reason.SCALING_LIMITED, "Normal", "stabilization_down"),
        (DrainHost("h1"), UNKNOWN, Reason.SCALING_VETOED, "Warning", ""),
    ],
)
def test_a_refusal_by_a_rule_names_it_and_any_other_is_a_veto(action, why, reason, kind, about):
    (event,) = EventBook().decided(decision(refused=[(action, why)]))
    assert (event.reason, event.type) == (reason, kind)
    assert not about or (event.about, event.message) == (about, f"{why} ({action.describe()})")


def test_what_the_plant_refuses_is_a_veto():
    outcome = (LeaseHost("h2", "small"), Status.FAILED, "no quota")
    assert said(EventBook().decided(decision(done=[outcome]))) == [(Reason.SCALING_VETOED, "lease h2 (small): no quota")]


def test_what_keeps_nothing_from_being_done_is_no_event():
    refused = [
        (LeaseHost("h2", "small"), "it is under way already"),
        (LeaseHost("h3", "small"), "the plan has it already"),
        (LeaseHost("h4", "small"), "observe only"),
        (MoveTask(TaskId("count", 0), "h9"), "host h9 takes no tasks"),
    ]
    assert EventBook().decided(decision(refused=refused)) == []


def test_a_decision_with_its_effect_is_not_counted_again():
    book, round_ = EventBook(), decision(done=[(LeaseHost("h2", "small"), Status.ACCEPTED)])
    assert book.decided(round_)
    assert book.decided(round_.with_actual({"cost": 1.0})) == []


@pytest.mark.parametrize(
    "why", ["9 are needed for 900/s", "h1, h2 overloaded", "7 are wanted", "throughput is below the goal"]
)
def test_a_policy_that_needs_more_than_max_hosts_is_a_warning(why):
    note = f"{at_most(4)}, and {why}"
    (event,) = EventBook().decided(decision(note=note))
    assert (event.reason, event.about, event.type, event.message) == (Reason.SCALING_LIMITED, "max_hosts", "Warning", note)


@pytest.mark.parametrize("note", [NO_HELP, HALF_HELP])
def test_hosts_that_did_not_help_are_ineffective_scaling(note):
    (event,) = EventBook().decided(decision(note=f"1 observation skipped; {note}: 2 cores processed 10/s"))
    assert (event.reason, event.message) == (Reason.INEFFECTIVE_SCALING, f"{note}: 2 cores processed 10/s")


def test_undone_decision_is_an_event_each_time():
    book, note = EventBook(), f"{ROLLED_BACK}round 12 (drain h3): records take 9.0 s, not the predicted 1.0 s"
    events = [event for time in (0.0, 60.0) for event in book.decided(decision(time, note=note))]
    assert [(each.reason, each.type) for each in events] == [(Reason.ROLLED_BACK, "Warning")] * 2
    assert events[0].message.startswith("round 12 (drain h3): records take")


def test_metrics_unknown_for_several_rounds_count_as_missing():
    lacked = Unknown(Metric.BUSY_CORES, Rows.OPERATOR, "count", rounds=2)
    book = EventBook()
    assert book.decided(decision(60.0, unknown=(lacked,))) == []
    (event,) = book.decided(decision(62.0, unknown=(replace(lacked, rounds=3),)))
    assert (event.reason, event.about) == (Reason.METRICS_MISSING, "operator/count/busy_cores")


def test_faults_and_switches_and_pauses_are_events():
    book = EventBook()
    found = book.decided(
        decision(
            mode="paused",
            done=[(SwitchAlternate("words", "fast"), Status.DONE)],
            faults=(Fault("policy", "policy failed"),),
        )
    )
    assert [event.reason for event in found] == [Reason.PAUSED, Reason.SWITCHED, Reason.FAULT]
    assert [event.reason for event in book.decided(decision(2.0))] == [Reason.UNPAUSED]


def test_a_host_is_lost_where_nobody_gave_it_back():
    plant, book = FakePlant(hosts=3), EventBook()
    book.observed(plant.observe())
    plant.lose("h2")
    plant.apply(ReleaseHost("h3"))
    book.decided(decision(done=[(ReleaseHost("h3"), Status.ACCEPTED)]))
    plant.clock.advance(10.0)
    assert said(book.observed(plant.observe())) == [(Reason.HOST_LOST, "host h2 was lost")]
    assert book.observed(plant.observe()) == []


def test_a_host_that_never_came_is_told_from_one_that_was_lost():
    plant, book = FakePlant(hosts=1), EventBook()
    plant.apply(LeaseHost("h2", "small"))
    book.observed(plant.observe())
    plant.lose("h2")
    assert said(book.observed(plant.observe())) == [(Reason.HOST_LOST, "host h2 was requested and never came up")]


def test_a_refused_request_is_an_event():
    plant = FakePlant(hosts=1)
    plant.apply(LeaseHost("h2", "small"))
    seen = plant.observe()
    leases = {**seen.leases, "h2": replace(seen.leases["h2"], refused=True, note="no quota")}
    (event,) = EventBook().observed(replace(seen, leases=leases))
    assert (event.reason, event.message) == (Reason.HOST_REFUSED, "a request for h2 (small) is refused for now: no quota")


def test_an_alarm_is_raised_and_cleared_once():
    seen, book = FakePlant().observe(), EventBook()
    alarmed = replace(seen, alarms=(Alarm("mover", "thread died", 1.0),))
    assert said(book.observed(alarmed)) == [(Reason.ALARM_RAISED, "thread died")]
    assert book.observed(alarmed) == []
    assert said(book.observed(seen)) == [(Reason.ALARM_CLEARED, "mover recovered (was: thread died)")]


def test_what_repeats_is_counted_and_sent_again_after_a_while():
    book = EventBook()

    def limited(at, host):
        return book.decided(decision(at, refused=[(LeaseHost(host, "small"), "max_hosts: at most 4")]))

    assert len(limited(0.0, "h5")) == 1
    assert [limited(at, "h5") for at in (2.0, 4.0)] == [[], []]
    assert len(book.decided(decision(4.0, refused=[(LeaseHost("h5", "small"), "budget: no")]))) == 1, "another rule"
    (again,) = limited(REPEAT_INTERVAL_S, "h5")
    assert (again.count, again.since) == (3, 0.0)


def test_what_was_sent_long_ago_is_forgotten():
    book = EventBook()
    for number in range(1, 200):
        lacked = Unknown(Metric.CPU, Rows.HOST, f"h{number}", rounds=3)
        for at in (0.0, 1.0):  # the second is not sent, and waits to be counted with the next
            assert len(book.decided(decision(number * 3600.0 + at, unknown=(lacked,)))) == (at == 0.0)
    assert len(book._history) <= 25


def test_every_reason_has_a_type():
    assert {types_of(reason)[0] for reason in Reason} == {"Normal", "Warning"}


class Grows:
    name = "grows"

    def plan(self, observation, memory=None):
        return Plan((LeaseHost(observation.host_name(), "small"),))


def test_a_run_writes_json_lines_and_logs(tmp_path, caplog):
    path = tmp_path / "sub" / "events.jsonl"
    sunk = []
    with caplog.at_level(logging.INFO, "elastream.events"):
        observers = [EventLog(path, sinks=[sunk.append])]
        Loop(FakePlant(), Grows(), limit=8.0, observers=observers, scaling=ScalingRules(max_hosts=2)).run()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["reason"] for line in lines] == ["RunStarted", "ScaledUp", "ScalingLimited", "RunEnded"]
    assert lines[2]["type"] == "Warning"
    assert lines[2]["message"].startswith("max_hosts: at most 2 hosts may be leased")
    assert lines[1]["timestamp"].startswith("1970-01-01T00:00:00.000")
    assert [event.reason for event in sunk] == [line["reason"] for line in lines]
    assert "ScalingLimited: max_hosts" in caplog.text


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    with pytest.raises(EnvironmentProblem, match="events cannot be written to"):
        EventLog(tmp_path)


def test_an_event_as_json_has_the_time_of_the_clock():
    assert RunEvent(1.5, Reason.SCALED_UP, "1 host comes").to_json(86400.0) == {
        "timestamp": "1970-01-02T00:00:01.500+00:00",
        "type": "Normal",
        "reason": "ScaledUp",
        "message": "1 host comes",
        "about": "",
        "count": 1,
        "seconds": 1.5,
    }
