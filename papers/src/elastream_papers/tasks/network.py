"""Instances with a queue each, on hosts whose cores and link they share, as in Storm.

Records are amounts that flow in time steps by each instance's share (`Settings.shares`), with a mean age. Random waiting
below capacity is not modelled; several inputs are merged.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from elastream.core.frames import Floats
from elastream.core.qos import offered_rates
from elastream.dataflow.key_table import KeyTables
from elastream.dataflow.operators import Delivery, Edge, Operator
from elastream.dataflow.stages import Layout
from elastream.simulator.arrivals import Emissions, Load, Source
from elastream.simulator.network import QueueNetwork
from elastream.simulator.pool import SimulatedHosts
from elastream.simulator.settings import Settings
from elastream.simulator.stations import Items, Station
from elastream.units import ROUNDING
from elastream_papers.tasks.settings import TaskSettings
from elastream_papers.tasks.shared_hosts import SharedHosts, background_of, shared_hosts
from elastream_papers.tasks.station import TaskStation, mean_of_both

STEPS = 20  # time steps per monitoring period
PASSES = 4  # most iterations to fit demand to host capacity
HALVINGS = 24  # bisections for the records admitted under `pending`


class TaskNetwork(QueueNetwork):
    """Drop-in for `QueueNetwork`, with a queue per instance."""

    per_task = True

    def __init__(
        self, layout: Layout, loads: Mapping[str, Load], settings: Settings, seed: int, seconds: float, tables: KeyTables
    ) -> None:
        assert isinstance(settings, TaskSettings)
        super().__init__(layout, loads, settings, seed, seconds, tables)
        self.settings: TaskSettings = settings
        self.step = settings.monitor / STEPS
        # One cohort per step, so that a step's arrivals lie in its middle.
        self.sources = {name: Source(source.load, self.step) for name, source in self.sources.items()}
        self.scale: tuple[Floats, Floats] = (np.ones(0), np.ones(0))
        self.held = dict.fromkeys(self.sources, (0.0, 0.0))
        self._grouped(self.epoch)
        self._placement: tuple[tuple[int, ...], SharedHosts] | None = None

    def _station(self, operator: Operator, stream: int, settings: Settings, seed: int) -> Station:
        assert isinstance(settings, TaskSettings)
        return TaskStation(operator, stream, settings)

    def _crowded(self, loads: Mapping[str, Emissions]) -> frozenset[str]:
        return frozenset(self.graph.by_name)

    def background_of(self, hosts: Sequence[str]) -> tuple[Floats, Floats]:
        return background_of(self.settings, hosts)

    def _grouped(self, epoch: int) -> None:
        self.grouped = epoch
        self.groups = source_groups(self)
        self.before = [(0.0, 0.0)] * len(self.groups)

    def advance(self, begin: float, end: float, pool: SimulatedHosts) -> None:
        if self.changing:
            self._drain(begin)  # other consistency modes change at once
        if (working := min(self.epochs.values())) != self.grouped:
            self._grouped(working)
        steps = max(1, math.ceil((end - begin) / self.step - 1e-6))
        lasts = (end - begin) / steps
        for number in range(steps):
            self._step(begin + number * lasts, lasts, pool)
        for station in self.stations:
            station.period.available += len(station.crew) * (end - begin)
        if not self.settled:
            self._note_effective(begin)

    def _step(self, begin: float, lasts: float, pool: SimulatedHosts) -> None:
        placed = self._current(begin, pool)
        waiting = self._waiting(begin + lasts)
        parts = [self._room(number, members, waiting, lasts) for number, (members, _) in enumerate(self.groups)]
        queues = np.concatenate([station.crew.queued for station in self.stations])
        # Instances that start within the step work for the rest of it.
        free = np.concatenate([station.crew.free for station in self.stations])
        most = np.where(placed.host >= 0, placed.limit, 0.0) * np.clip(begin + lasts - free, 0.0, lasts)
        turnaround = self.settings.turnaround
        if turnaround > 0 and math.isfinite(self.settings.pending):
            parts = self._in_time(placed, waiting, queues, most, lasts, placed.away + turnaround)
        entering = self._admitted(waiting, parts)
        served, self.scale = self._served(placed, queues, entering, most, lasts, self.scale)
        for number, (members, volumes) in enumerate(self.groups):
            self.before[number] = (self._queued(volumes), sum(entering[name][0] for name in members))
        for name, (amount, born) in waiting.items():
            left = amount - entering[name][0]
            self.held[name] = (left, born)
            self.sources[name].waiting = left
        self._settle(placed, entering, served, begin + lasts / 2, lasts)

    def _served(
        self,
        placed: SharedHosts,
        queues: Floats,
        entering: Mapping[str, tuple[float, float]],
        most: Floats,
        lasts: float,
        scale: tuple[Floats, Floats],
    ) -> tuple[Floats, tuple[Floats, Floats]]:
        """Return (processed records by instance, demand granted by hosts and links)."""
        at = np.where(placed.host >= 0, placed.host, 0)
        hosts, links = placed.room.size, placed.link.size
        by_cores, by_link = scale if (scale[0].size, scale[1].size) == (hosts, links) else (np.ones(hosts), np.ones(links))
        for _ in range(PASSES):
            wanted, served = self._flow(placed, queues, entering, most, np.minimum(by_cores[at], by_link[placed.wire]))
            cores = np.bincount(at, wanted, hosts)
            link = np.bincount(placed.wire, wanted / placed.cost * placed.carried, links)
            before = by_cores, by_link
            by_cores = np.minimum(1.0, np.divide(placed.room * lasts, cores, out=np.ones(hosts), where=cores > ROUNDING))
            by_link = np.minimum(1.0, np.divide(placed.link * lasts, link, out=np.ones(links), where=link > ROUNDING))
            if max(np.abs(by_cores - before[0]).max(), np.abs(by_link - before[1]).max()) < ROUNDING:
                break
        else:
            _, served = self._flow(placed, queues, entering, most, np.minimum(by_cores[at], by_link[placed.wire]))
        return served, (by_cores, by_link)

    def _waiting(self, end: float) -> dict[str, tuple[float, float]]:
        """Return records waiting at each source until `end`, and their mean arrival time."""
        found = {}
        for name, (held, born) in self.held.items():
            flow = self.sources[name].until(end)
            came = flow.total
            found[name] = (held + came, mean_of_both(held, born, came, float((flow.born * flow.counts).sum())))
        return found

    def _room(self, number: int, members: Sequence[str], waiting: Mapping[str, tuple[float, float]], lasts: float) -> float:
        """Return the part of a group's waiting records that fits its `pending` limit."""
        under_way = self._queued(self.groups[number][1])
        every = sum(waiting[name][0] for name in members)
        # Records finished within the step free room; estimated by those of the last step.
        passed = max(0.0, sum(self.before[number]) - under_way)
        room = 0.0 if self.changing else max(0.0, self.settings.pending * len(members) - under_way + passed)
        return min(1.0, room / every) if every > ROUNDING else 1.0

    def _in_time(
        self,
        placed: SharedHosts,
        waiting: Mapping[str, tuple[float, float]],
        queues: Floats,
        most: Floats,
        lasts: float,
        away: float,
    ) -> list[float]:
        """Return the same where records are also in transit for `away` seconds (Little's law), by bisection."""
        if self.changing:
            return [0.0] * len(self.groups)
        limits = [self.settings.pending * len(members) for members, _ in self.groups]
        every = [sum(waiting[name][0] for name in members) for members, _ in self.groups]
        most_parts = [
            min(1.0, limit * lasts / away / amount) if amount > ROUNDING else 1.0
            for limit, amount in zip(limits, every, strict=True)
        ]

        def fits(factor: float) -> bool:
            entering = self._admitted(waiting, [factor * part for part in most_parts])
            served, _ = self._served(placed, queues, entering, most, lasts, self.scale)
            left = self._left(placed, queues, entering, served)
            return all(
                left[number] + factor * part * amount * away / lasts <= limit * (1 + ROUNDING)
                for number, (part, amount, limit) in enumerate(zip(most_parts, every, limits, strict=True))
            )

        low, high = 0.0, 1.0
        if fits(1.0):
            low = 1.0
        else:
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                low, high = (middle, high) if fits(middle) else (low, middle)
        return [low * part for part in most_parts]

    def _left(
        self, placed: SharedHosts, queues: Floats, entering: Mapping[str, tuple[float, float]], served: Floats
    ) -> list[float]:
        emitted = {name: amount for name, (amount, _) in entering.items()}
        left = {}
        for station in self.stations:
            rows = placed.slices[station.name]
            came = sum(emitted.get(edge.source, 0.0) * self.part_of(edge) for edge in self.inputs_of(station.name))
            done = float(served[rows].sum())
            left[station.name] = float(queues[rows].sum()) + came + station.loose - done  # type: ignore[attr-defined]
            emitted[station.name] = done * station.selectivity
        return [sum(left[name] / volume for name, volume in volumes.items() if volume > 0) for _, volumes in self.groups]

    def _queued(self, volumes: Mapping[str, float]) -> float:
        return sum(self.by_name[name].queued / volume for name, volume in volumes.items() if volume > 0)

    def _admitted(
        self, waiting: Mapping[str, tuple[float, float]], parts: Sequence[float]
    ) -> dict[str, tuple[float, float]]:
        """Return records admitted by source, and their mean arrival time. parts: by group."""
        return {
            name: (waiting[name][0] * part, waiting[name][1])
            for (members, _), part in zip(self.groups, parts, strict=True)
            for name in members
        }

    def _flow(
        self,
        placed: SharedHosts,
        queues: Floats,
        entering: Mapping[str, tuple[float, float]],
        most: Floats,
        granted: Floats,
    ) -> tuple[Floats, Floats]:
        """Return (core-seconds demanded, records processed) by instance if `granted` of the demand is."""
        wanted, served = np.zeros(queues.size), np.zeros(queues.size)
        emitted = {name: amount for name, (amount, _) in entering.items()}
        for station in self.stations:
            rows = placed.slices[station.name]
            coming = sum(emitted.get(edge.source, 0.0) * self.part_of(edge) for edge in self.inputs_of(station.name))
            have = queues[rows] + (coming + station.loose) * placed.shares[rows]  # type: ignore[attr-defined]
            wanted[rows] = np.minimum(have * placed.cost[rows], most[rows])
            served[rows] = wanted[rows] * granted[rows] / placed.cost[rows]
            emitted[station.name] = float(served[rows].sum()) * station.selectivity
        return wanted, served

    def _settle(
        self, placed: SharedHosts, entering: Mapping[str, tuple[float, float]], served: Floats, now: float, lasts: float
    ) -> None:
        """Record a step's queues, ages, work and output. now: the middle of the step."""
        emitted = dict(entering)
        for station in self.stations:
            assert isinstance(station, TaskStation)
            rows, crew, period = placed.slices[station.name], station.crew, station.period
            came, births = station.loose, station.loose * station.loose_born
            for edge in self.inputs_of(station.name):
                amount, born = emitted.get(edge.source, (0.0, 0.0))
                part = amount * self.part_of(edge)
                came += part
                births += part * (born - placed.travelled.get(edge, 0.0))
                period.arrived += part
            station.loose = 0.0
            got, done = came * placed.shares[rows], served[rows]
            have = crew.queued + got
            mean = births / came if came > ROUNDING else now
            old = np.divide(crew.queued * crew.born + got * mean, have, out=np.full(have.size, now), where=have > ROUNDING)
            total = float(done.sum())
            before = float(have.sum())
            crew.queued, crew.born = np.maximum(0.0, have - done), old
            seconds = done * placed.cost[rows]
            crew.busy += seconds / max(station.operator.cores, ROUNDING)
            if total > ROUNDING:
                work = float(seconds.sum()) / total
                # Little's law: the wait is the queue over the throughput.
                waited = (before - total) / total * lasts + work
                period.done += total
                period.judged += total
                period.delay += total * waited
                period.within = period.within + total * (waited <= station.limits)
                station.durations.append(_one(waited, total))
                left = total * station.selectivity
                period.emitted += left
                emitted[station.name] = (left, float((done * old).sum()) / total - work)
            else:
                emitted[station.name] = (0.0, now)
            for edge in self.live[station.name]:
                if edge.target not in self.by_name and emitted[station.name][0] > 0:
                    amount, born = emitted[station.name]
                    amount *= self.part_of(edge)
                    if edge.target in self.signals:
                        self.signalled[self.signals[edge.target]] = now
                        continue
                    self.committed += amount
                    self.latencies.append(_one(max(0.0, now - born), amount))
        for name in self.sources:
            for edge in self.live[name]:
                if edge.target not in self.by_name:
                    self.committed += entering[name][0] * self.part_of(edge)

    def part_of(self, edge: Edge) -> float:
        if edge.delivery is not Delivery.ROUND_ROBIN:
            return 1.0
        return 1 / sum(each.delivery is Delivery.ROUND_ROBIN for each in self.live[edge.source])

    def inputs_of(self, name: str) -> list[Edge]:
        return [edge for edge in self.graph.inputs[name] if edge in self.live[edge.source]]

    def _current(self, now: float, pool: SimulatedHosts) -> SharedHosts:
        """Return the placement, recomputed after changes of instances, shares or speeds."""
        tasks: list[TaskStation] = []
        for station in self.stations:
            assert isinstance(station, TaskStation)
            station.now = now
            tasks.append(station)
        turn = self.settings.share_slot(now)
        crews = sum(len(station.crew) for station in tasks)
        version = (pool.changes, pool.placements, self.version, turn, pool.speed_slot(now), crews)
        if self._placement is None or self._placement[0] != version:
            self._placement = (version, self._located(tasks, pool, now))
        return self._placement[1]

    def _located(self, tasks: list[TaskStation], pool: SimulatedHosts, now: float) -> SharedHosts:
        volumes: dict[str, float] = {}
        for _, each in self.groups:
            volumes |= each
        return shared_hosts(self, tasks, volumes, pool, now)

    @property
    def empty(self) -> bool:
        return super().empty and all(amount <= 1e-6 for amount, _ in self.held.values())


def _one(duration: float, count: float) -> Items:
    return Items(np.array([duration]), np.array([count]), np.array([count]))


LEAST = 1e-9  # weight of a source without records


def source_groups(network: QueueNetwork) -> list[tuple[list[str], dict[str, float]]]:
    """Return groups of sources with a common operator, and records at each operator."""
    graph, terms = network.graph, network.terms[min(network.epochs.values())]
    composition = terms.composition
    selectivity = {name: cost.selectivity for name, cost in terms.costs.items()}
    totals = {name: max(float(source.total), LEAST) for name, source in network.sources.items()}
    reached = {}
    for name in network.sources:
        volumes = offered_rates(graph, {name: 1.0}, selectivity, composition)
        reached[name] = {o for o in network.by_name if volumes[o] > 0}
    groups: list[tuple[list[str], set[str]]] = []
    for name, stations in reached.items():
        joined = [group for group in groups if group[1] & stations]
        groups = [group for group in groups if not group[1] & stations]
        members = [each for group in joined for each in group[0]] + [name]
        groups.append((members, stations.union(*(group[1] for group in joined))))
    found = []
    for members, stations in groups:
        every = sum(totals[name] for name in members)
        volumes = offered_rates(graph, {name: totals[name] / every for name in members}, selectivity, composition)
        found.append((members, {name: volumes[name] for name in sorted(stations)}))
    return found
