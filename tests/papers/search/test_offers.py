"""What plans are made of, and the throughput of many plans at a time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.hosts import HostType
from elastream.policies.value_cost.problem import capacities, score
from elastream_papers.search.genes import Genes
from elastream_papers.search.offers import coming, fits, offers, relative_throughput, selected
from support.property_examples import examples
from support.search_problems import LARGE, SMALL, at, leased, problem, small_cases

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


@given(small_cases(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(60))
def test_the_throughput_of_many_plans_is_that_of_each(case, seed):
    found, conditions = case
    chance = np.random.default_rng(seed)
    genes = Genes(found, conditions, offers(found, conditions), 0.8)
    plans = [genes.decoded(genes.random(chance)) for _ in range(3)]
    costs, selectivities = selected(found, np.array([plan.active for plan in plans]).T)
    capacity = np.array([capacities(found, plan, conditions)[0] for plan in plans]).T
    together = relative_throughput(found, conditions, costs, selectivities, capacity)
    assert together == pytest.approx([score(found, plan, conditions).mean for plan in plans], abs=1e-12)
