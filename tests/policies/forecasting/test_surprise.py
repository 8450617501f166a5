"""Surprises: what was not foreseen several times is reckoned with, and nothing else is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.policies.forecasting.trend import MEMORY_S, Surprises

PACE, HORIZON = 15.0, 60.0


def after(levels, expected=None):
    seen = Surprises()
    for number, level in enumerate(levels):
        seen = seen.after(number * PACE, level, level if expected is None else expected[number], HORIZON, PACE)
    return seen


def jumps(times, low=100.0, high=1000.0):
    """A minute low, a minute high."""
    return [low if number // 4 % 2 == 0 else high for number in range(8 * times)]


def test_a_load_that_jumps_again_and_again_is_expected_to_jump():
    assert after([*jumps(3), 100.0]).upper(100.0, HORIZON, PACE) == pytest.approx(1000.0)


def test_one_jump_is_no_pattern():
    assert after([*jumps(1), 100.0]).upper(100.0, HORIZON, PACE) == 100.0


def test_a_long_rise_above_its_forecast_is_one_surprise():
    rise = [*[100.0] * 10, *np.linspace(100.0, 3000.0, 40), *[3000.0] * 10, *[100.0] * 10]
    assert after(rise).upper(100.0, HORIZON, PACE) == 100.0


def test_noise_is_no_surprise_and_joins_none():
    noisy = [level * (1.1 if number % 3 else 0.9) for number, level in enumerate([*jumps(3), *[100.0] * 8])]
    assert 800.0 < after(noisy).upper(100.0, HORIZON, PACE) < 1200.0


def test_nothing_above_the_highest_level_lately_is_reckoned_with():
    assert after(jumps(3)).upper(1000.0, HORIZON, PACE) == 1000.0


def test_a_rise_as_foreseen_is_no_surprise():
    levels = np.arange(0.0, 1000.0, 10.0)
    seen = after(levels, levels + 10.0 * HORIZON / PACE)
    assert seen.upper(500.0, HORIZON, PACE) == 500.0


def test_a_surprise_is_forgotten():
    quiet = [100.0] * (int(MEMORY_S / PACE) + 2)
    assert after([*jumps(3), *quiet]).upper(100.0, HORIZON, PACE) == 100.0


@given(st.lists(st.floats(0.0, 1e6), max_size=60), st.floats(0.0, 1e6))
def test_upper_value_lies_between_expected_and_highest_level(levels, expected):
    upper = after(levels).upper(expected, HORIZON, PACE)
    assert expected <= upper <= max([expected, *levels])
