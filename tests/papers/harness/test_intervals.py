"""Intervals of means: their width is Student's, and a bar within them is undecided."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream_papers.harness.checks import MeanInterval, mean_at_least, mean_at_most, ordered, t_quantile


@pytest.mark.parametrize(
    ("freedom", "confidence", "printed"),
    [(1, 0.95, 12.706), (2, 0.95, 4.303), (4, 0.95, 2.776), (9, 0.95, 2.262), (30, 0.95, 2.042), (120, 0.95, 1.980),
     (3, 0.99, 5.841), (10, 0.99, 3.169)],
)  # fmt: skip
def test_quantiles_are_those_of_printed_tables(freedom, confidence, printed):
    assert t_quantile(freedom, confidence) == pytest.approx(printed, abs=6e-4)


def test_an_interval_is_the_textbook_one():
    found = MeanInterval.of([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.high - found.mean == pytest.approx(4.303 / math.sqrt(3), abs=1e-3)
    assert found.shown(1) == "2.0 (-0.5 to 4.5)"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([1.1, 1.2, 1.1, 1.2], "held"), ([0.8, 0.9, 0.8, 0.9], "missed"), ([0.8, 1.1, 1.2], "undecided"),
     ([2.0], "undecided"), ([], "undecided"), ([1.0, 1.0], "held")],
)  # fmt: skip
def test_a_bar_within_the_interval_is_undecided(values, verdict):
    assert mean_at_least("gain", values, 1.0, "a source").verdict == verdict
    assert mean_at_most("loss", [-value for value in values], -1.0, "a source").verdict == verdict


def test_what_no_run_changes_has_no_interval_of_no_width():
    assert MeanInterval.of([0.25, 0.25, 0.25]).shown(2) == "0.25 (in all of 3 runs)"
    assert MeanInterval.of([0.25]).shown(2) == "0.25"


def test_an_order_is_held_if_every_step_is_and_missed_if_one_surely_falls():
    rises, falls, unsure = [0.1, 0.2, 0.15], [-0.1, -0.11, -0.12], [-1.0, 1.0, 0.5]

    def verdict(*steps):
        return ordered("order", "a / b / c", "ascending", steps, "a source").verdict

    assert verdict(rises, rises) == "held"
    assert verdict(rises, unsure) == "undecided"
    assert verdict(unsure, falls) == "missed"
    assert verdict([0.0, 0.0]) == "held"


def test_an_order_with_a_tolerance_is_held_by_what_is_alike_within_it_and_by_nothing_else():
    alike, rises, falls = [-0.001, 0.001, 0.0], [0.1, 0.2, 0.15], [-0.1, -0.11, -0.12]

    def verdict(*steps, tolerances=()):
        return ordered("order", "a / b / c", "ascending", steps, "a source", tolerances).verdict

    assert verdict(rises, alike) == "undecided"
    assert verdict(rises, alike, tolerances=(0.0, 0.01)) == "held"
    assert verdict(alike, rises, tolerances=(0.0, 0.01)) == "undecided"
    assert verdict(rises, falls, tolerances=(0.0, 0.01)) == "missed"


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=20), st.floats(-10, 10))
def test_more_confidence_never_turns_held_into_missed(values, bar):
    near, far = MeanInterval.of(values, 0.9).at_least(bar), MeanInterval.of(values, 0.999).at_least(bar)
    assert far in (near, None)
