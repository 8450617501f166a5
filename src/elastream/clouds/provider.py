"""Interface between users of hosts and the providers of hosts.

A `Cloud` is declared by users; `Cloud.open` returns its `Provider`. A new provider needs one module here, one line in the
table of clouds (`elastream.documents.registry`) and one `ProviderCase` in `tests/conformance/provider_suite.py`.

**The contract of every provider**

*Requests* are asynchronous: a call stores the request and returns; `hosts()` shows the outcome.

*Phases.* The requester names each host. A host moves forward through `EDGES`, never backward.

*Room.* The provider starts at once what fits, and the rest in request order. A waiting host is REQUESTED, with a reason.

*Idempotence.* `lease` of a listed name and `release` of an unlisted one change nothing. A caller that does not know the
outcome of a call repeats it.

*Forgetting.* A GONE host stays listed until it is released; a released host leaves the list when it is gone, and its name
is free.

*Failures.* A failed host is GONE with a reason. A method raises CloudError for an impossible
request, such as an unknown type, and then does nothing. Another ElastreamError means that the provider cannot answer and
the outcome is unknown. It raises nothing else.

*Threads.* Methods are thread-safe and return within milliseconds. Slow work runs in the provider's own thread, which logs
faults or raises alarms, and continues. A provider never calls its user.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import getattr_static
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from elastream.core.alarm import Alarms
from elastream.core.hosts import Billing, HostType
from elastream.core.members import overridable
from elastream.errors import InputError

NAN = math.nan


class Phase(StrEnum):
    """Phases of a provider's host; `EDGES` has the transitions."""

    REQUESTED = "requested"
    STARTING = "starting"
    UP = "up"
    ENDING = "ending"
    GONE = "gone"


EDGES: Mapping[Phase, frozenset[Phase]] = {
    Phase.REQUESTED: frozenset(
        {
            Phase.STARTING,  # the provider has room (a free machine, a grant, quota) and begins to start the host
            Phase.GONE,  # refused for good, or released before it began to start
        }
    ),
    Phase.STARTING: frozenset(
        {
            Phase.UP,  # the machine runs; the session sees whether an executor has registered
            Phase.ENDING,  # released; processes or reservations remain
            Phase.GONE,  # the start failed
        }
    ),
    Phase.UP: frozenset({Phase.ENDING, Phase.GONE}),  # released; died or was taken away
    Phase.ENDING: frozenset({Phase.GONE}),  # nothing remains
    Phase.GONE: frozenset(),
}


@dataclass(frozen=True, slots=True)
class HostStatus:
    """Status of a host as its provider sees it."""

    type: str  # name of the host type
    phase: Phase
    reason: str = ""  # why the host waits or is gone
    address: str = ""  # address of its executors; empty while unknown
    executor: str = ""  # id of its executor, if known. Otherwise it is the one that registers from `address`.
    refused: bool = False  # refused for now, and waiting
    recalled: bool = False  # the owner wants the host back (see `RunState.kept`)
    deadline: float | None = None  # epoch second at which a recalled host is taken away; None without one
    namespace: Path | None = None  # file of its network namespace on this machine, if any

    @property
    def there(self) -> bool:
        """Return True if the machine runs or starts."""
        return self.phase in (Phase.STARTING, Phase.UP)


@dataclass(frozen=True, slots=True)
class HostUsage:
    """Resources that a host uses."""

    cpu_seconds: float | None = None  # CPU time so far; None if unknown
    memory: float | None = None  # megabytes now; None if unknown
    cpu: float = NAN  # utilisation from 0 to 1, if the CPU time is unknown
    replicas: int = 0  # operator instances on the host (A_n in E2DF)


@dataclass(frozen=True, slots=True)
class RunState:
    """State that a run reports to its provider, always complete."""

    ready: frozenset[str] = frozenset()  # hosts that take tasks
    settled: frozenset[str] = frozenset()  # ready hosts past their first batches, which can be limited to their type
    holding: frozenset[str] = frozenset()  # hosts that hold state
    kept: frozenset[str] = frozenset()  # recalled hosts that the run keeps, because no other host could do their work
    critical: bool = False  # the service level is missed, so claims on shared hosts weigh more


@dataclass(frozen=True, slots=True)
class ClusterEndpoint:
    """Address and settings with which a Spark session reaches the provider's hosts."""

    master: str  # master URL
    driver_address: str  # address of the driver as hosts see it
    executor_memory: int  # heap of an executor (MiB)
    executor_cores: int | None = None  # slots of an executor; None if host types differ
    settings: Mapping[str, str] = field(default_factory=dict)  # further Spark settings
    java_options: tuple[str, ...] = ()  # further JVM options of executors
    secret: str | None = field(default=None, repr=False)  # shared secret, if the master asks for one
    python: str = ""  # interpreter on the hosts; empty for the driver's path
    packaged: bool = False  # the session ships its modules to the hosts


@dataclass(frozen=True, slots=True)
class ProviderOffer:
    """Host types and limits of a provider, constant over its life."""

    types: tuple[HostType, ...]  # host types, that of a run's first hosts first
    max_hosts: int
    min_hosts: int = 1
    patience: float = 30.0  # how long a request may wait while other hosts work, before the run withdraws it (seconds)
    endpoint: ClusterEndpoint | None = None  # None if no session can use the hosts
    confinement: str = ""  # one sentence on how hosts are limited to their type
    link_rate: float = NAN  # capacity of a host's link (bytes/s); NaN if unlimited
    notices: str = ""  # path or URL of each host's notice (`clouds.notices`); empty if none is read


class Provider(ABC):
    """Source of leased hosts; the module's docstring is the contract.

    `terms`, `lease`, `release`, `hosts` and `close` are required. Users' own classes implement these names, `owed`
    included.
    """

    terms: ProviderOffer

    @abstractmethod
    def lease(self, hosts: Mapping[str, HostType]) -> None:
        """Request hosts by name; names that are already listed change nothing."""

    @abstractmethod
    def release(self, hosts: Collection[str]) -> None:
        """End running hosts, withdraw waiting ones and forget those that are gone."""

    @abstractmethod
    def hosts(self) -> Mapping[str, HostStatus]:
        """Return the status of every known host; cheap, as called four times a second."""

    @abstractmethod
    def close(self) -> None:
        """End every host that depends on this provider, and return when nothing is left.

        May be called twice; no other method may follow.
        """

    def measure(self) -> Mapping[str, HostUsage]:
        """Return the usage of each host, as far as known."""
        return {}

    def report(self, state: RunState) -> None:  # noqa: B027 - a default
        """Receive the state of the run."""

    def owed(self) -> float | None:
        """Return the amount due so far as the provider bills it; None to charge the cost of the leases."""
        return None


UNLIMITED = 2**31 - 1  # Spark's value for "as many executors as the cluster has room for"


class RegisteredExecutor(Protocol):
    """An executor that has registered; `host` is its address."""

    @property
    def host(self) -> str:
        """Its address."""


@dataclass(frozen=True, slots=True)
class PendingReason:
    """Reason of the cluster manager why requested executors have not come."""

    reason: str = ""  # one sentence, or empty
    refused: bool = False  # refused for now
    never: bool = False  # will never be granted
    starting: int = 0  # number of granted executors that have not registered


class ExecutorAllocator(Protocol):
    """Spark's allocation client of one session.

    Spark takes a total number of executors, not names. Calls return within milliseconds and raise the session's error
    once it has stopped.
    """

    @property
    def application(self) -> str:
        """Id of the session's application at its cluster manager."""

    @property
    def registered(self) -> Mapping[str, RegisteredExecutor]:
        """Registered executors by id, as of the session's last poll."""

    def request(self, total: int) -> None:
        """Set the total number of executors that the session may have."""

    def kill(self, executor: str) -> None:
        """Release an executor with all its tasks; lower the total first."""

    def fence(self, executor: str) -> None:
        """Exclude an executor from scheduling for good; it stays, and nothing replaces it."""

    def pending_reason(self) -> PendingReason:
        """Return why requested executors have not come."""

    def ending(self, executor: str) -> str:
        """Return why a registered executor ended, or ""."""

    def notices(self) -> Mapping[str, tuple[float, str]]:
        """Return when (epoch seconds) and why the cluster manager takes executors away."""

    def protect(self, executors: Collection[str]) -> None:
        """Ask the cluster manager not to evict these executors. The last call replaces earlier ones."""

    def unprotect(self) -> None:
        """Withdraw the request of `protect`; return once that is done."""

    def release_leftovers(self, application: str) -> None:
        """Release what an earlier application left on the cluster; may take long."""


@dataclass(frozen=True, slots=True)
class ExistingSession:
    """A running Spark session that hosts join."""

    master: str
    executor_memory: int  # memory of each executor (MiB)
    executor_slots: int  # task slots of each executor
    secret: str | None = field(default=None, repr=False)  # secret of its master, if any
    allocator: ExecutorAllocator | None = None  # None if the session cannot request executors
    allowed: int = UNLIMITED  # executors that it may have before any request


class Cloud(ABC):
    """Source of hosts as users declare it, such as `elastream.Local` or `elastream.Pool`.

    Subclasses define `types`, `max_hosts` and `open`.
    """

    __slots__ = ()

    @overridable
    def types(self) -> tuple[HostType, ...]:
        """Host types, that of a run's first hosts first."""
        raise NotImplementedError

    @overridable
    def max_hosts(self) -> int:
        """Highest number of hosts at a time."""
        raise NotImplementedError

    @overridable
    def min_hosts(self) -> int:
        """Lowest number of hosts of a run."""
        return 1

    @overridable
    def stabilization_down(self) -> float:
        """Seconds for which policies keep unneeded hosts by default; rules and the policy take precedence."""
        return 0.0

    @abstractmethod
    def open(
        self,
        folder: Path,
        *,
        ports: range | None = None,
        session: ExistingSession | None = None,
        alarms: Alarms | None = None,
    ) -> Provider:
        """Return the provider, ready to lease.

        Args:
            folder: Folder for its files.
            ports: Ports to listen at; None for free ones.
            session: Session that hosts join; None if one is opened later.

        Raises:
            ElastreamError: It cannot be opened; nothing is left running.
        """


class SupportsOpen(Protocol):
    """An object that opens a provider without being a `Cloud`."""

    @property
    def types(self) -> tuple[HostType, ...]:
        """Host types that the cloud offers."""

    @property
    def max_hosts(self) -> int:
        """Most hosts that may be leased at once."""

    def open(
        self,
        folder: Path,
        *,
        ports: range | None = None,
        session: ExistingSession | None = None,
        alarms: Alarms | None = None,
    ) -> Provider:
        """Return a provider that leases these hosts; the arguments are those of `Cloud.open`."""


class PlainCloud(Cloud):
    """Cloud around an object that is no `Cloud`; its optional members have their defaults."""

    def __init__(self, own: SupportsOpen) -> None:
        self.own = own

    @property
    def types(self) -> tuple[HostType, ...]:
        return self.own.types

    @property
    def max_hosts(self) -> int:
        return self.own.max_hosts

    def open(self, folder: Path, **about: Any) -> Provider:
        return self.own.open(folder, **about)


def as_cloud(cloud: Cloud | SupportsOpen) -> Cloud:
    """Return `cloud` as a `Cloud`. Raises InputError if another object has optional members, which would be ignored."""
    if isinstance(cloud, Cloud):
        return cloud
    if ignored := [name for name in ("min_hosts", "stabilization_down") if getattr_static(cloud, name, None) is not None]:
        kind = type(cloud).__name__
        raise InputError(f"{kind} has {ignored[0]!r} and is not an elastream Cloud: derive the class from it", ("cloud",))
    return PlainCloud(cloud)


@runtime_checkable
class SessionHosts(Protocol):
    """A provider whose hosts are executors of the session."""

    def bind(self, allocator: ExecutorAllocator) -> None:
        """Lease through `allocator` from now on; earlier requests wait for this call."""


def lacks_as_provider(candidate: Any) -> str:
    """Return which members of a `Provider` the `candidate` lacks, as a sentence; "" if none."""
    if isinstance(candidate, Provider):
        return ""
    members = ["terms", *(name for name in vars(Provider) if not name.startswith("_"))]
    missing = [name for name in members if getattr_static(candidate, name, None) is None]
    return f"{type(candidate).__name__} is not a provider of hosts: it has no {', '.join(missing)}" if missing else ""


# Half a core and 1,000 MB for one task, billed per 30 s, so that a demonstration of minutes sees leases end.
SMALL = HostType("small", cores=0.5, slots=1, memory=1000.0, price=1.0, billing=Billing(30.0), start=8.0, stop=3.0)

HOST_TYPES: Mapping[str, HostType] = MappingProxyType({SMALL.name: SMALL})

# The rest of the memory is for Python workers, RocksDB and Spark's worker process.
HEAP_SHARE = 0.7
# MiB; Spark starts no executor with less than 1.5 times the 300 MiB that it reserves.
MIN_HEAP_MIB = 450


def executor_memory(host: HostType) -> int:
    """Return the heap of an executor on a host of this type (MiB): the value of `spark.executor.memory`."""
    return int(host.memory * 1e6 * HEAP_SHARE / 2**20)
