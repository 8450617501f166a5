"""What plans are made of, and the throughput of many plans at a time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.hosts import Billing, HostType
from elastream.errors import InputError
from elastream.policies.value_cost.problem import Conditions, Deployment, capacities, score
from elastream_papers.search.genes import Genes
from elastream_papers.search.offers import coming, fits, laid_out, least_capacity, offers, reached, selected
from support.property_examples import examples
from support.search_problems import HOURLY, LARGE, SMALL, at, leased, problem, small_cases

TWO = problem([[(1.0, 0.1, 1.0)], [(1.0, 0.2, 1.0)]])


def test_a_host_holds_as_many_instances_as_it_has_cores_and_memory_for():
    case = replace(TWO, cores=np.array([0.0, 0.5, 2.0]), memory=np.array([0.0, 1000.0, 0.0]))
    type = HostType("vm", cores=3.0, memory=4000.0)
    assert fits(case, type).tolist() == [0, 4, 1]


def test_a_leased_host_costs_its_remaining_units_and_a_new_one_all():
    host = leased("h0", LARGE, since=0.0)
    kept, small, large = offers(TWO, at(TWO, 1.0, time=5400.0, leased=(host,)))
    assert (kept.host, kept.most) == (host, 1)
    assert kept.cost == 10 * LARGE.price  # two of twelve hours are paid by now
    # Ten and a half hours are left, of which the last unit is paid in full.
    assert [small.cost, large.cost] == [11 * SMALL.price, 11 * LARGE.price]


def test_a_host_costs_the_coming_hour_beyond_its_paid_time():
    case = at(TWO, 1.0, time=5400.0, leased=(leased("h0", LARGE, since=0.0),))
    assert coming(TWO, case) == 3600.0
    kept, small, large = offers(TWO, case, ahead=coming(TWO, case))
    assert kept.cost == pytest.approx(12 * LARGE.price / 2)  # half an hour is paid, of twelve hours like the coming one
    assert [small.cost, large.cost] == [12 * SMALL.price, 12 * LARGE.price]


def test_hosts_billed_by_the_second_are_planned_for_an_instant():
    by_second = HostType("vm", cores=1.0, price=0.01, billing=Billing(1.0))
    case, conditions = replace(TWO, types=(by_second,)), at(TWO, 1.0)
    assert coming(case, conditions) == 300.0
    (new,) = offers(case, conditions, ahead=300.0)
    assert new.cost == pytest.approx(0.01 * 12 * 3600)


def test_more_than_one_instant_is_refused():
    with pytest.raises(InputError, match="2 instants"):
        offers(TWO, Conditions(np.ones((2, 1)), np.zeros(3), 300.0))


@given(small_cases(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(60))
def test_the_throughput_of_many_plans_is_that_of_each(case, seed):
    found, conditions = case
    chance = np.random.default_rng(seed)
    genes = Genes(found, conditions, offers(found, conditions), 0.8)
    plans = [genes.decoded(genes.random(chance)) for _ in range(3)]
    costs, selectivities = selected(found, np.array([plan.active for plan in plans]).T)
    capacity = np.array([capacities(found, plan, conditions)[0] for plan in plans]).T
    together = reached(found, conditions, costs, selectivities, capacity)
    assert together == pytest.approx([score(found, plan, conditions).mean for plan in plans], abs=1e-12)


@pytest.mark.parametrize("equal", [False, True])
def test_the_throughput_of_shared_cores_is_that_of_each_plan(equal):
    case = problem([[(1.0, 0.1, 2.0)], [(1.0, 0.2, 1.0), (0.5, 0.1, 1.0)]], equal=equal, shared=True)
    conditions = at(case, 10.0, queues=[50.0, 600.0])
    none = np.zeros((2, 3), dtype=np.int64)
    plans = [Deployment((0, 0, option), (leased("a", SMALL), leased("b", LARGE)), none) for option in (0, 1)]
    costs, selectivities = selected(case, np.array([plan.active for plan in plans]).T)
    capacity = np.array([capacities(case, plan, conditions)[0] for plan in plans]).T
    together = reached(case, conditions, costs, selectivities, capacity)
    assert together == pytest.approx([score(case, plan, conditions).mean for plan in plans], abs=1e-12)


def test_least_capacity_is_each_operators_need_without_bottlenecks():
    conditions = at(TWO, 10.0)
    needs = least_capacity(TWO, conditions, TWO.costs((0, 0, 0)), TWO.selectivities((0, 0, 0)), 0.8)
    assert needs == pytest.approx([0.0, 0.8, 1.6], abs=1e-6)


def test_instances_of_all_operators_go_to_each_host_in_proportion():
    large = offers(TWO, at(TWO, 1.0))[1]
    plan = laid_out(TWO, (0, 0, 0), [(large, 2, np.array([0, 2, 4]))])
    assert plan is not None
    assert plan.instances[:, 1:].tolist() == [[1, 3], [1, 1]]


def test_the_largest_are_packed_first_and_an_unfit_one_yields_no_plan():
    case = replace(TWO, cores=np.array([0.0, 1.0, 3.0]))
    type = HostType("vm", cores=4.0, billing=HOURLY)
    (vm,) = offers(replace(case, types=(type,)), at(case, 1.0))
    plan = laid_out(case, (0, 0, 0), [(vm, 2, np.array([0, 2, 2]))])
    assert plan is not None
    assert plan.instances[:, 1:].tolist() == [[1, 1], [1, 1]]
    assert laid_out(case, (0, 0, 0), [(vm, 2, np.array([0, 3, 2]))]) is None
