"""Dataflows fused as on Spark: each segment works in micro-batches, its stages one after the other.

A batch takes what is due, as far as the governor lets it, and lasts for an overhead a stage and for the work of its
records. A stage that reads a source uses all hosts that run, as many cores as it has partitions; a keyed stage waits for
the host that its state partitions burden most. Records travel as cohorts. What a stage spends beyond its operators
(transport between processes) is part of the costs given here, as it is of costs measured on Spark.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from elastream.model.graph import Edge, Operator
from elastream.model.observation import Composition, Floats
from elastream.model.qos import offered_rates
from elastream.model.stages import Layout, Segment, Stage
from elastream.simulation.arrivals import Load
from elastream.simulation.network import PIECES, Source, alternate_costs, load_of
from elastream.simulation.pool import Pool
from elastream.simulation.settings import Settings
from elastream.simulation.stations import NOTHING, Flow, Station, joined

__all__ = ["FusedNetwork"]

DUST = 1e-9
"""Records less than this are nobody."""
FIRST_ALLOWANCE = 100.0
"""Records of a first batch, as on Spark (`spark.governor`)."""


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
        self.ends = math.inf
        self.lasts = 0.0
        self.free = 0.0
        self.allowance = FIRST_ALLOWANCE
        self.durations: list[float] = []
        self.work: dict[str, float] = {}
        self.volume: dict[str, float] = {}

    def advance(self, begin: float, end: float, pool: Pool, speeds: Floats) -> Flow:
        """Batches in [begin, end); returns the records committed, each with the time of its commit."""
        committed: list[Flow] = []
        if self.batch.times.size and any(station.interrupted for station in self.stations):
            self.ends = begin + self.lasts
        for station in self.stations:
            station.interrupted = False
        while True:
            if self.batch.times.size:
                if self.ends >= end:
                    break
                committed.append(self._commit())
            start = max(self.free, begin, self.queue.times[0] if self.queue.times.size else math.inf)
            if start >= end or not self._begin(start, pool, speeds):
                break
        self.leader.due = self.queue.before(end)[0].total
        return joined(committed)

    def _begin(self, start: float, pool: Pool, speeds: Floats) -> bool:
        """Take what is due at `start`; False where no host can work on it."""
        per_record = sum(
            self.work[station.name] * self._seconds_a_core_second(station, pool, speeds) for station in self.stations
        )
        if not math.isfinite(per_record):
            return False
        fixed = self.settings.batch_overhead * len(self.stations)
        share = max(self.settings.batch_seconds - fixed, self.settings.batch_seconds / 2)
        fitting = share / per_record if per_record > 0 else math.inf
        cut = int(np.searchsorted(self.queue.times, start, side="right"))
        reach = np.cumsum(self.queue.counts[:cut])
        taken = min(float(reach[-1]), max(1.0, self.allowance))
        whole = int(np.searchsorted(reach, taken + DUST, side="right"))
        parts = [Flow(*(column[:whole] for column in self.queue))]
        self.queue = Flow(*(column[whole:].copy() for column in self.queue))
        left = taken - (float(reach[whole - 1]) if whole else 0.0)
        if left > DUST and self.queue.times.size:
            parts.append(Flow(self.queue.times[:1].copy(), self.queue.born[:1].copy(), np.array([left])))
            self.queue.counts[0] -= left
        self.batch = joined(parts)
        if taken >= self.allowance - DUST:
            self.allowance = min(max(fitting, self.allowance / 2), self.allowance * 2)
        self.lasts = fixed + taken * per_record
        self.ends = start + self.lasts
        for station in self.stations:
            station.working = taken * self.volume[station.name]
            core_seconds = taken * self.work[station.name]
            station.period.busy += core_seconds
        self._load(taken, pool, speeds)
        return True

    def _load(self, taken: float, pool: Pool, speeds: Floats) -> None:
        """Charge the batch's work to hosts: `pool.worked` in core-seconds."""
        running = np.flatnonzero(pool.up[: len(pool)])
        for station in self.stations:
            work = taken * self.work[station.name]
            if station.placed:
                hosts, tasks = np.unique(station.crew.host[station.crew.host >= 0], return_counts=True)
                np.add.at(pool.worked, hosts, work * tasks / tasks.sum() / speeds[hosts])
            else:
                power = pool.cores[running] * speeds[running]
                np.add.at(pool.worked, running, work * power / power.sum() / speeds[running])

    def _seconds_a_core_second(self, station: StageStation, pool: Pool, speeds: Floats) -> float:
        """Seconds that one core-second of standard work of a stage takes as hosts and partitions stand; inf without any."""
        if station.placed:
            hosts, tasks = np.unique(station.crew.host[station.crew.host >= 0], return_counts=True)
            if not hosts.size:
                return math.inf
            usable = np.minimum(pool.cores[hosts], tasks) * speeds[hosts]
            return float((tasks / tasks.sum() / usable).max())
        running = np.flatnonzero(pool.up[: len(pool)])
        if not running.size:
            return math.inf
        cores = float(pool.cores[running].sum())
        return 1.0 / (min(cores, float(len(station.crew))) / cores * float((pool.cores[running] * speeds[running]).sum()))

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
        self.durations.append(self.lasts)
        self.free, self.ends, self.batch = at, math.inf, NOTHING
        return Flow(np.full(batch.times.size, at), batch.born, batch.counts)


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
        self.latencies: list[Flow] = []
        self.batches: list[float] = []
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
            segment.durations = []
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
