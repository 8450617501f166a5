"""Places operator instances on simulated hosts: starts, moves and removes them, and restarts those of lost hosts.

State partitions of an operator that has a ring of hosts follow it: those of a host that is lost or leaves go to its
neighbour clockwise, all others to the host with most room.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from elastream.core.frames import Integers
from elastream.core.ring import Ring
from elastream.core.task_id import TaskId
from elastream.simulator.fused import FusedNetwork
from elastream.simulator.network import QueueNetwork
from elastream.simulator.pool import SimulatedHosts
from elastream.simulator.settings import Settings
from elastream.simulator.stations import Station


class Staffing:
    """Instances of all stations on the hosts of a pool. leaving: called with the rows of a station about to be removed.

    columns: number of each station by name. migrations, upscalings, downscalings: instances moved, added and removed on
    request so far. shortfall: stations with instances that wait for room.
    """

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
        """Handle the loss of a host: requeue its items in service, and restart its instances where there is room."""
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
        """Restart the instances of lost hosts, as far as hosts have room now."""
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
        """Row of the host that instance `i` goes to: its owner on the ring of its operator, else that with most room."""
        if (ring := station.ring) is not None:
            row = self.pool.active_row(ring.hosts_of(len(station.crew))[i])
            if row is not None and row not in without and self.pool.fits(*station.needs)[row]:
                return row
        return self.pool.best(*station.needs, without)

    def _leave_rings(self, row: int) -> None:
        """Take a host off all rings; a ring whose last host goes is gone."""
        host = self.pool.leases[row].host
        for station in self.network.stations:
            if (ring := station.ring) is not None and host in ring:
                station.ring = ring.without(host) if len(ring) > 1 else None

    def follow(self, station: Station, ring: Ring, now: float) -> tuple[int, str]:
        """Move the instances of `station` as `ring` says, all or none; (how many moved, refusal or "")."""
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
        """When an instance requested now can take items on that host; its image is cached there from now on."""
        column = self.columns[station.name]
        seconds = self.settings.start_cached
        if not self.pool.images[row, column]:
            seconds += station.operator.image / self.settings.registry_bandwidth
            self.pool.images[row, column] = True
        return max(now, float(self.pool.ready[row])) + seconds

    def begin(self, counts: Mapping[str, int], on: Mapping[str, Sequence[int]], now: float) -> str:
        """Place the first instances of a run, by operator; all or none. Returns a refusal or "".

        on: rows of the hosts that take the first ones of an operator; the rest are spread over the hosts. Where that leaves
        one without room, all go by first fit, the largest first, as in a provision, unless hosts are named.
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
        """(rows of hosts by operator, refusal or "") of instances as `choose` reserves room behind those on the hosts `on`;
        nothing is kept if refused."""
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
        """Add `count` instances, first on hosts `on`, then where there is room; all or none. Returns a refusal or ""."""
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
        """Remove `count` instances: those in `without`, then the highest numbered. Returns a refusal or ""."""
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
        """Move instance `i` to host row `target`; it finishes its item in service first."""
        crew = station.crew
        self.pool.hold(int(crew.host[i]), *station.needs, -1)
        self.pool.hold(target, *station.needs)
        crew.host[i] = target
        started = self._start(station, target, now)
        crew.free[i] = max(started, crew.finish[i]) if math.isfinite(crew.finish[i]) else started
        self.migrations += 1

    def empty(self, row: int, now: float) -> int:
        """Move a host's instances to other hosts as far as these have room; returns the number that remain."""
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
        """Whether all instances on a host fit on other hosts, placed as `empty` places them."""
        taken: list[tuple[Station, int]] = []
        fits = True
        for station in self.network.stations:
            for _ in range(int((station.crew.host == row).sum())):
                target = self.pool.best(*station.needs, [row])
                if target is None:
                    fits = False
                    break
                self.pool.hold(target, *station.needs)
                taken.append((station, target))
        for station, target in taken:
            self.pool.hold(target, *station.needs, -1)
        return fits
