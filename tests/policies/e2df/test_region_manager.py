"""What a region manager would add, release and drain, and how it takes orders."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.hosts import HostType
from elastream.policies.e2df.regions import Region, RegionRules, receive, report, smallest, survey
from elastream.sharing.messages import RegionOrder
from support.manager_snapshots import snapshot

RULES = RegionRules(spare=2, low=0.1)


def found(seen, rules=RULES, withheld=()):
    mask = np.array([name in withheld for name in seen.hosts.names])
    result = survey(rules, seen, mask)
    names = np.array(seen.hosts.names)
    return result.lacking.tolist(), set(names[result.release].tolist()), set(names[result.drain].tolist())


@pytest.mark.parametrize(
    ("hosts", "coming", "lacking"),
    [
        ({"h1": ("east", 2, 0.5), "h2": ("west", 9, 0.5)}, (), [1, 0]),
        ({"h1": ("east", 1, 0.5), "h2": ("east", 2, math.nan)}, ("h2",), [0]),  # what is coming is spare
        ({"h1": ("east", 1, 0.05), "h2": ("east", 2, 0.0)}, (), [0]),  # a drained slot would have to be leased again
    ],
)
def test_what_lacks_to_the_target_capacity_is_requested(hosts, coming, lacking) -> None:
    assert found(snapshot(hosts, [("a/x", "h1", 0.5)], coming=coming)) == (lacking, set(), set())


def test_hosts_on_their_way_out_are_no_spare() -> None:
    seen = snapshot({"h1": ("east", 2, 0.0), "h2": ("east", 1, 0.0)}, [])
    assert found(seen, withheld=("h1",))[0] == [1]


def test_empty_hosts_go_the_youngest_first_as_long_as_enough_is_spare() -> None:
    seen = snapshot({f"h{k}": ("east", 1, 0.0) for k in range(1, 6)}, [])
    assert found(seen)[1] == {"h3", "h4", "h5"}


def test_an_empty_host_that_is_still_coming_is_not_given_back() -> None:
    seen = snapshot({f"h{k}": ("east", 1, 0.0) for k in range(1, 4)}, [], coming=("h1", "h2", "h3"))
    assert found(seen)[1] == set()


def test_a_host_at_the_low_threshold_is_drained_and_one_above_is_not() -> None:
    hosts = {"h0": ("east", 6, 0.5), "h1": ("east", 2, 0.1), "h2": ("east", 2, 0.11), "h3": ("east", 2, math.nan)}
    seen = snapshot(hosts, [(f"a/{k}", f"h{k}", 0.5) for k in range(4)])
    assert found(seen)[2] == {"h1"}


@given(
    st.lists(
        st.tuples(st.sampled_from(["east", "west"]), st.integers(1, 4), st.integers(0, 4), st.floats(0, 1)), min_size=1
    ),
    st.integers(0, 6),
)
def test_releases_leave_the_target_spare_in_each_region(hosts: list[tuple[str, int, int, float]], spare: int) -> None:
    rules = RegionRules(spare=spare, low=0.3)
    named = {f"h{k}": each for k, each in enumerate(hosts)}

    def seen(region: str | None):
        mine = {name: each for name, each in named.items() if region in (None, each[0])}
        replicas = [("a/x", name, 0.1) for name, (_, slots, held, _) in mine.items() for _ in range(min(held, slots))]
        return snapshot({name: (r, slots, cpu) for name, (r, slots, _, cpu) in mine.items()}, replicas)

    everything = seen(None)
    lacking, release, drain = found(everything, rules)
    assert not release & drain
    for number, region in enumerate(everything.regions):
        alone = found(seen(region), rules)
        mine = {name for name, each in named.items() if each[0] == region}
        assert alone == ([lacking[number]], release & mine, drain & mine)
        free = sum(slots - min(held, slots) for r, slots, held, _ in named.values() if r == region)
        gone = sum(named[name][1] for name in (release | drain) & mine)
        assert lacking[number] == max(0, spare - free)
        assert gone == 0 or free - gone >= spare


def test_the_type_of_least_slots_is_added() -> None:
    types = [HostType("big", 8), HostType("small", 1, price=2), HostType("cheap", 1), HostType("far", 0.5, region="west")]
    assert {region: kind.name for region, kind in smallest(types).items()} == {"local": "cheap", "west": "far"}


ORDER = RegionOrder("east", 2, (("h1", "small"), ("h2", "small")))


def test_an_order_says_once_what_to_lease_and_release() -> None:
    region, lease, release = receive(Region("east", 1, hosts={"h0": 0.0, "h1": 0.0}), ORDER, 5.0)
    assert (lease, release) == ((("h2", "small"),), ("h0",))
    for order in (ORDER, RegionOrder("east", 1, ())):
        assert receive(region, order, 6.0) == (region, (), ()), "the same or an older order is no news"


def test_a_host_that_never_shows_counts_as_lost_after_a_while() -> None:
    region, _, _ = receive(Region("east"), ORDER, 0.0)
    _, early = report(RULES, region, RULES.settle - 1, {"h1": True})
    assert (early.up, early.coming) == (("h1",), ("h2",))
    _, late = report(RULES, region, RULES.settle, {"h1": True})
    assert (late.up, late.coming) == (("h1",), ())


def test_setting_back_the_clock_does_not_delay_the_loss_of_a_host() -> None:
    region, _, _ = receive(Region("east"), ORDER, 3600.0)
    region, first = report(RULES, region, 10.0, {"h1": True})
    assert first.coming == ("h2",)
    _, late = report(RULES, region, 10.0 + RULES.settle, {"h1": True})
    assert late.coming == ()


def test_each_report_has_a_higher_number_and_the_term_it_had_seen() -> None:
    region, _, _ = receive(Region("east"), ORDER, 0.0)
    region, first = report(RULES, region, 0.0, {})
    _, second = report(RULES, region, 1.0, {})
    assert (first.number, second.number, second.seen) == (1, 2, 2)
