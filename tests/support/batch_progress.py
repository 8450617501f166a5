"""Progress of micro-batches as Spark reports it, written by hand: lines of `batches` in DriverSide.java."""

import json

from elastream.spark.telemetry.batches import read_batch

START = 1_700_000_000.0
"""Epoch second of time 0."""


def source(start=None, end=None, rows=0, latest=None, behind=None, description="a source"):
    """The progress of one source; behind: Kafka's mean over partitions."""
    metrics = {} if behind is None else {"metrics": {"avgOffsetsBehindLatest": str(behind)}}
    offsets = {"startOffset": start, "endOffset": end, "latestOffset": latest}
    return {"description": description, **offsets, "numInputRows": rows, **metrics}


def line(number, at, seconds, *sources, rows=None, polled=0.0, observed=None):
    """A line of the driver's about batch `number`, started at second `at`."""
    total = sum(each["numInputRows"] for each in sources) if rows is None else rows
    times = [str(round(1e3 * each)) for each in (START + at, seconds, polled)]
    named = {f"elastream {name}": row for name, row in (observed or {}).items()}
    return [str(number), times[0], str(total), *times[1:], json.dumps(named), *map(json.dumps, sources)]


def batches(query, *lines, poll=0.1):
    """Batches of a query in a row."""
    found = []
    for each in lines:
        found.append(read_batch(query, each, found[-1] if found else None, poll))
    return found
