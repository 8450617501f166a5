"""The loop against the fake plant, in fake time: no test sleeps, none looks at the machine's clock."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.control.arbitration import arbitrate
from elastream.control.journal import ActionState, Journal
from elastream.control.loop import Loop
from elastream.core.action import (
    LeaseHost,
    MoveTask,
    Outcome,
    ReleaseHost,
    SetParallelism,
    Status,
    SwitchAlternate,
)
from elastream.core.decision import Proposal, Unknown
from elastream.core.frames import Frame
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import MicroBatch
from elastream.core.plant import Plan
from elastream.core.task_id import TaskId
from elastream.errors import EnvironmentProblem
from elastream.policies.threshold import Threshold
from elastream.recording.recorder import Collector
from support.fake_plant import FakePlant
from support.property_examples import examples


class Scripted:
    """A policy that plans what the script has for the round: actions, or a whole plan; an exception in it is raised."""

    name = "scripted"

    def __init__(self, *plans, always=()):
        self.plans = list(plans)
        self.always = always
        self.asked = []

    def plan(self, observation, memory=None):
        self.asked.append(observation.time)
        plan = self.plans.pop(0) if self.plans else self.always
        if isinstance(plan, Exception):
            raise plan
        return Plan(tuple(plan)) if isinstance(plan, list | tuple) else plan


class Broken(FakePlant):
    """A plant whose parts fail as told."""

    def __init__(self, *, observe=None, apply=None, **options):
        super().__init__(**options)
        self.observing, self.applying = observe, apply

    def observe(self):
        if self.observing and (error := self.observing(self)):
            raise error
        return super().observe()

    def apply(self, action):
        answer = self.applying(action) if self.applying else None
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            self.applied.append(action)
            return answer
        return super().apply(action)

    def switch(self, switches):
        return tuple(map(self.apply, switches)) if self.applying else super().switch(switches)


def run(plant, policy, *, limit=20.0, **options):
    collector = Collector()
    ending = Loop(plant, policy, limit=limit, observers=[collector], **options).run()
    return ending, collector.recording


def refusals(recording):
    return [proposal.refused for decision in recording.decisions for proposal in decision.proposals if proposal.refused]


def notes(recording):
    return " | ".join(decision.note for decision in recording.decisions if decision.note)


def test_it_observes_each_monitoring_period_and_plans_each_planning_period():
    policy = Scripted()
    _, recording = run(FakePlant(), policy, limit=10.0, monitor=1.0, period=3.0)
    assert recording.times.tolist() == [float(second) for second in range(11)]
    assert policy.asked == [0.0, 3.0, 6.0, 9.0]


def test_it_ends_when_the_load_is_done_and_closes_the_plant():
    plant = FakePlant(time_limit=5.0)
    ending, recording = run(plant, Scripted())
    assert (ending.status, ending.time) == ("finished", 5.0)
    assert plant.closed
    assert not any(lease.active for lease in ending.ledger)
    assert recording.ending == ending


def test_a_limit_counts_from_the_start_of_the_loop():
    plant = FakePlant()
    plant.clock.advance(100.0)
    ending, _ = run(plant, Scripted(), limit=5.0)
    assert (ending.status, ending.time, ending.reason) == ("stopped", 105.0, "its limit of 5 s was reached")


def test_it_can_be_stopped_from_outside():
    plant = FakePlant()
    loop = Loop(plant, Scripted(), limit=100.0)
    plant.clock._on_sleep = lambda now: loop.stop("enough") if now >= 7 else None
    ending = loop.run()
    assert (ending.status, ending.reason, ending.time) == ("stopped", "enough", 7.0)


def test_an_interrupt_from_the_keyboard_ends_it_in_order():
    def interrupted(plant):
        return KeyboardInterrupt() if plant.clock.now() >= 3 else None

    plant = Broken(observe=interrupted)
    ending, recording = run(plant, Scripted())
    assert (ending.status, ending.reason) == ("stopped", "interrupted from the keyboard")
    assert plant.closed
    assert recording.ending == ending


def test_what_a_policy_plans_is_done_and_recorded_with_its_reason():
    plant = FakePlant()
    _, recording = run(plant, Scripted([LeaseHost("h2", "small", why="load"), SetParallelism("source", 2)]))
    first = recording.decisions[0]
    assert [(p.action, p.by, p.refused) for p in first.proposals] == [
        (LeaseHost("h2", "small"), "scripted", ""),
        (SetParallelism("source", 2), "scripted", ""),
    ]
    assert [outcome.status for outcome in first.outcomes] == [Status.ACCEPTED, Status.DONE]
    assert first.headline() == "lease h2 (small) (load); source x 2"
    assert first.seen["hosts_usable"] == 1.0


def test_what_was_predicted_stands_beside_what_then_was():
    plant = FakePlant()
    plan = Plan((LeaseHost("h2", "small"),), predicted={"hosts_usable": 2.0, "luck": 1})
    _, recording = run(plant, Scripted(plan), limit=10.0, period=5.0)
    first, second, *_ = recording.decisions
    assert first.predicted == {"hosts_usable": 2.0, "luck": 1.0}
    assert first.actual["hosts_usable"] == 2.0
    assert first.actual["luck"] != first.actual["luck"], "nobody measures that: unknown"
    assert second.round == 2


def test_refusals_inside_a_policy_are_recorded_by_name_and_never_done():
    plant = FakePlant()
    inner = Proposal(SetParallelism("source", 3), "operator manager of source", "application manager: no token is left")
    unsaid = Proposal(LeaseHost("h9", "small"), "region manager of east")
    plan = Plan((LeaseHost("h2", "small"),), refused=(inner, unsaid), remarks=("every host is full",))
    _, recording = run(plant, Scripted(plan))
    assert plant.applied == [LeaseHost("h2", "small")]
    first = recording.decisions[0]
    assert first.proposals[1:] == (inner, Proposal(unsaid.action, unsaid.by, "it was not granted"))
    assert first.note == "every host is full"
    assert recording.decisions[1].note == ""


class Counting:
    """A policy that remembers in how many rounds it planned; it fails in some."""

    name = "counting"

    def __init__(self, fails=()):
        self.fails = fails

    def plan(self, observation, memory=None):
        if observation.time in self.fails:
            raise ValueError("no plan today")
        count = (memory or 0) + 1
        return Plan((), count, remarks=(f"round {count}",))


def test_a_policy_gets_its_memory_back_even_after_a_failure():
    _, recording = run(FakePlant(), Counting(fails=(2.0,)), limit=6.0)
    assert [decision.note for decision in recording.decisions][0::2] == ["round 1", "round 2"]
    assert "ValueError: no plan today" in recording.decisions[1].note


def test_a_dry_run_records_what_it_would_have_done_and_does_nothing():
    plant = FakePlant()
    _, recording = run(plant, Scripted(always=[LeaseHost("h2", "small"), LeaseHost("h2", "small")]), observe_only=True)
    assert plant.applied == []
    assert set(refusals(recording)) == {"observe only", "the plan has it already"}
    assert plant.ledger[0].host == "h1"
    assert len(plant.ledger) == 1


LEASE = LeaseHost("h2", "small")


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, "plan() returned None; it returns a Plan, such as Plan((LeaseHost('h2', 'small'),))"),
        (Plan([LEASE]), f"actions is {[LEASE]!r}, not a tuple"),
        (Plan((LEASE, "lease one more")), "actions holds 'lease one more', which is not an action"),
        (
            Plan((SetParallelism("source", "3"),)),
            "source', instances='3', on=(), without=(), why=''): field 'instances' is '3', not a whole number",
        ),
        (Plan((SetParallelism("source", 2, on=["h1"]),)), "field 'on' is ['h1'], not a tuple of texts"),
        (Plan((MoveTask("count#1", "h1"),)), "field 'task' is 'count#1', not a TaskId of a text and a whole number"),
        (Plan((LEASE,), predicted={"hosts": "2"}), "predicted is {'hosts': '2'}; it maps names to numbers"),
        (Plan((LEASE,), remarks="full"), "remarks is 'full', not a tuple"),
        (Plan((LEASE,), refused=(LEASE,)), "each is a Proposal"),
        (
            Plan((LEASE,), unknown=("latency",)),
            "unknown holds 'latency'; each is an Unknown, with a metric and the rows that lack it",
        ),
    ],
)
def test_what_is_no_plan_is_one_sentence_and_changes_nothing(returned, sentence):
    plant = FakePlant()
    _, recording = run(plant, Scripted(returned), limit=1.0)
    assert plant.applied == []
    note = recording.decisions[0].note
    assert note.startswith("policy scripted failed, none of its actions was tried: TypeError: ")
    assert note.endswith(sentence)
    assert "\n" not in note


def test_a_lacking_metric_is_shown_from_the_third_round_after_30_s():
    lacking = Plan(unknown=(Unknown(Metric.PROCESSED_RATE, Rows.OPERATOR, "clicks"),))
    _, recording = run(FakePlant(), Scripted(*[lacking] * 17, Plan(), *[lacking] * 3), limit=41.0)
    said = "cannot size: processed rate of 'clicks' unknown for "
    assert [decision.headline() for decision in recording.decisions] == [
        *[""] * 15,
        *(f"{said}30 s", f"{said}32 s"),
        *("", "", "", f"{said}4 s"),
    ]


def test_a_policy_that_raises_leaves_its_traceback_in_log_and_record(caplog):
    _, recording = run(FakePlant(), Scripted(ValueError("no plan today")), limit=2.0)
    (fault,) = recording.decisions[0].faults
    assert (fault.source, fault.said) == (
        "policy scripted",
        "policy scripted failed, none of its actions was tried: ValueError: no plan today",
    )
    assert fault.traceback.startswith("Traceback")
    assert "raise plan" in fault.traceback
    assert "raise plan" in caplog.text
    assert recording.decisions[0].note == fault.said


def test_a_policy_that_keeps_failing_sounds_an_alarm_until_it_recovers():
    _, recording = run(FakePlant(), Scripted(*[RuntimeError("broken")] * 4), limit=12.0)
    said = "policy scripted failed {} times in a row; no new actions"
    loud = [decision.note.partition("broken; ")[2] for decision in recording.decisions]
    assert loud == ["", "", said.format(3), said.format(4), "", ""]
    ((alarm, cleared),) = recording.alarms
    assert (alarm.source, alarm.said, alarm.since, cleared) == ("policy scripted", said.format(3), 4.0, 9.0)
    assert "RuntimeError: broken" in alarm.traceback


def test_an_action_under_way_is_not_requested_again_until_in_force():
    plant = FakePlant()
    _, recording = run(plant, Scripted(always=[LeaseHost("h2", "small")]))
    assert plant.applied == [LeaseHost("h2", "small")]
    assert refusals(recording)[0] == "it is under way already"
    assert refusals(recording)[-1] == "host h2 is leased already"


def test_a_failing_action_is_retried_with_growing_pauses_and_then_given_up():
    tries = []

    def failing(action):
        return Outcome(action, Status.FAILED, "the provider is down")

    plant = Broken(apply=failing)
    original = plant.apply
    plant.apply = lambda action: (tries.append(plant.clock.now()), original(action))[1]
    _, recording = run(plant, Scripted(always=[LeaseHost("h2", "small")]), limit=200.0, period=1.0)
    assert tries == [0.0, 2.0, 6.0, 14.0, 30.0]
    assert "given up until 630 s: it failed 5 times in a row, last: the provider is down" in refusals(recording)[-1]


def test_a_plant_that_raises_in_apply_has_failed_at_that_action_only():
    plant = Broken(apply=lambda action: RuntimeError("lost connection") if isinstance(action, LeaseHost) else None)
    _, recording = run(plant, Scripted([LeaseHost("h2", "small"), SetParallelism("source", 2)]), limit=2.0)
    statuses = [(outcome.status, outcome.reason) for outcome in recording.decisions[0].outcomes]
    assert statuses == [(Status.FAILED, "RuntimeError: lost connection"), (Status.DONE, "")]
    (fault,) = recording.decisions[0].faults
    assert fault.said == "lease h2 (small) raised RuntimeError: lost connection"
    assert "raise answer" in fault.traceback


def test_an_accepted_action_that_never_comes_into_force_has_failed():
    plant = Broken(apply=lambda action: Outcome(action, Status.ACCEPTED))
    journal = Journal()
    _, recording = run(plant, Scripted([SwitchAlternate("words", "split_fast")]), limit=140.0, journal=journal)
    assert journal.entries[0].state is ActionState.FAILED
    assert "words as split_fast failed: it did not come into force within 120 s" in notes(recording)


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("", "host h2 was lost"),
        ("its worker was killed; the end of h2.log: no more", "host h2 was lost: its worker was killed"),
    ],
)
def test_the_round_after_a_host_was_lost_says_so_and_why(why, said):
    plant = FakePlant(hosts=2)
    plant.clock._on_sleep = lambda now: plant.lose("h2", why) if now == 3.0 else None
    _, recording = run(plant, Scripted(), limit=8.0)
    assert notes(recording) == said


def test_why_a_host_was_lost_on_its_way_up_is_said_once():
    plant = FakePlant()
    plant.clock._on_sleep = lambda now: plant.lose("h2", "it was not warm within 90 s") if now == 3.0 else None
    _, recording = run(plant, Scripted([LeaseHost("h2", "small")]), limit=8.0)
    assert notes(recording) == "lease h2 (small) failed: host h2 was lost: it was not warm within 90 s"


def test_growing_lateness_without_a_proposal_is_reported_once_after_30_s():
    plant = FakePlant(hosts=2, max_hosts=9)
    plant.arrival_rate = 1e6
    _, recording = run(plant, Scripted(always=[MoveTask(TaskId("count", 0), "h2")]), limit=60.0)
    said = {each.time: each.note for each in recording.decisions if each.note}
    assert min(said) >= 30.0
    assert {note.partition(": ")[2] for note in said.values()} == {"scripted proposes nothing"}


@pytest.mark.parametrize(
    ("waits", "says"),
    [
        (lambda second: 1000 + 10 * second, True),
        (lambda second: 5000 - 2 * second + 20 * (second % 50), False),  # batches of 50 s: it falls from one to the next
        (lambda second: 1000 + 2 * second + 20 * (second % 50), True),
        (lambda second: 1000 + 20 * (second % 3), False),
    ],
)
def test_growing_lateness_goes_by_the_fewest_records_that_wait(waits, says):
    plant = FakePlant(hosts=2, max_hosts=9)
    seen, loop, said = plant.observe(), Loop(plant, Scripted()), []
    late = Frame(seen.application.ids, {Metric.LATENCY_P99: [99.0]})
    for second in range(0, 400, 2):
        operators = Frame(
            seen.operators.ids, {Metric.BACKLOG: [float(waits(second)), *[0.0] * (len(seen.operators.ids) - 1)]}
        )
        batches = [MicroBatch("s", second - 50.0, 50.0, 10.0)] if second % 50 == 0 else []
        now = replace(seen, time=float(second), operators=operators, application=late, batches=tuple(batches))
        said.append(bool(loop._unanswered_lateness(now, Plan())))
    assert any(said) is says
    assert not any(said[:14])


def test_what_happened_to_a_plant_is_said_with_the_next_round():
    plant = FakePlant(hosts=2)
    happened = ["executor 2 of h2 was lost (it was killed)"]
    plant.incidents = lambda: [happened.pop()] if happened and plant.clock.now() >= 3.0 else []
    _, recording = run(plant, Scripted(), limit=8.0)
    assert notes(recording) == "executor 2 of h2 was lost (it was killed)"


def test_of_a_host_that_was_given_back_nothing_is_said():
    _, recording = run(FakePlant(hosts=2), Scripted([ReleaseHost("h2")]), limit=8.0)
    assert notes(recording) == ""


def test_a_later_action_about_the_same_thing_overtakes_one_under_way():
    journal = Journal()
    run(FakePlant(), Scripted([LeaseHost("h2", "small")], [ReleaseHost("h2")]), journal=journal, limit=10.0)
    assert [entry.state for entry in journal.entries] == [ActionState.DROPPED, ActionState.DONE]
    assert journal.entries[0].reason == "overtaken by 'release h2'"


def test_what_an_earlier_controller_left_is_applied_again_or_dropped(tmp_path):
    before = Journal(tmp_path / "journal.jsonl")
    for action in (LeaseHost("h2", "small"), MoveTask(TaskId("count", 0), "h9")):
        before.step(before.grant(action, "threshold", 1.0), ActionState.TRIED, 1.0)
    plant, journal = FakePlant(), Journal(tmp_path / "journal.jsonl")
    _, recording = run(plant, Scripted(), journal=journal, limit=8.0)
    assert plant.applied == [LeaseHost("h2", "small")]
    assert [entry.state for entry in journal.entries] == [ActionState.DONE, ActionState.DROPPED]
    assert {p.by for p in recording.decisions[0].proposals} == {"journal"}
    assert Journal(tmp_path / "journal.jsonl").unconcluded == ()


def test_each_action_is_journaled_before_the_plant_is_asked(tmp_path):
    path = tmp_path / "journal.jsonl"
    found = []
    plant = Broken(apply=lambda action: found.append(path.read_text()))
    run(plant, Scripted([LeaseHost("h2", "small")]), journal=Journal(path), limit=1.0)
    assert '"state":"tried"' in found[0]
    assert '"host":"h2"' in found[0]


def test_a_journal_on_a_full_disk_freezes_the_plan_until_there_is_room(tmp_path):
    plant, journal = FakePlant(), Journal(tmp_path / "journal.jsonl")
    kept = journal._lines._file
    journal._lines._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115

    def room(now):
        if now >= 9.0:
            journal._lines._file = kept

    plant.clock._on_sleep = room
    ending, recording = run(plant, Scripted(always=[LeaseHost("h2", "small")]), journal=journal)
    assert ending.status == "stopped"
    assert plant.applied == [LeaseHost("h2", "small")]
    tried = [(d.time, o.reason) for d in recording.decisions for o in d.outcomes]
    assert [reason for at, reason in tried if at < 9.0] == ["the journal cannot be written"] * len(
        [at for at, _ in tried if at < 9.0]
    )
    ((alarm, cleared),) = recording.alarms
    assert (alarm.source, "no action is tried until it can be" in alarm.said) == ("journal", True)
    assert 9.0 <= cleared <= 12.0
    states = [entry.state for entry in Journal(tmp_path / "journal.jsonl").entries]
    assert states == [ActionState.FAILED, ActionState.DONE], "what could not be written was written later"


def test_an_observer_that_raises_receives_no_more_and_an_alarm_stands():
    class Grumpy(Collector):
        def observed(self, observation):
            raise ZeroDivisionError("not again")

    collector, grumpy = Collector(), Grumpy()
    ending = Loop(FakePlant(time_limit=5.0), Scripted(), observers=[grumpy, collector]).run()
    assert ending.status == "finished"
    said = "Grumpy failed and receives no more events: ZeroDivisionError: not again"
    first = collector.recording.decisions[0]
    assert said in first.note
    assert [(fault.source, fault.said) for fault in first.faults] == [("observer Grumpy", said)]
    ((alarm, cleared),) = collector.recording.alarms
    assert (alarm.said, cleared) == (said, None)
    assert grumpy.recording.ending is None


def test_a_plan_that_takes_long_skips_rounds_instead_of_queueing_them():
    plant = FakePlant()

    class Slow(Scripted):
        def plan(self, observation, memory=None):
            if not self.asked:
                plant.clock.advance(5.5)
            return super().plan(observation, memory)

    policy = Slow()
    _, recording = run(plant, policy, limit=13.0, monitor=1.0, period=2.0)
    assert "5 observations skipped" in notes(recording)
    assert recording.times.tolist() == [0.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0]
    assert policy.asked == [0.0, 6.0, 8.0, 10.0, 12.0]
    assert "2 planning rounds skipped" in notes(recording)
    assert recording.decisions[0].seconds == 5.5


@pytest.mark.parametrize("error", [OSError("no answer"), EnvironmentProblem("no answer")])
def test_an_unobservable_plant_freezes_the_plan_and_an_alarm_stands(error):
    plant = Broken(observe=lambda plant: error if 3.0 <= plant.clock.now() < 30.0 else None)
    policy = Scripted()
    ending, recording = run(plant, policy, limit=60.0)
    assert ending.status == "stopped"
    assert not [at for at in policy.asked if 3.0 <= at < 30.0]
    assert policy.asked[-1] > 50.0
    ((alarm, cleared),) = recording.alarms
    assert "10 observations in a row failed, queries continue under the last plan" in alarm.said
    assert (alarm.since, cleared) == (12.0, 30.0)


def test_a_query_that_has_failed_ends_the_run_with_its_sentence():
    class Failed(FakePlant):
        @property
        def finished(self):
            if self.clock.now() >= 2.0:
                raise EnvironmentProblem("operator 'split' failed")
            return False

    ending, _ = run(Failed(), Scripted())
    assert (ending.status, ending.reason) == ("failed", "operator 'split' failed")


def test_a_controller_fault_freezes_the_plan_and_the_next_round_retries(monkeypatch):
    from elastream.control import loop

    def broken(proposals, observation, *more):
        if 4.0 <= observation.time < 9.0:
            raise AssertionError("a bug")
        return arbitrate(proposals, observation, *more)

    monkeypatch.setattr(loop, "arbitrate", broken)
    plant = FakePlant()
    ending, recording = run(plant, Scripted([], [], [], [], [], [LeaseHost("h2", "small")]))
    assert ending.status == "stopped"
    assert plant.applied == [LeaseHost("h2", "small")]
    ((alarm, cleared),) = recording.alarms
    assert (alarm.source, alarm.since) == ("controller", 4.0)
    assert 9.0 <= cleared <= 12.0
    assert "AssertionError: a bug" in alarm.said


def test_a_fault_of_ours_closes_the_plant_and_is_raised():
    plant = FakePlant()
    plant.clock._on_sleep = lambda now: (_ for _ in ()).throw(AssertionError("a bug"))
    watching = Collector()
    with pytest.raises(AssertionError, match="a bug"):
        Loop(plant, Scripted(), observers=[watching]).run()
    assert plant.closed
    assert (watching.recording.ending.status, watching.recording.ending.reason) == ("failed", "AssertionError: a bug")


def test_a_fault_that_repeats_is_logged_with_one_traceback(caplog):
    run(FakePlant(time_limit=8.0), Scripted(always=KeyError("x")))
    failed = [record for record in caplog.records if "none of its actions was tried" in record.message]
    assert len(failed) > 2
    assert [bool(record.exc_info) for record in failed] == [True] + [False] * (len(failed) - 1)


def test_facts_are_requested_once_the_plant_is_closed():
    plant = FakePlant(time_limit=2.0)
    ending = Loop(plant, Scripted(), facts=lambda: {"batches": 3, "closed": plant.closed}).run()
    assert ending.facts == {"batches": 3, "closed": 1}


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.floats(0, 400), min_size=1, max_size=4))
def test_loop_without_figures_decides_alike(rates):
    def decisions(figures):
        plant, decided = FakePlant(hosts=1, arrival_rate=rates[0]), {}

        class Decisions(Collector):
            def decided(self, decision):
                decided[decision.round] = (decision.proposals, decision.outcomes, decision.note, decision.hosts)

        class Load(Threshold):
            def plan(self, observation, memory=None):
                plant.arrival_rate = rates[int(observation.time // 10) % len(rates)]
                return super().plan(observation, memory)

        Loop(plant, Load(), period=2.0, observers=[Decisions()], limit=40, figures=figures).run()
        return plant.applied, decided

    full, bare = decisions(figures=True), decisions(figures=False)
    assert bare[0] == full[0]
    assert repr(bare[1]) == repr(full[1]) != "{}"


class Batched(FakePlant):
    """A plant that commits a micro-batch before each observation."""

    def observe(self):
        batch = MicroBatch("source", self.clock.now() - 0.5, 0.5, 10.0)
        return replace(super().observe(), batches=(batch,))


def test_a_policy_sees_the_batches_of_all_observations_since_its_last_round():
    class Noting(Scripted):
        def plan(self, observation, memory=None):
            seen.append([batch.end for batch in observation.batches])
            return super().plan(observation, memory)

    seen = []
    run(Batched(), Noting(), limit=9.0, monitor=1.0, period=3.0)
    assert seen == [[0.0], [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
