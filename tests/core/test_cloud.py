import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.hosts import (
    ACTIVE,
    TRANSITIONS,
    Billing,
    HostState,
    HostType,
    Lease,
    LifecycleError,
    by_zones,
    total_cost,
)
from elastream.errors import CloudError

SMALL = HostType("small", cores=1, price=2.0, billing=Billing(600))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"cores": 0}, "host type 'bad' has no core"),
        ({"cores": 1e9}, "host type 'bad' has 1e+09 cores; no host has more than 100,000"),
        ({"cores": float("inf")}, "host type 'bad' has inf cores; no host has more than 100,000"),
        ({"cores": 1, "memory": "1e30 GB"}, "host type 'bad' has 1e+33 MB; no host has more than 1,000,000,000 MB"),
        ({"cores": 1, "price": -0.1}, "host type 'bad' has a negative price (-0.1)"),
        ({"cores": 1, "memory": 0}, "host type 'bad' has no memory"),
        ({"cores": 1, "speed": 0}, "core speed of 0"),
        ({"cores": 1, "slots": -1}, "negative number of slots"),
        ({"cores": float("nan")}, "has no core"),
    ],
)
def test_an_impossible_host_type_is_refused_by_name(fields, sentence):
    with pytest.raises(CloudError) as refused:
        HostType("bad", **fields)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(("seconds", "units"), [(0, 1), (1, 1), (600, 1), (600.1, 2), (1200, 2), (1201, 3)])
def test_a_lease_pays_whole_units_from_its_first_moment(seconds, units):
    assert Lease("h1", SMALL, 100.0).units(100.0 + seconds) == units


def test_a_minimum_is_paid_however_short_the_lease():
    assert Billing(1, minimum=60).units(5) == 60
    assert Billing(1, minimum=60).units(61) == 61


def test_what_is_paid_and_not_used_counts_down_to_the_end_of_the_unit():
    lease = Lease("h1", SMALL, 0.0)
    assert lease.remaining(1.0) == pytest.approx(599)
    assert lease.remaining(601.0) == pytest.approx(599)


def test_a_lease_tells_its_story_when_it_is_sent_where_it_cannot_go():
    lease = Lease("h1", SMALL, 0.0).to(HostState.STARTING, 1.0).to(HostState.RUNNING, 8.0)
    with pytest.raises(LifecycleError, match=r"'h1' cannot go from running to requested .*starting at 1\.0 s"):
        lease.to(HostState.REQUESTED, 9.0)


def test_going_where_it_is_changes_nothing():
    lease = Lease("h1", SMALL, 0.0).to(HostState.STARTING, 1.0)
    assert lease.to(HostState.STARTING, 5.0) is lease


def test_every_state_that_is_paid_has_a_way_out():
    for state in ACTIVE:
        reached, frontier = set(), {state}
        while frontier:
            reached |= frontier
            frontier = {after for before in frontier for after in TRANSITIONS[before]} - reached
        assert reached & {HostState.RELEASED, HostState.LOST}


@given(st.lists(st.sampled_from(HostState), max_size=8))
def test_a_lease_ends_once_and_stops_costing(path):
    lease, now = Lease("h1", SMALL, 0.0), 0.0
    for state in path:
        now += 200.0
        if state in TRANSITIONS[lease.state]:
            lease = lease.to(state, now)
    assert lease.active == (lease.until is None)
    if not lease.active:
        assert lease.cost(now + 1e6) == lease.cost(lease.until)


@given(st.lists(st.floats(0, 1e5), max_size=5), st.floats(0, 1e6))
def test_the_bill_is_the_sum_of_its_leases_and_never_falls(starts, later):
    leases = [Lease(f"h{n}", SMALL, start) for n, start in enumerate(starts)]
    assert total_cost(leases, 1e5) == pytest.approx(sum(lease.cost(1e5) for lease in leases))
    assert total_cost(leases, 1e5 + later) >= total_cost(leases, 1e5)


def test_the_fault_zone_of_a_host_is_its_own_or_its_region():
    assert HostType("a", cores=1, region="east").zone == "east"
    assert Lease("h1", HostType("a", cores=1, region="east", zone="rack-2"), 0.0).zone == "rack-2"


def test_first_hosts_are_of_types_that_differ_in_their_zone_alone_in_turn():
    first, second, larger = (
        HostType("a", cores=1, zone="1"),
        HostType("b", cores=1, zone="2"),
        HostType("c", cores=2, zone="3"),
    )
    assert [each.name for each in by_zones([first, larger, second], 3)] == ["a", "b", "a"]
    assert [each.name for each in by_zones([first, larger], 2, larger)] == ["c", "c"]


def test_hosts_come_where_there_are_fewest_elsewhere_only_for_replicas():
    near = [HostType(zone, cores=1, zone=zone) for zone in "ab"]
    far = HostType("c", cores=1, region="abroad")
    assert [each.name for each in by_zones(near, 3, there="aab")] == ["b", "a", "b"]
    assert [each.name for each in by_zones([*near, far], 3)] == ["a", "b", "a"]
    assert [each.name for each in by_zones([*near, far], 3, copies=1)] == ["a", "b", "c"]
