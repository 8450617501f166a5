"""The evaluation of chapter 5: which runs are made, and what is judged of them."""

from collections.abc import Callable

import numpy as np

from elastream_papers.thesis.lookahead import experiment
from elastream_papers.thesis.lookahead.bars import LookaheadResults, bars
from elastream_papers.thesis.lookahead.page import _cases, outcome

GIVEN = experiment.LookaheadAssumptions()
RANK = {
    experiment.INTERVAL: 0.58,
    experiment.IN_TURNS: 0.4,
    "plasticc": 0.6,
    "waaf": 0.46,
    "caf": 0.45,
    "wpa": 0.5,
    "wpo": 0.49,
    "wpp": 0.3,
}


def as_in_the_thesis(case: experiment.LookaheadCase) -> float:
    forecast = case.forecast
    profit = RANK[case.policy]
    if case.policy == "plasticc":
        profit += case.horizon / 600 - forecast.error * 0.8
    if case.policy == "wpo" and forecast.bias < 0:
        profit += 0.05
    return profit


def results(profit: Callable[[experiment.LookaheadCase], float] = as_in_the_thesis) -> LookaheadResults:
    found = []
    for case in _cases(GIVEN, True, False):
        chi = 10 if case.policy == "plasticc" else 30
        found.append(
            experiment.LookaheadRun(
                case, 0.95, 0.8, 0.9, 0.8, 40.0, profit(case), chi, 9.0, 3.0, 1.0, 2.0, 0, 0.7, np.zeros((144, 4))
            )
        )  # fmt: skip
    return LookaheadResults(found)


def test_no_run_is_made_twice():
    for quick in (True, False):
        cases = _cases(GIVEN, quick, True)
        assert len({(c.policy, c.horizon, c.seed, c.forecast) for c in cases}) == len(cases)


def test_all_bars_hold_where_all_is_as_in_the_thesis():
    assert [check.name for check in bars(results()) if not check.holds] == []


def test_a_profit_that_does_not_grow_misses_its_bars():
    missed = {check.name for check in bars(results(lambda case: RANK[case.policy])) if check.missed}
    assert any("grows with the horizon" in name for name in missed)
    assert any("falls with the error" in name for name in missed)


def test_the_page_is_made_of_the_runs():
    found = outcome(results(), [results()], 1.0)
    assert found.holds
    assert set(found.figures["horizons"]["plasticc"]) == {"20", "60"}
    assert set(found.figures["share of draws"].values()) == {1.0}
