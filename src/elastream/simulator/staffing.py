"""Placement of operator instances on simulated hosts, and the figures of a run.

State partitions follow their operator's ring of hosts; others go to the host with most room.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostState, Lease
from elastream.core.ring import Ring
from elastream.core.task_id import TaskId
from elastream.simulator.fused import FusedNetwork
from elastream.simulator.network import QueueNetwork
from elastream.simulator.pool import SimulatedHosts
from elastream.simulator.settings import Settings
from elastream.simulator.stations import Station
from elastream.simulator.watching import MetricsCollector


class Staffing:
    """Instances of all stations on the hosts of a pool. `leaving` receives instances before removal."""

    def __init__(
        self,
        network: QueueNetwork | FusedNetwork,
        pool: SimulatedHosts,
        settings: Settings,
        leaving: Callable[[Station, Integers], None],
    ) -> None:
        self.network, self.pool, self.settings = network, pool, settings
        self._leaving = leaving
        self.columns = {station.name: column for column, station in enumerate(network.stations)}
        self.migrations = self.upscalings = self.downscalings = 0
        self.shortfall: list[Station] = []

    def evict(self, row: int, now: float) -> None:
        """Requeue a lost host's items and restart its instances."""
        self._leave_rings(row)
        for station in self.network.stations:
            mine = np.flatnonzero(station.crew.host == row)
            if mine.size:
                station.dismiss(mine, lost=True)
                station.crew.host[mine] = -1
                station.crew.free[mine] = math.inf
                if station not in self.shortfall:
                    self.shortfall.append(station)
        self.pool.clear(row)
        self.place_rest(now)

    def place_rest(self, now: float) -> None:
        """Restart instances of lost hosts as far as there is room."""
        for station in list(self.shortfall):
            crew = station.crew
            for i in np.flatnonzero(crew.host < 0):
                row = self._target(station, int(i))
                if row is None:
                    break
                self.pool.hold(row, *station.needs)
                crew.host[i] = row
                crew.free[i] = self._start(station, row, now)
            if not (crew.host < 0).any():
                self.shortfall.remove(station)

    def _target(self, station: Station, i: int, without: Sequence[int] = ()) -> int | None:
        """Return the host for instance `i`: its owner on the ring, or that with most room."""
        if (ring := station.ring) is not None:
            row = self.pool.active_row(ring.hosts_of(len(station.crew))[i])
            if row is not None and row not in without and self.pool.fits(*station.needs)[row]:
                return row
        return self.pool.best(*station.needs, without)

    def _leave_rings(self, row: int) -> None:
        host = self.pool.leases[row].host
        for station in self.network.stations:
            if (ring := station.ring) is not None and host in ring:
                station.ring = ring.without(host) if len(ring) > 1 else None

    def follow(self, station: Station, ring: Ring, now: float) -> tuple[int, str]:
        """Move instances to their owners on `ring`, all or none; return (moves, refusal or "")."""
        rows = [self.pool.active_row(host) for host in ring.hosts_of(len(station.crew))]
        moving = [(i, row) for i, row in enumerate(rows) if row is not None and station.crew.host[i] != row]
        fitting = self.pool.fits(*station.needs)
        full = next((row for _, row in moving if not fitting[row]), None)
        if full is not None:
            return 0, f"host {self.pool.leases[full].host!r} has no room for state of {station.name}"
        station.ring = ring
        for i, row in moving:
            self.shift(station, i, row, now)
        return len(moving), ""

    def _start(self, station: Station, row: int, now: float) -> float:
        column = self.columns[station.name]
        seconds = self.settings.start_cached
        if not self.pool.images[row, column]:
            seconds += station.operator.image / self.settings.registry_bandwidth
            self.pool.images[row, column] = True
        return max(now, float(self.pool.ready[row])) + seconds

    def begin(self, counts: Mapping[str, int], on: Mapping[str, Sequence[int]], now: float) -> str:
        """Place the first instances of a run, all or none; return a refusal or "".

        Without `on`, instances that cannot be spread are packed by first fit, largest first.
        """
        placed = [station for station in self.network.stations if station.placed]
        rows, refused = self._reserve(placed, counts, self.pool.spread, on)
        if refused and not on:
            placed.sort(key=lambda station: station.needs, reverse=True)
            rows, refused = self._reserve(placed, counts, self.pool.pack, {})
        for station in () if refused else self.network.stations:
            count = counts[station.name]
            chosen = rows.get(station.name, [-1] * count)
            for row in chosen if station.placed else ():
                self._start(station, row, now)
            station.crew.add(chosen, [now if station.placed else math.inf] * count)
        return refused

    def _reserve(
        self,
        stations: Sequence[Station],
        counts: Mapping[str, int],
        choose: Callable[[float, float, int], list[int]],
        on: Mapping[str, Sequence[int]],
    ) -> tuple[dict[str, list[int]], str]:
        """Reserve instances on hosts `on`, then as `choose` does; return (rows, refusal or "")."""
        rows: dict[str, list[int]] = {}
        for station in stations:
            rows[station.name] = mine = []
            for row in on.get(station.name, ())[: counts[station.name]]:
                if self.pool.fits(*station.needs)[row]:
                    self.pool.hold(row, *station.needs)
                    mine.append(row)
            mine += choose(*station.needs, counts[station.name] - len(mine))
            if len(rows[station.name]) < counts[station.name]:
                for each in stations[: len(rows)]:
                    for row in rows[each.name]:
                        self.pool.hold(row, *each.needs, -1)
                return {}, f"no host has room for another instance of {station.name}"
        return rows, ""

    def extend(self, station: Station, count: int, on: Sequence[str], now: float) -> str:
        """Add instances, first on hosts `on`, all or none; return a refusal or ""."""
        operator, pool = station.operator, self.pool
        if not station.placed:
            station.crew.add([-1] * count, [math.inf] * count)
            return ""
        chosen: list[int] = []
        refused = ""
        for host in on[:count]:
            row = pool.active_row(host)
            if row is None or not pool.fits(*station.needs)[row]:
                refused = f"host {host!r} is not leased or has no room for {operator.name}"
                break
            self.pool.hold(row, *station.needs)
            chosen.append(row)
        if not refused:
            chosen += pool.spread(*station.needs, count - len(chosen))
            if len(chosen) < count:
                refused = f"no host has room for another instance of {operator.name}"
        if refused:
            for row in chosen:
                self.pool.hold(row, *station.needs, -1)
        else:
            station.crew.add(chosen, [self._start(station, row, now) for row in chosen])
        return refused

    def shrink(self, station: Station, count: int, without: Sequence[TaskId]) -> str:
        crew = station.crew
        named = [task.index for task in without if task.operator == station.name][:count]
        if unknown := [index for index in named if index not in crew.index]:
            return f"{station.name} has no instance {unknown[0]}"
        rows = np.flatnonzero(np.isin(crew.index, named))
        rest = np.setdiff1d(np.arange(len(crew)), rows)
        rows = np.concatenate([rows, rest[rest.size - (count - rows.size) :]])
        station.dismiss(rows, lost=False)
        for row in crew.host[rows]:
            self.pool.hold(int(row), *station.needs, -1)
        self._leaving(station, rows)
        crew.remove(rows)
        return ""

    def shift(self, station: Station, i: int, target: int, now: float) -> None:
        crew = station.crew
        self.pool.hold(int(crew.host[i]), *station.needs, -1)
        self.pool.hold(target, *station.needs)
        crew.host[i] = target
        started = self._start(station, target, now)
        crew.free[i] = max(started, crew.finish[i]) if math.isfinite(crew.finish[i]) else started
        self.migrations += 1

    def empty(self, row: int, now: float) -> int:
        left = 0
        self._leave_rings(row)
        for station in self.network.stations:
            for i in np.flatnonzero(station.crew.host == row):
                target = self._target(station, int(i), [row])
                if target is None:
                    left += 1
                else:
                    self.shift(station, int(i), target, now)
        return left

    def has_room_elsewhere(self, row: int) -> bool:
        reserved: list[tuple[Station, int]] = []
        fits = True
        for station in self.network.stations:
            for _ in range(int((station.crew.host == row).sum())):
                target = self.pool.best(*station.needs, [row])
                if target is None:
                    fits = False
                    break
                self.pool.hold(target, *station.needs)
                reserved.append((station, target))
        for station, target in reserved:
            self.pool.hold(target, *station.needs, -1)
        return fits


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """Items of an operator; `within` counts judged items by factor of the service level."""

    arrived: float
    done: float
    judged: float
    emitted: float
    within: dict[float, float]
    mean_duration: float
    queued: float
    in_service: float
    scalings: int


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of a simulated run.

    Attributes:
        prolongings: Billing time units beyond each lease's first.
        upscalings, downscalings: Instances added and removed on request.
        time_to_adapt: Mean seconds above the service level; NaN if never.
        series: Rows of (time, offered records/s, hosts, instances, backlog, compliance, committed records).
    """

    seconds: float
    operators: dict[str, OperatorResult]
    cost: float
    leases: int
    prolongings: int
    early_releases: int
    upscalings: int
    downscalings: int
    migrations: int
    time_to_adapt: float
    host_seconds: float
    committed: float
    ledger: tuple[Lease, ...] = field(repr=False)
    series: Floats = field(repr=False, compare=False)

    @property
    def judged(self) -> float:
        """Items of known duration with a service level."""
        return sum(each.judged for each in self.operators.values() if each.within)

    def late(self, factor: float) -> float:
        return sum(each.judged - each.within[factor] for each in self.operators.values() if each.within)

    def compliance(self, factor: float = 1.0) -> float:
        """Return the fraction of items within `factor` times their service level."""
        return 1 - self.late(factor) / self.judged if self.judged else math.nan


def result_of(now: float, staffing: Staffing, watch: MetricsCollector) -> Result:
    pool, settings = staffing.pool, staffing.settings
    operators = {}
    for station in staffing.network.stations:
        arrived, done, judged, emitted, delay = (
            getattr(station.total, name) + getattr(station.period, name)
            for name in ("arrived", "done", "judged", "emitted", "delay")
        )
        within = station.total.within + station.period.within
        promised = station.operator.max_duration is not None
        operators[station.name] = OperatorResult(
            arrived,
            done,
            judged,
            emitted,
            dict(zip(settings.factors, within.tolist(), strict=True)) if promised else {},
            delay / judged if judged else math.nan,
            station.queued,
            station.in_service,
            station.scalings,
        )
    return Result(
        seconds=now,
        operators=operators,
        cost=pool.cost(now),
        leases=len(pool),
        prolongings=sum(lease.units(now) - 1 for lease in pool.leases),
        early_releases=sum(released_early(lease, settings.early_margin) for lease in pool.leases),
        upscalings=staffing.upscalings,
        downscalings=staffing.downscalings,
        migrations=staffing.migrations,
        time_to_adapt=float(np.mean(watch.adapted)) if watch.adapted else math.nan,
        host_seconds=math.fsum(
            lease.seconds(now) for lease in pool.leases if HostState.RUNNING in {state for _, state in lease.history}
        ),
        committed=staffing.network.committed,
        ledger=tuple(pool.leases),
        series=np.array(watch.series).reshape(-1, 7),
    )


def released_early(lease: Lease, margin: float) -> bool:
    """Return True if release left more than `margin` of a paid billing time unit.

    The end of a run is no release.
    """
    begun = next((at for at, state in lease.history if state is HostState.RELEASING), None)
    return begun is not None and lease.remaining(begun) > margin * lease.type.billing.unit + 1e-6
