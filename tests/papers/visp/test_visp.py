"""The VISP experiment: the scenario is the paper's, the books balance, and bars are judged by their figures."""

import json
from dataclasses import replace

import pytest

from elastream.evaluation.page import render
from elastream_papers.harness.assumptions import variations
from elastream_papers.visp import experiment
from elastream_papers.visp.bars import Statistic, bars
from elastream_papers.visp.manufacturing import (
    BTU_PRICES,
    TABLE_2,
    VispAssumptions,
)
from elastream_papers.visp.page import outcome, verdict

SMALL = replace(VispAssumptions(), machines=0.25)
"""A quarter of the machines: the same code in a fraction of the time."""


@pytest.fixture(scope="module")
def runs():
    return [experiment.run_case(case) for case in experiment.cases(("stepwise",), (1,), SMALL)]


def test_every_pattern_runs_by_both_rules_and_with_the_baseline():
    assert len(experiment.cases()) == len(experiment.PATTERNS) * 7 * len(experiment.SEEDS)
    assert {(case.name, case.minutes) for case in experiment.cases()} == {
        *((rule, minutes) for rule in ("btu", "text") for minutes in BTU_PRICES), ("threshold", None),
    }  # fmt: skip
    assert {case.policy.partial_release for case in experiment.cases() if case.name == "btu"} == {True}
    assert {case.policy.partial_release for case in experiment.cases() if case.name == "text"} == {False}


def test_work_and_messaging_make_the_duration_of_table_2():
    for assumptions in (VispAssumptions(), *variations(VispAssumptions()).values()):
        for name, row in TABLE_2.items():
            assert assumptions.work(name) > 0
            assert assumptions.work(name) + assumptions.messaging(name) == pytest.approx(row.duration / 1000)


def test_cost_is_of_leases_and_total_cost_of_late_items_too(runs):
    for run in runs:
        for minutes, cost in run.cost.items():
            assert cost == pytest.approx((run.leases + run.prolongings[minutes]) * BTU_PRICES[minutes])
            for level, late in run.late.items():
                assert run.total_cost(level, minutes) == pytest.approx(cost + 0.0001 * late)
            unused = run.unused_cpu + run.unused_memory + 0.0001 * run.late["real-time"] / 120
            assert run.objective(minutes) == pytest.approx(run.mean_hosts * BTU_PRICES[minutes] + unused)
    assert [sorted(run.cost) for run in runs] == [[10], [30], [60]] * 2 + [[10, 30, 60]]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(runs):
    again = experiment.run_case(experiment.VispCase("stepwise", "threshold", None, 1, SMALL))
    assert again == runs[-1]
    assert experiment.run_case(experiment.VispCase("stepwise", "threshold", None, 2, SMALL)).late != again.late


def columns(spread=0.001, **compliance: float):
    """Figures of one pattern in which every bar holds, but for the near-real-time compliance given by column."""
    level = {"10": 0.85, "30": 0.90, "60": 0.93, "threshold": 0.67} | {
        name.removeprefix("btu_"): value for name, value in compliance.items()
    }
    actions = {"10": 90.0, "30": 60.0, "60": 30.0, "threshold": 300.0}
    found = {}
    for column in experiment.COLUMNS:
        policy, minutes = column.split()
        kind = "threshold" if policy == "threshold" else minutes
        values = {
            "real-time compliance": level[kind] / 2,
            "near-real-time compliance": level[kind],
            "relaxed compliance": level[kind],
            "near-real-time total cost": 100.0 if kind != "threshold" else 160.0,
            "early host releases": 3.0 if kind == "threshold" else 0.0,
            "scaling actions": actions[kind],
        }
        noise = (0.0, spread, -spread) if int(minutes) == 30 else (0.0, -spread, spread)
        found[column] = {name: Statistic.of([value * (1 + each) for each in noise]) for name, value in values.items()}
    return {"stepwise": found}


def test_the_verdict_names_what_is_missed_by_either_rule():
    def said(figures):
        return verdict(bars(figures), bars(columns()))

    assert said(columns()) == ""
    assert "3 of the missed bars are about BTU10, BTU30 and BTU60 among each other" in said(columns(btu_30=0.8))
    beaten = said(columns(btu_10=0.6))
    assert "about the BTU policy against the baseline" in beaten
    assert "among each other" not in beaten
    assert "3 of 8 bars would be missed" in verdict(bars(columns()), bars(columns(btu_30=0.8), "text"))


def test_a_bar_is_held_missed_or_undecided_by_what_seeds_say_of_it():
    assert all(check.holds for rule in ((), ("text",)) for check in bars(columns(), *rule)), "the paper's own order"
    missed = [check.name for check in bars(columns(btu_30=0.95)) if check.missed]
    assert len(missed) == 3  # the order, at each of the three levels
    assert all("orders threshold" in name for name in missed)
    (gain,) = [c for c in bars(columns(threshold=0.80)) if "points" in c.name]
    assert gain.verdict == "missed"
    assert gain.value.startswith("13.0 (")
    scattered = [check for check in bars(columns(spread=0.2)) if "orders threshold" in check.name]
    assert {check.verdict for check in scattered} == {"undecided"}


def test_the_outcome_is_json_and_a_page_with_both_figures(runs):
    found = outcome(runs, 1.0)
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["paper"]["stepwise"]["btu 60"]["near-real-time compliance"]["mean"] == pytest.approx(0.93)
    ours = data["figures"]["tables"]["stepwise"]["btu 60"]["resource cost"]["mean"]
    assert ours == next(run.cost[60] for run in runs if run.case.minutes == 60 and run.case.name == "btu")
    assert {check["verdict"] for check in data["checks"]} == {"held", "undecided"}, "one seed decides no mean"
    assert data["figures"]["the text's rule"]["bars that would hold"] == "2 of 8"
    page = render(found.page)
    assert page.count('<figure class="plot') == 7
    assert "Table 3" in page
    assert "http" not in page
