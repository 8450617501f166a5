"""Forecasting methods beside plain loops over the same past."""

import numpy as np
import pytest

from elastream_papers.thesis.dynamic_dataflow.methods import (
    HISTORY,
    HORIZON,
    METHODS,
    Fitted,
    fit,
    forecast,
    hours_of,
    pasts_of,
    percentage_errors,
    values_of,
)
from elastream_papers.thesis.dynamic_dataflow.readings import DAY, WEEK, Generator, generate


@pytest.fixture(scope="module")
def loads():
    return generate(Generator(), weeks=4, seed=3, customers=4).loads


@pytest.fixture(scope="module")
def fitted(loads):
    return fit(loads[:, : 3 * WEEK])


def past_of(loads, customer, begin):
    return loads[customer, begin - HISTORY : begin]


def like_days(begin):
    """Begins of the same hour on like days of the two weeks before, the latest first."""
    weekend = begin // DAY % 7 >= 5
    return [begin - DAY * back for back in range(1, 15) if ((begin - DAY * back) // DAY % 7 >= 5) == weekend]


BEGINS = [3 * WEEK, 3 * WEEK + 2 * HORIZON, 3 * WEEK + DAY + 40, 3 * WEEK + 5 * DAY + 60, 4 * WEEK - HORIZON]


@pytest.mark.parametrize("begin", BEGINS)
def test_averages_are_those_of_plain_loops(loads, fitted, begin):
    mine, days = loads[1], like_days(begin)
    assert len(days) in (10, 4)
    mean = np.mean([mine[day : day + HORIZON] for day in days], axis=0)
    total = {day: mine[day // DAY * DAY : (day // DAY + 1) * DAY].sum() for day in days}
    highest = sorted(days, key=lambda day: -total[day])[: len(days) // 2]
    hours = [
        np.mean([mine[day - back * HORIZON : day - (back - 1) * HORIZON] for day in days], axis=0) for back in (4, 3, 2)
    ]
    ratio = mine[begin - 4 * HORIZON : begin - HORIZON].sum() / np.sum(hours)
    expected = {
        "caiso": mean,
        "nyiso": np.mean([mine[day : day + HORIZON] for day in highest], axis=0),
        "casce": mean * np.clip(ratio, 0.6, 1.4),
        "sliding1": np.full(HORIZON, mine[begin - 4 : begin].mean()),
        "sliding2": np.full(HORIZON, mine[begin - 8 : begin].mean()),
    }
    for name, kw in expected.items():
        assert forecast(name, fitted, past_of(loads, 1, begin), 1, begin % WEEK) == pytest.approx(kw), name


def test_arima_is_its_recursion(loads):
    fitted = Fitted(np.array([[0.5, -0.2, 0.3]]), None)
    past = past_of(loads, 0, 3 * WEEK)
    steps, errors = np.diff(past[-DAY:]).tolist(), [0.0, 0.0]
    for number in range(2, len(steps)):
        errors.append(steps[number] - 0.5 * steps[number - 1] + 0.2 * steps[number - 2] - 0.3 * errors[-1])
    level, expected = past[-1], []
    for number in range(HORIZON):
        steps.append(0.5 * steps[-1] - 0.2 * steps[-2] + (0.3 * errors[-1] if number == 0 else 0.0))
        level += steps[-1]
        expected.append(level)
    assert forecast("arima", fitted, past, 0, 0) == pytest.approx(expected)


def test_arima_is_fitted_to_what_made_the_series():
    rng = np.random.default_rng(0)
    noise, steps = rng.standard_normal(5000), [0.0, 0.0]
    for number in range(2, 5000):
        steps.append(0.6 * steps[-1] - 0.3 * steps[-2] + noise[number] + 0.4 * noise[number - 1])
    series = 1e4 + np.cumsum(steps)
    found = fit(series[None, : 5000 // DAY * DAY]).arima[0]
    assert found == pytest.approx([0.6, -0.3, 0.4], abs=0.15)


def test_many_pasts_at_once_are_forecast_as_one_by_one(loads, fitted):
    hours = np.arange(3 * WEEK, 3 * WEEK + DAY, HORIZON) // HORIZON
    past, customer, start = pasts_of(loads, hours)
    for name, method in METHODS.items():
        together = method(fitted, past, customer, start)
        assert together.shape == (len(loads) * len(hours), HORIZON)
        for number in (0, 30, len(past) - 1):
            alone = forecast(name, fitted, past[number], int(customer[number]), int(start[number]))
            assert together[number] == pytest.approx(alone), name


def test_a_past_ends_where_its_hour_begins(loads):
    hours = hours_of(loads)
    past, customer, start = pasts_of(loads, hours[:3])
    assert past[4, -1] == loads[1, hours[1] * HORIZON - 1]
    assert customer[4] == 1
    assert start[4] == hours[1] * HORIZON % WEEK
    assert values_of(loads, hours[:3])[4] == pytest.approx(loads[1, hours[1] * HORIZON : (hours[1] + 1) * HORIZON])


def test_no_method_sees_what_comes(loads, fitted):
    begin = 3 * WEEK + 33 * HORIZON
    other = loads.copy()
    other[:, begin:] = 1.0
    for name in METHODS:
        seen = [forecast(name, fitted, past_of(each, 2, begin), 2, begin % WEEK) for each in (loads, other)]
        assert (seen[0] == seen[1]).all()


def test_errors_are_absolute_percentages():
    assert percentage_errors(np.array([100.0, 200.0]), np.array([90.0, 220.0])) == pytest.approx(10.0)
