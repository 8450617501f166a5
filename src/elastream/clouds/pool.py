"""Hosts from a pool that this application shares with others: which machines it may use it is told, over HTTP.

`Pool` is the value users write, `PooledCluster` the processes behind it. A host is a worker process of this application's
own cluster, as with `Local`; it is started once the pool has granted a machine for it, and while it lives this process
holds the machine's lock, which the kernel gives to one process at a time: so none has two users, whoever may count as dead.
The pool may be gone for a while: what was granted stays granted. Who may have what
`elastream.planning.sharing.pooling` decides.
"""

import contextlib
import errno
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from elastream.clouds.local.local import Local, LocalCluster
from elastream.model.cloud import HostType
from elastream.model.errors import CloudError, ElastreamError, EnvironmentProblem
from elastream.planning.sharing import holder
from elastream.planning.sharing.holder import Holder
from elastream.planning.sharing.messages import Claim, Offer, View

__all__ = ["Membership", "MembershipLost", "Pool", "PoolLink", "PooledCluster"]

OFFER: TypeAdapter[Offer] = TypeAdapter(Offer)
VIEW: TypeAdapter[View] = TypeAdapter(View)

BEAT = 0.5
"""Seconds from one claim to the next; the pool takes an application for dead after many times that."""
ANSWER_WITHIN = 5.0
"""Seconds after which a claim counts as lost."""
TOKEN = "ELASTREAM_POOL_TOKEN"
"""Environment variable that holds the pool's token where none is given: programs are shown around, tokens are not."""


class MembershipLost(CloudError):
    """The arbiter no longer counts this application as a member: it was silent for too long, or the arbiter lost its
    journal."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Machines of a pool that other applications use too: `Pool("http://127.0.0.1:8471", application="wc", priority=2)`.

    url: where the arbiter (`elastream manager`) serves. application: its name there, which no other may have. priority: its
    weight where more is wanted than there is. minimum: machines that it is sure of. token: what the pool asks for, by
    default the environment variable ELASTREAM_POOL_TOKEN.

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
        if not self.priority > 0:
            raise CloudError(f"application {self.application!r} has the priority {self.priority:g}: it must be above 0")
        if self.minimum < 1:
            raise CloudError(
                f"application {self.application!r} has a minimum of {self.minimum}: it needs at least one host"
            )

    @property
    def types(self) -> tuple[HostType, ...]:
        """The host types that the pool has; asks it. Raises ElastreamError where it does not answer."""
        with PoolLink(self) as link:
            return link.offer().kinds

    @property
    def max_hosts(self) -> int:
        """How many machines the pool has; asks it, likewise."""
        with PoolLink(self) as link:
            return link.offer().max_hosts

    def cluster(self, folder: Path, ports: range | None = None) -> "PooledCluster":
        """The processes behind it, not started yet; the application is a member from now on. Raises ElastreamError."""
        return PooledCluster(self, folder, ports)


class PoolLink:
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
        """Send what is held and wanted; what may be used."""
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

    def __enter__(self) -> "PoolLink":
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
    """What this application holds of its pool and wants of it; the landlord of its hosts. Thread-safe.

    running: names of hosts whose processes are not all gone. evict: ends a host at once, because its machine is another's.
    """

    def __init__(self, link: PoolLink) -> None:
        self._link = link
        self.offer = link.join()
        self._lock = threading.RLock()
        self._held = Holder(link.pool.application)
        # A name of any length makes one of a socket, which the kernel keeps short.
        self._place = hashlib.sha256(self.offer.name.encode()).hexdigest()[:16]
        self._owed = 0.0
        self._why = ""
        self._bound: dict[str, str] = {}  # machine by host
        self._locks: dict[str, socket.socket] = {}
        self._waiting: dict[str, HostType] = {}
        self._refused: set[str] = set()
        self._critical = False
        self._stopping = threading.Event()
        self._running: Callable[[], Collection[str]] = lambda: ()
        self._evict: Callable[[str], None] = lambda host: None
        self._thread = threading.Thread(target=self._beat, name="pool member", daemon=True)

    def start(self, running: Callable[[], Collection[str]], evict: Callable[[str], None]) -> None:
        """Begin to talk to the pool."""
        self._running, self._evict = running, evict
        self._thread.start()

    def close(self) -> None:
        """Give everything back and leave; the pool notices by itself where it cannot be told."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(2 * ANSWER_WITHIN)
        for lock in self._locks.values():
            lock.close()
        with contextlib.suppress(ElastreamError):
            self._link.leave()
        self._link.close()

    # The landlord of the steward.

    def wanted_back(self) -> Collection[str]:
        """Hosts on machines that the pool gives to somebody else."""
        with self._lock:
            leave = self._held.leave.keys() - self._refused
            return {host for host, machine in self._bound.items() if machine in leave}

    def keep(self, host: str) -> None:
        """The host's machine will not be left: it is told so with the next claim."""
        with self._lock:
            self._refused.add(self._bound[host])

    def critical(self, now: bool) -> None:
        """Whether the service level is missed."""
        self._critical = now

    def cost(self) -> float:
        """Money owed to the pool so far, as it said last."""
        return self._owed

    # What the cluster asks.

    def granted(self, waiting: Mapping[str, HostType]) -> list[str]:
        """Hosts of those that wait - these and no others - for which there is a machine now."""
        with self._lock:
            self._waiting = dict(waiting)
            free = self._free()
            found = []
            for host, type in waiting.items():
                machine = next((each for each in free if self._held.hosts[each] == type.name and self._locked(each)), None)
                if machine is not None:
                    free.remove(machine)
                    found.append(host)
            return found

    def place(self, host: str, type: HostType, spawn: Callable[[], None]) -> None:
        """Put the host on a machine that was granted, and spawn it there; raises CloudError where there is none."""
        with self._lock:
            of_kind = (each for each in self._free() if self._held.hosts[each] == type.name)
            machine = next((each for each in of_kind if self._locked(each)), None)
            if machine is None:
                raise CloudError(f"the pool {self.offer.name!r} has granted no machine for {host!r}")
            spawn()
            self._bound[host] = machine
            self._waiting.pop(host, None)

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
                    raise CloudError(f"the lock of machine {machine!r} cannot be had: {error.strerror or error}") from error
                return False
            self._locks[machine] = lock
        return True

    # Talking to the pool.

    def _beat(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(ElastreamError):  # cut off: what was granted stays granted
                self.beat()
            self._stopping.wait(BEAT)

    def beat(self) -> None:
        """Say what is held and wanted, and take in the answer; raises ElastreamError where there is none."""
        try:
            view = self._link.claim(self._claim())
        except MembershipLost:
            # As a new member it has back what nobody took meanwhile, and learns what it has lost.
            self._link.join()
            with self._lock:
                self._held = Holder(self._held.name, hosts=self._held.hosts)
                self._refused.clear()
            view = self._link.claim(self._claim())
        with self._lock:
            self._held, self._owed, self._why = holder.hear(self._held, view), view.owed, view.refused
            self._refused &= self._held.leave.keys()
            lost = [host for host, machine in self._bound.items() if machine not in self._held.hosts]
        for host in lost:
            self._evict(host)

    def _claim(self) -> Claim:
        with self._lock:
            running = self._running()
            for host in [host for host in self._bound if host not in running]:
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
            refused = tuple(sorted(self._refused))
            # What is given back is not used any more, whenever that is heard.
            self._held, claim = holder.claim(self._held, gone, refused=refused, asks=tuple(asks), critical=self._critical)
            return claim


class PooledCluster(LocalCluster):
    """The processes of one application of a pool: a cluster of its own, whose hosts stand on machines of the pool."""

    def __init__(self, pool: Pool, folder: Path, ports: range | None = None) -> None:
        self._member = Membership(PoolLink(pool))
        self.landlord = self._member
        try:
            super().__init__(local_of(self._member.offer, pool.minimum), folder, ports)
        except BaseException:
            self._member.close()
            raise

    def start(self, master: str | None = None) -> str:
        """As `LocalCluster.start` does; the pool is talked to from now on."""
        url = super().start(master)
        self._member.start(self._running, self.kill)
        return url

    def room(self, waiting: Mapping[str, HostType], starting: int) -> Sequence[str]:
        """The hosts that the pool has granted a machine for and that can be started now."""
        granted = self._member.granted(waiting)
        return super().room({host: waiting[host] for host in granted}, starting)

    def lease(self, host: str, type: HostType | None = None) -> None:
        """Start a host on a machine that was granted; raises CloudError where none was."""
        kind = type or self.local.types[0]
        if host not in self._hosts:
            self._member.place(host, kind, lambda: super(PooledCluster, self).lease(host, kind))

    def close(self) -> None:
        """End everything, then leave the pool; may be called twice."""
        super().close()
        self._member.close()


def local_of(offer: Offer, minimum: int = 1) -> Local:
    """The hosts of a pool as this machine's."""
    return Local(host_types=offer.kinds, min_hosts=minimum, max_hosts=offer.max_hosts, latency=offer.latency)
