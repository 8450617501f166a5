"""State fits the hosts that remain, or a sentence says what is missing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.frames import Frame
from elastream.core.memory import RESERVE, StateMoves, memory_uses, room_by_host, shortage
from elastream.core.metrics import Metric
from elastream.core.observation import Standby
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from support.states import observed


def test_host_whose_state_fits_elsewhere_may_go():
    assert shortage(observed([0, 1, 2], heap=300.0), {"h3"}) == ""


def test_two_hosts_carry_the_load_and_three_the_state():
    reason = shortage(observed([0, 1, 2], heap=1500.0), {"h3"})
    assert reason.startswith("memory: 2 hosts would carry the load, 3 carry the state: 1500 MB of heap")


def test_heap_in_use_counts_where_it_is_more_than_the_state():
    at = [0, 1]
    assert shortage(observed(at, heap=200.0), {"h2"}) == ""
    assert shortage(with_heap(at, 200.0, [600.0, 300.0]), {"h2"}) != ""


def with_heap(at, state, heap):
    observation = observed(at, heap=state)
    hosts = observation.hosts
    columns = {metric: hosts.column(metric) for metric in hosts.metrics}
    return replace(observation, hosts=Frame(hosts.ids, {**columns, Metric.HEAP: heap}))


def test_state_that_still_leaves_a_draining_host_needs_room_too():
    at = [0, 1, 2, 0, 1, 2]
    assert shortage(observed(at, heap=1000.0), {"h3"}) == ""
    assert shortage(observed(at, heap=1000.0, drains=("h2",)), {"h3"}) != ""


def test_host_with_unknown_memory_takes_none():
    observation = observed([0, 1, 2], heap=1000.0, heap_limit=[700.0, 700.0, float("nan")])
    assert shortage(observation, {"h1"}) != ""
    assert shortage(observed([0, 1, 2], heap=1000.0, heap_limit=[float("nan")] * 3), {"h1"}) == ""


def test_copies_of_state_need_room_too():
    standby = Standby(task=[0, 1, 2], host=[2, 2, 2], lag=[0.0] * 3, megabytes=[200.0] * 3)
    assert shortage(observed([0, 1, 2], heap=900.0), {"h3"}) == ""
    assert shortage(replace(observed([0, 1, 2], heap=900.0), standby=standby), {"h3"}) != ""
    native = {"native": 300.0, "heap_limit": [300.0] * 3}
    assert shortage(observed([0, 1, 2], **native), {"h3"}) == ""
    assert shortage(observed([0, 1, 2], copies_memory=[500.0] * 3, **native), {"h3"}) != ""


def test_copy_of_state_that_leaves_takes_its_place():
    """Each of two hosts has a copy of the other's state; the last one needs none."""
    standby = Standby(task=[0, 1], host=[1, 0], lag=[0.0] * 2, megabytes=[200.0] * 2)
    observation = observed([0, 1], native=400.0, heap_limit=[300.0] * 2, copies_memory=[200.0] * 2)
    assert shortage(replace(observation, standby=standby), {"h2"}) == ""


def test_copies_of_state_that_leaves_are_made_anew_where_two_stay():
    """Each of three hosts holds 100 MB, and a copy of the state of the next one."""
    standby = Standby(task=[1, 2, 0], host=[0, 1, 2], lag=[0.0] * 3, megabytes=[100.0] * 3)
    observation = observed([0, 1, 2], native=300.0, heap_limit=[700.0] * 3, copies_memory=[100.0] * 3)
    assert "2000 MB" in shortage(replace(observation, standby=standby), {"h3"})


def test_host_that_others_than_state_fill_is_not_filled_by_state():
    (use,) = memory_uses(observed([0, 1], native=10.0, heap_limit=[1200.0, 300.0]))
    assert use.until_full(np.array([0, 1])) > 100


def test_large_partition_fits_no_host_although_the_sum_would():
    observation = observed([0, 1, 2], heap=1200.0, sizes=[300.0, 300.0, 600.0])
    assert "a partition of 600 MB of heap fits on none" in shortage(observation, {"h3"})
    assert shortage(observed([0, 1, 2], heap=1200.0, sizes=[590.0, 590.0, 20.0]), {"h3"}) == ""


def test_move_to_a_host_without_room_for_its_state_is_refused():
    observation = observed([0, 0, 1], heap=1000.0, sizes=[300.0, 300.0, 400.0])
    first, second, third = observation.tasks.tasks
    assert (
        StateMoves(observation).refusal(first, "h2")
        == "memory: h2 may take 230 MB of heap more, and 300 MB would move there"
    )
    assert StateMoves(observation).refusal(third, "h1") != ""
    moves = StateMoves(observation)
    moves.accept(first, "h2")
    assert moves.refusal(third, "h1") != "", "h1 would hold 700 MB of 630"
    assert [StateMoves(observation).refusal(each, "h1") for each in (first, second)] == ["", ""], "they are there already"
    assert StateMoves(observed([0, 0, 1], heap=1000.0, known=False)).refusal(first, "h2") == ""


@pytest.mark.parametrize(
    ("use", "counted_there"),
    [
        ({"native": 300.0, "heap_limit": [300.0, 300.0], "memory": [900.0, 800.0]}, False),
        ({"heap": 300.0, "HEAP": [500.0, 480.0]}, True),
    ],
    ids=["container", "heap"],
)
def test_state_on_its_way_to_a_host_counts_there_once(use, counted_there):
    # `tasks.host` names the new host at once. A container was measured before; HEAP includes the state on its way.
    observation = observed([0, 1, 1], **use)
    first, second, _ = observation.tasks.tasks
    assert StateMoves(observation).refusal(first, "h2") == ""
    refusal = StateMoves(replace(observation, moving=frozenset({second}))).refusal(first, "h2")
    assert (refusal == "") is counted_there


def test_partitions_may_change_places_where_both_fit():
    observation = observed([0, 1], heap=800.0)
    first, second = observation.tasks.tasks
    assert StateMoves(observation).refusal(first, "h2") != ""
    moves = StateMoves(observation)
    moves.accept(second, "h1")
    assert moves.refusal(first, "h2") == ""


def test_full_host_still_takes_state_of_a_fuller_one():
    observation = observed([0, 0, 1], heap=1305.0, sizes=[640.0, 40.0, 625.0])
    _, small, _ = observation.tasks.tasks
    assert StateMoves(observation).refusal(small, "h2") == ""
    assert StateMoves(observed([0, 0, 1], heap=1305.0, sizes=[620.0, 40.0, 645.0])).refusal(small, "h2") != ""


def test_state_of_rocksdb_counts_against_the_container():
    at, heap = [0, 1], [300.0, 300.0]
    assert shortage(observed(at, native=500.0, memory=[600.0, 600.0], heap_limit=heap), {"h2"}) == ""
    assert "MB of memory" in shortage(observed(at, native=500.0, memory=[700.0, 700.0], heap_limit=heap), {"h2"})


def test_unmeasured_container_reserves_the_whole_heap():
    at = [0, 1]
    roomy, full = ({"off_heap": [each, each], "python_memory": [50.0, 50.0]} for each in (50.0, 150.0))
    assert shortage(observed(at, native=80.0, **roomy), {"h2"}) == ""
    assert shortage(observed(at, native=80.0, **full), {"h2"}) != ""


def test_heap_that_has_not_grown_yet_counts_as_grown():
    grown = {"off_heap": [150.0, 150.0], "python_memory": [50.0, 50.0]}
    assert shortage(observed([0, 1], native=80.0, memory=[300.0, 300.0], **grown), {"h2"}) != ""
    assert shortage(observed([0, 1], native=300.0, memory=[300.0, 300.0]), {"h2"}) != "", "nothing ran for minutes"


def test_container_of_little_more_than_its_heap_lets_hosts_go():
    """Spark's default: a tenth of the heap beside it."""
    limits = {"heap_limit": [8590.0] * 2, "memory_limit": [9449.0] * 2, "off_heap": [150.0] * 2}
    assert shortage(observed([0, 1], native=400.0, **limits), {"h2"}) == ""
    assert shortage(observed([0, 1], native=1400.0, **limits), {"h2"}) != ""


@pytest.mark.parametrize("known", [True, False])
def test_unknown_memory_forbids_nothing(known):
    assert shortage(observed([0, 1], known=known), {"h2"}) == ""
    assert shortage(observed([0, 1], heap=5000.0, known=False), {"h2"}) == ""


def declared(memory):
    keyed = Operator("count", Kind.KEYED, (Alternate("count"),), memory=memory, key=("key",))
    parts = (Operator("in", Kind.SOURCE), keyed, Operator("out", Kind.SINK))
    return lay_out(Graph("g", parts, (Edge("in", "count"), Edge("count", "out"))))


def test_declared_memory_counts_until_state_is_measured():
    at = [0, 1, 0]
    assert "declared memory" in shortage(observed(at, layout=declared(1200.0)), {"h2"})
    assert shortage(observed(at, layout=declared(800.0)), {"h2"}) == ""
    assert shortage(observed(at, layout=declared(1200.0), heap=90.0), {"h2"}) == ""


def test_partitions_share_the_declared_memory():
    assert shortage(observed([0, 1] * 32, layout=declared(800.0)), {"h2"}) == ""


@given(
    st.lists(st.floats(1.0, 400.0), min_size=2, max_size=30),
    st.integers(2, 5),
    st.data(),
)
def test_released_state_always_fits_below_the_limit(sizes, hosts, data):
    """Whatever is granted can be placed: greedily by room, no host passes its limit less the reserve."""
    at = [number % hosts for number in range(len(sizes))]
    observation = observed(at, heap=sum(sizes), sizes=sizes)
    leaving = data.draw(st.sampled_from(observation.usable))
    if shortage(observation, {leaving}):
        return
    room, state = room_by_host(observation)
    left = {name: each for name, each in room.items() if name != leaving}
    for megabytes in sorted((mb for mb, host in zip(state, at, strict=True) if f"h{host + 1}" == leaving), reverse=True):
        most = max(left, key=left.get)
        left[most] -= megabytes
        assert left[most] >= -1e-6


def test_reserve_is_left_free():
    (use,) = memory_uses(observed([0, 1], heap=200.0))
    assert use.room == pytest.approx(np.array([700 * (1 - RESERVE) - 100] * 2))
