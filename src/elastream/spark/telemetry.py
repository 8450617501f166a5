"""Turns what Spark reports of its micro-batches into the frames of an observation.

Three sources, each cheap enough for every second: the progress of each query (one gateway call a new batch), the meter of
the fused stages, and the arrival pattern itself, which knows when each record of a shaped load was due. The latency of a
record is the commit of its batch less the moment it was due: computed here from offsets, with no stamp on any record.
"""

import json
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from elastream.model.endpoints import ArrivalPattern
from elastream.model.graph import Graph, Kind
from elastream.model.observation import Floats, Frame, Metric, MicroBatch
from elastream.model.stages import Layout
from elastream.spark.compile import RunningSegment
from elastream.spark.meter import MeterRow

__all__ = ["Batch", "Telemetry", "weighted_quantile"]

WINDOW = 3.0
"""Seconds of batches that one observation speaks of: a few batches, so that one slow batch shows and does not rule."""
POINTS = 32
"""Records of a batch whose latency is computed, evenly spread; the rest lie between them."""
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Batch:
    """One committed micro-batch. Times are epoch seconds; `first`, `last` number the records taken, NaN if unknown."""

    segment: str
    id: int
    start: float
    seconds: float
    rows: int
    first: float = NAN
    last: float = NAN
    load_started: float = NAN
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """When it was committed."""
        return self.start + self.seconds


class Telemetry:
    """What the running queries have reported so far. `poll` fetches what is new; the rest is arithmetic on it."""

    def __init__(self, layout: Layout, running: Sequence[RunningSegment], target_latency: float | None) -> None:
        self._layout = layout
        self._running = tuple(running)
        self._target = target_latency
        self._patterns = _patterns(layout.graph)
        self._source_of = {
            each.segment.name: name
            for each in running
            for name in each.segment.operators
            if layout.graph.operator(name).kind is Kind.SOURCE
        }
        self._seen: dict[str, int] = defaultdict(lambda: -1)
        self._recent: dict[str, deque[Batch]] = defaultdict(lambda: deque(maxlen=200))
        self._meter: deque[tuple[float, MeterRow]] = deque(maxlen=20_000)
        self._counted: dict[str, tuple[float, int]] = {}
        self.batches = 0
        self.rows = 0
        self.longest = 0.0

    def poll(self) -> tuple[Batch, ...]:
        """Batches committed since the last call, in order of each segment."""
        fresh: list[Batch] = []
        for each in self._running:
            name = each.segment.name
            for progress in _unseen(each.query, self._seen[name]):
                self._seen[name] = progress["batchId"]
                batch = _batch(name, progress)
                self._recent[name].append(batch)
                fresh.append(batch)
                if name in self._source_of:
                    self.rows += batch.rows
                self.batches += 1
                self.longest = max(self.longest, batch.seconds)
        return tuple(fresh)

    def metered(self, rows: Iterable[MeterRow]) -> None:
        """Take what the meter has drained."""
        now = time.time()
        self._meter.extend((now, row) for row in rows)

    def last(self, segment: str) -> Batch | None:
        """The newest committed batch of a segment."""
        recent = self._recent[segment]
        return recent[-1] if recent else None

    def recent(self, segment: str) -> tuple[Batch, ...]:
        """The last batches of a segment, up to 200, oldest first."""
        return tuple(self._recent[segment])

    def described(self, batch: Batch, epoch: float) -> MicroBatch:
        """A batch as an observation tells of it, on a clock that began at `epoch`."""
        pattern = self._patterns.get(self._source_of.get(batch.segment, ""))
        waited = [NAN, NAN]
        if pattern is not None and batch.last > batch.first:
            numbers = (int(batch.first), int(batch.last) - 1)
            waited = [batch.end - (batch.load_started + pattern.due(number)) for number in numbers]
        return MicroBatch(batch.segment, batch.start - epoch, batch.seconds, float(batch.rows), *waited)

    def due(self, source: str, at: float) -> float:
        """Records of a shaped source due by epoch second `at`; NaN where the load is not known or has not begun."""
        pattern, started = self._patterns.get(source), self.load_started(source)
        return NAN if pattern is None or started is None else float(pattern.count(max(0.0, at - started)))

    def taken(self, source: str) -> float:
        """Records that the newest planned batch of a shaped source has taken, committed or under way."""
        running = self._of_source(source)
        offset = _planned_offset(running.checkpoint, self._seen[running.segment.name]) if running else None
        return NAN if offset is None or "n" not in offset else float(offset["n"])

    def backlog(self, source: str, at: float) -> float:
        """Records due and not taken by any batch."""
        if source in self._patterns:
            return (
                max(0.0, self.due(source, at) - self.taken(source)) if self.due(source, at) == self.due(source, at) else NAN
            )
        running = self._of_source(source)
        last = self.last(running.segment.name) if running else None
        return last.parts.get("behind", NAN) if last else NAN

    def exhausted(self, source: str, at: float) -> bool:
        """Whether the load of a source has ended and a committed batch has taken the last of it."""
        pattern, started = self._patterns.get(source), self.load_started(source)
        running = self._of_source(source)
        if pattern is None or started is None or running is None or at - started < pattern.seconds:
            return False
        last = self.last(running.segment.name)
        return last is not None and last.last >= pattern.count(pattern.seconds)

    def operators(self, now: float, parallelism: Mapping[str, float], cores: float, used: float = NAN) -> Frame:
        """A row per operator. `cores` is what the usable hosts have together, `used` how many of them are busy.

        What hosts use and no meter accounts for - the way into Python and back, shuffles, native aggregation - is charged
        to the keyed operators, or to the sources where there are none: the operators' busy cores add up to the hosts'.
        """
        graph = self._layout.graph
        columns: dict[Metric, dict[str, float]] = defaultdict(dict)
        self._describe_sources(now, columns)
        self._describe_metered(now, columns, cores)
        self._describe_keyed(now, columns)
        self._charge(used, columns, cores)
        for name, width in parallelism.items():
            columns[Metric.PARALLELISM][name] = width
        names = tuple(graph.by_name)
        return Frame(
            names,
            {metric: [values.get(name, NAN) for name in names] for metric, values in columns.items()},
            self._age(now),
        )

    def application(self, now: float, cost: float) -> Frame:
        """One row: the dataflow as its users see it."""
        latencies, weights = self._latencies(now)
        durations = [batch.seconds for batches in self._window(now).values() for batch in batches]
        values: dict[Metric, float] = {
            Metric.COST: cost,
            Metric.LATENCY_P50: weighted_quantile(latencies, weights, 0.5),
            Metric.LATENCY_P99: weighted_quantile(latencies, weights, 0.99),
            Metric.LATENCY: float(np.average(latencies, weights=weights)) if len(latencies) else NAN,
            Metric.BATCH_DURATION: float(np.median(durations)) if durations else NAN,
            Metric.THROUGHPUT: self._throughput(now),
            Metric.ARRIVAL_RATE: sum((self._arrivals(source, now) for source in self._source_of.values()), 0.0),
            Metric.BACKLOG: sum((self.backlog(source, now) for source in self._source_of.values()), 0.0),
        }
        if self._target is not None and len(latencies):
            values[Metric.COMPLIANCE] = float(weights[latencies <= self._target].sum() / weights.sum())
        return Frame((self._layout.graph.name,), {metric: [value] for metric, value in values.items()}, self._age(now))

    def _describe_sources(self, now: float, columns: dict[Metric, dict[str, float]]) -> None:
        for segment, source in self._source_of.items():
            batches = self._window(now).get(segment, ())
            columns[Metric.ARRIVAL_RATE][source] = self._arrivals(source, now)
            columns[Metric.BACKLOG][source] = self.backlog(source, now)
            columns[Metric.PROCESSED_RATE][source] = columns[Metric.EMITTED_RATE][source] = _rate(batches)
            # What a record waits at the source is the time until a batch takes it.
            waits, weights = self._spread(source, batches, lambda batch: batch.start)
            columns[Metric.DURATION_P50][source] = weighted_quantile(waits, weights, 0.5)
            columns[Metric.DURATION_P99][source] = weighted_quantile(waits, weights, 0.99)
            columns[Metric.DURATION][source] = float(np.average(waits, weights=weights)) if len(waits) else NAN

    def _describe_metered(self, now: float, columns: dict[Metric, dict[str, float]], cores: float) -> None:
        rows_of: dict[str, list[MeterRow]] = defaultdict(list)
        window = self._window(now)
        batches = {(batch.segment, batch.id): batch for each in window.values() for batch in each}
        for _, row in self._meter:
            if (row.segment, row.batch) in batches:
                rows_of[row.operator].append(row)
        for name, rows in rows_of.items():
            covered = {(row.segment, row.batch) for row in rows}
            wall = _span([batches[key] for key in covered])
            taken, emitted = sum(row.rows_in for row in rows), sum(row.rows_out for row in rows)
            busy = sum(row.busy for row in rows)
            columns[Metric.PROCESSED_RATE][name] = taken / wall
            columns[Metric.EMITTED_RATE][name] = emitted / wall
            columns[Metric.ARRIVAL_RATE].setdefault(name, taken / wall)
            columns[Metric.BUSY_CORES][name] = busy / wall
            columns[Metric.UTILISATION][name] = busy / wall / cores if cores > 0 else NAN
            if taken:
                columns[Metric.SERVICE_TIME][name] = busy / taken
            # A record is handed to a fused operator with its Arrow batch and has passed it when the batch has.
            passed = np.array([(row.busy / row.tasks) if row.tasks else NAN for row in rows])
            weights = np.array([float(row.rows_in) for row in rows])
            known = ~np.isnan(passed) & (weights > 0)
            if known.any() and self._layout.graph.operator(name).kind is not Kind.SOURCE:
                passed, weights = passed[known], weights[known]
                columns[Metric.DURATION][name] = float(np.average(passed, weights=weights))
                columns[Metric.DURATION_P50][name] = weighted_quantile(passed, weights, 0.5)
                columns[Metric.DURATION_P99][name] = weighted_quantile(passed, weights, 0.99)

    def _describe_keyed(self, now: float, columns: dict[Metric, dict[str, float]]) -> None:
        """A keyed operator takes a record when the stage before it ends, and has passed it when the batch commits."""
        window = self._window(now)
        last_metered: dict[tuple[str, int], tuple[float, float]] = {}
        for _, row in self._meter:
            key = (row.segment, row.batch)
            ends, emitted = last_metered.get(key, (0.0, 0.0))
            last_metered[key] = (max(ends, row.last), emitted)
        for each in self._running:
            batches = window.get(each.segment.name, ())
            for name in each.keyed:
                feeding = [edge.source for edge in self._layout.graph.inputs[name]]
                arriving = sum(columns[Metric.EMITTED_RATE].get(source, NAN) for source in feeding)
                columns[Metric.ARRIVAL_RATE][name] = columns[Metric.PROCESSED_RATE][name] = arriving
                spans = [
                    (batch.end - last_metered[(batch.segment, batch.id)][0], float(batch.rows))
                    for batch in batches
                    if (batch.segment, batch.id) in last_metered and batch.rows
                ]
                if spans:
                    seconds, weights = np.maximum(0.0, np.array([s for s, _ in spans])), np.array([w for _, w in spans])
                    columns[Metric.DURATION][name] = float(np.average(seconds, weights=weights))
                    columns[Metric.DURATION_P50][name] = weighted_quantile(seconds, weights, 0.5)
                    columns[Metric.DURATION_P99][name] = weighted_quantile(seconds, weights, 0.99)

    def _charge(self, used: float, columns: dict[Metric, dict[str, float]], cores: float) -> None:
        rest = used - sum(columns[Metric.BUSY_CORES].values())
        keyed = [name for each in self._running for name in each.keyed]
        payers = keyed or list(self._source_of.values())
        if not rest > 0 or not payers:
            return
        for name in payers:
            busy = columns[Metric.BUSY_CORES].get(name, 0.0) + rest / len(payers)
            columns[Metric.BUSY_CORES][name] = busy
            if cores > 0:
                columns[Metric.UTILISATION][name] = busy / cores
            if (rate := columns[Metric.PROCESSED_RATE].get(name, 0.0)) > 0:
                columns[Metric.SERVICE_TIME][name] = busy / rate

    def _arrivals(self, source: str, now: float) -> float:
        if source not in self._patterns:
            batches = self._window(now).get(self._segment_of(source), ())
            return _rate(batches)
        started = self.load_started(source)
        if started is None:
            return NAN
        return self._patterns[source].rate(max(0.0, now - started))

    def _throughput(self, now: float) -> float:
        return sum((_rate(self._window(now).get(segment, ())) for segment in self._source_of), 0.0)

    def _latencies(self, now: float) -> tuple[Floats, Floats]:
        parts = [
            self._spread(source, self._window(now).get(segment, ()), lambda batch: batch.end)
            for segment, source in self._source_of.items()
        ]
        if not parts:
            return np.empty(0), np.empty(0)
        return np.concatenate([latency for latency, _ in parts]), np.concatenate([weight for _, weight in parts])

    def _spread(self, source: str, batches: Iterable[Batch], moment: Any) -> tuple[Floats, Floats]:
        """Seconds from due until `moment(batch)`, for records evenly spread over each batch, and what each stands for."""
        pattern = self._patterns.get(source)
        values: list[float] = []
        weights: list[float] = []
        if pattern is None:
            return np.empty(0), np.empty(0)
        for batch in batches:
            taken = batch.last - batch.first
            if not taken > 0:
                continue
            points = int(min(POINTS, taken))
            for point in range(points):
                number = int(batch.first + (point + 0.5) * taken / points)
                values.append(max(0.0, moment(batch) - (batch.load_started + pattern.due(number))))
                weights.append(taken / points)
        return np.array(values), np.array(weights)

    def _window(self, now: float) -> dict[str, list[Batch]]:
        """Batches committed lately, by segment; where none was, the newest, so that an old value shows its age."""
        found = {}
        for segment, recent in self._recent.items():
            lately = [batch for batch in recent if batch.end >= now - WINDOW and batch.rows]
            found[segment] = lately or list(recent)[-1:]
        return found

    def _age(self, now: float) -> float:
        newest = [recent[-1].end for recent in self._recent.values() if recent]
        return max(0.0, now - max(newest)) if newest else 0.0

    def _of_source(self, source: str) -> RunningSegment | None:
        return next((each for each in self._running if source in each.segment.operators), None)

    def _segment_of(self, source: str) -> str:
        return self._layout.stage_of[source].segment

    def load_started(self, source: str) -> float | None:
        """Epoch second at which the load of a shaped source began; None before its first batch."""
        last = self.last(self._segment_of(source))
        return last.load_started if last is not None and last.load_started == last.load_started else None


def weighted_quantile(values: Floats, weights: Floats, q: float) -> float:
    """The smallest value with at least `q` of the weight at or below it; NaN where there is none."""
    if not len(values):
        return NAN
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][min(len(values) - 1, int(np.searchsorted(reached, q * reached[-1] - 1e-12)))])


def _patterns(graph: Graph) -> dict[str, ArrivalPattern]:
    loads = {o.name: getattr(o.endpoint, "load", None) for o in graph.sources}
    return {name: load for name, load in loads.items() if load is not None}


def _rate(batches: Sequence[Batch]) -> float:
    return sum(batch.rows for batch in batches) / _span(batches) if batches else NAN


def _span(batches: Sequence[Batch]) -> float:
    """Wall-clock seconds that a run of batches covers, gaps included."""
    if not batches:
        return NAN
    return max(1e-3, max(batch.end for batch in batches) - min(batch.start for batch in batches))


def _unseen(query: Any, last_seen: int) -> list[dict[str, Any]]:
    """Progress of every batch after `last_seen`, oldest first, fetching no more of them than needed."""
    recent = query._jsq.recentProgress()
    fresh: list[dict[str, Any]] = []
    for position in range(len(recent) - 1, -1, -1):
        progress = recent[position]
        if progress.batchId() <= last_seen:
            break
        if progress.durationMs().containsKey("addBatch"):  # otherwise an idle trigger, which shares the next batch's id
            fresh.append(json.loads(progress.json()))
    return fresh[::-1]


def _batch(segment: str, progress: Mapping[str, Any]) -> Batch:
    started = datetime.fromisoformat(progress["timestamp"]).timestamp()
    source = progress["sources"][0] if progress["sources"] else {}
    first, last = _offset(source.get("startOffset")), _offset(source.get("endOffset"))
    parts = {name: milliseconds / 1e3 for name, milliseconds in progress["durationMs"].items()}
    behind = (source.get("metrics") or {}).get("avgOffsetsBehindLatest")
    if behind is not None:
        parts["behind"] = float(behind)
    return Batch(
        segment=segment,
        id=progress["batchId"],
        start=started,
        seconds=parts["triggerExecution"],
        rows=int(progress["numInputRows"]),
        first=float(first.get("n", 0 if last.get("n") is not None else NAN)),
        last=float(last.get("n", NAN)),
        load_started=float(last.get("started") or NAN),
        parts=parts,
    )


def _offset(value: Any) -> Mapping[str, Any]:
    """An offset as a mapping; sources other than our own have offsets of other shapes, which say nothing here."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _planned_offset(checkpoint: Path, at_least: int) -> Mapping[str, Any] | None:
    """The source's offset in the newest entry of the offset log, which is written when a batch is planned."""
    folder = checkpoint / "offsets"
    for batch in (at_least + 1, at_least):
        try:
            lines = (folder / str(batch)).read_text().splitlines()
        except OSError:
            continue
        return _offset(lines[2]) if len(lines) > 2 else None
    return None
