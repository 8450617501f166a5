"""The active leases of one moment, and what their cores come to.

Most rounds of a run find the same leases and the same speeds: what is asked of them in each is found once.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from elastream.core.hosts import HostState, Lease


class Leases(dict[str, Lease]):
    """Active leases by host; not changed once made."""

    @cached_property
    def usable(self) -> tuple[str, ...]:
        """Hosts that take tasks."""
        return self._in(HostState.RUNNING)

    @cached_property
    def working(self) -> tuple[str, ...]:
        """Hosts that run tasks: a draining one still runs those that are not placed."""
        return self._in(HostState.RUNNING, HostState.DRAINING)

    @cached_property
    def coming(self) -> tuple[str, ...]:
        """Hosts leased and not ready yet."""
        return self._in(HostState.REQUESTED, HostState.STARTING)

    @cached_property
    def draining(self) -> tuple[str, ...]:
        """Hosts whose tasks are being moved away."""
        return self._in(HostState.DRAINING)

    def _in(self, *states: HostState) -> tuple[str, ...]:
        return tuple(host for host, lease in self.items() if lease.state in states)

    @cached_property
    def usable_cores(self) -> tuple[float, float]:
        """Cores that the usable hosts have together, whatever their speed, and that the smallest has; inf without any."""
        cores = [self[host].type.cores for host in self.usable]
        return math.fsum(cores), min(cores, default=math.inf)

    @cached_property
    def came(self) -> tuple[float, ...]:
        """When each usable host came into its present state."""
        return tuple(self[host].history[-1][0] for host in self.usable)

    @cached_property
    def changed(self) -> float:
        """When a host came last, or a drain was begun or cancelled; -inf if never."""
        changes = [at for host in self.usable for at, _ in self[host].history[1:]]
        changes += [self[host].history[-1][0] for host in self.draining]
        return max(changes, default=-math.inf)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """All of them, in order."""
        return tuple(self)

    @cached_property
    def speeds(self) -> NDArray[np.float64]:
        """Nominal speed of the cores of each host, in order."""
        return np.array([lease.type.speed for lease in self.values()], dtype=np.float64)

    @cached_property
    def nominal(self) -> "Cores":
        """Their cores at nominal speeds."""
        return Cores(self, {host: lease.type.speed for host, lease in self.items()})


class Cores:
    """Cores of speed 1 that leased hosts have. speeds, each: by host, of its cores, and what all of these come to."""

    def __init__(self, leases: Leases, speeds: Mapping[str, float]) -> None:
        self._leases, self.speeds = leases, speeds
        self.each = {host: lease.type.cores * speeds[host] for host, lease in leases.items()}
        self._sums: dict[tuple[str, ...], float] = {}
        self._least: dict[tuple[str, ...], float] = {}
        self._slots: dict[tuple[str, ...], tuple[int, float]] = {}

    def of(self, hosts: Sequence[str]) -> float:
        """Cores of `hosts` together."""
        key = tuple(hosts)
        if (found := self._sums.get(key)) is None:
            found = self._sums[key] = math.fsum([self.each[host] for host in key])
        return found

    def least(self, hosts: Sequence[str]) -> float:
        """Cores of the smallest of `hosts`; 0 without any."""
        key = tuple(hosts)
        if (found := self._least.get(key)) is None:
            found = self._least[key] = min((self.each[host] for host in key), default=0.0)
        return found

    def slots(self, hosts: Sequence[str]) -> tuple[int, float]:
        """Slots of `hosts` that tasks use, and cores of the slowest; inf without any."""
        key = tuple(hosts)
        if (found := self._slots.get(key)) is None:
            wide = {host: self._leases[host].type.width for host in key}
            least = min((self.each[host] / wide[host] for host in key), default=math.inf)
            found = self._slots[key] = sum(wide.values()), least
        return found

    @cached_property
    def mean_speed(self) -> float:
        """Speed of the usable hosts' cores on average, 1 without any; busy cores are theirs, whatever their speed.

        The harmonic mean: tasks have equal parts of the records, so that a slow core is busy for longer with its part.
        """
        cores = {host: self._leases[host].type.cores for host in self._leases.usable}
        busy = math.fsum([each / self.speeds[host] for host, each in cores.items()])
        return math.fsum(cores.values()) / busy if busy > 0 else 1.0
