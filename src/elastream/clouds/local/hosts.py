"""Provider over the processes of this machine.

Hosts start in request order as `max_hosts` and the cores allow. Starting hosts have a lower CPU weight than working ones,
the first of them the highest.
"""

import os
import shlex
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from elastream.clouds.local.cluster import LocalCluster
from elastream.clouds.local.java import DRIVER_OPTIONS
from elastream.clouds.provider import ClusterEndpoint, HostStatus, HostUsage, Phase, Provider, ProviderOffer, RunState
from elastream.core.hosts import HostType
from elastream.errors import CloudError, ElastreamError

STARTS_PER_CORE = 2  # concurrent starts per core: a start often waits, and the next one uses the time
# CPU weights of the first starting host and of each further one; a working host has 1 (benchmarks/start.py). With equal
# weights, three hosts would be ready together, after the time of all three. At full weight, two would take half of two
# cores from working hosts.
FIRST_START_WEIGHT, NEXT_START_WEIGHT = 0.5, 0.1
START_TIMEOUT_S = 90.0  # after this time a host no longer counts as starting, even without a report that it is ready

_States: TypeAlias = Mapping[str, Mapping[str, Any]]  # state of each process at the supervisor, by host


@dataclass(slots=True)
class _Host:
    type: HostType
    started: float | None = None  # None while it waits for room
    ready: bool = False
    confined: bool = False
    weight: float = 1.0
    released: bool = False
    reason: str = ""


class LocalHosts(Provider):
    """Hosts of a running `cluster`, which `close` ends; `clock` gives monotonic seconds."""

    def __init__(
        self, cluster: LocalCluster, min_hosts: int, max_hosts: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cluster = cluster
        self._clock = clock
        self._lock = threading.RLock()
        self._hosts: dict[str, _Host] = {}
        self.starts_per_core: float = STARTS_PER_CORE
        types = cluster.local.types
        slots = {kind.slots for kind in types}
        self.terms = ProviderOffer(
            types,
            max_hosts,
            min_hosts,
            endpoint=ClusterEndpoint(
                cluster.url,
                cluster.driver_address,
                cluster.executor_memory_mb,
                slots.pop() if len(slots) == 1 else None,
                settings={**cluster.secrets.session_settings, DRIVER_OPTIONS: shlex.join(cluster.driver_options)},
                java_options=cluster.java_options,
                secret=cluster.secrets.shared,
            ),
            confinement=cluster.confinement,
            link_rate=cluster.link_rate,
            notices=cluster.local.notices,
        )

    def check(self, hosts: Mapping[str, HostType]) -> None:
        """Raise CloudError for an impossible name or region."""
        for name, kind in hosts.items():
            if problem := self.cluster.name_problem(name):
                raise CloudError(problem)
            if kind.region not in self.cluster.local.regions:
                regions = ", ".join(self.cluster.local.regions)
                raise CloudError(f"no host of this machine is in the region {kind.region!r}; regions: {regions}")

    def lease(self, hosts: Mapping[str, HostType]) -> None:
        self.check(hosts)
        with self._lock:
            for name, kind in hosts.items():
                self._hosts.setdefault(name, _Host(kind))
            self._weigh(self._start_waiting(self.cluster.status()))

    def release(self, hosts: Collection[str]) -> None:
        with self._lock:
            for name in hosts:
                host = self._hosts.get(name)
                if host is None:
                    continue
                host.released = True
                if host.started is not None and not host.reason:
                    self.cluster.terminate(name)
            self._forget(self.cluster.status())

    def hosts(self) -> Mapping[str, HostStatus]:
        with self._lock:
            states = self.cluster.status()
            self._forget(states)
            states = self._start_waiting(states)
            self._weigh(states)
            return {name: self._status(name, host, states) for name, host in self._hosts.items()}

    def measure(self) -> Mapping[str, HostUsage]:
        with self._lock:
            return {name: used for name, used in self.cluster.measure().items() if name in self._hosts}

    def report(self, state: RunState) -> None:
        """Limit settled hosts to the cores of their type; let the next one start if one is ready."""
        with self._lock:
            for name, host in self._hosts.items():
                host.ready = host.ready or name in state.ready
                if name in state.settled and not host.confined and host.started is not None:
                    self.cluster.confine(name, host.type.cores)
                    host.confined = True
                    self.cluster.archive_classes()  # it has loaded what work needs
            if not all(host.confined for host in self._hosts.values()):
                self._weigh(self.cluster.status())

    def occupied(self) -> Collection[str]:
        with self._lock:
            left = {name for name, state in self.cluster.status().items() if not state["gone"]}
            return left | {name for name, host in self._hosts.items() if host.started is None}

    def close(self) -> None:
        self.cluster.close()

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _start_waiting(self, states: _States) -> _States:
        waiting = [name for name, host in self._hosts.items() if host.started is None and not host.reason]
        if not waiting:
            return states
        running = sum(not state["gone"] for state in states.values())
        most = max(1, int(self.starts_per_core * len(os.sched_getaffinity(0))))
        free = max(0, min(most - len(self._starting(states)), self.terms.max_hosts - running))
        for name in waiting[:free]:
            host = self._hosts[name]
            try:
                self.cluster.spawn(name, host.type)
            except (ElastreamError, OSError) as error:
                host.reason = f"it could not be started: {error}"
            host.started = self._clock()
        return self.cluster.status() if free else states

    def _starting(self, states: _States) -> Sequence[str]:
        return [
            name
            for name, host in self._hosts.items()
            if host.started is not None and not host.released and name in states and states[name]["alive"]
            if not host.ready and self._clock() - host.started < START_TIMEOUT_S
        ]

    def _weigh(self, states: _States) -> None:
        starting = self._starting(states)
        for name, host in self._hosts.items():
            weight = 1.0 if name not in starting else FIRST_START_WEIGHT if name == starting[0] else NEXT_START_WEIGHT
            if weight != host.weight and not host.confined and name in states and states[name]["alive"]:
                host.weight = weight
                self.cluster.confine(name, None, weight)

    def _status(self, name: str, host: _Host, states: _States) -> HostStatus:
        kind = host.type.name
        if host.reason:
            return HostStatus(kind, Phase.GONE, host.reason)
        if host.started is None:
            return HostStatus(kind, Phase.REQUESTED, "it waits until this machine has room for another host")
        address, namespace = self.cluster.address(name), self.cluster.namespace(name)
        if host.released:
            return HostStatus(kind, Phase.ENDING, address=address, namespace=namespace)
        if name not in states or states[name]["alive"]:
            return HostStatus(kind, Phase.UP, address=address, namespace=namespace)
        host.reason = self.cluster.failure(name) or "it ended by itself"
        return HostStatus(kind, Phase.GONE, host.reason)

    def _forget(self, states: _States) -> None:
        for name, host in list(self._hosts.items()):
            if host.released and (name not in states or states[name]["gone"]):
                if name in states:
                    self.cluster.forget(name)
                del self._hosts[name]
