"""Series keep weeks in bounded memory, and know what a forecast needs of them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.policies.forecasting.series import FOLDED, KEPT, PARTS, TimeSeries
from support.property_examples import examples


def test_a_bin_is_the_mean_of_what_was_measured_in_it():
    series = TimeSeries(60.0).extended([20, 40, 60, 80], [1.0, 2.0, 3.0, 10.0])
    series.extended([90.0], [5.0])
    assert series.recent(5).tolist() == [2.0, 10.0], "a series is a value"
    assert series.recent(5, until=60.0).tolist() == [2.0], "the bin that is under way is left out"


def test_what_was_not_measured_is_a_gap():
    series = TimeSeries(60.0).extended([60, 120, 300], [1.0, math.nan, 4.0])
    assert np.isnan(series.recent(9)).tolist() == [False, True, True, True, False]
    assert math.isnan(series.at(100.0))
    assert series.at(290.0) == 4.0
    assert series.newest == 4.0
    assert series.last_time == 300.0


def test_an_empty_series_knows_nothing():
    assert math.isnan(TimeSeries(60.0).newest)
    assert not TimeSeries(60.0).recent(5).size
    assert not TimeSeries(60.0).extended([60.0], [math.nan]).recent(5).size


def test_old_values_are_thinned_and_memory_is_bounded():
    bins = (KEPT + FOLDED) * FOLDED**2
    series = TimeSeries(1.0)
    times = np.arange(1, bins + 1)
    for part in np.array_split(times, 20):
        series = series.extended(part.tolist(), (part // 100).tolist())
    parts = []
    each: TimeSeries | None = series
    while each is not None:
        parts.append(each.means.size)
        each = each.older
    assert len(parts) <= PARTS
    assert max(parts) <= KEPT + FOLDED
    past = series.recent(20_000)
    assert past.size == 20_000
    assert past[-1] == bins // 100
    assert abs(past[0] - (bins - 20_000) / 100) <= FOLDED


def test_after_an_age_without_values_a_series_begins_anew():
    series = TimeSeries(1.0).extended([1.0, 1e9], [1.0, 2.0])
    assert series.recent(10).tolist() == [2.0]


@given(st.lists(st.tuples(st.floats(0.1, 500.0), st.floats(0, 100) | st.just(math.nan)), max_size=60))
@settings(max_examples=examples(60), deadline=None)
def test_a_series_holds_the_mean_of_each_bin_whatever_comes(steps):
    times = np.cumsum([step for step, _ in steps])
    values = np.array([value for _, value in steps])
    series = TimeSeries(10.0).extended(times.tolist(), values.tolist())
    bins = np.ceil(times / 10.0 - 1e-9).astype(int) - 1
    for number in set(bins.tolist()):
        mine = values[(bins == number) & ~np.isnan(values)]
        if mine.size:
            assert series.at(number * 10.0 + 5) == pytest.approx(mine.mean())
    assert series.recent(10_000).size <= (bins.max() + 1 if bins.size else 0)
