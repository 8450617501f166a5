"""What is observed of micro-batches in simulation is what Spark's telemetry would tell."""

import math

import numpy as np
import pytest
from test_microbatches import plant

from elastream.core.metrics import Metric
from elastream.simulator import Settings


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
