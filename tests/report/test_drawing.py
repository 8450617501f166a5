"""A long curve has fewer points, and the same ends, heights and gaps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastream.report.drawing import thinned

VALUES = st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=300)


@given(VALUES, st.integers(4, 100))
def test_a_curve_keeps_its_ends_its_highest_and_its_lowest_value_in_order(values, most):
    times, values = np.arange(len(values), dtype=float), np.array(values)
    at, kept = thinned(times, values, most)
    assert len(at) <= max(most, 4)
    assert (np.diff(at) > 0).all()
    assert (at[0], at[-1]) == (times[0], times[-1])
    np.testing.assert_array_equal(kept, values[at.astype(int)])
    if not np.isnan(values).all():
        assert (np.nanmax(kept), np.nanmin(kept)) == (np.nanmax(values), np.nanmin(values))


def test_a_short_curve_is_left_as_it_is():
    times, values = np.arange(5.0), np.array([1.0, np.nan, 3.0, 2.0, 1.0])
    assert all(a is b for a, b in zip(thinned(times, values, 5), (times, values), strict=True))


def test_a_stretch_of_which_nothing_is_known_stays_unknown():
    values = np.where(np.arange(1000) < 500, np.nan, 1.0)
    at, kept = thinned(np.arange(1000.0), values, 20)
    assert np.isnan(kept[at < 400]).all()
    assert (kept[at > 600] == 1.0).all()
