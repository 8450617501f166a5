"""The greedy matching: levels, objectives, its time limit and its rest."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.errors import InputError
from elastream.policies.elastic_allocator.policy import Objective, allocate, deviation, utilisation
from elastream_papers.elastic_allocator.exact import least_deviation
from support.property_examples import examples


def load_after(place, needs, base):
    total = np.array(base, dtype=float)
    np.add.at(total, place, np.array(needs, dtype=float))
    return total


def test_tasks_go_where_they_even_out_what_is_used():
    # By hand: 0.3 to the host at 0.1 (0.4), then 0.2 to the one at 0.3 (0.5): 0.4, 0.5, 0.5.
    found = allocate([[0.3], [0.2]], [[0.1], [0.3], [0.5]], np.ones((3, 1)))
    assert found.place.tolist() == [0, 1]
    assert found.rest == 0


def test_a_task_goes_to_no_host_that_lacks_room_in_any_resource():
    found = allocate([[0.1, 0.5]], [[0.0, 0.6], [0.5, 0.3]], np.ones((2, 2)))
    assert found.place.tolist() == [1]


def test_a_part_of_hosts_can_be_kept_free():
    needs, base = [[0.3]], [[0.55], [0.45]]
    assert allocate(needs, base, np.ones((2, 1)), most=0.8).rest == 0
    assert allocate(needs, base, np.ones((2, 1)), most=0.7).rest == 1


def test_when_time_is_up_the_rest_is_spread_evenly_over_light_hosts():
    found = allocate(np.full((6, 1), 0.01), [[0.1], [0.1], [0.9]], np.ones((3, 1)), trials=0)
    assert found.rest == 6
    assert found.trials == 0
    assert sorted(found.place.tolist()) == [0, 0, 0, 1, 1, 1]


def test_a_time_limit_is_kept():
    needs = np.random.default_rng(1).uniform(0, 0.1, (40, 2))
    for limit in (0, 50, 1000, 20_000):
        assert allocate(needs, np.zeros((5, 2)), np.ones((5, 2)), trials=limit).trials <= limit


def test_objective_utilisation_respects_capacity_and_evens_out_ties():
    found = allocate([[0.5], [0.5]], [[0.5], [0.4], [0.0]], np.ones((3, 1)), objective=Objective.UTILISATION)
    assert utilisation(load_after(found.place, [[0.5], [0.5]], [[0.5], [0.4], [0.0]]), np.ones((3, 1))) == pytest.approx(
        1.9 / 3
    )
    assert 2 in found.place


def test_larger_hosts_take_more():
    place = allocate(np.full((9, 1), 0.1), np.zeros((2, 1)), [[1.0], [2.0]]).place
    assert np.bincount(place).tolist() == [3, 6]


@pytest.mark.parametrize(
    "question",
    [
        ([[0.1]], [[0.0, 0.0]], [[1.0, 1.0]]),
        ([[math.nan]], [[0.0]], [[1.0]]),
        ([[0.1]], np.zeros((0, 1)), np.zeros((0, 1))),
    ],
    ids=["shapes", "unknown", "no host"],
)
def test_what_cannot_be_answered_is_refused(question):
    with pytest.raises(InputError):
        allocate(*question)


@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(2, 7))
@settings(max_examples=examples(25))
def test_greedy_matching_is_within_five_percent_of_the_exact_placement(seed, hosts, tasks):
    random = np.random.default_rng(seed)
    needs = random.uniform(0.02, 0.25, (tasks, 2)) * min(1.0, 1.5 * hosts / tasks)
    base, sizes = random.uniform(0.0, 0.3, (hosts, 2)), np.ones((hosts, 2))
    found = deviation(load_after(allocate(needs, base, sizes).place, needs, base), sizes)
    best = least_deviation(needs, base, sizes, seconds=3.0)
    # The solver reckons in two-thousandths of a host.
    assert found <= 1.05 * best.value + 1e-3


@given(st.integers(0, 10_000), st.sampled_from(Objective))
@settings(max_examples=examples(60))
def test_no_host_gets_more_tasks_than_slots_if_these_suffice(seed, objective):
    random = np.random.default_rng(seed)
    tasks, hosts = int(random.integers(1, 9)), int(random.integers(1, 5))
    slots = np.bincount(random.integers(0, hosts, tasks + 2), minlength=hosts)
    needs, base = random.uniform(0, 0.2, (tasks, 2)), random.uniform(0, 0.3, (hosts, 2))
    place = allocate(needs, base, np.full((hosts, 2), 4.0), objective=objective, slots=slots, trials=50_000).place
    assert (np.bincount(place, minlength=hosts) <= slots).all()


def test_slots_count_in_no_objective():
    needs, base, sizes = np.full((4, 1), 0.2), np.zeros((2, 1)), np.ones((2, 1))
    free, wide = (allocate(needs, base, sizes, slots=slots).place.tolist() for slots in (None, [9, 9]))
    assert free == wide


def test_without_search_the_matching_is_algorithm_1_alone():
    needs, base, sizes = np.random.default_rng(2).uniform(0, 0.2, (12, 2)), np.zeros((4, 2)), np.ones((4, 2))
    alone, searched = (allocate(needs, base, sizes, search=search) for search in (False, True))
    assert alone.trials == 12 * 4
    assert deviation(load_after(searched.place, needs, base), sizes) < deviation(
        load_after(alone.place, needs, base), sizes
    )
