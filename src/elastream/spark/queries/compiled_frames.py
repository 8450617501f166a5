"""Turns what Spark reports of its micro-batches into the frames of an observation.

Two sources, each cheap enough for every second: the progress of each query (one gateway call a look), and the meter of the
fused stages. The latency of a record is the commit of its batch less the moment from which it counts (see `latencies`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from elastream.core.frames import Frame, application_frame
from elastream.core.latency import Basis, figures
from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch
from elastream.dataflow.endpoints import DomainSignal, Nothing
from elastream.dataflow.operators import Edge, Form, Kind, emits_as_many
from elastream.dataflow.stages import Layout
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.dataflow.edges import edge_name
from elastream.spark.queries.latencies import Latencies
from elastream.spark.queries.segments import RunningSegment, committed_offsets
from elastream.spark.telemetry.alternates import AlternateCosts
from elastream.spark.telemetry.batches import (
    WINDOW,
    Batch,
    planned_at,
    planned_offsets,
    rate_of,
    span_of,
)
from elastream.spark.telemetry.durations import columns_of, describe_durations, spans_of
from elastream.spark.worker.composition import latest_batch
from elastream.spark.worker.meter import MeterRow

NAN = float("nan")


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
        # Source by source, the query that reads it and its number there; of an edge of files, its number.
        self._sources = {
            inlet: (each, number)
            for each in running
            for number, inlet in enumerate(each.reads)
            if not isinstance(inlet, Edge)
        }
        self._numbers = {inlet: n for each in running for n, inlet in enumerate(each.reads) if isinstance(inlet, Edge)}
        sinks = {sink.name for sink in layout.graph.sinks if not isinstance(sink.writes, DomainSignal | Nothing)}
        self._ends = [each.segment.name for each in running if sinks & set(each.segment.operators)]
        self.queues = {edge: EdgeLog(records) for each in running for edge, records in each.edges.items()}
        self._latencies = Latencies(layout, running, self.queues)
        self._meter: dict[tuple[str, int], list[MeterRow]] = {}
        self._alternates = AlternateCosts()
        self._stepped = -math.inf
        # What an earlier driver committed counts, too.
        self._before = {each.segment.name: committed_offsets(each.checkpoint) for each in running}
        self.batches = sum(latest_batch(each.checkpoint, "commits") + 1 for each in running)
        self.rows = sum(int(self._start_of(source).get("n", 0)) for source in self._sources)
        self.longest = 0.0

    def took(self, fresh: Sequence[Batch], now: float) -> None:
        """Take note of batches that have just been read, and look what waits at epoch second `now`."""
        self.batches += len(fresh)
        for each, number in self._sources.values():
            self.rows += sum(batch.source(number).rows for batch in fresh if batch.query == each.segment.name)
        self.longest = max([self.longest, *(batch.seconds for batch in fresh)])
        self._latencies.took(fresh)
        for name, (each, _) in self._sources.items():
            if name not in self._patterns:
                self._latencies.origins[name].look(now, not np.isnan(self._planned_at(each)), each.interval)

    def stepped(self, seconds: float, now: float) -> None:
        """Take note that the clock was set by `seconds` some time before epoch second `now`: what is dated is so anew."""
        self._stepped = now
        self._latencies.stepped()
        for queue in self.queues.values():
            queue.shift(seconds)

    @property
    def latency_basis(self) -> Mapping[str, Basis]:
        """What latencies were measured from lately, by source."""
        return self._latencies.basis

    def metered(self, rows: Iterable[MeterRow]) -> None:
        """Take what the meter has drained: all of the batches that it tells of."""
        fresh: dict[tuple[str, int], list[MeterRow]] = defaultdict(list)
        for row in rows:
            fresh[row.segment, row.batch].append(row)
        self._meter |= fresh
        for segment, batch in list(self._meter):
            if (recent := self.recent(segment)) and batch < recent[0].id:
                del self._meter[segment, batch]

    def last(self, segment: str) -> Batch | None:
        """The newest committed batch of a segment."""
        return recent[-1] if (recent := self.recent(segment)) else None

    def recent(self, segment: str) -> Sequence[Batch]:
        """The last batches of a segment, oldest first."""
        return self._batches_of.get(segment, ())

    def described(self, batch: Batch, epoch: float) -> MicroBatch:
        """A batch as an observation tells of it, on a clock that began at `epoch`."""
        # What only passes a durable edge has reached nobody yet: the batch that brings it to a sink tells its latency.
        reached = batch.query in self._ends
        waited = [batch.end - moment if reached else NAN for moment in self._latencies.ends(batch)]
        return MicroBatch(batch.query, batch.start - epoch, batch.seconds, float(batch.rows), *waited)

    def due(self, source: str, at: float) -> float:
        """Records of a shaped source due by epoch second `at`; NaN where the load is not known or has not begun."""
        pattern, started = self._patterns.get(source), self.load_started(source)
        return NAN if pattern is None or started is None else float(pattern.count(max(0.0, at - started)))

    def taken(self, source: str) -> float:
        """Records that the newest planned batch of a shaped source has taken, committed or under way."""
        each, number = self._sources[source]
        offsets = self._planned(each)
        return float(offsets[number].get("n", NAN)) if number < len(offsets) else NAN

    def committed(self, source: str) -> float:
        """Records of a shaped source that committed batches have taken; NaN before the first."""
        return float(self._end_of(source).get("n", NAN))

    def backlog(self, source: str, at: float) -> float:
        """Records due, or there, and not taken by any batch that was planned by `at`, an epoch second.

        An observation takes a moment after that, in which a batch may be planned: its records waited at `at`.
        """
        if source in self._patterns:
            planned_since = self._planned_at(self._sources[source][0]) > at  # not where none is under way
            taken = self.committed(source) if planned_since else self.taken(source)
            return max(self.due(source, at) - taken, 0.0)  # in this order, NaN stays NaN
        return self._latencies.origins[source].backlog

    def exhausted(self, source: str, at: float) -> bool:
        """Whether the load of a source has ended and a committed batch has taken the last of it."""
        pattern, started = self._patterns.get(source), self.load_started(source)
        if pattern is None or started is None or not at - started >= pattern.seconds:
            return False
        return self.committed(source) >= pattern.count(pattern.seconds)

    def drained(self) -> bool:
        """Whether all that was written to durable edges of files has been taken by committed batches."""
        for each in self._running:
            last = self.last(each.segment.name)
            before = {offset["edge"]: int(offset["n"]) for offset in self._before[each.segment.name] if "edge" in offset}
            for edge in each.edges:
                taken = last.source(self._numbers[edge]).numbers[1] if last else before.get(edge_name(edge), 0)
                if self.queues[edge].refresh() > taken:
                    return False
        return True

    def operators(
        self,
        now: float,
        parallelism: Mapping[str, float],
        cores: float,
        used: float = NAN,
        further: Mapping[Metric, Mapping[str, float]] = MappingProxyType({}),
        stretch: float = 1.0,
    ) -> Frame:
        """A row per operator. `cores` is what the usable hosts have together, `used` how many of them are busy.

        parallelism, further (other metrics): by operator. stretch: seconds that a core is taken for a meter's CPU second.

        What hosts use and no meter accounts for - the way into Python and back, shuffles, native aggregation - is charged
        to the keyed operators, or to the sources where there are none: the operators' busy cores add up to the hosts'.
        """
        graph = self._layout.graph
        columns: dict[Metric, dict[str, float]] = defaultdict(dict)
        self._describe_sources(now, columns)
        self._describe_metered(now, columns, cores, stretch)
        self._describe_native(now, columns)
        self._describe_keyed(now, columns)
        self._describe_edges(now, columns)
        self._charge(used, columns, cores)
        columns |= {Metric.PARALLELISM: {**self._widths(now), **parallelism}, **{m: dict(v) for m, v in further.items()}}
        names = tuple(graph.by_name)
        return Frame(
            names,
            {metric: [values.get(name, NAN) for name in names] for metric, values in columns.items()},
            self._age(now),
        )

    def alternates(self, now: float, stretch: float = 1.0) -> Frame:
        """A row per alternate that has run: its own cost and selectivity, of cores that are taken as they are now."""
        window = [batch for batches in self._window(now).values() for batch in batches]
        self._alternates.took((batch.end, row) for batch in window for row in self._meter.get((batch.query, batch.id), ()))
        return self._alternates.frame(now, lambda operator: self._taken(operator, stretch))

    def _taken(self, operator: str, stretch: float) -> float:
        """Seconds for which a core is taken for a second of the meter's: those of threads that wait are none of CPU."""
        return 1.0 if self._layout.graph.operator(operator).waits else stretch

    def _widths(self, now: float) -> dict[str, float]:
        """Tasks of the newest batch that took records, by operator, where no composition sets their number."""
        found: dict[str, float] = {}
        for stage in self._layout.stages:
            rows = [
                row.tasks
                for batch in self._window(now).get(stage.segment, ())
                for row in self._meter.get((batch.query, batch.id), ())
                if row.operator in stage.operators
            ]
            if rows and not stage.keyed:
                found |= dict.fromkeys(stage.operators, float(rows[-1]))
        return found

    def application(self, now: float, cost: float, further: Mapping[Metric, float] = MappingProxyType({})) -> Frame:
        """One row: the dataflow as its users see it. further: metrics known elsewhere."""
        window = self._window(now)
        spans = [
            span
            for segment in self._ends
            for batch in window.get(segment, ())
            if (known := self._latencies.of(batch)) is not None
            for span in spans_of(known.moments, batch.end)
        ]
        latencies = figures(*columns_of(spans), self._target)
        durations = [batch.seconds for batches in window.values() for batch in batches]
        # A long batch, be it the first, tells at once that its records are late; a load has its backlog for that.
        planned = [self._planned_at(each) for name, (each, _) in self._sources.items() if name not in self._patterns]
        going = now - float(np.fmin.reduce([NAN, *planned]))
        values: dict[Metric, float] = {
            **further,
            **latencies,
            Metric.LATENCY_P99: float(np.fmax(latencies[Metric.LATENCY_P99], going)),
            Metric.COST: cost,
            Metric.BATCH_DURATION: float(np.median(durations)) if durations else NAN,
            Metric.THROUGHPUT: sum(
                (rate_of(window.get(each.segment.name, ()), number) for each, number in self._sources.values()), 0.0
            ),
            Metric.ARRIVAL_RATE: sum((self._arrivals(source, now) for source in self._sources), 0.0),
            Metric.BACKLOG: sum((self.backlog(source, now) for source in self._sources), 0.0)
            + sum((self._queue(each, edge) for each in self._running for edge in each.edges), 0.0),
        }
        return application_frame(self._layout.graph.name, values, self._age(now))

    def _describe_sources(self, now: float, columns: dict[Metric, dict[str, float]]) -> None:
        window = self._window(now)
        for source, (each, number) in self._sources.items():
            batches = window.get(each.segment.name, ())
            columns[Metric.ARRIVAL_RATE][source] = self._arrivals(source, now)
            columns[Metric.BACKLOG][source] = self.backlog(source, now)
            columns[Metric.PROCESSED_RATE][source] = columns[Metric.EMITTED_RATE][source] = rate_of(batches, number)
            # What a record waits at the source is the time until a batch takes it.
            spans = [
                span
                for batch in batches
                if (known := self._latencies.of(batch)) is not None
                for span in spans_of(known.parts[number] or [], batch.start)
            ]
            describe_durations(columns, source, spans)

    def _describe_metered(self, now: float, columns: dict[Metric, dict[str, float]], cores: float, stretch: float) -> None:
        rows_of: dict[str, list[MeterRow]] = defaultdict(list)
        window = self._window(now)
        batches = {(batch.query, batch.id): batch for each in window.values() for batch in each}
        for key in batches:
            for row in self._meter.get(key, ()):
                rows_of[row.operator].append(row)
        for name, rows in rows_of.items():
            covered = {(row.segment, row.batch) for row in rows}
            wall = span_of([batches[key] for key in covered])
            # Where the operator is a function, the row of the stage that it leads has the way into Python and back only.
            own = [row for row in rows if row.alternate] or rows
            taken, emitted = sum(row.rows_in for row in own), sum(row.rows_out for row in own)
            each = self._taken(name, stretch)
            busy = each * sum(row.busy for row in rows)
            columns[Metric.BUSY_CORES][name] = busy / wall
            columns[Metric.UTILISATION][name] = busy / wall / cores if cores > 0 else NAN
            if taken:
                columns[Metric.SERVICE_TIME][name] = busy / taken
            # The row of a source counts what enters the Python stage, whichever source it is from and whatever precedes it.
            if self._layout.graph.operator(name).kind is not Kind.SOURCE:
                columns[Metric.PROCESSED_RATE][name] = taken / wall
                columns[Metric.EMITTED_RATE][name] = emitted / wall
                columns[Metric.ARRIVAL_RATE].setdefault(name, taken / wall)
                # A record is handed to a fused operator with its Arrow batch and has passed it when the batch has.
                passed = [(each * row.busy / row.tasks, float(row.rows_in)) for row in own if row.tasks and row.rows_in > 0]
                describe_durations(columns, name, passed)

    def _describe_native(self, now: float, columns: dict[Metric, dict[str, float]]) -> None:
        """Column expressions run in the JVM, which no meter sees; each record gives one, unless it is exploded."""
        graph, window = self._layout.graph, self._window(now)
        for name in graph.order:
            operator = graph.operator(name)
            if any(alternate.form is Form.COLUMNS for alternate in operator.alternates):
                arriving = self._arriving(name, columns, window)
                columns[Metric.ARRIVAL_RATE][name] = columns[Metric.PROCESSED_RATE][name] = arriving
                if emits_as_many(operator):
                    columns[Metric.EMITTED_RATE][name] = arriving

    def _arriving(
        self, name: str, columns: Mapping[Metric, Mapping[str, float]], window: Mapping[str, Sequence[Batch]]
    ) -> float:
        """Records/s that an operator got: what those before it emitted, or its query took from durable edges."""
        graph, segment = self._layout.graph, self._layout.stage_of[name].segment
        return sum(
            rate_of(window.get(segment, ()), self._numbers[edge])
            if edge in self._numbers
            else columns[Metric.EMITTED_RATE].get(edge.source, NAN)
            for edge in graph.inputs[name]
        )

    def _describe_keyed(self, now: float, columns: dict[Metric, dict[str, float]]) -> None:
        """A keyed operator takes a record when the stage before it ends, and has passed it when the batch commits."""
        window = self._window(now)
        for each in self._running:
            batches = window.get(each.segment.name, ())
            for name in each.keyed:
                arriving = self._arriving(name, columns, window)
                columns[Metric.ARRIVAL_RATE][name] = arriving
                # A function with state counts what it takes; of aggregates it is known what comes.
                columns[Metric.PROCESSED_RATE].setdefault(name, arriving)
                spans = [
                    (max(0.0, batch.end - max(row.last for row in metered)), float(batch.rows))
                    for batch in batches
                    if batch.rows and (metered := self._meter.get((batch.query, batch.id)))
                ]
                describe_durations(columns, name, spans)

    def _describe_edges(self, now: float, columns: dict[Metric, dict[str, float]]) -> None:
        """What a durable edge leads to has a queue of its own: a record is in it from being written to being committed."""
        window = self._window(now)
        for each in self._running:
            batches = window.get(each.segment.name, ())
            spent: dict[str, list[tuple[float, float]]] = defaultdict(list)
            queued: dict[str, float] = defaultdict(float)
            arriving: dict[str, float] = defaultdict(float)
            for edge in each.edges:
                log, number = self.queues[edge], self._numbers[edge]
                queued[edge.target] += self._queue(each, edge)
                arriving[edge.target] += (log.total - log.by(now - WINDOW)) / WINDOW
                for batch in batches:
                    written = log.wrote(*batch.source(number).numbers)
                    spent[edge.target] += [(batch.end - at, float(rows)) for _, at, rows in written]
                if batches:
                    log.forget(min(batch.source(number).numbers[0] for batch in batches))
            for target, waiting in queued.items():
                columns[Metric.BACKLOG][target], columns[Metric.ARRIVAL_RATE][target] = waiting, arriving[target]
                describe_durations(columns, target, spent[target])

    def _queue(self, running: RunningSegment, edge: Edge) -> float:
        """Records on a durable edge of files that no batch has taken."""
        taken = [offset["n"] for offset in self._planned(running) if offset.get("edge") == edge_name(edge)]
        return float(max(0, self.queues[edge].refresh() - max(taken, default=0)))

    def _planned(self, running: RunningSegment) -> Sequence[Mapping[str, Any]]:
        last = self.last(running.segment.name)
        return planned_offsets(running.checkpoint, last.id if last else latest_batch(running.checkpoint, "commits"))

    def _charge(self, used: float, columns: dict[Metric, dict[str, float]], cores: float) -> None:
        # Meters speak of batches and hosts of seconds: what the first tell may be more for a while, and nothing is left.
        rest = max(used - sum(columns[Metric.BUSY_CORES].values()), 0.0)  # in this order, NaN stays NaN
        keyed = [name for each in self._running for name in each.keyed]
        payers = keyed or list(self._sources)
        if not rest >= 0:
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
            return self._latencies.origins[source].arrivals
        started = self.load_started(source)
        return NAN if started is None else self._patterns[source].rate(max(0.0, now - started))

    def _planned_at(self, running: RunningSegment) -> float:
        planned = planned_at(running.checkpoint, last.id if (last := self.last(running.segment.name)) else None)
        return planned if not planned < self._stepped else NAN

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

    def load_started(self, source: str) -> float | None:
        """Epoch second at which the load of a shaped source began; None before its first batch."""
        return float(self._end_of(source).get("started", 0.0)) or None

    def _end_of(self, source: str) -> Mapping[str, Any]:
        """The offset up to which committed batches have taken a source, also those of an earlier driver; else nothing."""
        each, number = self._sources[source]
        last = self.last(each.segment.name)
        return self._start_of(source) if last is None else last.source(number).end

    def _start_of(self, source: str) -> Mapping[str, Any]:
        """The same, as it was when this driver began."""
        each, number = self._sources[source]
        before = self._before[each.segment.name]
        return before[number] if number < len(before) else {}
