"""Queries of one dataflow share the cores of their hosts: what one takes, the others lack."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.hosts import HostType
from elastream.core.metrics import Metric
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.simulator import Emissions, Settings, make_plant
from support.property_examples import examples
from support.query_chains import in_a_row


def batches_of(plant, until):
    found = []
    for second in range(1, until + 1):
        plant.advance(float(second))
        found += plant.observe().batches
    return found


def test_two_queries_that_each_need_three_quarters_of_a_host_fall_behind():
    alone, both = in_a_row(0.015), in_a_row(0.015, 0.015)
    alone.advance(60.0)
    both.advance(60.0)
    assert alone.result().committed > 0.9 * 6000
    # Of 6,000 records at 0.03 core-seconds each, 120 core-seconds serve 4,000 at most.
    assert both.result().committed <= 4000


def test_tasks_wait_for_those_of_a_batch_that_started_before():
    # As measured on Spark: of two queries on one trigger, the later one's batch ends first, and the other's waits for it.
    plant = in_a_row(0.005, 0.005, batch_interval=2.0)
    batches = [each for each in batches_of(plant, 40) if each.start > 20]
    seconds = {name: [each.seconds for each in batches if each.segment == name] for name in {e.segment for e in batches}}
    first, second = (seconds[each.name] for each in plant.context.layout.segments)
    assert second == pytest.approx([0.1 + 200 * 0.005 / 2] * len(second))
    assert first == pytest.approx([0.1 + 2 * 200 * 0.005 / 2] * len(first))


def test_queries_that_leave_cores_free_delay_no_other():
    plant = in_a_row(0.002, 0.002, cores=2.0, tasks=1, batch_interval=1.0)
    seconds = {round(each.seconds, 6) for each in batches_of(plant, 20) if each.start > 5}
    assert seconds == {0.3}


@settings(max_examples=examples(20), deadline=None)
@given(
    costs=st.lists(st.floats(1e-4, 0.02), min_size=2, max_size=4),
    cores=st.sampled_from([1.0, 3.0]),
    hosts=st.integers(1, 3),
    interval=st.sampled_from([0.0, 0.7, 2.0]),
)
def test_hosts_never_work_more_than_their_cores(costs, cores, hosts, interval):
    plant = in_a_row(*costs, cores=cores, hosts=hosts, batch_interval=interval)
    busy = 0.0
    for second in range(1, 61):
        plant.advance(float(second))
        busy += np.nansum(plant.observe().operators.column(Metric.BUSY_CORES))
    # The work of a batch is spread over its fixed time of 0.1 s, too.
    assert busy <= cores * hosts * (60.0 + 0.1 * len(costs)) * (1 + 1e-6)


@pytest.mark.parametrize("interval", [0.0, 1.5])
def test_time_that_passes_in_steps_gives_the_same_batches(interval):
    at_once, stepped = (in_a_row(0.01, 0.004, 0.002, batch_interval=interval) for _ in range(2))
    at_once.advance(50.0)
    for step in range(1, 151):
        stepped.advance(step / 3)
    stepped.advance(50.0)
    assert at_once.result().committed == pytest.approx(stepped.result().committed)
    for name, segment in at_once.network.segments.items():
        assert segment.log[-5:] == pytest.approx(stepped.network.segments[name].log[-5:], nan_ok=True)


def test_a_batch_at_the_first_moment_is_not_the_last():
    plant = in_a_row(0.001, batch_overhead=0.0)
    plant.advance(50.0)
    assert plant.result().committed > 4900


@pytest.mark.parametrize("overhead", [0.0, 0.1])
def test_queries_in_a_circle_pass_records_on_until_hardly_any_are_left(overhead):
    # Before and after the query of "b" records are in one query, as both have the same sink.
    operators = (
        Operator("s", Kind.SOURCE),
        *(Operator(name, Kind.TRANSFORM, (Alternate(name, cost=0.001),)) for name in "abc"),
        Operator("sink", Kind.SINK),
    )
    through = (Edge("a", "b", durable="parquet"), Edge("b", "c", durable="parquet"))
    graph = Graph("circle", operators, (Edge("s", "a"), Edge("a", "sink"), *through, Edge("c", "sink")))
    plant = make_plant(
        lay_out(graph),
        host_types=[HostType("host", cores=2.0)],
        loads={"s": Emissions.every(1.0, [20] * 20, spread=True)},
        settings=Settings(monitor=1.0, batch_overhead=overhead),
        hosts=1,
    )
    assert plant.context.layout.circular
    plant.advance(60.0)
    assert plant.network.empty
    assert plant.network.by_name["b"].total.done == pytest.approx(400, rel=1e-6)
