"""The experiment on a small data set: folds, ways to pick, bars."""

import numpy as np
import pytest

from elastream_papers.thesis.dynamic_dataflow import experiment, page
from elastream_papers.thesis.dynamic_dataflow.consistency import consequences
from elastream_papers.thesis.dynamic_dataflow.methods import METHODS
from elastream_papers.thesis.dynamic_dataflow.readings import Generator, generate

HOURS = 7 * 24


@pytest.fixture(scope="module")
def result():
    return experiment.run_case(experiment.DataSet(Generator(), 1, 3))


def test_each_fold_is_a_week_judged_by_everything(result):
    assert len(result.folds) == experiment.FOLDS
    for fold in result.folds:
        assert set(fold.picks) == set(experiment.PICKED)
        assert all(errors.shape == (3, HOURS) for errors in fold.methods.values())
        assert 1 - 1e-9 <= sum(fold.shares.values()) < 1.1


def test_the_oracle_is_below_all_and_chance_among_them(result):
    for fold in result.folds:
        assert all(pick.excess >= 0 for pick in fold.picks.values()), "Eq. 3.2"
        least = fold.picks[experiment.ORACLE].mape
        assert fold.picks[experiment.ORACLE].accuracy == 1.0
        assert fold.picks[experiment.ORACLE].excess == 0.0
        assert all(least <= pick.mape for pick in fold.picks.values())
        assert all(least <= errors.mean() for errors in fold.methods.values())
        assert 0.02 < fold.picks[experiment.RANDOM].accuracy < 0.4
        assert 0 < fold.asked < 1


def test_a_week_s_pick_is_the_method_of_most_hours(result):
    for fold in result.folds:
        errors = np.stack([fold.methods[name] for name in METHODS], axis=-1)
        week = errors.mean(axis=1)
        oracle = [int(np.bincount(row, minlength=len(METHODS)).argmax()) for row in errors.argmin(axis=-1)]
        expected = np.mean([week[customer, pick] <= week[customer].min() for customer, pick in enumerate(oracle)])
        assert fold.picks[experiment.ORACLE].weekly == pytest.approx(expected)
        assert all(pick.weekly_excess >= 0 for pick in fold.picks.values())


def test_training_never_sees_the_week_that_it_is_judged_on():
    readings = generate(Generator(), experiment.WEEKS, 2, 3)
    changed = generate(Generator(), experiment.WEEKS, 2, 3)
    changed.power[:, -7 * 24 * 60 :] *= 3.0
    known = [experiment.forecasts_of(each.first(experiment.WEEKS - 1)) for each in (readings, changed)]
    assert (known[0][0] == known[1][0]).all()
    weights = [experiment.selector_of(["a", "b", "c"], each[1], each[0]).chooser.hidden[0] for each in known]
    assert (weights[0] == weights[1]).all()


def test_what_runs_is_kept_until_its_error_passes_the_bound():
    readings = generate(Generator(), experiment.WARM + 1, 4, 2)
    errors, vectors, _ = experiment.forecasts_of(readings)
    selector = experiment.selector_of(["0", "1"], vectors, errors)
    ran, asked = experiment.as_it_runs(selector, vectors, errors)
    changes = ran[:, 1:] != ran[:, :-1]
    before = np.take_along_axis(errors, ran[:, :, None], axis=2)[:, :-1, 0]
    bounds = np.array([selector.bounds[name] for name in ("0", "1")])[:, None]
    assert (before[changes] > np.broadcast_to(bounds, before.shape)[changes]).all()
    assert asked == (2 + (before > bounds).sum()) / ran.size


def test_one_data_set_leaves_the_bars_undecided(result):
    assert {check.holds for check in experiment.bars([result])} == {None}


def test_the_page_names_its_data_and_the_paper(result):
    found = page.outcome([result] * 5, consequences(quick=True), 1.0)
    assert "synthetic" in found.page.title
    text = str(found.page.blocks)
    assert "0.0318" in text
    assert set(found.figures["methods, mean MAPE, %"]) == set(METHODS)
    assert found.figures["picks"][experiment.SELECTOR]["mape"] > 0
    assert found.figures["picks"][experiment.REGIME]["accuracy"] > 0
