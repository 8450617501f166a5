"""Whatever the rate: cohorts agree with single records, no record is lost or doubled, and cost does not follow records."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastream.core.hosts import HostType
from elastream.core.metrics import Metric
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.simulator import Emissions, Settings, Travel, make_plant
from elastream.simulator.cohorts import MOST_ROWS
from elastream.simulator.microbatch import MOST_ROWS as MOST_FUSED_ROWS
from support.property_examples import examples
from support.simulated_plants import between_ends, chain, operator

HOST = HostType("host", cores=4.0, start=10.0, slots=8)
MINUTES = 20
WITHIN = 0.003
"""Difference allowed in the fraction of records in time: 0.3 points."""


@st.composite
def dataflows(draw):
    """A tree of one to four operators that emit a record for each, with a sink behind every leaf; and each one's load.

    Each operator works 5 to 40 ms a record at 40 to 90 % of its instances, or at 130 %: a queue at the edge of its limit is
    decided by chance, and a difference of chance says nothing of the method.
    """
    count = draw(st.integers(1, 4))
    rate = draw(st.sampled_from([40, 100, 250]))
    operators, edges, width = [Operator("in", Kind.SOURCE)], [], {}
    for number in range(count):
        name = f"o{number}"
        cost = draw(st.sampled_from([0.005, 0.02, 0.04]))
        use = draw(st.sampled_from([0.4, 0.7, 0.9] if number < count - 1 else [0.4, 0.7, 0.9, 1.3]))
        width[name] = max(1, math.ceil(rate * cost / use))
        feeding = draw(st.sampled_from([each.name for each in operators]))
        operators.append(Operator(name, Kind.TRANSFORM, (Alternate("a", cost=cost),), cores=1.0))
        edges.append(Edge(feeding, name))
    leaves = {each.name for each in operators} - {edge.source for edge in edges}
    operators += [Operator(f"out of {name}", Kind.SINK) for name in sorted(leaves)]
    edges += [Edge(name, f"out of {name}") for name in sorted(leaves)]
    return Graph("tree", tuple(operators), tuple(edges)), rate, width


def run(graph, rate, width, travel):
    plant = make_plant(
        lay_out(graph, chained=False),
        host_types=[HOST],
        loads={"in": Emissions.every(1.0, [rate] * 60 * MINUTES, spread=True)},
        settings=Settings(travel=travel, cohorts_above=0),
        hosts=math.ceil(sum(width.values()) / HOST.cores),
        parallelism=width,
        target_latency=2.0,
    )
    plant.advance(60.0 * MINUTES)
    return plant


def in_time(plant):
    kept, finished = plant.result().series[:, 5], plant.result().series[:, 6]
    seen = finished > 0
    return float(np.average(kept[seen], weights=finished[seen]))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(dataflows())
def test_cohorts_are_as_many_in_time_as_single_records_and_none_is_lost(given_dataflow):
    graph, rate, width = given_dataflow
    single, cohorts = (run(graph, rate, width, travel) for travel in (Travel.SINGLE, Travel.COHORTS))
    assert in_time(cohorts) == pytest.approx(in_time(single), abs=WITHIN)
    for plant in (single, cohorts):
        for each in plant.result().operators.values():
            assert each.done + each.queued + each.in_service == pytest.approx(each.arrived, rel=1e-9, abs=1e-6)
    first = graph.outputs["in"][0].target
    if first in cohorts.result().operators:
        assert cohorts.result().operators[first].arrived == pytest.approx(rate * 60 * MINUTES, rel=1e-3)


@given(st.sampled_from([50.0, 2e3, 2e6]), st.sampled_from([0.3, 0.9, 1.5]), st.integers(1, 3))
@settings(max_examples=examples(30), deadline=None)
def test_micro_batches_lose_no_record_at_any_rate(rate, use, hosts):
    plant = fused(rate, use, hosts, seconds=120)
    plant.advance(60.0)
    half = plant.result().operators["source"]
    assert half.done + half.queued + half.in_service == pytest.approx(half.arrived, rel=1e-9)
    assert half.arrived == pytest.approx(60 * rate, rel=1e-3)
    plant.advance(400.0)
    assert plant.finished
    assert plant.result().committed == pytest.approx(120 * rate, rel=1e-9)


def fused(rate, use, hosts, seconds, kind=HOST):
    """Source > one operator > sink on hosts that it uses to `use`."""
    cost = use * hosts * kind.cores * kind.speed / rate
    return make_plant(
        lay_out(between_ends(operator("work", cost), name="fused")),
        host_types=[kind],
        loads={"source": Emissions.every(1.0, [round(rate)] * seconds, spread=True)},
        settings=Settings(monitor=1.0),
        hosts=hosts,
        parallelism={"source": 8 * hosts},
        target_latency=5.0,
    )


def test_the_same_share_of_records_is_in_time_at_every_rate():
    shares = []
    for rate in (2_000, 200_000, 2_000_000):
        plant = fused(rate, 0.9, 2, seconds=300)
        plant.advance(300.0)
        shares.append(in_time(plant))
    assert max(shares) - min(shares) < WITHIN


@pytest.mark.parametrize("speed", [0.5, 1.0, 3.0])
def test_cpu_of_a_host_is_the_part_of_its_own_cores_at_any_speed(speed):
    plant = fused(1000, 0.5, 2, seconds=120, kind=HostType("other", cores=2.0, speed=speed, slots=8))
    plant.advance(100.0)
    seen = plant.observe()
    assert seen.hosts.column(Metric.CPU) == pytest.approx([0.5, 0.5], abs=0.05)
    assert seen.operators.value("source", Metric.BUSY_CORES) == pytest.approx(0.5 * 4, rel=0.1)


def test_an_overloaded_operator_keeps_a_short_queue_and_its_records():
    plant = make_plant(
        chain(operator("work", 0.002), name="late"),
        host_types=[HOST],
        loads={"source": Emissions.every(1.0, [1000] * 7200, spread=True)},
        settings=Settings(travel=Travel.COHORTS),
        target_latency=5.0,
    )
    plant.advance(7200.0)
    assert plant.network.by_name["work"].queue.shape[0] <= MOST_ROWS
    # One instance does 500 a second; the last done have waited for as long as as many have come since.
    assert plant.result().operators["work"].queued == pytest.approx(3_600_000, rel=0.01)
    assert plant.observe().application.value("late", Metric.LATENCY_P50) == pytest.approx(3600, rel=0.01)


def test_an_overloaded_query_keeps_a_short_queue_and_its_records():
    plant = fused(1000, 2.0, 1, seconds=7200)
    plant.advance(7200.0)
    assert plant.network.segments["source"].queue.times.size <= 4 * MOST_FUSED_ROWS
    result = plant.result().operators["source"]
    assert result.done + result.queued + result.in_service == pytest.approx(7_200_000, rel=1e-9)
    assert plant.observe().application.value("fused", Metric.LATENCY_P50) == pytest.approx(3600, rel=0.05)
