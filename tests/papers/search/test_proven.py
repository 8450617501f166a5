"""The exact model and the exhaustive search: what each finds, and that both find the same."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from elastream.policies.value_cost.greedy import deployed
from elastream.policies.value_cost.problem import Goal, score
from elastream_papers.search.exhaustive import exhausted
from elastream_papers.search.genetic import GeneticSettings, evolved
from elastream_papers.search.proven import optimum
from support.property_examples import examples
from support.search_problems import LARGE, SMALL, at, leased, on, problem, small_cases

CHOICE = problem([[(1.0, 0.2, 1.0), (0.5, 0.1, 1.0)], [(1.0, 0.1, 1.0)]])
FEW = GeneticSettings(population=20, generations=15)


@given(small_cases())
@settings(max_examples=examples(40))
def test_both_solvers_agree_and_no_heuristic_has_a_higher_profit(case):
    found, conditions = case
    proven, searched = optimum(found, conditions, seconds=20.0), exhausted(found, conditions, seconds=20.0)
    assert proven.optimal
    assert searched.optimal
    assert searched.profit == pytest.approx(proven.profit, abs=1e-5)
    greedy = score(found, plan := deployed(found, conditions), conditions)
    assert plan.hosts
    if greedy.mean >= found.goal.throughput - 1e-9:
        assert greedy.profit <= proven.bound + 1e-6
    bred = evolved(found, conditions, FEW)
    assert bred.profit <= proven.bound + 1e-6


def test_values_that_are_worth_their_cores_run_and_others_do_not():
    rich, poor = (replace(CHOICE, goal=Goal(break_even_best=best, break_even_worst=1.0)) for best in (60.0, 3.0))
    assert optimum(rich, at(rich, 40.0)).deployment.active == (0, 0, 0)
    assert optimum(poor, at(poor, 40.0)).deployment.active == (0, 1, 0)


def test_a_model_on_which_one_solver_fails_is_solved_by_another(monkeypatch):
    mathopt = pytest.importorskip("ortools.math_opt.python.mathopt")
    usual, solve = optimum(CHOICE, at(CHOICE, 40.0)), mathopt.solve

    def failing(model, solver, **more):
        if solver is mathopt.SolverType.HIGHS:  # as its library ends where it cannot raise the error
            raise AttributeError("'StatusNotOk' object has no attribute 'canonical_code'")
        return solve(model, solver, **more)

    monkeypatch.setattr(mathopt, "solve", failing)
    found = optimum(CHOICE, at(CHOICE, 40.0))
    assert found.optimal
    assert found.profit == pytest.approx(usual.profit)


@pytest.mark.parametrize("search", [optimum, exhausted])
def test_that_no_plan_is_possible_is_proven(search):
    few, small = replace(CHOICE, max_hosts=1), replace(CHOICE, cores=np.array([0.0, 8.0, 1.0]))
    found = search(few, at(few, 1000.0))
    assert (found.deployment, found.bound, found.optimal) == (None, -math.inf, True)
    assert search(small, at(small, 1.0), seconds=1.0).deployment is None, "an operator fits no host"


def test_without_records_the_fewest_hosts_and_the_highest_value_run():
    found = optimum(CHOICE, at(CHOICE, 0.0))
    assert found.deployment.active == (0, 0, 0)
    assert [host.type for host in found.deployment.hosts] == [SMALL, SMALL]  # an instance of each holds a core


def test_a_host_that_is_paid_already_is_kept_rather_than_another_leased():
    host = leased("h0", LARGE, since=0.0)
    case = replace(CHOICE, goal=replace(CHOICE.goal, period=3600.0))
    conditions = at(case, 10.0, time=1800.0, leased=(host,))
    for search in (optimum, exhausted):
        assert [each.name for each in search(case, conditions).deployment.hosts] == ["h0"]


def test_a_fixed_number_of_instances_stays():
    case = replace(CHOICE, fixed=np.array([False, True, False]))
    now = on(case, (0, 0), [(leased("h0", LARGE), (3, 1))])
    conditions = at(case, 2.0, leased=now.hosts, time=60.0)
    for search in (optimum, exhausted):
        assert search(case, conditions, current=now).deployment.instances[:, 1].sum() == 3


@pytest.mark.parametrize("equal", [False, True])
def test_on_shared_cores_both_lease_for_the_work_of_all(equal):
    case = problem([[(1.0, 0.2, 1.0), (0.5, 0.1, 1.0)], [(1.0, 0.1, 1.0)]], equal=equal, shared=True)
    conditions = at(case, 20.0)
    proven, searched = optimum(case, conditions), exhausted(case, conditions)
    assert proven.optimal
    assert proven.profit == pytest.approx(searched.profit, abs=1e-6)
    assert proven.score.mean >= 0.8 - 1e-9
    if equal:  # a slow host would hold the fast ones up
        assert len({host.type for host in proven.deployment.hosts}) == 1


def test_the_bound_of_many_selectivities_is_brought_to_the_best_plan():
    case = problem(
        [[(1.0, 0.2, 1.0), (0.9, 0.1, 0.8), (0.7, 0.1, 0.5)], [(1.0, 0.1, 1.2), (0.8, 0.05, 0.7)], [(1.0, 0.1, 1.0)]]
    )
    conditions = at(case, 12.0)
    one_by_one = optimum(case, conditions)
    divided = optimum(case, conditions, combinations=2)
    assert divided.optimal
    assert divided.profit == pytest.approx(one_by_one.profit, abs=1e-5)
    assert divided.bound <= divided.profit + 1e-5


def test_a_search_that_time_ends_says_so():
    case = problem([[(1.0, 0.2, 1.0), (0.5, 0.1, 1.0)]] * 6, types=(SMALL, LARGE), max_hosts=5000)
    found = exhausted(case, at(case, 500.0), seconds=0.05)
    assert not found.optimal
    assert found.bound == math.inf
