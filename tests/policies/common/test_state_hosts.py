"""Hosts are leased for memory: one at a time, of a type that helps, and none that state does not need."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.control.arbitration import arbitrate
from elastream.core.action import CancelDrain, DrainHost, LeaseHost, ReleaseHost
from elastream.core.decision import Proposal
from elastream.core.hosts import Lease
from elastream.core.memory import NEARLY, lacking, room_by_host, shortage
from elastream.core.observation import Growth
from elastream.policies.common.placement import balance
from elastream.policies.common.state_hosts import MARGIN_S, lease_for_state
from elastream.policies.horizon.policy import Horizon
from elastream.policies.threshold import Threshold
from support.property_examples import examples
from support.states import BIG, observed

# Of RocksDB's state, a host of 1,000 MB and 300 MB of heap may hold 630 MB, and is nearly full at 665 MB.
HEAP = 300.0
HUGE = replace(BIG, name="huge", memory=4000.0, price=3.0)
WIDE = replace(BIG, name="wide", memory=4000.0, price=5.0)


def stored(at, megabytes, *, types=(BIG,), growth=0.0, max_hosts=10, coming=(), **more):
    hosts = max(at) + 1
    observation = observed(at, native=megabytes, heap_limit=[HEAP] * hosts, **more)
    context = replace(
        observation.context,
        host_types={each.name: each for each in types},
        max_hosts=max_hosts,
        capabilities=frozenset({"LeaseHost", "DrainHost", "ReleaseHost", "MoveTask"}),
    )
    leases = {**observation.leases, **{name: Lease(name, BIG, 9.0) for name in coming}}
    rates = {"memory": Growth(growth, 7200.0)} if growth else {}
    return replace(observation, context=context, leases=leases, growth=rates, next_host=len(leases) + 1)


def planned(observation, only=None):
    actions, remarks = lease_for_state(observation, BIG, only)
    return [getattr(each, "type", each.describe()) for each in actions], remarks


def test_state_that_fits_leases_nothing():
    assert planned(stored([0, 1], 1300.0)) == ([], ())


def test_nearly_full_hosts_get_one_more_and_the_reason_names_memory():
    (lease,), _ = lease_for_state(stored([0, 1] * 6, 1400.0), BIG)
    assert lease.host == "h3"
    assert lease.why == (
        "memory: 2 hosts carry the load, 3 carry the state: 2000 MB of memory, of which 2 may fill 1930 MB"
    )


def test_growing_state_leases_before_hosts_are_full():
    slow, fast = 30.0 / 3600.0, 300.0 / 3600.0
    assert planned(stored([0, 1] * 6, 1290.0, growth=slow))[0] == []
    (lease,), _ = lease_for_state(stored([0, 1] * 6, 1290.0, growth=fast), BIG)
    assert "in 11.0 min" in lease.why
    assert BIG.start + MARGIN_S == 660.0


@pytest.mark.parametrize(
    "unknown",
    [
        {"known": False},
        {"memory_limit": [1000.0, np.nan]},
        {"memory_limit": [np.inf, np.inf]},
    ],
)
def test_unknown_or_endless_memory_leases_nothing(unknown):
    assert planned(stored([0, 1] * 6, 5000.0, **unknown)) == ([], ())


def test_nothing_is_leased_while_a_host_is_coming():
    assert planned(stored([0, 1] * 6, 1400.0, coming=("h3",))) == ([], ())


def test_hosts_bound_is_a_remark():
    actions, (remark,) = planned(stored([0, 1] * 6, 1400.0, max_hosts=2))
    assert actions == []
    assert remark.startswith("max_hosts")
    assert "3 carry the state" in remark


def test_drain_is_cancelled_before_a_host_is_leased():
    (action,), _ = lease_for_state(stored([0, 1] * 6, 1400.0, drains=("h2",)), BIG)
    assert isinstance(action, CancelDrain)


def test_larger_type_is_leased_for_a_partition_that_fits_no_usual_one():
    large = stored([0, 1], 1400.0, sizes=[700.0, 100.0], types=(BIG, WIDE))
    assert planned(large)[0] == ["wide"]
    actions, (remark,) = planned(large, only="big")
    assert actions == []
    assert "no host type offered has room" in remark


def test_growing_state_leases_the_lowest_price_of_room():
    at, types = [0, 1] * 6, (BIG, HUGE, WIDE)
    assert planned(stored(at, 1400.0, types=types))[0] == ["big"], "room beyond the need is worth nothing"
    assert planned(stored(at, 1400.0, types=types, growth=1.0))[0] == ["huge"]
    assert planned(stored(at, 1400.0, types=types, growth=1.0), only="big")[0] == ["big"]


def test_limits_of_the_session_are_the_same_on_every_type():
    limits = {"memory_limit": [900.0 - 200.0] * 2, "types": (BIG, HUGE)}
    assert planned(stored([0, 1] * 6, 900.0, growth=1.0, **limits))[0] == ["big"]


def test_host_leased_for_growth_is_not_released_at_once():
    """The third host has just come, and holds nothing yet, or its share."""
    empty = stored([0, 1] * 6 + [2], 1290.0, sizes=[1.0] * 12 + [0.0], growth=300.0 / 3600.0)
    assert shortage(empty, {"h3"}) != ""
    assert shortage(stored([0, 1, 2] * 4, 1200.0, growth=300.0 / 3600.0), {"h3"}) != ""
    assert shortage(stored([0, 1, 2] * 4, 1200.0), {"h3"}) == ""


def test_awaited_host_that_state_needs_is_not_withdrawn():
    def refused(observation):
        (answer,) = arbitrate([Proposal(ReleaseHost("h3"), "test")], observation)
        return answer.refused

    assert refused(stored([0, 1] * 6, 1400.0, coming=("h3",))).startswith("memory: 2 hosts would carry the load, 3 carry")
    assert refused(stored([0, 1] * 6, 1400.0, coming=("h3", "h4"))) == ""
    assert refused(stored([0, 1] * 6, 1000.0, coming=("h3",))) == ""


def test_nearly_full_host_gives_state_to_a_larger_one():
    large = stored([0] * 6 + [1] * 6, 1350.0, memory_limit=[1000.0, 4000.0])
    moves = balance(large)
    assert [(each.task.index < 6, each.host) for each in moves] == [(True, "h2")]
    settled = stored([0] * 5 + [1] * 7, 1350.0, memory_limit=[1000.0, 4000.0])
    assert balance(settled) == [], "an even number of tasks would fill the small one again"


@pytest.mark.parametrize("policy", [Threshold(), Horizon()])
def test_policies_lease_for_state_without_any_load(policy):
    plan = policy.plan(stored([0, 1] * 6, 1400.0))
    (lease,) = [each for each in plan.actions if isinstance(each, LeaseHost)]
    assert lease.why.startswith("memory: ")
    assert not any(isinstance(each, DrainHost) for each in plan.actions)


PARTITIONS = st.lists(st.floats(1.0, 900.0), min_size=1, max_size=24)


@given(PARTITIONS, st.integers(1, 4), st.floats(0.0, 1.0), st.integers(1, 8))
@settings(max_examples=examples(100), deadline=None)
def test_leases_end_within_need_and_bound(sizes, hosts, growth, max_hosts):
    """One host after the other joins, and state is placed anew: no more come than hold all partitions one by one."""
    count, hosts = hosts, min(hosts, max_hosts)
    leased = 0
    while True:
        at = [number % count for number in range(len(sizes) - 1)] + [count - 1]
        observation = stored(at, sum(sizes), sizes=sizes, types=(BIG, HUGE), growth=growth, max_hosts=max_hosts)
        actions, _ = lease_for_state(observation, BIG, "big")
        if not actions:
            break
        assert len(actions) == 1
        assert lacking(observation, BIG.start + MARGIN_S, NEARLY) is not None
        assert len(observation.leases) < max_hosts
        leased, count = leased + 1, count + 1
        assert leased <= len(sizes)


@given(PARTITIONS, st.integers(2, 4))
@settings(max_examples=examples(50), deadline=None)
def test_host_that_may_go_is_not_leased_again(sizes, hosts):
    at = [number % hosts for number in range(len(sizes) - 1)] + [hosts - 1]
    observation = stored(at, sum(sizes), sizes=sizes)
    if shortage(observation, {f"h{hosts}"}):
        return
    room, state = room_by_host(observation)
    placed = list(at)
    for number in sorted((n for n, host in enumerate(at) if host == hosts - 1), key=lambda n: -state[n]):
        roomiest = max(range(hosts - 1), key=lambda host: room[f"h{host + 1}"])
        room[f"h{roomiest + 1}"] -= state[number]
        placed[number] = roomiest
    if max(placed) == hosts - 2:
        before = lease_for_state(observation, BIG)[0]
        assert before or not lease_for_state(stored(placed, sum(sizes), sizes=sizes), BIG)[0]
