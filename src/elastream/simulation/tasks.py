"""Simulates instances with a queue each on hosts whose cores and link they share, as Storm runs executors in workers.

Placement matters beyond host speed: the instances on a host share its capacity, so an overloaded host delays all of them.
Records are amounts that flow in time steps; each instance gets its share (`Settings.shares`), and the age of waiting
records is kept as a mean. Random waiting in queues below capacity is not modelled; several inputs are merged.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elastream.model.graph import Delivery, Edge, Operator
from elastream.model.key_table import KeyTables
from elastream.model.observation import Floats, Integers
from elastream.model.qos import offered_rates
from elastream.model.stages import Layout
from elastream.simulation.arrivals import Load
from elastream.simulation.network import QueueNetwork
from elastream.simulation.pool import SimulatedHosts
from elastream.simulation.settings import Settings
from elastream.simulation.sources import Source
from elastream.simulation.stations import Items, Station

STEPS = 20
"""Time steps per monitoring period."""
PASSES = 4
"""Most iterations per step that fit the demand on hosts to their capacity."""
DUST = 1e-9
"""Smaller amounts of records or core-seconds are rounding error, treated as 0."""


class TaskStation(Station):
    """An operator. crew.queued: records waiting at each instance; crew.born: the mean time at which they arrived.

    loose: records of removed instances, to be divided among the others.
    """

    def __init__(self, operator: Operator, stream: int, settings: Settings) -> None:
        super().__init__(operator, stream, settings)
        self.now = 0.0
        self.loose = 0.0
        self.loose_born = 0.0

    @property
    def needs(self) -> tuple[float, float]:
        """A token amount of cores, which are shared (makes the pool spread instances evenly), and the memory."""
        return 1e-6, self.operator.memory

    @property
    def shares(self) -> Floats:
        """Fraction of the operator's records that each instance gets now."""
        mine = self.settings.by_instance(self.settings.shares, self.name, self.crew.index, self.now)
        return np.asarray(mine / mine.sum()) if mine.sum() > 0 else super().shares

    @property
    def efforts(self) -> Floats:
        """Factor on the operator's cost per record at each instance now."""
        return self.settings.by_instance(self.settings.efforts, self.name, self.crew.index, self.now)

    @property
    def queued(self) -> float:
        return float(self.crew.queued.sum()) + self.loose

    @property
    def in_service(self) -> float:
        """0: a record in service still counts as waiting."""
        return 0.0

    @property
    def unfinished(self) -> bool:
        return self.queued > 1e-6

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Remove instances and pass their records to the others; those of a lost host keep them and restart elsewhere."""
        if lost:
            return
        crew = self.crew
        amount = float(crew.queued[rows].sum())
        self.loose_born = _mean(self.loose, self.loose_born, amount, float((crew.queued[rows] * crew.born[rows]).sum()))
        self.loose += amount
        crew.queued[rows] = 0.0


@dataclass(frozen=True)
class Placement:
    """Current placement of all instances. Arrays by instance, except `room` and `link`, by host.

    slices: instances of each operator. host: row of the host, -1 if unplaced. cost: core-seconds per record. limit: cores
    that an instance can use. carried: bytes per record over its host's link. room: cores. link: bytes/s, inf without
    a limit. shares: fraction of the operator's records. travelled: mean seconds in transit over each edge.
    """

    slices: Mapping[str, slice]
    host: Integers
    cost: Floats
    limit: Floats
    carried: Floats
    room: Floats
    link: Floats
    shares: Floats
    travelled: Mapping[Edge, float]


class TaskNetwork(QueueNetwork):
    """Drop-in for `QueueNetwork`, with a queue per instance."""

    def __init__(
        self,
        layout: Layout,
        loads: Mapping[str, Load],
        settings: Settings,
        seed: int,
        seconds: float,
        tables: KeyTables,
    ) -> None:
        super().__init__(layout, loads, settings, seed, seconds, tables)
        self.step = settings.monitor / STEPS
        # One cohort per step, so that a step's arrivals lie in its middle.
        self.sources = {name: Source(source.load, self.step) for name, source in self.sources.items()}
        self.scale: Floats = np.ones(0)
        self.held = dict.fromkeys(self.sources, (0.0, 0.0))
        self._grouped(self.epoch)
        self._placement: tuple[tuple[int, ...], Placement] | None = None

    def _station(self, operator: Operator, stream: int, settings: Settings, seed: int) -> Station:
        return TaskStation(operator, stream, settings)

    def _grouped(self, epoch: int) -> None:
        """Find which sources feed operators together under the composition of `epoch`."""
        self.grouped = epoch
        self.groups = _groups(self)
        self.before = [(0.0, 0.0)] * len(self.groups)

    def advance(self, begin: float, end: float, pool: SimulatedHosts) -> None:
        if self.changing:
            self._drain(begin)  # in any other consistency it changes at once
        if (working := min(self.taken.values())) != self.grouped:
            self._grouped(working)
        steps = max(1, math.ceil((end - begin) / self.step - 1e-6))
        lasts = (end - begin) / steps
        for number in range(steps):
            self._step(begin + number * lasts, lasts, pool)
        for station in self.stations:
            station.period.given += len(station.crew) * (end - begin)
        if not self.settled:
            self._note_effective(begin)

    def _step(self, begin: float, lasts: float, pool: SimulatedHosts) -> None:
        """Simulate one step: admitted records flow through all operators, limited by the hosts' cores and links."""
        entering = self._enter(begin, lasts)
        placed = self._current(begin, pool)
        stations = self.stations
        queues = np.concatenate([station.crew.queued for station in stations])
        # Instances that start within the step work for the rest of it.
        free = np.concatenate([station.crew.free for station in stations])
        most = np.where(placed.host >= 0, placed.limit, 0.0) * np.clip(begin + lasts - free, 0.0, lasts)
        at = np.where(placed.host >= 0, placed.host, 0)
        hosts = placed.room.size
        scale = self.scale if self.scale.size == hosts else np.ones(hosts)
        for _ in range(PASSES):
            wanted, served = self._flow(placed, queues, entering, most, scale, at)
            cores = np.bincount(at, wanted, hosts)
            link = np.bincount(at, wanted / placed.cost * placed.carried, hosts)
            by_cores = np.divide(placed.room * lasts, cores, out=np.ones(hosts), where=cores > DUST)
            by_link = np.divide(placed.link * lasts, link, out=np.ones(hosts), where=link > DUST)
            before, scale = scale, np.minimum(1.0, np.minimum(by_cores, by_link))
            if np.abs(scale - before).max() < DUST:
                break
        else:
            _, served = self._flow(placed, queues, entering, most, scale, at)
        self.scale = scale
        self._settle(placed, entering, served, begin + lasts / 2, lasts)

    def _enter(self, begin: float, lasts: float) -> dict[str, tuple[float, float]]:
        """Records that each source admits within its `pending` limit, and their mean arrival time."""
        found = {}
        for number, (members, volumes) in enumerate(self.groups):
            under_way = sum(self.by_name[name].queued / volume for name, volume in volumes.items() if volume > 0)
            waiting = {}
            for name in members:
                flow = self.sources[name].until(begin + lasts)
                held, born = self.held[name]
                came = flow.total
                waiting[name] = (held + came, _mean(held, born, came, float((flow.born * flow.counts).sum())))
            every = sum(amount for amount, _ in waiting.values())
            # Records finished within the step free room; estimated by those of the last step.
            passed = max(0.0, sum(self.before[number]) - under_way)
            room = 0.0 if self.changing else max(0.0, self.settings.pending * len(members) - under_way + passed)
            part = min(1.0, room / every) if every > DUST else 1.0
            self.before[number] = (under_way, every * part)
            for name, (amount, born) in waiting.items():
                found[name] = (amount * part, born)
                self.held[name] = (amount * (1 - part), born)
                self.sources[name].held = amount * (1 - part)
        return found

    def _flow(
        self,
        placed: Placement,
        queues: Floats,
        entering: Mapping[str, tuple[float, float]],
        most: Floats,
        scale: Floats,
        at: Integers,
    ) -> tuple[Floats, Floats]:
        """(core-seconds that instances demand, records that they process) if hosts grant `scale` of the demand."""
        wanted, served = np.zeros(queues.size), np.zeros(queues.size)
        emitted = {name: amount for name, (amount, _) in entering.items()}
        granted = scale[at]
        for station in self.stations:
            rows = placed.slices[station.name]
            coming = sum(emitted.get(edge.source, 0.0) * self._part(edge) for edge in self._inputs(station.name))
            have = queues[rows] + (coming + station.loose) * placed.shares[rows]  # type: ignore[attr-defined]
            wanted[rows] = np.minimum(have * placed.cost[rows], most[rows])
            served[rows] = wanted[rows] * granted[rows] / placed.cost[rows]
            emitted[station.name] = float(served[rows].sum()) * station.selectivity
        return wanted, served

    def _settle(
        self, placed: Placement, entering: Mapping[str, tuple[float, float]], served: Floats, now: float, lasts: float
    ) -> None:
        """Record a step's results: queues, ages, work and emitted records. now: the middle of the step."""
        emitted = dict(entering)
        for station in self.stations:
            assert isinstance(station, TaskStation)
            rows, crew, period = placed.slices[station.name], station.crew, station.period
            came, births = station.loose, station.loose * station.loose_born
            for edge in self._inputs(station.name):
                amount, born = emitted.get(edge.source, (0.0, 0.0))
                part = amount * self._part(edge)
                came += part
                births += part * (born - placed.travelled.get(edge, 0.0))
                period.arrived += part
            station.loose = 0.0
            got, done = came * placed.shares[rows], served[rows]
            have = crew.queued + got
            mean = births / came if came > DUST else now
            old = np.divide(crew.queued * crew.born + got * mean, have, out=np.full(have.size, now), where=have > DUST)
            total = float(done.sum())
            before = float(have.sum())
            crew.queued, crew.born = np.maximum(0.0, have - done), old
            seconds = done * placed.cost[rows]
            crew.busy += seconds / max(station.operator.cores, DUST)
            if total > DUST:
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
                    amount *= self._part(edge)
                    if edge.target in self.signals:
                        self.signalled[self.signals[edge.target]] = now
                        continue
                    self.committed += amount
                    self.latencies.append(_one(max(0.0, now - born), amount))
        for name in self.sources:
            for edge in self.live[name]:
                if edge.target not in self.by_name:
                    self.committed += entering[name][0] * self._part(edge)

    def _part(self, edge: Edge) -> float:
        """Fraction of what the source of `edge` emits that travels over `edge`."""
        if edge.delivery is not Delivery.ROUND_ROBIN:
            return 1.0
        return 1 / sum(each.delivery is Delivery.ROUND_ROBIN for each in self.live[edge.source])

    def _inputs(self, name: str) -> list[Edge]:
        return [edge for edge in self.graph.inputs[name] if edge in self.live[edge.source]]

    def _current(self, now: float, pool: SimulatedHosts) -> Placement:
        """The current placement, recomputed if instances, shares or host speeds have changed."""
        tasks: list[TaskStation] = []
        for station in self.stations:
            assert isinstance(station, TaskStation)
            station.now = now
            tasks.append(station)
        turn = self.settings.share_slot(now)
        crews = sum(len(station.crew) for station in tasks)
        version = (pool.changes, pool.placements, self.version, turn, pool.speed_slot(now), crews)
        if self._placement is None or self._placement[0] != version:
            self._placement = (version, self._compute(tasks, pool, now))
        return self._placement[1]

    def _compute(self, tasks: list[TaskStation], pool: SimulatedHosts, now: float) -> Placement:
        ends = np.cumsum([0, *(len(station.crew) for station in tasks)]).tolist()
        slices = {station.name: slice(a, b) for station, a, b in zip(tasks, ends, ends[1:], strict=False)}
        host = np.concatenate([station.crew.host for station in tasks])
        hosts = max(1, len(pool))
        at = np.where(host >= 0, host, 0)
        speed = pool.speeds(now)[at] if len(pool) else np.ones(host.size)
        up = pool.up[at]
        shares = np.concatenate([station.shares for station in tasks])
        cost = np.concatenate([np.maximum(s.work * s.efforts, DUST) for s in tasks]) / speed
        limit = np.where(up, np.concatenate([np.full(len(s.crew), s.operator.cores) for s in tasks]), 0.0)
        # Fraction of each operator's records that each host handles; shape (hosts,) each.
        spread = {
            s.name: np.bincount(at[slices[s.name]], shares[slices[s.name]] * (host[slices[s.name]] >= 0), hosts)
            for s in tasks
        }
        carried, travelled = np.zeros(host.size), {}
        for station in tasks:
            rows = slices[station.name]
            for edge in self._inputs(station.name):
                there = spread.get(edge.source, np.zeros(hosts))
                size = _known(self.settings.record_size(self.graph.by_name[edge.source]))
                carried[rows] += size * (1 - there[at[rows]])
                same = float((there * spread[station.name]).sum())
                travelled[edge] = self.settings.message_overhead + self.settings.latency * (1 - same)
            size = _known(self.settings.record_size(station.operator)) * station.selectivity
            for edge in self.live[station.name]:
                if edge.target in spread:
                    carried[rows] += size * self._part(edge) * (1 - spread[edge.target][at[rows]])
        link = np.where(pool.bandwidth[:hosts] > 0, pool.bandwidth[:hosts], math.inf)
        cores = pool.cores[:hosts]
        if self.settings.background:
            taken, sent = self.settings.background_of([lease.host for lease in pool.leases])
            cores, link = np.maximum(0.0, cores - taken), np.maximum(DUST, link - sent)
        room = np.where(pool.up[:hosts], cores, 0.0) * self.settings.delivered
        return Placement(slices, host, cost, limit, carried, room, link, shares, travelled)

    @property
    def empty(self) -> bool:
        return super().empty and all(amount <= 1e-6 for amount, _ in self.held.values())


def _groups(network: QueueNetwork) -> list[tuple[list[str], dict[str, float]]]:
    """Groups of sources that reach a common operator, with the records at each operator per record of the group."""
    graph, terms = network.graph, network.terms[min(network.taken.values())]
    composition = terms.composition
    selectivity = {name: cost.selectivity for name, cost in terms.costs.items()}
    totals = {name: max(float(source.total), DUST) for name, source in network.sources.items()}
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


def _mean(weight: float, value: float, more: float, more_sum: float) -> float:
    """Mean over `weight` records with mean `value` and `more` records with sum `more_sum`; 0 for no records."""
    total = weight + more
    return (weight * value + more_sum) / total if total > DUST else 0.0


def _known(size: float) -> float:
    return 0.0 if math.isnan(size) else size


def _one(duration: float, count: float) -> Items:
    return Items(np.array([duration]), np.array([count]), np.array([count]))
