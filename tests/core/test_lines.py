"""Lines that stalled measurements do not bend."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.lines import line_through

sizes = st.lists(st.floats(1, 1e5), min_size=3, max_size=60, unique=True)
measured = st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 10)), min_size=1, max_size=40)


@given(sizes, st.floats(0.01, 2), st.floats(1e-5, 1e-2))
def test_an_exact_line_is_found(records, fixed, each):
    x = np.array(records)
    found = line_through(x, fixed + each * x)
    assert found[0] + found[1] * x == pytest.approx(fixed + each * x, rel=1e-6)


def test_stalled_batches_do_not_bend_the_line():
    records = np.linspace(100, 50_000, 60)
    lasted = 0.3 + 2e-5 * records
    lasted[::5] += 4.0
    assert line_through(records, lasted) == pytest.approx((0.3, 2e-5), rel=0.1)


@given(measured)
def test_neither_coefficient_is_negative(pairs):
    x, y = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    fixed, each = line_through(x, y)
    assert 0 <= fixed < np.inf
    assert 0 <= each < np.inf


def test_without_different_sizes_all_is_fixed():
    assert line_through(np.full(5, 7.0), np.full(5, 2.0)) == (2.0, 0.0)
