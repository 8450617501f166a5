"""Progress of micro-batches as Spark reports it, written by hand: lines of `batches` in DriverSide.java."""

import json
import os

from elastream.spark.telemetry.batches import QueryStatus, read_batch

START = 1_700_000_000.0
"""Epoch second of time 0."""


def source(start=None, end=None, rows=0, latest=None, behind=None, description="a source"):
    """The progress of one source; behind: Kafka's mean over partitions."""
    metrics = {} if behind is None else {"metrics": {"avgOffsetsBehindLatest": str(behind)}}
    offsets = {"startOffset": start, "endOffset": end, "latestOffset": latest}
    return {"description": description, **offsets, "numInputRows": rows, **metrics}


def line(number, at, seconds, *sources, rows=None, polled=0.0, observed=None, reads="-", **parts):
    """A line of the driver's about batch `number`, started at second `at`; parts: further seconds, by Spark's names."""
    total = sum(each["numInputRows"] for each in sources) if rows is None else rows
    durations = {"triggerExecution": seconds, "latestOffset": polled, **parts}
    milliseconds = json.dumps({name: round(1e3 * each) for name, each in durations.items()})
    named = {f"elastream {name}": row for name, row in (observed or {}).items()}
    start = str(round(1e3 * (START + at)))
    return [str(number), start, str(total), milliseconds, reads, json.dumps(named), *map(json.dumps, sources)]


def batches(query, *lines, poll=0.1, limits=()):
    """Batches of a query in a row."""
    found = []
    for each in lines:
        found.append(read_batch(query, each, found[-1] if found else None, QueryStatus(poll, limits=limits)))
    return found


def drop(folder, name, at, size):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("x" * size)
    os.utime(folder / name, (START + at, START + at))


def logged(checkpoint, number, *files, compact=()):
    """An entry of the log of a file source: (batch, path, second)."""
    log = checkpoint / "sources" / "0"
    log.mkdir(parents=True, exist_ok=True)
    entries = [*compact, *((number, *file) for file in files)]
    lines = [
        json.dumps({"path": f"file://{path}", "timestamp": int(1e3 * (START + at)), "batchId": batch})
        for batch, path, at in entries
    ]
    name = f"{number}.compact" if compact else str(number)
    (log / name).write_text("\n".join(["v1", *lines]))
