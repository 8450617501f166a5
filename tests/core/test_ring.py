"""A ring of hosts: who owns which keys, who holds copies, and what changes when a host comes, moves or goes."""

import json
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.action import SetTokens, from_json, to_json
from elastream.core.ring import Ring, in_zones
from elastream.errors import InputError
from support.property_examples import examples

TOKENS = st.floats(0, 1, exclude_max=True) | st.integers(0, 63).map(lambda n: n / 64)
KEYS = np.random.default_rng(5).random(400)


def rings(least: int = 1, most: int = 9) -> st.SearchStrategy[Ring]:
    return st.lists(TOKENS, min_size=least, max_size=most, unique=True).map(
        lambda tokens: Ring({f"h{number}": token for number, token in enumerate(tokens)})
    )


def nearest(ring: Ring, key: float) -> str:
    """The host nearest to `key` counter-clockwise, found by looking at every one."""
    return min(ring, key=lambda node: (Fraction(key) - Fraction(ring.tokens[node])) % 1)


@settings(max_examples=examples(200), deadline=None)
@given(rings(), st.lists(TOKENS, min_size=1, max_size=20))
def test_a_key_belongs_to_the_nearest_host_counter_clockwise(ring, keys):
    assert [ring.nodes[owner] for owner in ring.owners([*keys, *ring.tokens.values()])] == [
        nearest(ring, key) for key in (*keys, *ring.tokens.values())
    ]


@settings(max_examples=examples(100), deadline=None)
@given(rings(1, 8), TOKENS)
def test_a_host_that_comes_takes_keys_of_its_neighbour_only(ring, token):
    if token in ring.tokens.values():
        return
    after = ring.with_node("new", token)
    before = [ring.nodes[owner] for owner in ring.owners(KEYS)]
    now = [after.nodes[owner] for owner in after.owners(KEYS)]
    assert all(old == new or (new == "new" and old == nearest(ring, token)) for old, new in zip(before, now, strict=True))


@settings(max_examples=examples(100), deadline=None)
@given(rings(2, 8), st.data())
def test_a_leaving_hosts_keys_go_to_its_neighbour_and_no_others_move(ring, data):
    gone = data.draw(st.sampled_from(ring.nodes))
    (heir,) = ring.successors(gone, 1)
    after = ring.without(gone)
    assert after.tokens[heir] == ring.tokens[gone]
    for key in KEYS:
        assert after.owner(key) == (heir if ring.owner(key) == gone else ring.owner(key))


@settings(max_examples=examples(150), deadline=None)
@given(rings(), st.integers(1, 70))
def test_each_host_owns_a_contiguous_range_and_all_partitions_once(ring, count):
    hosts = ring.hosts_of(count)
    assert hosts == tuple(ring.owner(number / count) for number in range(count))
    owned = [number for node in ring.nodes for number in ring.partitions(node, count)]
    assert sorted(owned) == list(range(count))
    for node in ring.nodes:
        mine = ring.partitions(node, count)
        assert all(hosts[number] == node for number in mine)
        assert all((a + 1) % count == b for a, b in pairwise(mine))


@settings(max_examples=examples(150), deadline=None)
@given(rings(1, 7), st.integers(0, 4), st.data())
def test_keys_survive_as_long_as_no_more_than_r_neighbours_in_a_row_fail(ring, r, data):
    failed = data.draw(st.sets(st.sampled_from(ring.nodes)))
    r = min(r, len(ring) - 1)
    around = [node in failed for node in (*ring.nodes, *ring.nodes)]
    longest = current = 0
    for fails in around:
        current = current + 1 if fails else 0
        longest = max(longest, current)
    assert ring.survives(failed, r) == (longest <= r)
    if ring.survives(failed, r):
        assert len(failed) <= min(len(ring) * r // (r + 1), len(ring) - 1)


def test_with_one_copy_every_second_host_may_fail():
    ring = Ring.even([f"h{number}" for number in range(6)])
    assert ring.survives({"h0", "h2", "h4"}, 1)
    assert not ring.survives({"h0", "h1"}, 1)
    assert not ring.survives({"h5", "h0"}, 1)
    assert not Ring.even(["h1"]).survives({"h1"}, 1)


def test_the_examples_of_the_thesis():
    # Fig. 6.4: tokens 0.1, 0.35, 0.7, 0.88; F(k) = 0.2 belongs to the host at 0.1, its copies to the next two clockwise.
    ring = Ring({"A": 0.1, "B": 0.35, "C": 0.7, "D": 0.88})
    assert (ring.owner(0.2), ring.successors("A", 2)) == ("A", ("B", "C"))
    assert ring.owner(0.05) == "D", "before the first token the last interval goes on"
    # Fig. 6.8: A goes, B takes its token.
    assert ring.without("A").tokens == {"B": 0.1, "C": 0.7, "D": 0.88}
    # Fig. 6.9: six hosts in two zones by turns; all of zone 1 fail.
    six = Ring.even(["1", "2", "3", "4", "5", "6"])
    assert six.survives({"1", "3", "5"}, 1)
    assert six.without("1").without("3").without("5").nodes == ("2", "4", "6")


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_neighbours_are_in_distinct_zones_if_no_zone_has_a_majority(zones):
    named = {f"h{number}": zone for number, zone in enumerate(zones)}
    order = in_zones(named)
    assert sorted(order) == sorted(named)
    alike = sum(named[a] == named[b] for a, b in zip(order, order[1:] + order[:1], strict=True))
    if max(zones.count(zone) for zone in "abc") <= len(zones) // 2:
        assert alike == 0


def test_three_zones_take_turns_so_that_two_copies_are_in_two_others():
    order = in_zones({f"h{number}": zone for number, zone in enumerate("aabbcc")})
    zones = ["aabbcc"[int(host[1:])] for host in order]
    assert all(len({zones[i], zones[(i + 1) % 6], zones[(i + 2) % 6]}) == 3 for i in range(6))


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        ({}, "a ring has no host: it needs at least one"),
        ({"h1": 1.0}, "the token of 'h1' is 1; it must be at least 0 and below 1"),
        ({"h1": -0.25}, "the token of 'h1' is -0.25; it must be at least 0 and below 1"),
        ({"h1": math.nan}, "the token of 'h1' is nan; it must be at least 0 and below 1"),
        ({"h1": 0.5, "h2": 0.5}, "'h1' and 'h2' are both at token 0.5"),
    ],
)
def test_what_is_no_ring_is_refused_in_one_sentence(tokens, sentence):
    with pytest.raises(InputError) as refused:
        Ring(tokens)
    assert str(refused.value) == sentence


def test_changes_that_a_ring_cannot_take_are_refused():
    ring = Ring({"h1": 0.0, "h2": 0.5})
    for change, sentence in (
        (lambda: ring.with_node("h1", 0.3), "'h1' is on the ring already"),
        (lambda: ring.with_node("h3", 0.5), "'h2' and 'h3' are both at token 0.5"),
        (lambda: ring.at("h3", 0.3), "'h3' is not on the ring"),
        (lambda: ring.without("h3"), "'h3' is not on the ring"),
        (lambda: Ring({"h1": 0.0}).without("h1"), "'h1' is the last host of the ring"),
        (lambda: ring.owners([0.2, 1.0]), "a key lies outside [0, 1)"),
        (lambda: ring.owners([math.nan]), "a key lies outside [0, 1)"),
    ):
        with pytest.raises(InputError) as refused:
            change()
        assert str(refused.value) == sentence


def test_a_request_for_tokens_says_what_is_wrong_with_it():
    partitions = {"count": 8}
    for action, sentence in (
        (SetTokens("count", (("h1", 0.0), ("h2", 0.5))), ""),
        (SetTokens("split", (("h1", 0.0),)), "'split' has no state partitions that a ring of hosts could divide"),
        (SetTokens("count", (("h1", 0.0), ("h1", 0.5))), "host 'h1' has two tokens on the ring of count"),
        (SetTokens("count", ()), "the ring of count: a ring has no host: it needs at least one"),
    ):
        assert action.refusal(partitions) == sentence


def test_a_ring_is_a_value_and_its_tokens_keep_every_bit_in_the_journal():
    ring = Ring({"b": 2 / 3, "a": 1 / 3})
    assert (ring, hash(ring), list(ring)) == (
        Ring({"a": 1 / 3, "b": 2 / 3}),
        hash(Ring({"a": 1 / 3, "b": 2 / 3})),
        ["a", "b"],
    )
    action = SetTokens("count", tuple(ring.tokens.items()))
    assert Ring(dict(from_json(json.loads(json.dumps(to_json(action)))).tokens)) == ring  # type: ignore[union-attr]
