"""Hosts of a simulation: leases, capacity and speed.

Arrays have one row per host; rows are not reused.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastream.core.action import LeaseHost, Status
from elastream.core.frames import Floats
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.observation import Context
from elastream.core.wording import counted
from elastream.loads.speeds import number_of
from elastream.simulator.draws import uniform
from elastream.simulator.settings import HostFailure, Settings
from elastream.units import ROUNDING

# Random-number stream of hosts, separate from operators.
START_STREAM = 1_000_001
# Rounding tolerance of sums of cores or megabytes.
SLACK = 1e-9

COLUMNS = (
    "cores", "memory", "used_cores", "used_memory", "speed", "ready", "since", "until", "unit", "minimum", "price",
    "bandwidth", "worked", "region", "tasks", "open", "up", "images", "number",
)  # fmt: skip


class Event(NamedTuple):
    time: float
    order: int
    state: HostState
    row: int


class SimulatedHosts:
    """Hosts with instances of `operators` operators."""

    def __init__(self, types: Mapping[str, HostType], operators: int, settings: Settings, seed: int) -> None:
        self.types = types
        self.settings = settings
        self.seed = seed
        self.leases: list[Lease] = []
        self.rows: dict[str, int] = {}
        self.capacity = 0
        self.cores = self.memory = self.used_cores = self.used_memory = self.speed = self.ready = np.zeros(0)
        self.since = self.until = self.unit = self.minimum = self.price = np.zeros(0)
        self.bandwidth = self.worked = np.zeros(0)
        self.region: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.region_names: list[str] = []
        self.number: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.tasks: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.open: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self.up: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self.images: NDArray[np.bool_] = np.zeros((0, operators), dtype=np.bool_)
        self.events: list[Event] = []
        self.changes = 0
        self.placements = 0
        self.next_number = 1
        self._order = 0
        self._faults: dict[int, HostFailure] = {}
        self._active: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, dtype=np.int64))
        self._running = (-1, 0.0)
        for fault in settings.faults:
            self._faults[self._order] = fault
            self._schedule(max(0.0, fault.time - fault.notice), HostState.LOST, -1)

    def __len__(self) -> int:
        return len(self.leases)

    @property
    def active(self) -> NDArray[np.int64]:
        if self._active[0] != self.changes:
            rows = [row for row, lease in enumerate(self.leases) if lease.active]
            self._active = (self.changes, np.array(rows, dtype=np.int64))
        return self._active[1]

    @property
    def noticed(self) -> list[int]:
        rows = self.active.tolist() if self.settings.faults else ()
        return [row for row in rows if self.leases[row].deadline is not None]

    @property
    def running_cores(self) -> float:
        if self._running[0] != self.changes:
            leases = (self.leases[row] for row in self.active.tolist())
            running = math.fsum(lease.type.cores for lease in leases if lease.state is HostState.RUNNING)
            self._running = (self.changes, running)
        return self._running[1]

    def active_row(self, host: str) -> int | None:
        row = self.rows.get(host)
        return row if row is not None and self.leases[row].active else None

    def runs(self, host: str) -> bool:
        row = self.active_row(host)
        return row is not None and self.leases[row].state is HostState.RUNNING

    def lease(self, name: str, kind: HostType, now: float, *, running: bool = False) -> int:
        """Lease a host, up at once if `running`; return its row."""
        row = len(self.leases)
        self._grow(row + 1)
        lease = Lease(name, kind, now).to(HostState.STARTING, now)
        spread = self.settings.host_start_spread
        start = kind.start * (1 + spread * (2 * uniform(self.seed, START_STREAM, row) - 1))
        if (more := self.settings.host_start_queue) > 0:
            start += more * sum(self.leases[each].state is HostState.STARTING for each in self.active.tolist())
        self.ready[row] = now if running else now + start
        self.cores[row], self.memory[row] = kind.cores, kind.memory
        self.speed[row] = kind.speed
        if kind.region not in self.region_names:
            self.region_names.append(kind.region)
        self.region[row] = self.region_names.index(kind.region)
        self.bandwidth[row] = kind.bandwidth or 0.0
        self.since[row], self.until[row], self.price[row] = now, math.inf, kind.price
        self.unit[row], self.minimum[row] = kind.billing.unit, kind.billing.minimum
        self.open[row] = True
        self.up[row] = running
        self.rows[name] = row
        self.number[row] = number_of(name, row)
        if name[:1] == "h" and name[1:].isdecimal():
            self.next_number = max(self.next_number, int(name[1:]) + 1)
        self.leases.append(lease.to(HostState.RUNNING, now) if running else lease)
        if not running:
            self._schedule(self.ready[row], HostState.RUNNING, row)
        self.changes += 1
        return row

    def requested(self, action: LeaseHost, context: Context, now: float) -> tuple[Status, str]:
        if action.host in self.rows:
            lease = self.leases[self.rows[action.host]]
            if not lease.active or lease.state is HostState.RELEASING or lease.type.name != action.type:
                return Status.REFUSED, f"{action.host!r} is the name of a host that was leased as {lease.type.name!r}"
            return (Status.DONE, "") if lease.ready_at() is not None else (Status.ACCEPTED, "the host is starting")
        kind = context.host_types.get(action.type)
        if kind is None or not action.host:
            return Status.REFUSED, f"host type {action.type!r} is not declared" if kind is None else "a host needs a name"
        if len(self.active) >= context.max_hosts:
            return Status.REFUSED, f"at most {counted(context.max_hosts, 'host')} may be leased"
        self.lease(action.host, kind, now)
        return Status.ACCEPTED, "the host is starting"

    def renew(self, host: str) -> tuple[Status, str]:
        """Accept a renewal; leases are paid until release anyway."""
        row = self.active_row(host)
        if row is None or self.leases[row].state is HostState.RELEASING:
            return Status.REFUSED, f"host {host!r} is not leased"
        return Status.DONE, ""

    def cancel_drain(self, host: str, now: float) -> tuple[Status, str]:
        row = self.active_row(host)
        if row is None or not self.up[row]:
            return Status.REFUSED, f"host {host!r} is not draining"
        self.to(row, HostState.RUNNING, now)
        return Status.DONE, ""

    def end(self, now: float) -> None:
        for row in self.active:
            if self.leases[row].state is not HostState.RELEASING:
                self.to(int(row), HostState.RELEASING, now)
        while self.next_event < math.inf:
            time = self.next_event
            event = self.due(time)
            if event is not None and event.state is HostState.RELEASED:
                self.to(event.row, HostState.RELEASED, time)

    def to(self, row: int, state: HostState, now: float, works_until: float = 0.0) -> None:
        """Set a host's state; a release takes at least `stop` seconds, and waits for the host's current work."""
        self.leases[row] = self.leases[row].to(state, now)
        self.open[row] = state in (HostState.RUNNING, HostState.STARTING)
        self.up[row] = state in (HostState.RUNNING, HostState.DRAINING)
        if state is HostState.RELEASING:
            self._schedule(max(now + self.leases[row].type.stop, works_until), HostState.RELEASED, row)
        if state in (HostState.RELEASED, HostState.LOST):
            self.images[row] = False
            self.until[row] = now
        self.changes += 1

    def _schedule(self, time: float, state: HostState, row: int) -> None:
        heapq.heappush(self.events, Event(float(time), self._order, state, row))
        self._order += 1

    @property
    def next_event(self) -> float:
        return self.events[0].time if self.events else math.inf

    def due(self, now: float) -> Event | None:
        """Pop the next event due by `now`, except of ended leases."""
        while self.events and self.events[0].time <= now:
            event = heapq.heappop(self.events)
            if event.row < 0 or self.leases[event.row].active:
                return event
        return None

    def fault_target(self, event: Event) -> int | None:
        """Return the host that a fault hits: the named or the longest running one that nothing else takes away."""
        name = self._faults[event.order].host
        if name is not None:
            return self.active_row(name)
        return next((int(row) for row in self.active if self.up[row] and self.leases[row].deadline is None), None)

    def announce(self, event: Event, row: int) -> bool:
        """Note when the fault will take the host away; return False if it does so now."""
        deadline = self._faults[event.order].time
        if deadline <= event.time:
            return False
        self.leases[row] = replace(self.leases[row], note=f"it is taken away at {deadline:g} s", deadline=deadline)
        self._schedule(deadline, HostState.LOST, row)
        return True

    def fits(self, cores: float, memory: float) -> NDArray[np.bool_]:
        return (
            self.open[: len(self)]
            & (self.used_cores[: len(self)] + cores <= self.cores[: len(self)] + SLACK)
            & (self.used_memory[: len(self)] + memory <= self.memory[: len(self)] + SLACK)
        )

    def best(self, cores: float, memory: float, without: Sequence[int] = ()) -> int | None:
        fitting = self.fits(cores, memory)
        fitting[list(without)] = False
        candidates = np.flatnonzero(fitting)
        if not candidates.size:
            return None
        free = 1 - self.used_cores[candidates] / self.cores[candidates]
        return int(candidates[np.argmax(free + 2.0 * self.up[candidates])])

    def spread(self, cores: float, memory: float, count: int) -> list[int]:
        """Reserve up to `count` instances, each as `best` chooses; return their rows."""
        rows: list[int] = []
        while len(rows) < count:
            candidates = np.flatnonzero(self.fits(cores, memory))
            if not candidates.size:
                break
            rank = 1 - self.used_cores[candidates] / self.cores[candidates] + 2.0 * self.up[candidates]
            # Equally ranked hosts would be chosen one after the other: take them all at once.
            chosen = candidates[rank == rank.max()][: count - len(rows)]
            self.used_cores[chosen] += cores
            self.used_memory[chosen] += memory
            self.tasks[chosen] += 1
            rows += chosen.tolist()
        self.placements += len(rows)
        return rows

    def pack(self, cores: float, memory: float, count: int) -> list[int]:
        """Reserve up to `count` instances by first fit; return their rows."""
        rows: list[int] = []
        while len(rows) < count and (candidates := np.flatnonzero(self.fits(cores, memory))).size:
            self.hold(int(candidates[0]), cores, memory)
            rows.append(int(candidates[0]))
        return rows

    def hold(self, row: int, cores: float, memory: float, sign: int = 1) -> None:
        """Reserve an instance's capacity; free it with `sign` -1."""
        self.placements += 1
        if row >= 0:
            self.used_cores[row] += sign * cores
            self.used_memory[row] += sign * memory
            self.tasks[row] += sign
            if self.tasks[row] == 0:
                self.used_cores[row] = self.used_memory[row] = 0.0  # rounding must not add up over a long run

    def clear(self, row: int) -> None:
        self.placements += 1
        self.used_cores[row] = self.used_memory[row] = 0.0
        self.tasks[row] = 0

    def cost(self, now: float) -> float:
        return float(self.costs(np.array([now]))[0])

    def costs(self, times: Floats) -> Floats:
        count = len(self)
        seconds = np.minimum(self.until[:count], times[:, None]) - self.since[:count]
        units = np.maximum(1.0, np.ceil(np.maximum(seconds, self.minimum[:count]) / self.unit[:count] - ROUNDING))
        return np.asarray((units * self.price[:count]).sum(axis=1))

    def between_regions(self) -> tuple[Floats, Floats]:
        """Return (latency in s, seconds per byte) between regions.

        Defaults: the common latency and the slowest bandwidth.
        """
        count = max(1, len(self.region_names))
        latency = np.full((count, count), self.settings.latency)
        slowest = min((t.bandwidth for t in self.types.values() if t.bandwidth is not None), default=math.inf)
        per_byte = np.full((count, count), 1 / slowest)
        for (source, target), link in self.settings.links.items():
            for a, b in ((source, target), (target, source)):
                if a in self.region_names and b in self.region_names:
                    i, j = self.region_names.index(a), self.region_names.index(b)
                    latency[i, j] = link.latency
                    per_byte[i, j] = 1 / min(slowest, link.bandwidth or math.inf)
        return latency, per_byte

    def mean_speed(self, now: float) -> float:
        up = self.up[: len(self)]
        cores = self.cores[: len(self)][up]
        return float(cores @ self.speeds(now)[up]) / float(cores.sum()) if cores.size else 1.0

    def speeds(self, now: float) -> Floats:
        nominal, trace = self.speed[: len(self)], self.settings.speed_trace
        return nominal if trace is None else nominal * trace.at(self.number[: len(self)], now)

    def speed_slot(self, now: float) -> int:
        """Return the speed trace's slot, or -1; speeds are constant within it."""
        trace = self.settings.speed_trace
        return -1 if trace is None else trace.slot(now)

    def link_slot(self, now: float) -> int:
        trace = self.settings.link_trace
        return -1 if trace is None else trace.slot(now)

    def next_slot(self, now: float) -> float:
        """Return the start of the next trace slot (seconds)."""
        traces = [each for each in (self.settings.speed_trace, self.settings.link_trace) if each is not None]
        return min([(each.slot(now) + 1) * each.interval for each in traces], default=math.inf)

    def between_hosts(self, source: NDArray[np.int64], target: NDArray[np.int64], now: float) -> tuple[Floats, Floats]:
        """Return latency and seconds per byte from each `source` to each `target` host."""
        latency, per_byte = self.between_regions()
        regions = np.ix_(self.region[source], self.region[target])
        latency, per_byte = latency[regions], per_byte[regions]
        if (trace := self.settings.link_trace) is not None:
            longer, width = trace.at(self.number[source], self.number[target], now)
            latency, per_byte = latency * longer, per_byte / width
        return latency, per_byte

    def _grow(self, size: int) -> None:
        if size <= self.capacity:
            return
        self.capacity = max(64, 2 * size)
        for name in COLUMNS:
            old = getattr(self, name)
            new = np.zeros((self.capacity, *old.shape[1:]), dtype=old.dtype)
            new[: old.shape[0]] = old
            setattr(self, name, new)
