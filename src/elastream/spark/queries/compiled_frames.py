"""Frames of an observation from the micro-batches of compiled queries: their progress, and the meter in fused stages.

A record's latency is its batch's commit time less the moment from which it counts. Over durable edges that moment leads
back to the sources. Queries report in any order, so a batch waits until its predecessors are known.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from elastream.core.frames import OLD, Floats, Frame, application_frame
from elastream.core.latency import DURATIONS, Basis, figures
from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch
from elastream.dataflow.endpoints import DomainSignal, Nothing
from elastream.dataflow.operators import NATIVE, Edge, Kind, emits_as_many
from elastream.dataflow.stages import Layout
from elastream.recording.paths import modified_at
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.dataflow.edges import edge_name
from elastream.spark.dataflow.sources import timestamp_of
from elastream.spark.queries.segments import RunningSegment, committed_offsets
from elastream.spark.telemetry.batches import (
    WINDOW,
    Batch,
    planned_at,
    planned_offsets,
    rate_of,
    span_of,
)
from elastream.spark.telemetry.origins import Moments, Origin, condensed, mean_age
from elastream.spark.worker.composition import Digit, latest_batch
from elastream.spark.worker.meter import MeterRow

# Newest batches of each query with known moments: batches behind a durable edge may be that far behind.
REMEMBERED_BATCHES = 1000


@dataclass(frozen=True, slots=True)
class BatchMoments:
    """A batch, and the moments of its records by source or edge; None while predecessors are unknown."""

    batch: Batch
    parts: tuple[Moments | None, ...]

    @property
    def whole(self) -> bool:
        return None not in self.parts

    @property
    def moments(self) -> Moments:
        return [moment for part in self.parts if part is not None for moment in part]


class Latencies:
    """Latencies of the records of `running` queries, with one origin for each source. queues: logs of edges."""

    def __init__(self, layout: Layout, running: Sequence[RunningSegment], queues: Mapping[Edge, EdgeLog]) -> None:
        self._running = {each.segment.name: each for each in running}
        self._queues = queues
        self._segment_of = {name: stage.segment for name, stage in layout.stage_of.items()}
        self._batches: dict[str, dict[int, BatchMoments]] = {name: {} for name in self._running}
        self.origins: dict[str, Origin] = {}
        self._stamped: dict[Edge, Origin] = {}
        for each in running:
            for number, inlet in enumerate(each.reads):
                if isinstance(inlet, Edge):
                    if inlet not in queues:
                        self._stamped[inlet] = Origin(number, each.checkpoint, stamped=edge_name(inlet))
                    continue
                source = layout.graph.operator(inlet)
                stamped = inlet if timestamp_of(source.reads) else None
                self.origins[inlet] = Origin(number, each.checkpoint, source.load, stamped, each.places.get(inlet))

    @property
    def basis(self) -> dict[str, Basis]:
        """Basis of recent latencies by source; sources without a batch are missing."""
        return {name: origin.basis for name, origin in self.origins.items() if origin.basis is not None}

    def add_batches(self, fresh: Sequence[Batch]) -> None:
        """Add committed batches, those of each query in order."""
        for batch in fresh:
            running, batches = self._running[batch.query], self._batches[batch.query]
            parts = [None if isinstance(inlet, Edge) else self.origins[inlet].add_batch(batch) for inlet in running.reads]
            batches[batch.id] = BatchMoments(batch, () if batch.stepped else tuple(parts))
            batches.pop(batch.id - REMEMBERED_BATCHES, None)
        for name, running in self._running.items():
            for number, each in self._batches[name].items():
                if not each.whole:
                    self._batches[name][number] = self._completed(running, each)

    def stepped(self) -> None:
        for batches in self._batches.values():
            for number, each in batches.items():
                batches[number] = BatchMoments(each.batch, ())
        for origin in self.origins.values():
            origin.stepped()

    def of(self, batch: Batch) -> BatchMoments | None:
        """Return the moments of a batch; None while incomplete."""
        record = self._batches[batch.query].get(batch.id)
        return record if record is not None and record.parts and record.whole else None

    def ends(self, batch: Batch) -> tuple[float, float]:
        """Return the moments of a batch's oldest and newest record; NaN if there are none or they are unknown."""
        record = self.of(batch)
        reads = self._running[batch.query].reads
        moments = record.moments if record else []
        if len(reads) == 1 and isinstance(reads[0], str):
            return self.origins[reads[0]].ends(batch, moments)
        times = [at for at, _ in moments] or [float("nan")]
        return min(times), max(times)

    def _completed(self, running: RunningSegment, each: BatchMoments) -> BatchMoments:
        parts = [
            self._along(inlet, number, each.batch) if part is None and isinstance(inlet, Edge) else part
            for number, (inlet, part) in enumerate(zip(running.reads, each.parts, strict=True))
        ]
        return BatchMoments(each.batch, tuple(parts))

    def _along(self, edge: Edge, number: int, batch: Batch) -> Moments | None:
        """Return the moments of records that a batch took from a durable edge, if known."""
        before = self._batches[self._segment_of[edge.source]]
        last = max(before, default=-1)
        if (queue := self._queues.get(edge)) is not None:
            queue.refresh()
            written = [
                (before.get(by), by, at, float(n)) for by, at, n in queue.files_between(*batch.source(number).numbers)
            ]
        else:
            newest = max((each.batch.end for each in before.values()), default=0.0)
            moments = self._stamped[edge].add_batch(batch)
            # A batch without known progress wrote the records after the newest known commit.
            written = [(_during(before, at), last + (at > newest), at, weight) for at, weight in moments]
        moments_taken: Moments = []
        for wrote, by, at, weight in written:
            if wrote is not None and not wrote.parts:
                continue  # the clock was set while it ran, or since
            if wrote is not None and wrote.whole and (moments := wrote.moments):
                records = sum(each for _, each in moments)
                moments_taken += [(moment, weight * each / records) for moment, each in moments]
            elif (wrote is None and by > last) or (wrote is not None and not wrote.whole):
                return None  # its progress comes with one of the next looks
            else:
                moments_taken.append((self._before(edge, by, at), weight))
        return condensed(moments_taken)

    def _before(self, edge: Edge, by: int, at: float) -> float:
        """Return the latest arrival of records that batch `by`, whose progress was missed, wrote at second `at`."""
        running = self._running[self._segment_of[edge.source]]
        for inlet in running.reads:
            if isinstance(inlet, str):
                self.origins[inlet].basis = Basis.BOUND
        for number in (by - 1, by):
            try:
                return min(at, modified_at(running.checkpoint / "offsets" / str(number)))
            except OSError:  # cleaned up
                continue
        return at


def _during(batches: Mapping[int, BatchMoments], at: float) -> BatchMoments | None:
    return next((each for each in batches.values() if each.batch.start <= at <= each.batch.end), None)


@dataclass(frozen=True, slots=True)
class _Cost:
    """Measured cost of an alternate: meter seconds per record, records out per record in, epoch second."""

    service_time: float
    selectivity: float
    at: float


class AlternateCosts:
    """Cost and selectivity of each alternate, from the last batches in which it ran."""

    def __init__(self) -> None:
        self._costs: dict[tuple[str, str], _Cost] = {}
        self._digit: Digit | None = None
        self._since: dict[tuple[str, str], int] = {}

    def forget(self, version: int, digit: Digit | None, changed: Mapping[str, Iterable[str]]) -> None:
        """Forget the costs of alternates, by operator, that a version of the code changes; `digit` has it in rows."""
        self._digit = digit
        for name in [(operator, each) for operator, alternates in changed.items() for each in alternates]:
            self._costs.pop(name, None)
            self._since[name] = version

    def add_rows(self, rows: Iterable[tuple[float, MeterRow]]) -> None:
        """Add meter rows of recent batches, each with its batch's end [epoch s]."""
        sums: Mapping[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
        for end, row in rows:
            name = row.operator, row.alternate
            version = self._digit.of(row.code) if self._digit else 0
            if row.alternate and version >= self._since.get(name, 0):
                records = sums[name]
                records[0] += row.rows_in
                records[1] += row.rows_out
                records[2] += row.busy
                records[3] = max(records[3], end)
        for name, (rows_in, emitted, busy, at) in sums.items():
            if rows_in:
                self._costs[name] = _Cost(busy / rows_in, emitted / rows_in, at)

    def frame(self, now: float, core_seconds: Callable[[str], float] = lambda _: 1.0) -> Frame:
        """Return a row per alternate that has run, at epoch second `now`.

        core_seconds: core seconds per meter second of an operator.
        """
        costs = dict(sorted(self._costs.items()))
        ages = [max(0.0, now - cost.at) for cost in costs.values()]
        return Frame(
            tuple(f"{operator}.{alternate}" for operator, alternate in costs),
            {
                Metric.SERVICE_TIME: [cost.service_time * core_seconds(operator) for (operator, _), cost in costs.items()],
                Metric.SELECTIVITY: [cost.selectivity for cost in costs.values()],
                Metric.AGE: ages,
            },
        )


# (seconds that records took, number of records).
Span: TypeAlias = tuple[float, float]


def spans_of(moments: Moments, until: float) -> list[Span]:
    return [(max(0.0, until - at), weight) for at, weight in moments]


def columns_of(spans: Sequence[Span]) -> tuple[Floats, Floats]:
    table = np.array(spans, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def describe_durations(columns: dict[Metric, dict[str, float]], name: str, spans: Sequence[Span]) -> None:
    """Set mean and quantiles of the time that records spent at operator `name`, unless `spans` is empty."""
    if spans:
        latencies = figures(*columns_of(spans))
        for metric, of in DURATIONS.items():
            columns[metric][name] = latencies[of]


NAN = float("nan")


class Telemetry:
    """Reports of the running queries, as frames. `add_batches` and `metered` add what is new.

    Args:
        batches: Last batches of each segment, oldest first; they grow as they are read.
        target_latency: Seconds.
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
        # By source, the query that reads it and its number there; by edge of files, its number.
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
        # Commits of an earlier driver count, too.
        self._before = {each.segment.name: committed_offsets(each.checkpoint) for each in running}
        self.batches = sum(latest_batch(each.checkpoint, "commits") + 1 for each in running)
        self.rows = sum(int(self._start_of(source).get("n", 0)) for source in self._sources)
        self.longest = 0.0

    def after(self, before: "Telemetry") -> "Telemetry":
        self.longest, self._alternates = before.longest, before._alternates
        return self

    def add_batches(self, fresh: Sequence[Batch], now: float) -> None:
        """Add new batches, and measure backlogs at epoch second `now`."""
        self.batches += len(fresh)
        for each, number in self._sources.values():
            rows_taken = (batch.source(number).rows for batch in fresh if batch.query == each.segment.name)
            self.rows += sum(int(rows) for rows in rows_taken if rows > 0)  # NaN: unknown
        self.longest = max([self.longest, *(batch.seconds for batch in fresh)])
        self._latencies.add_batches(fresh)
        for name, (each, _) in self._sources.items():
            if name not in self._patterns:
                self._latencies.origins[name].look(now, not np.isnan(self._planned_at(each)), each.interval)

    def stepped(self, seconds: float, now: float) -> None:
        """Note that the clock was set by `seconds` shortly before epoch second `now`; shift what is dated."""
        self._stepped = now
        self._latencies.stepped()
        for queue in self.queues.values():
            queue.shift(seconds)

    def updated(self, version: int, digit: Digit | None, changed: Mapping[str, Iterable[str]]) -> None:
        self._alternates.forget(version, digit, changed)

    @property
    def latency_basis(self) -> Mapping[str, Basis]:
        return self._latencies.basis

    def metered(self, rows: Iterable[MeterRow]) -> None:
        """Add drained meter rows; a batch's rows arrive together."""
        fresh: dict[tuple[str, int], list[MeterRow]] = defaultdict(list)
        for row in rows:
            fresh[row.segment, row.batch].append(row)
        self._meter |= fresh
        for segment, batch in list(self._meter):
            if (recent := self.recent(segment)) and batch < recent[0].id:
                del self._meter[segment, batch]

    def last(self, segment: str) -> Batch | None:
        return recent[-1] if (recent := self.recent(segment)) else None

    def recent(self, segment: str) -> Sequence[Batch]:
        return self._batches_of.get(segment, ())

    def described(self, batch: Batch, epoch: float) -> MicroBatch:
        """Return a batch as an observation shows it, on a clock that began at `epoch`."""
        # Records behind a durable edge have not reached a sink yet: the batch that writes them to the sink has their
        # latency.
        reached = batch.query in self._ends
        waited = [max(batch.end - moment, 0.0) if reached else NAN for moment in self._latencies.ends(batch)]
        return MicroBatch(batch.query, batch.start - epoch, batch.seconds, float(batch.rows), *waited)

    def due(self, source: str, at: float) -> float:
        """Return the records of a shaped source due by epoch second `at`; NaN if its load is unknown or has not begun."""
        pattern, started = self._patterns.get(source), self.load_started(source)
        return NAN if pattern is None or started is None else float(pattern.count(max(0.0, at - started)))

    def planned(self, source: str) -> float:
        """Return the records of a shaped source in planned batches, committed or not."""
        each, number = self._sources[source]
        offsets = self._planned(each)
        return float(offsets[number].get("n", NAN)) if number < len(offsets) else NAN

    def committed(self, source: str) -> float:
        """Return the records of a shaped source in committed batches; NaN before the first."""
        return float(self._end_of(source).get("n", NAN))

    def backlog(self, source: str, at: float) -> float:
        """Return the records waiting at a source at epoch second `at`: due, or present, and in no batch planned by then."""
        if source in self._patterns:
            planned_since = self._planned_at(self._sources[source][0]) > at  # if a batch is under way
            read = self.committed(source) if planned_since else self.planned(source)
            return max(self.due(source, at) - read, 0.0)  # in this order, NaN stays NaN
        return self._latencies.origins[source].backlog

    def exhausted(self, source: str, at: float) -> bool:
        """Return True if the load of a source has ended and a committed batch has its last record."""
        pattern, started = self._patterns.get(source), self.load_started(source)
        if pattern is None or started is None or not at - started >= pattern.seconds:
            return False
        return self.committed(source) >= pattern.count(pattern.seconds)

    def drained(self) -> bool:
        """Return True if committed batches have read all records of durable edges of files."""
        return not any(
            self.queues[edge].refresh() > self._committed_of(each, edge) for each in self._running for edge in each.edges
        )

    def _committed_of(self, running: RunningSegment, edge: Edge) -> int:
        """Return the committed records of a durable edge."""
        if last := self.last(running.segment.name):
            return last.source(self._numbers[edge]).numbers[1]
        before = self._before[running.segment.name]
        return next((int(offset["n"]) for offset in before if offset.get("edge") == edge_name(edge)), 0)

    def operators(
        self,
        now: float,
        parallelism: Mapping[str, float],
        cores: float,
        used: float = NAN,
        further: Mapping[Metric, Mapping[str, float]] = MappingProxyType({}),
        stretch: float = 1.0,
    ) -> Frame:
        """Return a row per operator.

        Core use that no meter sees is charged to the keyed operators, or to the sources without any, so that the
        operators' busy cores add up to the hosts'.

        Args:
            now: Epoch seconds.
            cores: Cores of all usable hosts.
            used: Busy cores of them.
            stretch: Seconds of a core per CPU second of the meter.
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
        rates = columns[Metric.ARRIVAL_RATE]
        # Declared loads are known at once.
        came = mean_age(
            (rates[source], 0.0 if source in self._patterns else self._latencies.origins[source].arrivals_age)
            for source in self._sources
        )
        age = self._age(now)
        return Frame(
            names,
            {metric: [values.get(name, NAN) for name in names] for metric, values in columns.items()},
            age if age > OLD else {**dict.fromkeys(columns, age), Metric.ARRIVAL_RATE: came},
        )

    def alternates(self, now: float, stretch: float = 1.0) -> Frame:
        window = [batch for batches in self._window(now).values() for batch in batches]
        self._alternates.add_rows(
            (batch.end, row) for batch in window for row in self._meter.get((batch.query, batch.id), ())
        )
        return self._alternates.frame(now, lambda operator: self._core_seconds(operator, stretch))

    def _core_seconds(self, operator: str, stretch: float) -> float:
        """Return the core-seconds of a second on the meter: 1 for operators that wait, else `stretch`."""
        return 1.0 if self._layout.graph.operator(operator).waits else stretch

    def _widths(self, now: float) -> dict[str, float]:
        """Return the number of tasks by operator in the newest batch with records, for stages without a key."""
        widths: dict[str, float] = {}
        for stage in self._layout.stages:
            rows = [
                row.tasks
                for batch in self._window(now).get(stage.segment, ())
                for row in self._meter.get((batch.query, batch.id), ())
                if row.operator in stage.operators
            ]
            if rows and not stage.keyed:
                widths |= dict.fromkeys(stage.operators, float(rows[-1]))
        return widths

    def application(self, now: float, cost: float, further: Mapping[Metric, float] = MappingProxyType({})) -> Frame:
        """Return the row of the whole dataflow. further: metrics from elsewhere."""
        window = self._window(now)
        spans = [
            span
            for segment in self._ends
            for batch in window.get(segment, ())
            if (moments_of := self._latencies.of(batch)) is not None
            for span in spans_of(moments_of.moments, batch.end)
        ]
        latencies = figures(*columns_of(spans), self._target)
        durations = [batch.seconds for batches in window.values() for batch in batches]
        # A long batch, even the first, shows at once that its records are late; with a load, the backlog shows it.
        planned = [self._planned_at(each) for name, (each, _) in self._sources.items() if name not in self._patterns]
        # A batch may be planned after `now` was read.
        going = now - float(np.fmin.reduce([NAN, *(at for at in planned if at <= now)]))
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
            # A record waits at its source until a batch takes it.
            spans = [
                span
                for batch in batches
                if (moments_of := self._latencies.of(batch)) is not None
                for span in spans_of(moments_of.parts[number] or [], batch.start)
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
            # If the operator is a function, the row of the stage that it leads has only the transfer into Python and back.
            own = [row for row in rows if row.alternate] or rows
            records_in, emitted = sum(row.rows_in for row in own), sum(row.rows_out for row in own)
            each = self._core_seconds(name, stretch)
            busy = each * sum(row.busy for row in rows)
            columns[Metric.BUSY_CORES][name] = busy / wall
            columns[Metric.UTILISATION][name] = busy / wall / cores if cores > 0 else NAN
            if records_in:
                columns[Metric.SERVICE_TIME][name] = busy / records_in
            # The row of a source counts what enters the Python stage, whichever source it is from and whatever precedes it.
            if self._layout.graph.operator(name).kind is not Kind.SOURCE:
                columns[Metric.PROCESSED_RATE][name] = records_in / wall
                columns[Metric.EMITTED_RATE][name] = emitted / wall
                columns[Metric.ARRIVAL_RATE].setdefault(name, records_in / wall)
                # A record is handed to a fused operator with its Arrow batch and has passed it when the batch has.
                passed = [(each * row.busy / row.tasks, float(row.rows_in)) for row in own if row.tasks and row.rows_in > 0]
                describe_durations(columns, name, passed)

    def _describe_native(self, now: float, columns: dict[Metric, dict[str, float]]) -> None:
        """Describe native operators, which run unmetered. Columns yield a record each, unless one explodes."""
        graph, window = self._layout.graph, self._window(now)
        for name in graph.order:
            operator = graph.operator(name)
            if any(alternate.form in NATIVE for alternate in operator.alternates):
                arriving = self._arriving(name, columns, window)
                columns[Metric.ARRIVAL_RATE][name] = columns[Metric.PROCESSED_RATE][name] = arriving
                if emits_as_many(operator):
                    columns[Metric.EMITTED_RATE][name] = arriving

    def _arriving(
        self, name: str, columns: Mapping[Metric, Mapping[str, float]], window: Mapping[str, Sequence[Batch]]
    ) -> float:
        """Return the input rate [records/s]: the predecessors' output, or reads from durable edges."""
        graph, segment = self._layout.graph, self._layout.stage_of[name].segment
        return sum(
            rate_of(window.get(segment, ()), self._numbers[edge])
            if edge in self._numbers
            else columns[Metric.EMITTED_RATE].get(edge.source, NAN)
            for edge in graph.inputs[name]
        )

    def _describe_keyed(self, now: float, columns: dict[Metric, dict[str, float]]) -> None:
        window = self._window(now)
        for each in self._running:
            batches = window.get(each.segment.name, ())
            for name in each.keyed:
                arriving = self._arriving(name, columns, window)
                columns[Metric.ARRIVAL_RATE][name] = arriving
                # A function with state counts its input; for aggregates, the arriving records are known.
                columns[Metric.PROCESSED_RATE].setdefault(name, arriving)
                spans = [
                    (max(0.0, batch.end - max(row.last for row in metered)), float(batch.rows))
                    for batch in batches
                    if batch.rows and (metered := self._meter.get((batch.query, batch.id)))
                ]
                describe_durations(columns, name, spans)

    def _describe_edges(self, now: float, columns: dict[Metric, dict[str, float]]) -> None:
        window = self._window(now)
        for each in self._running:
            batches = window.get(each.segment.name, ())
            spent: dict[str, list[tuple[float, float]]] = defaultdict(list)
            queued: dict[str, float] = defaultdict(float)
            oldest: dict[str, float] = {}
            arriving: dict[str, float] = defaultdict(float)
            for edge in each.edges:
                log, number = self.queues[edge], self._numbers[edge]
                queued[edge.target] += self._queue(each, edge)
                arriving[edge.target] += (log.total - log.by(now - WINDOW)) / WINDOW
                age = max(now - log.written(self._committed_of(each, edge)), 0.0)  # in this order, NaN stays NaN
                oldest[edge.target] = np.fmax(oldest.get(edge.target, NAN), age)
                for batch in batches:
                    written = log.files_between(*batch.source(number).numbers)
                    spent[edge.target] += [(batch.end - at, float(rows)) for _, at, rows in written]
                if batches:
                    log.forget(min(batch.source(number).numbers[0] for batch in batches))
            for target, waiting in queued.items():
                columns[Metric.BACKLOG][target], columns[Metric.ARRIVAL_RATE][target] = waiting, arriving[target]
                describe_durations(columns, target, spent[target])
                # A backlog is late before a batch has committed it.
                for metric in (Metric.DURATION, Metric.DURATION_P99):
                    columns[metric][target] = float(np.fmax(columns[metric].get(target, NAN), oldest[target]))

    def _queue(self, running: RunningSegment, edge: Edge) -> float:
        offsets = [offset["n"] for offset in self._planned(running) if offset.get("edge") == edge_name(edge)]
        return float(max(0, self.queues[edge].refresh() - max(offsets, default=0)))

    def _planned(self, running: RunningSegment) -> Sequence[Mapping[str, Any]]:
        last = self.last(running.segment.name)
        return planned_offsets(running.checkpoint, last.id if last else latest_batch(running.checkpoint, "commits"))

    def _charge(self, used: float, columns: dict[Metric, dict[str, float]], cores: float) -> None:
        # Meters cover batches, but hosts' figures cover seconds: metered work may exceed the hosts' for a while.
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
        batches = {}
        for segment, recent in self._batches_of.items():
            lately = [batch for batch in recent if batch.end >= now - WINDOW and batch.rows]
            batches[segment] = lately or list(recent)[-1:]
        return batches

    def _age(self, now: float) -> float:
        newest = [recent[-1].end for recent in self._batches_of.values() if recent]
        return max(0.0, now - max(newest)) if newest else 0.0

    def load_started(self, source: str) -> float | None:
        """Return the epoch second at which the load of a shaped source began; None before its first batch."""
        return float(self._end_of(source).get("started", 0.0)) or None

    def _end_of(self, source: str) -> Mapping[str, Any]:
        each, number = self._sources[source]
        last = self.last(each.segment.name)
        return self._start_of(source) if last is None else last.source(number).end

    def _start_of(self, source: str) -> Mapping[str, Any]:
        each, number = self._sources[source]
        before = self._before[each.segment.name]
        return before[number] if number < len(before) else {}
