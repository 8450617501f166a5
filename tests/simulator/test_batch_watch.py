"""What is observed of micro-batches in simulation is what Spark's telemetry would tell."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_microbatches import plant

from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch
from elastream.simulator import Settings
from elastream.simulator.batch_watch import latency_quantile, latency_share

batches = st.lists(
    st.builds(
        lambda records, newest, spread: MicroBatch("s", 0.0, 1.0, records, newest + spread, newest),
        st.integers(1, 10_000).map(float),
        st.floats(0, 50),
        st.floats(0, 20),
    ),
    min_size=1,
    max_size=12,
)


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
    busy = plant()
    told = []
    for second in range(1, 21):
        busy.advance(float(second))
        told += busy.observe().batches
    assert sum(batch.records for batch in told) == pytest.approx(busy.result().committed)
    assert [batch.start for batch in told] == sorted({batch.start for batch in told})
    assert all(0 <= batch.newest <= batch.oldest for batch in told)


def test_two_observations_at_one_time_are_of_the_same_batches():
    busy = plant()
    busy.advance(5.0)
    first = busy.observe()
    assert first.batches
    assert busy.observe().batches == first.batches


@given(batches)
def test_quantiles_of_latency_rise_and_stay_between_the_newest_and_the_oldest(given_batches):
    found = [latency_quantile(given_batches, q) for q in (0.0, 0.25, 0.5, 0.99, 1.0)]
    assert found == sorted(found)
    assert found[0] >= min(batch.newest for batch in given_batches) - 1e-6
    assert found[-1] <= max(batch.oldest for batch in given_batches) + 1e-5


@given(batches, st.floats(0, 80))
def test_so_many_records_are_within_a_limit_as_are_within_its_quantile(given_batches, limit):
    share = latency_share(given_batches, limit)
    assert 0 <= share <= 1
    assert latency_share(given_batches, latency_quantile(given_batches, share)) == pytest.approx(share, abs=1e-6)


def test_the_latencies_of_a_batch_lie_evenly_between_newest_and_oldest():
    one = [MicroBatch("s", 0.0, 1.0, 100.0, 3.0, 1.0)]
    assert latency_quantile(one, 0.5) == pytest.approx(2.0)
    assert latency_share(one, 1.5) == pytest.approx(0.25)
    assert math.isnan(latency_quantile([MicroBatch("s", 0.0, 1.0, 100.0)], 0.5))
