"""Small parts under the queues: random draws, lines of waiting items, flows put together, the busiest time of a load."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.simulator import Emissions
from elastream.simulator.draws import DETERMINISTIC, EXPONENTIAL, LOGNORMAL, factor, normal, sequence
from elastream.simulator.stations import ItemQueue, Items
from elastream.simulator.watching import quantiles

NONE = np.zeros(0)


def flow(times):
    at = np.array(sorted(times), dtype=np.float64)
    return Items(at, at + 0.5, np.ones(at.size))


@pytest.mark.parametrize("level", [1e-12, 1e-4, 0.02, 0.075, 0.3, 0.5, 0.77, 0.98, 1 - 1e-9])
def test_the_normal_quantile_is_the_known_one(level):
    assert normal(level) == pytest.approx(NormalDist().inv_cdf(level), abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "shape", "deviation"), [(DETERMINISTIC, 0, 0), (LOGNORMAL, 0.2, 0.202), (EXPONENTIAL, 0, 1)]
)
def test_service_times_average_1_and_vary_as_their_distribution(kind, shape, deviation):
    start = sequence(1, 2)
    drawn = np.array([factor(kind, shape, NONE, start, number) for number in range(5_000)])
    # 5,000 draws: the standard error of the mean is at most 0.014.
    assert drawn.mean() == pytest.approx(1, abs=0.06)
    assert drawn.std() == pytest.approx(deviation, rel=0.08, abs=1e-9)


@given(st.lists(st.tuples(st.lists(st.floats(0, 9), max_size=400), st.integers(0, 500)), max_size=8))
def test_a_line_gives_what_was_added_in_order_of_time(steps):
    line, kept = ItemQueue(), []
    for number, (times, taken) in enumerate(steps):
        came = [10.0 * number + time for time in times]
        line.add(flow(came))
        kept = sorted(kept + came)
        taken = min(taken, len(kept))
        assert line.flow.times[:taken].tolist() == kept[:taken]
        line.take(taken)
        kept = kept[taken:]
        assert len(line) == len(kept)
        assert line.flow.born.tolist() == [time + 0.5 for time in kept]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=60), st.floats(0.01, 0.99))
def test_a_weighted_quantile_equals_that_of_repeated_items(pairs, share):
    values, weights = np.array(pairs, dtype=np.float64).T
    repeated = np.sort(np.repeat(values, weights.astype(int)))
    expected = repeated[max(0, math.ceil(share * repeated.size - 1e-9) - 1)]
    assert quantiles([Items(values, values, weights)], [share]) == [expected]


@pytest.mark.parametrize(
    ("load", "items"),
    [
        (Emissions.every(1.0, [1, 5, 7, 2]), 12),
        (Emissions.every(60.0, [600, 1200], spread=True), 40),
        (Emissions.at([]), 0),
        (Emissions.at([0.0, 0.5, 1.0, 1.9, 5.0]), 4),
    ],
)
def test_the_busiest_two_seconds_of_a_load(load, items):
    assert load.busiest(2.0) == pytest.approx(items)
