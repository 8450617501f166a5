"""Active leases at one moment, and the capacity of their cores; figures are cached."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from elastream.core.hosts import HostState, Lease


class Leases(dict[str, Lease]):
    """Active leases by host. Immutable."""

    @cached_property
    def usable(self) -> tuple[str, ...]:
        return self._in(HostState.RUNNING)

    @cached_property
    def working(self) -> tuple[str, ...]:
        """Return the hosts that run tasks, also draining ones."""
        return self._in(HostState.RUNNING, HostState.DRAINING)

    @cached_property
    def coming(self) -> tuple[str, ...]:
        return self._in(HostState.REQUESTED, HostState.STARTING)

    @cached_property
    def draining(self) -> tuple[str, ...]:
        return self._in(HostState.DRAINING)

    def _in(self, *states: HostState) -> tuple[str, ...]:
        return tuple(host for host, lease in self.items() if lease.state in states)

    @cached_property
    def usable_cores(self) -> tuple[float, float]:
        """Return the cores of all usable hosts and of the smallest (inf without any), regardless of speed."""
        cores = [self[host].type.cores for host in self.usable]
        return math.fsum(cores), min(cores, default=math.inf)

    @cached_property
    def came(self) -> tuple[float, ...]:
        return tuple(self[host].history[-1][0] for host in self.usable)

    @cached_property
    def changed(self) -> float:
        """Return when a host last came or a drain changed; -inf: never."""
        changes = [at for host in self.usable for at, _ in self[host].history[1:]]
        changes += [self[host].history[-1][0] for host in self.draining]
        return max(changes, default=-math.inf)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self)

    @cached_property
    def speeds(self) -> NDArray[np.float64]:
        return np.array([lease.type.speed for lease in self.values()], dtype=np.float64)

    @cached_property
    def nominal(self) -> "Cores":
        return Cores(self, {host: lease.type.speed for host, lease in self.items()})


class Cores:
    """Capacity of leased hosts in cores of speed 1; `speeds` and `each` (capacity) are by host."""

    def __init__(self, leases: Leases, speeds: Mapping[str, float]) -> None:
        self._leases, self.speeds = leases, speeds
        self.each = {host: lease.type.cores * speeds[host] for host, lease in leases.items()}
        self._sums: dict[tuple[str, ...], float] = {}
        self._least: dict[tuple[str, ...], float] = {}
        self._slots: dict[tuple[str, ...], tuple[int, float]] = {}

    def of(self, hosts: Sequence[str]) -> float:
        key = tuple(hosts)
        if (capacity := self._sums.get(key)) is None:
            capacity = self._sums[key] = math.fsum([self.each[host] for host in key])
        return capacity

    def least(self, hosts: Sequence[str]) -> float:
        key = tuple(hosts)
        if (capacity := self._least.get(key)) is None:
            capacity = self._least[key] = min((self.each[host] for host in key), default=0.0)
        return capacity

    def slots(self, hosts: Sequence[str]) -> tuple[int, float]:
        """Return the usable slots of `hosts`, and the slowest slot's capacity (inf without any)."""
        key = tuple(hosts)
        if (slots := self._slots.get(key)) is None:
            wide = {host: self._leases[host].type.width for host in key}
            least = min((self.each[host] / wide[host] for host in key), default=math.inf)
            slots = self._slots[key] = sum(wide.values()), least
        return slots

    @cached_property
    def mean_speed(self) -> float:
        """Return the harmonic mean of usable core speeds: slow cores are busy longer."""
        cores = {host: self._leases[host].type.cores for host in self._leases.usable}
        busy = math.fsum([each / self.speeds[host] for host, each in cores.items()])
        return math.fsum(cores.values()) / busy if busy > 0 else 1.0
