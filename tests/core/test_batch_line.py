"""The line through batches that sizes, savings and simulations predict from."""

import numpy as np
import pytest

from elastream.core.batch_line import BatchLine


def test_batches_of_several_sizes_tell_fixed_time_and_work_apart():
    work = np.array([100.0, 200.0, 300.0, 400.0] * 5)
    line = BatchLine.of(work, 0.5 + 0.01 * work, assumed=9.0)
    assert line.separable
    assert (line.fixed, line.each) == (pytest.approx(0.5), pytest.approx(0.01))


def test_batches_of_one_size_take_the_assumed_fixed_time():
    line = BatchLine.of(np.full(20, 100.0), np.full(20, 1.5), assumed=0.5)
    assert not line.separable
    assert (line.fixed, line.each) == (0.5, pytest.approx(0.01))


@pytest.mark.parametrize(("line", "most"), [(BatchLine(0.5, 0.01), 150.0), (BatchLine(0.5, 0.0), np.inf)])
def test_largest_batch_of_a_time_fills_it(line, most):
    assert line.largest(2.0) == pytest.approx(most)
