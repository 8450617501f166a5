"""Cuts of an arc of state partitions among neighbours on a ring."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.ring import Ring
from elastream.policies.ring.balance import FURTHER, Arc, even_cut, half_cut, midpoint, wider_cut
from support.property_examples import examples


def arc(loads, owned, fixed=None, capacity=None, first=0, count=None):
    hosts = tuple(f"h{number}" for number in range(len(owned)))
    fixed = np.zeros(len(owned)) if fixed is None else np.array(fixed, dtype=float)
    capacity = np.ones(len(owned)) if capacity is None else np.array(capacity, dtype=float)
    return Arc(hosts, first, count or len(loads), np.array(loads, dtype=float), tuple(owned), fixed, capacity)


def every_cut(partitions, hosts):
    for cuts in itertools.combinations(range(1, partitions), hosts - 1):
        edges = (0, *cuts, partitions)
        yield tuple(b - a for a, b in itertools.pairwise(edges))


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_no_cut_has_a_lower_highest_level_than_the_one_found(data):
    hosts = data.draw(st.integers(1, 4))
    partitions = data.draw(st.integers(hosts, 8))
    loads = data.draw(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0]), min_size=partitions, max_size=partitions))
    fixed = data.draw(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=hosts, max_size=hosts))
    capacity = data.draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=hosts, max_size=hosts))
    given_arc = arc(loads, next(every_cut(partitions, hosts)), fixed, capacity)
    found = even_cut(given_arc)
    assert found is not None
    assert (sum(found), min(found) >= 1) == (partitions, True)
    best = min(float(given_arc.levels(cut).max()) for cut in every_cut(partitions, hosts))
    assert float(given_arc.levels(found).max()) == pytest.approx(best)


def test_half_cut_moves_as_in_figure_6_6():
    assert half_cut(arc([1] * 12, (8, 4))) == (4, 8)
    assert half_cut(arc([1] * 12, (4, 4, 4))) == (2, 4, 6)
    assert half_cut(arc([1] * 5, (5, 0))) == (3, 2)
    assert half_cut(arc([1] * 2, (1, 1))) is None, "one partition cannot be halved"
    assert even_cut(arc([1.0], (1, 0))) is half_cut(arc([1.0], (1, 0))) is None, "fewer than hosts"


def test_tokens_of_a_cut_lie_on_partitions_and_go_round_the_ring():
    around = arc([1] * 6, (5, 1), first=6, count=8)
    assert around.tokens((2, 4)) == {"h1": 0.0}
    assert around.tokens((4, 2)) == {"h1": 2 / 8}


def test_midway_is_half_the_distance_to_the_neighbour_through_zero_too():
    ring = Ring({"A": 0.1, "B": 0.35, "C": 0.7})
    assert midpoint(ring, "A") == pytest.approx(0.225)
    assert midpoint(ring, "C") == pytest.approx(0.9)
    assert midpoint(Ring({"A": 0.25}), "A") == 0.75


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_more_hosts_take_part_only_if_the_highest_level_falls(data):
    hosts = data.draw(st.integers(2, 6))
    owned = tuple(data.draw(st.lists(st.integers(1, 4), min_size=hosts, max_size=hosts)))
    levels = st.sampled_from([0.0, 0.02, 0.1, 0.3])
    loads = data.draw(st.lists(levels, min_size=sum(owned), max_size=sum(owned)))
    whole, asked = arc(loads, owned, [0.1] * hosts), data.draw(st.integers(2, hosts))
    short = whole.part(asked)
    cut = even_cut(short)
    found = wider_cut(whole, asked, cut, 0.1)
    assert found is not None
    chosen, then = found
    assert chosen.hosts == whole.hosts[: len(chosen.hosts)]
    assert (len(then), sum(then)) == (len(chosen.hosts), sum(chosen.owned))

    def highest(part, cut):
        return float(whole.levels((*cut, *owned[len(part.hosts) :])).max())

    if len(chosen.hosts) > asked:
        assert highest(chosen, then) < (1 - FURTHER * 0.1) * highest(short, cut)
    else:
        assert then == cut
        assert highest(whole, even_cut(whole)) >= (1 - FURTHER * 0.1) * highest(short, cut)
