"""Membership of an application in a pool of shared machines.

It claims machines over HTTP and locks those it uses, so that no machine has two users even if the pool believes one dead.
While the pool is silent, granted machines stay granted.
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

from elastream.clouds.arbiter_link import RESPONSE_TIMEOUT_S, ArbiterLink
from elastream.clouds.local.authentication import POOL_TOKEN
from elastream.clouds.local.hosts import LocalHosts
from elastream.clouds.local.local import Local
from elastream.clouds.provider import Cloud, ExistingSession, HostStatus, HostUsage, Phase, Provider, RunState
from elastream.core.alarm import AlarmedThread, Alarms
from elastream.core.hosts import HostType
from elastream.errors import CloudError, ElastreamError, EnvironmentProblem, in_one_line
from elastream.recording.directory import PRIVATE, create_private
from elastream.sharing import holder
from elastream.sharing.holder import Holder
from elastream.sharing.messages import Claim, Offer, View

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Welcome:
    offer: Offer
    key: str = ""


WELCOME: TypeAdapter[Welcome] = TypeAdapter(Welcome)
VIEW: TypeAdapter[View] = TypeAdapter(View)
NOTHING: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])

THREAD_NAME = "pool membership"  # name of the thread that claims, and of its alarm

CLAIM_INTERVAL_S = 0.5  # the pool counts an application as dead after many missing claims


class MembershipLost(CloudError):
    """The pool no longer counts this application as a member: it was silent too long, or the pool lost its journal."""


class PoolClient(ArbiterLink):
    """Connection of an application to its pool; `key_file` lets a restarted application replace a killed one.

    Raises:
        EnvironmentProblem: No pool answers. All three are raised by every method.
        CloudError: The pool refuses.
        MembershipLost: The application is no longer a member.
    """

    service_name = "pool"
    wrong_service_error = EnvironmentProblem
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
        key_file: Path | None = None,
    ) -> None:
        super().__init__(url, token or os.environ.get(POOL_TOKEN), certificate=certificate, transport=transport)
        self.application = application
        self.sender = f" application {application!r}"
        self._entitlement = {"priority": priority, "minimum": minimum}
        self._path = f"/applications/{quote(application, safe='')}"
        self._key_file = key_file
        self._key = "" if key_file is None or not key_file.exists() else key_file.read_text()

    def offer(self) -> Offer:
        return self.ask(WELCOME, "GET", "/").offer

    def join(self) -> Offer:
        welcome = self.ask(WELCOME, "POST", self._path, self._entitlement, self._key)
        self._key = welcome.key
        if self._key_file is not None:
            create_private(self._key_file).write_text(self._key)
        return welcome.offer

    def claim(self, claim: Claim) -> View:
        """Send a claim and return the hosts that may be used and the amount due."""
        return self.ask(VIEW, "PUT", self._path, asdict(claim), self._key)

    def leave(self) -> None:
        self.ask(NOTHING, "DELETE", self._path, key=self._key)
        if self._key_file is not None:
            self._key_file.unlink(missing_ok=True)


class Membership:
    """Machines that this application holds and requests. Thread-safe.

    Args:
        alarms: Receives an alarm while the pool does not answer.

    Raises:
        ElastreamError: The pool refuses the application.
    """

    def __init__(self, client: PoolClient, alarms: Alarms | None = None) -> None:
        self._client = client
        self._alarms = alarms or Alarms(time.monotonic)
        self.offer = client.join()
        # Hashed, because the kernel limits the length of a socket's name.
        self._lock_name = hashlib.sha256(self.offer.name.encode()).hexdigest()[:16]
        self._lock = threading.RLock()
        self._holder = Holder(client.application)
        self._amount_due = 0.0
        self.refusal = ""  # why a request is not granted; empty if none is refused
        self._bound: dict[str, str] = {}  # machine by host
        self._locks: dict[str, socket.socket] = {}
        self._waiting: dict[str, HostType] = {}
        self._refused: set[str] = set()
        self._critical = False
        self._stopping = threading.Event()
        self._occupied: Callable[[], Collection[str]] = lambda: ()
        self._use: Callable[[], Mapping[str, tuple[int, float | None]]] = dict
        self._evict: Callable[[str], None] = lambda host: None
        self._thread = AlarmedThread(self._alarms, THREAD_NAME, self._beat)

    def start(
        self,
        occupied: Callable[[], Collection[str]],
        evict: Callable[[str], None],
        use: Callable[[], Mapping[str, tuple[int, float | None]]] = dict,
    ) -> None:
        """Start to send claims.

        Args:
            occupied: Returns the hosts whose machines are in use.
            evict: Ends a host whose machine the pool reassigned.
            use: Returns the replicas and CPU utilisation (None if unknown) of each host.
        """
        self._occupied, self._evict, self._use = occupied, evict, use
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(2 * RESPONSE_TIMEOUT_S)

    def close(self) -> None:
        """Return all machines and leave; an unreachable pool notices the silence."""
        self.stop()
        for lock in self._locks.values():
            lock.close()
        try:
            self._client.leave()
        except ElastreamError as error:
            log.warning("%s did not leave its pool, which will count it as gone: %s", self._holder.name, error)
        self._client.close()

    def recalled(self) -> Mapping[str, str]:
        with self._lock:
            leave = self._holder.leave
            return {host: leave[machine] for host, machine in self._bound.items() if machine in leave}

    def amount_due(self) -> float:
        return self._amount_due

    def report(self, indispensable: Collection[str], critical: bool) -> None:
        """Store indispensable hosts and the service level for the next claim."""
        with self._lock:
            self._refused = {self._bound[host] for host in indispensable if host in self._bound}
            self._critical = critical

    def place(self, waiting: Mapping[str, HostType], start: Callable[[str, HostType], None]) -> list[str]:
        """Start waiting hosts that have a machine and return their names; the next claim requests the others."""
        with self._lock:
            bound = set(self._bound.values())
            free, placed = [machine for machine in self._holder.open if machine not in bound], []
            for host, kind in waiting.items():
                fits = (each for each in free if self._holder.hosts[each] == kind.name and self._locked(each))
                machine = next(fits, None)
                if machine is not None:
                    start(host, kind)
                    free.remove(machine)
                    self._bound[host] = machine
                    placed.append(host)
            self._waiting = {host: kind for host, kind in waiting.items() if host not in placed}
            return placed

    def _locked(self, machine: str) -> bool:
        if machine not in self._locks:
            lock = socket.socket(socket.AF_UNIX)
            try:
                # An abstract name: the kernel frees it when its holder ends, in whatever way.
                lock.bind(f"\0elastream-pool-{self._lock_name}-{machine}")
            except OSError as error:
                lock.close()
                if error.errno != errno.EADDRINUSE:
                    raise EnvironmentProblem(f"machine {machine!r} cannot be locked: {error.strerror or error}") from error
                return False
            self._locks[machine] = lock
        return True

    def _beat(self) -> None:
        while not self._stopping.is_set():
            self.try_claim()
            self._stopping.wait(CLAIM_INTERVAL_S)

    def try_claim(self) -> None:
        """Send one claim; raise an alarm if it fails."""
        try:
            self.beat()
            self._alarms.clear(THREAD_NAME)
        except ElastreamError as error:
            self._alarms.sound(THREAD_NAME, f"no claim was answered; machines granted so far are kept: {error}")
        except Exception as error:
            self._alarms.sound(THREAD_NAME, f"a claim failed: {in_one_line(error)}", error)

    def beat(self) -> None:
        """Send one claim and process the response. Raises ElastreamError if there is no response."""
        try:
            view = self._client.claim(self._claim())
        except MembershipLost:
            # A new member regains hosts not assigned meanwhile, and learns which it has lost.
            self._client.join()
            with self._lock:
                self._holder = Holder(self._holder.name, hosts=self._holder.hosts)
            view = self._client.claim(self._claim())
        with self._lock:
            self._holder, self._amount_due, self.refusal = holder.receive(self._holder, view), view.owed, view.refused
            lost = [host for host, machine in self._bound.items() if machine not in self._holder.hosts]
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
            unused = []
            for machine in [machine for machine in self._holder.hosts if machine not in used]:
                # Granted and unused: kept for a waiting host, else given back.
                if machine not in self._holder.leave and self._holder.hosts[machine] in asks:
                    asks.remove(self._holder.hosts[machine])
                    continue
                unused.append(machine)
                if lock := self._locks.pop(machine, None):
                    lock.close()
            refused = tuple(sorted(self._refused & self._holder.leave.keys()))
            # A machine whose host is starting counts as used.
            on = {machine: host for host, machine in self._bound.items()}
            # Hosts given back are unused from now on, before the pool receives it.
            self._holder, message = holder.claim(
                self._holder,
                unused,
                refused=refused,
                asks=tuple(asks),
                critical=self._critical,
                used=tuple((machine, *use.get(on.get(machine, ""), (1, None))) for machine in self._holder.hosts),
            )
            return message


USAGE_INTERVAL_S = 5.0  # each measurement reads every process of every host
KEY_FILE = "pool.key"
# A host without state counts as empty after this time: a new one receives its tasks within the policy's next rounds.
EMPTY_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class Pool(Cloud):
    """Machines that several applications share: `Pool("http://127.0.0.1:8471", application="wc", priority=2)`.

    Args:
        url: URL of the arbiter (`elastream manager`).
        application: Unique name of the application.
        priority: Weight when requests exceed the machines.
        minimum: Guaranteed machines.
        token: Token of the arbiter; default: ELASTREAM_POOL_TOKEN in the environment.
        certificate: File of the certificate, or its authority, of an https pool.

    Raises:
        CloudError: An empty name, a priority not above 0, or a minimum below 1.
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

    def client(self, transport: "httpx.BaseTransport | None" = None, key_file: Path | None = None) -> PoolClient:
        """Return an HTTP client of the pool; `transport` replaces the network in tests."""
        return PoolClient(
            self.url,
            self.application,
            priority=self.priority,
            minimum=self.minimum,
            token=self.token,
            certificate=self.certificate,
            transport=transport,
            key_file=key_file,
        )

    @property
    def types(self) -> tuple[HostType, ...]:
        with self.client() as client:
            return client.offer().kinds

    @property
    def max_hosts(self) -> int:
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
        """Join the pool and start the cluster; a restart in the same `folder` replaces a killed application."""
        try:
            folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            client = self.client(key_file=create_private(folder / KEY_FILE))
        except OSError as error:
            raise EnvironmentProblem(f"the cluster's folder {folder} cannot be written: {error.strerror}") from None
        membership = Membership(client, alarms)
        try:
            local = local_cloud(membership.offer, self.minimum).open(folder, ports=ports, session=session)
        except BaseException:
            membership.close()
            raise
        return PoolHosts(membership, local)


class PoolHosts(Provider):
    """Local hosts, each on a machine that the pool granted; `close` closes both."""

    def __init__(self, membership: Membership, local: LocalHosts, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._membership, self.local, self.terms = membership, local, local.terms
        self._lock = threading.RLock()
        self._waiting: dict[str, HostType] = {}
        self._evicted: set[str] = set()
        self._closed = False
        self._last_needed: dict[str, float] = {}  # when each host last held state, or was not ready yet
        self._previous_cpu: dict[str, tuple[float, float]] = {}  # (time, CPU seconds) of each host
        self._state = RunState()
        self._used: Mapping[str, tuple[int, float | None]] = {}
        self._next_use = 0.0
        membership.start(local.occupied, self._evict, self._use)

    def lease(self, hosts: Mapping[str, HostType]) -> None:
        with self._lock:
            self.local.check(hosts)
            listed = self.local.hosts()
            self._waiting |= {name: kind for name, kind in hosts.items() if name not in listed}
            self._place()

    def release(self, hosts: Collection[str]) -> None:
        with self._lock:
            for name in hosts:
                self._waiting.pop(name, None)
                self._evicted.discard(name)
            self.local.release(hosts)

    def hosts(self) -> Mapping[str, HostStatus]:
        with self._lock:
            self._place()
            recalled = self._membership.recalled()
            hosts = {
                name: replace(host, recalled=True, reason=recalled[name]) if name in recalled else host
                for name, host in self.local.hosts().items()
            }
            for name in self._evicted & set(hosts):
                if hosts[name].phase is Phase.GONE:
                    hosts[name] = replace(hosts[name], reason="the pool gave its machine to another application")
            refusal = self._membership.refusal
            waits = f"it waits until {self._membership.offer.name!r} grants a machine" + (f": {refusal}" if refusal else "")
            return hosts | {
                name: HostStatus(kind.name, Phase.REQUESTED, waits, refused=bool(refusal))
                for name, kind in self._waiting.items()
            }

    def measure(self) -> Mapping[str, HostUsage]:
        return self.local.measure()

    def report(self, state: RunState) -> None:
        self.local.report(state)
        self._state = state
        self._membership.report(state.kept, state.critical)

    def owed(self) -> float | None:
        return self._membership.amount_due()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._membership.stop()
            self.local.close()
            self._membership.close()

    def _place(self) -> None:
        for name in self._membership.place(self._waiting, lambda host, kind: self.local.lease({host: kind})):
            del self._waiting[name]

    def _use(self) -> Mapping[str, tuple[int, float | None]]:
        now, state = self._clock(), self._state
        if now < self._next_use:
            return self._used
        self._next_use = now + USAGE_INTERVAL_S
        cores = {kind.name: kind.cores for kind in self.terms.types}
        types, measured = {name: host.type for name, host in self.local.hosts().items()}, self.local.measure()
        # While nothing at all is placed, the run is starting, which may take long.
        placing = not state.holding
        self._last_needed = {
            host: now if placing or host in state.holding or host not in state.ready else self._last_needed.get(host, now)
            for host in measured
        }
        cpu = {host: (now, used.cpu_seconds) for host, used in measured.items() if used.cpu_seconds is not None}
        busy: dict[str, float] = {}
        for host, (_, seconds) in cpu.items():
            before, then = self._previous_cpu.get(host, (now, 0.0))
            if now > before and host in types:
                busy[host] = max(0.0, seconds - then) / (now - before) / cores[types[host]]
        self._previous_cpu = cpu
        self._used = {
            host: (int(now - needed <= EMPTY_AFTER_S), busy.get(host)) for host, needed in self._last_needed.items()
        }
        return self._used

    def _evict(self, host: str) -> None:
        self._evicted.add(host)
        with contextlib.suppress(CloudError):  # released, and its last process ended meanwhile
            self.local.cluster.kill(host)


def local_cloud(offer: Offer, minimum: int = 1) -> Local:
    return Local(host_types=offer.kinds, min_hosts=minimum, max_hosts=offer.max_hosts, latency=offer.latency)
