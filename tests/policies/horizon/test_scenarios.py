"""Scenarios from the past of a load."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.policies.forecasting.trend import Forecast
from elastream.policies.horizon.budget import Grid
from elastream.policies.horizon.scenarios import Past, scenarios

FLAT = Forecast(math.nan, 0.0, math.nan, math.nan)


def grid(steps: int) -> Grid:
    return Grid(5.0, start=min(3, steps), steps=steps, host_start=15.0, budget=10.0)


def past(rates, seconds: float = 5.0) -> Past:
    return Past(seconds, np.array(rates, dtype=np.float64))


@given(st.lists(st.floats(0, 1e6), min_size=0, max_size=120), st.integers(2, 20))
def test_scenarios_are_finite_and_not_negative(rates, steps):
    paths, jump = scenarios(past(rates), grid(steps), FLAT)
    assert paths.shape[1] == steps == jump.size
    assert all(((each >= 0) & np.isfinite(each)).all() for each in (paths, jump))


def test_a_first_rate_is_expected_to_stay():
    paths, jump = scenarios(past([100.0]), grid(6), FLAT)
    assert paths.min() == paths.max() == jump[0] == 100.0


def test_growth_goes_on_for_as_long_as_a_host_takes_to_start():
    growing = Forecast(level=140.0, slope=2.0, expected=170.0, error=0.0)
    paths, _ = scenarios(past([100.0, 110.0, 120.0, 130.0, 140.0]), grid(6), growing)
    assert paths[0].tolist() == [150.0, 160.0, 170.0, 170.0, 170.0, 170.0]


def test_growth_that_was_seen_for_one_bin_lasts_until_a_host_works():
    growing = Forecast(level=110.0, slope=2.0, expected=140.0, error=0.0)
    paths, _ = scenarios(past([110.0]), grid(6), growing)
    assert np.median(paths, axis=0).tolist() == [120.0, 130.0, 140.0, 140.0, 140.0, 140.0]


def test_a_wave_is_continued():
    wave = 100 + 50 * np.sin(np.arange(400) * 2 * np.pi / 80)
    paths, _ = scenarios(past(wave[:-20]), grid(20), FLAT)
    assert np.abs(np.median(paths, axis=0) - wave[-20:]).max() < 15


def test_what_followed_is_scaled_to_the_present():
    wave = 100 + 50 * np.sin(np.arange(400) * 2 * np.pi / 80)
    slow, _ = scenarios(past(wave[:-20]), grid(20), FLAT)
    fast, _ = scenarios(past(10 * wave[:-20]), grid(20), FLAT)
    assert np.allclose(fast, 10 * slow)


def test_a_level_never_seen_is_expected_to_stay():
    paths, _ = scenarios(past([10.0] * 100 + [900.0]), grid(8), FLAT)
    assert np.allclose(paths, 900.0)


def test_a_level_that_changed_counts_before_the_longest_window_has_seen_it():
    draw = np.random.default_rng(4)
    rates = np.concatenate([np.full(300, 100.0), np.full(5, 130.0)]) * np.exp(draw.normal(0, 0.08, 305))
    assert past(rates[:300]).level(8)[0] == pytest.approx(100, rel=0.06)
    assert past(rates).level(8)[0] > 115


def test_a_burst_in_progress_is_expected_to_be_as_high_as_those_before():
    bursts = np.where(np.arange(400) % 20 < 4, 600.0, 100.0)
    for seen in range(341, 345):  # bins of a burst
        paths, _ = scenarios(past(bursts[: seen - 20]), grid(8), FLAT)
        assert paths.max() <= 600.0 + 1e-6


def test_the_worst_jump_that_recurred_may_come_again():
    rates = np.full(300, 10.0)
    rates[50:60] = rates[200:210] = 80.0
    _, jump = scenarios(past(rates), grid(8), FLAT)
    assert jump.max() == 80.0


def test_a_single_jump_is_no_pattern():
    rates = np.full(300, 10.0)
    rates[50] = 80.0
    assert scenarios(past(rates), grid(1), FLAT)[1].max() < 20


def test_moments_of_a_shorter_horizon_are_none_of_a_longer_one():
    book = past(range(1, 63)).with_moments(11)
    assert book.moments is not None
    paths, _ = scenarios(book, grid(91), FLAT)
    assert paths.shape[1] == 91


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.5, 20)), min_size=1, max_size=50))
def test_bins_hold_the_records_that_came(rounds):
    book = Past(5.0)
    for rate, seconds in rounds:
        before, ended = book.rates.size, book.bins(seconds)
        book = book.after(rate, seconds)
        assert book.rates.size == before + ended
    came = sum(rate * seconds for rate, seconds in rounds)
    assert (book.rates >= 0).all()
    assert book.rates.max(initial=0.0) <= max(rate for rate, _ in rounds) + 1e-9
    assert book.rates.sum() * 5.0 + book.open[0] <= came + 1e-6
    assert book.rates.size * 5.0 + book.open[1] <= sum(seconds for _, seconds in rounds) + 1e-6


def test_rounds_longer_than_half_a_bin_make_no_past_longer():
    book = Past(6.0)
    for _ in range(60):
        book = book.after(1.0, 5.0)
    assert 45 <= book.rates.size <= 50
