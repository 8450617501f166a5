"""The trend of a rate: what it finds in lines, steps and noise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.policies.forecasting.trend import forecast

TIMES = np.arange(0.0, 120.0, 5.0)


def test_a_line_is_continued():
    found = forecast(TIMES, 100.0 + 2.0 * TIMES, 60.0, 30.0)
    assert found.level == pytest.approx(100.0 + 2.0 * TIMES[-1])
    assert found.slope == pytest.approx(2.0)
    assert found.expected == pytest.approx(found.level + 120.0)


def test_a_step_is_a_new_level_and_no_trend():
    values = np.where(TIMES[-1] > TIMES, 100.0, 1000.0)
    found = forecast(TIMES, values, 60.0, 30.0)
    assert (found.level, found.slope, found.expected) == (1000.0, 0.0, 1000.0)


def test_an_outlier_is_neither_a_trend_nor_the_level():
    values = np.random.default_rng(1).normal(100.0, 5.0, TIMES.size)
    values[-6] = 160.0
    found = forecast(TIMES, values, 60.0, 30.0)
    assert found.slope == 0.0
    assert found.expected == pytest.approx(100.0, abs=6.0)


def test_a_falling_rate_does_not_fall_below_0():
    assert forecast(TIMES, 120.0 - TIMES, 600.0, 30.0).expected == 0.0


def test_noise_alone_looks_like_growth_in_one_case_in_a_hundred():
    draw = np.random.default_rng(3)
    grew = sum(forecast(TIMES, draw.normal(100.0, 20.0, TIMES.size).clip(0), 60.0, 30.0).slope > 0 for _ in range(500))
    assert grew <= 5


@pytest.mark.parametrize("held", [2, 10, 60])
def test_noise_that_holds_for_several_samples_is_no_growth(held):
    draw, times = np.random.default_rng(3), np.arange(150.0)
    rates = (np.repeat(np.exp(draw.normal(9.0, 0.3, 150)), held)[held // 2 :][:150] for _ in range(300))
    assert sum(forecast(times, each, 50.0, 20.0).slope > 0 for each in rates) <= 9


@pytest.mark.parametrize("held", [1, 10])
def test_growth_by_steps_is_seen(held):
    times = np.arange(150.0)
    found = forecast(times, 1000.0 + 20.0 * (times // held * held), 50.0, 20.0)
    assert found.slope == pytest.approx(20.0, rel=0.05)
    assert found.level == pytest.approx(1000.0 + 20.0 * times[-1], rel=0.05)


def test_slow_growth_is_seen():
    times = np.arange(40.0)
    assert forecast(times, 1000.0 + times, 10.0, 5.0).slope == pytest.approx(1.0, rel=0.05)


@given(
    values=st.lists(st.floats(0, 1e7) | st.just(float("nan")), min_size=1, max_size=60),
    horizon=st.floats(0, 600),
    over=st.floats(0, 60),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_a_forecast_is_known_if_a_value_is_and_never_negative(values, horizon, over, scale):
    found = forecast(np.arange(len(values)) * scale, np.array(values), horizon, over)
    known = any(value == value for value in values)
    assert (found.expected >= 0 and found.level >= 0 and found.error >= 0) is known
