"""Roll-back: when a decision is bad, what undoes it, and for how long it is refused."""

import math
from statistics import NormalDist

import pytest
import rollback as injected
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.control.journal import ActionState, Journal
from elastream.control.loop import Loop
from elastream.control.rollback import (
    BY,
    FIRST_REFUSAL_S,
    ROLLED_BACK,
    TRANSITIONS,
    Evidence,
    RollBack,
    State,
    UsualError,
    next_state,
)
from elastream.core.action import CancelDrain, DrainHost, LeaseHost, ReleaseHost, SwitchAlternate
from elastream.core.hosts import HostState
from elastream.core.plant import Plan, Policy
from elastream.recording.recorder import Collector
from support.fake_plant import FakePlant
from support.property_examples import examples

# Rounds before the decision: enough for a usual error.
CALM = 12
# Records/s of three cores of the fake plant, at 10 ms a record.
FULL = 300.0


class Plant(FakePlant):
    """Fake plant whose draining hosts have moved their work away."""

    def _works(self, host):
        return self._is(host, HostState.RUNNING)


class Deciding(Policy):
    """Plans `actions` by number of the round."""

    name = "deciding"

    def __init__(self, actions, predicted=None, always=()):
        self.actions, self.predicted, self.always = actions, predicted or {}, always

    def plan(self, observation, memory=None):
        number = (memory or 0) + 1
        repeated = self.always if number > max(self.actions, default=0) else ()
        return Plan((*self.actions.get(number, ()), *repeated), number, self.predicted)


def run(policy, plant=None, rounds=40, load=lambda now: 0.8 * FULL, **options):
    """Return the decisions of a run with three hosts, of which the load fills 80 %."""
    plant = plant or Plant(hosts=3)
    plant.arrival_rate = load(0.0)
    clock, sleep = plant.clock, plant.clock.sleep_until

    def sleep_until(time):
        sleep(time)
        plant.arrival_rate = load(clock.now())

    clock.sleep_until = sleep_until
    collector = Collector()
    Loop(plant, policy, monitor=2.0, period=2.0, limit=2.0 * rounds, observers=[collector], **options).run()
    return collector.recording.decisions


def undos(decisions):
    return {
        d.round: tuple(p.action for p in d.proposals if p.by == BY)
        for d in decisions
        if any(p.by == BY for p in d.proposals)
    }


def verdicts(decisions):
    return [d.note for d in decisions if ROLLED_BACK in d.note]


# -- the table ---------------------------------------------------------------------------------------------------------


def states(*evidence):
    state = State.PREDICTED
    for each in evidence:
        state = next_state(state, each)
    return state


WORSE, SAME, UNKNOWN, CHANGED = Evidence.WORSE, Evidence.AS_PREDICTED, Evidence.UNKNOWN, Evidence.CHANGED


@pytest.mark.parametrize(
    ("evidence", "state"),
    [
        ((UNKNOWN, SAME), State.PREDICTED),
        ((Evidence.NOT_IN_FORCE,), State.FAILED),
        ((SAME, Evidence.LASTED), State.GOOD),
        ((Evidence.OVERTAKEN,), State.GOOD),
        ((WORSE,), State.SUSPECTED_1),
        ((WORSE, SAME), State.PREDICTED),
        ((WORSE, WORSE), State.SUSPECTED_2),
        ((WORSE, UNKNOWN, WORSE), State.SUSPECTED_2),
        ((WORSE, WORSE, SAME), State.PREDICTED),
        ((WORSE, CHANGED), State.EXCUSED),
        ((WORSE, WORSE, CHANGED, WORSE), State.EXCUSED),
        ((WORSE, Evidence.OVERTAKEN), State.SUSPECTED_1),
        ((WORSE, WORSE, WORSE), State.SUSPECTED_3),
        ((WORSE, WORSE, WORSE, CHANGED), State.SUSPECTED_3),
        ((WORSE, WORSE, WORSE, Evidence.REVERSED), State.UNDONE),
        ((WORSE, WORSE, WORSE, Evidence.NO_UNDO), State.KEPT),
    ],
)
def test_three_rounds_in_a_row_make_a_decision_bad(evidence, state):
    assert states(*evidence) is state


def test_every_state_is_reached_and_ends():
    reached = {State.PREDICTED}.union(*(set(following.values()) for following in TRANSITIONS.values()))
    assert reached == set(TRANSITIONS) == set(State)
    assert {state for state in State if not TRANSITIONS[state]} == {
        State.GOOD, State.EXCUSED, State.FAILED, State.UNDONE, State.KEPT,
    }  # fmt: skip


def test_usual_error_is_unknown_before_some_errors():
    error = UsualError(0.1, 0.5)
    for each in (1.0, math.nan, 1.0, 1.0, 1.0):
        error.add(each, 1.0)
    assert error.bound == math.inf
    error.add(1.0, 1.0)
    assert error.bound == pytest.approx(math.log(1.1))


def test_usual_error_is_three_deviations_of_earlier_ones():
    error = UsualError(0.0, 0.5)
    for each in NormalDist(0.0, 0.02).samples(100, seed=1):
        error.add(math.exp(each), 1.0)
    assert error.bound == pytest.approx(0.06, rel=0.2)


# -- undo --------------------------------------------------------------------------------------------------------------


def test_drain_that_makes_records_late_is_cancelled():
    decisions = run(Deciding({CALM: (DrainHost("h3"), DrainHost("h2"))}))
    (at, actions), *_ = undos(decisions).items()
    assert at <= CALM + 5
    assert set(actions) == {CancelDrain("h2"), CancelDrain("h3")}
    (note,) = verdicts(decisions)
    assert f"round {CALM} (drain h3, drain h2): records take" in note
    assert decisions[-1].actual["hosts_usable"] == 3


def test_released_host_is_leased_again():
    actions = {CALM: (DrainHost("h3"), DrainHost("h2")), CALM + 1: (ReleaseHost("h3"), ReleaseHost("h2"))}
    decisions = run(Deciding(actions), rounds=60)
    (_, undo), *_ = undos(decisions).items()
    assert undo == (LeaseHost("h4", "small"), LeaseHost("h5", "small"))
    assert decisions[-1].actual["hosts_usable"] == 3


def test_same_action_is_refused_after_its_undo():
    decisions = run(Deciding({CALM: (DrainHost("h2"), DrainHost("h3"))}, always=(DrainHost("h3"),)), rounds=40)
    refused = decisions[-1].proposals[-1].refused
    assert refused.startswith("undone at")
    assert decisions[-1].actual["hosts_usable"] == 3


def test_predicted_lateness_is_not_worse():
    policy = Deciding({CALM: (DrainHost("h3"), DrainHost("h2"))}, {"latency_p99": 100.0})
    assert not undos(run(policy))


def test_policy_that_acts_itself_is_not_corrected():
    late = {CALM: (DrainHost("h3"), DrainHost("h2")), CALM + 2: (CancelDrain("h3"), CancelDrain("h2"))}
    assert not undos(run(Deciding(late)))


def test_nothing_is_undone_while_paused():
    decisions = run(Deciding({CALM: (DrainHost("h3"), DrainHost("h2"))}), observe_only=True)
    assert not undos(decisions)


def test_unknown_latency_undoes_nothing():
    class Silent(Plant):
        def observe(self):
            observation = super().observe()
            object.__setattr__(observation, "application", type(observation.application)())
            object.__setattr__(observation, "operators", type(observation.operators)(observation.operators.ids))
            return observation

    assert not undos(run(Deciding({CALM: (DrainHost("h3"), DrainHost("h2"))}), Silent(hosts=3)))


@pytest.mark.parametrize("factor", [1.3, 2.0])
def test_load_that_rises_after_a_drain_excuses_it(factor):
    def load(now):
        return 0.6 * FULL * (factor if now > 2.0 * (CALM + 1) else 1.0)

    assert not undos(run(Deciding({CALM: (DrainHost("h3"),)}), load=load))


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 15), st.floats(0.1, 3.0)), min_size=1, max_size=6),
    st.integers(1, 30),
    st.integers(1, 2),
)
def test_load_changes_never_lead_to_an_undo(levels, at, going):
    """A drain leaves room for 5 % more than the load of its round, whatever the load does before and after."""
    rounds = [level for length, level in levels for _ in range(length)]
    hosts = 8

    def load(now):
        return 100.0 * rounds[min(int(now / 2.0), len(rounds) - 1)]

    class Drains(Policy):
        name = "drains"

        def plan(self, observation, memory=None):
            number = (memory or 0) + 1
            left = len(observation.usable) - going
            suits = (
                number >= at and left >= 1 and observation.backlog <= 0 and 1.05 * load(observation.time) <= 100.0 * left
            )
            return Plan(tuple(DrainHost(host) for host in observation.usable[:going]) if suits else (), number)

    assert not undos(run(Drains(), Plant(hosts=hosts, max_hosts=20), rounds=60, load=load))


# -- refusals ----------------------------------------------------------------------------------------------------------


def undone(journal, action, at):
    entry = journal.step(journal.grant(action, "p", at), ActionState.TRIED, at)
    entry = journal.step(entry, ActionState.DONE, at)
    journal.step(entry, ActionState.UNDONE, at, "late")


@pytest.mark.parametrize(
    ("times", "until"),
    [
        ((0.0,), FIRST_REFUSAL_S),
        ((0.0, 310.0), 310.0 + 2 * FIRST_REFUSAL_S),
        ((0.0, 310.0, 1000.0), 1000.0 + 4 * FIRST_REFUSAL_S),
        ((0.0, 601.0), 601.0 + FIRST_REFUSAL_S),
    ],
)
def test_refusal_doubles_and_survives_a_resumed_run(tmp_path, times, until):
    journal, action = Journal(tmp_path / "journal.jsonl"), SwitchAlternate("words", "split_fast")
    for at in times:
        undone(journal, action, at)
    rollback, plant = RollBack(Journal(tmp_path / "journal.jsonl").entries), FakePlant()
    plant.clock.advance(until - 1.0)
    assert rollback.refusal(action, plant.observe()).endswith(f"refused until {until:.0f} s: late")
    assert not rollback.refusal(SwitchAlternate("words", "split"), plant.observe())
    plant.clock.advance(1.0)
    assert not rollback.refusal(action, plant.observe())


def test_lease_of_another_type_replaces_a_refused_one():
    journal = Journal()
    undone(journal, LeaseHost("h9", "small"), 0.0)
    decisions = run(Deciding({3: (LeaseHost("h4", "small"),)}), journal=journal, rounds=6)
    (mine, theirs) = decisions[2].proposals
    assert (mine.action, mine.by, mine.refused) == (LeaseHost("h5", "big"), BY, "")
    assert theirs.refused


def test_journal_holds_what_was_undone(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    run(Deciding({CALM: (DrainHost("h3"), DrainHost("h2"))}), journal=journal)
    states = {entry.action: (entry.by, entry.state) for entry in Journal(tmp_path / "journal.jsonl").entries}
    assert states[DrainHost("h3")] == ("deciding", ActionState.UNDONE)
    assert states[CancelDrain("h3")] == (BY, ActionState.DONE)


# -- in the simulator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("kind", "chained"),
    [("slow type", False), ("slow type", True), ("wrong cost", False), ("wrong cost", True), ("lost link", False)],
)
def test_injected_decision_is_undone_if_bad(kind, chained, seed):
    assert injected.inject(injected.Case(kind, seed, True, chained)) <= injected.WITHIN_ROUNDS
    assert injected.inject(injected.Case(kind, seed, False, chained)) == math.inf
