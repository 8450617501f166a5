"""Of several methods that is taken which would have erred least; what is unknown stays unknown, and gaps do no harm."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.metrics import Metric, Rows
from elastream.errors import InputError
from elastream.policies.forecasting.seasonal import BackTested
from elastream.policies.forecasting.series import QUANTILES, Ahead, SeriesOf, TimeSeries
from support.property_examples import examples

RATE = SeriesOf(Rows.OPERATOR, "in", Metric.ARRIVAL_RATE)
STEP = 300.0


def series(values):
    times = STEP * np.arange(1, len(values) + 1)
    return TimeSeries(STEP).extended(times.tolist(), list(values))


def foreseen(values, steps=6, forecaster=None, memory=None):
    found, _ = (forecaster or BackTested()).foresee({RATE: series(values)}, Ahead(STEP * len(values), STEP, steps), memory)
    return found[RATE]


def test_a_trend_goes_on():
    found = foreseen(10 + np.arange(60.0))
    assert found.mean == pytest.approx(70 + np.arange(6), rel=0.02)


def test_a_season_comes_again_once_two_of_it_are_known():
    season = 24

    def wave(n):
        return 50 + 40 * np.sin(2 * np.pi * n / season) + 5 * np.sin(2 * np.pi * n / 3)

    found = foreseen(wave(np.arange(4 * season)), forecaster=BackTested((season * STEP,)))
    assert found.mean == pytest.approx(wave(4 * season + np.arange(6)), abs=2.0)
    assert "season" in found.by


def test_noise_is_forecast_as_its_level_within_quantiles():
    noise = np.random.default_rng(3).normal(100, 10, 200)
    found = foreseen(noise)
    assert found.mean == pytest.approx([100] * 6, abs=8)
    low, middle, high = found.quantiles
    assert np.all(low <= middle)
    assert np.all(middle <= high)
    assert np.all((high - low > 10) & (high - low < 60))


def test_without_a_value_nothing_is_known_and_with_few_one_lasts():
    assert np.isnan(foreseen([math.nan] * 3).mean).all()
    assert foreseen([1.0, 5.0, 3.0]).mean.tolist() == [3.0] * 6
    assert foreseen([7.0] * 40).mean.tolist() == [7.0] * 6


def test_gaps_are_bridged_and_a_silence_at_the_end_is_no_end():
    values = 10 + np.arange(60.0)
    values[[5, 20, 21, 22, 50]] = math.nan
    assert foreseen(values).mean == pytest.approx(70 + np.arange(6), rel=0.03)
    late, _ = BackTested().foresee({RATE: series(values)}, Ahead(STEP * 70, STEP, 6))
    assert np.isfinite(late[RATE].mean).all()


def test_choice_lasts_until_the_series_grew_by_a_quarter():
    forecaster = BackTested()
    values = np.random.default_rng(1).normal(50, 5, 80)
    first, memory = forecaster.foresee({RATE: series(values[:60])}, Ahead(STEP * 60, STEP, 6))
    _, kept = forecaster.foresee({RATE: series(values[:64])}, Ahead(STEP * 64, STEP, 6), memory)
    assert kept == memory
    _, anew = forecaster.foresee({RATE: series(values)}, Ahead(STEP * 80, STEP, 6), memory)
    assert anew != memory
    again, _ = forecaster.foresee({RATE: series(values[:60])}, Ahead(STEP * 60, STEP, 6))
    assert np.array_equal(first[RATE].mean, again[RATE].mean)
    assert np.array_equal(first[RATE].quantiles, again[RATE].quantiles)


@given(st.lists(st.floats(0, 1e6) | st.just(math.nan), min_size=1, max_size=40), st.integers(1, 12))
@settings(max_examples=examples(15), deadline=None)
def test_forecasts_are_finite_not_negative_and_ordered(values, steps):
    found = foreseen(values, steps)
    assert found.mean.shape == (steps,)
    assert found.quantiles.shape == (len(QUANTILES), steps)
    if any(not math.isnan(each) for each in values):
        assert np.isfinite(found.mean).all()
        assert (found.mean >= 0).all()
        assert (np.diff(found.quantiles, axis=0) >= 0).all()


def test_what_is_no_season_is_refused():
    with pytest.raises(InputError, match="season"):
        BackTested((0.0,))


def test_without_its_library_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("elastream.policies.forecasting.seasonal.find_spec", lambda _: None)
    assert "pip install 'elastream[forecast]'" in BackTested().lacking()
