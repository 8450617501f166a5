"""About the most that a run could leave, against a calculation by hand."""

import math

import pytest

from elastream_papers.thesis.deployed import at_best
from elastream_papers.thesis.reactive.experiment import HOSTS, NONE, ReactiveAssumptions, site_of

GIVEN = ReactiveAssumptions()
WORK = [
    GIVEN.road.unit * each
    for each in (0.5 * 0.1, 50 * 0.1, 50.5 * 1.2, 50 * 0.1, *(55.5 * cost for cost in (0.3, 0.3, 0.3, 0.5)))
]
"""Cores of speed 1 that the operators of Linear Road work at 50 reports/s with the alternates of most value."""


def money_for(speed: float) -> float:
    """Of the least number of small hosts, with a core of speed 1 for 0.06 an hour, for twelve hours."""
    return sum(math.ceil(each / speed) for each in WORK) * 0.06 * 12


def test_a_steady_load_is_processed_on_the_fewest_instances():
    profit, value, money = at_best(site_of(50, NONE, 1, GIVEN))
    assert value == 1.0
    assert money == pytest.approx(money_for(1.0))
    assert profit == pytest.approx((60.0 - money) * 0.45 / 30.0)


def test_slow_hosts_are_paid_for_longer():
    site = site_of(50, HOSTS, 1, GIVEN)
    assert at_best(site)[2] == pytest.approx(money_for(site.settings.speed_trace.factors.mean()))
