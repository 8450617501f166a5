"""Synthetic readings: what they hold by construction."""

import numpy as np
import pytest

from elastream_papers.thesis.dynamic_dataflow.readings import DAY, WEEK, Generator, Regime, generate


@pytest.fixture(scope="module")
def readings():
    return generate(Generator(), weeks=3, seed=1, customers=6)


def test_equal_seeds_give_equal_readings_and_others_others(readings):
    again = generate(Generator(), 3, 1, 6)
    assert (again.power == readings.power).all()
    assert (generate(Generator(), 3, 2, 6).power != readings.power).any()


def test_power_is_positive_and_whole_weeks_long(readings):
    assert readings.power.shape == (6, 3 * 7 * 24 * 60)
    assert readings.loads.shape == (6, 3 * WEEK)
    assert (readings.power > 0).all()


def test_each_way_of_working_occurs_and_shows_in_the_deviations(readings):
    regime = readings.regime[:, ::15]
    found = {each: np.median(readings.deviations[regime == each]) for each in Regime}
    assert found[Regime.SCHEDULED] < found[Regime.DRIFTING]
    assert found[Regime.SCHEDULED] < found[Regime.CYCLING]


def test_a_timetable_repeats_on_working_days():
    still = Generator(weather=0.0, noise_scheduled=0.0, home_hours=1e9)
    loads = generate(still, 2, 1, 1).loads[0]
    assert loads[:DAY] == pytest.approx(loads[DAY : 2 * DAY])
    assert loads[5 * DAY : 6 * DAY] == pytest.approx(loads[6 * DAY : 7 * DAY])
    assert loads[5 * DAY : 6 * DAY].mean() < loads[:DAY].mean()


def test_the_first_weeks_are_the_first_weeks(readings):
    assert (readings.first(2).power == readings.power[:, : 2 * WEEK * 15]).all()
