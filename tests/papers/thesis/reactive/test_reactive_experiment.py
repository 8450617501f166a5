"""The evaluation of chapter 4: plans that are in force from the start, and what is judged of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elastream_papers.thesis import deployed
from elastream_papers.thesis.deployed import RUN
from elastream_papers.thesis.reactive import experiment
from elastream_papers.thesis.reactive.algorithms import parameters
from elastream_papers.thesis.reactive.bars import TABLE, ReactiveResults, bars, straightness
from elastream_papers.thesis.reactive.page import _plans, _runs, outcome
from elastream_papers.thesis.reactive.printed import PrintedCentralised

GIVEN = experiment.ReactiveAssumptions()


def test_a_static_plan_holds_what_it_promises_where_nothing_varies():
    planned = experiment.plan_case(experiment.PlanCase("ce", 20))
    run = experiment.run_case(experiment.ReactiveCase("ce", 20, experiment.NONE, False, 1, planned.plan))
    assert run.throughput == pytest.approx(planned.throughput, abs=0.02)
    assert run.cost == pytest.approx(planned.cost)
    assert run.profit == pytest.approx(planned.profit, abs=0.01)
    assert run.series.shape == (144, 5)


def test_every_run_has_its_plan_and_no_run_is_made_twice():
    for quick in (True, False):
        plans = [planned(c.algorithm, c.rate, alternates=c.alternates) for c in _plans(GIVEN, quick)]
        runs = _runs(GIVEN, quick, plans)
        assert {r.algorithm for r in runs} == {*experiment.ALGORITHMS, experiment.OWN}
        keys = [(r.algorithm, r.rate, r.varies, r.adapted, r.seed, r.alternates, r.stages) for r in runs]
        assert len(set(keys)) == len(keys) > 20


def planned(algorithm: str, rate: int, profit: float = 0.3, *, alternates: bool = True) -> experiment.Planned:
    plan: Any = None
    return experiment.Planned(
        experiment.PlanCase(algorithm, rate, alternates=alternates),
        plan,
        profit,
        0.8,
        0.8,
        10.0,
        rate / 10,
        rate / 5,
        rate / 1000,
        profit,
    )


def run(
    algorithm: str,
    rate: int,
    varies: experiment.Variation = experiment.BOTH,
    *,
    adapted: bool = True,
    alternates: bool = True,
    **figures: Any,
):
    plan: Any = None
    found = experiment.ReactiveRun(
        experiment.ReactiveCase(algorithm, rate, varies, adapted, 1, plan, alternates),
        0.9, 0.8, 0.8, 0.9, 10.0, 0.3, 0.1, 5, 4.0, 1.0, 0, 0.5, np.zeros((144, 5)),
    )  # fmt: skip
    return replace(found, **figures)


ADAPTED = {"genetic": 0.34, "ce": 0.25, "sh": 0.1, experiment.OWN: 0.3}


def results(**figures: Any) -> ReactiveResults:
    static = [
        run(a, experiment.TABLED, column, adapted=False, profit=row[0], throughput=row[n], waited=row[n])
        for a, row in TABLE.items()
        for n, column in enumerate(experiment.COLUMNS.values(), 1)
    ]
    rates = (10, 50, 100, 500)
    adapted = [
        run(a, rate, profit=profit) for a, profit in ADAPTED.items() for rate in rates if a != "genetic" or rate <= 100
    ]
    single = [
        run(a, rate, alternates=False, profit=ADAPTED[a] - 0.05, cost=12.0 if rate < 500 else 13.0)
        for a in experiment.GREEDY
        for rate in rates
    ]
    plans = [planned(a, rate) for a in experiment.ALGORITHMS for rate in (*rates, 800, 8000)]
    return ReactiveResults(
        plans, [replace(each, **figures) if each.case.adapted else each for each in (*static, *adapted, *single)]
    )


def test_all_bars_hold_where_all_is_as_in_the_thesis():
    assert [check.name for check in bars(results()) if not check.holds] == []


def test_eq_4_4_refutes_the_first_column_of_table_4_2():
    found = [check for check in bars(results()) if check.verdict == "refuted"]
    assert ["neither; throughput by Eq. 4.4 off" in check.name for check in found] == [True]


def test_profits_are_judged_on_both_sides():
    for profit in (0.15, 0.33):
        low = [replace(each, profit=profit) if each.case.algorithm == "ce" else each for each in results().runs]
        missed = [check.name for check in bars(ReactiveResults(results().planned, low)) if check.missed]
        assert any("over GA's" in name for name in missed)


def test_a_search_below_the_greedy_plan_misses_its_bar():
    poor = [replace(each, profit=0.2) if each.case.algorithm == "genetic" else each for each in results().runs]
    assert any(
        check.missed and "GA's profit above CE's" in check.name
        for check in bars(ReactiveResults([*results().planned], poor))
    )


def test_a_policy_that_loses_its_throughput_misses_its_bar():
    missed = [check.name for check in bars(results(waited=0.7)) if check.missed]
    assert len(missed) == 3
    assert all("least throughput" in name for name in missed)


def test_the_page_has_every_table_and_the_json_every_figure():
    found = outcome(results(), [results(), results(waited=0.7)], 1.0)
    assert found.holds
    assert found.figures["share of draws"]
    assert min(found.figures["share of draws"].values()) == 0.5
    assert found.figures["assumptions"]["unit"] == GIVEN.road.unit
    assert RUN == 12 * 3600


def test_algorithm_4_as_printed_acts_only_in_its_stages():
    planned = experiment.plan_case(experiment.PlanCase("ce", 20))
    site = experiment.site_of(20, experiment.BOTH, 1, GIVEN)
    problem, _ = deployed.problem_at(site)
    plant = deployed.deployed(site, problem, planned.plan)
    policy = PrintedCentralised(**parameters(site.goal), alternates=7, resources=5)
    _, run = deployed.run_site(site, plant, policy)
    acted = [number for number, decision in enumerate(run.decisions) if decision.outcomes]
    assert acted
    assert all(number % 7 == 0 or number % 5 == 4 for number in acted)


def test_points_on_a_line_are_straight_and_others_less():
    assert straightness([1, 2, 3], [2, 4, 6]) == pytest.approx(1.0)
    assert straightness([1, 2, 3], [1, 9, 2]) < 0.5
