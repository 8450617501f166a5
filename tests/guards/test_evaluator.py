"""Decisions of guards, round by round."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.guarding import GuardDecision
from elastream.dataflow.signals import Signal, SignalKind, SignalReading
from elastream.guards.evaluator import Element, Evaluator, Guard, SampleWindow, held_for
from elastream.guards.language import Language
from elastream.guards.tree import Node
from support.guards_by_hand import SIGNALS, Row, by_hand, texts

LANGUAGE = Language(SIGNALS)


def evaluator(*guards: Guard, signals: tuple[Signal, ...] = SIGNALS, before: Evaluator | None = None) -> Evaluator:
    return Evaluator([Element("forecast", guards)], signals, before)


def decision(guards: Evaluator, now: float, **values: Any) -> GuardDecision:
    guards.update(now, {name: SignalReading(value, now) for name, value in values.items()})
    return guards.standings["forecast"]


def condition(text: str) -> Node:
    return LANGUAGE.condition(text)


_SAMPLES = {
    "error": st.none() | st.sampled_from([-1.5, 0.0, 0.3, 1.0]),
    "rate_in": st.none() | st.sampled_from([0.0, 0.3, 1.0, 7.0]),
    "alert": st.none() | st.booleans(),
    "tariff": st.none() | st.sampled_from(["low", "high"]),
}
_ROUNDS = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.fixed_dictionaries({}, optional=_SAMPLES)), min_size=1, max_size=8
)


@given(st.lists(texts(), min_size=1, max_size=3), _ROUNDS)
@settings(deadline=None)
def test_rounds_decide_as_all_readings_together_do(written: list[str], rounds: list[tuple[float, Any]]) -> None:
    trees = [condition(text) for text in written]
    guards = evaluator(*(Guard(str(n), tree) for n, tree in enumerate(trees)))
    rows: list[Row] = []
    now = 0.0
    for gap, values in rounds:
        now += gap
        rows.append((now, values))
        standing = decision(guards, now, **values)
        for number, tree in enumerate(trees):
            expected = by_hand(tree, rows)
            assert expected is None or (str(number) in standing.allowed) is expected
            assert (str(number) in standing.unknown) == (expected is None)


@pytest.mark.parametrize(
    ("state", "activate", "deactivate", "after", "known"),
    [
        (False, True, False, True, True),
        (False, False, False, False, True),
        (False, False, True, False, True),
        (False, True, True, False, True),
        (False, None, False, False, False),
        (False, True, None, False, False),
        (False, None, True, False, True),
        (False, False, None, False, True),
        (True, False, False, True, True),
        (True, False, True, False, True),
        (True, True, True, False, True),
        (True, None, False, True, True),
        (True, False, None, True, False),
        (True, None, None, True, False),
        (True, None, True, False, True),
    ],
)
def test_guard_with_two_conditions_is_a_latch(
    state: bool, activate: bool | None, deactivate: bool | None, after: bool, known: bool
) -> None:
    signals = (Signal("begins", SignalKind.TRUTH), Signal("ends", SignalKind.TRUTH))
    language = Language(signals)
    guard = Guard("tree", language.condition("begins"), language.condition("ends"))
    guards = evaluator(guard, signals=signals)
    assert decision(guards, 0.0, begins=state, ends=False).allowed == (("tree",) if state else ())
    standing = decision(guards, 1.0, begins=activate, ends=deactivate)
    assert (standing.allowed == ("tree",), "tree" not in standing.unknown) == (after, known)


def test_separate_bounds_keep_a_guard_active_in_between() -> None:
    guards = evaluator(Guard("tree", condition("error >= 0.3"), condition("error < 0.25")))
    active = [
        bool(decision(guards, float(n), error=error).allowed) for n, error in enumerate([0.28, 0.3, 0.28, 0.25, 0.2, 0.28])
    ]
    assert active == [False, True, True, True, False, False]


def test_persistence_needs_no_break_and_ends_at_once() -> None:
    guards = evaluator(Guard("tree", held_for(condition("error > 0.3"), 2.0)))
    active = [bool(decision(guards, n / 2, error=error).allowed) for n, error in enumerate([1, 1, 0, 1, 1, 1, 1, 1, 0])]
    assert active == [False] * 7 + [True, False]


def test_time_alone_activates_a_persistent_condition() -> None:
    guards = evaluator(Guard("tree", held_for(condition("error > 0.3"), 2.0)))
    assert not decision(guards, 0.0, error=1.0).allowed
    assert not decision(guards, 1.9).allowed
    assert decision(guards, 2.0).allowed == ("tree",)


def test_order_needs_the_first_condition_before_the_second() -> None:
    text = "then(alert, error > 0.3, '30s')"
    together, apart, late = (evaluator(Guard("tree", condition(text))) for _ in range(3))
    assert not decision(together, 0.0, alert=True, error=1.0).allowed
    decision(apart, 0.0, alert=True, error=0.0)
    decision(apart, 1.0, alert=False)
    assert decision(apart, 31.0, error=1.0).allowed
    assert decision(apart, 90.0).allowed
    assert not decision(apart, 91.0, error=0.0).allowed
    decision(late, 0.0, alert=True, error=0.0)
    decision(late, 1.0, alert=False)
    assert not decision(late, 31.5, error=1.0).allowed


def test_stale_value_is_unknown_and_leaves_the_decision() -> None:
    signals = (Signal("error", stale=10.0),)
    guards = evaluator(Guard("tree", Language(signals).condition("error < 0.3")), signals=signals)
    assert decision(guards, 0.0, error=0.1).allowed == ("tree",)
    standing = decision(guards, 10.0)
    assert (standing.allowed, standing.unknown) == (("tree",), {"tree": ("error",)})
    assert standing.why == "the guard of tree is unknown (error)"


def test_values_of_another_type_are_unknown() -> None:
    guards = evaluator(Guard("tree", condition("error < 0.3")))
    for value in ("low", True, math.nan, math.inf):
        assert decision(guards, 0.0, error=value).unknown == {"tree": ("error",)}


def test_no_active_guard_allows_nothing_and_says_why() -> None:
    standing = decision(evaluator(Guard("tree", condition("error < 0.3"))), 0.0, error=1.0)
    assert (standing.allowed, standing.why) == ((), "no guard of forecast is active: the running variant stays")


def test_values_are_relative_to_the_best() -> None:
    guards = evaluator(Guard("arima", value=LANGUAGE.number("1.0 - error")), Guard("tree", value=0.5))
    assert decision(guards, 0.0, error=0.2).values == {"arima": 1.0, "tree": 0.625}
    assert decision(guards, 1.0, error=1.5).values == {"arima": 0.0, "tree": 1.0}
    standing = decision(guards, 2.0, error=None)
    assert math.isnan(standing.values["arima"])
    assert (standing.allowed, standing.best("arima")) == (("arima", "tree"), "tree")


def test_running_alternate_stays_among_equal_values() -> None:
    standing = GuardDecision("forecast", ("a", "b"), {"a": 1.0, "b": 1.0})
    assert (standing.best("b"), standing.best("c")) == ("b", "a")
    assert GuardDecision("forecast", (), {"a": 1.0}).best("b") == "b"


def test_greatest_value_counts_until_its_sample_leaves() -> None:
    guards = evaluator(Guard("tree", condition("max(error, '10s') > 5.0")))
    for now, value in enumerate([1.0, 2.0, 9.0, 1.0, 1.0]):
        decision(guards, float(now), error=value)
    assert decision(guards, 11.5).allowed == ("tree",)
    assert decision(guards, 12.0).allowed == ()


def test_mean_is_unknown_once_the_last_sample_left() -> None:
    guards = evaluator(Guard("tree", condition("avg(error, '10s') > 5.0")))
    for now in range(10):
        decision(guards, float(now), error=6.0)
    assert not decision(guards, 18.9).unknown
    assert decision(guards, 19.0).unknown == {"tree": ("error",)}


def test_window_merges_samples_nearer_than_its_resolution() -> None:
    window = SampleWindow("sum", 5_000.0)
    for number in range(20_000):
        window.add(number / 2, 1.0)
    assert window.advance(9_999.5) == pytest.approx(10_000, abs=2)
    assert len(window._buckets) <= 5_001


def test_reading_ahead_of_its_round_is_one_sample() -> None:
    guard = Guard("tree", condition("count(error, '1 min') > 1.0"))
    guards = evaluator(guard)
    for now in (1.0, 2.0, 3.0):
        guards = guards if now < 2.0 else evaluator(guard, before=guards)
        guards.update(now, {"error": SignalReading(0.5, 1.5)})
        assert guards.standings["forecast"].allowed == (), "polled while the round was observed"
    guards.update(4.0, {"error": SignalReading(0.5, 3.5)})
    assert guards.standings["forecast"].allowed == ("tree",)


def test_new_version_keeps_the_memory_of_equal_functions() -> None:
    text = "avg(error, '1 min') > 0.3"
    old = evaluator(Guard("tree", held_for(condition(text), 2.0)))
    for n in range(4):
        decision(old, float(n), error=1.0)
    new = evaluator(Guard("tree", held_for(condition(text), 2.0)), Guard("arima", condition("!(" + text + ")")), before=old)
    assert decision(new, 4.0).allowed == ("tree",)
