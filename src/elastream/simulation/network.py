"""Simulates a dataflow with a queue per operator: sources, stations, sinks, and the items in transit between them.

Each time window is processed in topological order, so that an operator's inputs are complete before it runs.
"""

import math
from collections.abc import Mapping

import numpy as np

from elastream.model.errors import DataflowError
from elastream.model.graph import Delivery, Edge, Graph, Kind, Operator
from elastream.model.observation import Composition, Floats, MicroBatch
from elastream.model.qos import offered_rates
from elastream.model.stages import Layout
from elastream.simulation.arrivals import Emissions, Load, cohorts, emissions, items
from elastream.simulation.cohorts import CohortStation
from elastream.simulation.exchanging import EdgeTraffic
from elastream.simulation.pool import SimulatedHosts
from elastream.simulation.serving import paced
from elastream.simulation.settings import Settings, Travel
from elastream.simulation.stations import NOTHING, Items, ItemStation, Station, each_one, joined

AHEAD = 1 << 14
"""Approximate number of records that a source generates at once."""
PIECES = 64
"""Cohorts per monitoring period for evenly spaced arrivals; a computed wait is off by at most one such piece."""


class Source:
    """Emits the records of a load as time passes: one by one or, given `piece` seconds, in cohorts of that length."""

    def __init__(self, load: Emissions, piece: float | None = None) -> None:
        self.load = load
        self.piece = piece
        self.total = load.total
        self.next = 0
        self.ready = NOTHING
        self.offered = 0.0
        self.held = 0.0

    @property
    def emitted(self) -> float:
        """Records emitted, without those held back before the first operator."""
        return self.offered - self.held

    def until(self, end: float) -> Items:
        """Emit the records that arrive before `end` and were not emitted yet."""
        ready = self.ready
        if self.next < self.load.times.size and self.load.times[self.next] < end:
            self.ready = ready = self._laid_out(end)
        cut = int(ready.times.searchsorted(end))
        flow, self.ready = Items(*(a[:cut] for a in ready)), Items(*(a[cut:] for a in ready))
        self.offered += flow.total if self.piece is not None else cut
        return flow

    def _laid_out(self, end: float) -> Items:
        """The ready records plus those of all emissions that begin before `end`, and some more to amortise the cost."""
        load = self.load
        stop = int(np.searchsorted(load.times, end, side="left"))
        if self.piece is None:
            stop = max(stop, int(np.searchsorted(load.reach, load.reach[self.next] + AHEAD)))
        else:
            stop = min(max(stop, self.next + AHEAD // PIECES), load.times.size)
        times, counts = load.times[self.next : stop], load.counts[self.next : stop]
        self.next = stop
        if self.piece is None:
            times = items(times, counts, load.span)
            return joined([self.ready, Items(times, times, each_one(times.size))])
        times, shares = cohorts(times, counts, load.span, self.piece)
        return joined([self.ready, Items(times, times, shares)])

    @property
    def ended(self) -> bool:
        return self.offered >= self.total - 1e-6 * max(1, self.total)


class QueueNetwork:
    """All queues of a dataflow, one per operator. stations: operators between sources and sinks, topologically sorted."""

    def __init__(self, layout: Layout, loads: Mapping[str, Load], settings: Settings, seed: int, seconds: float) -> None:
        self.layout, self.graph = layout, layout.graph
        self.settings = settings
        given = {source.name: load_of(source, loads, seconds) for source in self.graph.sources}
        self.crowded = crowded(self.graph, given, settings)
        self.cohorts = bool(self.crowded)
        piece = settings.monitor / PIECES
        self.sources = {name: Source(load, piece if name in self.crowded else None) for name, load in given.items()}
        self.stations = tuple(
            self._station(self.graph.by_name[name], stream, settings, seed)
            for stream, name in enumerate(self.graph.order)
            if self.graph.by_name[name].kind in (Kind.TRANSFORM, Kind.KEYED)
        )
        self.by_name = {station.name: station for station in self.stations}
        self.latencies: list[Items] = []
        self.reports: list[MicroBatch] = []
        self.committed = 0.0
        self.dealt = dict.fromkeys(self.graph.by_name, 0)
        self.link_free: dict[Edge, float] = {}
        self.parts: dict[Edge, float] = {}
        self.ports = {
            edge: (number if edge.target in settings.joins else 0)
            for name in self.graph.order
            for number, edge in enumerate(self.graph.inputs[name])
        }
        self.live: dict[str, list[Edge]] = {}
        self.delays: dict[Edge, tuple[float, float]] = {}
        self.version = -1
        self.means: dict[str, Floats] = {}
        self._measured: tuple[int, int, int] = (-1, -1, -1)
        self._rated: tuple[int, int, int] = (-1, -1, -1)
        self.compose(Composition.default(self.graph))

    def _station(self, operator: Operator, stream: int, settings: Settings, seed: int) -> Station:
        inputs = len(self.graph.inputs[operator.name]) if operator.name in settings.joins else 1
        kind = CohortStation if operator.name in self.crowded else ItemStation
        return kind(operator, stream, settings, seed, inputs)

    def compose(self, composition: Composition) -> None:
        """Apply a composition from now on."""
        self.version = composition.version
        for name, (cost, selectivity) in alternate_costs(self.graph, self.settings, composition).items():
            self.by_name[name].work = cost
            self.by_name[name].selectivity = selectivity
        self.live = {
            name: [edge for edge in edges if edge.choice is None or composition.choices[edge.choice] == edge.target]
            for name, edges in self.graph.outputs.items()
        }

    def advance(self, begin: float, end: float, pool: SimulatedHosts) -> None:
        self._rate(begin, pool)
        self._measure_links(pool)
        lasts = end - begin
        for name in self.graph.order:
            if name in self.sources:
                self._deliver(name, self.sources[name].until(end))
            elif name in self.by_name:
                station = self.by_name[name]
                station.period.given += len(station.crew) * lasts
                if isinstance(station, CohortStation):
                    station.comes = self._variation(name)
                    station.grain = max(self._grain(edge.source) for edge in self.graph.inputs[name])
                self._deliver(name, station.advance(begin, end, self.means[name]))

    def _rate(self, begin: float, pool: SimulatedHosts) -> None:
        """Update every instance's mean service time (s) if instances, costs or speeds have changed."""
        placement = (pool.changes, pool.placements, self.version)
        if pool.steady and placement == self._rated:
            return
        self._rated = placement
        speeds = pool.speeds(begin)
        for station in self.stations:
            # An unplaced instance (host -1) reads the last host's speed; harmless, because it serves nothing.
            cores, host = station.operator.cores, station.crew.host
            self.means[station.name] = station.work / (cores * speeds[host]) if speeds.size else np.zeros(host.size)

    def _variation(self, name: str) -> float:
        """Squared coefficient of variation of an operator's random interarrival times."""
        found = []
        for edge in self.graph.inputs[name]:
            station = self.by_name.get(edge.source)
            if isinstance(station, CohortStation):
                dealt = sum(each.delivery is Delivery.ROUND_ROBIN for each in self.live[edge.source])
                # Emitting one item per n, or dealing items to n edges, makes departures more regular.
                each = station.selectivity * len(station.waiting) / max(1, dealt)
                found.append(station.leaves * min(1.0, each))
        return sum(found) / len(found) if found else 0.0

    def _grain(self, name: str) -> float:
        """Time resolution of a source's or operator's items, seconds; 0 if simultaneous items are a real burst."""
        if name in self.sources:
            source = self.sources[name]
            return min(source.load.span, source.piece or 0.0)
        station = self.by_name[name]
        return station.width if isinstance(station, CohortStation) else 0.0

    def _deliver(self, name: str, flow: Items) -> None:
        """Send an operator's emitted items over its live edges."""
        if not flow.times.size:
            return
        edges = self.live[name]
        dealt = [edge for edge in edges if edge.delivery is Delivery.ROUND_ROBIN]
        turn = self.dealt[name]
        if dealt:
            self.dealt[name] = (turn + flow.times.size) % len(dealt)
        for edge in edges:
            part = flow
            if edge.delivery is Delivery.ROUND_ROBIN:
                if name in self.crowded:
                    part = Items(flow.times, flow.born, flow.counts / len(dealt))
                else:
                    part = share(flow, (dealt.index(edge) - turn) % len(dealt), len(dealt))
            if edge.target in self.by_name:
                if name in self.crowded and edge.target not in self.crowded:
                    part, self.parts[edge] = whole_items(part, self.parts.get(edge, 0.0))
                self.by_name[edge.target].receive(self._travelled(edge, part), self.ports[edge])
            else:
                self.committed += part.total
                self.latencies.append(Items(part.times - part.born, part.born, part.counts))

    def _travelled(self, edge: Edge, flow: Items) -> Items:
        """`flow` with the arrival times at the target of `edge`."""
        latency, gap = self.delays.get(edge, (self.settings.message_overhead, 0.0))
        times = flow.times
        if gap > 0:
            times, self.link_free[edge] = paced(times, flow.counts * gap, self.link_free.get(edge, 0.0))
        return Items(times + latency, flow.born, flow.counts) if latency or gap else flow

    def _measure_links(self, pool: SimulatedHosts) -> None:
        """Update mean latency (s) and link seconds per item of each edge between operators, for the current placement.

        An item travels between any pair of instances of the two operators with equal probability; within a host for free.
        """
        settings = self.settings
        if self._measured == (placement := (pool.changes, pool.placements, self.version)):
            return
        self._measured = placement
        self.delays = {}
        limited = settings.links or (pool.bandwidth[: len(pool)] > 0).any()
        if settings.latency == 0.0 and not settings.links and not limited:
            return
        region = pool.region[: len(pool)]
        latency, per_byte = pool.between_regions()
        shares, hosts = {}, {}
        for station in self.stations:
            placed = station.crew.host[station.crew.host >= 0]
            shares[station.name] = np.bincount(placed, minlength=len(pool)) / max(1, placed.size)
            hosts[station.name] = np.bincount(region[np.unique(placed)], minlength=len(latency))
        by_region = {name: np.bincount(region, share, minlength=len(latency)) for name, share in shares.items()}
        for station in self.stations:
            for edge in self.live[station.name]:
                if edge.target not in shares:
                    continue
                pairs = np.outer(by_region[edge.source], by_region[edge.target])
                same_host = shares[edge.source] * shares[edge.target]
                pairs[np.diag_indices_from(pairs)] -= np.bincount(region, same_host, minlength=len(latency))
                size = settings.record_size(self.graph.by_name[edge.source])
                gap = (
                    0.0 if math.isnan(size) else size * float((pairs * per_byte / np.maximum(1, hosts[edge.target])).sum())
                )
                self.delays[edge] = (settings.message_overhead + float((pairs * latency).sum()), gap)

    def streams(self, emitted: Mapping[str, float]) -> list[EdgeTraffic]:
        """Traffic between operators, bytes/s. emitted: records/s that each operator emits."""
        found = []
        for name, edges in self.live.items():
            size = self.settings.record_size(self.graph.by_name[name])
            dealt = sum(edge.delivery is Delivery.ROUND_ROBIN for edge in edges)
            for edge in edges:
                if edge.target in self.by_name:
                    part = dealt if edge.delivery is Delivery.ROUND_ROBIN else 1
                    found.append(
                        EdgeTraffic(edge, self.by_name.get(name), self.by_name[edge.target], emitted[name] * size / part)
                    )
        return found

    @property
    def scalable(self) -> frozenset[str]:
        """Operators whose parallelism can change: all."""
        return self.layout.simulated_scalable

    @property
    def empty(self) -> bool:
        """Whether all arrivals have been processed; a join's unmatched items do not count."""
        return all(source.ended for source in self.sources.values()) and not any(s.unfinished for s in self.stations)


def crowded(graph: Graph, loads: Mapping[str, Emissions], settings: Settings) -> frozenset[str]:
    """Sources and operators whose items travel in cohorts: those above `cohorts_above` items in the busiest period."""
    if settings.travel is Travel.SINGLE:
        return frozenset()
    if settings.travel is Travel.TASKS:
        return frozenset(graph.by_name)
    composition = Composition.default(graph)
    selectivity = {name: each for name, (_, each) in alternate_costs(graph, settings, composition).items()}
    peaks = {name: load.busiest(settings.monitor) for name, load in loads.items()}
    arriving = offered_rates(graph, peaks, selectivity, composition)
    return frozenset(name for name, items in arriving.items() if items > settings.cohorts_above)


def whole_items(flow: Items, part: float) -> tuple[Items, float]:
    """Convert cohorts to whole items, each at the arrival of its last part; returns them and the remaining fraction.

    part: fraction of an item remaining from earlier cohorts.
    """
    reach = part + np.cumsum(flow.counts)
    due = math.floor(float(reach[-1]) + 1e-9)
    rows = np.minimum(np.searchsorted(reach, np.arange(1, due + 1) - 1e-9), reach.size - 1)
    return Items(flow.times[rows], flow.born[rows], each_one(due)), max(0.0, float(reach[-1]) - due)


def share(flow: Items, first: int, of: int) -> Items:
    """Every `of`-th item from item `first` on."""
    return Items(*(column[first::of] for column in flow))


def alternate_costs(graph: Graph, settings: Settings, composition: Composition) -> dict[str, tuple[float, float]]:
    """(core-seconds per record, records out per record in) of every non-source, non-sink operator under `composition`.

    Measured values override those that the alternate declares. Raises DataflowError if neither has a cost.
    """
    found = {}
    for operator in graph.operators:
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED):
            alternate = operator.alternate(composition.alternates[operator.name])
            measured = settings.service(operator.name)
            cost = measured.cost if measured.cost is not None else alternate.cost
            selectivity = measured.selectivity if measured.selectivity is not None else alternate.selectivity
            if cost is None:
                raise DataflowError(
                    f"operator {operator.name!r} has no cost for alternate {alternate.name!r}; the simulation needs "
                    "core-seconds per record: declare `cost`, or calibrate with a recorded run"
                )
            found[operator.name] = (cost, 1.0 if selectivity is None else selectivity)
    return found


def load_of(source: Operator, loads: Mapping[str, Load], seconds: float) -> Emissions:
    """The load of a source: the one in `loads`, else its declared one; raises DataflowError if it has neither."""
    load = loads.get(source.name) or source.load
    if load is None:
        raise DataflowError(f"source {source.name!r} has no load; the simulation needs one: declare `load` at the source")
    return emissions(load, until=seconds)
