"""Hosts on machines of a pool that several applications share; the pool grants and recalls them over HTTP.

`Pool` is the value users write, `PoolHosts` its provider. A host is a worker process of this application's own cluster, as
with `Local`; it starts once the pool has granted a machine for it. While it lives, this process holds the machine's lock,
which the kernel gives to one process at a time: so no machine has two users, whoever may count as dead. While the pool does
not answer, what was granted stays granted. `elastream.planning.sharing` decides who may have what.
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
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from elastream.clouds.local.hosts import LocalHosts
from elastream.clouds.local.local import Local
from elastream.clouds.provider import ExistingSession, HostStatus, Measured, Phase, RunState, Terms
from elastream.model.alarms import AlarmedThread, Alarms
from elastream.model.cloud import HostType
from elastream.model.errors import CloudError, ElastreamError, EnvironmentProblem, in_one_line
from elastream.planning.sharing import holder
from elastream.planning.sharing.holder import Holder
from elastream.planning.sharing.messages import Claim, Offer, View

__all__ = ["Membership", "MembershipLost", "Pool", "PoolClient", "PoolHosts"]

log = logging.getLogger(__name__)

OFFER: TypeAdapter[Offer] = TypeAdapter(Offer)
VIEW: TypeAdapter[View] = TypeAdapter(View)

THREAD = "pool membership"
"""The thread that claims, and what its alarms are called."""

BEAT = 0.5
"""Seconds from one claim to the next; the pool takes an application for dead after many times that."""
EMPTY_AFTER = 30.0
"""Seconds without state after which a host counts as empty: a new one gets its tasks in one of the policy's next rounds."""
ANSWER_WITHIN = 5.0
"""Seconds after which a claim counts as lost."""
TOKEN = "ELASTREAM_POOL_TOKEN"
"""Environment variable that holds the pool's token where none is given: programs are shown around, tokens are not."""


class MembershipLost(CloudError):
    """The pool no longer counts this application as a member: it was silent for too long, or the pool lost its journal."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Machines of a pool that other applications use too: `Pool("http://127.0.0.1:8471", application="wc", priority=2)`.

    url: where the arbiter of the machines serves (`elastream manager`). application: its name there, which no other may
    have. priority: its weight where more is wanted than there is. minimum: machines that it is sure of. token: what the
    arbiter asks for, by default the environment variable ELASTREAM_POOL_TOKEN.

    Raises CloudError for a priority or a minimum that makes no sense.
    """

    url: str
    application: str
    priority: float = 1.0
    minimum: int = 1
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.application:
            raise CloudError("an application needs a name in its pool")
        if not 0 < self.priority < math.inf:
            raise CloudError(f"application {self.application!r} has the priority {self.priority:g}: it must be above 0")
        if self.minimum < 1:
            raise CloudError(
                f"application {self.application!r} has a minimum of {self.minimum}: it needs at least one host"
            )

    @property
    def types(self) -> tuple[HostType, ...]:
        """The host types that the pool has; asks it. Raises ElastreamError where it does not answer."""
        with PoolClient(self) as client:
            return client.offer().kinds

    @property
    def max_hosts(self) -> int:
        """How many machines the pool has; asks it. Raises ElastreamError where it does not answer."""
        with PoolClient(self) as client:
            return client.offer().max_hosts

    def open(
        self,
        folder: Path,
        *,
        ports: range | None = None,
        session: ExistingSession | None = None,
        alarms: Alarms | None = None,
    ) -> "PoolHosts":
        """Join the pool and start the cluster, as `Local.open` does; the application is a member until it is closed."""
        membership = Membership(PoolClient(self), alarms)
        try:
            local = local_of(membership.offer, self.minimum).open(folder, ports=ports, session=session)
        except BaseException:
            membership.close()
            raise
        return PoolHosts(membership, local)


class PoolClient:
    """This application's end of the conversation with its pool. transport: another than the network, for tests.

    Every method raises EnvironmentProblem where no pool answers, CloudError with its reason where it refuses, and
    MembershipLost where this application is no member any more.
    """

    def __init__(self, pool: Pool, transport: httpx.BaseTransport | None = None) -> None:
        self.pool = pool
        token = pool.token or os.environ.get(TOKEN, "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            # A proxy of the surroundings must not get the token, nor hold a claim back.
            self._client = httpx.Client(
                base_url=pool.url, headers=headers, timeout=ANSWER_WITHIN, transport=transport, trust_env=False
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise CloudError(f"{pool.url!r} is no address of a pool: {error}") from None
        self._place = f"/applications/{quote(pool.application, safe='')}"
        self._key = ""

    def offer(self) -> Offer:
        """What the pool has."""
        return self._offer(self._ask("GET", "/"))

    def join(self) -> Offer:
        """Become a member; what the pool has."""
        wanted = {"priority": self.pool.priority, "minimum": self.pool.minimum}
        answer = self._ask("POST", self._place, wanted)
        self._key = str(answer.get("key", ""))
        return self._offer(answer)

    def claim(self, claim: Claim) -> View:
        """Send what is held and wanted; what may be used, and what is owed so far."""
        try:
            return VIEW.validate_python(self._ask("PUT", self._place, asdict(claim)))
        except ValidationError:
            raise self._no_pool() from None

    def leave(self) -> None:
        """Be a member no more."""
        self._ask("DELETE", self._place)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> "PoolClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        url = self.pool.url
        try:
            response = self._client.request(method, path, json=body, headers={"key": self._key})
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = str(error) or type(error).__name__
            raise EnvironmentProblem(f"there is no pool at {url}: {said}") from None
        try:
            answer = response.json()
            refusal = "" if response.status_code == 200 else str(answer["error"])
        except (ValueError, KeyError, TypeError):
            raise self._no_pool(response.status_code) from None
        if response.status_code == 410:
            raise MembershipLost(f"the pool at {url}: {refusal}")
        if response.status_code >= 500:
            raise EnvironmentProblem(f"the pool at {url} fails: {refusal}")
        if refusal:
            raise CloudError(f"the pool at {url} refuses application {self.pool.application!r}: {refusal}")
        return dict(answer)

    def _offer(self, answer: Mapping[str, Any]) -> Offer:
        try:
            return OFFER.validate_python(answer["offer"])
        except (ValidationError, KeyError):
            raise self._no_pool() from None

    def _no_pool(self, status: int = 200) -> EnvironmentProblem:
        return EnvironmentProblem(f"what answers at {self.pool.url} is no pool (HTTP {status})")


class Membership:
    """What this application holds of its pool and requests from it. Thread-safe.

    Raises ElastreamError where the pool does not take the application. alarms: where a pool that does not answer shows.
    """

    def __init__(self, client: PoolClient, alarms: Alarms | None = None) -> None:
        self._client = client
        self._alarms = alarms or Alarms(time.monotonic)
        self.offer = client.join()
        # A name of any length makes one of a socket, which the kernel keeps short.
        self._place = hashlib.sha256(self.offer.name.encode()).hexdigest()[:16]
        self._lock = threading.RLock()
        self._held = Holder(client.pool.application)
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

        occupied: hosts whose machines are in use. evict: ends one whose machine is another's. use: by host, replicas on it
        and its CPU utilisation, None where unknown.
        """
        self._occupied, self._evict, self._use = occupied, evict, use
        self._thread.start()

    def stop(self) -> None:
        """Send no further claim."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(2 * ANSWER_WITHIN)

    def close(self) -> None:
        """Give everything back and leave; the pool notices by itself where it cannot be reached."""
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
        """Why not all that it requests is granted; empty where nothing is refused."""
        return self._refusal

    def report(self, kept: Collection[str], critical: bool) -> None:
        """Note for the next claim which recalled hosts will not be left, and whether the service level is missed."""
        with self._lock:
            self._refused = {self._bound[host] for host in kept if host in self._bound}
            self._critical = critical

    def owed(self) -> float:
        """Money owed to the pool, as it said last."""
        return self._owed

    def place(self, waiting: Mapping[str, HostType], start: Callable[[str, HostType], None]) -> list[str]:
        """Start those of `waiting`, by `start`, for which there is a machine; the next claim asks for the others only."""
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
        """Machines that may be used, and are not."""
        taken = set(self._bound.values())
        return [machine for machine in self._held.open if machine not in taken]

    def _locked(self, machine: str) -> bool:
        """Whether this process has the machine's lock; tries to get it."""
        if machine not in self._locks:
            lock = socket.socket(socket.AF_UNIX)
            try:
                # An abstract name: the kernel takes it back when its holder is gone, however that came about.
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
            try:
                self.beat()
                self._alarms.clear(THREAD)
            except ElastreamError as error:
                self._alarms.sound(THREAD, f"no claim was answered; machines granted so far are kept: {error}")
            except Exception as error:
                self._alarms.sound(THREAD, f"a claim failed: {in_one_line(error)}", error)
            self._stopping.wait(BEAT)

    def beat(self) -> None:
        """Send one claim and take in its answer; raises ElastreamError where there is none."""
        try:
            view = self._client.claim(self._claim())
        except MembershipLost:
            # As a new member it has back what nobody took meanwhile, and learns what it has lost.
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
                # One that was granted and is not used yet: kept for a host that waits, else given back.
                if machine not in self._held.leave and self._held.hosts[machine] in asks:
                    asks.remove(self._held.hosts[machine])
                    continue
                gone.append(machine)
                if lock := self._locks.pop(machine, None):
                    lock.close()
            refused = tuple(sorted(self._refused & self._held.leave.keys()))
            # A machine whose host is on its way is as good as used: nobody is to think it empty.
            on = {machine: host for host, machine in self._bound.items()}
            # What is given back is not used any more, whenever that is heard.
            self._held, said = holder.claim(
                self._held,
                gone,
                refused=refused,
                asks=tuple(asks),
                critical=self._critical,
                used=tuple((machine, *use.get(on.get(machine, ""), (1, None))) for machine in self._held.hosts),
            )
            return said


class PoolHosts:
    """Hosts of `local`, each on a machine that the pool has granted to `membership`; both are closed with it."""

    def __init__(self, membership: Membership, local: LocalHosts) -> None:
        self._membership, self.local = membership, local
        self._lock = threading.RLock()
        self._waiting: dict[str, HostType] = {}
        self._evicted: set[str] = set()
        self._closed = False
        self._held: dict[str, float] = {}  # when each host last held state, or was not ready yet
        self._seen: dict[str, tuple[float, float]] = {}  # (time, CPU seconds) of each host
        self._state = RunState()
        membership.start(local.occupied, self._evict, self._use)

    @property
    def terms(self) -> Terms:
        """What the pool has to offer."""
        return self.local.terms

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
            return found | {name: HostStatus(kind.name, Phase.REQUESTED, waits) for name, kind in self._waiting.items()}

    def measure(self) -> Mapping[str, Measured]:
        """CPU time and memory, as the processes of this machine have it."""
        return self.local.measure()

    def report(self, state: RunState) -> None:
        """Hold settled hosts to their type; tell the pool what is kept, and whether the service level is missed."""
        self.local.report(state)
        self._state = state
        self._membership.report(state.kept, state.critical)

    def owed(self) -> float | None:
        """This application's part of the pool's bill, as the pool said last."""
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
        """How used each host is, by replicas and CPU. Called by the membership's thread alone."""
        now, state, found = time.monotonic(), self._state, {}
        cores = {
            name: kind.cores
            for name, host in self.local.hosts().items()
            for kind in self.terms.types
            if kind.name == host.type
        }
        for host, measured in self.local.measure().items():
            if host in state.holding or host not in state.ready:
                self._held[host] = now
            # While nothing at all is placed, the run is starting, which may take long.
            empty = bool(state.holding) and now - self._held.setdefault(host, now) > EMPTY_AFTER
            cpu = None
            if measured.cpu_seconds is not None:
                before, seconds = self._seen.get(host, (now, 0.0))
                if now > before:
                    cpu = max(0.0, measured.cpu_seconds - seconds) / (now - before) / cores.get(host, 1.0)
                self._seen[host] = (now, measured.cpu_seconds)
            found[host] = (0 if empty else 1, cpu)
        return found

    def _evict(self, host: str) -> None:
        """End a host at once, because its machine is another application's. Called by the membership's thread."""
        self._evicted.add(host)
        with contextlib.suppress(CloudError):  # released, and its last process ended meanwhile
            self.local.cluster.kill(host)


def local_of(offer: Offer, minimum: int = 1) -> Local:
    """The hosts of a pool as this machine's."""
    return Local(host_types=offer.kinds, min_hosts=minimum, max_hosts=offer.max_hosts, latency=offer.latency)
