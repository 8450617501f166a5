"""The exact placements that others are measured by."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.errors import InputError
from elastream.policies.elastic_allocator.policy import deviation
from elastream_papers.elastic_allocator.exact import least_deviation, pack, packed_greedily
from support.property_examples import examples

loads = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=7)
few = settings(max_examples=examples(25))


def busiest(weights, sizes, place):
    return (np.bincount(place, weights, len(sizes)) / sizes).max()


def test_a_packing_that_greedy_placement_misses_is_found():
    # 3 + 3 and 2 + 2 + 2; heaviest first puts a 3 on each host and ends at 7.
    found = pack([3, 3, 2, 2, 2], 2)
    assert found.value == 6
    assert found.optimal
    assert busiest([3, 3, 2, 2, 2], np.ones(2), packed_greedily([3, 3, 2, 2, 2], 2)) == 7


def test_one_task_heavier_than_an_even_share_is_the_bound():
    found = pack([10, 1, 1, 1], 3)
    assert (found.value, found.bound, found.gap) == (10, 10, 0)


@given(loads, st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=3))
@few
def test_no_placement_is_better_than_the_one_found(weights, sizes):
    found = pack(weights, sizes)
    best = min(busiest(weights, np.array(sizes), np.array(p)) for p in product(range(len(sizes)), repeat=len(weights)))
    assert found.value <= best * 1.001
    assert found.bound <= best * (1 + 1e-9)
    assert found.value == pytest.approx(busiest(weights, np.array(sizes), found.place))


def test_hosts_that_are_used_already_are_filled_up_evenly():
    found = least_deviation([[0.2, 0.0], [0.1, 0.0]], [[0.2, 0.0], [0.3, 0.0], [0.4, 0.0]], np.ones((3, 2)))
    assert found.place.tolist() == [0, 1]
    assert found.value == pytest.approx(0.0, abs=1e-3)


@given(st.lists(st.tuples(st.floats(0.02, 0.2), st.floats(0.02, 0.2)), min_size=1, max_size=5), st.integers(2, 3))
@few
def test_no_placement_is_more_even_than_the_one_found(needs, hosts):
    wants = np.array(needs)
    base, sizes = np.linspace(0, 0.3, hosts * 2).reshape(hosts, 2), np.ones((hosts, 2))
    found = least_deviation(wants, base, sizes)

    def of(place):
        total = base.copy()
        np.add.at(total, list(place), wants)
        return deviation(total, sizes)

    best = min(of(place) for place in product(range(hosts), repeat=len(wants)))
    assert found.value <= best + 2e-3
    assert found.bound <= best + 2e-3


@pytest.mark.parametrize(
    "ask",
    [
        lambda: pack([1.0, float("nan")], 2),
        lambda: pack([-1.0], 2),
        lambda: pack([1.0], 0),
        lambda: least_deviation([[2.0]], [[0.0]], [[1.0]]),
        lambda: least_deviation([[2.0]], [[0.0, 0.0]], [[1.0, 1.0]]),
    ],
    ids=["unknown", "negative", "no host", "no room", "shapes"],
)
def test_what_has_no_best_placement_is_refused(ask):
    with pytest.raises(InputError):
        ask()
