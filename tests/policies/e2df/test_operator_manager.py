"""When an operator manager proposes a replica more or less, and where."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.policies.e2df.applications import OperatorRules, propose
from support.manager_snapshots import ScaleIn, ScaleOut, everyones, messages, snapshot

RULES = OperatorRules()
ROOM = {"h1": ("east", 4, 0.9), "h2": ("east", 4, 0.3), "h3": ("east", 4, 0.1), "h4": ("west", 4, 0.0)}


def said(seen, rules=RULES, withheld=()):
    owner, kept = everyones(seen)
    kept[[seen.hosts.rows[host] for host in withheld]] = True
    return messages(propose(rules, seen, owner, kept), seen)


@pytest.mark.parametrize("used", [(0.71, 0.2), (math.nan, 0.9)])
def test_hot_instance_adds_one_on_the_least_used_host_of_its_region(used: tuple[float, float]) -> None:
    seen = snapshot(ROOM, [("a/count", "h1", used[0]), ("a/count", "h2", used[1])])
    assert said(seen) == (ScaleOut("a", "a/count", 3, "h3"),)
    assert said(seen, withheld=("h3",)) == (ScaleOut("a", "a/count", 3, "h2"),)


def test_instance_goes_if_the_others_stay_below_c_times_the_threshold() -> None:
    below = [("a/count", "h1", 0.35), ("a/count", "h2", 0.17)]
    (message,) = said(snapshot(ROOM, below))
    assert isinstance(message, ScaleIn)
    assert message.instances == 1
    assert said(snapshot(ROOM, [("a/count", "h1", 0.35), ("a/count", "h2", 0.18)])) == ()  # 0.53 is above 0.525


def test_instance_to_go_is_one_of_the_two_most_used_in_turn() -> None:
    replicas = [("a/count", "h1", used) for used in (0.01, 0.2, 0.02, 0.1)]
    gone = {said(snapshot(ROOM, replicas, time=30.0 * k))[0].without for k in range(40)}
    assert gone == {1, 3}


@pytest.mark.parametrize("used", [(0.7,), (0.0,), (math.nan, 0.1), (math.nan, 0.0, 0.0)])
def test_nothing_is_proposed_at_a_threshold_for_the_last_or_unknown(used: tuple[float, ...]) -> None:
    assert said(snapshot(ROOM, [("a/count", "h1", each) for each in used])) == ()
    full = {"h1": ("east", 1, 0.9), "h2": ("west", 1, 0.0)}
    assert said(snapshot(full, [("a/count", "h1", 0.9)])) == (), "no slot is free in the region"


def test_a_host_of_another_application_is_not_proposed() -> None:
    seen = snapshot(ROOM, [("a/count", "h1", 0.9)])
    _, withheld = everyones(seen)
    assert len(propose(RULES, seen, np.array([0, 1, -1, 0]), withheld)) == 1  # h1 has slots left
    full = snapshot({**ROOM, "h1": ("east", 1, 0.9)}, [("a/count", "h1", 0.9)])
    assert len(propose(RULES, full, np.array([0, 1, -1, 0]), withheld)) == 0


def test_a_host_whose_use_is_unknown_comes_after_all_others() -> None:
    hosts = {"h1": ("east", 1, 0.9), "h2": ("east", 1, math.nan), "h3": ("east", 1, 0.99)}
    assert said(snapshot(hosts, [("a/count", "h1", 0.9)]))[0].host == "h3"


def test_operators_do_not_all_request_the_same_idle_host() -> None:
    hosts = {"h0": ("east", 50, 0.9), **{f"h{k}": ("east", 1, 0.0) for k in range(1, 9)}}
    seen = snapshot(hosts, [(f"a/{k}", "h0", 0.9) for k in range(8)])
    assert len({message.host for message in said(seen)}) > 2


@given(
    st.lists(
        st.tuples(st.sampled_from(["a/x", "a/y", "b/x", "b/z"]), st.sampled_from(sorted(ROOM)), st.floats(0, 1)),
        min_size=1,
        max_size=12,
    ),
    st.floats(0, 1e6),
)
def test_managers_decide_together_as_they_do_one_by_one(replicas: list[tuple[str, str, float]], time: float) -> None:
    """No operator manager sees the replicas of another: only the slots that these take."""
    hosts = {name: (region, 100, cpu) for name, (region, _, cpu) in ROOM.items()}
    seen = snapshot(hosts, replicas, time=time)
    owner, withheld = everyones(seen)
    owner[:] = seen.operators.application[0]
    together = {}
    for application in range(len(seen.applications.names)):
        found = messages(propose(RULES, seen, np.full_like(owner, application), withheld), seen)
        together |= {m.operator: m for m in found if m.application == seen.applications.names[application]}
    alone = {}
    for operator in seen.operators.names:
        mine = snapshot(hosts, [each for each in replicas if each[0] == operator], time=time)
        alone |= {message.operator: message for message in said(mine)}
    assert together == alone
