"""What an application manager grants and refuses, and when it lets go of a host."""

import math
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastream.policies.e2df.applications import (
    Application,
    ApplicationRules,
    OperatorRules,
    answer,
    grant,
    initial_placement,
    move_off,
    propose,
    refilled,
)
from elastream.sharing.holder import receive
from elastream.sharing.messages import View
from support.manager_snapshots import everyones, snapshot

RULES = ApplicationRules()
UNLIMITED = np.array([math.inf, math.inf])


def decided(seen, tokens=UNLIMITED):
    owner, withheld = everyones(seen)
    return grant(seen, propose(OperatorRules(), seen, owner, withheld), tokens)


def test_the_first_placement_spreads_operators_evenly() -> None:
    placed = initial_placement([f"o{k}" for k in range(7)], ["h1", "h2", "h3"])
    assert sorted(Counter(placed.values()).values()) == [2, 2, 3]
    assert initial_placement(["o"], []) == {}


def test_tokens_come_back_with_time_and_never_exceed_the_bucket() -> None:
    rules = ApplicationRules(tokens=4, window=60)
    applications = [Application("a", tokens=0.0, refilled=0.0), Application("b", tokens=3.0, refilled=0.0)]
    assert refilled(rules, applications, 30.0).tolist() == [2.0, 4.0]
    assert refilled(rules, applications, 3000.0).tolist() == [4.0, 4.0]


@given(
    st.lists(st.tuples(st.sampled_from("xyzuvw"), st.integers(0, 3), st.floats(0, 1)), min_size=1, max_size=20),
    st.integers(0, 5),
)
def test_no_host_is_given_more_than_it_has_slots(replicas: list[tuple[str, int, float]], tokens: int) -> None:
    counts = Counter(host for _, host, _ in replicas)
    hosts = {f"h{k}": ("east", counts[k] + k % 2, k / 4) for k in range(4)}
    seen = snapshot(hosts, [(f"a/{operator}", f"h{host}", used) for operator, host, used in replicas])
    grants = decided(seen, np.array([float(tokens)]))
    into = Counter(grants.proposals.host[grants.granted & (grants.proposals.change > 0)].tolist())
    assert all(number <= seen.free[host] for host, number in into.items())
    assert grants.granted.sum() <= tokens


def test_a_host_is_emptied_as_a_whole_or_not_at_all() -> None:
    hosts = {"h0": ("east", 2, 0.1), "h1": ("east", 1, 0.0), "h2": ("east", 2, 0.2)}
    seen = snapshot(hosts, [("a/x", "h0", 0.1), ("a/y", "h0", 0.1), ("a/z", "h2", 0.5), ("a/z", "h2", 0.5)])
    usable = np.array([1, 2])
    assert move_off(seen, [0], usable, seen.free.copy()) == ()
    room = np.array([0, 2, 0])
    assert {shift.host for shift in move_off(seen, [0], usable, room)} == {1}
    assert room.tolist() == [0, 0, 0]


def test_a_replica_stays_in_its_region_where_there_is_room() -> None:
    hosts = {"h0": ("east", 1, 0.1), "h1": ("west", 1, 0.0), "h2": ("east", 1, 0.4)}
    seen = snapshot(hosts, [("a/x", "h0", 0.1)])
    (shift,) = move_off(seen, [0], np.array([1, 2]), seen.free.copy())
    assert seen.hosts.names[shift.host] == "h2"


def view(term: int, *leave: str, hosts: dict[str, int]) -> View:
    """hosts: the term in which each last changed."""
    return View("a", term, tuple((h, "small", at) for h, at in hosts.items()), tuple((h, "hardly used") for h in leave))


VIEW = view(3, "h2", "h3", hosts={"h1": 1, "h2": 3, "h3": 3})


def test_hosts_that_are_not_needed_are_let_go_at_once_and_others_kept() -> None:
    asked = receive(Application("a"), VIEW)
    after, said = answer(RULES, asked, 0.0, frozenset({"h3"}), critical=False)
    assert (said.hosts, said.refused, said.seen) == (("h1", "h3"), (), 3)
    assert set(after.leave) == {"h3"}


def test_a_placement_that_was_granted_and_not_seen_yet_keeps_its_host() -> None:
    asked = receive(Application("a", granted={"h2": 100.0}), VIEW)
    assert answer(RULES, asked, 100.0 + RULES.settle - 1, frozenset(), critical=False)[1].hosts == ("h1", "h2")
    assert answer(RULES, asked, 100.0 + RULES.settle, frozenset(), critical=False)[1].hosts == ("h1",)


def test_a_critical_application_keeps_used_hosts_and_lets_others_go() -> None:
    asked = receive(Application("a"), VIEW)
    _, said = answer(RULES, asked, 0.0, frozenset({"h3"}), critical=True)
    assert (said.hosts, said.refused) == (("h1", "h3"), ("h3",))


def test_an_old_view_is_no_news() -> None:
    now = receive(Application("a"), VIEW)
    assert receive(now, VIEW) == now
    assert receive(now, view(2, hosts={"h9": 2})) == now


def test_a_host_let_go_stays_let_go_in_an_older_view() -> None:
    now, _ = answer(RULES, receive(Application("a"), VIEW), 0.0, frozenset(), critical=False)
    later = receive(now, view(4, "h2", "h3", hosts={"h1": 1, "h2": 3, "h3": 3, "h4": 4}))
    assert tuple(later.hosts) == ("h1", "h4")


def test_a_host_let_go_is_its_own_again_if_not_to_be_left() -> None:
    now, _ = answer(RULES, receive(Application("a"), VIEW), 0.0, frozenset(), critical=False)
    assert tuple(receive(now, view(4, hosts={"h1": 1, "h2": 4})).hosts) == ("h1", "h2")
