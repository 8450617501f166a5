"""The genetic search: chromosomes, penalties, and what is found."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.hosts import HostType
from elastream.errors import InputError
from elastream.policies.value_cost.problem import Goal, score
from elastream_papers.search.genes import Genes
from elastream_papers.search.genetic import Fitness, GeneticSettings, evolved
from elastream_papers.search.offers import coming, offers
from elastream_papers.search.proven import optimum
from support.property_examples import examples
from support.search_problems import LARGE, SMALL, at, leased, on, problem, small_cases

CHOICE = problem([[(1.0, 0.2, 1.0), (0.5, 0.1, 1.0)], [(1.0, 0.1, 1.0), (0.9, 0.05, 1.0)], [(1.0, 0.1, 1.0)]])
SIZES = np.array([np.nan, 1000.0, 1000.0])
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


def test_what_is_missing_of_the_throughput_costs_more_as_a_plan_survives():
    conditions = at(CHOICE, 4.0)
    small, large = (each.host for each in offers(CHOICE, conditions))
    plan = on(CHOICE, (0, 0, 0), [(small, (1, 0, 0)), (small, (0, 1, 0)), (small, (0, 0, 1))])
    scored = score(CHOICE, plan, at(CHOICE, 40.0))
    fitness, rows = fitness_of(CHOICE, at(CHOICE, 40.0), [plan])
    short = 0.8 - scored.mean
    assert short > 0.1
    assert fitness.of(rows, 3) == pytest.approx([scored.profit - 3 * short], abs=1e-6)
    assert large.type is LARGE


def test_changes_to_the_plan_in_force_cost_profit():
    host = leased("h0", LARGE)
    conditions = at(CHOICE, 4.0, leased=(host,), time=60.0)
    now, other = (on(CHOICE, active, [(host, held)]) for active, held in (((0, 0, 0), (2, 1, 1)), ((0, 0, 0), (1, 1, 2))))
    fitness, rows = fitness_of(CHOICE, conditions, [now, other], start=now)
    early, late = fitness.of(rows, 1), fitness.of(rows, 40)
    assert early[0] == late[0]
    assert late[1] < early[1] < early[0]


def test_what_is_paid_of_a_host_is_not_saved_by_giving_it_back():
    kept, ending = leased("h0", LARGE, since=0.0), leased("h1", LARGE, since=600.0 - 3600.0)
    conditions = at(CHOICE, 4.0, leased=(kept, ending), time=60.0)
    plans = [on(CHOICE, (0, 0, 0), [(host, (2, 1, 1))]) for host in (kept, ending, offers(CHOICE, conditions)[3].host)]
    fitness, rows = fitness_of(CHOICE, conditions, plans, start=plans[0])
    profits = fitness._profit(rows)
    # An hour of each: h0 is paid for but a minute of it, h1 for nine minutes, a new one for nothing.
    a_period = CHOICE.line.sigma * LARGE.price * 12
    assert profits - profits[2] == pytest.approx([59 / 60 * a_period, 9 / 60 * a_period, 0.0])


def test_a_host_too_many_goes_however_small_its_part_of_the_profit_is():
    many = problem([[(1.0, 0.1, 1.0)]], goal=Goal(break_even_best=20_000.0, break_even_worst=8000.0))
    hosts = tuple(leased(f"h{n}", SMALL, since=-3595.0) for n in range(2))
    conditions = at(many, 4.0, leased=hosts, time=0.0)
    plans = [on(many, (0,), [(host, (1,)) for host in hosts[:count]]) for count in (2, 1)]
    fitness, rows = fitness_of(many, conditions, plans, start=plans[0])
    fitness.of(rows, 1)
    assert (fitness.best == rows[1]).all()


@given(small_cases(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(40))
def test_a_plan_that_is_made_to_fit_keeps_what_it_can_and_fits_its_hosts(case, seed):
    found, conditions = case
    chance = np.random.default_rng(seed)
    genes = Genes(found, conditions, offers(found, conditions), 0.8)
    start = genes.random(chance)
    plan = genes.decoded(genes.fitted(start, chance))
    assert (plan.instances @ found.cores <= np.array([host.type.cores for host in plan.hosts]) + 1e-9).all()
    assert len(plan.hosts) <= found.max_hosts
    assert all(held.any() for held in plan.instances)


def test_links_that_hold_records_up_count_in_the_throughput():
    slow, wide = (HostType(f"{n}", cores=n, price=1.0 * n, bandwidth=1000.0, start=60.0) for n in (1.0, 2.0))
    case = problem([[(1.0, 0.1, 1.0)], [(1.0, 0.1, 1.0)]], types=(slow, wide), record_bytes=SIZES)
    conditions = at(case, 4.0)
    one, two = (each.host for each in offers(case, conditions))
    together, apart = on(case, (0, 0), [(two, (1, 1))]), on(case, (0, 0), [(one, (1, 0)), (one, (0, 1))])
    fitness, rows = fitness_of(case, conditions, [together, apart])
    assert fitness._missing(rows) == pytest.approx([0.0, 0.8 - 0.25])  # a record a second of four goes over the link
    assert score(case, apart, conditions).mean == pytest.approx(0.25)


def test_links_that_let_everything_through_are_not_looked_at():
    case = problem([[(1.0, 0.1, 1.0)], [(1.0, 0.1, 1.0)]], record_bytes=SIZES)
    fitness, _ = fitness_of(case, at(case, 4.0), [])
    assert not fitness.linked


def test_the_same_seed_finds_the_same_plan():
    conditions = at(CHOICE, 30.0)
    one, other = (evolved(CHOICE, conditions, replace(BRIEF, seed=7)).deployment for _ in range(2))
    assert one.active == other.active
    assert one.hosts == other.hosts
    assert (one.instances == other.instances).all()


def test_the_process_s_own_random_numbers_are_left_alone():
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    evolved(CHOICE, at(CHOICE, 5.0), GeneticSettings(population=8, generations=2))
    assert (np.random.get_state()[1] == before).all()


def test_it_comes_near_the_proven_optimum():
    conditions = at(CHOICE, 15.0)
    found, best = evolved(CHOICE, conditions, GeneticSettings(population=60, patience=60)), optimum(CHOICE, conditions)
    assert found.feasible
    assert found.profit >= 0.97 * best.profit


def test_a_plan_in_force_that_is_the_best_stays():
    first = optimum(CHOICE, at(CHOICE, 15.0)).deployment
    hosts = tuple(replace(host, name=f"h{n}", since=0.0) for n, host in enumerate(first.hosts))
    now = replace(first, hosts=hosts)
    found = evolved(CHOICE, at(CHOICE, 15.0, leased=hosts), BRIEF, current=now, adapting=True)
    assert found.changes == 0
    assert found.deployment.hosts == now.hosts
    assert (found.deployment.instances == now.instances).all()


def test_a_fixed_number_of_instances_stays():
    case = replace(CHOICE, fixed=np.array([False, True, False, False]))
    now = on(case, (0, 0, 0), [(leased("h0", LARGE), (2, 1, 1))])
    conditions = at(case, 1.0, leased=now.hosts, time=60.0)
    assert evolved(case, conditions, BRIEF, current=now).deployment.instances[:, 1].sum() == 2


def test_shared_cores_are_leased_for_the_work_of_all():
    case = problem([[(1.0, 0.2, 1.0)], [(1.0, 0.1, 1.0)]], shared=True)
    conditions = at(case, 20.0)
    found = evolved(case, conditions, BRIEF)
    assert found.feasible
    assert found.profit == pytest.approx(optimum(case, conditions).profit, abs=1e-6)


def test_what_no_plan_reaches_is_come_near():
    case = replace(CHOICE, max_hosts=2, types=(SMALL, LARGE))
    found = evolved(case, at(case, 1000.0), BRIEF)
    assert not found.feasible
    assert [host.type for host in found.deployment.hosts] == [LARGE, LARGE]


def test_without_a_type_to_lease_there_is_no_plan():
    case = replace(CHOICE, types=())
    assert evolved(case, at(case, 1.0), BRIEF).deployment is None


def test_the_time_box_ends_a_search_and_that_is_said():
    found = evolved(CHOICE, at(CHOICE, 30.0), GeneticSettings(generations=10**6, patience=10**6, seconds=0.05))
    assert found.cut
    assert found.feasible


@pytest.mark.parametrize("wrong", [{"population": 3}, {"generations": 0}, {"patience": 0}, {"seconds": 0.0}])
def test_a_search_that_finds_nothing_is_refused(wrong):
    with pytest.raises(InputError):
        GeneticSettings(**wrong)
