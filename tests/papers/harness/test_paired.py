"""Paired differences: the exact sign-flip test, its interval, its power and Holm's correction."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from elastream_papers.harness.paired import PairedClaim, decided


def claim(*differences, bound=1.0):
    return PairedClaim("a less b", differences, "s", bound, "nobody")


def test_the_chance_of_differences_of_one_sign_is_that_of_as_many_coins():
    assert claim(*[1.0] * 10).p == pytest.approx(2 / 1024)
    assert claim(*[-1.0] * 10).p == pytest.approx(2 / 1024)
    assert claim(1.0, -1.0).p == 1.0


# Multiples of a power of two: sums are exact, so that both see the same ties.
@given(st.lists(st.integers(-640, 640).filter(bool).map(lambda number: number / 64), min_size=3, max_size=9))
def test_it_is_what_a_library_says(values):
    test = stats.permutation_test(
        (np.array(values),), np.mean, permutation_type="samples", alternative="two-sided", n_resamples=math.inf
    )
    assert claim(*values).p == pytest.approx(min(1.0, test.pvalue), abs=1e-9)


def test_an_interval_and_its_test_say_the_same():
    values = [0.9, 1.1, 1.4, 0.2, 0.7, 1.0, -0.1, 0.6]
    low, high = claim(*values).interval()
    for off, outside in ((low - 0.01, True), (low + 0.01, False), (high - 0.01, False), (high + 0.01, True)):
        assert (claim(*(each - off for each in values)).p <= 0.05) is outside


def test_few_blocks_bound_nothing_and_none_decide_nothing():
    assert claim(1.0, 1.0).interval() == (-math.inf, math.inf)
    assert decided([claim()]) == [None]
    assert claim(1.0).power(0.05) == 0.0


def test_several_claims_are_held_to_more_than_one():
    strong, weak = claim(*[1.0] * 10), claim(*[1.0] * 6)
    assert weak.p == pytest.approx(2 / 64)
    assert decided([weak]) == [True]
    assert decided([weak, strong]) == [True, True]
    assert decided([weak, weak]) == [None, None]
    assert decided([strong, claim(*[-1.0] * 10)]) == [True, False]
