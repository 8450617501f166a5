"""Micro-batches from Spark's StreamingQueryProgress as JSON."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from elastream.advice.application import NAN, Application, Lag, LoggedBatch, LoggedQuery, Stage
from elastream.spark.telemetry.batches import Batch, read_batch

Json = Mapping[str, Any]
# Errors of reading JSON of another form: a figure may be infinite, and lists nested deeply.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
# Work on state that does not follow from a batch's records (ms, of all tasks).
STATE_WORK = ("allRemovalsTimeMs", "commitTimeMs")
# Shorter lags in time are those of a poll.
LEAST_LAG_S = 1.0
# Larger figures are damage: the year 5138, four months, a thousand billion.
MOST_EPOCH, MOST_SECONDS, MOST_RECORDS = 1e11, 1e7, 1e12


class ProgressReader:
    """Adds batches to an application from progress, in any order."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._before: dict[str, Batch] = {}
        self._begun: dict[tuple[str, str], float] = {}

    def query(self, id: str, name: str | None = None) -> LoggedQuery:
        queries = self._application.queries
        if id not in queries:
            named = str(name) if name else f"query {id[:8]}"
            names = {query.name for query in queries.values()}
            queries[id] = LoggedQuery(id, named if named not in names else f"{named} {id[:8]}")
        return queries[id]

    def finish(self) -> None:
        """Sort batches, and date runs that the log does not."""
        for query in self._application.queries.values():
            batches = sorted(query.batches, key=lambda batch: (batch.start, batch.number))
            query.batches.clear()
            for batch in batches:
                query.add(batch)
            query.starts = sorted(query.starts or (at for (id, _), at in self._begun.items() if id == query.id))

    def read(self, progress: Json, stages: Iterable[Stage] = (), files: int = 0) -> None:
        """Add the batch of `progress`; one without work is left out.

        Raises:
            KeyError: It lacks a field. Other forms raise others of MALFORMED.
        """
        id = str(progress["id"])
        query = self.query(id, progress.get("name"))
        durations = {
            name: each / 1e3 for name, each in (progress.get("durationMs") or {}).items() if isinstance(each, int | float)
        }
        sources = [_source(each) for each in progress.get("sources") or ()]
        query.sources = tuple(str(each.get("description")) for each in sources)
        query.sink = str((progress.get("sink") or {}).get("description", ""))
        stages = list(stages)
        if stages and "PythonForeachWriter" in query.sink:  # no plan or RDD of its stage says so
            stages[-1] = replace(stages[-1], times=replace(stages[-1].times, python=True, writes=True))
        if "addBatch" not in durations:
            query.idle = epoch(progress["timestamp"])
            return
        number, start = int(progress["batchId"]), epoch(progress["timestamp"])
        run = id, str(progress.get("runId"))
        rows = sum(int(each.get("numInputRows") or 0) for each in sources)
        line = [
            str(number),
            str(round(1e3 * start)),
            str(rows),
            json.dumps({n: 1e3 * s for n, s in durations.items()}),
            "-",
            "{}",
        ]
        before = self._before.get(id)
        batch = _checked(read_batch(query.name, [*line, *map(json.dumps, sources)], before), rows)
        self._before[id] = batch
        self._begun[run] = min(start, self._begun.get(run, start))
        behind, files_behind = batch.behind, _total(sources, "numFilesOutstanding")
        estimated = math.isnan(behind)
        if estimated and (files or not files_behind):
            behind = files_behind * rows / max(1, files)
        elif estimated and before is not None and start > before.start:  # Kinesis tells its lag in time
            late = _total(sources, "avgMsBehindLatest") / 1e3
            behind = 0.0 if late < LEAST_LAG_S else late * rows / (start - before.start)
        states = progress.get("stateOperators") or ()
        partitions = sum(len(each) for source in sources for each in _kafka(source, "endOffset").values())
        query.width = max([query.width, partitions, *(int(each.get("numShufflePartitions") or 0) for each in states)])
        if states:
            query.rocksdb |= any(name.startswith("rocksdb") for each in states for name in each.get("customMetrics") or ())
            query.stateful = str(max(states, key=lambda each: int(each.get("numRowsTotal") or 0)).get("operatorName") or "")
        times = progress.get("eventTime") or {}
        query.add(
            LoggedBatch(
                number,
                start,
                batch.seconds,
                batch.rows,
                behind,
                durations,
                tuple(stages),
                float(sum(int(each.get("numRowsTotal") or 0) for each in states)) if states else NAN,
                float(sum(int(each.get("numRowsRemoved") or 0) for each in states)),
                float(sum(int(each.get("memoryUsedBytes") or 0) for each in states)),
                _watermark(times),
                epoch(times["max"]) if times.get("max") else NAN,
                files,
                _lag(sources),
                math.fsum(float(each.get(name) or 0) for each in states for name in STATE_WORK) / 1e3,
                files_behind=files_behind,
                estimated=estimated,
            )
        )


def _total(sources: Iterable[Json], name: str) -> float:
    reports = [(source.get("metrics") or {}).get(name) for source in sources]
    figures = [figure for each in reports if each is not None and 0 <= (figure := float(each)) < MOST_RECORDS]
    return math.fsum(figures) if figures else NAN


def _source(progress: Json) -> dict[str, Any]:
    offsets = {name: json_of(progress.get(name)) for name in ("startOffset", "endOffset", "latestOffset")}
    return {**progress, **offsets}


def json_of(value: Any) -> Any:
    """Parse JSON in a text; return other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _checked(batch: Batch, rows: int) -> Batch:
    batch = replace(batch, rows=rows) if math.isnan(batch.rows) else batch
    behind = 0.0 if math.isnan(batch.behind) else batch.behind
    figures = (behind, MOST_RECORDS), (batch.start, MOST_EPOCH), (batch.seconds, MOST_SECONDS), (batch.rows, MOST_RECORDS)
    if not all(0 <= figure < most for figure, most in figures):
        raise ValueError("no batch has such figures")
    return batch


def epoch(text: str) -> float:
    """Return the epoch seconds of a time such as `2026-03-01T10:00:00.000Z`."""
    return datetime.fromisoformat(text).timestamp()


def _watermark(times: Json) -> float:
    at = epoch(times["watermark"]) if times.get("watermark") else NAN
    return at if at > 0 else NAN  # 1970 is none


def _kafka(source: Json, name: str) -> dict[str, dict[str, Any]]:
    offset = source.get(name)
    return offset if str(source.get("description")).startswith("Kafka") and isinstance(offset, dict) else {}


def _lag(sources: Iterable[Json]) -> Lag | None:
    """Return the largest lag of a Kafka partition, or None."""
    lags: dict[str, float] = {}
    for each in sources:
        latest = _kafka(each, "latestOffset")
        for topic, offsets in _kafka(each, "endOffset").items() if latest else ():
            for partition, offset in offsets.items():
                newest = latest.get(topic, {}).get(partition, offset)
                lags[f"{topic}-{partition}"] = max(0.0, float(newest) - float(offset))
    if len(lags) < 2 or not (total := math.fsum(lags.values())):
        return None
    most = max(lags, key=lambda name: lags[name])
    return Lag(most, lags[most], total, len(lags))
