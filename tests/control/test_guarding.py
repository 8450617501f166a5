"""Guards in the loop: what they allow is followed and nothing else is, and a recording says the same again."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.control.extension import required_switches
from elastream.control.guarding import GuardExtension
from elastream.control.journal import ActionState, Journal
from elastream.control.loop import Loop
from elastream.control.replaying import guarding_again
from elastream.core.action import Action, Outcome, Status, SwitchAlternate, SwitchEdge
from elastream.core.guarding import GUARDS, GuardDecision
from elastream.core.observation import Composition, Observation
from elastream.core.plant import Plan
from elastream.dataflow.signals import SignalReading, Signals
from elastream.errors import ElastreamError
from elastream.guards.evaluator import Evaluator
from elastream.guards.subject import Subject
from elastream.recording.guard_log import GuardLog
from elastream.recording.recorder import Collector, Recorder, Recording
from support.fake_plant import FakePlant
from support.property_examples import examples
from support.replayed_guards import standings_again

SIGNALS = "signals: {error: number, peak: truth}\n"
BY_ERROR = SIGNALS + "guards: {words: {split: {when: error < 0.3}, split_fast: {when: error >= 0.3}}}\n"
BY_PEAK = SIGNALS + "guards: {where: {table: {when: '!peak'}, archive: {when: peak}}}\n"
BROKEN = SIGNALS + "guards: {words: {split: {when: eror < 0.3}}}\n"
FAST, SLOW = SwitchAlternate("words", "split_fast"), SwitchAlternate("words", "split")


class Told:
    """External signals that a test tells: readings by name, and when they were taken."""

    def __init__(self, clock: Any, script: dict[float, dict[str, Any]]) -> None:
        self.clock, self.script = clock, script
        self.followed: list[str] = []
        self.fails = False

    def follow(self, signals: Any) -> None:
        self.followed = [signal.name for signal in signals]

    def newest(self) -> Signals:
        if self.fails:
            raise OSError("no answer")
        found: dict[str, SignalReading] = {}
        for at, values in sorted(self.script.items()):
            if at <= self.clock.now():
                found |= {name: SignalReading(value, at) for name, value in values.items()}
        return found

    def close(self) -> None:
        pass


class Planned:
    """A policy that plans what the script has for the round, then nothing."""

    name = "planned"

    def __init__(self, *plans: list[Action]) -> None:
        self.plans = list(plans)

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        return Plan(tuple(self.plans.pop(0)) if self.plans else ())


class Committing(FakePlant):
    """A plant that accepts switches, as one composition, and reports as effective what the last `commit` ran under."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.effective: dict[str, Composition] = {}
        self.together: list[tuple[Action, ...]] = []

    def switch(self, switches: Any) -> tuple[Outcome, ...]:
        self.together.append(tuple(switches))
        version = self._composition.version + 1
        outcomes = super().switch(switches)
        self._composition = replace(self._composition, version=version)
        return tuple(replace(each, status=Status.ACCEPTED) for each in outcomes)

    def commit(self, composition: Composition | None = None) -> None:
        self.effective = {stage.segment: composition or self._composition for stage in self.context.layout.stages}

    def observe(self) -> Observation:
        return replace(super().observe(), effective=self.effective)


def guarded(
    plant: FakePlant, text: str = "", script: dict[float, dict[str, Any]] | None = None
) -> tuple[GuardLog, GuardExtension]:
    log = GuardLog()
    if text:
        log.append(text, "guards.yaml", "test")
    return log, GuardExtension(log, Told(plant.clock, script or {}))


def ran(plant: FakePlant, guarding: GuardExtension, policy: Any = None, limit: float = 10.0, **options: Any) -> Recording:
    collector = Collector()
    Loop(plant, policy or Planned(), extensions=[guarding], limit=limit, observers=[collector], **options).run()
    return collector.recording


def done(recording: Recording) -> list[tuple[float, Action, str]]:
    return [
        (decision.time, outcome.action, next(p.by for p in decision.proposals if p.action == outcome.action))
        for decision in recording.decisions
        for outcome in decision.outcomes
    ]


def test_what_the_guards_allow_is_followed_whatever_the_policy_is() -> None:
    plant = FakePlant()
    _, guarding = guarded(plant, BY_ERROR, {0.0: {"error": 0.1}, 3.0: {"error": 0.4}, 7.0: {"error": 0.2}})
    recording = ran(plant, guarding)
    assert done(recording) == [(3.0, FAST, "guards"), (7.0, SLOW, "guards")], "a round is held at once"
    assert recording.decisions[2].outcomes[0].action.why == (
        "the guard of split is not active (split: when error < 0.3); split_fast may run: when error >= 0.3"
    )


def test_what_is_unknown_leaves_what_runs_and_the_record_says_why() -> None:
    plant = FakePlant()
    _, guarding = guarded(plant, BY_ERROR)
    recording = ran(plant, guarding, Planned([FAST]))
    assert done(recording) == []
    (refused,) = [proposal.refused for decision in recording.decisions for proposal in decision.proposals]
    assert refused == (
        "no guard of words is active: the running variant stays; the guard of split is unknown (error); "
        "the guard of split_fast is unknown (error) (split_fast: when error >= 0.3)"
    )
    assert "error" in recording.standings_at(10.0)["words"].unknown["split"]


def test_a_switch_is_refused_with_the_text_of_its_guard() -> None:
    texts = {"split": "when error < 0.3", "split_fast": "when error > 1"}
    decision = GuardDecision("words", ("split",), {}, {"split_fast": ("error",)}, texts)
    assert decision.refusal("split") == ""
    assert decision.refusal("split_fast") == "the guard of split_fast is unknown (error) (split_fast: when error > 1)"
    assert decision.refusal("other") == "other has no guard among those of words: it may not run"


def test_a_new_version_is_in_force_at_the_next_round_and_recorded() -> None:
    plant = FakePlant()
    log, guarding = guarded(plant, "", {0.0: {"error": 0.1, "peak": True}})
    plant.clock._on_sleep = lambda now: log.append(BY_PEAK, "g.yaml", "test") if now == 3.0 else None
    recording = ran(plant, guarding)
    assert done(recording) == [(3.0, SwitchEdge("where", "archive"), "guards")]
    assert [decision.guards for decision in recording.decisions] == [0, 0, 1, 1, 1, 1]
    assert {p.action for d in recording.decisions[:2] for p in d.proposals} == set()


def test_an_unfit_version_changes_nothing_and_raises_an_alarm() -> None:
    plant = FakePlant()
    log, guarding = guarded(plant, BY_ERROR, {0.0: {"error": 0.1}, 6.0: {"error": 0.9}})

    def later(now: float) -> None:
        if now in (2.0, 8.0):
            log.append(BROKEN if now == 2.0 else BY_PEAK, "g.yaml", "test")

    plant.clock._on_sleep = later
    recording = ran(plant, guarding, limit=12.0)
    ((alarm, cleared),) = recording.alarms
    assert alarm.said == (
        "version 2 of the guards is refused, version 1 stays in force: g.yaml:2:32: guards.words.split.when: there is no "
        "signal or function 'eror', did you mean 'error'?"
    )
    assert (alarm.since, cleared) == (2.0, 8.0)
    assert done(recording) == [(6.0, FAST, "guards")]
    assert [decision.guards for decision in recording.decisions] == [1, 1, 1, 1, 3, 3]


def test_a_next_version_keeps_the_memory_of_equal_expressions() -> None:
    plant = FakePlant()
    held = SIGNALS + "guards: {words: {split: {when: '!peak', value: %s}, split_fast: {when: peak, for: 5s, value: 1}}}\n"
    log, guarding = guarded(plant, held % "0.5", {0.0: {"peak": False}, 2.0: {"peak": True}})
    plant.clock._on_sleep = lambda now: log.append(held % "0.7", "g.yaml", "test") if now == 5.0 else None
    recording = ran(plant, guarding, limit=12.0)
    assert done(recording) == [(7.0, FAST, "guards")], "held since 2 s, not since the version of 5 s"
    assert recording.standings_at(12.0)["words"].values == {"split": 0.7, "split_fast": 1.0}


def test_guards_read_system_metrics_and_dataflow_signals_alike() -> None:
    class Signalling(FakePlant):
        def observe(self) -> Observation:
            seen = super().observe()
            return replace(seen, signals={"error": SignalReading(0.5, seen.time)})

    plant = Signalling(arrival_rate=10.0)
    either = "source.arrival_rate < 5.0 || error < 0.3"
    text = f"{SIGNALS}guards: {{words: {{split: {{when: '{either}'}}, split_fast: {{value: 0.5}}}}}}"
    _, guarding = guarded(plant, text)
    recording = ran(plant, guarding)
    assert done(recording) == [(0.0, FAST, "guards")]
    assert recording.signals_at(10.0) == {
        "source.arrival_rate": SignalReading(10.0, 10.0),
        "error": SignalReading(0.5, 10.0),
    }


def test_unreadable_external_signals_raise_an_alarm_and_the_run_goes_on() -> None:
    plant = FakePlant()
    log = GuardLog()
    log.append(BY_ERROR, "g.yaml", "test")
    source = Told(plant.clock, {0.0: {"error": 0.5}})
    plant.clock._on_sleep = lambda now: setattr(source, "fails", 3.0 <= now < 6.0)
    recording = ran(plant, GuardExtension(log, source))
    ((alarm, cleared),) = recording.alarms
    assert (alarm.source, alarm.since, cleared) == ("external signals", 3.0, 6.0)
    assert set(source.followed) == {"error", "peak"}
    assert done(recording) == [(0.0, FAST, "guards")]


def test_guards_that_fail_leave_in_force_what_they_said_last(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = FakePlant()
    _, guarding = guarded(plant, BY_ERROR, {0.0: {"error": 0.5}})
    update = Evaluator.update

    def failing(self: Evaluator, now: float, readings: Signals) -> Any:
        if now >= 3.0:
            raise ZeroDivisionError("a fault of ours")
        return update(self, now, readings)

    monkeypatch.setattr(Evaluator, "update", failing)
    recording = ran(plant, guarding, Planned([], [], [SLOW]))
    assert "a fault of ours" in recording.alarms[0][0].said
    (refused,) = [proposal.refused for proposal in recording.decisions[2].proposals]
    assert refused == "the guard of split is not active (split: when error < 0.3)"


def test_an_element_for_which_the_plan_has_an_allowed_switch_is_left_to_it() -> None:
    allowed = GuardDecision("words", ("split_fast",), {"split_fast": 1.0}, {}, {"split": "never", "split_fast": "always"})
    seen = replace(FakePlant().observe(), standings={"words": allowed})
    assert required_switches(seen, [FAST], GUARDS) == []
    assert required_switches(seen, [SLOW], GUARDS) == required_switches(seen, [], GUARDS) == [FAST]


# -- switches under way ------------------------------------------------------------------------------------------------


def test_a_plant_that_raises_or_answers_too_little_failed_at_all_switches() -> None:
    for answer in (lambda switches: 1 / 0, lambda switches: ()):
        plant = FakePlant()
        plant.switch = answer  # type: ignore[method-assign, assignment]
        recording = ran(plant, guarded(plant)[1], Planned([FAST, SwitchEdge("where", "archive")]), limit=1.0)
        assert [outcome.status for outcome in recording.decisions[0].outcomes] == [Status.FAILED, Status.FAILED]
        assert recording.decisions[0].faults[0].said.startswith("run words as split_fast and send where to archive raised")


@pytest.mark.parametrize("commits", [{5.0: None}, {3.0: Composition(), 5.0: None}], ids=["first", "after another"])
def test_a_switch_is_under_way_until_a_batch_under_it_is_committed(commits: dict[float, Any]) -> None:
    plant, journal = Committing(), Journal()
    plant.clock._on_sleep = lambda now: plant.commit(commits[now]) if now in commits else None
    recording = ran(plant, guarded(plant)[1], Planned([FAST], [FAST], [FAST], [FAST]), journal=journal)
    assert [(entry.state, entry.history[-1][0]) for entry in journal.entries] == [(ActionState.DONE, 5.0)]
    assert [p.refused for d in recording.decisions for p in d.proposals] == [
        "", "it is under way already", "it is under way already", "it is running already",
    ]  # fmt: skip


def test_a_switch_of_an_idle_query_never_fails_for_want_of_a_batch() -> None:
    plant, journal = Committing(), Journal()
    ran(plant, guarded(plant)[1], Planned([FAST]), journal=journal, limit=400.0)
    assert journal.entries[0].state is ActionState.ACCEPTED


def test_only_the_query_of_the_element_tells_if_a_switch_is_in_effect() -> None:
    plant = Committing()
    plant.switch([FAST])
    query = plant.context.layout.stage_of["words"].segment
    now, before = plant._composition, Composition.default(plant.context.graph)
    for effective, holds in (({}, True), ({query: before}, False), ({query: now}, True), ({"another": now}, False)):
        seen = replace(plant.observe(), effective=effective)
        assert FAST.in_force(seen) is holds
        assert (FAST.progress(seen, {}) is not None) is (holds and bool(effective)), "accepted, so it is reported"


# -- recordings --------------------------------------------------------------------------------------------------------

TEXTS = (
    BY_ERROR,
    SIGNALS
    + "guards: {words: {split: {when: \"avg(error, '3s') < 0.3\"}, split_fast: {on: peak, off: error < 0.1, value: 1}}}",
    SIGNALS + "guards: {words: {split: {when: peak, for: 2s, value: 1}, split_fast: {value: '1.0 - error'}}}",
    SIGNALS + "guards: {where: {table: {when: \"then(peak, error > 0.3, '4s')\", value: 1}, archive: {value: 0.2}}}",
    BROKEN,
)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "error": st.none() | st.sampled_from([0.0, 0.2, 0.4, math.nan, math.inf, "x"]),
        "peak": st.none() | st.booleans(),
    },
)


@given(
    st.lists(st.tuples(st.integers(0, 20), VALUES), max_size=12),
    st.lists(st.tuples(st.integers(1, 20), st.sampled_from(TEXTS)), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=examples(60))
def test_a_recording_gives_the_same_standings_again(told: list[tuple[int, Any]], given_: list[tuple[int, str]]) -> None:
    plant = FakePlant()
    log, guarding = guarded(plant, "", {float(at): values for at, values in told})

    def later(now: float) -> None:
        for at, text in given_:
            if at == now:
                log.append(text, "g.yaml", "test")

    plant.clock._on_sleep = later
    seen: list[tuple[float, Any]] = []

    class Watch(Collector):
        def observed(self, observation: Observation) -> None:
            super().observed(observation)
            seen.append((observation.time, dict(observation.standings)))

    watch = Watch()
    Loop(plant, Planned(), extensions=[guarding], limit=20.0, observers=[watch]).run()
    recording = watch.recording
    assert list(standings_again(recording, log.versions, Subject.recorded(recording.header))) == seen
    assert [recording.standings_at(time) for time, _ in seen] == [standings for _, standings in seen]


def test_a_written_recording_holds_signals_standings_and_what_is_in_effect(tmp_path: Path) -> None:
    plant = Committing()
    _, guarding = guarded(plant, BY_ERROR, {0.0: {"error": 0.1}, 3.0: {"error": 0.5, "peak": True}})
    plant.clock._on_sleep = lambda now: plant.commit()
    Loop(plant, Planned(), extensions=[guarding], limit=8.0, observers=[Recorder(tmp_path / "r.jsonl")]).run()
    recording = Recording.read(tmp_path / "r.jsonl")
    from elastream.recording.frames import Frames

    frames = Frames(recording)
    assert frames.signals.loc[(3.0, "error")].to_dict() == {"value": 0.5, "taken": 3.0, "age": 0.0}
    assert len(frames.signals) == 3, "a row per new reading"
    assert frames.standings["allowed"].tolist() == [("split",), ("split_fast",)]
    assert frames.standings["guards"].tolist() == [1, 1]
    runs = frames.compositions.xs("words", level="element")["runs"]
    assert runs.xs("", level="query").to_dict() == {0.0: "split", 4.0: "split_fast"}
    query = plant.context.layout.stage_of["words"].segment
    assert recording.query_of("words") == recording.query_of("where") == query
    assert recording.compositions_at(8.0)[query].alternates["words"] == "split_fast"
    assert recording.compositions_at(0.5).keys() == {""}


def test_versions_are_appended_whole_and_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "guards.jsonl"
    writer, reader = GuardLog(path), GuardLog(path)
    assert reader.newer() == []
    first = writer.append(BY_ERROR, tmp_path / "a.yaml", "run")
    assert reader.newer() == [first]
    with path.open("ab") as file:
        file.write(b'{"number": 2, "time"')
    assert reader.newer() == [], "a line that is being written is none yet"
    second = writer.append(BY_PEAK, "b.yaml", "elastream guards set")
    assert (second.number, second.text, second.file) == (2, BY_PEAK, str(Path("b.yaml").resolve()))
    assert GuardLog(path).versions == (first, second)
    with path.open("ab") as file:
        file.write(b"{}\n")
    (damage,) = [each for each in GuardLog(path).newer() if isinstance(each, str)]
    assert "damaged (KeyError: 'number')" in damage
    with pytest.raises(ElastreamError, match="cannot be written"):
        GuardLog(Path("/proc/no/guards.jsonl")).append("", "x", "test")


def test_guards_of_a_recorded_run_are_at_work_again_in_a_simulation_of_it() -> None:
    split, fast = "error < 0.3 || cost < 0.0", "error >= 0.3"
    text = f"{SIGNALS}guards: {{words: {{split: {{when: {split}}}, split_fast: {{when: {fast}, value: 1}}}}}}"
    plant = FakePlant()
    log, guarding = guarded(plant, "", {2.0: {"error": 0.1}, 6.0: {"error": 0.4}})
    plant.clock._on_sleep = lambda now: log.append(text, "g.yaml", "test") if now == 3.0 else None
    first = ran(plant, guarding)
    again = FakePlant()
    (recalled,) = guarding_again(first, log.versions, again.clock.now, 1.0)
    second = ran(again, recalled)
    assert done(first) == [(6.0, FAST, "guards")]
    assert [(time, action) for time, action, _ in done(second)] == [(5.0, FAST)]
    assert second.signals_at(9.0)["error"] == SignalReading(0.4, 5.0)
    assert [version for _, version in second.series.guards] == [1]
    assert guarding_again(ran(FakePlant(), GuardExtension(GuardLog())), (), again.clock.now, 0.0) == ()
