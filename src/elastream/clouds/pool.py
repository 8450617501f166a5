"""An application's membership of a pool: it claims machines over HTTP, and locks each that it uses.

The kernel gives a machine's lock to one process at a time: so no machine has two users, even where the pool counts one of
them as gone. While the pool does not answer, what was granted stays granted.
"""

import contextlib
import errno
import hashlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import TypeAdapter

from elastream.clouds.arbiter_link import ANSWER_WITHIN, ArbiterLink
from elastream.clouds.local.closed import POOL_TOKEN
from elastream.clouds.local.hosts import LocalHosts
from elastream.clouds.local.local import Local
from elastream.clouds.provider import Cloud, ExistingSession, HostStatus, Measured, Phase, Provider, RunState
from elastream.core.alarm import AlarmedThread, Alarms
from elastream.core.hosts import HostType
from elastream.errors import CloudError, ElastreamError, EnvironmentProblem, in_one_line
from elastream.recording.directory import PRIVATE, create_private
from elastream.sharing import holder
from elastream.sharing.holder import Holder
from elastream.sharing.messages import Claim, Offer, View

if TYPE_CHECKING:
    import httpx
if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Welcome:
    """A pool's answer to who asks for its offer, or joins and gets a key."""

    offer: Offer
    key: str = ""


WELCOME: TypeAdapter[Welcome] = TypeAdapter(Welcome)
VIEW: TypeAdapter[View] = TypeAdapter(View)
NOTHING: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])

THREAD = "pool membership"
"""Name of the thread that claims, and of its alarms."""

BEAT = 0.5
"""Seconds from one claim to the next; the pool counts an application as gone after many times that."""


class MembershipLost(CloudError):
    """The pool no longer counts this application as a member: it was silent for too long, or the pool lost its journal."""


class PoolClient(ArbiterLink):
    """An application's connection to its pool.

    Every method raises EnvironmentProblem where no pool answers, CloudError with its reason where it refuses, and
    MembershipLost if this application is no longer a member. kept: file of the key of this membership, by which the
    application that goes on after one that was killed is known as the same; None keeps it nowhere.
    """

    called = "pool"
    mistaken = EnvironmentProblem
    refusals = {409: CloudError, 410: MembershipLost}  # noqa: RUF012 - a constant

    def __init__(
        self,
        url: str,
        application: str,
        *,
        priority: float = 1.0,
        minimum: int = 1,
        token: str | None = None,
        certificate: Path | str | None = None,
        transport: "httpx.BaseTransport | None" = None,
        kept: Path | None = None,
    ) -> None:
        super().__init__(url, token or os.environ.get(POOL_TOKEN), certificate=certificate, transport=transport)
        self.application = application
        self.sender = f" application {application!r}"
        self._wanted = {"priority": priority, "minimum": minimum}
        self._place = f"/applications/{quote(application, safe='')}"
        self._kept = kept
        self._key = "" if kept is None or not kept.exists() else kept.read_text()

    def offer(self) -> Offer:
        """The hosts that the pool offers."""
        return self.ask(WELCOME, "GET", "/").offer

    def join(self) -> Offer:
        """Become a member; returns the pool's offer."""
        welcome = self.ask(WELCOME, "POST", self._place, self._wanted, self._key)
        self._key = welcome.key
        if self._kept is not None:
            create_private(self._kept).write_text(self._key)
        return welcome.offer

    def claim(self, claim: Claim) -> View:
        """Send the hosts held and requested; returns those that may be used, and the money owed."""
        return self.ask(VIEW, "PUT", self._place, asdict(claim), self._key)

    def leave(self) -> None:
        """End the membership."""
        self.ask(NOTHING, "DELETE", self._place, key=self._key)
        if self._kept is not None:
            self._kept.unlink(missing_ok=True)


class Membership:
    """The hosts that this application holds and requests of its pool. Thread-safe.

    Raises ElastreamError if the pool refuses the application. alarms: sounds while the pool does not answer.
    """

    def __init__(self, client: PoolClient, alarms: Alarms | None = None) -> None:
        self._client = client
        self._alarms = alarms or Alarms(time.monotonic)
        self.offer = client.join()
        # Hashed, because the kernel limits the length of a socket's name.
        self._place = hashlib.sha256(self.offer.name.encode()).hexdigest()[:16]
        self._lock = threading.RLock()
        self._held = Holder(client.application)
        self._owed = 0.0
        self._refusal = ""
        self._bound: dict[str, str] = {}  # machine by host
        self._locks: dict[str, socket.socket] = {}
        self._waiting: dict[str, HostType] = {}
        self._refused: set[str] = set()
        self._critical = False
        self._stopping = threading.Event()
        self._occupied: Callable[[], Collection[str]] = lambda: ()
        self._use: Callable[[], Mapping[str, tuple[int, float | None]]] = dict
        self._evict: Callable[[str], None] = lambda host: None
        self._thread = AlarmedThread(self._alarms, THREAD, self._beat)

    def start(
        self,
        occupied: Callable[[], Collection[str]],
        evict: Callable[[str], None],
        use: Callable[[], Mapping[str, tuple[int, float | None]]] = dict,
    ) -> None:
        """Begin to send claims.

        occupied: hosts whose machines are in use. evict: ends a host whose machine is reassigned. use: by host, replicas
        and CPU utilisation, None if unknown.
        """
        self._occupied, self._evict, self._use = occupied, evict, use
        self._thread.start()

    def stop(self) -> None:
        """Send no further claim."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(2 * ANSWER_WITHIN)

    def close(self) -> None:
        """Give all machines back and leave; an unreachable pool notices the silence."""
        self.stop()
        for lock in self._locks.values():
            lock.close()
        try:
            self._client.leave()
        except ElastreamError as error:
            log.warning("%s did not leave its pool, which will count it as gone: %s", self._held.name, error)
        self._client.close()

    def recalled(self) -> Mapping[str, str]:
        """Hosts on machines that are recalled, with the reason."""
        with self._lock:
            leave = self._held.leave
            return {host: leave[machine] for host, machine in self._bound.items() if machine in leave}

    def refusal(self) -> str:
        """Why a request is not granted; empty if none is refused."""
        return self._refusal

    def report(self, kept: Collection[str], critical: bool) -> None:
        """Store for the next claim which recalled hosts are kept, and whether the service level is missed."""
        with self._lock:
            self._refused = {self._bound[host] for host in kept if host in self._bound}
            self._critical = critical

    def owed(self) -> float:
        """Money owed to the pool, by its last answer."""
        return self._owed

    def place(self, waiting: Mapping[str, HostType], start: Callable[[str, HostType], None]) -> list[str]:
        """Start those of `waiting`, by `start`, for which there is a machine; the next claim requests only the others."""
        with self._lock:
            free, placed = self._free(), []
            for host, kind in waiting.items():
                machine = next((each for each in free if self._held.hosts[each] == kind.name and self._locked(each)), None)
                if machine is not None:
                    start(host, kind)
                    free.remove(machine)
                    self._bound[host] = machine
                    placed.append(host)
            self._waiting = {host: kind for host, kind in waiting.items() if host not in placed}
            return placed

    def _free(self) -> list[str]:
        """Granted machines without a host."""
        taken = set(self._bound.values())
        return [machine for machine in self._held.open if machine not in taken]

    def _locked(self, machine: str) -> bool:
        """Whether this process has the machine's lock; tries to get it."""
        if machine not in self._locks:
            lock = socket.socket(socket.AF_UNIX)
            try:
                # An abstract name: the kernel frees it when its holder ends, in whatever way.
                lock.bind(f"\0elastream-pool-{self._place}-{machine}")
            except OSError as error:
                lock.close()
                if error.errno != errno.EADDRINUSE:
                    raise EnvironmentProblem(f"machine {machine!r} cannot be locked: {error.strerror or error}") from error
                return False
            self._locks[machine] = lock
        return True

    def _beat(self) -> None:
        while not self._stopping.is_set():
            self.once()
            self._stopping.wait(BEAT)

    def once(self) -> None:
        """One claim, its faults included."""
        try:
            self.beat()
            self._alarms.clear(THREAD)
        except ElastreamError as error:
            self._alarms.sound(THREAD, f"no claim was answered; machines granted so far are kept: {error}")
        except Exception as error:
            self._alarms.sound(THREAD, f"a claim failed: {in_one_line(error)}", error)

    def beat(self) -> None:
        """Send one claim and process the answer; raises ElastreamError without one."""
        try:
            view = self._client.claim(self._claim())
        except MembershipLost:
            # A new member regains hosts not assigned meanwhile, and learns which it has lost.
            self._client.join()
            with self._lock:
                self._held = Holder(self._held.name, hosts=self._held.hosts)
            view = self._client.claim(self._claim())
        with self._lock:
            self._held, self._owed, self._refusal = holder.hear(self._held, view), view.owed, view.refused
            lost = [host for host, machine in self._bound.items() if machine not in self._held.hosts]
        for host in lost:
            self._evict(host)

    def _claim(self) -> Claim:
        use = self._use()  # has locks of its own
        with self._lock:
            occupied = self._occupied()
            for host in [host for host in self._bound if host not in occupied]:
                self._locks.pop(self._bound.pop(host)).close()
            used = set(self._bound.values())
            asks = [type.name for type in self._waiting.values()]
            gone = []
            for machine in [machine for machine in self._held.hosts if machine not in used]:
                # Granted and unused: kept for a waiting host, else given back.
                if machine not in self._held.leave and self._held.hosts[machine] in asks:
                    asks.remove(self._held.hosts[machine])
                    continue
                gone.append(machine)
                if lock := self._locks.pop(machine, None):
                    lock.close()
            refused = tuple(sorted(self._refused & self._held.leave.keys()))
            # A machine whose host is starting counts as used.
            on = {machine: host for host, machine in self._bound.items()}
            # Hosts given back are unused from now on, before the pool receives it.
            self._held, said = holder.claim(
                self._held,
                gone,
                refused=refused,
                asks=tuple(asks),
                critical=self._critical,
                used=tuple((machine, *use.get(on.get(machine, ""), (1, None))) for machine in self._held.hosts),
            )
            return said


USE_EVERY = 5.0
"""Seconds from one measurement of the hosts for the pool to the next: each reads every process of every host."""
KEY = "pool.key"
"""File of the key of a membership, in the folder of the application's cluster."""
EMPTY_AFTER = 30.0
"""Seconds without state after which a host counts as empty: a new one gets its tasks in one of the policy's next rounds."""


@dataclass(frozen=True, slots=True)
class Pool(Cloud):
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

    def client(self, transport: "httpx.BaseTransport | None" = None, kept: Path | None = None) -> PoolClient:
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


class PoolHosts(Provider):
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
