"""Which types are leased for a need, and which hosts go."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.action import DrainHost, LeaseHost
from elastream.core.frames import Frame
from elastream.core.hosts import Billing, HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.policies.common.chained import SharedHosts
from elastream.policies.common.measures import cheapest_type
from policies.test_threshold import observe
from support.fake_plant import BIG, SMALL
from support.states import observed

TYPES = {"small": SMALL, "big": BIG}


def lease(name, kind):
    return Lease(name, kind, -995.0).to(HostState.STARTING, -995.0).to(HostState.RUNNING, -995.0)


def hosts(*kinds, types=TYPES, max_hosts=50, equal=False):
    seen = observe([lease(f"h{n}", kind) for n, kind in enumerate(kinds, 1)], 50.0, max_hosts=max_hosts)
    seen = replace(seen, context=replace(seen.context, host_types=types))
    return SharedHosts(seen, cheapest_type(seen.context), 1.0, 0, equal, 2.0, 0.0, mixed=True)


def leased(shared, need):
    return [each.type for each in shared.lease_missing(need, lambda: "") if isinstance(each, LeaseHost)]


@pytest.mark.parametrize(
    ("need", "types"),
    [
        (1.5, ["small"]),
        (3.5, ["big"]),  # three small ones cost as much
        (5.0, ["big"]),
        (6.0, ["big", "small"]),
        (9.0, ["big", "big"]),
    ],
)
def test_small_hosts_carry_what_whole_big_ones_leave(need, types):
    assert leased(hosts(SMALL), need) == types


def test_one_type_that_is_asked_for_is_kept_to():
    assert leased(replace(hosts(SMALL), mixed=False), 1.5) == ["big"]


def test_small_hosts_are_not_leased_beyond_the_limit():
    assert leased(hosts(SMALL, max_hosts=2), 2.9) == ["big"]
    assert leased(hosts(SMALL, max_hosts=3), 2.9) == ["small", "small"]


def test_slower_slots_are_not_mixed_where_all_tasks_wait_for_the_slowest():
    types = {"big": replace(BIG, slots=4), "slow": replace(SMALL, name="slow", cores=0.5, price=0.5)}
    big = types["big"]
    assert leased(hosts(big, types=types), 4.5) == ["slow"]
    assert leased(hosts(big, types=types, equal=True), 4.5) == ["big"]


@pytest.mark.parametrize(("need", "types"), [(2.4, ["small"]), (2.9, ["small", "small"]), (3.5, ["big"])])
def test_fast_small_hosts_count_by_slots_where_all_tasks_wait_for_a_slow_host(need, types):
    fast, slow = {**TYPES, "big": replace(BIG, slots=4)}, replace(BIG, name="old", slots=4, speed=0.5)
    assert leased(hosts(slow, types=fast, equal=True), need) == types


FAST, SLOW = replace(BIG, slots=4), replace(SMALL, name="slow", speed=0.3)


def test_one_slow_host_is_no_reason_to_lease_many():
    types = {"big": FAST, "slow": SLOW}
    assert leased(hosts(SLOW, types=types, equal=True), 7.0) == ["big", "big"], "at 0.3 a slot, six would be needed"
    assert leased(hosts(SLOW, types=types, equal=True), 4.3) == ["big", "big"], "the rest fits slow hosts no better"
    (drain,) = hosts(SLOW, FAST, FAST, types=types, equal=True).lease_missing(7.0, lambda: "")
    assert drain == DrainHost("h1", why=drain.why)
    assert leased(hosts(SLOW, FAST, FAST, types=types, equal=True), 1.0) == [], "it is in time with it"


def test_hosts_that_are_all_slower_than_declared_are_not_replaced_by_more_of_them():
    shared = hosts(FAST, FAST, FAST, types={"big": FAST}, equal=True)
    speeds = {"h1": 0.3, "h2": 0.3, "h3": 0.9}
    frame = Frame(tuple(speeds), {Metric.SPEED: list(speeds.values())})
    slow = replace(shared, observation=replace(shared.observation, hosts=frame))
    assert {type(each) for each in slow.lease_missing(4.0, lambda: "")} == {LeaseHost}
    frame = Frame(tuple(speeds), {Metric.SPEED: [0.3, 0.9, 0.9]})
    (drain,) = replace(shared, observation=replace(shared.observation, hosts=frame)).lease_missing(4.0, lambda: "")
    assert drain.host == "h1", "one of three is slow"


def test_slow_host_stays_while_the_others_would_serve_less():
    types = {"big": FAST, "slow": replace(FAST, name="slow", speed=0.6)}
    assert leased(hosts(types["slow"], FAST, types=types, equal=True), 8.0) == ["big"]


def test_slow_host_stays_if_it_is_pinned_or_too_few_would_be_left():
    types = {"big": FAST, "slow": SLOW}
    shared = hosts(SLOW, FAST, FAST, types=types, equal=True)
    pinned = replace(shared, observation=replace(shared.observation, pinned={"h1": "a query never ends"}))
    few = replace(shared.observation.context, min_hosts=3)
    for each in (pinned, replace(shared, observation=replace(shared.observation, context=few))):
        assert not any(isinstance(action, DrainHost) for action in each.lease_missing(7.0, lambda: ""))


def test_a_slow_host_that_drains_allows_no_slow_type():
    types = {"big": replace(BIG, slots=4), "slow": replace(BIG, name="slow", cores=2.0, slots=4, price=0.5, speed=0.5)}
    shared = hosts(types["big"], types["slow"], types=types, equal=True)
    leases = dict(shared.observation.leases)
    leases["h2"] = replace(leases["h2"].to(HostState.DRAINING, 1.0), deadline=90.0)
    shared = replace(shared, observation=replace(shared.observation, leases=type(shared.observation.leases)(leases)))
    shared = replace(shared, kind=types["big"])
    assert leased(shared, 4.5) == ["big"]


@given(need=st.floats(1.0, 40.0), price=st.floats(0.1, 5.0), cores=st.sampled_from([0.5, 1.0, 2.0, 3.0, 8.0]))
def test_a_mix_suffices_and_costs_at_most_one_host_more_than_cores_must(need, price, cores):
    types = {**TYPES, "other": replace(SMALL, name="other", cores=cores, price=price)}
    shared = hosts(SMALL, types=types, max_hosts=500)
    chosen = [types[name] for name in leased(shared, need)]
    assert 1.0 + math.fsum(each.cores for each in chosen) >= need - 1e-6
    least = shared.kind.price / shared.kind.cores * max(0.0, need - 1.0)
    assert math.fsum(each.price for each in chosen) <= least + shared.kind.price + 1e-6


def successors(shared, highest):
    return [each.type for each in shared.lease_successors(highest, 4.0, 0.0)[2]]


def test_cheaper_hosts_come_for_a_dear_one_with_little_work():
    dear = replace(BIG, price=8.0, billing=Billing(1.0))
    types = {"small": replace(SMALL, price=1.0, billing=Billing(1.0)), "big": dear}
    shared = hosts(dear, types=types)
    assert successors(shared, 1.5) == ["small"] * math.ceil(1.5 / SMALL.cores)
    assert successors(shared, 3.9) == ["small"] * math.ceil(3.9 / SMALL.cores)
    few = replace(shared.observation, context=replace(shared.observation.context, max_hosts=1))
    pinned = replace(shared.observation, pinned={"h1": "a query never ends"})
    for observation in (few, pinned):
        assert not successors(replace(shared, observation=observation), 1.5)
    near = {**types, "small": replace(types["small"], price=7.0)}
    assert not successors(hosts(dear, types=near), 1.0), "not worth the change"
    free = {name: replace(each, price=0.0) for name, each in types.items()}
    assert not successors(hosts(free["big"], types=free), 1.0)
    assert not successors(replace(shared, mixed=False), 1.5), "the type to lease was named"
    paid = replace(dear, billing=Billing(3600.0))
    assert not successors(hosts(paid, types={**types, "big": paid}), 1.5), "paid for until the hour ends"


def test_successors_have_the_memory_of_the_host_whose_state_they_take():
    large = HostType("large", cores=2.0, memory=1000.0, price=8.0, billing=Billing(1.0))
    small = HostType("small", cores=1.0, memory=250.0, price=1.0, billing=Billing(1.0))
    for state, number in ((200.0, 4), (None, 1)):
        seen = observed([0, 0], native=state, memory=[900.0], python_memory=[0.0], off_heap=[0.0])
        context = replace(seen.context, host_types={"large": large, "small": small}, max_hosts=20)
        seen = replace(seen, context=context, leases={"h1": replace(seen.leases["h1"], type=large)})
        shared = SharedHosts(seen, small, 1.0, 0, False, 2.0, 0.0, mixed=True)
        assert successors(shared, 0.5) == ["small"] * number


def test_a_dear_host_goes_once_others_suffice():
    shared = hosts(BIG, SMALL, SMALL)
    assert [each.host for each in shared.drain_replaced("h1", 2.0)] == ["h1"]
    assert not shared.drain_replaced("h1", 2.1)
    pinned = replace(shared.observation, pinned={"h1": "a query never ends"})
    assert not replace(shared, observation=pinned).drain_replaced("h1", 2.0)


def test_the_dearest_hosts_that_can_go_do():
    assert [each.host for each in hosts(SMALL, SMALL, BIG).drain_surplus(1.0, part=1.0)] == ["h3", "h1"]
    assert [each.host for each in hosts(SMALL, BIG, BIG).drain_surplus(4.5, part=1.0)] == ["h2"]


def test_a_small_host_goes_where_a_big_one_must_stay():
    shared = hosts(BIG, SMALL, SMALL, SMALL)
    assert [each.host for each in shared.drain_surplus(4.5)] == ["h2", "h3"]
