"""Bars: held, missed, or undecided where too few runs scatter too much."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.evaluation.checks import median_at_least, median_at_most
from elastream.evaluation.findings import Check, as_json, counted

WHERE = "a source"


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        ([1.0], "undecided"),
        ([1.0] * 4, "undecided"),
        ([1.0] * 5, "held"),
        ([1.0] * 4 + [0.9], "undecided"),
        ([1.0] * 7 + [0.9], "held"),
        ([0.9] * 5, "missed"),
        ([0.9] * 4 + [1.0], "undecided"),
    ],
)
def test_runs_that_scatter_decide_a_bar_where_enough_agree(runs, verdict):
    assert median_at_least("ratio", runs, 0.97, WHERE).verdict == verdict
    assert median_at_most("ratio", [-run for run in runs], -0.97, WHERE).verdict == verdict


@given(st.lists(st.floats(0, 2), min_size=1, max_size=30), st.floats(0, 2))
def test_a_bar_is_never_both_held_and_missed(runs, bar):
    check = median_at_least("ratio", runs, bar, WHERE)
    assert check.missed == (check.verdict == "missed")
    if check.verdict == "held":
        assert sorted(runs)[(len(runs) - 1) // 2] >= bar


def test_an_undecided_bar_is_distinguished_in_json_and_in_words():
    checks = [Check("a", 1.0, ">= 1", True, WHERE), Check("b", 1.0, ">= 1", None, WHERE), Check.at_least("c", 0, 1, WHERE)]
    found = as_json({"n": 1}, {}, checks, {"cores": 2})
    assert [check["verdict"] for check in found["checks"]] == ["held", "undecided", "missed"]
    assert found.keys() == {"figures", "paper", "checks", "summary", "environment"}
    assert counted(checks) == "1 of 3 bars are held, 1 undecided"
    assert counted(checks[:1]) == "1 of 1 bars are held"
