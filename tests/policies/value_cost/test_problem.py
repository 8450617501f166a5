"""What a plan comes to, scored without being enacted."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.errors import InputError
from elastream.policies.value_cost.problem import Conditions, Deployment, Goal, Host, capacities, score, throughput
from support.property_examples import examples
from support.scheduling_problems import LARGE, MEDIUM, SMALL, chain, deployed, deployments, problems, steady

HOUR = 3600.0
PLAIN = chain([(1.0, 0.01, 1.0), (0.5, 0.005, 1.0)], goal=Goal(break_even_best=1.0, break_even_worst=0.5))


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_an_instance_at_speed_n_is_as_good_as_n_at_speed_1(data):
    problem = data.draw(problems())
    plan = data.draw(deployments(problem))
    slow = replace(
        plan,
        hosts=tuple(replace(host, speed=1.0) for host in plan.hosts),
        instances=plan.instances * np.array([[round(host.speed)] for host in plan.hosts]),
    )
    conditions = steady(problem, data.draw(st.floats(0.1, 100.0)))
    one, other = score(problem, plan, conditions), score(problem, slow, conditions)
    assert one.throughput == pytest.approx(other.throughput)
    assert one.by_operator == pytest.approx(other.by_operator)


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_on_shared_cores_all_work_gets_the_same_part(data):
    problem = data.draw(problems(shared=True))
    plan = data.draw(deployments(problem))
    conditions = steady(problem, data.draw(st.floats(0.1, 100.0)))
    found = throughput(problem, plan.active, capacities(problem, plan, conditions), conditions)
    work = float((found.offered[0] * problem.costs(plan.active)).sum())
    cores = sum(host.type.cores * host.speed for host in plan.hosts)
    assert found.application == pytest.approx([min(1.0, cores / work) if work > 0 else 1.0])


def test_profit_is_value_less_the_worth_of_the_cost_over_the_period():
    plan = deployed(PLAIN, [(LARGE, {"o0": 2})])
    found = score(PLAIN, plan, steady(PLAIN, 100.0))
    assert (found.mean, found.value, found.cost) == (1.0, 1.0, pytest.approx(12 * 0.24))
    # From 0.5 an hour at a value of 0.5 to 1 an hour at 1: all of the value where nothing is paid.
    assert found.profit == pytest.approx(1 - (0.5 / 6 * (12 * 0.24 - 12) + 1))
    assert found.feasible(PLAIN.goal)


def test_what_was_paid_and_was_worth_something_before_counts():
    plan = deployed(PLAIN, [(LARGE, {"o0": 2})], 0, 1, 0)
    later = replace(steady(PLAIN, 100.0), time=6 * HOUR, value=1.0, paid=3.0)
    found = score(PLAIN, plan, later)
    assert found.value == 0.5
    assert found.cost == pytest.approx(3.0 + 12 * 0.24)
    assert found.profit == pytest.approx(PLAIN.line.profit(0.75, found.cost))


def test_a_released_host_costs_its_begun_units_and_a_new_one_its_next():
    old = Host("h1", SMALL, 1.0, 0.0, 0.0)
    new = Host("", MEDIUM, 1.0, 1.5 * HOUR, 1.5 * HOUR + 60)
    plan = Deployment((0, 0, 0), (new,), np.array([[0, 2, 0]]))
    found = score(PLAIN, plan, replace(steady(PLAIN, 100.0), time=1.5 * HOUR, leased=(old,)))
    assert found.cost == pytest.approx(2 * 0.06 + 11 * 0.12)  # of 10.5 hours


def test_units_that_began_before_the_period_are_not_of_it():
    host = Host("h1", SMALL, 1.0, 0.0, 0.0)
    plan = Deployment((0, 0, 0), (host,), np.array([[0, 1, 0]]))
    second = replace(steady(PLAIN, 1.0), time=12.5 * HOUR, began=12 * HOUR, leased=(host,))
    assert score(PLAIN, plan, second).cost == pytest.approx(12 * 0.06)


def test_a_host_counts_from_its_readiness_and_at_its_given_speeds():
    plan = Deployment((0, 0, 0), (Host("h1", SMALL, 1.0, 0, 0), Host("", SMALL, 1.0, 0, 450.0)), np.array([[0, 1, 0]] * 2))
    conditions = Conditions(
        np.full((3, 1), 200.0), np.zeros(3), 300.0, speeds={"h1": np.array([1.0, 0.5, 0.5])}, steady=False
    )
    assert capacities(PLAIN, plan, conditions)[:, 1] == pytest.approx([1.0, 0.5 + 0.5, 0.5 + 1.0])
    found = score(PLAIN, plan, conditions)
    assert found.by_operator[:, 1] == pytest.approx([100 / 200, 100 / 300, 150 / 400])


def test_where_tasks_are_equal_all_wait_for_the_slowest_core():
    problem = replace(chain([(1.0, 0.01, 1.0)], shared=True), equal=True)
    plan = deployed(problem, [(MEDIUM, {}), (MEDIUM, {})])
    slow = replace(plan, hosts=(plan.hosts[0], replace(plan.hosts[1], speed=0.5)))
    assert score(problem, plan, steady(problem, 400.0)).throughput == pytest.approx([1.0])
    assert score(problem, slow, steady(problem, 400.0)).throughput == pytest.approx([0.5])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"throughput": 1.2}, "above 0 and at most 1"),
        ({"tolerance": 0.9}, "below the throughput"),
        ({"break_even_best": 1.0}, "or for none"),
        ({"break_even_best": 1.0, "break_even_worst": 1.0}, "the first must be more"),
        ({"period": 0.0}, "above 0 and end"),
        ({"over": "some"}, "'dynamic' ones or of 'all'"),
    ],
)
def test_a_goal_that_nothing_reaches_is_refused_in_one_sentence(given, said):
    with pytest.raises(InputError, match=said):
        Goal(**given)
