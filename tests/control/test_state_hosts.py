"""Hosts come for memory one at a time, of a type that helps, and only where state needs them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.control.arbitration import arbitrate
from elastream.control.growth import GrowthForecast
from elastream.control.scaling import Scaling
from elastream.control.state_hosts import LOOK_S, NEARLY, SETTLED_S, StateHosts
from elastream.core.action import DrainHost, LeaseHost, MoveTask
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.core.frames import Frame
from elastream.core.hosts import HostState, Lease
from elastream.core.memory import MARGIN_S, RESERVE, memory_uses
from elastream.core.metrics import Metric
from elastream.core.ring import Ring
from elastream.core.scaling import ScalingRules
from support.property_examples import examples
from support.states import BIG, observed

# Of RocksDB's state, a host of 1,000 MB and 300 MB of heap may hold 630 MB, and is nearly full at 665 MB.
HEAP = 300.0
HUGE = replace(BIG, name="huge", memory=4000.0, price=3.0)
WIDE = replace(BIG, name="wide", memory=4000.0, price=5.0)
ALARMS = Alarms(lambda: 0.0)
PER_HOUR = 1 / 3600.0


def stored(at, megabytes, *, use="native", types=(BIG,), max_hosts=10, coming=(), growth=0.0, **more):
    observation = observed(at, **{use: megabytes}, heap_limit=[HEAP] * (max(at) + 1), **more)
    context = replace(
        observation.context,
        host_types={each.name: each for each in types},
        max_hosts=max_hosts,
        capabilities=frozenset({"LeaseHost", "DrainHost", "ReleaseHost", "MoveTask"}),
    )
    leases = {**observation.leases, **{name: Lease(name, BIG, 9.0) for name in coming}}
    grows = {"memory": growth} if growth else {}
    return replace(observation, context=context, leases=leases, next_host=len(leases) + 1, growth=grows)


def asked(*observations, planned=(), since=4000.0):
    """Actions of the last of `observations`, SETTLED_S apart; of one that is seen twice."""
    hosts, found = StateHosts(), ()
    for number, each in enumerate(observations if len(observations) > 1 else observations * 2):
        found = hosts.proposals(replace(each, time=since + number * SETTLED_S), planned, ALARMS)
    return [each.action for each in found]


def leased(*observations, **how):
    return [each for each in asked(*observations, **how) if isinstance(each, LeaseHost)]


def test_state_that_fits_leases_nothing():
    assert asked(stored([0, 1] * 6, 1300.0)) == []


def test_nearly_full_hosts_get_one_more():
    (lease,) = asked(stored([0, 1] * 6, 1400.0))
    assert (lease.host, lease.type) == ("h3", "big")
    assert lease.why == "memory: 2000 MB of memory, of which 2 may fill 1930 MB"


def test_single_look_leases_nothing():
    assert list(StateHosts().proposals(stored([0, 1] * 6, 1400.0), (), ALARMS)) == []


@pytest.mark.parametrize(("use", "megabytes", "lasts"), [("heap", 590.0, LOOK_S), ("native", 1400.0, SETTLED_S)])
def test_lack_lasts_for_a_look_in_heaps_and_longer_in_containers(use, megabytes, lasts):
    hosts, full = StateHosts(), stored([0, 1] * 6, megabytes, use=use)
    looks = [4000.0 + number * LOOK_S for number in range(5)]
    proposed = [time for time in looks if hosts.proposals(replace(full, time=time), (), ALARMS)]
    assert proposed[0] == 4000.0 + lasts


def test_lack_that_ends_begins_anew():
    full, fits = stored([0, 1] * 6, 1400.0), stored([0, 1] * 6, 1000.0)
    assert leased(full, fits, full) == []


def test_growing_state_gets_a_host_before_hosts_are_full():
    at = [0, 1] * 6
    assert leased(stored(at, 1290.0, growth=30 * PER_HOUR)) == []
    (lease,) = leased(stored(at, 1290.0, growth=300 * PER_HOUR))
    assert "in 11.0 min" in lease.why
    assert BIG.start + MARGIN_S == 660.0


@pytest.mark.parametrize("unknown", [{"known": False}, {"memory_limit": [1000.0, np.nan]}, {"memory_limit": [np.inf] * 2}])
def test_unknown_or_endless_memory_leases_nothing(unknown):
    assert asked(stored([0, 1] * 6, 5000.0, **unknown)) == []


def test_lack_lasts_while_memory_is_unknown():
    full = stored([0, 1] * 6, 1400.0)
    assert leased(full, stored([0, 1] * 6, 1400.0, known=False), full)


@pytest.mark.parametrize(
    "answered",
    [
        {"coming": ("h3",)},
        {"at": [0, 1] * 6 + [2], "sizes": [1.0] * 12 + [0.0]},
        {"max_hosts": 2},
    ],
    ids=["is coming", "holds nothing yet", "may not come"],
)
def test_no_second_host_comes(answered):
    assert leased(stored(**{"at": [0, 1] * 6, "megabytes": 2800.0, **answered}), since=100.0) == []


def test_host_that_takes_no_state_for_long_is_no_reason_to_wait():
    seen = stored([0, 1] * 6 + [2], 2800.0, sizes=[1.0] * 12 + [0.0])
    assert leased(seen, since=MARGIN_S + 2.0)


def test_host_that_the_policy_leases_is_enough_and_no_rule_refuses_it():
    hosts, full = StateHosts(), stored([0, 1] * 6, 1400.0)
    for time in (10.0, 10.0 + SETTLED_S):
        proposed = hosts.proposals(replace(full, time=time), (LeaseHost("h3", "big"),), ALARMS)
    assert (proposed, hosts.needed) == ((), 3)


def test_state_that_counts_twice_after_a_move_leases_no_second_host():
    came = stored([0, 1, 2] * 4, 1400.0, memory=[1000.0, 1000.0, 900.0])
    young = Lease("h3", BIG, 4090.0).to(HostState.STARTING, 4091.0).to(HostState.RUNNING, 4150.0)
    assert leased(replace(came, leases={**came.leases, "h3": young})) == []
    assert leased(came), "it is no longer young"


def test_partition_that_fits_no_usual_host_gets_a_larger_one():
    large = {"at": [0, 1], "megabytes": 1400.0, "sizes": [700.0, 100.0]}
    assert [each.type for each in leased(stored(**large, types=(BIG, WIDE)))] == ["wide"]
    assert leased(stored(**large)) == [], "no type has room"


def test_growing_state_gets_the_lowest_price_of_room():
    at, types = [0, 1] * 6, (BIG, HUGE, WIDE)
    (lease,) = leased(stored(at, 1400.0, types=types))
    assert lease.type == "big", "room beyond the need is worth nothing"
    (lease,) = leased(stored(at, 1400.0, types=types, growth=1.0))
    assert lease.type == "huge"


def test_limit_that_a_session_sets_is_the_same_on_every_type():
    (lease,) = leased(stored([0, 1] * 6, 900.0, types=(BIG, HUGE), memory_limit=[700.0] * 2, growth=1.0))
    assert lease.type == "big"


def test_type_whose_leases_fail_is_not_asked_for():
    observation = stored([0, 1] * 6, 1400.0, types=(BIG, HUGE))
    scarce = replace(observation, context=replace(observation.context, scarce=frozenset({"big"})))
    (lease,) = leased(scarce)
    assert lease.type == "huge"


@pytest.mark.parametrize(
    ("rules", "refused"),
    [
        (ScalingRules(stabilization_up=600.0, tolerance=0.5, max_scale_up=0.1), ""),
        (ScalingRules(max_hosts=2), "max_hosts"),
        (ScalingRules(budget="2/hour"), "budget"),
    ],
)
def test_only_bounds_and_budgets_refuse_a_host_for_state(rules, refused):
    scaling, seen = Scaling(rules), stored([0, 1] * 6, 1400.0)
    for time in (0.0, 60.0):
        bounded = scaling.bounded(replace(seen, time=time))
        limits = scaling.limits((), 2.0, bounded, time == 0.0, 3)
    (decided,) = arbitrate([Proposal(LeaseHost("h3", "big"), "memory")], bounded, limits=limits)
    assert decided.refused.startswith(refused)
    assert bool(decided.refused) is bool(refused)


def test_release_leaves_room_for_an_hour_of_growth():
    def refusal(growth, time=4000.0):
        seen = stored([0, 1, 2] * 4, 1200.0, growth=growth, time=time)
        (decided,) = arbitrate([Proposal(DrainHost("h3"), "policy")], seen)
        return decided.refused

    assert refusal(0.0) == ""
    need = "2100 MB of memory in 60.0 min, of which 2 may fill 1860 MB"
    assert refusal(300 * PER_HOUR) == f"memory: 2 hosts would carry the load, 3 carry the state: {need}"
    assert refusal(300 * PER_HOUR, time=600.0) == "", "a young run foresees no more than its own length"


@pytest.mark.parametrize(("megabytes", "growth"), [(1200.0, 300 * PER_HOUR), (1400.0, 0.0)])
def test_host_that_came_for_state_stays_while_it_holds_nothing(megabytes, growth):
    came = stored([0, 1] * 6 + [2], megabytes, sizes=[1.0] * 12 + [0.0], growth=growth, time=4000.0)
    (decided,) = arbitrate([Proposal(DrainHost("h3"), "policy")], came)
    assert decided.refused.startswith("memory: ")


def test_partition_that_fits_nowhere_keeps_no_idle_host():
    stuck = stored([0, 1, 2], 640.0, sizes=[1.0, 0.0, 0.0], growth=PER_HOUR)
    (decided,) = arbitrate([Proposal(DrainHost("h3"), "policy")], stuck)
    assert not decided.refused


def relieved(observation):
    return [each for each in asked(observation, stored([0], 1.0), observation) if isinstance(each, MoveTask)]


def test_nearly_full_host_gives_state_to_one_with_room():
    large = stored([0] * 6 + [1] * 6, 1350.0, memory_limit=[1000.0, 4000.0])
    (move,) = relieved(large)
    assert (move.host, move.why) == ("h2", "memory: h1 is nearly full of state")
    (decided,) = arbitrate([Proposal(move, "memory")], large)
    assert not decided.refused
    assert relieved(stored([0] * 5 + [1] * 7, 1350.0, memory_limit=[1000.0, 4000.0])) == []
    assert relieved(stored([0, 1] * 6, 1350.0)) == [], "no host has room"


def test_new_host_of_which_nothing_is_known_gets_state():
    new = stored([0] * 11 + [1], 700.0, sizes=[1.0] * 11 + [0.0], memory_limit=[1000.0, np.nan])
    moves = relieved(new)
    assert {move.host for move in moves} == {"h2"}
    assert not any(each.refused for each in arbitrate([Proposal(each, "memory") for each in moves], new))


def test_host_gives_no_more_until_what_it_gave_is_freed():
    hosts, limits = StateHosts(), {"memory_limit": [1000.0, 4000.0]}
    full = stored([0] * 6 + [1] * 6, 1350.0, **limits)
    garbage = stored([0] * 5 + [1] * 7, 1350.0, memory=[980.0, 1100.0], **limits)
    counts = [
        len(hosts.proposals(replace(seen, time=time), (), ALARMS))
        for time, seen in ((10.0, full), (100.0, full), (200.0, full), (400.0, garbage), (600.0, full))
    ]
    assert counts == [1, 0, 1, 0, 1]


def test_state_on_its_way_moves_no_second_time():
    large = stored([0] * 6 + [1] * 6, 600.0, use="heap")
    large = replace(large, hosts=Frame(("h1", "h2"), {Metric.HEAP: [300.0, 100.0], Metric.HEAP_LIMIT: [300.0, 600.0]}))
    usual = relieved(large)
    assert usual
    away = frozenset(move.task for move in usual)
    assert not away & {move.task for move in relieved(replace(large, moving=away))}


def test_container_gives_nothing_while_it_still_counts_what_leaves_it():
    large = stored([0] * 6 + [1] * 6, 1350.0, memory_limit=[1000.0, 4000.0])
    assert relieved(replace(large, moving=frozenset(large.tasks.tasks[:1]))) == []


@pytest.mark.parametrize("memory", [[990.0, 700.0], [990.0, 990.0]])
def test_others_than_state_that_fill_a_host_are_no_reason(memory):
    assert asked(stored([0] * 5 + [1] * 5, 100.0, memory=memory)) == []


def test_tokens_of_a_ring_place_its_state():
    large = stored([0] * 6 + [1] * 6, 1350.0, memory_limit=[1000.0, 4000.0])
    name = next(iter(large.context.partitions))
    assert relieved(replace(large, rings={name: Ring.even(["h1", "h2"])})) == []


def test_policy_moves_no_state_back_that_growth_drove_away():
    grows = stored([0] * 5 + [1] * 7, 1120.0, growth=0.4, time=4000.0, memory_limit=[1000.0, 4000.0])
    (decided,) = arbitrate([Proposal(MoveTask(grows.tasks.tasks[11], "h1"), "policy")], grows)
    assert decided.refused.startswith("memory: h1 may take ")
    (decided,) = arbitrate([Proposal(MoveTask(grows.tasks.tasks[11], "h1"), "policy")], replace(grows, growth={}))
    assert not decided.refused


SIZES = st.lists(st.floats(1.0, 600.0), min_size=1, max_size=24)


@given(SIZES, st.lists(st.integers(0, 3), min_size=24, max_size=24))
@settings(max_examples=examples(100), deadline=None)
def test_relief_fills_no_host_and_empties_none_needlessly(sizes, places):
    at = [place for _, place in zip(sizes, places, strict=False)]
    observation = stored([*at, 3], sum(sizes), sizes=[*sizes, 0.0])
    (use,) = memory_uses(observation)
    after = use.used.copy()
    for move in relieved(observation):
        row, to = observation.tasks.rows[str(move.task)], int(move.host[1:]) - 1
        source = int(observation.tasks.host[row])
        assert use.used[source] > use.up_to(NEARLY)[source]
        after[source] -= use.tasks[row]
        after[to] += use.tasks[row]
    gained = after > use.used
    assert (after[gained] <= use.up_to(RESERVE)[gained] + 1e-6).all()


@given(SIZES, st.integers(1, 4), st.floats(0.0, 1.0), st.integers(1, 8))
@settings(max_examples=examples(100), deadline=None)
def test_hosts_that_come_one_by_one_end_within_need_and_bound(sizes, hosts, growth, max_hosts):
    count = first = min(hosts, max_hosts)
    while True:
        at = [number % count for number in range(len(sizes) - 1)] + [count - 1]
        if not leased(stored(at, sum(sizes), sizes=sizes, max_hosts=max_hosts, growth=growth)):
            break
        count += 1
        assert count <= max_hosts
    assert count - first <= len(sizes)


def test_forecast_gives_the_growth():
    forecast = GrowthForecast()
    for minute in range(60):
        seen = forecast.observed(stored([0, 1] * 6, 100.0 + 5.0 * minute, time=60.0 * minute), ALARMS)
        assert bool(seen.growth) is (minute >= 10)
    assert seen.growth["memory"] == pytest.approx(5.0 / 60.0, rel=0.05)
    for minute in range(60, 200):
        seen = forecast.observed(stored([0, 1] * 6, 400.0, time=60.0 * minute), ALARMS)
    assert not seen.growth
