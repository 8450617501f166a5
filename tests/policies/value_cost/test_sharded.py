"""A scheduler an operator: what it decides does not depend on the others."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elastream.policies.value_cost.greedy import adapted_apart, deployed
from elastream.policies.value_cost.problem import Deployment, Problem, score
from support.property_examples import examples
from support.scheduling_problems import LARGE, SMALL, chain, deployments, problems, steady
from support.scheduling_problems import deployed as running

ANY = (1.0, 1.0, 1.0)


def decided(of: Problem, plan: Deployment, operator: int) -> tuple[int, int]:
    """The alternate of an operator and the number of its instances."""
    return plan.active[operator], int(plan.instances[:, operator].sum())


@given(of=problems(), data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_an_operators_decision_does_not_depend_on_the_others(of: Problem, data: st.DataObject) -> None:
    plan = data.draw(deployments(of))
    assume((plan.instances.sum(axis=0)[of.placed] >= 1).all())
    of = replace(of, types=(LARGE,))  # where several speeds are free, who asks first has the first choice
    plan = replace(plan, hosts=tuple(replace(host, speed=LARGE.speed) for host in plan.hosts))
    rates = np.array([data.draw(st.sampled_from([0.0, 0.5, 20.0])) for _ in of.operators])
    queues = np.array([data.draw(st.sampled_from([0.0, 200.0])) for _ in of.operators])
    first = data.draw(st.sampled_from([(), tuple(range(len(of.operators)))]))
    conditions = replace(steady(of, 1.0), queues=queues)
    known = adapted_apart(of, plan, conditions, rates, first=first)
    for operator in np.flatnonzero(of.placed).tolist():
        alone = np.full(len(rates), np.nan)
        alone[operator] = rates[operator]
        hidden = replace(conditions, rates=np.array([[7.0]]), queues=np.where(np.isnan(alone), 0.0, queues))
        found = adapted_apart(of, plan, hidden, alone, first=first)
        assert decided(of, found, operator) == decided(of, known, operator)
        others = [row for row in range(len(rates)) if row != operator]
        assert found.instances[:, others].sum(axis=0).tolist() == plan.instances[:, others].sum(axis=0).tolist()


def test_it_counts_its_own_cost_only_and_repacks_nothing() -> None:
    of = chain([(1.0, 1.0, 2.0), (0.8, 1.0, 0.5)], [(1.0, 2.0, 1.0)], types=[SMALL, replace(LARGE, price=9.0)])
    found = adapted_apart(of, running(of, []), steady(of, 1.0), np.array([np.nan, 1.0, 2.0, np.nan]), first=[1, 2])
    assert found.active == (0, 0, 0, 0)
    assert {host.type.name for host in found.hosts} == {"large"}


def test_an_operator_held_up_by_another_is_sized_for_what_reaches_it() -> None:
    of = chain([ANY], [ANY])
    now = running(of, [(LARGE, {"o0": 1, "o1": 1})])
    found = adapted_apart(of, now, steady(of, 20.0), np.array([20.0, 20.0, 2.0, 2.0]))
    assert found.instances.sum(axis=0).tolist() == [0, 8, 1, 0]


@pytest.mark.parametrize("rate", [0.0, 3.0, 300.0])
def test_where_operators_share_all_cores_each_asks_for_whole_ones(rate: float) -> None:
    of = chain([(1.0, 1.0, 1.0), (0.9, 0.5, 1.0)], [ANY], shared=True)
    rates = np.full(4, rate)
    found = adapted_apart(of, running(of, [(LARGE, {})] * 2), steady(of, rate), rates, first=[1, 2])
    assert score(of, found, steady(of, rate)).mean >= 0.8 - 1e-9
    whole = deployed(of, steady(of, rate))
    assert sum(host.type.price for host in found.hosts) >= sum(host.type.price for host in whole.hosts) - 1e-9


def test_with_short_shared_cores_an_operator_switches_to_fit_its_part() -> None:
    of = chain([(1.0, 1.0, 1.0), (0.9, 0.5, 1.0)], [ANY], shared=True)
    now = running(of, [(LARGE, {})])
    rates = np.full(4, 6.5)
    found = adapted_apart(of, now, steady(of, 6.5), rates, resources=False)
    assert found.active[1] == 1
    assert len(found.hosts) == 1
