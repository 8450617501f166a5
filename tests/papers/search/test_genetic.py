"""The genetic search: chromosomes, penalties, and what is found."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.errors import InputError
from elastream.policies.value_cost.greedy import deployed
from elastream.policies.value_cost.problem import score
from elastream_papers.search.genes import Genes
from elastream_papers.search.genetic import Fitness, GeneticSettings, evolved
from elastream_papers.search.offers import coming, offers
from elastream_papers.search.proven import optimum
from support.property_examples import examples
from support.search_problems import at, on, problem, small_cases

CHOICE = problem([[(1.0, 0.2, 1.0), (0.5, 0.1, 1.0)], [(1.0, 0.1, 1.0), (0.9, 0.05, 1.0)], [(1.0, 0.1, 1.0)]])
BRIEF = GeneticSettings(population=30, generations=40)


@given(small_cases(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(40))
def test_a_chromosome_becomes_a_plan_and_back_and_overfills_no_host(case, seed):
    found, conditions = case
    chance = np.random.default_rng(seed)
    genes = Genes(found, conditions, offers(found, conditions), 0.8)
    rows = np.array([genes.random(chance) for _ in range(4)])
    for _ in range(20):
        genes.mutate(rows, chance)
    for row in rows:
        plan = genes.decoded(row)
        fitted = genes.decoded(genes.fitted(row, chance))
        assert (fitted.instances @ found.cores <= np.array([host.type.cores for host in fitted.hosts]) + 1e-9).all()
        assert all(held.any() for held in fitted.instances)
        again = genes.decoded(genes.encoded(plan))
        assert (again.active, again.hosts) == (plan.active, plan.hosts)
        assert (again.instances == plan.instances).all()
        room = [host.type.cores for host in plan.hosts]
        assert (plan.instances @ found.cores <= np.array(room) + 1e-9).all()
        assert len(plan.hosts) <= found.max_hosts


def fitness_of(case, conditions, plans, *, start=None):
    ahead = None if start is None else coming(case, conditions)
    genes = Genes(case, conditions, offers(case, conditions, ahead=ahead), 0.8)
    first = None if start is None else genes.encoded(start)
    rows = np.array([genes.encoded(plan) for plan in plans])
    return Fitness(case, conditions, genes, 0.8, first), rows


def test_fitness_is_the_profit_where_the_throughput_is_reached():
    conditions = at(CHOICE, 4.0)
    new = offers(CHOICE, conditions)[1].host
    plan = on(CHOICE, (0, 0, 0), [(new, (2, 1, 1))])
    fitness, rows = fitness_of(CHOICE, conditions, [plan])
    for iteration in (1, 40):
        assert fitness.of(rows, iteration) == pytest.approx([score(CHOICE, plan, conditions).profit])


def test_it_comes_near_the_proven_optimum():
    conditions = at(CHOICE, 15.0)
    found, best = evolved(CHOICE, conditions, GeneticSettings(population=60, patience=60)), optimum(CHOICE, conditions)
    assert found.feasible
    assert found.profit >= 0.97 * best.profit


@pytest.mark.parametrize("rate", [4.0, 15.0, 40.0, 80.0])
def test_it_is_never_below_the_greedy_plan(rate):
    conditions = at(CHOICE, rate)
    greedy = score(CHOICE, deployed(CHOICE, conditions), conditions)
    found = evolved(CHOICE, conditions, GeneticSettings(population=4, generations=1))
    assert found.profit >= greedy.profit - 1e-9


def test_a_plan_in_force_that_is_the_best_stays():
    first = optimum(CHOICE, at(CHOICE, 15.0)).deployment
    hosts = tuple(replace(host, name=f"h{n}", since=0.0) for n, host in enumerate(first.hosts))
    now = replace(first, hosts=hosts)
    found = evolved(CHOICE, at(CHOICE, 15.0, leased=hosts), BRIEF, current=now, adapting=True)
    assert found.changes == 0
    assert found.deployment.hosts == now.hosts
    assert (found.deployment.instances == now.instances).all()


def test_the_time_box_ends_a_search_and_that_is_said():
    found = evolved(CHOICE, at(CHOICE, 30.0), GeneticSettings(generations=10**6, patience=10**6, seconds=0.05))
    assert found.cut
    assert found.feasible


@pytest.mark.parametrize("wrong", [{"population": 3}, {"generations": 0}, {"patience": 0}, {"seconds": 0.0}])
def test_a_search_that_finds_nothing_is_refused(wrong):
    with pytest.raises(InputError):
        GeneticSettings(**wrong)
