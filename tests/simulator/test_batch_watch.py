"""What is observed of micro-batches in simulation is what Spark's telemetry would tell."""

import math
from dataclasses import replace

import numpy as np
import pytest
from test_microbatches import ONE, plant

from elastream.core.metrics import Metric
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.operators import Alternate
from elastream.dataflow.stages import lay_out
from elastream.simulator import Emissions, Settings, make_plant


def test_before_the_first_batch_nothing_is_known_of_the_load():
    seen = plant().observe()
    assert math.isnan(seen.operators.value("source", Metric.BACKLOG))
    assert math.isnan(seen.application.value("fused", Metric.LATENCY_P50))


def test_figures_stay_as_they_were_while_no_batch_is_committed():
    long = plant(rate=100, settings=Settings(monitor=1.0, batch_overhead=4.0, state_partitions=8, batch_seconds=1.0))
    long.advance(40.0)
    known = [sample.operators.value("source", Metric.PROCESSED_RATE) for sample in long.observe().history[20:]]
    assert np.isfinite(known).all()
    assert min(known) > 0


def test_an_observation_tells_of_each_batch_once():
    busy, told = plant(), []
    for second in range(1, 21):
        busy.advance(float(second))
        told += (batches := busy.observe().batches)
        assert busy.observe().batches == batches, "asked again at the same time"
    assert sum(batch.records for batch in told) == pytest.approx(busy.result().committed)
    assert [batch.start for batch in told] == sorted({batch.start for batch in told})
    assert all(0 <= batch.newest <= batch.oldest for batch in told)


def test_latency_lasts_until_a_query_behind_a_durable_edge_has_committed():
    flow = Dataflow("two")
    quick = flow.source(None).map([Alternate("quick", str.lower, cost=1e-5)], returns="word string", name="quick")
    quick.durable().map([Alternate("slow", str.upper, cost=0.02)], returns="word string", name="slow").sink(None)
    late = make_plant(
        lay_out(flow.graph),
        host_types=[replace(ONE, cores=2.0, slots=2)],
        loads={"source": Emissions.every(1.0, [100] * 60, spread=True)},
        settings=Settings(monitor=1.0, batch_overhead=0.05),
        hosts=1,
        target_latency=3.0,
    )
    late.advance(40.0)
    seen = late.observe()
    assert seen.application.value("two", Metric.LATENCY_P50) > 10.0, "twice the work of its task arrives"
    assert seen.application.value("two", Metric.THROUGHPUT) == pytest.approx(100.0, rel=0.05)
    first, second = (each.name for each in seen.context.layout.segments)
    assert {each.segment for each in seen.batches if each.oldest == each.oldest} == {second}
    assert first in {each.segment for each in seen.batches}


def test_dataflow_that_drops_all_records_is_observed_by_its_source():
    flow = Dataflow("none")
    flow.source(None).map([Alternate("drop", str.lower, cost=1e-5, selectivity=0.0)], returns="w string", name="d").sink(
        None
    )
    loads = {"source": Emissions.every(1.0, [100] * 60, spread=True)}
    dropping = make_plant(lay_out(flow.graph), host_types=[ONE], loads=loads, settings=Settings(monitor=1.0), hosts=1)
    dropping.advance(20.0)
    assert dropping.observe().application.value("none", Metric.LATENCY_P50) < 1.0
