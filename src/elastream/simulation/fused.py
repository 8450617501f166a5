"""Simulates fused dataflows as on Spark: queries of micro-batches, advanced over many monitoring periods at once.

The queries do not slow each other down, so each is advanced by itself, those that feed it first.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elastream.model.graph import Edge
from elastream.model.observation import Composition, Floats, MicroBatch
from elastream.model.qos import offered_rates
from elastream.model.stages import Layout, Segment, Stage
from elastream.simulation import batching
from elastream.simulation.arrivals import Emissions, Load
from elastream.simulation.exchanging import EdgeTraffic
from elastream.simulation.microbatch import DUST, FusedSegment, StageStation, Turn
from elastream.simulation.network import PIECES, Source, alternate_costs, load_of
from elastream.simulation.pool import SimulatedHosts
from elastream.simulation.settings import Settings
from elastream.simulation.stations import Items, joined

RECENT, KEPT = 200, 10.0
"""Batches of a query kept, and seconds for which all are."""


@dataclass(frozen=True)
class Periods:
    """Figures of the monitoring periods closed while time was advanced once, a row each.

    ends: seconds. tables: by query, columns as in `batching`. worked: core-seconds by host. offered: records that each
    source has offered so far. active: hosts leased. usable: cores of running hosts.
    """

    ends: Floats
    tables: Mapping[str, Floats]
    worked: Floats
    offered: Mapping[str, Floats]
    active: int
    usable: float


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
        self.flows: dict[str, list[Items]] = {name: [] for name in self.segments}
        self.entered = dict.fromkeys(self.segments, 0.0)
        for segment in self.segments.values():
            loads_of = [self.sources[name].load for name in segment.segment.operators if name in self.sources]
            if loads_of:
                segment.govern(sum(_first_rate(load, settings.batch_seconds) for load in loads_of))
        self.target = math.inf
        self.committed = 0.0
        self.periods = 0
        self.closed: Periods | None = None
        self.reports: list[MicroBatch] = []
        self.latencies: list[Items] = []
        self.out: dict[str, list[tuple[Edge, float]]] = {}
        self.result_share: dict[str, float] = {}
        self.version = 0
        self.compose(Composition.default(self.graph))

    @property
    def scalable(self) -> frozenset[str]:
        """Stages whose parallelism can change: those without state, as on Spark."""
        return self.layout.simulated_scalable

    def _limit(self, stage: Stage) -> float | None:
        promised = [self.graph.by_name[name].max_duration for name in stage.operators]
        return min((each for each in promised if each is not None), default=None)

    def compose(self, composition: Composition) -> None:
        """Apply a composition from the next batch on."""
        self.version += 1
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
        """Advance all queries, upstream ones first; what happened in the periods that end by `end` is in `closed`."""
        monitor = self.settings.monitor
        last = round(end / monitor)
        last -= last * monitor > end
        ends = np.append(np.arange(self.periods + 1, last + 1) * monitor, math.inf)
        self.periods = max(last, self.periods)
        worked = np.zeros((ends.size, len(pool)))
        worked[0] = pool.worked[: len(pool)]
        interval = -1 if pool.steady else int(begin / self.settings.speed_interval + DUST)
        turn = Turn(ends, worked, pool.speeds(begin), interval)
        tables, offered = {}, {}
        for name, segment in self.segments.items():
            for source in segment.segment.operators:
                if source in self.sources:
                    before, flow = self.sources[source].offered, self.sources[source].until(end)
                    self.flows[name].append(flow)
                    reach = np.append(before, before + np.cumsum(flow.counts))
                    offered[source] = reach[np.searchsorted(flow.times, ends[:-1])]
            known = segment.log.shape[0]
            opened = segment.open.copy()
            flow = joined(self.flows[name])
            self.entered[name] += float(flow.counts.sum())
            tables[name], done = segment.advance(begin, end, flow, pool, turn, self.target, self.version)
            self.flows[name] = []
            self._count(segment, tables[name].sum(axis=0) - opened)
            self.reports += [MicroBatch(name, *row) for row in segment.log[known:].tolist()]
            kept = int(np.searchsorted(segment.log[:, 0] + segment.log[:, 1], ends[0] - KEPT))
            segment.log = segment.log[max(0, min(kept, segment.log.shape[0] - RECENT)) :]
            for edge, volume in self.out[name]:
                self.flows[self.layout.stage_of[edge.target].segment].append(
                    Items(done.times, done.born, done.counts * volume)
                )
        pool.worked[: len(pool)] = worked[-1]
        self.closed = None
        if ends.size > 1:
            closed = {name: table[:-1] for name, table in tables.items()}
            self.closed = Periods(ends[:-1], closed, worked[:-1], offered, len(pool.active), pool.running_cores)

    def _count(self, segment: FusedSegment, more: Floats) -> None:
        """Add what happened in a query to the totals of its stages."""
        records = float(more[batching.DONE])
        self.committed += records * self.result_share[segment.segment.name]
        for station in segment.stations:
            station.total.done += records * segment.volume[station.name]
            station.total.emitted += records * segment.volume[station.name]
        total = segment.leader.total
        total.arrived += float(more[batching.ARRIVED])
        total.judged += records
        total.delay += float(more[batching.DELAY])
        total.within = total.within + more[batching.WITHIN :]

    def source_share(self, name: str) -> float:
        """Part of the records of its query that came from a source so far; others bring the rest."""
        entered = self.entered[self.layout.stage_of[name].segment]
        return self.sources[name].offered / entered if entered > 0 else 1.0

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

    @property
    def empty(self) -> bool:
        return all(source.ended for source in self.sources.values()) and not any(
            segment.unfinished for segment in self.segments.values()
        )


def _first_rate(load: Emissions, seconds: float) -> float:
    """Mean rate of a load over `seconds` from its first record, records/s."""
    present = load.counts > 0
    if not present.any():
        return 0.0
    begins = load.times[present][0]
    return float(load.counts[present][load.times[present] < begins + seconds - DUST].sum()) / max(seconds, load.span)
