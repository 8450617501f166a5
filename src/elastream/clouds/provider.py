"""The interface between users of hosts (a run, Autopilot, a region's manager) and their providers.

A `Cloud` is the value that users write; `open` gives its `Provider`. Requests are asynchronous: a call stores the request
and returns; its outcome is read from `hosts()`. A new provider is one module here, one line in the table of
clouds (`elastream.documents.registry`) and one `ProviderCase` for `tests/conformance/provider_suite.py`.

**The contract of every provider.**

*A host* is known by the name that its requester chose. It goes through the phases of `EDGES`, forwards only. A reader
that polls may miss short phases, but never sees a phase earlier than one it has seen.

    REQUESTED -> STARTING   the provider had room (a free machine, a grant, a quota) and began to start it
    REQUESTED -> GONE       refused for good, or released before it began to start
    STARTING  -> UP         its machine runs; whether an executor has registered is the session's to see
    STARTING  -> GONE       it failed to start
    STARTING, UP -> ENDING  released: it still runs, or still takes room
    UP        -> GONE       it died, or was taken away
    ENDING    -> GONE       nothing is left of it

*Room* is the provider's affair: it starts at once what it can, and the rest later, in the order in which it was requested.
A host that waits is REQUESTED, with the reason. A provider without a thread of its own goes on with this inside `hosts()`.

*Idempotence.* `lease` of a name that is listed, in whatever phase, and `release` of a name that is not, change nothing. So
every request may be repeated, and must be where its outcome is not known. A name is free again once it is not listed.

*Forgetting.* A host that is GONE stays listed, with the reason, until it is released: none disappears unseen. One that was
released leaves the list when it is gone. So the list is as long as what is wanted, however many hosts there were.

*Failures.* What happens to a host is its status, GONE with a reason, not an exception. A verb raises CloudError for what
can never be (a name or a type that this provider does not take), with nothing of the call done. It raises another
ElastreamError, EnvironmentProblem as a rule, where the provider cannot answer at all: the outcome of the call is then
unknown, and the caller repeats it. It raises nothing else.

*Threads.* Every method may be called from several threads at a time and returns within milliseconds: what takes longer, a
network above all, is the provider's own thread's. Such a thread survives every fault: it logs it with its traceback, or
sounds an alarm where it was given `Alarms`, and goes on. A provider never calls its user.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import getattr_static
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from elastream.core.alarm import Alarms
from elastream.core.hosts import HostType
from elastream.core.overridable import overridable
from elastream.errors import InputError

NAN = math.nan


class Phase(StrEnum):
    """Phases of a provider's host; the module's docstring and `EDGES` define the transitions."""

    REQUESTED = "requested"
    STARTING = "starting"
    UP = "up"
    ENDING = "ending"
    GONE = "gone"


EDGES: Mapping[Phase, frozenset[Phase]] = {
    Phase.REQUESTED: frozenset({Phase.STARTING, Phase.GONE}),
    Phase.STARTING: frozenset({Phase.UP, Phase.ENDING, Phase.GONE}),
    Phase.UP: frozenset({Phase.ENDING, Phase.GONE}),
    Phase.ENDING: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A host as its provider sees it now.

    type: name of its host type. reason: why it waits, or why it is gone; one sentence, empty where there is nothing to say.
    address: what its executors register with, empty before that is known. executor: id of its executor where the provider
    knows that itself; otherwise its executor is the one that registers from `address`. refused: the request was refused for
    now and waits. recalled: its owner wants it back (see `RunState.kept`). namespace: file of its network namespace if it
    has one of its own on this machine.
    """

    type: str
    phase: Phase
    reason: str = ""
    address: str = ""
    executor: str = ""
    refused: bool = False
    recalled: bool = False
    namespace: Path | None = None

    @property
    def there(self) -> bool:
        """Whether its machine runs, or is on its way."""
        return self.phase in (Phase.STARTING, Phase.UP)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a host uses, as far as its provider knows.

    cpu_seconds: CPU time used so far; memory: megabytes now; None where unknown. cpu: utilisation, 0 to 1, where the
    provider knows it and no total; NaN where unknown. replicas: operator instances on it (E2DF's A_n), as far as known.
    """

    cpu_seconds: float | None = None
    memory: float | None = None
    cpu: float = NAN
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run reports to its provider, each time in full, so that a report that is lost or repeated does no harm.

    ready: hosts that take tasks: their start is over. settled: of these, those that have worked off their first batches and
    can be held to their type. holding: hosts that hold state of the run. kept: recalled hosts that the run will not leave,
    because nothing else could do their work. critical: whether the service level is missed, which gives a claim more weight
    where several share hosts.
    """

    ready: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()
    holding: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    critical: bool = False


@dataclass(frozen=True, slots=True)
class Reach:
    """How a Spark session reaches the provider's hosts, as plain values.

    master: its master URL. driver_address: the address at which hosts reach the driver. executor_memory: mebibytes of heap
    for each executor. executor_cores: its slots, None where host types differ. settings: further Spark settings.
    java_options: of the executors' JVMs, beside those that the session wants itself. secret: what the session has to know;
    None where nobody asks.
    """

    master: str
    driver_address: str
    executor_memory: int
    executor_cores: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    java_options: tuple[str, ...] = ()
    secret: str | None = field(default=None, repr=False)
    python: str = ""
    packaged: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """What a provider has to offer; it does not change while the provider lasts.

    types: what can be leased; the first is that of a run's first hosts. min_hosts, max_hosts: how many. patience: seconds
    for which a request is left waiting for room while other hosts do the work, before the run withdraws it. reach: None
    where no session can use the hosts. confinement: one sentence on how hosts are held to their type. link_rate: bytes/s of
    a host's link in one direction, NaN where nothing limits it.
    """

    types: tuple[HostType, ...]
    max_hosts: int
    min_hosts: int = 1
    patience: float = 30.0
    reach: Reach | None = None
    confinement: str = ""
    link_rate: float = NAN


class Provider(ABC):
    """Hosts that can be leased; the module's docstring is the contract.

    Required are `terms` and the four verbs `lease`, `release`, `hosts` and `close`. The others have defaults.
    """

    terms: Terms
    """The provider's host types and bounds."""

    @abstractmethod
    def lease(self, hosts: Mapping[str, HostType]) -> None:
        """Request `hosts` by name. Names that are listed already change nothing."""

    @abstractmethod
    def release(self, hosts: Collection[str]) -> None:
        """End `hosts` and all that runs on them, withdraw those that still wait, forget those that are gone."""

    @abstractmethod
    def hosts(self) -> Mapping[str, HostStatus]:
        """Return every host that was leased and is not forgotten, by name.

        Cheap: called every quarter second while hosts come and go, every second otherwise.
        """

    @abstractmethod
    def close(self) -> None:
        """End every host that lives through this provider, and return when nothing is left of any.

        May be called twice; no other verb may follow.
        """

    def measure(self) -> Mapping[str, Measured]:
        """Return what hosts use, by name, as far as the provider knows. Dearer than `hosts`: called once an observation."""
        return {}

    def report(self, state: RunState) -> None:  # noqa: B027 - a default
        """Take note of how the run does."""

    def owed(self) -> float | None:
        """Return the money due so far as billed by the provider; None: the cost of the leases."""
        return None


UNLIMITED = 2**31 - 1
"""Spark's value for "as many executors as the cluster has room for"."""


class SeenExecutor(Protocol):
    """An executor that has registered with a session. host: its address."""

    @property
    def host(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ClusterWord:
    """What a cluster manager says of the executors that a session has requested and not got, as far as it says anything.

    reason: why they do not come, one sentence. refused: it has refused them for now. never: it never will grant them.
    starting: how many it has granted that have not registered.
    """

    reason: str = ""
    refused: bool = False
    never: bool = False
    starting: int = 0


class Granting(Protocol):
    """How a session is granted executors by its cluster manager: Spark's allocation client, as plain values.

    Spark takes a number, not names: how many executors the session may have in all. Calls return within milliseconds and
    raise what the session raises once it has stopped.
    """

    @property
    def application(self) -> str:
        """The id of the session's application, which its cluster manager gave it."""
        ...

    @property
    def seen(self) -> Mapping[str, SeenExecutor]:
        """The executors that were registered at the session's last look, by id."""
        ...

    def request(self, total: int) -> None:
        """Let the session have `total` executors in all."""
        ...

    def kill(self, executor: str) -> None:
        """Give an executor back, whatever runs there. Does not change the total: set it first."""
        ...

    def fence(self, executor: str) -> None:
        """Let an executor get no further task, for good. It stays, and nothing replaces it."""
        ...

    def word(self) -> ClusterWord:
        """What the cluster manager last said of what was requested and has not come."""
        ...

    def ending(self, executor: str) -> str:
        """Why an executor that was registered is gone; empty where that is not known."""
        ...

    def bury(self, application: str) -> None:
        """End what an earlier application has left on the cluster, whose driver was killed. Called once, may take long."""
        ...


@dataclass(frozen=True, slots=True)
class ExistingSession:
    """A session that is there already, whose master hosts are to join.

    executor_memory (mebibytes), executor_slots: what it asks of a host for each executor. secret: what its master asks for;
    None: nothing. granting: how it is granted executors; None where it cannot request any. allowed: how many it may have
    before anyone asks.
    """

    master: str
    executor_memory: int
    executor_slots: int
    secret: str | None = field(default=None, repr=False)
    granting: Granting | None = None
    allowed: int = UNLIMITED


class Cloud(ABC):
    """Where hosts come from, as users write it: `elastream.Local`, `elastream.Pool`, or a class of their own.

    Required are `types`, `max_hosts` and `open`.
    """

    __slots__ = ()

    @overridable
    def types(self) -> tuple[HostType, ...]:
        """Host types that can be leased; the first is that of a run's first hosts."""
        raise NotImplementedError

    @overridable
    def max_hosts(self) -> int:
        """The highest number of hosts at a time."""
        raise NotImplementedError

    @overridable
    def min_hosts(self) -> int:
        """The lowest number of hosts of a run."""
        return 1

    @overridable
    def stabilization_down(self) -> float:
        """Seconds for which the default policy keeps unneeded hosts, if neither rules nor the policy say otherwise.

        A cloud whose hosts take long to come again has a higher value.
        """
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
            folder: Place for its files.
            ports: Ports for what it listens at; None: free ones.
            session: The session that hosts are to join; None: one will be opened as `terms.reach` says.
            alarms: Where faults of the provider's own threads sound.

        Raises:
            ElastreamError: It cannot be opened; nothing is left running.
        """


class SupportsOpen(Protocol):
    """An object that opens a provider without being a `Cloud`."""

    @property
    def types(self) -> tuple[HostType, ...]:
        """Host types that can be leased."""
        ...

    @property
    def max_hosts(self) -> int:
        """The highest number of hosts at a time."""
        ...

    def open(
        self,
        folder: Path,
        *,
        ports: range | None = None,
        session: ExistingSession | None = None,
        alarms: Alarms | None = None,
    ) -> Provider:
        """Return the provider."""
        ...


class PlainCloud(Cloud):
    """A cloud around an object that is no `Cloud`. All but the required members have their defaults."""

    def __init__(self, own: SupportsOpen) -> None:
        self.own = own

    @property
    def types(self) -> tuple[HostType, ...]:
        """The object's host types."""
        return self.own.types

    @property
    def max_hosts(self) -> int:
        """The object's highest number of hosts."""
        return self.own.max_hosts

    def open(
        self,
        folder: Path,
        *,
        ports: range | None = None,
        session: ExistingSession | None = None,
        alarms: Alarms | None = None,
    ) -> Provider:
        """Return the object's provider."""
        return self.own.open(folder, ports=ports, session=session, alarms=alarms)


def as_cloud(given: Cloud | SupportsOpen) -> Cloud:
    """Return `given` as a cloud. Every entrance calls it once, so that all behind it may use each member.

    Raises:
        InputError: `given` has optional members of `Cloud` and is not derived from it: they would be ignored.
    """
    if isinstance(given, Cloud):
        return given
    if ignored := [name for name in ("min_hosts", "stabilization_down") if getattr_static(given, name, None) is not None]:
        kind = type(given).__name__
        raise InputError(f"{kind} has {ignored[0]!r} and is no elastream Cloud: derive the class from it", ("cloud",))
    return PlainCloud(given)


@runtime_checkable
class SessionHosts(Protocol):
    """A provider whose hosts are executors that the session itself is granted: it must know the session once that is open.

    Hosts that are leased earlier wait for it.
    """

    def bind(self, granting: Granting) -> None:
        """Lease through `granting` from now on."""
        ...


def lacks_as_provider(given: Any) -> str:
    """Return what `given` lacks to be a `Provider`, in one sentence; an empty string if it lacks nothing.

    An object of another class must have each member: only subclasses have defaults.
    """
    if isinstance(given, Provider):
        return ""
    members = [name for name in vars(Provider) if not name.startswith("_")]
    missing = [name for name in members if getattr_static(given, name, None) is None]
    return f"{type(given).__name__} is no provider of hosts: it has no {', '.join(missing)}" if missing else ""
