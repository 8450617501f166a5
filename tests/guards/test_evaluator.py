"""What guards come to, round by round."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.guarding import Standing
from elastream.dataflow.signals import Signal, SignalKind, SignalReading
from elastream.guards.elements import Element, Guard, GuardSet, guard_of
from elastream.guards.evaluator import Evaluator
from elastream.guards.language import Language
from elastream.guards.program import program_of
from support.guards_by_hand import SIGNALS, Row, by_hand, texts

LANGUAGE = Language(SIGNALS)


def evaluator(*guards: Guard, signals: tuple[Signal, ...] = SIGNALS, before: Evaluator | None = None) -> Evaluator:
    return Evaluator(program_of(GuardSet((Element("forecast", guards),)), signals), before)


def told(found: Evaluator, now: float, **values: Any) -> Standing:
    found.update(now, {name: SignalReading(value, now) for name, value in values.items()})
    return found.standings["forecast"]


def condition(text: str) -> Any:
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
def test_what_changed_is_enough_to_answer_as_from_all_readings(written: list[str], rounds: list[tuple[float, Any]]) -> None:
    trees = [condition(text) for text in written]
    found = evaluator(*(guard_of(str(n), when=tree) for n, tree in enumerate(trees)))
    rows: list[Row] = []
    now = 0.0
    for gap, values in rounds:
        now += gap
        rows.append((now, values))
        standing = told(found, now, **values)
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
def test_a_guard_with_two_patterns_is_a_latch_that_deactivation_wins(
    state: bool, activate: bool | None, deactivate: bool | None, after: bool, known: bool
) -> None:
    signals = (Signal("begins", SignalKind.TRUTH), Signal("ends", SignalKind.TRUTH))
    language = Language(signals)
    guard = guard_of("tree", on=language.condition("begins"), off=language.condition("ends"))
    found = evaluator(guard, signals=signals)
    assert told(found, 0.0, begins=state, ends=False).allowed == (("tree",) if state else ())
    standing = told(found, 1.0, begins=activate, ends=deactivate)
    assert (standing.allowed == ("tree",), "tree" not in standing.unknown) == (after, known)


def test_separate_bounds_keep_a_guard_active_in_between() -> None:
    found = evaluator(guard_of("tree", on=condition("error >= 0.3"), off=condition("error < 0.25")))
    seen = [bool(told(found, float(n), error=error).allowed) for n, error in enumerate([0.28, 0.3, 0.28, 0.25, 0.2, 0.28])]
    assert seen == [False, True, True, True, False, False]


def test_for_wants_a_condition_without_a_break_and_ends_at_once() -> None:
    found = evaluator(guard_of("tree", when=condition("error > 0.3"), for_=2.0))
    seen = [bool(told(found, n / 2, error=error).allowed) for n, error in enumerate([1, 1, 0, 1, 1, 1, 1, 1, 0])]
    assert seen == [False] * 7 + [True, False]


def test_time_alone_activates_what_was_held_long_enough() -> None:
    found = evaluator(guard_of("tree", when=condition("error > 0.3"), for_=2.0))
    assert not told(found, 0.0, error=1.0).allowed
    assert found.update(1.0, {}).formulas == 0
    assert told(found, 2.0).allowed == ("tree",)


def test_order_wants_the_first_before_the_second() -> None:
    text = "then(alert, error > 0.3, '30s')"
    together, apart, late = (evaluator(guard_of("tree", when=condition(text))) for _ in range(3))
    assert not told(together, 0.0, alert=True, error=1.0).allowed
    told(apart, 0.0, alert=True, error=0.0)
    told(apart, 1.0, alert=False)
    assert told(apart, 31.0, error=1.0).allowed
    assert told(apart, 90.0).allowed
    assert not told(apart, 91.0, error=0.0).allowed
    told(late, 0.0, alert=True, error=0.0)
    told(late, 1.0, alert=False)
    assert not told(late, 31.5, error=1.0).allowed


def test_a_value_that_is_too_old_is_unknown_and_what_runs_stays() -> None:
    signals = (Signal("error", stale=10.0),)
    found = evaluator(guard_of("tree", when=Language(signals).condition("error < 0.3")), signals=signals)
    assert told(found, 0.0, error=0.1).allowed == ("tree",)
    standing = told(found, 10.0)
    assert (standing.allowed, standing.unknown) == (("tree",), {"tree": ("error",)})
    assert standing.why == "the guard of tree is unknown (error)"


def test_values_of_another_type_are_unknown() -> None:
    found = evaluator(guard_of("tree", when=condition("error < 0.3")))
    for value in ("low", True, math.nan, math.inf):
        assert told(found, 0.0, error=value).unknown == {"tree": ("error",)}


def test_no_active_guard_allows_nothing_and_says_why() -> None:
    standing = told(evaluator(guard_of("tree", when=condition("error < 0.3"))), 0.0, error=1.0)
    assert (standing.allowed, standing.why) == ((), "no guard of forecast is active: what runs stays")


def test_values_are_relative_to_the_best() -> None:
    found = evaluator(guard_of("arima", value=LANGUAGE.number("1.0 - error")), guard_of("tree", value=0.5))
    assert told(found, 0.0, error=0.2).values == {"arima": 1.0, "tree": 0.625}
    assert told(found, 1.0, error=1.5).values == {"arima": 0.0, "tree": 1.0}
    standing = told(found, 2.0, error=None)
    assert math.isnan(standing.values["arima"])
    assert (standing.allowed, standing.best("arima")) == (("arima", "tree"), "tree")


def test_of_equal_values_what_runs_stays() -> None:
    standing = Standing("forecast", ("a", "b"), {"a": 1.0, "b": 1.0})
    assert (standing.best("b"), standing.best("c")) == ("b", "a")
    assert Standing("forecast", (), {"a": 1.0}).best("b") == "b"


def test_only_what_a_changed_signal_touches_is_evaluated() -> None:
    found = evaluator(
        *(guard_of(str(n), when=condition(f"{name} > {n}.0")) for n, name in enumerate(["error", "rate_in"] * 9))
    )
    assert found.update(0.0, {"error": SignalReading(1.0, 0.0), "rate_in": SignalReading(1.0, 0.0)}).formulas == 18
    assert found.update(1.0, {"error": SignalReading(2.0, 1.0), "rate_in": SignalReading(1.0, 1.0)}).formulas == 1, (
        "of nine that read it, one compares it with a constant between both values"
    )
    assert found.update(2.0, {"error": SignalReading(2.0, 2.0)}).formulas == 0


def test_a_mean_is_left_alone_for_as_long_as_it_cannot_reach_what_it_is_compared_with() -> None:
    found = evaluator(guard_of("tree", when=condition("avg(error, '10s') > 5.0 || avg(error, '10s') < 0.5")))
    for now in range(10):
        found.update(float(now), {"error": SignalReading(1.0, float(now))})
    found.update(10.0, {})  # when the first sample was to leave
    assert [found.update(now, {}).parts for now in (12.0, 15.0, 18.9)] == [0, 0, 0]
    assert found.update(19.0, {}).parts == 1
    assert found.standings["forecast"].unknown, "the last sample has left"


def test_least_and_greatest_are_left_alone_until_the_sample_that_they_are_leaves() -> None:
    found = evaluator(guard_of("tree", when=condition("max(error, '10s') > 5.0")))
    for now, value in enumerate([1.0, 2.0, 9.0, 1.0, 1.0]):
        found.update(float(now), {"error": SignalReading(value, float(now))})
    found.update(10.0, {})
    assert found.update(11.5, {}).parts == 0
    assert found.standings["forecast"].allowed == ("tree",)
    assert found.update(12.0, {}).parts == 1
    assert found.standings["forecast"].allowed == ()


def test_a_reading_ahead_of_its_round_is_one_sample() -> None:
    guard = guard_of("tree", when=condition("count(error, '1 min') > 1.0"))
    found = evaluator(guard)
    for now in (1.0, 2.0, 3.0):
        found = found if now < 2.0 else evaluator(guard, before=found)
        found.update(now, {"error": SignalReading(0.5, 1.5)})
        assert found.standings["forecast"].allowed == (), "polled while the round was observed"
    found.update(4.0, {"error": SignalReading(0.5, 3.5)})
    assert found.standings["forecast"].allowed == ("tree",)


def test_a_new_version_keeps_the_memory_of_what_stays() -> None:
    text = "avg(error, '1 min') > 0.3"
    old = evaluator(guard_of("tree", when=condition(text), for_=2.0))
    for n in range(4):
        told(old, float(n), error=1.0)
    new = evaluator(
        guard_of("tree", when=condition(text), for_=2.0), guard_of("arima", when=condition("!(" + text + ")")), before=old
    )
    assert told(new, 4.0).allowed == ("tree",)
