"""The provider over the processes of one machine: decides which host may start now, and reports all.

A host starts at once where there is room: below `max_hosts`, hosts that end included, and no more at a time than the cores
of the machine allow. The others wait in the order of their requests; each `hosts()` starts what may start. Hosts that start
weigh less than those at work, and of several the one that was asked for first weighs most, so that it is ready first.
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
from elastream.clouds.provider import HostStatus, Measured, Phase, Provider, Reach, RunState, Terms
from elastream.core.hosts import HostType
from elastream.errors import CloudError, ElastreamError

STARTS_PER_CORE = 2
"""Hosts that start at a time for each core of this machine: a start waits now and then, and the next one then goes on."""
FIRST_WEIGHT, NEXT_WEIGHT = 0.5, 0.1
"""CPU weights of the first host that starts and of each further one, to 1 of a host at work (benchmarks/start.py). If all
weighed the same, three started at once would be ready at once, after the time of all three; and at full weight two of them
would take half of two cores from those at work."""
STARTING_FOR = 90.0
"""Seconds after which a host no longer counts as one that starts, even without a report that it takes tasks."""

_States: TypeAlias = Mapping[str, Mapping[str, Any]]
"""What the supervisor says of each process, by name of the host."""


@dataclass(slots=True)
class _Host:
    """What is known of a host beside its processes. started: when it was spawned, None while it waits for room."""

    type: HostType
    started: float | None = None
    ready: bool = False
    confined: bool = False
    weight: float = 1.0
    released: bool = False
    reason: str = ""


class LocalHosts(Provider):
    """The hosts of `cluster`, which runs and is closed with it. clock: monotonic seconds."""

    def __init__(
        self, cluster: LocalCluster, min_hosts: int, max_hosts: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cluster = cluster
        self._clock = clock
        self._lock = threading.RLock()
        self._hosts: dict[str, _Host] = {}
        types = cluster.local.types
        slots = {kind.slots for kind in types}
        self.terms = Terms(
            types,
            max_hosts,
            min_hosts,
            reach=Reach(
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
        )

    def check(self, hosts: Mapping[str, HostType]) -> None:
        """Raise CloudError for a name or a type that hosts of this machine cannot have."""
        for name, kind in hosts.items():
            if refused := self.cluster.refusal(name):
                raise CloudError(refused)
            if kind.region not in self.cluster.local.regions:
                known = ", ".join(self.cluster.local.regions)
                raise CloudError(f"no host of this machine is in the region {kind.region!r}; regions: {known}")

    def lease(self, hosts: Mapping[str, HostType]) -> None:
        """Start `hosts`, at once where there is room, else as soon as there is."""
        self.check(hosts)
        with self._lock:
            for name, kind in hosts.items():
                self._hosts.setdefault(name, _Host(kind))
            self._weigh(self._start_where_there_is_room(self.cluster.status()))

    def release(self, hosts: Collection[str]) -> None:
        """SIGTERM to the workers of `hosts`, after 3 s SIGKILL to all that is left of them."""
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
        """Every host; starts those that wait where there is room."""
        with self._lock:
            states = self.cluster.status()
            self._forget(states)
            states = self._start_where_there_is_room(states)
            self._weigh(states)
            return {name: self._status(name, host, states) for name, host in self._hosts.items()}

    def measure(self) -> Mapping[str, Measured]:
        """CPU time and memory of each host."""
        with self._lock:
            return {name: used for name, used in self.cluster.measure().items() if name in self._hosts}

    def report(self, state: RunState) -> None:
        """Hold settled hosts to the cores of their type; let the next one start where one is ready."""
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
        """Hosts that wait for room, run, or of which processes are left."""
        with self._lock:
            left = {name for name, state in self.cluster.status().items() if not state["gone"]}
            return left | {name for name, host in self._hosts.items() if host.started is None}

    def close(self) -> None:
        """End everything and return when nothing is left; may be called twice."""
        self.cluster.close()

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _start_where_there_is_room(self, states: _States) -> _States:
        """Start hosts that wait; returns the states of the processes after that."""
        waiting = [name for name, host in self._hosts.items() if host.started is None and not host.reason]
        if not waiting:
            return states
        running = sum(not state["gone"] for state in states.values())
        most = max(1, int(STARTS_PER_CORE * len(os.sched_getaffinity(0))))
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
        """Hosts that have been started and have not taken tasks yet, in the order of their requests."""
        return [
            name
            for name, host in self._hosts.items()
            if host.started is not None and not host.released and name in states and states[name]["alive"]
            if not host.ready and self._clock() - host.started < STARTING_FOR
        ]

    def _weigh(self, states: _States) -> None:
        """Set the CPU weight of every host that is not held to its cores yet, where it changed."""
        starting = self._starting(states)
        for name, host in self._hosts.items():
            weight = 1.0 if name not in starting else FIRST_WEIGHT if name == starting[0] else NEXT_WEIGHT
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
        """Drop hosts that were released and of which nothing is left."""
        for name, host in list(self._hosts.items()):
            if host.released and (name not in states or states[name]["gone"]):
                if name in states:
                    self.cluster.forget(name)
                del self._hosts[name]
