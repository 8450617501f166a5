"""Provider whose hosts are the executors of one Spark session.

Spark's allocation client (`provider.ExecutorAllocator`) takes a total number of executors, not names. The next executor
to register belongs to the oldest request. A file records which executor is which host.
"""

# on the cluster                                  phase       action of this provider
# the session is not open yet                     REQUESTED   none; requests it later
# requested: queued, no quota, no room            REQUESTED   shows the cluster manager's reason
# container or pod granted, not registered yet    STARTING    waits
# registered                                      UP          binds it to the oldest request
# never granted: no rights, no such image         GONE        lowers the total
# killed, preempted, evicted, its node lost       GONE        lowers the total, or Spark would replace it
# released before it registered                   forgotten   lowers the total
# released                                        ENDING      lowers the total, then kills the executor
# nobody requested it (own sessions)              not listed  kills it
# another unrequested one soon after              not listed  fences it, kills it later

import contextlib
import functools
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from elastream.clouds.notices import Notice, check_notices, noticed
from elastream.clouds.provider import (
    HOST_TYPES,
    MIN_HEAP_MIB,
    UNLIMITED,
    Cloud,
    ClusterEndpoint,
    ExecutorAllocator,
    ExistingSession,
    HostStatus,
    PendingReason,
    Phase,
    Provider,
    ProviderOffer,
    RunState,
    executor_memory,
)
from elastream.core.alarm import Alarms
from elastream.core.hosts import HostType
from elastream.errors import CloudError, EnvironmentProblem
from elastream.recording.lines import replace_whole

log = logging.getLogger(__name__)

RECORD_FILE = "granted.json"
# Spark reports a lost executor by then, at the latest from missing heartbeats (spark.network.timeout). The cluster may
# know of the loss earlier, and would replace an unrequested executor that is killed.
LOSS_REPORT_TIMEOUT_S = 120.0
NO_SESSION = "the session is not open yet"
NOT_REGISTERED = "no executor has registered for it yet"


@dataclass(slots=True)
class _Host:
    type: str
    leased: bool = True  # False for one that was adopted
    executor: str | None = None  # None while it waits
    starting: bool = False
    end_reason: str = ""  # reason of its end
    released: bool = False

    @property
    def waits(self) -> bool:
        return self.executor is None and not self.end_reason and not self.released

    @property
    def counts(self) -> bool:
        return not self.end_reason and not self.released


class ExecutorProvider(Provider):
    """Executors of a session, as hosts.

    Args:
        allocator: None if the session opens later and calls `bind`.
        allowed: Executors that Spark may have before any request.
        alone: Release executors that were not leased here.
        folder: Folder of the record; None for no record.
        unusable_reason: Returns why no host can be at an address, or an empty string.
    """

    def __init__(
        self,
        terms: ProviderOffer,
        allocator: ExecutorAllocator | None = None,
        *,
        allowed: int = UNLIMITED,
        alone: bool = False,
        ends_with_provider: bool = False,
        folder: Path | None = None,
        unusable_reason: Callable[[str], str] = lambda address: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.terms = terms
        self._clock = clock
        self._allocator = allocator
        self._allowed = self._total = allowed
        self._limited = allowed < UNLIMITED
        self._alone, self._ends, self._unusable_reason = alone, ends_with_provider, unusable_reason
        self._file = None if folder is None else folder / RECORD_FILE
        self._lock = threading.RLock()
        self._hosts: dict[str, _Host] = {}
        self._surplus: set[str] = set()  # released executors that nobody requested
        self._fenced: dict[str, None] = {}  # fenced executors that nobody requested, which are released later
        self._given_back = -math.inf  # when the last of them was released
        self._withdrawn = 0  # requests withdrawn since then, for which executors may still come
        self._others = 0
        self._written = ""
        if allocator is not None:
            self._restore(allocator)

    def bind(self, allocator: ExecutorAllocator) -> None:
        """Lease through `allocator` from now on, and release what an earlier application left."""
        earlier = str(self._read_record().get("application") or "")
        if earlier and earlier != allocator.application:
            allocator.release_leftovers(earlier)
        with self._lock:
            self._allocator = allocator
            self._request()
            self._save()

    def lease(self, hosts: Mapping[str, HostType]) -> None:
        types = {kind.name for kind in self.terms.types}
        for name, kind in hosts.items():
            if not name:
                raise CloudError("a host needs a name")
            if types and kind.name not in types:
                raise CloudError(f"{name}: executors here are of type {', '.join(sorted(types))}, not {kind.name!r}")
        with self._lock:
            new = {name: _Host(kind.name) for name, kind in hosts.items() if name not in self._hosts}
            self._hosts |= new
            if new:
                self._save()
                self._limited = True  # another program may have lowered the unlimited total
                self._request()

    def adopt(self, host: str, executor: str, kind: HostType) -> None:
        """Take an executor that was not requested here as `host`.

        Spark may place an executor of another host's request here; counting it keeps that request open.
        """
        with self._lock:
            self._hosts[host] = _Host(kind.name, leased=False, executor=executor)
            if sum(each.counts for each in self._hosts.values()) + self._others > self._total:
                self._request()

    def count_others(self, others: int) -> None:
        with self._lock:
            changed, self._others = others != self._others, others
            if changed and self._total != self._allowed:
                self._request()

    def release(self, hosts: Collection[str]) -> None:
        with self._lock:
            for name in hosts:
                host = self._hosts.get(name)
                if host is None or host.released:
                    continue
                host.released = True
                self._withdrawn += host.executor is None and not host.end_reason
                if host.executor is not None and not host.end_reason:
                    self._give_back(host.executor)
            self._forget()
            if self._total != self._allowed:
                self._request()
            self._save()

    def hosts(self) -> Mapping[str, HostStatus]:
        with self._lock:
            if self._allocator is None:
                return {name: HostStatus(host.type, Phase.REQUESTED, NO_SESSION) for name, host in self._hosts.items()}
            registered = self._allocator.registered
            self._bind_fresh(self._allocator, registered)
            lost = self._mark_lost(self._allocator, registered)
            pending = self._apply_pending_reason(self._allocator)
            self._forget()
            if lost and self._total != self._allowed:
                self._request()  # otherwise Spark would start replacements
            self._save()
            notices = self._allocator.notices()
            statuses = {name: self._status(host, pending) for name, host in self._hosts.items()}
            return {
                name: noticed(each, Notice(*notices[each.executor])) if each.executor in notices else each
                for name, each in statuses.items()
            }

    def report(self, state: RunState) -> None:
        with self._lock:
            if self._allocator is not None:
                holding = (self._hosts[name] for name in state.holding if name in self._hosts)
                self._allocator.protect([each.executor for each in holding if each.executor is not None])

    def close(self) -> None:
        with self._lock:
            if self._allocator is None:
                return
            self._allocator.unprotect()
            leased = [host for host in self._hosts.values() if host.leased] if self._ends else []
            for host in leased:
                host.released = True
            leaving = [host.executor for host in leased if host.executor is not None and not host.end_reason]
            stay = sum(host.counts for host in self._hosts.values())
            total = 0 if self._alone else stay if leased and self._allowed >= UNLIMITED else self._allowed
            self._allowed = total
            if self._total != total:
                self._set_total(total)
            for executor in leaving:
                self._allocator.kill(executor)
            self._hosts = {name: host for name, host in self._hosts.items() if not host.released}
            self._save()

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _bind_fresh(self, allocator: ExecutorAllocator, registered: Collection[str]) -> None:
        bound = {host.executor for host in self._hosts.values()} | self._surplus | self._fenced.keys()
        fresh = [executor for executor in registered if executor not in bound]
        waiting = [host for host in self._hosts.values() if host.waits]
        for executor, host in zip(fresh, waiting, strict=False):
            host.executor = executor
            if refused := self._unusable_reason(allocator.registered[executor].host):
                host.end_reason = refused
                self._give_back(executor)
        self._surplus &= set(registered)
        beyond, now = fresh[len(waiting) :] if self._alone else [], self._clock()
        self._fenced = {executor: None for executor in self._fenced if executor in registered}
        if now < self._given_back + LOSS_REPORT_TIMEOUT_S:
            for executor in beyond[self._withdrawn :]:
                log.warning("executor %s came without a request: it gets no task, and goes once Spark tells of a loss, or"
                            " in %.0f s", executor, LOSS_REPORT_TIMEOUT_S)  # fmt: skip
                allocator.fence(executor)
                self._fenced[executor] = None
            beyond = beyond[: self._withdrawn]
        else:
            beyond, self._fenced = [*self._fenced, *beyond], {}
        for executor in beyond:
            log.warning(
                "executor %s came without a request, in place of one that was lost or withdrawn: released", executor
            )
            self._surplus.add(executor)
            if self._withdrawn:
                self._withdrawn -= 1
            else:
                self._given_back = now
            self._give_back(executor)

    def _mark_lost(self, allocator: ExecutorAllocator, registered: Collection[str]) -> bool:
        lost = False
        for host in self._hosts.values():
            if host.executor is not None and host.executor not in registered and not host.end_reason:
                why = allocator.ending(host.executor) if not host.released else ""
                host.end_reason = f"executor {host.executor} is gone" + (f": {why}" if why else "")
                lost = True
        if lost:
            self._given_back = -math.inf  # the next look releases executors that replaced lost ones
        return lost

    def _apply_pending_reason(self, allocator: ExecutorAllocator) -> PendingReason:
        waiting = [host for host in self._hosts.values() if host.waits]
        pending = allocator.pending_reason() if waiting else PendingReason()
        for host in waiting[: pending.starting]:
            host.starting = True
        never = [host for host in waiting if pending.never and not host.starting]
        for host in never:
            host.end_reason = pending.reason
        if never:
            self._request()
        return pending

    def _status(self, host: _Host, pending: PendingReason) -> HostStatus:
        if host.end_reason:
            return HostStatus(host.type, Phase.GONE, host.end_reason, executor=host.executor or "")
        if host.executor is None:
            if host.starting:
                return HostStatus(host.type, Phase.STARTING, "granted; its executor has not registered yet")
            reason = f"{NOT_REGISTERED}: {pending.reason}" if pending.reason else NOT_REGISTERED
            return HostStatus(host.type, Phase.REQUESTED, reason, refused=pending.refused)
        assert self._allocator is not None
        phase = Phase.ENDING if host.released else Phase.UP
        return HostStatus(host.type, phase, address=self._allocator.registered[host.executor].host, executor=host.executor)

    def _forget(self) -> None:
        for name in [
            name for name, host in self._hosts.items() if host.released and (host.end_reason or host.executor is None)
        ]:
            del self._hosts[name]

    def _give_back(self, executor: str) -> None:
        self._limited = True
        self._request()
        if self._allocator is not None:
            self._allocator.kill(executor)

    def _request(self) -> None:
        # While the total is unlimited and nothing was leased or given back, there is nothing to request.
        if self._limited and self._allocator is not None:
            self._set_total(sum(host.counts for host in self._hosts.values()) + self._others)

    def _set_total(self, total: int) -> None:
        if total != self._total and self._allocator is not None:
            self._allocator.request(total)
            self._total = total

    # -- what outlives this provider -----------------------------------------------------------------------------------

    def _restore(self, allocator: ExecutorAllocator) -> None:
        record = self._read_record()
        if record and record.get("application") == allocator.application:
            self._hosts = {each["host"]: _Host(each["type"], executor=each["executor"]) for each in record["hosts"]}
            self._request()

    def _read_record(self) -> Mapping[str, Any]:
        if self._file is None or not self._file.exists():
            return {}
        try:
            record = json.loads(self._file.read_text())
            _ = record["application"], [(each["host"], each["type"], each["executor"]) for each in record["hosts"]]
            return dict(record)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s cannot be read (%s): executors leased earlier are found under new names", self._file, error)
            return {}

    def _save(self) -> None:
        if self._file is None or self._allocator is None:
            return
        hosts = [
            {"host": name, "type": host.type, "executor": host.executor}
            for name, host in self._hosts.items()
            if host.leased and not host.released
        ]
        text = json.dumps({"application": self._allocator.application, "hosts": hosts})
        if text != self._written:
            try:
                replace_whole(self._file, text.encode())
                self._written = text
            except OSError as error:
                log.warning("%s cannot be written (%s): after a restart these hosts have new names", self._file, error)


EXECUTOR_START_TIMEOUT_S = 90.0  # a cold executor takes about 15 s
STABILIZATION_DOWN = 300.0  # HPA's default (seconds): on a shared cluster, released executors may be slow to come back.
CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorCloud(Cloud):
    """Settings that `Standalone`, `Yarn` and `Kubernetes` share.

    Args:
        max_hosts: Highest number of leased hosts.
        min_hosts: Lowest number of leased hosts.
        host_type: Type of an executor, in place of `cores`, `memory` and `price`.
        cores: Cores of an executor, one task each.
        memory: Memory of an executor: megabytes, or text such as `"4 GB"`. The heap takes 70 %.
        price: Price of an executor.
        driver_address: Address of the driver as executors see it; default: this machine's towards the cluster manager.
        shared: Executors see the run's folder and the program's modules under the same path. Otherwise those on other
            machines are refused.
        notices: Path or URL that says when a host is taken away, with `{address}`.

    Raises:
        CloudError: An unknown type, or impossible numbers of hosts.
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
    notices: str = ""

    def __post_init__(self) -> None:
        check_notices(self.notices)
        if self.min_hosts < 1:
            raise CloudError(f"min_hosts is {self.min_hosts}: a dataflow needs at least one host")
        if self.max_hosts < self.min_hosts:
            raise CloudError(f"max_hosts is {self.max_hosts}, fewer than min_hosts, which is {self.min_hosts}")
        _ = self.types

    @property
    def types(self) -> tuple[HostType, ...]:
        return (declared_type(self.host_type, self.cores, self.memory, self.price),)

    @property
    def declared(self) -> bool:
        return any(each is not None for each in (self.host_type, self.cores, self.memory))

    stabilization_down: ClassVar[float] = STABILIZATION_DOWN
    scheme: ClassVar[str] = ""  # prefix of such masters' URLs

    @property
    def title(self) -> str:
        raise NotImplementedError

    def open(
        self,
        folder: Path,
        *,
        ports: range | None = None,
        session: ExistingSession | None = None,
        alarms: Alarms | None = None,
    ) -> ExecutorProvider:
        """Return the provider; `ports` and `alarms` are ignored.

        Raises:
            EnvironmentProblem: The cluster manager does not answer or is unknown.
            CloudError: `session` is on another cluster or has executors of another shape.
        """
        return self.open_own_session(folder) if session is None else for_existing_session(self, session, folder)

    def endpoint(self, master: str, driver_address: str, settings: Mapping[str, str]) -> ClusterEndpoint:
        """Return how a session that is opened only for these hosts reaches them."""
        (kind,) = self.types
        return ClusterEndpoint(master, driver_address, executor_memory(kind), kind.slots, settings)

    def open_own_session(self, folder: Path) -> ExecutorProvider:
        raise NotImplementedError


def declared_type(
    host_type: HostType | str | None, cores: float | None, memory: float | str | None, price: float | None
) -> HostType:
    """Return `host_type` (default `small`) with the given values in place of its own.

    Raises:
        CloudError: The type is unknown or too small for an executor.
    """
    if isinstance(host_type, str) and host_type not in HOST_TYPES:
        raise CloudError(f"no host type is called {host_type!r} here; known: {', '.join(HOST_TYPES)}")
    kind = HOST_TYPES[host_type] if isinstance(host_type, str) else host_type or HOST_TYPES["small"]
    if cores is not None or memory is not None or price is not None:
        name = kind.name if isinstance(host_type, HostType) else "executor"
        kind = replace(
            kind,
            name=name,
            cores=kind.cores if cores is None else cores,
            slots=kind.slots if cores is None else 0,
            memory=kind.memory if memory is None else memory,  # type: ignore[arg-type] # text is read by the type itself
            price=kind.price if price is None else price,
        )
    if executor_memory(kind) < MIN_HEAP_MIB:
        least = MIN_HEAP_MIB * kind.memory / executor_memory(kind)
        raise CloudError(f"host type {kind.name!r} has {kind.memory:g} MB: an executor needs {least:.0f} MB")
    return kind


def requested_by_spark(cloud: ExecutorCloud) -> Mapping[str, str]:
    """Return the settings of a session whose first executors Spark requests from YARN or Kubernetes."""
    (kind,) = cloud.types
    return {
        "spark.executor.instances": str(cloud.min_hosts),
        # Executors come one by one: a session that waited for the first ones would hide why they do not come.
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        # They end a session after twice as many lost executors as it began with. A run of months loses that many to
        # preemption and maintenance alone.
        "spark.executor.maxNumFailures": "1000000",
        **memory_settings(kind),
    }


def memory_settings(kind: HostType) -> Mapping[str, str]:
    return {"spark.executor.memoryOverhead": f"{int(kind.memory * 1e6 / 2**20) - executor_memory(kind)}m"}


def for_own_session(
    cloud: ExecutorCloud, endpoint: ClusterEndpoint, folder: Path, *, initial_executors: int
) -> ExecutorProvider:
    """Return the provider for a session opened at `endpoint`, which requests `initial_executors` by itself."""
    (kind,) = cloud.types
    terms = ProviderOffer(
        cloud.types,
        cloud.max_hosts,
        cloud.min_hosts,
        EXECUTOR_START_TIMEOUT_S,
        endpoint,
        f"each host is an executor of {cloud.title}: {kind.slots} tasks at a time, {kind.memory:.0f} MB",
        notices=cloud.notices,
    )
    unusable_reason = (lambda address: "") if cloud.shared else functools.partial(_unreachable_reason, folder=folder)
    return ExecutorProvider(
        terms,
        allowed=initial_executors,
        alone=True,
        ends_with_provider=True,
        folder=folder,
        unusable_reason=unusable_reason,
    )


def for_existing_session(cloud: ExecutorCloud, session: ExistingSession, folder: Path) -> ExecutorProvider:
    if not session.master.startswith(cloud.scheme):
        on = f"a session on {cloud.scheme}, and this one is on {session.master}"
        raise CloudError(f"{cloud.title} leases executors of {on}")
    if session.allocator is None:
        raise CloudError(
            f"executors on {session.master} are not requested by {cloud.title}: Spark does that itself, or cannot"
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
    terms = ProviderOffer((kind,), cloud.max_hosts, cloud.min_hosts, EXECUTOR_START_TIMEOUT_S, notices=cloud.notices)
    return ExecutorProvider(terms, session.allocator, allowed=session.allowed, ends_with_provider=True, folder=folder)


def address_towards(what: str, endpoints: Sequence[tuple[str, int]]) -> str:
    """Return this machine's address as seen by the first (host, port) that accepts a connection.

    Raises:
        EnvironmentProblem: None accepts one.
    """
    why = "no address is given"
    for host, port in endpoints:
        try:
            with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            why = f"{host}:{port}: {error.strerror or error}"
    raise EnvironmentProblem(f"{what} does not answer ({why})")


def address_of(text: str, default: int) -> tuple[str, int]:
    """Return host and port of `HOST[:PORT]`. Raises CloudError if the text names no host."""
    host, _, port = text.rpartition(":") if text.rpartition(":")[2].isdigit() else (text, "", "")
    if not host:
        raise CloudError(f"{text!r} is no HOST:PORT")
    return host.strip("[]"), int(port or default)


def _unreachable_reason(address: str, folder: Path) -> str:
    return (
        ""
        if is_this_machine(address)
        else f"its executor is at {address}, on another machine, and the run's folder {folder.parent} on this one: name one"
        " that all of them reach (runs='hdfs://...'), or have under this path, and say shared=True"
    )


@functools.cache
def is_this_machine(address: str) -> bool:
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, where in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(where)
                return True
    return False
