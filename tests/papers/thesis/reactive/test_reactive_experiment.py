"""The evaluation of chapter 4: plans that are in force from the start, and what is judged of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elastream.core.metrics import Metric
from elastream_papers.thesis.deployed import RUN, deployed, of_best, problem_at
from elastream_papers.thesis.reactive.bars import ReactiveResults, _ratio, bars, straightness
from elastream_papers.thesis.reactive.experiment import (
    ALGORITHMS,
    BOTH,
    COLUMNS,
    NONE,
    TABLED,
    PlanCase,
    Planned,
    ReactiveAssumptions,
    ReactiveCase,
    ReactiveRun,
    Variation,
    plan_case,
    run_case,
    site_of,
)
from elastream_papers.thesis.reactive.page import _plans, _runs, outcome

GIVEN = ReactiveAssumptions()


def test_a_plan_is_in_force_when_the_run_begins():
    planned = plan_case(PlanCase("ce", 20))
    site = site_of(20, NONE, 1, GIVEN)
    problem, _ = problem_at(site)
    plant = deployed(site, problem, planned.plan)
    plant.advance(60.0)
    seen = plant.observe()
    assert [lease.type.name for lease in seen.leases.values()] == [host.type.name for host in planned.plan.hosts]
    for row, name in enumerate(problem.operators):
        if problem.placed[row]:
            assert seen.operators.value(name, Metric.PARALLELISM) == planned.plan.instances[:, row].sum()
            on = np.bincount(
                seen.tasks.host[seen.tasks.operator == list(seen.operators.ids).index(name)], minlength=len(seen.leases)
            )
            assert on.tolist() == planned.plan.instances[:, row].tolist()
        if len(problem.options[row]) > 1:
            assert seen.composition.alternates[name] == problem.options[row][planned.plan.active[row]].name


def test_a_static_plan_holds_what_it_promises_where_nothing_varies():
    planned = plan_case(PlanCase("ce", 20))
    run = run_case(ReactiveCase("ce", 20, NONE, False, 1, planned.plan))
    assert run.throughput == pytest.approx(planned.throughput, abs=0.02)
    assert run.cost == pytest.approx(planned.cost)
    assert run.profit == pytest.approx(planned.profit, abs=0.01)
    assert run.series.shape == (144, 5)


def test_the_dataflow_of_the_best_alternates_has_one_of_each():
    graph = of_best(site_of(20, NONE, 1, GIVEN).graph)
    assert all(len(each.alternates) <= 1 for each in graph.operators)
    assert all(a.value == 1.0 for each in graph.operators for a in each.alternates)


def test_every_run_has_its_plan_and_no_run_is_made_twice():
    for quick in (True, False):
        plans = [planned(c.algorithm, c.rate, alternates=c.alternates) for c in _plans(GIVEN, quick)]
        runs = _runs(GIVEN, quick, plans)
        keys = [(r.algorithm, r.rate, r.varies, r.adapted, r.seed, r.alternates) for r in runs]
        assert len(set(keys)) == len(keys) > 20


def planned(algorithm: str, rate: int, profit: float = 0.3, *, alternates: bool = True) -> Planned:
    plan: Any = None
    return Planned(
        PlanCase(algorithm, rate, alternates=alternates),
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
    algorithm: str, rate: int, varies: Variation = BOTH, *, adapted: bool = True, alternates: bool = True, **figures: Any
):
    plan: Any = None
    found = ReactiveRun(
        ReactiveCase(algorithm, rate, varies, adapted, 1, plan, alternates),
        0.9, 0.8, 0.8, 0.9, 10.0, 0.3, 0.1, 5, 4.0, 1.0, 0, 0.5, np.zeros((144, 5)),
    )  # fmt: skip
    return replace(found, **figures)


def results(**figures: Any) -> ReactiveResults:
    profit = {"exact": 0.40, "genetic": 0.395, "ce": 0.35, "sh": 0.2}
    static = [
        run(a, TABLED, column, adapted=False, profit=profit[a], throughput=0.8 if column == NONE else 0.6, waited=0.5)
        for a in ALGORITHMS
        for column in COLUMNS.values()
    ]
    adapted = [run(a, rate, profit=profit[a]) for a in ALGORITHMS[1:] for rate in (10, 50, 500)]
    single = [
        run(a, rate, alternates=False, cost=12.0 if rate < 500 else 15.0) for a in ("ce", "sh") for rate in (10, 50, 500)
    ]
    plans = [planned(a, rate) for a in ALGORITHMS for rate in (10, 50, 500, 800, 8000)]
    return ReactiveResults(
        plans, [replace(each, **figures) if each.case.adapted else each for each in (*static, *adapted, *single)]
    )


def test_all_bars_hold_where_all_is_as_in_the_thesis():
    assert [check.name for check in bars(results()) if not check.holds] == []


def test_a_policy_that_loses_its_throughput_misses_its_bar():
    missed = [check.name for check in bars(results(throughput=0.7)) if check.missed]
    assert len(missed) == 3
    assert all("least throughput" in name for name in missed)


def test_the_page_has_every_table_and_the_json_every_figure():
    found = outcome(results(), [results(), results(throughput=0.7)], 1.0)
    assert found.holds
    assert found.figures["share of draws"]
    assert min(found.figures["share of draws"].values()) == 0.5
    assert found.figures["assumptions"]["unit"] == GIVEN.road.unit
    assert RUN == 12 * 3600


def test_points_on_a_line_are_straight_and_others_less():
    assert straightness([1, 2, 3], [2, 4, 6]) == pytest.approx(1.0)
    assert straightness([1, 2, 3], [1, 9, 2]) < 0.5


def test_no_part_of_a_loss_holds_a_bar() -> None:
    assert _ratio(-0.02, -0.3) == 0.0
    assert _ratio(0.2, 0.4) == 0.5
