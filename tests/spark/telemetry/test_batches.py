"""What is read of a batch: the fields of `batches` in DriverSide.java are written by hand here."""

import json
import math

import pytest

from elastream.spark.telemetry.batches import read_batch

START = 1_700_000_000


def fields(number, at, seconds, rows, *sources):
    """A line of the driver's; sources: (offset at the start, offset at the end, behind)."""
    ends = [json.dumps(each) if isinstance(each, dict) else each for source in sources for each in source]
    return [str(number), str(round(1e3 * (START + at))), str(rows), str(round(1e3 * seconds)), *ends]


def test_what_a_query_over_kafka_is_behind_counts_all_partitions_of_which_kafka_tells_the_mean():
    offset = {"lines": {"0": 11, "1": 12, "2": 13}}
    other = {"words": {"0": 1}}
    assert read_batch("q", fields(4, 0, 0.5, 30, (offset, offset, "10.5")), None).behind == 31.5
    assert read_batch("q", fields(4, 0, 0.5, 30, (offset, offset, "10.5"), (other, other, "2.0")), None).behind == 33.5


def test_a_source_that_does_not_say_how_far_it_is_behind_leaves_that_unknown():
    assert math.isnan(read_batch("q", fields(4, 0, 0.5, 30, ("7", "8", "")), None).behind)


def test_offsets_of_ours_number_the_records_taken_and_others_say_nothing():
    own = {"n": 10, "started": START}, {"n": 25, "started": START}, ""
    edge = {"edge": "a-b", "n": 3}, {"edge": "a-b", "n": 9}, ""
    batch = read_batch("q", fields(4, 2.0, 0.5, 15, edge, own), None)
    assert (batch.first, batch.last, batch.load_started) == (10.0, 25.0, START)
    assert batch.taken == {"a-b": (3, 9)}
    assert math.isnan(read_batch("q", fields(4, 2.0, 0.5, 15, ("not json", "5", "")), None).last)
    assert read_batch("q", fields(0, 2.0, 0.5, 15, ("", own[1], "")), None).first == 0.0


@pytest.mark.parametrize(("start", "since"), [(1.0, 0.5), (60.0, 57.0)], ids=["soon after", "after a long silence"])
def test_a_rate_is_over_the_wait_for_the_batch_but_for_a_long_silence(start, since):
    before = read_batch("q", fields(0, 0.0, 0.5, 10), None)
    assert read_batch("q", fields(1, start, 0.5, 10), before).since == pytest.approx(START + since)
