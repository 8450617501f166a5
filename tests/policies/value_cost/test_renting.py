"""An alternate of less value runs until it has cost as much as hosts for a better one; a dear one does not run at all."""

from dataclasses import replace

import pytest

from elastream.policies.value_cost.greedy import adapted
from elastream.policies.value_cost.policy import overdue
from elastream.policies.value_cost.problem import Goal, Problem, score
from support.scheduling_problems import LARGE, chain, steady
from support.scheduling_problems import deployed as running

GOAL = Goal(break_even_best=3.0, break_even_worst=1.0)
ROUND = 20.0


def of(best: float = 1.0, poor: float = 0.8) -> Problem:
    return chain([(1.0, best, 1.0), (poor, 0.5, 1.0)], goal=GOAL)


def rounds_until_bought(problem: Problem) -> int | None:
    """After how many rounds the poor alternate has cost as much as hosts for the best."""
    lost, plan = {}, running(problem, [(LARGE, {"o0": 4})], 0, 1, 0)
    for number in range(1, 1000):
        due, lost = overdue(problem, plan, steady(problem, 10.0), lost, ROUND)
        if due:
            assert due == {1}
            assert lost == {}
            return number
    return None


def test_a_poor_alternate_runs_longer_the_dearer_hosts_are() -> None:
    soon, later = (rounds_until_bought(of(best)) for best in (0.7, 0.9))
    assert soon is not None
    assert later is not None
    assert 1 <= soon < later


def test_an_alternate_not_worth_its_hosts_is_never_bought() -> None:
    assert rounds_until_bought(of(best=40.0)) is None


def test_what_is_bought_runs_and_hosts_come_for_it() -> None:
    problem = of()
    plan = running(problem, [(LARGE, {"o0": 2})], 0, 1, 0)
    found = adapted(problem, plan, steady(problem, 10.0), bought=[1])
    assert found.active[1] == 0
    assert score(problem, found, steady(problem, 10.0)).mean >= 0.8 - 1e-9


@pytest.mark.parametrize(("pace", "runs"), [(0.0, 1), (10.0, 1), (36_000.0, 0)])
def test_an_alternate_that_loses_more_than_hosts_does_not_run(pace: float, runs: int) -> None:
    problem = of(poor=0.1)
    plan = running(problem, [(LARGE, {"o0": 4})])
    assert adapted(problem, plan, steady(problem, 12.0), pace=pace).active[1] == runs


def test_where_no_host_may_come_it_is_run_whatever_it_loses() -> None:
    problem = replace(of(poor=0.1), max_hosts=1)
    plan = running(problem, [(LARGE, {"o0": 4})])
    assert adapted(problem, plan, steady(problem, 12.0), pace=36_000.0).active[1] == 1
