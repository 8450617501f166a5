"""Turns what Spark reports of its micro-batches into the frames of an observation.

Three sources, each cheap enough for every second: the progress of each query (one gateway call a new batch), the meter of
the fused stages, and the arrival pattern itself, which knows when each record of a shaped load was due. The latency of a
record is the commit of its batch less the moment it was due: computed here from offsets, with no stamp on any record.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from elastream.model.graph import Edge, Kind
from elastream.model.observation import Floats, Frame, Metric, MicroBatch
from elastream.model.stages import Layout
from elastream.spark.dataflow.edges import EdgeLog, edge_name
from elastream.spark.queries.compiler import RunningSegment
from elastream.spark.telemetry.batches import WINDOW, Batch, planned_offsets, rate_of, span_of
from elastream.spark.worker.meter import MeterRow

__all__ = ["Telemetry", "weighted_quantile"]

POINTS = 32
"""Records of a batch whose latency is computed, evenly spread; the rest lie between them."""
NAN = float("nan")
Span: TypeAlias = tuple[float, float]
"""Seconds that records took, and how many these are."""


class Telemetry:
    """What the running queries have reported so far, as frames.

    batches: the last ones of each segment, oldest first, by its name; they grow as they are read. `took` and `metered` tell
    of what is new; the rest is arithmetic on it.
    """

    def __init__(
        self,
        layout: Layout,
        running: Sequence[RunningSegment],
        batches: Mapping[str, Sequence[Batch]],
        target_latency: float | None,
    ) -> None:
        self._layout = layout
        self._running = tuple(running)
        self._batches_of = batches
        self._target = target_latency
        self._patterns = layout.graph.loads
        self._source_of = {
            each.segment.name: name
            for each in running
            for name in each.segment.operators
            if layout.graph.operator(name).kind is Kind.SOURCE
        }
        self._queues = {edge: EdgeLog(channel.records) for each in running for edge, channel in each.edges.items()}
        self._meter: dict[tuple[str, int], list[MeterRow]] = defaultdict(list)
        self.batches = 0
        self.rows = 0
        self.longest = 0.0

    def took(self, fresh: Sequence[Batch]) -> None:
        """Count batches that have just been read."""
        self.batches += len(fresh)
        self.rows += sum(batch.rows for batch in fresh if batch.query in self._source_of)
        self.longest = max([self.longest, *(batch.seconds for batch in fresh)])

    def metered(self, rows: Iterable[MeterRow]) -> None:
        """Take what the meter has drained."""
        for row in rows:
            self._meter[row.segment, row.batch].append(row)
        for segment, batch in list(self._meter):
            if (recent := self.recent(segment)) and batch < recent[0].id:
                del self._meter[segment, batch]

    def last(self, segment: str) -> Batch | None:
        """The newest committed batch of a segment."""
        recent = self._batches_of.get(segment)
        return recent[-1] if recent else None

    def recent(self, segment: str) -> Sequence[Batch]:
        """The last batches of a segment, oldest first."""
        return self._batches_of.get(segment, ())

    def described(self, batch: Batch, epoch: float) -> MicroBatch:
        """A batch as an observation tells of it, on a clock that began at `epoch`."""
        pattern = self._patterns.get(self._source_of.get(batch.query, ""))
        waited = [NAN, NAN]
        if pattern is not None and batch.last > batch.first:
            numbers = (int(batch.first), int(batch.last) - 1)
            waited = [batch.end - (batch.load_started + pattern.due(number)) for number in numbers]
        return MicroBatch(batch.query, batch.start - epoch, batch.seconds, float(batch.rows), *waited)

    def due(self, source: str, at: float) -> float:
        """Records of a shaped source due by epoch second `at`; NaN where the load is not known or has not begun."""
        pattern, started = self._patterns.get(source), self.load_started(source)
        return NAN if pattern is None or started is None else float(pattern.count(max(0.0, at - started)))

    def taken(self, source: str) -> float:
        """Records that the newest planned batch of a shaped source has taken, committed or under way."""
        running = next((each for each in self._running if source in each.segment.operators), None)
        offsets = self._planned(running) if running else ()
        return next((float(offset["n"]) for offset in offsets if "n" in offset and "edge" not in offset), NAN)

    def backlog(self, source: str, at: float) -> float:
        """Records due and not taken by any batch."""
        if source in self._patterns:
            return max(self.due(source, at) - self.taken(source), 0.0)  # in this order, NaN stays NaN
        last = self.last(self._segment_of(source))
        return last.behind if last else NAN

    def exhausted(self, source: str, at: float) -> bool:
        """Whether the load of a source has ended and a committed batch has taken the last of it."""
        pattern, last = self._patterns.get(source), self.last(self._segment_of(source))
        if pattern is None or last is None or not at - last.load_started >= pattern.seconds:
            return False
        return last.last >= pattern.count(pattern.seconds)

    def drained(self) -> bool:
        """Whether all that was written to durable edges of files has been taken by committed batches."""
        for each in self._running:
            last = self.last(each.segment.name)
            for edge in each.edges:
                _, taken = last.taken.get(edge_name(edge), (0, 0)) if last else (0, 0)
                if self._queues[edge].refresh() > taken:
                    return False
        return True

    def operators(
        self,
        now: float,
        parallelism: Mapping[str, float],
        cores: float,
        used: float = NAN,
        scalings: Mapping[str, float] = MappingProxyType({}),
    ) -> Frame:
        """A row per operator. `cores` is what the usable hosts have together, `used` how many of them are busy.

        parallelism, scalings: by operator.

        What hosts use and no meter accounts for - the way into Python and back, shuffles, native aggregation - is charged
        to the keyed operators, or to the sources where there are none: the operators' busy cores add up to the hosts'.
        """
        graph = self._layout.graph
        columns: dict[Metric, dict[str, float]] = defaultdict(dict)
        self._describe_sources(now, columns)
        self._describe_metered(now, columns, cores)
        self._describe_keyed(now, columns)
        self._describe_edges(now, columns)
        self._charge(used, columns, cores)
        columns[Metric.PARALLELISM], columns[Metric.SCALINGS] = dict(parallelism), dict(scalings)
        names = tuple(graph.by_name)
        return Frame(
            names,
            {metric: [values.get(name, NAN) for name in names] for metric, values in columns.items()},
            self._age(now),
        )

    def application(self, now: float, cost: float) -> Frame:
        """One row: the dataflow as its users see it."""
        window, sources = self._window(now), self._source_of.values()
        spans = [
            span
            for segment, source in self._source_of.items()
            for span in self._spread(source, window.get(segment, ()), lambda batch: batch.end)
        ]
        latencies, weights = _columns(spans)
        durations = [batch.seconds for batches in window.values() for batch in batches]
        values: dict[Metric, float] = {
            Metric.COST: cost,
            Metric.LATENCY_P50: weighted_quantile(latencies, weights, 0.5),
            Metric.LATENCY_P99: weighted_quantile(latencies, weights, 0.99),
            Metric.LATENCY: float(np.average(latencies, weights=weights)) if len(latencies) else NAN,
            Metric.BATCH_DURATION: float(np.median(durations)) if durations else NAN,
            Metric.THROUGHPUT: sum((rate_of(window.get(segment, ())) for segment in self._source_of), 0.0),
            Metric.ARRIVAL_RATE: sum((self._arrivals(source, now) for source in sources), 0.0),
            Metric.BACKLOG: sum((self.backlog(source, now) for source in sources), 0.0)
            + sum((self._queue(each, edge) for each in self._running for edge in each.edges), 0.0),
        }
        if self._target is not None and len(latencies):
            values[Metric.COMPLIANCE] = float(weights[latencies <= self._target].sum() / weights.sum())
        return Frame((self._layout.graph.name,), {metric: [value] for metric, value in values.items()}, self._age(now))

    def _describe_sources(self, now: float, columns: dict[Metric, dict[str, float]]) -> None:
        for segment, source in self._source_of.items():
            batches = self._window(now).get(segment, ())
            columns[Metric.ARRIVAL_RATE][source] = self._arrivals(source, now)
            columns[Metric.BACKLOG][source] = self.backlog(source, now)
            columns[Metric.PROCESSED_RATE][source] = columns[Metric.EMITTED_RATE][source] = rate_of(batches)
            # What a record waits at the source is the time until a batch takes it.
            _describe_durations(columns, source, self._spread(source, batches, lambda batch: batch.start))

    def _describe_metered(self, now: float, columns: dict[Metric, dict[str, float]], cores: float) -> None:
        rows_of: dict[str, list[MeterRow]] = defaultdict(list)
        window = self._window(now)
        batches = {(batch.query, batch.id): batch for each in window.values() for batch in each}
        for key in batches:
            for row in self._meter.get(key, ()):
                rows_of[row.operator].append(row)
        for name, rows in rows_of.items():
            covered = {(row.segment, row.batch) for row in rows}
            wall = span_of([batches[key] for key in covered])
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
            if self._layout.graph.operator(name).kind is not Kind.SOURCE:
                passed = [(row.busy / row.tasks, float(row.rows_in)) for row in rows if row.tasks and row.rows_in > 0]
                _describe_durations(columns, name, passed)

    def _describe_keyed(self, now: float, columns: dict[Metric, dict[str, float]]) -> None:
        """A keyed operator takes a record when the stage before it ends, and has passed it when the batch commits."""
        window = self._window(now)
        for each in self._running:
            batches = window.get(each.segment.name, ())
            for name in each.keyed:
                feeding = [edge.source for edge in self._layout.graph.inputs[name]]
                arriving = sum(columns[Metric.EMITTED_RATE].get(source, NAN) for source in feeding)
                columns[Metric.ARRIVAL_RATE][name] = columns[Metric.PROCESSED_RATE][name] = arriving
                spans = [
                    (max(0.0, batch.end - max(row.last for row in metered)), float(batch.rows))
                    for batch in batches
                    if batch.rows and (metered := self._meter.get((batch.query, batch.id)))
                ]
                _describe_durations(columns, name, spans)

    def _describe_edges(self, now: float, columns: dict[Metric, dict[str, float]]) -> None:
        """What a durable edge leads to has a queue of its own: a record is in it from being written to being committed."""
        window = self._window(now)
        for each in self._running:
            batches = window.get(each.segment.name, ())
            spent: dict[str, list[tuple[float, float]]] = defaultdict(list)
            queued: dict[str, float] = defaultdict(float)
            arriving: dict[str, float] = defaultdict(float)
            for edge in each.edges:
                log, name = self._queues[edge], edge_name(edge)
                queued[edge.target] += self._queue(each, edge)
                arriving[edge.target] += (log.total - log.by(now - WINDOW)) / WINDOW
                for batch in batches:
                    first, last = batch.taken.get(name, (0, 0))
                    spent[edge.target] += [(batch.end - log.written(n), weight) for n, weight in _points(first, last)]
                if batches:
                    log.forget(min(batch.taken.get(name, (0, 0))[0] for batch in batches))
            for target, waiting in queued.items():
                columns[Metric.BACKLOG][target], columns[Metric.ARRIVAL_RATE][target] = waiting, arriving[target]
                _describe_durations(columns, target, spent[target])

    def _queue(self, running: RunningSegment, edge: Edge) -> float:
        """Records on a durable edge of files that no batch has taken."""
        taken = [offset["n"] for offset in self._planned(running) if offset.get("edge") == edge_name(edge)]
        return float(max(0, self._queues[edge].refresh() - max(taken, default=0)))

    def _planned(self, running: RunningSegment) -> Sequence[Mapping[str, Any]]:
        return planned_offsets(running.checkpoint, last.id if (last := self.last(running.segment.name)) else -1)

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
            return rate_of(self._window(now).get(self._segment_of(source), ()))
        started = self.load_started(source)
        return NAN if started is None else self._patterns[source].rate(max(0.0, now - started))

    def _spread(self, source: str, batches: Iterable[Batch], moment: Callable[[Batch], float]) -> list[Span]:
        """Seconds from due until `moment(batch)`, for records evenly spread over each batch, and the weight of each."""
        pattern = self._patterns.get(source)
        return [
            (max(0.0, moment(batch) - (batch.load_started + pattern.due(number))), weight)
            for batch in batches
            if pattern is not None and batch.last > batch.first
            for number, weight in _points(batch.first, batch.last)
        ]

    def _window(self, now: float) -> dict[str, list[Batch]]:
        """Batches committed lately, by segment; where none was, the newest, so that an old value shows its age."""
        found = {}
        for segment, recent in self._batches_of.items():
            lately = [batch for batch in recent if batch.end >= now - WINDOW and batch.rows]
            found[segment] = lately or list(recent)[-1:]
        return found

    def _age(self, now: float) -> float:
        newest = [recent[-1].end for recent in self._batches_of.values() if recent]
        return max(0.0, now - max(newest)) if newest else 0.0

    def _segment_of(self, source: str) -> str:
        return self._layout.stage_of[source].segment

    def load_started(self, source: str) -> float | None:
        """Epoch second at which the load of a shaped source began; None before its first batch."""
        last = self.last(self._segment_of(source))
        return last.load_started if last is not None and last.load_started == last.load_started else None


def _points(first: float, last: float) -> list[tuple[int, float]]:
    """Numbers of up to POINTS records, evenly spread from `first` to `last` (exclusive), and for how many each stands."""
    points = int(min(POINTS, last - first))
    return [(int(first + (point + 0.5) * (last - first) / points), (last - first) / points) for point in range(points)]


def _columns(spans: Sequence[Span]) -> tuple[Floats, Floats]:
    table = np.array(spans, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _describe_durations(columns: dict[Metric, dict[str, float]], name: str, spans: Sequence[Span]) -> None:
    """Mean and quantiles of the time that records spent at the operator `name`; unknown where there are none."""
    if spans:
        seconds, weights = _columns(spans)
        columns[Metric.DURATION][name] = float(np.average(seconds, weights=weights))
        columns[Metric.DURATION_P50][name] = weighted_quantile(seconds, weights, 0.5)
        columns[Metric.DURATION_P99][name] = weighted_quantile(seconds, weights, 0.99)


def weighted_quantile(values: Floats, weights: Floats, q: float) -> float:
    """The smallest value with at least `q` of the weight at or below it; NaN where there is none."""
    if not len(values):
        return NAN
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][min(len(values) - 1, int(np.searchsorted(reached, q * reached[-1] - 1e-12)))])
