"""Synthetic readings: what they hold by construction."""

import numpy as np
import pytest

from elastream_papers.thesis.dynamic_dataflow.readings import DAY, Generator, Regime, generate


@pytest.fixture(scope="module")
def readings():
    return generate(Generator(), weeks=3, seed=1, customers=6)


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
