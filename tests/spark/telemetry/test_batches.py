"""What is read of a batch: lines of `batches` in DriverSide.java are written by hand here."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.spark.telemetry.batches import SourceLimit, read_batch
from support.batch_progress import START, batches, line, source


def test_kafka_lag_is_the_mean_times_the_number_of_partitions():
    lines = source(end={"lines": {"0": 11, "1": 12, "2": 13}}, behind=10.5)
    words = source(end={"words": {"0": 1}}, behind=2.0)
    assert read_batch("q", line(4, 0, 0.5, lines), None).behind == 31.5
    assert read_batch("q", line(4, 0, 0.5, lines, words), None).behind == 33.5


def test_kafka_lag_follows_from_offsets_without_metrics():
    ends = {"t": {"0": 10, "1": 20}}

    def behind(latest):
        kafka = source(ends, ends, latest=latest, description="KafkaV2[Subscribe[t]]")
        return read_batch("q", line(4, 0, 0.5, kafka), None).behind

    assert behind({"t": {"0": 13, "1": 24}}) == 7
    assert behind(ends) == 0
    for anew in ({"t": {"0": 1, "1": 24}}, {"t": {"0": 13}}, None):
        assert math.isnan(behind(anew))


def test_a_lag_below_zero_is_unknown():
    anew = source(end={"t": {"0": 10}}, behind=-990.0)
    assert math.isnan(read_batch("q", line(4, 0, 0.5, anew), None).behind)


def test_a_source_whose_offsets_count_records_tells_what_it_holds_by_them():
    first, second = {"n": 10, "t": 1.5, "fast": True}, {"n": 25, "t": 2.5, "fast": True}
    held = source(first, second, 15, latest={**second, "n": 65, "t": 4.5})
    (taken,) = read_batch("q", line(4, 2.0, 0.5, held), None).sources
    assert (taken.behind, taken.everything) == (40.0, False)
    same_time_later = source(first, second, 15, latest={**second, "t": 2.51})
    (taken,) = read_batch("q", line(4, 2.0, 0.5, same_time_later), None).sources
    assert (taken.behind, taken.everything) == (0.0, True)
    files = source({"logOffset": 1}, {"logOffset": 2}, 400, latest={"logOffset": 9})
    assert math.isnan(read_batch("q", line(4, 2.0, 0.5, files), None).behind)


def test_offsets_of_ours_number_the_records_taken_and_others_say_nothing():
    edge = source({"edge": "a-b", "n": 3}, {"edge": "a-b", "n": 9}, 6)
    own = source({"n": 10, "started": START}, {"n": 25, "started": START}, 15)
    batch = read_batch("q", line(4, 2.0, 0.5, edge, own), None)
    assert [each.numbers for each in batch.sources] == [(3, 9), (10, 25)]
    assert [each.rows for each in batch.sources] == [6, 15]
    assert read_batch("q", line(4, 2.0, 0.5, source("not json", 5)), None).source(0).end == {}
    assert read_batch("q", line(0, 2.0, 0.5, source(None, {"n": 25}, 25)), None).source(0).numbers == (0, 25)


def test_a_source_of_ours_says_what_it_held_where_spark_does_not_ask():
    own = source({"n": 10}, {"n": 25, "due": 40}, 15, latest={"n": 25, "due": 40})
    taken = read_batch("q", line(4, 2.0, 0.5, own), None).source(0)
    assert (taken.behind, taken.everything) == (15, False)


def test_records_of_repeated_tasks_count_once_if_the_source_counts():
    end = {"n": 25, "t": 2.0, "started": START, "version": 3}
    batch = read_batch("q", line(4, 2.0, 0.5, source({**end, "n": 10, "t": 1.0}, end, 21, latest=end)), None)
    assert (batch.rows, batch.source(0).rows, batch.behind) == (15, 15, 0)


@pytest.mark.parametrize(
    "end", [{"n": {"0": 5}, "t": {"0": 7}}, {"n": 2, "t": 3}], ids=["Kafka's topics", "a user's source"]
)
def test_offsets_of_others_count_nothing_though_they_have_the_same_names(end):
    assert read_batch("q", line(4, 2.0, 0.5, source({"n": 7, "t": 1}, end, 12)), None).rows == 12


@pytest.mark.parametrize(("start", "since"), [(1.0, 0.5), (60.0, 57.0)], ids=["soon after", "after a long silence"])
def test_a_rate_is_over_the_wait_for_the_batch_but_for_a_long_silence(start, since):
    _, batch = batches("q", line(0, 0.0, 0.5, rows=10), line(1, start, 0.5, rows=10))
    assert batch.since == pytest.approx(START + since)


# -- when records can have come at the earliest ------------------------------------------------------------------------


def waiting(*lines, poll=0.1):
    return [round(batch.waiting - START, 3) for batch in batches("q", *lines, poll=poll)]


def test_an_immediate_batch_has_records_since_the_previous_start():
    taken = source(1, 2, rows=10)
    assert waiting(line(0, 0.0, 2.0, taken), line(1, 2.0, 3.0, taken), line(2, 5.05, 1.0, taken))[1:] == [0.0, 2.0]


def test_records_of_a_batch_after_idle_polls_came_after_the_last_poll():
    taken = source(1, 2, rows=10)
    assert waiting(line(0, 0.0, 0.5, taken), line(1, 60.0, 0.5, taken))[1:] == [59.9]
    assert waiting(line(0, 0.0, 0.5, taken), line(1, 60.0, 0.5, taken, polled=2.0))[1:] == [57.9], "polls that take long"
    assert waiting(line(0, 0.0, 0.5, taken), line(1, 60.0, 0.5, taken), poll=math.nan)[1:] == [0.0], "no interval known"


def test_without_a_source_count_records_came_since_the_last_full_read():
    held = source(1, 2, rows=10, latest=9)
    lines = line(0, 0.0, 1.0, source(0, 1, 10)), line(1, 1.0, 1.0, held), line(2, 2.0, 1.0, held)
    assert waiting(*lines, line(3, 3.0, 1.0, source(2, 3, 10, latest=3)))[1:] == [0.0, 0.0, 0.0]


def test_what_a_source_holds_counts_from_when_it_came():
    def kafka(behind):
        return source({"t": {"0": 1}}, {"t": {"0": 2}}, rows=10, behind=behind)

    late = [line(0, 0.0, 1.0, kafka(0.0)), *(line(n, float(n), 1.0, kafka(10.0 * n)) for n in range(1, 6))]
    # Of the 20 that come a second 10 are taken: every second batch takes what came a second later than that before it.
    assert waiting(*late)[1:] == [0.0, 0.0, 1.0, 1.0, 2.0]
    steady = [line(0, 0.0, 1.0, kafka(0.0)), *(line(n, float(n), 1.0, kafka(5.0)) for n in range(1, 6))]
    assert waiting(*steady)[1:] == [0.0, 0.0, 1.0, 2.0, 3.0], "what it always holds is no growing delay"


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=120))
def test_what_a_source_holds_is_never_taken_for_newer_than_it_is(rounds):
    came: list[int] = []  # the second after which each record came
    lines, since, taken = [], [], 0
    for number, (fresh, limit) in enumerate(rounds):
        came += [max(0, number - 1)] * fresh
        first, taken = taken, min(len(came), taken + limit)
        since.append(came[first] if taken > first else None)
        lines.append(
            line(number, float(number), 1.0, source({"n": first}, {"n": taken}, taken - first, latest={"n": len(came)}))
        )
    for said, true in zip(batches("q", *lines), since, strict=True):
        assert true is None or said.waiting - START <= true


def test_earlier_records_count_from_the_first_look_at_the_query():
    held = source(0, 1, 10, latest=9)
    assert waiting(line(7, 3.0, 1.0, held), line(8, 4.0, 1.0, held), line(9, 5.0, 1.0, held)) == [3.0, 3.0, 3.0]


def test_progress_after_the_form_that_is_documented_for_kafka_is_read():
    # Written by hand after Spark's guide to Structured Streaming and Kafka: no recording of a broker.
    progress = json.loads((Path(__file__).parent / "kafka_progress_as_documented.json").read_text())
    fields = [
        str(progress["batchId"]),
        "1700000000000",
        str(progress["numInputRows"]),
        json.dumps(progress["durationMs"]),
        "-",
        json.dumps(progress["observedMetrics"]),
        *map(json.dumps, progress["sources"]),
    ]
    batch = read_batch("q", fields, None)
    (taken,) = batch.sources
    assert (batch.rows, taken.rows, batch.behind, taken.everything) == (300, 300, 1200.0, False)
    assert batch.observed["lines"]["stamped"] == 300


def records(*sources, reads="-", limits=(), **more):
    """Return the records of each source in the last of some batches, one a line."""
    lines = [line(number, number, 0.5, each, reads=reads, **more) for number, each in enumerate(sources)]
    return [batch.sources[0].rows for batch in batches("q", *lines, limits=limits)]


@pytest.mark.parametrize(
    ("taken", "rows"),
    [
        (source({"t": {"0": 10, "1": 5}}, {"t": {"0": 110, "1": 55}}, 450, description="KafkaV2[Subscribe[t]]"), 150),
        (source({"t": {"0": 1000}}, {"t": {"0": 10}}, 10, description="KafkaV2[Subscribe[t]]"), 10),
        (source({"t": {"0": 10}}, {"t": {"0": 110, "1": 50}}, 100, description="KafkaV2[Subscribe[t]]"), 100),
        (source(4, 6, 120, description="RateStreamV2[rowsPerSecond=20, rampUpTimeSeconds=0, numPartitions=2"), 40),
        (source(4, 6, 120, description="RateStreamV2[rowsPerSecond=20, rampUpTimeSeconds=9, numPartitions=2"), 120),
        (source({"offset": 500}, {"offset": 1000}, 1500, description="RatePerMicroBatchStream[rowsPerBatch=500"), 500),
        (source(99, 119, 60, description="TextSocketV2[host: h, port: 1]"), 20),
    ],
    ids=["Kafka", "a new topic", "a new partition", "rate", "rate that ramps up", "rate by batch", "socket"],
)
def test_offsets_that_count_records_are_the_truth(taken, rows):
    assert records(taken) == [rows]


@pytest.mark.parametrize(
    ("seen", "reads", "times", "rows"),
    [
        (1500, "[500, 500, 500]", 1, 500),
        (500, "[500, 1, 1]", 1, 500),
        (503, "[500, 3]", 1, 500),
        (1500, "[500, 7000, 500, 7000, 500, 7000]", 1, 500),
        (1000, "[500, 500]", 2, 500),
        (1000, "[1000]", 2, math.nan),
        (1500, "[0, 0, 0]", 1, math.nan),
        (500, "[0]", 1, 500),
        (0, "[]", 1, 0),
    ],
    ids=[
        "three actions",
        "a batch that is kept",
        "a look at some rows",
        "a table beside",
        "a join with itself",
        "a union with itself",
        "a source that counts no reads",
        "one action",
        "no records",
    ],
)
def test_records_that_a_batch_reads_several_times_count_once(seen, reads, times, rows):
    limits = (SourceLimit(times=times),)
    assert records(source("a", "b", seen), reads=reads, limits=limits) == pytest.approx([rows], nan_ok=True)


def test_unknown_reads_of_a_batch_are_as_in_the_batch_before():
    taken = source("a", "b", 1500)
    lines = [line(0, 0, 0.5, taken, reads="[500, 500, 500]"), line(1, 1, 0.5, taken, reads="")]
    assert [batch.rows for batch in batches("q", *lines)] == [500, 500]
    assert math.isnan(batches("q", lines[1])[0].rows)


def test_what_a_limited_source_holds_back_is_unknown():
    limited = (SourceLimit("rows", 100),)

    def shown(*rows, poll=1.0, every=1.0):
        lines = [line(n, n * every, 0.4, source(n, n + 1, each)) for n, each in enumerate(rows)]
        read = batches("q", *lines, poll=poll, limits=limited)
        return [(str(round(batch.waiting - START, 1)), batch.sources[0].everything) for batch in read]

    assert shown(100, 100, 40, 40) == [("0.0", None), ("nan", None), ("nan", True), ("2.0", True)]
    made = source(0, 1, 100, description="RatePerMicroBatchStream[rowsPerBatch=100")
    assert batches("q", line(0, 0, 0.4, made), limits=limited)[0].sources[0].everything is True
    assert shown(100, 100, every=9.0) == [("0.0", None), ("8.0", None)], "a poll found nothing in between"


# -- figures -----------------------------------------------------------------------------------------------------------
