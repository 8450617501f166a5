"""Dataflows fused as on Spark: each segment works in micro-batches, its stages one after the other.

A batch begins when the trigger is due and the last one is done, takes what is due as far as the governor lets it - the one
that runs on Spark - and lasts for an overhead a stage and for its stages' tasks, one stage after the other. A task works for
an overhead of its own and for its share of the records; a stage lasts as long as the host that its tasks burden most. The
tasks of a stage that reads a source are spread over the hosts that run, those of a keyed stage lie where its state
partitions are. Records travel as cohorts. What a stage spends beyond its operators (transport between processes) is part
of the costs given here, as it is of costs measured on Spark.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastream.model.cloud import HostState
from elastream.model.graph import Edge, Operator
from elastream.model.observation import Composition, Floats, MicroBatch
from elastream.model.qos import offered_rates
from elastream.model.stages import Layout, Segment, Stage
from elastream.planning.governor import Governor
from elastream.simulation.arrivals import Emissions, Load
from elastream.simulation.network import PIECES, Source, alternate_costs, load_of
from elastream.simulation.pool import Pool
from elastream.simulation.settings import Settings
from elastream.simulation.stations import NOTHING, Flow, Station, joined

__all__ = ["FusedNetwork"]

DUST = 1e-9
"""Records less than this are nobody."""
COMING = (HostState.REQUESTED, HostState.STARTING)
"""States of a host that is on its way."""


class Burden(NamedTuple):
    """Tasks of a stage on hosts: rows of the pool, shape (hosts,), tasks there, and core-seconds/s that these get."""

    hosts: NDArray[np.int64]
    tasks: NDArray[np.int64]
    pace: Floats


class StageStation(Station):
    """A stage. Its instances are partitions; they lie on hosts where the stage has state, and reserve nothing there."""

    def __init__(self, stage: Stage, stream: int, limit: float | None, settings: Settings, seed: int) -> None:
        operator = Operator(stage.name, max_duration=limit, cores=1.0)
        limits = np.array(settings.factors) * (math.inf if limit is None else limit)
        super().__init__(operator, stream, settings.service(stage.name), 1, limits, seed)
        self.stage = stage
        self.due = math.nan
        self.working = 0.0
        self.interrupted = False

    @property
    def needs(self) -> tuple[float, float]:
        """Too little to count, enough to be spread evenly over hosts."""
        return 1e-6, 0.0

    @property
    def placed(self) -> bool:
        """Whether its partitions hold state and so lie on hosts."""
        return self.stage.keyed

    @property
    def backlog(self) -> float:
        """Records due and not taken; unknown but for the stage that leads its segment."""
        return self.due

    @property
    def queued(self) -> float:
        """The same as a number."""
        return 0.0 if math.isnan(self.due) else self.due

    @property
    def in_service(self) -> float:
        """Records of the batch under way."""
        return self.working

    @property
    def unfinished(self) -> bool:
        """Whether a record waits or is in a batch."""
        return self.queued > 1e-6 or self.working > 1e-6

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Partitions leave a host; where it was lost, the batch under way begins again."""
        self.interrupted = self.interrupted or lost


class FusedSegment:
    """One query: what it has to do, the batch under way, and its stages."""

    def __init__(self, segment: Segment, stations: Mapping[str, StageStation], settings: Settings) -> None:
        self.segment = segment
        self.settings = settings
        self.stations = [stations[stage.name] for stage in segment.stages]
        self.leader = self.stations[0]
        self.queue = NOTHING
        self.batch = NOTHING
        self.starts = -math.inf
        self.ends = math.inf
        self.free = 0.0
        self.charged = math.inf
        self.charges: Floats = np.zeros(0)
        self.governor: Governor | None = None
        self.planned: tuple[float, float] | None = None
        self.durations: list[float] = []
        self.reports: list[MicroBatch] = []
        self.work: dict[str, float] = {}
        self.volume: dict[str, float] = {}

    def govern(self, rate: float) -> None:
        """Let batches be governed as those of a source of Elastream's own are whose load begins with `rate` records/s."""
        seconds = self.settings.batch_seconds
        governor = Governor(seconds)
        # What the load brings in twice the time of a batch is no burst (`spark.sources`).
        self.governor = replace(governor, allowance=max(governor.allowance, int(2 * seconds * rate)))

    def advance(self, begin: float, end: float, pool: Pool, speeds: Floats) -> Flow:
        """Batches in [begin, end); returns the records committed, each with the time of its commit."""
        committed: list[Flow] = []
        if self.batch.times.size and any(station.interrupted for station in self.stations):
            self.starts, self.ends = begin, begin + (self.ends - self.starts)
            self.charged = begin
        for station in self.stations:
            station.interrupted = False
        while True:
            if self.batch.times.size:
                self._charge(min(end, self.ends), pool)
                if self.ends >= end:
                    break
                committed.append(self._commit())
            start = self._due(begin)
            if start >= end or not self._begin(start, pool, speeds):
                break
        self.leader.due = self.queue.before(end)[0].total
        return joined(committed)

    def _due(self, begin: float) -> float:
        """When the next batch begins: the last one is done, the trigger is due, and there is a record to take."""
        first = self.queue.times[0] if self.queue.times.size else math.inf
        every = self.settings.batch_interval
        if every <= 0 or not math.isfinite(first):
            return float(max(self.free, begin, first))
        # A trigger that was missed is made up for at once; one that finds nothing waits for the next (Spark's own rule).
        start = max(self.free, begin, (math.floor(self.starts / every) + 1) * every if self.starts >= 0 else 0.0)
        return start if first <= start else math.ceil(first / every) * every

    def _begin(self, start: float, pool: Pool, speeds: Floats) -> bool:
        """Take what is due at `start`; False where no host can work on it."""
        burdens = {station.name: self._burden(station, pool, speeds) for station in self.stations}
        if any(not burden.hosts.size for burden in burdens.values()):
            return False
        self._learn(start)
        cut = int(np.searchsorted(self.queue.times, start, side="right"))
        reach = np.cumsum(self.queue.counts[:cut])
        taken = float(reach[-1])
        if self.governor is not None:
            taken = min(taken, float(self.governor.allowance))
        whole = int(np.searchsorted(reach, taken + DUST, side="right"))
        parts = [Flow(*(column[:whole] for column in self.queue))]
        self.queue = Flow(*(column[whole:].copy() for column in self.queue))
        left = taken - (float(reach[whole - 1]) if whole else 0.0)
        if left > DUST and self.queue.times.size:
            parts.append(Flow(self.queue.times[:1].copy(), self.queue.born[:1].copy(), np.array([left])))
            self.queue.counts[0] -= left
        self.batch = joined(parts)
        self.charges = np.zeros(len(pool))
        lasts = self.settings.batch_overhead * len(self.stations)
        for station in self.stations:
            burden = burdens[station.name]
            share = burden.tasks / burden.tasks.sum()
            work = taken * self.work[station.name] * share + self._task_overhead(station) * burden.tasks
            lasts += float((work / burden.pace).max())
            np.add.at(self.charges, burden.hosts, work)
            station.working = taken * self.volume[station.name]
        lasts *= 1 + self.settings.start_slowdown * sum(lease.state in COMING for lease in pool.leases if lease.active)
        self.planned = (taken, start)
        self.starts, self.ends, self.charged = start, start + lasts, start
        return True

    def _learn(self, now: float) -> None:
        """Tell the governor of the last batch, which to it lasts until the next is planned, the wait between them included."""
        if self.governor is not None and self.planned is not None:
            taken, since = self.planned
            self.governor = self.governor.after(max(1, round(taken)), now - since)
            self.planned = None

    def _task_overhead(self, station: StageStation) -> float:
        """Core-seconds that a task costs however few its records."""
        return self.settings.state_task_overhead if station.placed else self.settings.source_task_overhead

    def _burden(self, station: StageStation, pool: Pool, speeds: Floats) -> Burden:
        """Where the tasks of a stage run. Those that have no place are dealt out evenly, as far as hosts have slots."""
        if station.placed:
            hosts, tasks = np.unique(station.crew.host[station.crew.host >= 0], return_counts=True)
        else:
            hosts = np.flatnonzero(pool.up[: len(pool)])
            tasks = _dealt(len(station.crew), np.array([pool.leases[row].type.slots for row in hosts]))
            hosts, tasks = hosts[tasks > 0], tasks[tasks > 0]
        slots = np.array([pool.leases[row].type.slots for row in hosts])
        return Burden(hosts, tasks, np.minimum(pool.cores[hosts], np.minimum(tasks, slots)) * speeds[hosts])

    def _charge(self, until: float, pool: Pool) -> None:
        """Charge hosts with what the batch worked since it was last charged: `pool.worked`, in core-seconds."""
        whole = self.ends - self.starts
        if until > self.charged:
            share = (until - self.charged) / whole
            pool.worked[: self.charges.size] += self.charges * share
            busy = float(self.charges.sum()) * share
            weights = {station: self.work[station.name] for station in self.stations}
            total = sum(weights.values())
            for station in self.stations:
                station.period.busy += busy * (weights[station] / total if total > 0 else 1 / len(self.stations))
            self.charged = until

    def _commit(self) -> Flow:
        batch, at = self.batch, self.ends
        delay = at - batch.times
        total = batch.total
        for station in self.stations:
            period = station.period
            period.done += total * self.volume[station.name]
            station.working = 0.0
        period = self.leader.period
        period.judged += total
        period.delay += float((delay * batch.counts).sum())
        period.within = period.within + (batch.counts[:, None] * (delay[:, None] <= self.leader.limits)).sum(axis=0)
        self.leader.durations.append(Flow(delay, batch.counts, batch.counts))
        self.durations.append(at - self.starts)
        waited = at - batch.born
        self.reports.append(
            MicroBatch(self.segment.name, self.starts, at - self.starts, total, float(waited.max()), float(waited.min()))
        )
        self.free, self.ends, self.batch = at, math.inf, NOTHING
        return Flow(np.full(batch.times.size, at), batch.born, batch.counts)


def _dealt(tasks: int, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """`tasks` dealt over hosts one by one, a host with free slots before one without; shape (hosts,)."""
    dealt = np.zeros(slots.size, dtype=np.int64)
    for _ in range(tasks if slots.size else 0):
        dealt[np.lexsort((dealt, dealt // slots))[0]] += 1
    return dealt


class FusedNetwork:
    """All segments of a fused dataflow; the same face as `Network`. `stations` are stages."""

    cohorts = True

    def __init__(self, layout: Layout, loads: Mapping[str, Load], settings: Settings, seed: int, seconds: float) -> None:
        self.layout = layout
        self.graph = layout.graph
        self.settings = settings
        piece = min(settings.monitor / PIECES, settings.batch_seconds / 4)
        self.sources = {s.name: Source(load_of(s, loads, seconds), piece) for s in self.graph.sources}
        self.stations: tuple[StageStation, ...] = tuple(
            StageStation(stage, stream, self._limit(stage), settings, seed) for stream, stage in enumerate(layout.stages)
        )
        self.by_name = {station.name: station for station in self.stations}
        self.segments = {each.name: FusedSegment(each, self.by_name, settings) for each in layout.segments}
        for segment in self.segments.values():
            loads_of = [self.sources[name].load for name in segment.segment.operators if name in self.sources]
            if loads_of:
                segment.govern(sum(_first_rate(load, settings.batch_seconds) for load in loads_of))
        self.latencies: list[Flow] = []
        self.batches: list[float] = []
        self.reports: list[MicroBatch] = []
        self.committed = 0.0
        self.out: dict[str, list[tuple[Edge, float]]] = {}
        self.result_share: dict[str, float] = {}
        self.compose(Composition.default(self.graph))

    @property
    def scalable(self) -> frozenset[str]:
        """Stages whose width can change: those without state, as on Spark."""
        return frozenset(station.name for station in self.stations if not station.placed)

    def _limit(self, stage: Stage) -> float | None:
        promised = [self.graph.by_name[name].max_duration for name in stage.operators]
        return min((each for each in promised if each is not None), default=None)

    def compose(self, composition: Composition) -> None:
        """Work under this composition from the next batch on."""
        costs = alternate_costs(self.graph, self.settings, composition)
        selectivity = {name: each for name, (_, each) in costs.items()}
        for name, segment in self.segments.items():
            entries = [o for o in segment.segment.operators if self._enters(o, segment.segment)]
            # Of records that come to the segment, an equal share is taken to enter at each of its entrances.
            volumes = offered_rates(self.graph, {o: 1 / len(entries) for o in entries}, selectivity, composition)
            for station in segment.stations:
                segment.work[station.name] = sum(volumes[o] * costs[o][0] for o in station.stage.operators if o in costs)
                segment.volume[station.name] = volumes[station.name]
            self.out[name] = [
                (edge, volumes[edge.source] * selectivity.get(edge.source, 1.0)) for edge in segment.segment.outputs
            ]
            sinks = [sink.name for sink in self.graph.sinks if sink.name in segment.segment.operators]
            self.result_share[name] = sum(volumes[sink] for sink in sinks)

    def _enters(self, operator: str, segment: Segment) -> bool:
        return operator in self.sources or any(edge.target == operator for edge in segment.inputs)

    def advance(self, begin: float, end: float, pool: Pool) -> None:
        """Everything that happens in [begin, end)."""
        speeds = pool.speeds(begin)
        for name in self.segments:
            segment = self.segments[name]
            for operator in segment.segment.operators:
                if operator in self.sources:
                    self._enter(segment, self.sources[operator].until(end))
            done = segment.advance(begin, end, pool, speeds)
            self.batches += segment.durations
            self.reports += segment.reports
            segment.durations, segment.reports = [], []
            if not done.times.size:
                continue
            for station in segment.stations:
                station.period.emitted += done.total * segment.volume[station.name]
            for edge, volume in self.out[name]:
                target = next(s for s in self.segments.values() if edge.target in s.segment.operators)
                self._enter(target, Flow(done.times, done.born, done.counts * volume))
            if self.result_share[name] > 0:
                self.committed += done.total * self.result_share[name]
                self.latencies.append(Flow(done.times - done.born, done.born, done.counts))

    def _enter(self, segment: FusedSegment, flow: Flow) -> None:
        if flow.times.size:
            segment.queue = joined([segment.queue, flow])
            segment.leader.period.arrived += flow.total

    @property
    def empty(self) -> bool:
        """Whether nothing is left to come or to do."""
        return all(source.ended for source in self.sources.values()) and not any(
            segment.queue.total > 1e-6 or segment.batch.times.size for segment in self.segments.values()
        )


def _first_rate(load: Emissions, seconds: float) -> float:
    """Records/s that a load begins with, over its first `seconds`."""
    if not load.times.size:
        return 0.0
    return float(load.counts[load.times < load.times[0] + seconds].sum()) / max(seconds, load.span)
