"""Mutable deployment that a greedy search changes step by step, without a loop over hosts."""

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostType
from elastream.core.qos import Flows
from elastream.policies.value_cost.packing import rate_of
from elastream.policies.value_cost.problem import (
    Conditions,
    Deployment,
    Host,
    Problem,
    capacities,
    limits,
    speeds_of,
    throughput,
)
from elastream.units import ROUNDING

# Rows of `Assembly._of`: cores and MB of a host, how much of both is free, money/h, paid seconds left, ready time.
CORES, MEMORY, FREE_CORES, FREE_MEMORY, PRICE, LEFT, READY = range(7)


class Assembly:
    """Working copy of a deployment.

    Attributes:
        active: Row of the option of each operator.
        hosts: New ones last.
        capacity: Cores of speed 1, shape (T, operators).
        total: Instances of each operator.
        order: Operators, depth first.
        sizable: Operators with a variable number of instances.
    """

    def __init__(self, problem: Problem, deployment: Deployment, conditions: Conditions) -> None:
        self.problem, self.conditions = problem, conditions
        self.active = list(deployment.active)
        self.hosts = list(deployment.hosts)
        self.order, self._beside = depth_first(problem), _neighbours(problem)
        self.sizable = problem.placed & ~problem.fixed
        # Cores and memory that an instance of each operator holds.
        self._needs: Floats = np.array([problem.cores, problem.memory]) * problem.placed
        count, operators = len(self.hosts), len(problem.operators)
        self.capacity: Floats = np.array(capacities(problem, deployment, conditions), dtype=np.float64)
        self._instances: Integers = np.zeros((max(16, 2 * count), operators), dtype=np.int64)
        self._instances[:count] = np.asarray(deployment.instances, dtype=np.int64).reshape(count, operators)
        self._speeds: Floats = np.zeros((conditions.instants, len(self._instances)))
        self._speeds[:, :count] = speeds_of(deployment, conditions)
        self._of: Floats = np.zeros((7, len(self._instances)))
        self._of[:, :count] = np.array([self._row(host) for host in self.hosts]).reshape(-1, 7).T
        self._of[[FREE_CORES, FREE_MEMORY], :count] -= self._needs @ self._instances[:count].T
        self.total: Integers = self._instances.sum(axis=0)

    def _row(self, host: Host) -> tuple[float, ...]:
        kind = host.type
        left = _left_of(host.since, kind.billing.unit, self.conditions.time)
        return kind.cores, kind.memory, kind.cores, kind.memory, rate_of(kind), left, host.ready

    @property
    def instances(self) -> Integers:
        """Instances by host and operator; a view."""
        return self._instances[: len(self.hosts)]

    @property
    def cores(self) -> Floats:
        """Cores of each host, shape (hosts,)."""
        return self._of[CORES, : len(self.hosts)]

    @property
    def free_cores(self) -> Floats:
        """Free cores of each host."""
        return self._of[FREE_CORES, : len(self.hosts)]

    @property
    def prices(self) -> Floats:
        """Price of each host (money/h)."""
        return self._of[PRICE, : len(self.hosts)]

    @property
    def paid(self) -> Floats:
        """Time until each host's paid unit ends (s); a whole unit for a host to lease."""
        return self._of[LEFT, : len(self.hosts)]

    @property
    def speeds(self) -> Floats:
        """Mean speed of a core of each host."""
        speeds: Floats = self._speeds[:, : len(self.hosts)].mean(axis=0)
        return speeds

    @property
    def may_lease(self) -> bool:
        """True if one more host may be leased."""
        return len(self.hosts) < self.problem.max_hosts

    def deployment(self) -> Deployment:
        """Return the current deployment."""
        return Deployment(tuple(self.active), tuple(self.hosts), self.instances.copy())

    def copy(self) -> "Assembly":
        """Return a copy to try changes on."""
        other = object.__new__(Assembly)
        other.__dict__.update(self.__dict__)
        other.active, other.hosts = list(self.active), list(self.hosts)
        for name in ("capacity", "_instances", "_speeds", "_of", "total"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def under(self, conditions: Conditions) -> "Assembly":
        """Return a copy under other rates and queues. Host speeds stay."""
        other = self.copy()
        other.conditions = conditions
        return other

    def become(self, other: "Assembly") -> None:
        """Take over the state of `other`, which must not be used afterwards."""
        self.__dict__.update(other.__dict__)

    def flows(self, bandwidth: Floats | None = None) -> Flows:
        """Return the rates of all operators (4.4 to 4.7) under the limits of `limits`."""
        return throughput(self.problem, self.active, self.capacity, self.conditions, bandwidth)

    def limits(self) -> Floats | None:
        """Return the records/s over each edge that links allow, or None if unlimited. Loops over pairs of hosts."""
        if not len(self.problem.edges) or np.isnan(self.problem.record_bytes).all():
            return None
        return limits(self.problem, self.deployment(), self.conditions)

    def reached(self, bandwidth: Floats | None = None) -> float:
        """Return the application's mean relative throughput."""
        return float(self.flows(bandwidth).application.mean())

    def switch(self, operator: int, option: int) -> None:
        """Run another option of `operator`."""
        self.active[operator] = option

    def holding(self, operator: int) -> Integers:
        """Return the rows of hosts with room for an instance of `operator`."""
        free = self._of[[FREE_CORES, FREE_MEMORY], : len(self.hosts)]
        found: Integers = np.flatnonzero((free >= self._needs[:, operator, None] - ROUNDING).all(axis=0))
        return found

    def place(self, operator: int, without: Collection[int] = ()) -> int | None:
        """Return the best host row for an instance of `operator`, or None if none has room.

        Prefers hosts with a neighbouring operator, then hosts that are up, then the fullest.
        """
        rows = self.holding(operator)
        if without and rows.size:
            rows = rows[~np.isin(rows, list(without))]
        if not rows.size:
            return None
        beside = (self._instances[rows][:, self._beside[operator]] > 0).any(axis=1)
        coming = self._of[READY, rows] > self.conditions.time
        return int(rows[np.lexsort((self._of[FREE_CORES, rows], coming, ~beside))[0]])

    def add(self, operator: int, host: int, count: int = 1) -> None:
        """Put `count` instances of `operator` on a host; a negative number removes them."""
        self._instances[host, operator] += count
        self.total[operator] += count
        if self.problem.placed[operator]:
            self._of[[FREE_CORES, FREE_MEMORY], host] -= count * self._needs[:, operator]
            self.capacity[:, operator] += count * self._speeds[:, host] * self.problem.per_instance[operator]

    def lease(self, type: HostType) -> int:
        """Lease a host, up to `lead` seconds before `conditions.time`. Returns its row."""
        row = len(self.hosts)
        now = self.conditions.time - min(self.conditions.lead, type.start)
        host = Host("", type, type.speed, now, now + type.start)
        if row == len(self._instances):
            self._instances = np.concatenate([self._instances, np.zeros_like(self._instances)])
            self._speeds = np.concatenate([self._speeds, np.zeros_like(self._speeds)], axis=1)
            self._of = np.concatenate([self._of, np.zeros_like(self._of)], axis=1)
        self.hosts.append(host)
        alone = Deployment((), (host,), np.zeros((1, len(self.problem.operators)), dtype=np.int64))
        self._speeds[:, row] = speeds_of(alone, self.conditions)[:, 0]
        self._of[:, row] = self._row(host)
        if self.problem.shared:
            self.capacity = np.array(capacities(self.problem, self.deployment(), self.conditions))
        return row

    def without(self, rows: Collection[int]) -> "Assembly":
        """Return a copy without the hosts in `rows` and their instances."""
        left_out = set(rows)
        rest = [row for row in range(len(self.hosts)) if row not in left_out]
        hosts = tuple(self.hosts[row] for row in rest)
        return Assembly(
            self.problem, replace(self.deployment(), hosts=hosts, instances=self.instances[rest]), self.conditions
        )

    def alone(self, operator: int, problem: Problem, conditions: Conditions, *, room: bool = True) -> "Assembly":
        """Return the view of one operator's scheduler.

        Args:
            problem: Problem of the operator alone.
            room: Show the free cores of hosts.
        """
        own = Assembly(
            problem, Deployment((self.active[operator],), tuple(self.hosts), self.instances[:, [operator]]), conditions
        )
        own._of[:, : len(self.hosts)] = self._of[:, : len(self.hosts)] if room else 0.0
        return own

    def take(self, operator: int, own: "Assembly") -> None:
        """Take over what the scheduler of one operator decided."""
        self.switch(operator, own.active[0])
        for host in own.hosts[len(self.hosts) :]:
            self.lease(host.type)
        change = own.instances[:, 0] - self.instances[:, operator]
        for row in np.flatnonzero(change).tolist():
            self.add(operator, row, int(change[row]))

    def types_for(self, operator: int) -> tuple[HostType, ...]:
        """Return the leasable types that hold an instance of `operator`."""
        if self.problem.shared:
            return self.problem.types
        cores, memory = self._needs[:, operator].tolist()
        return tuple(t for t in self.problem.types if t.cores >= cores - ROUNDING and t.memory >= memory - ROUNDING)


def _left_of(since: float, unit: float, now: float) -> float:
    passed = (now - since) / unit
    return unit * (math.floor(passed) + 1 - passed) if passed > 0 else unit


def depth_first(problem: Problem) -> tuple[int, ...]:
    """Return the operators' rows in depth-first order from the sources (`GetNextPE`)."""
    visited: dict[int, None] = {}
    for source in problem.sources.tolist():
        stack = [source]
        while stack:
            row = stack.pop()
            if row not in visited:
                visited[row] = None
                stack.extend(reversed(problem.reach[row]))
    return (*visited, *(row for row in range(len(problem.operators)) if row not in visited))


def _neighbours(problem: Problem) -> list[list[int]]:
    neighbours: list[list[int]] = [[] for _ in problem.operators]
    for source, target in problem.edges.tolist():
        neighbours[source].append(target)
        neighbours[target].append(source)
    return neighbours
