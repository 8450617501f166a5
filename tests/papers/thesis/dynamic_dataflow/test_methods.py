"""Forecasting methods beside plain loops over the same past."""

import numpy as np
import pytest

from elastream_papers.thesis.dynamic_dataflow import methods
from elastream_papers.thesis.dynamic_dataflow.readings import DAY, WEEK, Generator, generate


@pytest.fixture(scope="module")
def loads():
    return generate(Generator(), weeks=4, seed=3, customers=4).loads


@pytest.fixture(scope="module")
def fitted(loads):
    return methods.fit(loads[:, : 3 * WEEK])


def past_of(loads, customer, begin):
    return loads[customer, begin - methods.HISTORY : begin]


def like_days(begin):
    """Begins of the same hour on like days of the two weeks before, the latest first."""
    weekend = begin // DAY % 7 >= 5
    return [begin - DAY * back for back in range(1, 15) if ((begin - DAY * back) // DAY % 7 >= 5) == weekend]


BEGINS = [
    3 * WEEK,
    3 * WEEK + 2 * methods.HORIZON,
    3 * WEEK + DAY + 40,
    3 * WEEK + 5 * DAY + 60,
    4 * WEEK - methods.HORIZON,
]


@pytest.mark.parametrize("begin", BEGINS)
def test_averages_are_those_of_plain_loops(loads, fitted, begin):
    mine, days = loads[1], like_days(begin)
    assert len(days) in (10, 4)
    mean = np.mean([mine[day : day + methods.HORIZON] for day in days], axis=0)
    total = {day: mine[day // DAY * DAY : (day // DAY + 1) * DAY].sum() for day in days}
    highest = sorted(days, key=lambda day: -total[day])[: len(days) // 2]
    hours = [
        np.mean([mine[day - back * methods.HORIZON : day - (back - 1) * methods.HORIZON] for day in days], axis=0)
        for back in (4, 3, 2)
    ]
    ratio = mine[begin - 4 * methods.HORIZON : begin - methods.HORIZON].sum() / np.sum(hours)
    expected = {
        "caiso": mean,
        "nyiso": np.mean([mine[day : day + methods.HORIZON] for day in highest], axis=0),
        "casce": mean * np.clip(ratio, 0.6, 1.4),
        "sliding1": np.full(methods.HORIZON, mine[begin - 4 : begin].mean()),
        "sliding2": np.full(methods.HORIZON, mine[begin - 8 : begin].mean()),
    }
    for name, kw in expected.items():
        assert methods.forecast(name, fitted, past_of(loads, 1, begin), 1, begin % WEEK) == pytest.approx(kw), name


def test_no_method_sees_what_comes(loads, fitted):
    begin = 3 * WEEK + 33 * methods.HORIZON
    other = loads.copy()
    other[:, begin:] = 1.0
    for name in methods.METHODS:
        seen = [methods.forecast(name, fitted, past_of(each, 2, begin), 2, begin % WEEK) for each in (loads, other)]
        assert (seen[0] == seen[1]).all()
