"""Simulation of a dataflow with a queue per operator, and items in transit.

Each time window runs in topological order. Items of a newer composition wait until their operator adopts it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from elastream.core.composition import Consistency, changed_operators
from elastream.core.frames import Floats
from elastream.core.observation import Composition
from elastream.core.qos import live_edges
from elastream.dataflow.endpoints import DomainSignal
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTables
from elastream.dataflow.operators import Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import Layout
from elastream.simulator.arrivals import PIECES, Emissions, Load, Source, load_of, share, whole_items
from elastream.simulator.cohorts import CohortStation
from elastream.simulator.costs import Cost, Shares, costs_of, greatest_selectivity, shares_in
from elastream.simulator.links import Delays, EdgeTraffic
from elastream.simulator.pool import SimulatedHosts
from elastream.simulator.settings import Settings, Travel
from elastream.simulator.stations import Items, ItemStation, Station, paced
from elastream.simulator.updates import PendingUpdate, Updates, ahead, updated_fractions
from elastream.units import ROUNDING


class CompositionInUse(NamedTuple):
    composition: Composition
    shares: Shares
    costs: Mapping[str, Cost]
    live: Mapping[str, list[Edge]]


class QueueNetwork:
    """All queues of a dataflow, one per operator; `stations` are sorted topologically.

    While `changing`, an operator in `epochs` has yet to adopt the newest `epoch`, and time advances by at most `step`
    seconds.
    """

    # True in a subclass with a queue per instance on shared hosts, which overrides `background_of`.
    per_task: ClassVar[bool] = False

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
        arrivals = {source.name: load_of(source, loads, seconds) for source in self.graph.sources}
        self.crowded = self._crowded(arrivals)
        self.cohorts = bool(self.crowded)
        self.step = piece = settings.monitor / PIECES
        self.sources = {name: Source(load, piece if name in self.crowded else None) for name, load in arrivals.items()}
        self.stations = tuple(
            self._station(self.graph.by_name[name], stream, settings, seed)
            for stream, name in enumerate(self.graph.order)
            if self.graph.by_name[name].kind in (Kind.TRANSFORM, Kind.KEYED)
        )
        self.by_name = {station.name: station for station in self.stations}
        self.latencies: list[Items] = []
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
        self._measured: tuple[int, ...] = ()
        self._links = Delays(lambda name: settings.record_size(self.graph.by_name[name]))
        self._rated: tuple[int, ...] = ()
        self.signals = {s.name: s.writes.name for s in self.graph.sinks if isinstance(s.writes, DomainSignal)}
        self.signalled: dict[str, float] = {}
        self.updates = Updates()
        self.epoch = 0
        self.terms = {0: self._terms(Composition.default(self.graph))}
        self.epochs: dict[str, int] = {}
        self.effective: dict[str, Composition] = {}
        self.settled = False
        self.held_back: dict[str, list[Items]] = {name: [] for name in self.sources}
        self.workers = tuple(name for name in self.graph.order if self.graph.by_name[name].kind is not Kind.SINK)
        for name in self.workers:
            self._take(name, 0)

    def _crowded(self, loads: Mapping[str, Emissions]) -> frozenset[str]:
        return crowded(self.graph, loads, self.settings)

    def background_of(self, hosts: Sequence[str]) -> tuple[Floats, Floats]:
        """Return the load of other processes on each host: (cores, bytes/s)."""
        return np.zeros(len(hosts)), np.zeros(len(hosts))

    def _station(self, operator: Operator, stream: int, settings: Settings, seed: int) -> Station:
        inputs = len(self.graph.inputs[operator.name]) if operator.name in settings.joins else 1
        kind = CohortStation if operator.name in self.crowded else ItemStation
        return kind(operator, stream, settings, seed, inputs)

    # -- compositions --------------------------------------------------------------------------------------------------

    @property
    def composition(self) -> Composition:
        return self.terms[self.epoch].composition

    @property
    def changing(self) -> bool:
        return any(epoch < self.epoch for epoch in self.epochs.values())

    def follows(self, query: str) -> bool:
        epochs = [self.epochs[name] for name in self.workers if self.layout.stage_of[name].segment == query]
        return min(epochs, default=self.epoch) == self.epoch

    def resize(self, composition: Composition) -> None:
        self.terms[self.epoch] = self.terms[self.epoch]._replace(composition=composition)
        self.settled = False

    def compose(self, composition: Composition, now: float) -> None:
        mode = self.settings.consistency
        update = PendingUpdate(self.epoch + 1, composition.version, now)
        changed = changed_operators(self.graph, self.composition, composition)
        update.waiting = {self.layout.stage_of[name].segment for name in changed}
        if mode in (Consistency.BATCH, Consistency.REWIRED):
            update.mixed = self._mixed(changed, composition)
        self.updates.request(update)
        oldest = min(self.epochs.values())
        self.terms = {epoch: terms for epoch, terms in self.terms.items() if epoch >= oldest}
        self.epoch += 1
        self.terms[self.epoch] = self._terms(composition)
        for name in self.workers:
            if mode in (Consistency.BATCH, Consistency.REWIRED) or (mode is Consistency.WAVE and name in self.sources):
                self._take(name, self.epoch)

    def _terms(self, composition: Composition) -> CompositionInUse:
        live = {name: [edge for edge, _ in edges] for name, edges in live_edges(self.graph, composition).items()}
        shares = shares_in(self.graph, self.settings, composition, self.tables)
        return CompositionInUse(composition, shares, costs_of(self.graph, self.settings, shares), live)

    def _take(self, name: str, epoch: int) -> None:
        terms = self.terms[epoch]
        self.epochs[name] = epoch
        self.live[name] = terms.live[name]
        if name in self.by_name:
            self.by_name[name].work, self.by_name[name].selectivity = terms.costs[name]
        self.version += 1
        self.settled = False

    def runs(self, name: str) -> Mapping[str, float]:
        return self.terms[self.epochs[name]].shares[name]

    def _mixed(self, changed: frozenset[str], after: Composition) -> float:
        rates = {name: max(source.offered, ROUNDING) for name, source in self.sources.items()}
        selectivity = {name: cost.selectivity for name, cost in self.terms[self.epoch].costs.items()}
        met = updated_fractions(self.graph, rates, selectivity, self.composition, changed)
        before = ahead(self.graph, after, changed)
        mixed = 0.0
        for station in self.stations:
            if station.name in before:
                coming = sum(flow.total for port in station.inbox for flow in port)
                mixed += met.arriving[station.name] * (station.queued + coming)
            if any(edge.target in before for edge in self.live[station.name]):
                mixed += met.leaving[station.name] * station.in_service
        return mixed

    def _follow(self, name: str, now: float) -> bool:
        station = self.by_name[name]
        newest = min(self.epochs[edge.source] for edge in self.graph.inputs[name])
        if newest <= self.epochs[name] or station.unfinished:
            return False
        coming = min((epoch for epoch, _, _ in station.aside if epoch <= newest), default=newest)
        if len(station.waiting) > 1:  # unmatched items of a join find partners among the new ones
            for update in self.updates.running:
                update.mixed += station.queued if self.epochs[name] < update.epoch <= coming else 0.0
        self.updates.committed(self.layout.stage_of[name].segment, self.epochs[name], now, now)
        self._take(name, coming)
        released = [(port, flow) for epoch, port, flow in station.aside if epoch <= coming]
        station.aside = [each for each in station.aside if each[0] > coming]
        for port, flow in released:
            station.receive(Items(np.maximum(flow.times, now), flow.born, flow.counts), port)
        return True

    def _drain(self, now: float) -> None:
        if any(station.unfinished for station in self.stations):
            return
        for segment in self.layout.segments:
            self.updates.committed(segment.name, min(self.epochs.values()), now, now)
        for name in self.workers:
            self._take(name, self.epoch)
        for name, flows in self.held_back.items():
            self.sources[name].waiting = 0.0
            for flow in flows:
                self._deliver(name, Items(np.maximum(flow.times, now), flow.born, flow.counts))
            self.held_back[name] = []

    def _note_effective(self, now: float) -> None:
        for segment in self.layout.segments:
            oldest = min((self.epochs[name] for name in segment.operators if name in self.epochs), default=self.epoch)
            self.effective[segment.name] = self.terms[oldest].composition
            self.updates.committed(segment.name, oldest, now, now)
        self.updates.settle(min(self.epochs.values()))
        self.settled = True

    # -- time ----------------------------------------------------------------------------------------------------------

    def advance(self, begin: float, end: float, pool: SimulatedHosts) -> None:
        changing = self.changing
        if changing and self.settings.consistency is Consistency.DRAIN:
            self._drain(begin)
        draining = changing and self.changing and self.settings.consistency is Consistency.DRAIN
        self._rate(begin, pool)
        self._measure_links(begin, pool)
        lasts = end - begin
        for name in self.graph.order:
            if name in self.sources:
                flow = self.sources[name].until(end)
                if draining and flow.times.size:
                    self.held_back[name].append(flow)
                    self.sources[name].waiting += flow.total
                else:
                    self._deliver(name, flow)
            elif name in self.by_name:
                station = self.by_name[name]
                if changing and not draining and self._follow(name, begin):
                    self._rate(begin, pool)
                    self._measure_links(begin, pool)
                station.period.available += len(station.crew) * lasts
                if isinstance(station, CohortStation):
                    station.comes = self._variation(name)
                    station.grain = max(self._grain(edge.source) for edge in self.graph.inputs[name])
                self._deliver(name, station.advance(begin, end, self.means[name]))
        if not self.settled:
            self._note_effective(begin)

    def _rate(self, begin: float, pool: SimulatedHosts) -> None:
        placement = (pool.changes, pool.placements, self.version, pool.speed_slot(begin))
        if placement == self._rated:
            return
        self._rated = placement
        speeds = pool.speeds(begin)
        for station in self.stations:
            # An unplaced instance (host -1) reads the last host's speed; harmless, because it serves nothing.
            cores, host = station.operator.cores, station.crew.host
            self.means[station.name] = station.work / (cores * speeds[host]) if speeds.size else np.zeros(host.size)

    def _variation(self, name: str) -> float:
        variations = []
        for edge in self.graph.inputs[name]:
            station = self.by_name.get(edge.source)
            if isinstance(station, CohortStation):
                dealt = sum(each.delivery is Delivery.ROUND_ROBIN for each in self.live[edge.source])
                # Emitting one item per n, or dealing items to n edges, makes departures more regular.
                each = station.selectivity * len(station.waiting) / max(1, dealt)
                variations.append(station.leaves * min(1.0, each))
        return sum(variations) / len(variations) if variations else 0.0

    def _grain(self, name: str) -> float:
        """Return the time resolution of emitted items (seconds); 0 if simultaneous items are a real burst."""
        if name in self.sources:
            source = self.sources[name]
            return min(source.load.span, source.piece or 0.0)
        station = self.by_name[name]
        return station.width if isinstance(station, CohortStation) else 0.0

    def _deliver(self, name: str, flow: Items) -> None:
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
                self._send(edge, part)
            elif edge.target in self.signals:
                if part.times.size:
                    self.signalled[self.signals[edge.target]] = float(part.times[-1])
            else:
                self.committed += part.total
                self.latencies.append(Items(np.maximum(part.times - part.born, 0.0), part.born, part.counts))

    def _send(self, edge: Edge, flow: Items) -> None:
        name, target = edge.source, self.by_name[edge.target]
        if name in self.crowded and edge.target not in self.crowded:
            flow, self.parts[edge] = whole_items(flow, self.parts.get(edge, 0.0))
        flow = self._travelled(edge, flow)
        if self.epochs[edge.target] < self.epochs[name] and flow.times.size:
            target.aside.append((self.epochs[name], self.ports[edge], flow))
        else:
            target.receive(flow, self.ports[edge])

    def _travelled(self, edge: Edge, flow: Items) -> Items:
        latency, gap = self.delays.get(edge, (self.settings.message_overhead, 0.0))
        times = flow.times
        if gap > 0:
            times, self.link_free[edge] = paced(times, flow.counts * gap, self.link_free.get(edge, 0.0))
        return Items(times + latency, flow.born, flow.counts) if latency or gap else flow

    def _measure_links(self, begin: float, pool: SimulatedHosts) -> None:
        settings = self.settings
        placement = (pool.changes, pool.placements, self.version, pool.link_slot(begin))
        if self._measured == placement:
            return
        self._measured = placement
        self.delays = {}
        limited = settings.links or (pool.bandwidth[: len(pool)] > 0).any()
        if settings.latency == 0.0 and not settings.links and not limited:
            return
        delays = self._links.at(begin, (len(pool), pool.placements, self.version), self.stations, self.live, pool)
        self.delays = {edge: (settings.message_overhead + latency, gap) for edge, (latency, gap) in delays.items()}

    def streams(self, emitted: Mapping[str, float]) -> list[EdgeTraffic]:
        traffic = []
        for name, edges in self.live.items():
            size = self.settings.record_size(self.graph.by_name[name])
            dealt = sum(edge.delivery is Delivery.ROUND_ROBIN for edge in edges)
            for edge in edges:
                if edge.target in self.by_name:
                    part = dealt if edge.delivery is Delivery.ROUND_ROBIN else 1
                    traffic.append(
                        EdgeTraffic(edge, self.by_name.get(name), self.by_name[edge.target], emitted[name] * size / part)
                    )
        return traffic

    @property
    def scalable(self) -> frozenset[str]:
        return self.layout.simulated_scalable

    def works_until(self, row: int) -> float:
        """Return the time at which a host's instances finish the items that they serve; 0 without any."""
        ends = (station.crew.finish[station.crew.host == row] for station in self.stations)
        return max((float(end) for each in ends for end in each if end < math.inf), default=0.0)

    @property
    def empty(self) -> bool:
        """True if all arrivals are processed, apart from unmatched items of joins."""
        waiting = any(self.held_back.values()) or any(station.aside for station in self.stations)
        ended = all(source.ended for source in self.sources.values())
        return ended and not waiting and not any(station.unfinished for station in self.stations)


def crowded(graph: Graph, loads: Mapping[str, Emissions], settings: Settings) -> frozenset[str]:
    """Return the operators above `cohorts_above` items in the busiest period, at their largest output."""
    if settings.travel is Travel.SINGLE:
        return frozenset()
    selectivity = greatest_selectivity(graph, settings)
    most = {name: loads[name].busiest(settings.monitor) if name in loads else 0.0 for name in graph.by_name}
    for name in graph.order:
        dealt = sum(edge.delivery is Delivery.ROUND_ROBIN and edge.choice is None for edge in graph.outputs[name])
        for edge in graph.outputs[name]:
            shared = edge.delivery is Delivery.ROUND_ROBIN and edge.choice is None
            most[edge.target] += most[name] * selectivity.get(name, 1.0) / (dealt if shared else 1)
    return frozenset(name for name, items in most.items() if items > settings.cohorts_above)
