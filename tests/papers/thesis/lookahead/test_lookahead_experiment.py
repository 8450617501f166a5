"""The evaluation of chapter 5: which runs are made, and what is judged of them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from elastream_papers.thesis.lookahead import experiment
from elastream_papers.thesis.lookahead.bars import LookaheadResults, bars
from elastream_papers.thesis.lookahead.page import _cases, outcome

GIVEN = experiment.LookaheadAssumptions()
SLOW = replace(GIVEN, cloud=replace(GIVEN.cloud, start=600.0))
NONE: Mapping[str, float] = MappingProxyType({})
RANK = {
    experiment.INTERVAL: 0.58,
    experiment.EACH_ROUND: 0.4,
    experiment.CE: 0.47,
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


def results(
    profit: Callable[[experiment.LookaheadCase], float] = as_in_the_thesis, waited: Mapping[str, float] = NONE
) -> LookaheadResults:
    found = []
    for case in _cases(GIVEN, True, False):
        chi = 10 if case.policy == "plasticc" else 30
        kept = waited.get(case.policy, 0.8)
        found.append(
            experiment.LookaheadRun(
                case, 0.95, kept, 0.9, 0.8, 40.0, profit(case), chi, 9.0, 3.0, 1.0, 2.0, 0, 0.7, np.zeros((144, 4))
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


def test_looking_ahead_is_compared_with_ce_that_sees_no_forecast():
    found = bars(results(lambda case: 0.8 if case.policy == experiment.CE else as_in_the_thesis(case)))
    assert (
        [check.name for check in found if check.missed] == [each.name for each in found if "that of ce" in each.name] != []
    )


def test_the_profit_of_a_policy_that_loses_its_throughput_does_not_compare():
    def wpo_earns_most(case: experiment.LookaheadCase) -> float:
        return 0.9 if case.policy == "wpo" and not case.forecast.bias else as_in_the_thesis(case)

    for waited, missed in ((0.8, True), (0.6, False)):
        found = bars(results(wpo_earns_most, {"wpo": waited}))
        (lead,) = [check for check in found if "best of the others" in check.name]
        (least,) = [check for check in found if check.name.startswith("the others: least")]
        assert (lead.missed, least.missed) == (missed, not missed)


def test_the_page_is_made_of_the_runs():
    late = LookaheadResults([replace(run, case=replace(run.case, assumptions=SLOW)) for run in results().runs])
    found = outcome(results(), [results()], 1.0, {"late": late})
    assert found.holds
    assert set(found.figures["clouds"]) == {"as assumed", "late"}
    assert set(found.figures["horizons"]["plasticc"]) == {"20", "60"}
    assert set(found.figures["share of draws"].values()) == {1.0}
