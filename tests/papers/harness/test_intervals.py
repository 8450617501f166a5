"""Intervals of means: their width is Student's, and a bar within them is undecided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.evaluation.checks import (
    MeanInterval,
    all_within,
    mean_at_least,
    mean_at_most,
    mean_within,
    ordered,
    t_quantile,
)
from elastream.evaluation.findings import Check, counted


@pytest.mark.parametrize(
    ("freedom", "confidence", "printed"),
    [(1, 0.95, 12.706), (2, 0.95, 4.303), (4, 0.95, 2.776), (9, 0.95, 2.262), (30, 0.95, 2.042), (120, 0.95, 1.980),
     (3, 0.99, 5.841), (10, 0.99, 3.169)],
)  # fmt: skip
def test_quantiles_are_those_of_printed_tables(freedom, confidence, printed):
    assert t_quantile(freedom, confidence) == pytest.approx(printed, abs=6e-4)


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


ALIKE, RISES, FALLS, UNSURE = [-0.001, 0.001, 0.0], [0.1, 0.2, 0.15], [-0.1, -0.11, -0.12], [-1.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ((RISES, RISES), "held"),
        ((RISES, UNSURE), "undecided"),
        ((UNSURE, FALLS), "missed"),
        (([0.0, 0.0],), "held"),
        ((RISES, ALIKE), "undecided"),
    ],
)
def test_an_order_is_held_if_every_step_rises(steps, verdict):
    assert ordered("order", "a / b / c", "ascending", steps, "a source").verdict == verdict


@pytest.mark.parametrize(
    ("cells", "verdict"),
    [
        ((RISES, FALLS), "held"),
        ((RISES, UNSURE), "undecided"),
        ((RISES, [1.0, 1.1, 1.2]), "missed"),
        ((RISES, [-1.0, -1.1, -1.2]), "missed"),
    ],
)
def test_a_printed_value_is_missed_above_and_below(cells, verdict):
    assert all_within("cells", cells, 0.5, "a source").verdict == verdict
    assert mean_within("one", cells[-1], -0.5, 0.5, "a source").verdict == verdict


def test_a_refuted_claim_is_not_a_miss():
    check = Check("higher", 0.0, "> 0", False, "a source", "work is conserved")
    assert check.verdict == "refuted"
    assert not check.missed
    assert counted([check]) == "0 of 1 bars are held, 1 refuted"


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=20), st.floats(-10, 10))
def test_more_confidence_never_turns_held_into_missed(values, bar):
    near, far = MeanInterval.of(values, 0.9).at_least(bar), MeanInterval.of(values, 0.999).at_least(bar)
    assert far in (near, None)
