"""The algebra of loads, and the promises every load keeps: counts are exact, never fall, and `due` is their inverse."""

import math
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.dataflow.endpoints import ArrivalPattern
from elastream.errors import DataflowError
from elastream.loads import Pattern, Section, constant, counts, dues, ramp, random_walk, sine, steps

rates = st.one_of(st.just(0.0), st.floats(0.01, 5_000), st.integers(0, 1_000).map(float))
pieces = st.builds(Section, st.floats(0.01, 500), rates, rates)
patterns = st.builds(Pattern, st.lists(pieces, min_size=1, max_size=6).map(tuple), st.booleans())
shares = st.floats(0, 2.5)


@given(patterns, shares, shares)
def test_a_count_never_falls(pattern: Pattern, a: float, b: float) -> None:
    early, late = sorted((a * pattern.period, b * pattern.period))
    assert pattern.count(early) <= pattern.count(late)


@given(patterns, shares)
def test_a_count_never_falls_from_one_float_to_the_next(pattern: Pattern, share: float) -> None:
    time = share * pattern.period
    assert pattern.count(time) <= pattern.count(math.nextafter(time, math.inf))


@given(st.floats(0.1, 100), st.integers(1, 400), st.integers(0, 20))
def test_a_count_never_falls_where_the_rate_dies_away(seconds: float, records: int, ulps: int) -> None:
    fading = Pattern((Section(seconds, 2 * records / seconds, 0.0),))
    times = [seconds]
    for _ in range(ulps):
        times.append(math.nextafter(times[-1], 0))
    found = [fading.count(time) for time in times]
    assert found == sorted(found, reverse=True)


@given(patterns, st.integers(0, 3_000_000))
def test_a_record_is_due_at_the_first_time_that_counts_it(pattern: Pattern, number: int) -> None:
    due = pattern.due(number)
    if math.isinf(due):
        assert not pattern.period_total * (1 if not pattern.endless else math.inf) > number + 1
        return
    assert pattern.count(due) > number
    assert pattern.count(math.nextafter(due, -math.inf)) <= number


@given(patterns, st.lists(shares, min_size=1, max_size=20))
def test_counts_of_many_times_are_the_counts_of_each(pattern: Pattern, places: list[float]) -> None:
    times = np.array(places) * pattern.period
    assert counts(pattern, times).tolist() == [pattern.count(float(time)) for time in times]


@given(patterns, st.lists(st.integers(0, 100_000), min_size=1, max_size=20))
def test_due_times_of_many_records_are_those_of_each(pattern: Pattern, numbers: list[int]) -> None:
    exact = np.array([pattern.due(number) for number in numbers])
    assert np.array_equal(np.isinf(dues(pattern, numbers)), np.isinf(exact))
    finite = np.isfinite(exact)
    # Where the rate is near 0, a millionth of a record takes long: compare what has arrived, not the times.
    found = dues(pattern, numbers)[finite]
    assert (counts(pattern, found * (1 + 1e-9) + 1e-9) >= np.array(numbers)[finite]).all()
    assert (found <= exact[finite] * (1 + 1e-9) + 1e-9).all()


@given(patterns, shares, shares)
def test_the_count_is_the_integral_of_the_rate(pattern: Pattern, a: float, b: float) -> None:
    early, late = sorted((a * pattern.period, b * pattern.period))
    # The rate is straight between breaks, so midpoints between them integrate it exactly.
    breaks = [k * pattern.period + end for k in range(3) for end in (0.0, *pattern.ends)]
    times = sorted({early, late, *(t for t in breaks if early < t < late)})
    area = math.fsum(pattern.rate((s + t) / 2) * (t - s) for s, t in pairwise(times))
    assert pattern.count(late) - pattern.count(early) == pytest.approx(area, rel=1e-6, abs=1.01)


@given(patterns, patterns)
def test_one_load_after_another_has_the_records_of_both(first: Pattern, second: Pattern) -> None:
    first, second = Pattern(first.pieces), Pattern(second.pieces)
    both = first.then(second)
    assert both.seconds == pytest.approx(first.seconds + second.seconds)
    assert both.period_total == pytest.approx(first.period_total + second.period_total)


@given(patterns, st.floats(0.05, 2.4))
def test_the_beginning_of_a_load_counts_as_the_load_does(pattern: Pattern, share: float) -> None:
    pattern = Pattern(pattern.pieces, endless=True)
    cut = pattern.lasting(share * pattern.period)
    assert cut.seconds == pytest.approx(share * pattern.period)
    assert cut.count(cut.seconds) == pytest.approx(pattern.count(share * pattern.period), abs=1)


def test_patterns_are_values_that_travel() -> None:
    load = ramp("5/s", "550/s", over="60s").hold("20s").then_back()
    assert pickle.loads(pickle.dumps(load)) == load
    assert len({load, ramp("5/s", "550/s", over="60s").hold("20s").then_back()}) == 1
    assert isinstance(load, ArrivalPattern)


def test_a_whole_record_is_due_at_a_round_time() -> None:
    assert constant("100/s").count(0.29) == 29
    assert constant("100/s", "10s").count(0.29) == 29


def test_loads_are_changed_into_others() -> None:
    back = ramp("0/s", "10/s", over="4s").hold("6s").then_back()
    assert [(piece.seconds, piece.last) for piece in back.pieces] == [(4, 10), (6, 10), (4, 0)]
    levels = [piece.first for piece in steps("1/s", "2/s", "3/s", every="10s").then_back().pieces]
    assert levels == [1, 2, 3, 2, 1]
    assert constant("5/s", "10s").scaled(3) == constant("15/s", "10s")
    fast = ramp("0/s", "10/s", over="60s").faster(60)
    assert (fast.seconds, fast.count(1), fast.rate(0.5)) == (1, 300, 300)
    twice = steps("1/s", "3/s", every="2s")
    assert (twice.repeated(3).seconds, twice.repeated(3).count(12), twice.repeated(3).rate(5)) == (12, 24, 1)
    assert (twice.repeated().seconds, twice.repeated().count(4e6)) == (math.inf, 8_000_000)
    assert twice.repeated().due(8_000_000 - 1) == pytest.approx(4e6)


def test_a_ramp_up_and_back_counts_exactly() -> None:
    load = ramp("5/s", "550/s", over="60s").then_back()
    assert load.seconds == 120
    assert load.count(60) == 16_650
    assert load.count(120) == load.count(1e9) == 33_300
    assert load.rate(60) == 550
    assert load.rate(30) == load.rate(90) == 277.5
    assert load.rate(120) == 0


def test_nothing_is_due_before_the_start_and_no_record_after_the_end() -> None:
    load = constant("2/s", "3s")
    assert (load.count(-1), load.rate(-1), load.due(-1)) == (0, 0, 0)
    assert load.due(5) == pytest.approx(3)
    assert load.due(6) == math.inf


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Pattern(()),
        lambda: Section(0, 1, 1),
        lambda: Section(math.inf, 1, 1),
        lambda: Section(1, -1, 1),
        lambda: constant("5/s").then(constant("5/s", "1s")),
        lambda: constant("5/s", "1s").then(constant("5/s")),
        lambda: constant("5/s").then_back(),
        lambda: constant("5/s").hold("1s"),
        lambda: constant("5/s").repeated(2),
        lambda: constant("5/s", "1s").repeated(0),
        lambda: constant("5/s", "1s").lasting("2s"),
        lambda: constant("5/s").scaled(-1),
        lambda: constant("5/s").faster(0),
        lambda: steps("5/s", "6/s"),
        lambda: steps(every="1s"),
        lambda: random_walk(9, 1, low=1, high=8, every="1s", lasts="9s", seed=1),
        lambda: random_walk(4, 1, low=1, high=8, every="0s", lasts="9s", seed=1),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(wrong: object) -> None:
    with pytest.raises(DataflowError) as refused:
        wrong()  # type: ignore[operator]
    assert "\n" not in str(refused.value)


def test_a_sine_begins_low_peaks_half_way_and_has_its_mean() -> None:
    wave = sine("10/s", "30/s", "60s")
    assert [wave.rate(0), wave.rate(30), wave.rate(60)] == pytest.approx([10, 30, 10])
    assert wave.rate(15) == pytest.approx(20)
    assert wave.count(600) == 12_000
    assert max(abs(wave.rate(t) - (20 - 10 * math.cos(math.tau * t / 60))) for t in np.linspace(0, 60, 777)) < 10 * 4e-5


def test_a_random_walk_stays_in_bounds_and_moves_one_step_at_a_time() -> None:
    walk = random_walk(4, 1, low=1, high=8, every="4min", lasts="120min", seed=7)
    levels = [piece.first for piece in walk.pieces]
    assert (levels[0], len(levels), walk.seconds) == (4, 30, 7200)
    assert {b - a for a, b in pairwise(levels)} == {-1, 0, 1}
    assert 1 <= min(levels) <= max(levels) <= 8
    assert walk == random_walk(4, 1, low=1, high=8, every="4min", lasts="120min", seed=7)
    assert walk != random_walk(4, 1, low=1, high=8, every="4min", lasts="120min", seed=8)


def test_a_random_walk_goes_down_and_up_equally_often() -> None:
    walk = random_walk(5_000, 1, low=0, high=10_000, every="1s", lasts=10_000, seed=3)
    moves = np.diff([piece.first for piece in walk.pieces])
    assert [np.mean(moves == move) for move in (-1, 0, 1)] == pytest.approx([0.4, 0.2, 0.4], abs=0.02)


class Doubling:
    """A load that somebody else wrote: 2, 4, 6... records at whole seconds."""

    seconds = 10.0

    def rate(self, time: float) -> float:
        return 2.0

    def count(self, time: float) -> int:
        return 2 * math.floor(time)

    def due(self, number: int) -> float:
        return float(number // 2 + 1)


def test_any_arrival_pattern_can_be_counted() -> None:
    assert counts(Doubling(), [[0.5, 1.0], [2.5, 3.0]]).tolist() == [[0, 2], [4, 6]]
    assert dues(Doubling(), [0, 1, 2]).tolist() == [1, 1, 2]
