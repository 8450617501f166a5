"""Hosts on machines of a pool that several applications share; the pool grants and recalls them over HTTP.

`Pool` is the value users write, `PoolHosts` its provider. A host is a worker process of this application's own cluster, as
with `Local`; it starts once the pool has granted a machine for it. `membership.py` talks to the pool, and
`elastream.planning.sharing` decides who may have what.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from elastream.clouds.local.hosts import LocalHosts
from elastream.clouds.local.local import Local
from elastream.clouds.membership import Membership, PoolClient
from elastream.clouds.provider import ExistingSession, HostStatus, Measured, Phase, RunState
from elastream.model.alarms import Alarms
from elastream.model.cloud import HostType
from elastream.model.errors import CloudError, EnvironmentProblem
from elastream.planning.sharing.messages import Offer
from elastream.recording.directory import PRIVATE, create_private

__all__ = ["Pool", "PoolHosts"]

USE_EVERY = 5.0
"""Seconds from one measurement of the hosts for the pool to the next: each reads every process of every host."""
KEY = "pool.key"
"""File of the key of a membership, in the folder of the application's cluster."""
EMPTY_AFTER = 30.0
"""Seconds without state after which a host counts as empty: a new one gets its tasks in one of the policy's next rounds."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Machines of a pool that other applications use too: `Pool("http://127.0.0.1:8471", application="wc", priority=2)`.

    url: of the arbiter of the machines (`elastream manager`). application: its name there, unique. priority: weight when
    requests exceed the machines. minimum: machines guaranteed to it. token: for the arbiter, by default the environment
    variable ELASTREAM_POOL_TOKEN. certificate: file of the certificate, or its authority, of a pool that is reached by
    https.

    Raises CloudError for an empty name, a priority not above 0, or a minimum below 1.
    """

    url: str
    application: str
    priority: float = 1.0
    minimum: int = 1
    token: str | None = field(default=None, repr=False)
    certificate: Path | str | None = None

    def __post_init__(self) -> None:
        if not self.application:
            raise CloudError("an application needs a name in its pool")
        if not 0 < self.priority < math.inf:
            raise CloudError(f"application {self.application!r} has the priority {self.priority:g}: it must be above 0")
        if self.minimum < 1:
            raise CloudError(
                f"application {self.application!r} has a minimum of {self.minimum}: it needs at least one host"
            )

    def client(self, transport: httpx.BaseTransport | None = None, kept: Path | None = None) -> PoolClient:
        """The application's HTTP client of the pool. transport: replaces the network in tests. kept: file of its key."""
        return PoolClient(
            self.url,
            self.application,
            priority=self.priority,
            minimum=self.minimum,
            token=self.token,
            certificate=self.certificate,
            transport=transport,
            kept=kept,
        )

    @property
    def types(self) -> tuple[HostType, ...]:
        """Request the host types of the pool. Raises ElastreamError if it does not answer."""
        with self.client() as client:
            return client.offer().kinds

    @property
    def max_hosts(self) -> int:
        """Request the number of machines of the pool. Raises ElastreamError if it does not answer."""
        with self.client() as client:
            return client.offer().max_hosts

    def open(
        self,
        folder: Path,
        *,
        ports: range | None = None,
        session: ExistingSession | None = None,
        alarms: Alarms | None = None,
    ) -> "PoolHosts":
        """Join the pool and start the cluster, as `Local.open` does; the application is a member until it is closed.

        One that was killed is replaced at once by the next one in the same `folder`, which has its key. Raises
        EnvironmentProblem where the folder cannot be written.
        """
        try:
            folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            client = self.client(kept=create_private(folder / KEY))
        except OSError as error:
            raise EnvironmentProblem(f"the cluster's folder {folder} cannot be written: {error.strerror}") from None
        membership = Membership(client, alarms)
        try:
            local = local_of(membership.offer, self.minimum).open(folder, ports=ports, session=session)
        except BaseException:
            membership.close()
            raise
        return PoolHosts(membership, local)


class PoolHosts:
    """Hosts of `local`, each on a machine that the pool has granted to `membership`; both are closed with it.

    clock: monotonic seconds.
    """

    def __init__(self, membership: Membership, local: LocalHosts, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._membership, self.local, self.terms = membership, local, local.terms
        self._lock = threading.RLock()
        self._waiting: dict[str, HostType] = {}
        self._evicted: set[str] = set()
        self._closed = False
        self._held: dict[str, float] = {}  # when each host last held state, or was not ready yet
        self._seen: dict[str, tuple[float, float]] = {}  # (time, CPU seconds) of each host
        self._state = RunState()
        self._used: Mapping[str, tuple[int, float | None]] = {}
        self._next_use = 0.0
        membership.start(local.occupied, self._evict, self._use)

    def lease(self, hosts: Mapping[str, HostType]) -> None:
        """Start `hosts` once the pool has granted machines for them."""
        with self._lock:
            self.local.check(hosts)
            known = self.local.hosts()
            self._waiting |= {name: kind for name, kind in hosts.items() if name not in known}
            self._place()

    def release(self, hosts: Collection[str]) -> None:
        """End `hosts`; their machines go back to the pool with the next claim."""
        with self._lock:
            for name in hosts:
                self._waiting.pop(name, None)
                self._evicted.discard(name)
            self.local.release(hosts)

    def hosts(self) -> Mapping[str, HostStatus]:
        """Every host; starts those for which the pool has granted a machine."""
        with self._lock:
            self._place()
            recalled = self._membership.recalled()
            found = {
                name: replace(host, recalled=True, reason=recalled[name]) if name in recalled else host
                for name, host in self.local.hosts().items()
            }
            for name in self._evicted & set(found):
                if found[name].phase is Phase.GONE:
                    found[name] = replace(found[name], reason="the pool gave its machine to another application")
            refusal = self._membership.refusal()
            waits = f"it waits until {self._membership.offer.name!r} grants a machine" + (f": {refusal}" if refusal else "")
            return found | {
                name: HostStatus(kind.name, Phase.REQUESTED, waits, refused=bool(refusal))
                for name, kind in self._waiting.items()
            }

    def measure(self) -> Mapping[str, Measured]:
        """CPU time and memory of the hosts' processes on this machine."""
        return self.local.measure()

    def report(self, state: RunState) -> None:
        """Limit settled hosts to their type; report kept hosts and the service level with the next claim."""
        self.local.report(state)
        self._state = state
        self._membership.report(state.kept, state.critical)

    def owed(self) -> float | None:
        """This application's part of the pool's bill, by its last answer."""
        return self._membership.owed()

    def close(self) -> None:
        """End everything, then leave the pool; may be called twice."""
        if not self._closed:
            self._closed = True
            self._membership.stop()
            self.local.close()
            self._membership.close()

    def _place(self) -> None:
        for name in self._membership.place(self._waiting, lambda host, kind: self.local.lease({host: kind})):
            del self._waiting[name]

    def _use(self) -> Mapping[str, tuple[int, float | None]]:
        """Use of each host: (replicas, CPU utilisation). Only for the membership's thread."""
        now, state = self._clock(), self._state
        if now < self._next_use:
            return self._used
        self._next_use = now + USE_EVERY
        cores = {kind.name: kind.cores for kind in self.terms.types}
        types, measured = {name: host.type for name, host in self.local.hosts().items()}, self.local.measure()
        # While nothing at all is placed, the run is starting, which may take long.
        placing = not state.holding
        self._held = {
            host: now if placing or host in state.holding or host not in state.ready else self._held.get(host, now)
            for host in measured
        }
        seen = {host: (now, used.cpu_seconds) for host, used in measured.items() if used.cpu_seconds is not None}
        busy: dict[str, float] = {}
        for host, (_, seconds) in seen.items():
            before, then = self._seen.get(host, (now, 0.0))
            if now > before and host in types:
                busy[host] = max(0.0, seconds - then) / (now - before) / cores[types[host]]
        self._seen = seen
        self._used = {host: (int(now - held <= EMPTY_AFTER), busy.get(host)) for host, held in self._held.items()}
        return self._used

    def _evict(self, host: str) -> None:
        """End a host at once, because another application got its machine. Called by the membership's thread."""
        self._evicted.add(host)
        with contextlib.suppress(CloudError):  # released, and its last process ended meanwhile
            self.local.cluster.kill(host)


def local_of(offer: Offer, minimum: int = 1) -> Local:
    """A `Local` with the host types of `offer`."""
    return Local(host_types=offer.kinds, min_hosts=minimum, max_hosts=offer.max_hosts, latency=offer.latency)
