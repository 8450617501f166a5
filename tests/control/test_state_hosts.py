"""Hosts come for memory one at a time, of a type that helps, and only where state needs them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.control.arbitration import arbitrate
from elastream.control.growth import GrowthForecast
from elastream.control.state_hosts import MARGIN_S, RELIEF, SETTLED_S, UNKNOWN_S, StateHosts, held_states
from elastream.core.action import LeaseHost, MoveTask
from elastream.core.alarm import Alarms
from elastream.core.frames import Frame
from elastream.core.hosts import Lease
from elastream.core.metrics import Metric
from elastream.core.ring import Ring
from elastream.policies.by_load import ByLoad
from elastream.policies.horizon.policy import Horizon
from elastream.policies.threshold import Threshold
from support.property_examples import examples
from support.states import BIG, observed

# Of RocksDB's state, a host of 1,000 MB and 300 MB of heap may hold 630 MB, and is nearly full at 665 MB.
HEAP = 300.0
HUGE = replace(BIG, name="huge", memory=4000.0, price=3.0)
WIDE = replace(BIG, name="wide", memory=4000.0, price=5.0)
ALARMS = Alarms(lambda: 0.0)


def stored(at, megabytes, *, types=(BIG,), max_hosts=10, coming=(), **more):
    observation = observed(at, native=megabytes, heap_limit=[HEAP] * (max(at) + 1), **more)
    context = replace(
        observation.context,
        host_types={each.name: each for each in types},
        max_hosts=max_hosts,
        capabilities=frozenset({"LeaseHost", "DrainHost", "ReleaseHost", "MoveTask"}),
    )
    leases = {**observation.leases, **{name: Lease(name, BIG, 9.0) for name in coming}}
    return replace(observation, context=context, leases=leases, next_host=len(leases) + 1)


def extension(growth=0.0):
    """Hosts for state that grows by `growth` MB/s."""
    return StateHosts(SimpleNamespace(gain=lambda kind, seconds: growth * seconds))


def bounded(observation, growth=0.0):
    """What policies see once it has been so for SETTLED_S."""
    hosts = extension(growth)
    hosts.observed(observation, ALARMS)
    return hosts.observed(replace(observation, time=observation.time + SETTLED_S), ALARMS)


def test_state_that_fits_changes_nothing():
    assert bounded(stored([0, 1], 1300.0)).context.min_hosts == 1


def test_nearly_full_hosts_get_one_more_and_a_remark():
    seen = bounded(stored([0, 1] * 6, 1400.0))
    assert seen.context.min_hosts == 3
    assert seen.remarks == ("memory: 1400 MB of state in memory, of which 2 hosts may hold 1330 MB: one more is needed",)


def test_single_look_leases_nothing():
    observation = stored([0, 1] * 6, 1400.0)
    assert extension().observed(observation, ALARMS).context.min_hosts == 2


def test_growing_state_gets_a_host_before_hosts_are_full():
    slow, fast = 30.0 / 3600.0, 300.0 / 3600.0
    assert bounded(stored([0, 1] * 6, 1290.0), slow).context.min_hosts == 2
    seen = bounded(stored([0, 1] * 6, 1290.0), fast)
    assert seen.context.min_hosts == 3
    assert "in 11.0 min" in seen.remarks[0]
    assert BIG.start + MARGIN_S == 660.0


def test_host_that_came_for_growth_stays():
    growth = 300.0 / 3600.0
    assert bounded(stored([0, 1] * 6 + [2], 1290.0, sizes=[1.0] * 12 + [0.0]), growth).context.min_hosts == 3
    assert bounded(stored([0, 1, 2] * 4, 1200.0), growth).context.min_hosts == 3
    assert bounded(stored([0, 1, 2] * 4, 1200.0)).context.min_hosts == 1


@pytest.mark.parametrize("unknown", [{"known": False}, {"memory_limit": [1000.0, np.nan]}, {"memory_limit": [np.inf] * 2}])
def test_unknown_or_endless_memory_changes_nothing(unknown):
    assert bounded(stored([0, 1] * 6, 5000.0, **unknown)).context.min_hosts == 1


def test_host_of_which_nothing_is_known_yet_stays_for_a_minute():
    hosts, lacking = extension(), stored([0, 1] * 6, 1400.0)
    for time in (0.0, SETTLED_S):
        hosts.observed(replace(lacking, time=time), ALARMS)
    new = stored([0, 1] * 6 + [2], 1400.0, sizes=[1.0] * 12 + [0.0], memory_limit=[1000.0, 1000.0, np.nan])
    assert hosts.observed(replace(new, time=SETTLED_S + 5.0), ALARMS).context.min_hosts == 3
    assert hosts.observed(replace(new, time=SETTLED_S + UNKNOWN_S), ALARMS).context.min_hosts == 1


def test_host_that_is_coming_is_kept_and_no_other_leased():
    assert bounded(stored([0, 1] * 6, 2600.0, coming=("h3",))).context.min_hosts == 3


def test_bound_of_hosts_is_a_remark():
    seen = bounded(stored([0, 1] * 6, 1400.0, max_hosts=2))
    assert seen.context.min_hosts == 2
    assert seen.remarks[0].startswith("max_hosts: ")


def test_partition_that_fits_no_usual_host_gets_a_larger_one():
    seen = bounded(stored([0, 1], 1400.0, sizes=[700.0, 100.0], types=(BIG, WIDE)))
    assert [*seen.context.leasable] == ["wide"]
    seen = bounded(stored([0, 1], 1400.0, sizes=[700.0, 100.0]))
    assert seen.context.min_hosts == 2
    assert "no host type offered has room" in seen.remarks[0]


def test_growing_state_gets_the_lowest_price_of_room():
    at, types = [0, 1] * 6, (BIG, HUGE, WIDE)
    assert [*bounded(stored(at, 1400.0, types=types)).context.leasable] == ["big"], "room beyond the need is worth nothing"
    assert [*bounded(stored(at, 1400.0, types=types), 1.0).context.leasable] == ["huge"]


def test_limit_that_a_session_sets_is_the_same_on_every_type():
    seen = bounded(stored([0, 1] * 6, 900.0, types=(BIG, HUGE), memory_limit=[700.0] * 2))
    assert [*seen.context.leasable] == ["big"]


@pytest.mark.parametrize("policy", [Threshold(), Horizon(), ByLoad()], ids=["threshold", "horizon", "by load"])
def test_policies_lease_for_state_without_any_load(policy):
    plan = policy.plan(bounded(stored([0, 1] * 6, 1400.0)))
    assert sum(isinstance(each, LeaseHost) for each in plan.actions) == 1


def relieved(observation):
    hosts = extension()
    return hosts.proposals(hosts.observed(observation, ALARMS), (), ALARMS)


def test_nearly_full_host_gives_state_to_one_with_room():
    large = stored([0] * 6 + [1] * 6, 1350.0, memory_limit=[1000.0, 4000.0])
    (move,) = relieved(large)
    assert (move.action.host, move.action.why) == ("h2", RELIEF)
    (decided,) = arbitrate([move], large)
    assert not decided.refused
    assert relieved(stored([0] * 5 + [1] * 7, 1350.0, memory_limit=[1000.0, 4000.0])) == []
    assert relieved(stored([0, 1] * 6, 1350.0)) == [], "no host has room"


def test_garbage_moves_no_state():
    assert relieved(stored([0] * 5 + [1] * 5, 600.0, memory=[990.0, 700.0])) == []


def test_tokens_of_a_ring_place_its_state():
    large = stored([0] * 6 + [1] * 6, 1350.0, memory_limit=[1000.0, 4000.0])
    name = next(iter(large.context.partitions))
    assert relieved(replace(large, rings={name: Ring.even(["h1", "h2"])})) == []


SIZES = st.lists(st.floats(1.0, 600.0), min_size=1, max_size=24)


@given(SIZES, st.lists(st.integers(0, 3), min_size=24, max_size=24))
@settings(max_examples=examples(100), deadline=None)
def test_relief_fills_no_host_and_empties_none_needlessly(sizes, places):
    at = [place for _, place in zip(sizes, places, strict=False)]
    observation = stored([*at, 3], sum(sizes), sizes=[*sizes, 0.0])
    (state,) = held_states(observation)
    before = np.bincount(state.at, state.tasks, 4)
    after, nearly = before.copy(), state.rooms(0.05)
    for proposal in relieved(observation):
        assert isinstance(proposal.action, MoveTask)
        row, to = observation.tasks.rows[str(proposal.action.task)], int(proposal.action.host[1:]) - 1
        assert before[state.at[row]] > nearly[state.at[row]]
        after[state.at[row]] -= state.tasks[row]
        after[to] += state.tasks[row]
    gained = after > before
    assert (after[gained] <= state.rooms(0.1)[gained] + 1e-6).all()


@given(SIZES, st.integers(1, 4), st.floats(0.0, 1.0), st.integers(1, 8))
@settings(max_examples=examples(100), deadline=None)
def test_hosts_that_come_one_by_one_end_within_need_and_bound(sizes, hosts, growth, max_hosts):
    count = first = min(hosts, max_hosts)
    while True:
        at = [number % count for number in range(len(sizes) - 1)] + [count - 1]
        observation = stored(at, sum(sizes), sizes=sizes, types=(BIG, HUGE), max_hosts=max_hosts)
        if bounded(observation, growth).context.min_hosts <= count:
            break
        count += 1
        assert count <= max_hosts
    assert count - first <= len(sizes)


def test_forecast_gives_the_growth():
    forecast = GrowthForecast()
    assert forecast.gain("memory", 600.0) == 0.0
    for minute in range(60):
        forecast.observed(stored([0, 1] * 6, 100.0 + 5.0 * minute, time=60.0 * minute), ALARMS)
    assert forecast.gain("memory", 600.0) == pytest.approx(50.0, rel=0.05)


def test_heap_measured_before_state_came_frees_no_room():
    def measured(at, heap, time):
        seen = observed(at, heap=600.0, time=time)
        columns = {metric: seen.hosts.column(metric) for metric in seen.hosts.metrics}
        context = replace(seen.context, capabilities=frozenset({"MoveTask"}))
        return replace(seen, context=context, hosts=Frame(seen.hosts.ids, {**columns, Metric.HEAP: heap}))

    hosts, moved = extension(), measured([0] + [1] * 11, [55.0, 555.0], 11.0)
    assert relieved(moved) == []
    hosts.observed(measured([0, 1] * 6, [500.0, 500.0], 10.0), ALARMS)
    hosts.observed(moved, ALARMS)
    assert hosts.proposals(moved, (), ALARMS), "550 MB of state beside 200 MB are more than 665 MB"
