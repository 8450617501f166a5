"""The E2DF experiment: the scenario is the paper's, the books balance, and bars are judged by their figures."""

import json
from dataclasses import replace

import numpy as np
import pytest

from elastream.evaluation.page import render
from elastream_papers.e2df import experiment
from elastream_papers.e2df.page import outcome

SHORT = replace(experiment.E2dfAssumptions(), rise=300.0)


@pytest.fixture(scope="module")
def runs():
    return [experiment.run_case(experiment.E2dfCase(scenario, SHORT)) for scenario in experiment.SCENARIOS]


def test_every_scenario_works_off_the_same_sentences(runs) -> None:
    assert len({run.sentences for run in runs}) == 1
    assert all(run.left < 1 for run in runs)
    assert [run.refused for run in runs] == [0, 0, 0]
    static, application, both = runs
    assert ({row[3] for row in static.series}, static.scalings, static.moves) == ({15.0}, 0, 0)
    assert both.replicas == pytest.approx(application.replicas, rel=0.05)


def test_operators_follow_the_load_up_and_down_again(runs) -> None:
    replicas = [row[3] for row in runs[1].series]
    assert replicas[0] == 4.0
    assert max(replicas) > 6
    assert replicas[-1] < max(replicas)


def test_hosts_follow_the_operators_with_the_spare_ones(runs) -> None:
    """No host is missing where a replica stands; what is there beyond the five spare ones is soon given back."""
    both = np.array(runs[2].series)
    assert (both[:, 4] >= both[:, 3]).all()
    assert (both[:, 4] <= 16).all()
    assert runs[2].hosts < runs[1].hosts


def again(runs):
    """The same with another seed."""
    return [*runs, *(replace(run, case=replace(run.case, seed=2)) for run in runs)]


def test_bars_are_judged_by_their_figures_with_hosts_that_are_up(runs) -> None:
    static, application, both = runs
    good = [static, replace(application, replicas=6.7, latency=1.69 * static.latency),
            replace(both, replicas=6.75, latency=1.69 * static.latency, running=12.1, hosts=15.0)]  # fmt: skip
    assert all(check.holds for check in experiment.bars(again(good)))
    for replicas, latency, running in ((7.2, 1.4, 12.6), (6.3, 2.0, 11.7)):
        off = {"replicas": replicas, "latency": latency * static.latency, "running": running}
        bad = [static, replace(application, **off), replace(both, **off)]
        assert {check.verdict for check in experiment.bars(again(bad))} == {"missed"}, "below and above the paper's"
    assert {check.verdict for check in experiment.bars(good)} == {"undecided"}, "one seed"


def test_the_page_keeps_the_papers_figures_in_rows_of_their_own(runs) -> None:
    found = outcome(runs, 1.0)
    assert found.environment["plant"] == "simulated"
    page = render(found.page)
    assert "mean latency (ms) (simulated)" in page
    rows = found.page.tables[1].rows
    assert ("   paper, section 5", "11.40", "19.30", "-") in rows
    json.dumps(found.to_json(), allow_nan=False)


def test_the_page_explains_the_savings(runs) -> None:
    found = outcome(again([runs[0], runs[1], replace(runs[2], replicas=14.0)]), 1.0)
    assert not found.holds
    assert "larger than these thresholds ask for" in found.verdict


def test_the_heaviest_work_of_the_provision_is_a_point_of_the_curve(runs) -> None:
    heavy = experiment.heaviest(SHORT)
    others = [replace(run, case=replace(run.case, assumptions=heavy), replicas=12.0) for run in runs]
    curves = outcome([*again(runs), *again(others)], 1.0).figures["sensitivity"]
    assert set(curves) == {"work"}
    assert [f"{heavy.work:.3f}" in curve for curve in curves["work"].values()] == [True] * len(curves["work"])
