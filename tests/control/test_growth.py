"""Alarm before executors are full, and none for state that stays bounded."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastream.control.growth import DAY_S, GROWTH_ALARM, HOUR_S, MINUTE_S, GrowthForecast, StateGrowth
from elastream.core.alarm import Alarms
from support.property_examples import examples
from support.states import observed

LIMIT = 1000.0


def rounds(draw_seed, days):
    """Times of looks, five minutes apart on average: even ones would turn short teeth into slow waves."""
    even = np.arange(0.0, days * DAY_S, 5 * MINUTE_S)
    return even + 5 * MINUTE_S * np.random.default_rng(draw_seed).random(even.size)


def ripples(draw_seed, times, daily, teeth, depth, noise):
    """Factors around 1: a day's swing, windows that end (a saw tooth), and noise."""
    random = np.random.default_rng(draw_seed)
    day = 1 + daily * np.sin(2 * math.pi * (times / DAY_S + random.random()))
    saw = 1 - depth * (1 - (times / teeth + random.random()) % 1.0)
    return day * saw * np.clip(1 + noise * random.standard_normal(times.size), 1 - 3 * noise, 1 + 3 * noise)


def first_alarm(times, sizes):
    growth = StateGrowth()
    for time, size in zip(times.tolist(), sizes.tolist(), strict=True):
        if growth.add(time, size) and growth.full_in(LIMIT - size) < math.inf:
            return time
    return math.inf


SHAPES = {
    "teeth": st.floats(5 * MINUTE_S, 2 * HOUR_S),
    "depth": st.floats(0.0, 0.5),
    "noise": st.floats(0.0, 0.02),
    "seed": st.integers(0, 10_000),
}


@given(peak=st.floats(0.1, 0.8), daily=st.floats(0.0, 0.4), **SHAPES)
@example(peak=0.75, daily=0.0, teeth=301.0, depth=0.5, noise=0.0, seed=0)
@settings(max_examples=examples(25), deadline=None)
def test_bounded_state_raises_no_alarm_in_thirty_days(peak, daily, teeth, depth, noise, seed):
    times = rounds(seed, 30)
    shape = ripples(seed, times, daily, teeth, depth, noise)
    filling = np.minimum(1.0, (times + MINUTE_S) / (2 * HOUR_S))
    assert first_alarm(times, peak * LIMIT * filling * shape / shape.max()) == math.inf


# Runs look every few seconds, these rounds five to ten minutes apart: they would miss the ends of shorter teeth.
SEEN = SHAPES | {"teeth": st.floats(20 * MINUTE_S, 2 * HOUR_S)}


@given(hours=st.floats(math.log(10), math.log(20 * 24)), start=st.floats(0.02, 0.3), daily=st.floats(0.0, 0.15), **SEEN)
@settings(max_examples=examples(40), deadline=None)
def test_growing_state_raises_the_alarm_an_hour_before_the_limit(hours, start, daily, teeth, depth, noise, seed):
    times = rounds(seed, 40)
    base = start + (1 - start) * times / (math.exp(hours) * HOUR_S)
    sizes = LIMIT * base * ripples(seed, times, daily, teeth, depth, noise)
    full = times[int(np.argmax(sizes >= LIMIT))]
    before = times <= full
    assert first_alarm(times[before], sizes[before]) <= full - HOUR_S


@pytest.mark.parametrize("hours", [2.0, 4.0, 5.0])
def test_state_that_fills_in_hours_alarms_a_fifth_of_them_before(hours):
    times = np.arange(0.0, hours * HOUR_S, MINUTE_S)
    assert first_alarm(times, LIMIT * times / (hours * HOUR_S)) <= 0.8 * hours * HOUR_S + 2 * MINUTE_S


def test_alarm_says_when_executors_are_full_and_clears():
    alarms, forecast = Alarms(lambda: 0.0), GrowthForecast()
    for minute in range(340):
        forecast.observed(observed([0, 1], heap=100.0 + 3.3 * minute, time=60.0 * minute), alarms)
    (alarm,) = alarms.active
    assert alarm.source == f"{GROWTH_ALARM} (heap)"
    assert alarm.said.startswith("at this rate executors are full in ")
    for minute in range(340, 600):
        forecast.observed(observed([0, 1], heap=600.0, time=60.0 * minute), alarms)
    assert alarms.active == ()


@pytest.mark.parametrize("heap", [None, 0.0])
def test_alarm_ends_with_the_state(heap):
    alarms, forecast = Alarms(lambda: 0.0), GrowthForecast()
    forecast.observed(observed([0, 1], heap=1390.0), alarms)
    assert [each.source for each in alarms.active] == [f"{GROWTH_ALARM} (heap)"]
    forecast.observed(observed([0, 1], heap=heap, time=60.0), alarms)
    assert alarms.active == ()


@pytest.mark.parametrize("heap", [None, 0.0])
def test_unknown_or_absent_state_raises_no_alarm(heap):
    alarms, forecast = Alarms(lambda: 0.0), GrowthForecast()
    for minute in range(100):
        forecast.observed(observed([0, 1], heap=heap, time=60.0 * minute), alarms)
    assert alarms.active == ()


@pytest.mark.parametrize("room", [math.inf, 1e9])
def test_state_on_hosts_without_a_limit_is_never_near_it(room):
    growth = StateGrowth()
    growth.add(0.0, 3.0)
    assert growth.full_in(room) == math.inf
