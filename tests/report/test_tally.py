"""What counts as in time: records by the latencies of their batches, time by its 99th percentiles."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.observation import MicroBatch
from elastream.report.tally import InTime

NAN = math.nan


def batch(records: float, oldest: float, newest: float) -> MicroBatch:
    return MicroBatch("s", 0.0, 1.0, records, oldest, newest)


@pytest.mark.parametrize(
    ("oldest", "newest", "share"), [(1.0, 0.5, 1.0), (3.0, 2.5, 0.0), (3.0, 1.0, 0.5), (2.0, 2.0, 1.0), (2.5, 2.5, 0.0)]
)
def test_records_of_a_batch_lie_evenly_between_its_oldest_and_its_newest(oldest, newest, share):
    counted = InTime(2.0)
    counted.batches([batch(10, oldest, newest)])
    assert counted.records == pytest.approx(share)


def test_batches_weigh_by_records_and_unknown_latency_does_not_count():
    counted = InTime(2.0)
    counted.batches([batch(30, 1.0, 0.5), batch(10, 9.0, 8.0), batch(1000, NAN, NAN), batch(0, NAN, NAN)])
    assert counted.records == 0.75


def test_without_batches_measured_compliance_weighs_by_records():
    counted = InTime(2.0)
    counted.period(np.ones(3), np.array([1.0, NAN, 3.0]), np.array([1.0, NAN, 0.5]), np.array([30.0, 99.0, 10.0]))
    assert counted.records == pytest.approx(35 / 40)
    assert counted.time == 0.5


def test_nothing_promised_or_nothing_measured_is_unknown():
    for counted in (InTime(None), InTime(2.0)):
        counted.batches([batch(10, 1.0, 0.5)] if counted.target is None else [])
        counted.period(1.0, NAN, NAN, 5.0)
        assert math.isnan(counted.records)
        assert math.isnan(counted.time)


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 1), st.floats(0, 99)), min_size=1))
def test_one_by_one_is_counted_as_all_at_once(periods):
    at_once, one_by_one = InTime(2.0), InTime(2.0)
    p99, share, records = map(np.array, zip(*periods, strict=True))
    at_once.period(np.ones(len(p99)), p99, share, records)
    for each in zip(p99, share, records, strict=True):
        one_by_one.period(1.0, *each)
    assert one_by_one.time == pytest.approx(at_once.time)
    assert one_by_one.records == pytest.approx(at_once.records, nan_ok=True)
