"""Instances with queues of their own on hosts whose cores and link they share: how Storm runs executors in workers.

Which host an instance stands on matters here beyond its speed: what is there together gets as much as the host has and no
more, so one full host holds up all that wait for it. Records are amounts that flow in steps of time, each instance getting
its share of them (`Settings.shares`); the age of what waits is kept as a mean. Waiting by chance, in queues that have room,
is left out; an operator with several inputs works on each record as it comes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elastream.model.graph import Delivery, Edge, Operator
from elastream.model.observation import Composition, Floats, Integers
from elastream.model.qos import offered_rates
from elastream.model.stages import Layout
from elastream.simulation.arrivals import Load
from elastream.simulation.network import Network, Source, alternate_costs
from elastream.simulation.pool import Pool
from elastream.simulation.settings import Service, Settings
from elastream.simulation.stations import Flow, Station

__all__ = ["TaskNetwork", "TaskStation"]

STEPS = 20
"""Steps that a monitoring period is cut into."""
PASSES = 4
"""Times in a step that what hosts can give and what is asked of them are fitted to each other, at most."""
DUST = 1e-9
"""Records, and core-seconds, less than this are nothing."""


class TaskStation(Station):
    """An operator. `crew.queued` holds the records that wait at each instance, `crew.born` the mean of when they came."""

    def __init__(self, operator: Operator, stream: int, service: Service, limits: Floats, settings: Settings) -> None:
        super().__init__(operator, stream, service, 1, limits, 0)
        self.weights = np.atleast_2d(np.asarray(settings.shares.get(operator.name, (1.0,)), dtype=np.float64))
        self.factors = np.atleast_2d(np.asarray(settings.efforts.get(operator.name, (1.0,)), dtype=np.float64))
        self.interval = settings.share_interval
        self.now = 0.0
        self.loose = 0.0
        self.loose_born = 0.0

    @property
    def needs(self) -> tuple[float, float]:
        """Too little to count of a host's cores, which are shared; enough to be spread evenly over hosts."""
        return 1e-6, self.operator.memory

    @property
    def shares(self) -> Floats:
        """Part of the operator's records that each instance gets now; by its number, the weights over again if too few."""
        mine = self._now(self.weights)
        return np.asarray(mine / mine.sum()) if mine.sum() > 0 else super().shares

    @property
    def efforts(self) -> Floats:
        """Times the operator's cost that a record costs at each instance now."""
        return self._now(self.factors)

    def _now(self, table: Floats) -> Floats:
        """The row of `table` that is its turn, by the number of each instance."""
        row = table[int(self.now / self.interval + DUST) % len(table)]
        return np.asarray(row[self.crew.index % row.size])

    @property
    def queued(self) -> float:
        """Records that wait."""
        return float(self.crew.queued.sum()) + self.loose

    @property
    def in_service(self) -> float:
        """None: what an instance works on still counts as waiting."""
        return 0.0

    @property
    def unfinished(self) -> bool:
        """Whether records wait."""
        return self.queued > 1e-6

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Instances go, and what waits at them is for the others; where their host is lost, they start again elsewhere."""
        if lost:
            return
        crew = self.crew
        amount = float(crew.queued[rows].sum())
        self.loose_born = _mean(self.loose, self.loose_born, amount, float((crew.queued[rows] * crew.born[rows]).sum()))
        self.loose += amount
        crew.queued[rows] = 0.0


@dataclass(frozen=True)
class Ground:
    """All instances of all stations in one table, as they stand. Arrays by instance but for `room` and `link`, by host.

    cost: core-seconds a record. limit: seconds of work in a second that its thread does. carried: bytes a record brings to
    its host's link. room: cores. link: bytes/s, inf where there is no limit. travelled: mean seconds on the way over each
    edge.
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


class TaskNetwork(Network):
    """The same face as `Network`."""

    def __init__(self, layout: Layout, loads: Mapping[str, Load], settings: Settings, seed: int, seconds: float) -> None:
        super().__init__(layout, loads, settings, seed, seconds)
        self.step = settings.monitor / STEPS
        # Cut as steps are, so that what comes within one came in its middle.
        self.sources = {name: Source(source.load, self.step) for name, source in self.sources.items()}
        self.scale: Floats = np.ones(0)
        self.held = dict.fromkeys(self.sources, (0.0, 0.0))
        self.groups = _groups(self)
        self.before = [(0.0, 0.0)] * len(self.groups)
        self._ground: tuple[tuple[int, ...], Ground] | None = None

    def _station(self, operator: Operator, stream: int, settings: Settings, seed: int) -> Station:
        limit = operator.max_duration if operator.max_duration is not None else math.inf
        limits = np.array(settings.factors) * limit
        return TaskStation(operator, stream, settings.service(operator.name), limits, settings)

    def compose(self, composition: Composition) -> None:
        """Work under this composition from now on."""
        super().compose(composition)
        self._ground = None

    def advance(self, begin: float, end: float, pool: Pool) -> None:
        """Everything that happens in [begin, end)."""
        steps = max(1, math.ceil((end - begin) / self.step - 1e-6))
        lasts = (end - begin) / steps
        for number in range(steps):
            self._step(begin + number * lasts, lasts, pool)
        for station in self.stations:
            station.period.given += len(station.crew) * (end - begin)

    def _step(self, begin: float, lasts: float, pool: Pool) -> None:
        """One step: what sources let in flows through all operators, as far as hosts have cores and links."""
        entering = self._enter(begin, lasts)
        ground = self._stand(begin, pool)
        stations = self.stations
        queues = np.concatenate([station.crew.queued for station in stations])
        # Instances that start within the step have the rest of it.
        free = np.concatenate([station.crew.free for station in stations])
        most = np.where(ground.host >= 0, ground.limit, 0.0) * np.clip(begin + lasts - free, 0.0, lasts)
        at = np.where(ground.host >= 0, ground.host, 0)
        hosts = ground.room.size
        scale = self.scale if self.scale.size == hosts else np.ones(hosts)
        for _ in range(PASSES):
            wanted, served = self._flow(ground, queues, entering, most, scale, at)
            cores = np.bincount(at, wanted, hosts)
            link = np.bincount(at, wanted / ground.cost * ground.carried, hosts)
            by_cores = np.divide(ground.room * lasts, cores, out=np.ones(hosts), where=cores > DUST)
            by_link = np.divide(ground.link * lasts, link, out=np.ones(hosts), where=link > DUST)
            before, scale = scale, np.minimum(1.0, np.minimum(by_cores, by_link))
            if np.abs(scale - before).max() < DUST:
                break
        else:
            _, served = self._flow(ground, queues, entering, most, scale, at)
        self.scale = scale
        self._settle(ground, entering, served, begin + lasts / 2, lasts)

    def _enter(self, begin: float, lasts: float) -> dict[str, tuple[float, float]]:
        """Records that each source lets in, and the mean of when they came: no more than may be under way at once."""
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
            # What is done within the step makes room for as many: about as many as in the last one.
            passed = max(0.0, sum(self.before[number]) - under_way)
            room = max(0.0, self.settings.pending * len(members) - under_way + passed)
            part = min(1.0, room / every) if every > DUST else 1.0
            self.before[number] = (under_way, every * part)
            for name, (amount, born) in waiting.items():
                found[name] = (amount * part, born)
                self.held[name] = (amount * (1 - part), born)
                self.sources[name].held = amount * (1 - part)
        return found

    def _flow(
        self,
        ground: Ground,
        queues: Floats,
        entering: Mapping[str, tuple[float, float]],
        most: Floats,
        scale: Floats,
        at: Integers,
    ) -> tuple[Floats, Floats]:
        """(core-seconds that instances would work, records that they do) where hosts give `scale` of what is asked."""
        wanted, served = np.zeros(queues.size), np.zeros(queues.size)
        emitted = {name: amount for name, (amount, _) in entering.items()}
        granted = scale[at]
        for station in self.stations:
            rows = ground.slices[station.name]
            coming = sum(emitted.get(edge.source, 0.0) * self._part(edge) for edge in self._inputs(station.name))
            have = queues[rows] + (coming + station.loose) * ground.shares[rows]  # type: ignore[attr-defined]
            wanted[rows] = np.minimum(have * ground.cost[rows], most[rows])
            served[rows] = wanted[rows] * granted[rows] / ground.cost[rows]
            emitted[station.name] = float(served[rows].sum()) * station.selectivity
        return wanted, served

    def _settle(
        self, ground: Ground, entering: Mapping[str, tuple[float, float]], served: Floats, now: float, lasts: float
    ) -> None:
        """Enter what a step has come to: queues, ages, work, and what leaves. now: the middle of the step."""
        emitted = dict(entering)
        for station in self.stations:
            assert isinstance(station, TaskStation)
            rows, crew, period = ground.slices[station.name], station.crew, station.period
            came, births = station.loose, station.loose * station.loose_born
            for edge in self._inputs(station.name):
                amount, born = emitted.get(edge.source, (0.0, 0.0))
                part = amount * self._part(edge)
                came += part
                births += part * (born - ground.travelled.get(edge, 0.0))
                period.arrived += part
            station.loose = 0.0
            got, done = came * ground.shares[rows], served[rows]
            have = crew.queued + got
            mean = births / came if came > DUST else now
            old = np.divide(crew.queued * crew.born + got * mean, have, out=np.full(have.size, now), where=have > DUST)
            total = float(done.sum())
            before = float(have.sum())
            crew.queued, crew.born = np.maximum(0.0, have - done), old
            seconds = done * ground.cost[rows]
            crew.busy += seconds / max(station.operator.cores, DUST)
            if total > DUST:
                work = float(seconds.sum()) / total
                # Who waits in a queue waits for as long as it takes to work that off (Little).
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
                    self.committed += amount
                    self.latencies.append(_one(max(0.0, now - born), amount))
        for name in self.sources:
            for edge in self.live[name]:
                if edge.target not in self.by_name:
                    self.committed += entering[name][0] * self._part(edge)

    def _part(self, edge: Edge) -> float:
        """Of what the source of `edge` emits, how much travels over it."""
        if edge.delivery is not Delivery.ROUND_ROBIN:
            return 1.0
        return 1 / sum(each.delivery is Delivery.ROUND_ROBIN for each in self.live[edge.source])

    def _inputs(self, name: str) -> list[Edge]:
        return [edge for edge in self.graph.inputs[name] if edge in self.live[edge.source]]

    def _stand(self, now: float, pool: Pool) -> Ground:
        """The table of instances, anew where they, their shares or hosts' speeds have changed."""
        tasks: list[TaskStation] = []
        for station in self.stations:
            assert isinstance(station, TaskStation)
            station.now = now
            tasks.append(station)
        turn = int(now / self.settings.share_interval + DUST)
        speed_turn = -1 if pool.steady else int(now / self.settings.speed_interval + DUST)
        crews = sum(len(station.crew) for station in tasks)
        standing = (pool.changes, pool.placements, self.version, turn, speed_turn, crews)
        if self._ground is None or self._ground[0] != standing:
            self._ground = (standing, self._lie(tasks, pool, now))
        return self._ground[1]

    def _lie(self, tasks: list[TaskStation], pool: Pool, now: float) -> Ground:
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
        # What share of an operator's records each host handles; rows of operators, columns of hosts.
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
        room = np.where(pool.up[:hosts], pool.cores[:hosts], 0.0) * self.settings.delivered
        return Ground(slices, host, cost, limit, carried, room, link, shares, travelled)

    @property
    def empty(self) -> bool:
        """Whether nothing is left to come or to do."""
        return super().empty and all(amount <= 1e-6 for amount, _ in self.held.values())


def _groups(network: Network) -> list[tuple[list[str], dict[str, float]]]:
    """Sources that feed a common operator, together, and records at each operator for one of them that comes in."""
    graph, settings = network.graph, network.settings
    composition = Composition.default(graph)
    selectivity = {name: each for name, (_, each) in alternate_costs(graph, settings, composition).items()}
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
    """Mean of `weight` records at `value` and `more` that sum up to `more_sum`."""
    total = weight + more
    return (weight * value + more_sum) / total if total > DUST else 0.0


def _known(size: float) -> float:
    return 0.0 if math.isnan(size) else size


def _one(duration: float, count: float) -> Flow:
    """`count` records that took `duration` seconds."""
    return Flow(np.array([duration]), np.array([count]), np.array([count]))
