"""What is read of a batch's progress, which is written by hand here."""

from elastream.spark.telemetry.batches import read_batch


def test_what_a_query_over_kafka_is_behind_counts_all_partitions_of_which_kafka_tells_the_mean():
    source = {
        "startOffset": {"lines": {"0": 1, "1": 2, "2": 3}},
        "endOffset": {"lines": {"0": 11, "1": 12, "2": 13}},
        "metrics": {"avgOffsetsBehindLatest": "10.5"},
    }
    progress = {
        "batchId": 4,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "numInputRows": 30,
        "durationMs": {"triggerExecution": 500, "addBatch": 400},
        "sources": [source],
    }
    assert read_batch("q", progress, None).parts["behind"] == 31.5
