"""Simulates fused dataflows as on Spark: each segment executes micro-batches, its stages one after the other.

A batch starts when its trigger is due and the previous batch has ended, takes the due records up to the governor's limit
(the governor used on Spark), and lasts for an overhead per stage plus the stages' work. A stage lasts as long as its most
loaded host. Tasks of a stateless stage are spread over the running hosts; those of a keyed stage run where its state
partitions are, and a moved one loads its state first. Records travel as cohorts. Costs include the transport between
processes, as costs measured on Spark do.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastream.model.cloud import HostState
from elastream.model.graph import Edge, Operator
from elastream.model.observation import Composition, Floats, MicroBatch
from elastream.model.qos import offered_rates
from elastream.model.stages import Layout, Segment, Stage
from elastream.planning.algorithms.governor import Governor
from elastream.simulation.arrivals import Emissions, Load
from elastream.simulation.draws import uniform
from elastream.simulation.exchanging import EdgeTraffic
from elastream.simulation.network import PIECES, Source, alternate_costs, load_of
from elastream.simulation.pool import SimulatedHosts
from elastream.simulation.settings import Settings
from elastream.simulation.stations import NOTHING, Items, Station, joined

DUST = 1e-9
"""Smaller amounts of records, and of seconds, are rounding error, treated as 0."""
BATCH_STREAM = 2_000_000
"""First random-number stream of segments' batches."""
COMING = (HostState.REQUESTED, HostState.STARTING)
"""States of a host that is requested but not yet running."""


class Burden(NamedTuple):
    """Tasks of a stage by host: rows in the pool, tasks, tasks that must load state, and core-seconds/s that all of a
    host's tasks get together; shape (hosts,) each."""

    hosts: NDArray[np.int64]
    tasks: NDArray[np.int64]
    loading: NDArray[np.int64]
    pace: Floats


class StageStation(Station):
    """A stage, whose instances are partitions; those of a keyed stage are placed on hosts but reserve no capacity."""

    def __init__(self, stage: Stage, stream: int, limit: float | None, settings: Settings, seed: int) -> None:
        super().__init__(Operator(stage.name, max_duration=limit, cores=1.0), stream, settings, seed)
        self.stage = stage
        self.due = math.nan
        self.served = False
        self.working = 0.0
        self.where: Mapping[int, int] = {}
        self.fresh: Mapping[int, int] = {}
        self.interrupted = False

    @property
    def needs(self) -> tuple[float, float]:
        """A token amount of cores: reserves nothing, but makes the pool spread partitions evenly."""
        return 1e-6, 0.0

    @property
    def placed(self) -> bool:
        """Whether its partitions hold state and are therefore placed on hosts."""
        return self.stage.keyed

    @property
    def backlog(self) -> float:
        """Records due and not taken; NaN before the first batch and for all stages but the first of a segment."""
        return self.due if self.served else math.nan

    @property
    def queued(self) -> float:
        """`backlog`, with 0 for unknown."""
        return 0.0 if math.isnan(self.due) else self.due

    @property
    def in_service(self) -> float:
        return self.working

    @property
    def unfinished(self) -> bool:
        return self.queued > 1e-6 or self.working > 1e-6

    def settle(self) -> None:
        """End a batch: in the next one, moved partitions run on their new hosts, as far as `landed` allows."""
        wanted = {int(i): int(host) for i, host in zip(self.crew.index, self.crew.host, strict=True) if host >= 0}
        self.where, self.fresh = landed(self.where, wanted), self.where

    def locate(self, up: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Hosts of its partitions, partitions on each, and those of them that must load state; shape (hosts,) each."""
        if not self.where:
            self.settle()
        now = {}
        for i, host in zip(self.crew.index.tolist(), self.crew.host.tolist(), strict=True):
            place = self.where.get(i, -1)
            place = place if place >= 0 and up[place] else host
            if place >= 0:
                now[i] = place
        hosts, tasks = np.unique(np.array(list(now.values()), dtype=np.int64), return_counts=True)
        came = [host for i, host in now.items() if self.fresh.get(i, host) != host]
        return hosts, tasks, np.array([came.count(host) for host in hosts.tolist()], dtype=np.int64)

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Remove partitions from a host; if it was lost, the current batch starts again."""
        self.interrupted = self.interrupted or lost


class FusedSegment:
    """One query: its queue of records, its current batch, and its stages."""

    def __init__(
        self, segment: Segment, stations: Mapping[str, StageStation], settings: Settings, seed: int, stream: int
    ) -> None:
        self.segment = segment
        self.settings = settings
        self.seed = seed
        self.stream = stream
        self.number = 0
        self.served: dict[int, int] = {}
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
        self.reports: list[MicroBatch] = []
        self.recent: deque[MicroBatch] = deque(maxlen=200)
        self.work: dict[str, float] = {}
        self.volume: dict[str, float] = {}

    def govern(self, rate: float) -> None:
        """Limit batch sizes with a governor, as Elastream's sources do; `rate`: records/s at the start of the load."""
        seconds = self.settings.batch_seconds
        governor = Governor(seconds)
        # Arrivals within two batch durations are not treated as a burst (`spark.dataflow.sources`).
        self.governor = replace(governor, allowance=max(governor.allowance, int(2 * seconds * rate)))

    def advance(self, begin: float, end: float, pool: SimulatedHosts, speeds: Floats) -> Items:
        """Execute batches in [begin, end); returns the records committed, each with its commit time."""
        committed: list[Items] = []
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
        """Start of the next batch: the previous one has ended, the trigger is due, and a record is available."""
        first = self.queue.times[0] if self.queue.times.size else math.inf
        every = self.settings.batch_interval
        if every <= 0 or not math.isfinite(first):
            return float(max(self.free, begin, first))
        # Spark's rule: a missed trigger fires at once; one without records waits for the next.
        start = max(self.free, (math.floor(self.starts / every + DUST) + 1) * every if self.starts >= 0 else 0.0)
        return max(begin, start if first <= start else math.ceil(first / every) * every)

    def _begin(self, start: float, pool: SimulatedHosts, speeds: Floats) -> bool:
        """Start a batch with the records due at `start`; False if a stage has no host to run on."""
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
        parts = [Items(*(column[:whole] for column in self.queue))]
        self.queue = Items(*(column[whole:].copy() for column in self.queue))
        left = taken - (float(reach[whole - 1]) if whole else 0.0)
        if left > DUST and self.queue.times.size:
            parts.append(Items(self.queue.times[:1].copy(), self.queue.born[:1].copy(), np.array([left])))
            self.queue.counts[0] -= left
        self.batch = joined(parts)
        self.charges = np.zeros(len(pool))
        lasts = self.settings.batch_overhead * len(self.stations)
        for station in self.stations:
            burden = burdens[station.name]
            share = burden.tasks / burden.tasks.sum()
            work = taken * self.work[station.name] * share + self.settings.state_load * burden.loading
            lasts += float((work / burden.pace).max())
            np.add.at(self.charges, burden.hosts, work + self.settings.batch_work / len(self.stations) * share)
            station.working = taken * self.volume[station.name]
        lasts += self.settings.start_delay * sum(lease.state in COMING for lease in pool.leases if lease.active)
        self._settle(pool, max(lasts, self.settings.batch_interval))
        if ratios := self.settings.batch_ratios:
            # Slow batches occur in runs (interference on the machine): the order is kept, the start is random.
            first = int(uniform(self.seed, BATCH_STREAM + self.stream, 0) * len(ratios))
            lasts *= ratios[(first + self.number) % len(ratios)]
            self.number += 1
        self.planned = (taken, start)
        self.starts, self.ends, self.charged = start, start + lasts, start
        return True

    def _settle(self, pool: SimulatedHosts, seconds: float) -> None:
        """Charge hosts in their first batches with their full capacity: the JVM's compilation uses the remainder."""
        for row in np.flatnonzero(pool.up[: len(pool)]).tolist():
            before = self.served.get(row, 0)
            if before < self.settings.settling_batches and self.settings.settling_boost > 1:
                self.charges[row] = max(self.charges[row], pool.cores[row] * self.settings.settling_boost * seconds)
            self.served[row] = before + 1

    def _learn(self, now: float) -> None:
        """Report the last batch to the governor, with the time from its planning to that of the next."""
        if self.governor is not None and self.planned is not None:
            taken, since = self.planned
            self.governor = self.governor.after(max(1, round(taken)), now - since)
            self.planned = None

    def _burden(self, station: StageStation, pool: SimulatedHosts, speeds: Floats) -> Burden:
        """Tasks of a stage by host; those without state are dealt out evenly, free slots first."""
        if station.placed:
            hosts, tasks, loading = station.locate(pool.up)
        else:
            hosts = np.flatnonzero(pool.up[: len(pool)])
            tasks = dealt(len(station.crew), np.array([pool.leases[row].type.slots for row in hosts]))
            hosts, tasks = hosts[tasks > 0], tasks[tasks > 0]
            loading = np.zeros_like(tasks)
        slots = np.array([pool.leases[row].type.slots for row in hosts])
        cores = pool.cores[hosts] * self.settings.delivered
        young = np.array([self.served.get(int(row), 0) < self.settings.settling_batches for row in hosts])
        cores = np.where(young, cores * self.settings.settling_boost, cores)
        return Burden(hosts, tasks, loading, np.minimum(cores, np.minimum(tasks, slots)) * speeds[hosts])

    def _charge(self, until: float, pool: SimulatedHosts) -> None:
        """Add the batch's work since the last charge to the hosts' `pool.worked`, core-seconds."""
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

    def _commit(self) -> Items:
        batch, at = self.batch, self.ends
        delay = at - batch.times
        total = batch.total
        for station in self.stations:
            period = station.period
            period.done += total * self.volume[station.name]
            station.working = 0.0
            if station.placed:
                station.settle()
        self.leader.served = True
        period = self.leader.period
        period.judged += total
        period.delay += float((delay * batch.counts).sum())
        period.within = period.within + (batch.counts[:, None] * (delay[:, None] <= self.leader.limits)).sum(axis=0)
        self.leader.durations.append(Items(delay, batch.counts, batch.counts))
        waited = at - batch.born
        done = MicroBatch(self.segment.name, self.starts, at - self.starts, total, float(waited.max()), float(waited.min()))
        self.reports.append(done)
        self.recent.append(done)
        self.free, self.ends, self.batch = at, math.inf, NOTHING
        return Items(np.full(batch.times.size, at), batch.born, batch.counts)


def landed(where: Mapping[int, Any], wanted: Mapping[int, Any]) -> dict[int, Any]:
    """Host of each task in the next batch. where: hosts in the last batch; wanted: requested hosts.

    Each host receives at most one moved task per batch, as on Spark (`spark.placement.placing`); a new task starts on the
    requested host.
    """
    taking: set[Any] = set()
    found = {}
    for task, host in wanted.items():
        before = where.get(task, host)
        found[task] = before if before != host and host in taking else host
        if before != host:
            taking.add(host)
    return found


def dealt(tasks: int, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of tasks per host, dealt one by one, hosts with free slots first; shape (hosts,)."""
    dealt = np.zeros(slots.size, dtype=np.int64)
    for _ in range(tasks if slots.size else 0):
        dealt[np.lexsort((dealt, dealt // slots))[0]] += 1
    return dealt


class FusedNetwork:
    """All segments of a fused dataflow. Drop-in for `QueueNetwork`; its `stations` are stages."""

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
        self.segments = {
            each.name: FusedSegment(each, self.by_name, settings, seed, stream)
            for stream, each in enumerate(layout.segments)
        }
        for segment in self.segments.values():
            loads_of = [self.sources[name].load for name in segment.segment.operators if name in self.sources]
            if loads_of:
                segment.govern(sum(_first_rate(load, settings.batch_seconds) for load in loads_of))
        self.latencies: list[Items] = []
        self.reports: list[MicroBatch] = []
        self.committed = 0.0
        self.out: dict[str, list[tuple[Edge, float]]] = {}
        self.result_share: dict[str, float] = {}
        self.compose(Composition.default(self.graph))

    @property
    def scalable(self) -> frozenset[str]:
        """Stages whose parallelism can change: those without state, as on Spark."""
        return frozenset(station.name for station in self.stations if not station.placed)

    def _limit(self, stage: Stage) -> float | None:
        promised = [self.graph.by_name[name].max_duration for name in stage.operators]
        return min((each for each in promised if each is not None), default=None)

    def compose(self, composition: Composition) -> None:
        """Apply a composition from the next batch on."""
        costs = alternate_costs(self.graph, self.settings, composition)
        selectivity = {name: each for name, (_, each) in costs.items()}
        for name, segment in self.segments.items():
            entries = [o for o in segment.segment.operators if self._enters(o, segment.segment)]
            # Assumption: each entry operator of the segment gets an equal share of its records.
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

    def advance(self, begin: float, end: float, pool: SimulatedHosts) -> None:
        speeds = pool.speeds(begin)
        for name in self.segments:
            segment = self.segments[name]
            for operator in segment.segment.operators:
                if operator in self.sources:
                    self._enter(segment, self.sources[operator].until(end))
            done = segment.advance(begin, end, pool, speeds)
            self.reports += segment.reports
            segment.reports = []
            if not done.times.size:
                continue
            for station in segment.stations:
                station.period.emitted += done.total * segment.volume[station.name]
            for edge, volume in self.out[name]:
                target = next(s for s in self.segments.values() if edge.target in s.segment.operators)
                self._enter(target, Items(done.times, done.born, done.counts * volume))
            if self.result_share[name] > 0:
                self.committed += done.total * self.result_share[name]
                self.latencies.append(Items(done.times - done.born, done.born, done.counts))

    def streams(self, emitted: Mapping[str, float]) -> list[EdgeTraffic]:
        """Traffic between stages, bytes/s. emitted: records/s of each stage. Durable edges are not host traffic."""
        stages = self.layout.stage_of
        found = []
        for edge in self.graph.edges:
            source, target = stages[edge.source], stages[edge.target]
            if source is not target and edge.durable is None:
                rate = emitted[target.name] / sum(stages[e.source] is not target for e in self.graph.inputs[edge.target])
                size = self.settings.record_size(self.graph.by_name[edge.source])
                found.append(EdgeTraffic(edge, self.by_name[source.name], self.by_name[target.name], rate * size))
        return found

    def _enter(self, segment: FusedSegment, flow: Items) -> None:
        if flow.times.size:
            segment.queue = joined([segment.queue, flow])
            segment.leader.period.arrived += flow.total

    @property
    def empty(self) -> bool:
        return all(source.ended for source in self.sources.values()) and not any(
            segment.queue.total > 1e-6 or segment.batch.times.size for segment in self.segments.values()
        )


def _first_rate(load: Emissions, seconds: float) -> float:
    """Mean rate of a load over `seconds` from its first record, records/s."""
    present = load.counts > 0
    if not present.any():
        return 0.0
    begins = load.times[present][0]
    return float(load.counts[present][load.times[present] < begins + seconds - DUST].sum()) / max(seconds, load.span)
