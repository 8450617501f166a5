"""What clouds whose hosts are executors have in common: the shape of an executor, where the driver is, how they are opened.

`Standalone`, `Yarn` and `Kubernetes` are values; each says what a session needs to be granted executors there. The provider
of all of them is `clouds.granted.GrantedExecutors`.
"""

import contextlib
import functools
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from elastream.clouds.granted import GrantedExecutors
from elastream.clouds.local.cluster import executor_memory
from elastream.clouds.local.local import HOST_TYPES, LEAST_HEAP
from elastream.clouds.provider import ExistingSession, Reach, Terms
from elastream.model.alarms import Alarms
from elastream.model.cloud import HostType
from elastream.model.errors import CloudError, EnvironmentProblem

__all__ = [
    "STABILIZATION_DOWN",
    "SURVIVES_LOSSES",
    "ExecutorCloud",
    "address_of",
    "heap_and_rest",
    "of_our_own",
    "refuse_silent",
]

PATIENCE = 90.0
"""Seconds to wait for a requested executor; a cold one takes about 15."""
STABILIZATION_DOWN = 300.0
"""HPA's default: on a cluster that others use, too, what was given back may be long in coming again."""
ANSWERS_WITHIN = 5.0
"""Seconds that a cluster manager has to accept a connection."""

SURVIVES_LOSSES: Mapping[str, str] = MappingProxyType({"spark.executor.maxNumFailures": "1000000"})
"""YARN and Kubernetes end a session after twice as many lost executors as it began with; a run of months loses that many to
preemption and maintenance alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorCloud:
    """What `Standalone`, `Yarn` and `Kubernetes` have in common; each says in its docstring what these mean there.

    Raises CloudError for an unknown type, and numbers of hosts that make no sense.
    """

    max_hosts: int = 6
    min_hosts: int = 1
    host_type: HostType | str | None = None
    cores: float | None = None
    memory: float | str | None = None
    price: float | None = None
    driver_address: str = ""
    shared: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.min_hosts < 1:
            raise CloudError(f"min_hosts is {self.min_hosts}: a dataflow needs at least one host")
        if self.max_hosts < self.min_hosts:
            raise CloudError(f"max_hosts is {self.max_hosts}, fewer than min_hosts, which is {self.min_hosts}")
        _ = self.types

    @property
    def types(self) -> tuple[HostType, ...]:
        """The one type that all its hosts have."""
        return (declared_type(self.host_type, self.cores, self.memory, self.price),)

    @property
    def declared(self) -> bool:
        """Whether anything was said of what an executor is."""
        return any(each is not None for each in (self.host_type, self.cores, self.memory))

    stabilization_down: ClassVar[float] = STABILIZATION_DOWN
    """Seconds for which the default policy keeps hosts that it no longer needs."""
    scheme: ClassVar[str] = ""
    """How the names of such masters begin."""

    @property
    def named(self) -> str:
        """The cloud in a sentence."""
        raise NotImplementedError

    def open(
        self,
        folder: Path,
        *,
        ports: range | None = None,
        session: ExistingSession | None = None,
        alarms: Alarms | None = None,
    ) -> GrantedExecutors:
        """The provider. ports: not needed, as nothing of it listens. alarms: not needed, as it has no thread of its own.

        Raises EnvironmentProblem where the cluster manager does not answer or is not known, CloudError where `session` is
        on another one, or has executors of another shape.
        """
        return self.begun(folder) if session is None else in_session(self, session, folder)

    def begun(self, folder: Path) -> GrantedExecutors:
        """The provider for a session that is opened for its hosts alone. Raises as `open` does."""
        raise NotImplementedError


def declared_type(
    host_type: HostType | str | None, cores: float | None, memory: float | str | None, price: float | None
) -> HostType:
    """The type of an executor: `host_type`, or `small` by default, with what else is given in place of its own.

    memory: megabytes of all of the executor. Raises CloudError for an unknown type and for one too small for an executor.
    """
    if isinstance(host_type, str) and host_type not in HOST_TYPES:
        raise CloudError(f"no host type is called {host_type!r} here; known: {', '.join(HOST_TYPES)}")
    found = HOST_TYPES[host_type] if isinstance(host_type, str) else host_type or HOST_TYPES["small"]
    if cores is not None or memory is not None or price is not None:
        name = found.name if isinstance(host_type, HostType) else "executor"
        found = replace(
            found,
            name=name,
            cores=found.cores if cores is None else cores,
            slots=found.slots if cores is None else 0,
            memory=found.memory if memory is None else memory,  # type: ignore[arg-type] # text is read by the type itself
            price=found.price if price is None else price,
        )
    if executor_memory(found) < LEAST_HEAP:
        least = LEAST_HEAP * found.memory / executor_memory(found)
        raise CloudError(f"host type {found.name!r} has {found.memory:g} MB: an executor needs {least:.0f} MB")
    return found


def heap_and_rest(kind: HostType) -> Mapping[str, str]:
    """Settings by which heap and Python workers of an executor take what `kind` has, and nothing beside it."""
    return {"spark.executor.memoryOverhead": f"{int(kind.memory * 1e6 / 2**20) - executor_memory(kind)}m"}


def of_our_own(
    cloud: ExecutorCloud, master: str, driver_address: str, settings: Mapping[str, str], folder: Path, *,
    begins_with: int, secret: str | None = None, python: str = "", packaged: bool = False,
) -> GrantedExecutors:  # fmt: skip
    """The provider for a session that is opened for its hosts alone. begins_with: executors that it asks for by itself."""
    (kind,) = cloud.types
    reach = Reach(
        master,
        driver_address,
        executor_memory(kind),
        kind.slots,
        settings=settings,
        secret=secret,
        python=python,
        packaged=packaged,
    )
    terms = Terms(
        cloud.types,
        cloud.max_hosts,
        cloud.min_hosts,
        PATIENCE,
        reach,
        f"each host is an executor of {cloud.named}: {kind.slots} tasks at a time, {kind.memory:.0f} MB",
    )
    elsewhere = (lambda address: "") if cloud.shared else functools.partial(_elsewhere, folder=folder)
    return GrantedExecutors(terms, allowed=begins_with, alone=True, ends=True, folder=folder, elsewhere=elsewhere)


def in_session(cloud: ExecutorCloud, session: ExistingSession, folder: Path) -> GrantedExecutors:
    """The provider for a session that is there, whose executors are as they are.

    Raises CloudError where the session has another kind of master, requests no executors, or has executors of another shape
    than was declared.
    """
    if not session.master.startswith(cloud.scheme):
        on = f"a session on {cloud.scheme}, and this one is on {session.master}"
        raise CloudError(f"{cloud.named} leases executors of {on}")
    if session.granting is None:
        raise CloudError(
            f"executors on {session.master} are not requested by {cloud.named}: Spark does that itself, or cannot"
        )
    (kind,) = cloud.types
    if not cloud.declared:
        slots, memory = session.executor_slots, session.executor_memory * 2**20 / 1e6
        kind = replace(kind, name="executor", cores=slots, slots=slots, memory=memory)
    elif kind.slots != session.executor_slots:
        raise CloudError(
            f"executors of this session run {session.executor_slots} tasks at a time, and host type {kind.name!r} says"
            f" {kind.slots}: spark.executor.cores and the host type must agree"
        )
    terms = Terms((kind,), cloud.max_hosts, cloud.min_hosts, PATIENCE)
    return GrantedExecutors(terms, session.granting, allowed=session.allowed, ends=True, folder=folder)


def refuse_silent(what: str, places: Sequence[tuple[str, int]]) -> str:
    """Return this machine's address as seen by the first of `places` (host, port) that takes a connection.

    Raises EnvironmentProblem, naming `what`, where none does.
    """
    why = "no address is given"
    for host, port in places:
        try:
            with socket.create_connection((host, port), timeout=ANSWERS_WITHIN) as there:
                return str(there.getsockname()[0])
        except OSError as error:
            why = f"{host}:{port}: {error.strerror or error}"
    raise EnvironmentProblem(f"{what} does not answer ({why})")


def address_of(text: str, default: int) -> tuple[str, int]:
    """Host and port of `HOST[:PORT]`; raises CloudError for a port that is none."""
    host, _, port = text.rpartition(":") if text.rpartition(":")[2].isdigit() else (text, "", "")
    if not host:
        raise CloudError(f"{text!r} is no HOST:PORT")
    return host.strip("[]"), int(port or default)


def _elsewhere(address: str, folder: Path) -> str:
    """Why a host cannot be at `address` while the run's folder is on this machine; empty where it is this machine, too."""
    return (
        ""
        if _is_here(address)
        else f"its executor is at {address}, on another machine, and the run's folder {folder.parent} on this one: name one"
        " that all of them reach (runs='hdfs://...'), or have under this path, and say shared=True"
    )


@functools.cache
def _is_here(address: str) -> bool:
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, where in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(where)
                return True
    return False
