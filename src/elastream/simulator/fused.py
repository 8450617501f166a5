"""Simulation of fused dataflows as on Spark: queries of micro-batches.

Queries share the cores of their hosts and feed each other, so their batches begin and end in the order of time.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from elastream.core.composition import Consistency, changed_operators
from elastream.core.frames import Floats
from elastream.core.observation import Composition, MicroBatch
from elastream.core.qos import live_edges, offered_rates
from elastream.dataflow.compiling import check_durable_edges
from elastream.dataflow.endpoints import DomainSignal
from elastream.dataflow.key_table import KeyTables
from elastream.dataflow.stages import Layout, Segment, Stage
from elastream.errors import InputError
from elastream.simulator import batching
from elastream.simulator.arrivals import PIECES, Emissions, Load, Source, load_of
from elastream.simulator.batching import Turn
from elastream.simulator.costs import Demand, costs_of, shares_in
from elastream.simulator.links import EdgeTraffic
from elastream.simulator.microbatch import FusedSegment, StageStation
from elastream.simulator.pool import SimulatedHosts
from elastream.simulator.settings import Settings
from elastream.simulator.stations import Items
from elastream.simulator.updates import PendingUpdate, Updates, ahead, updated_fractions
from elastream.units import ROUNDING

# The log of a query keeps this many batches, and all of the last seconds.
RECENT, KEPT = 200, 10.0


@dataclass(frozen=True)
class Periods:
    """Figures of the monitoring periods closed in one advance, a row each.

    Attributes:
        tables: By query; columns as in `batching`.
    """

    ends: Floats
    tables: Mapping[str, Floats]
    worked: Floats
    offered: Mapping[str, Floats]
    active: int
    usable: float


class Reports(Sequence[MicroBatch]):
    def __init__(self, rows: Sequence[tuple[str, Floats]]) -> None:
        self._rows = rows

    @cached_property
    def _all(self) -> tuple[MicroBatch, ...]:
        new, unknown = tuple.__new__, math.nan  # a named tuple's own constructor takes twice as long
        return tuple(new(MicroBatch, (name, *row, unknown, unknown)) for name, rows in self._rows for row in rows.tolist())

    @overload
    def __getitem__(self, number: int) -> MicroBatch: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[MicroBatch, ...]: ...
    def __getitem__(self, number: int | slice) -> MicroBatch | tuple[MicroBatch, ...]:
        return self._all[number]

    def __iter__(self) -> Iterator[MicroBatch]:
        return iter(self._all)

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self._rows)

    def __repr__(self) -> str:
        return repr(self._all)


class FusedNetwork:
    """All queries of a fused dataflow; interchangeable with `QueueNetwork`, with stages as stations."""

    cohorts = True

    def __init__(
        self,
        layout: Layout,
        loads: Mapping[str, Load],
        settings: Settings,
        seed: int,
        seconds: float,
        tables: KeyTables,
    ) -> None:
        self.layout = layout
        self.graph = layout.graph
        self.settings = settings
        self.tables = tables
        check_durable_edges(layout)
        if settings.consistency in (Consistency.WAVE, Consistency.DRAIN) and layout.circular:
            raise InputError(
                f"dataflow {layout.graph.name!r}: its queries feed each other in a circle, so that no wave of records "
                "ends and no query is drained before the other: use consistency batch"
            )
        piece = min(settings.monitor / PIECES, settings.batch_seconds / 4)
        self.step = min(settings.monitor, settings.batch_seconds) / 4
        self.sources = {s.name: Source(load_of(s, loads, seconds), piece) for s in self.graph.sources}
        self.stations: tuple[StageStation, ...] = tuple(
            StageStation(stage, stream, self._limit(stage), settings, seed) for stream, stage in enumerate(layout.stages)
        )
        self.by_name = {station.name: station for station in self.stations}
        self.epoch = 0
        self.composition = Composition.default(self.graph)
        self.demands = {0: self._demands(0, self.composition)}
        self.segments = {
            each.name: FusedSegment(each, self.by_name, settings, seed, stream, self.demands[0][each.name])
            for stream, each in enumerate(layout.segments)
        }
        self.entered = dict.fromkeys(self.segments, 0.0)
        self._read_by = {
            name: [each for each in segment.segment.operators if each in self.sources]
            for name, segment in self.segments.items()
        }
        for segment in self.segments.values():
            loads_of = [self.sources[name].load for name in self._read_by[segment.segment.name]]
            if loads_of:
                segment.govern(sum(_first_rate(load, settings.batch_seconds) for load in loads_of))
        self.target = math.inf
        self.committed = 0.0
        self.periods = 0
        self.closed: Periods | None = None
        self.reports: list[tuple[str, Floats]] = []
        self.latencies: list[Items] = []
        self.updates = Updates()
        self.signalled: dict[str, float] = {}
        self.ran: dict[tuple[str, str], float] = {}

    @property
    def scalable(self) -> frozenset[str]:
        return self.layout.simulated_scalable

    def _limit(self, stage: Stage) -> float | None:
        promised = [self.graph.by_name[name].max_duration for name in stage.operators]
        return min((each for each in promised if each is not None), default=None)

    # -- compositions --------------------------------------------------------------------------------------------------

    @property
    def effective(self) -> dict[str, Composition]:
        """Composition of the last committed batch, by query."""
        return {name: each.effective for name, each in self.segments.items() if each.effective is not None}

    @property
    def changing(self) -> bool:
        return any(segment.demand.epoch < self.epoch for segment in self.segments.values())

    def follows(self, query: str) -> bool:
        """Return True if `query` runs and takes next only the newest composition."""
        segment = self.segments[query]
        return min(segment.oldest, segment.demand.epoch) == self.epoch

    def resize(self, composition: Composition) -> None:
        """Adopt the parallelism of `composition` with the next batches."""
        self.composition = composition
        for epoch, demands in self.demands.items():
            for name, demand in demands.items():
                newest = epoch == self.epoch
                other = demand.composition
                whole = composition if newest else Composition(
                    other.version, other.alternates, other.choices, composition.parallelism, other.tables
                )  # fmt: skip
                demands[name] = demand._replace(composition=whole)
        for name, segment in self.segments.items():
            segment.demand = self.demands[segment.demand.epoch][name]

    def compose(self, composition: Composition, now: float) -> None:
        mode = self.settings.consistency
        update = PendingUpdate(self.epoch + 1, composition.version, now)
        changed = changed_operators(self.graph, self.composition, composition)
        update.waiting = {self.layout.stage_of[name].segment for name in changed}
        if mode in (Consistency.BATCH, Consistency.REWIRED):
            update.mixed = self._mixed(changed, composition, at_once=mode is Consistency.REWIRED)
        self.updates.request(update)
        oldest = min(segment.demand.epoch for segment in self.segments.values())
        self.demands = {epoch: each for epoch, each in self.demands.items() if epoch >= oldest}
        self.epoch, self.composition = self.epoch + 1, composition
        self.demands[self.epoch] = self._demands(self.epoch, composition)
        for name, segment in self.segments.items():
            if mode is Consistency.DRAIN:
                if not segment.segment.inputs:
                    segment.hold(self.epoch)
            elif mode is not Consistency.WAVE or not segment.segment.inputs:
                segment.turn(self.demands[self.epoch][name], at_once=mode is Consistency.REWIRED)

    def _demands(self, epoch: int, composition: Composition) -> dict[str, Demand]:
        shares = shares_in(self.graph, self.settings, composition, self.tables)
        costs = costs_of(self.graph, self.settings, shares)
        selectivity = {name: each.selectivity for name, each in costs.items()}
        live = live_edges(self.graph, composition)
        demands = {}
        for segment in self.layout.segments:
            entries = self._entries(segment)
            # Assumption: each entry operator of the segment gets an equal share of its records.
            volumes = offered_rates(self.graph, {o: 1 / len(entries) for o in entries}, selectivity, composition)
            sinks = [sink for sink in self.graph.sinks if sink.name in segment.operators]
            demands[segment.name] = Demand(
                epoch,
                composition,
                {
                    stage.name: sum(volumes[o] * costs[o].work for o in stage.operators if o in costs)
                    for stage in segment.stages
                },
                {stage.name: volumes[stage.name] for stage in segment.stages},
                {
                    edge: volumes[name] * selectivity.get(name, 1.0) * part
                    for name in segment.operators
                    for edge, part in live[name]
                    if edge.durable is not None
                },
                sum(volumes[sink.name] for sink in sinks if not isinstance(sink.writes, DomainSignal)),
                tuple(s.writes.name for s in sinks if isinstance(s.writes, DomainSignal) and volumes[s.name] > 0),
                tuple(
                    (name, alternate)
                    for name in segment.operators
                    if volumes[name] > 0 and name in costs
                    for alternate in shares[name]
                ),
            )
        return demands

    def _entries(self, segment: Segment) -> list[str]:
        read = {edge.target for edge in segment.inputs}
        return [name for name in segment.operators if name in self.sources or name in read]

    def _mixed(self, changed: frozenset[str], after: Composition, *, at_once: bool) -> float:
        costs = costs_of(self.graph, self.settings, shares_in(self.graph, self.settings, self.composition, self.tables))
        rates = {name: max(source.offered, ROUNDING) for name, source in self.sources.items()}
        met = updated_fractions(
            self.graph, rates, {name: each.selectivity for name, each in costs.items()}, self.composition, changed
        )
        before = ahead(self.graph, after, changed)
        mixed = 0.0
        for segment in self.segments.values():
            entries = self._entries(segment.segment)
            mixed += segment.leader.queued * sum(met.arriving[entry] for entry in entries if entry in before) / len(entries)
            if not segment.marks[batching.RUNNING]:
                continue
            records = float(segment.state[batching.BATCH_SIZE])
            if at_once and changed.intersection(segment.segment.operators):
                mixed += records
            else:
                out = segment.running.out.items()
                mixed += records * sum(part * met.leaving[edge.source] for edge, part in out if edge.target in before)
        return mixed

    def _turn(self) -> None:
        if self.settings.consistency is Consistency.DRAIN:
            under_way = any(segment.marks[batching.RUNNING] or segment.waits for segment in self.segments.values())
            for name, segment in {} if under_way else self.segments.items():
                segment.turn(self.demands[self.epoch][name])
            return
        for name, segment in self.segments.items():
            before = [self.segments[self.layout.stage_of[edge.source].segment].oldest for edge in segment.segment.inputs]
            newest = min(before, default=self.epoch)
            if newest > segment.demand.epoch and not segment.waits:
                coming = min((epoch for epoch, _ in segment.later if epoch <= newest), default=newest)
                segment.turn(self.demands[coming][name])

    def fork(self) -> "FusedNetwork":
        other = copy.copy(self)
        other.stations = tuple(copy.copy(station) for station in self.stations)
        for station in other.stations:
            station.total = copy.copy(station.total)
        other.by_name = {station.name: station for station in other.stations}
        other.segments = {name: segment.fork(other.by_name) for name, segment in self.segments.items()}
        other.sources = {name: copy.copy(source) for name, source in self.sources.items()}
        other.entered, other.ran, other.signalled = dict(self.entered), dict(self.ran), dict(self.signalled)
        other.reports = list(self.reports)
        return other

    @property
    def steady(self) -> bool:
        return not self.updates.running and all(segment.steady for segment in self.segments.values())

    # -- time ----------------------------------------------------------------------------------------------------------

    def advance(self, begin: float, end: float, pool: SimulatedHosts) -> None:
        """Advance all queries; `closed` receives the periods that end by `end`."""
        monitor = self.settings.monitor
        if self.changing:
            self._turn()
        last = round(end / monitor)
        last -= last * monitor > end
        ends = np.append(np.arange(self.periods + 1, last + 1) * monitor, math.inf)
        self.periods = max(last, self.periods)
        worked = np.zeros((ends.size, len(pool)))
        worked[0] = pool.worked[: len(pool)]
        interval = pool.speed_slot(begin)
        count, hosts = len(self.segments), len(pool)
        until, used = np.zeros(count), np.zeros((count, hosts))
        turn = Turn(ends, worked, pool.speeds(begin), interval, begin, end, self.target, until, used)
        before = {name: (segment.open[0].copy(), segment.log.shape[0]) for name, segment in self.segments.items()}
        offered = {}
        for segment in sorted(self.segments.values(), key=lambda each: float(each.state[batching.CHARGED])):
            segment.begin(pool, turn)
        for name in self.segments:
            for source in self._read_by[name]:
                so_far, flow = self.sources[source].offered, self.sources[source].until(end)
                reach = np.empty(flow.times.size + 1)
                reach[0], reach[1:] = so_far, so_far + flow.counts.cumsum()
                offered[source] = reach[flow.times.searchsorted(ends[:-1])]
                self._deliver(name, self.epoch, flow, turn)
        self._take_turns(pool, turn)
        tables = {}
        for name, segment in self.segments.items():
            self._run(segment, pool, turn)
            segment.end()
            opened, logged = before[name]
            tables[name] = segment.table
            self._count(segment, segment.table.sum(axis=0) - opened)
            report = segment.log[logged:].copy()
            if not segment.demand.results > 0:  # records behind a durable edge have not reached a sink yet
                report[:, 3:] = math.nan
            self.reports.append((name, report))
            recent = int((segment.log[:, 0] + segment.log[:, 1]).searchsorted(ends[0] - KEPT))
            segment.log = segment.log[max(0, min(recent, segment.log.shape[0] - RECENT)) :]
        pool.worked[: len(pool)] = worked[-1]
        if self.updates.running:
            self.updates.settle(min(segment.oldest for segment in self.segments.values()))
        self.closed = None
        if ends.size > 1:
            closed = {name: table[:-1] for name, table in tables.items()}
            self.closed = Periods(ends[:-1], closed, worked[:-1], offered, len(pool.active), pool.running_cores)

    def _take_turns(self, pool: SimulatedHosts, turn: Turn) -> None:
        """Begin and end batches of several queries in the order of time."""
        # If two triggers coincide, the downstream query comes first: it plans no read of a source.
        queries = [*self.segments.values()][::-1]
        while len(queries) > 1 or queries[0].segment.outputs:
            due = [query.due(pool, turn) for query in queries]
            at = min(due)
            if not at < turn.end:
                return
            self._run(queries[due.index(at)], pool, turn._replace(end=math.nextafter(at, math.inf)))

    def _run(self, segment: FusedSegment, pool: SimulatedHosts, turn: Turn) -> None:
        for demand, records, since, until, done in segment.run(pool, turn):
            self.committed += records * demand.results
            for station in segment.stations:
                station.total.done += records * demand.volume[station.name]
                station.total.emitted += records * demand.volume[station.name]
            self.ran.update(dict.fromkeys(demand.runs, until))
            self.signalled.update(dict.fromkeys(demand.signals, until))
            for edge, volume in demand.out.items():
                # Queries in a cycle would pass on ever smaller parts of a record without end.
                some = done.counts * volume > ROUNDING
                flow = Items(done.times[some], done.born[some], done.counts[some] * volume)
                self._deliver(self.layout.stage_of[edge.target].segment, demand.epoch, flow, turn)
            if self.updates.running:
                self.updates.committed(segment.segment.name, demand.epoch, since, until)

    def _deliver(self, name: str, epoch: int, flow: Items, turn: Turn) -> None:
        self.entered[name] += float(flow.counts.sum())
        self.segments[name].receive(epoch, flow, turn)

    def _count(self, segment: FusedSegment, more: Floats) -> None:
        total = segment.leader.total
        total.arrived += float(more[batching.ARRIVED])
        total.judged += float(more[batching.DONE])
        total.delay += float(more[batching.DELAY])
        total.within = total.within + more[batching.WITHIN :]

    def source_share(self, name: str) -> float:
        entered = self.entered[self.layout.stage_of[name].segment]
        return self.sources[name].offered / entered if entered > 0 else 1.0

    def streams(self, emitted: Mapping[str, float]) -> list[EdgeTraffic]:
        """Return the traffic between stages (bytes/s); durable edges bypass hosts."""
        stages = self.layout.stage_of
        traffic = []
        for edge in self.graph.edges:
            source, target = stages[edge.source], stages[edge.target]
            if source is not target and edge.durable is None:
                rate = emitted[target.name] / sum(stages[e.source] is not target for e in self.graph.inputs[edge.target])
                size = self.settings.record_size(self.graph.by_name[edge.source])
                traffic.append(EdgeTraffic(edge, self.by_name[source.name], self.by_name[target.name], rate * size))
        return traffic

    def works_until(self, row: int) -> float:
        return max((segment.works_until(row) for segment in self.segments.values()), default=0.0)

    @property
    def empty(self) -> bool:
        return all(source.ended for source in self.sources.values()) and not any(
            segment.unfinished for segment in self.segments.values()
        )


def _first_rate(load: Emissions, seconds: float) -> float:
    present = load.counts > 0
    if not present.any():
        return 0.0
    begins = load.times[present][0]
    return float(load.counts[present][load.times[present] < begins + seconds - ROUNDING].sum()) / max(seconds, load.span)
