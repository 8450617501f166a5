"""The provider whose hosts are executors that the cluster manager of a session grants it, one at a time.

Standalone, YARN and Kubernetes differ in what a request says and in what they answer; that is `clouds.standalone`, `yarn`
and `kubernetes`. How executors come and go is the same for all, through Spark's allocation client (`provider.Granting`). It
takes a number, not names: how many executors the session may have in all. The next one to register belongs to the oldest
request. The number is absolute, so that repeating it leases nothing twice:

    on the cluster                                  phase       what this provider does
    the session is not open yet                     REQUESTED   nothing; requested once it is
    asked for: queued, no quota, no room            REQUESTED   gives what the cluster says as the reason
    container or pod granted, not registered yet    STARTING    waits
    registered                                      UP          binds it to the oldest request
    never to be had: no rights, no such image       GONE        lowers the number, so that nothing comes later
    killed, preempted, evicted, its node lost       GONE        lowers the number, or Spark would replace it behind our back
    released before it registered                   forgotten   lowers the number, which withdraws the request
    released                                        ENDING      lowers the number, then gives the executor back
    nobody requested it (own sessions)              not listed  gives it back
    ... as its request was withdrawn too late       not listed  the same
    another one soon after, for no such request     not listed  fences it until one is found lost, or for HELD: the cluster
                                                                knows of a loss that Spark has not told of yet, and would
                                                                replace what is given back. It gets no task meanwhile

Which executor belongs to which name is kept in a file: who comes after, in the same application, finds its hosts there.
"""

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
from types import MappingProxyType
from typing import Any, ClassVar

from elastream.clouds.local.cluster import executor_memory
from elastream.clouds.local.local import HOST_TYPES, LEAST_HEAP
from elastream.clouds.provider import (
    UNLIMITED,
    Cloud,
    ClusterWord,
    ExistingSession,
    Granting,
    HostStatus,
    Phase,
    Provider,
    Reach,
    Terms,
)
from elastream.core.alarm import Alarms
from elastream.core.hosts import HostType
from elastream.errors import CloudError, EnvironmentProblem
from elastream.recording.lines import replace_whole

log = logging.getLogger(__name__)

KEPT = "granted.json"
"""Name of the file in the provider's folder."""
HELD = 120.0
"""Seconds within which Spark tells that an executor is lost, by then from missing heartbeats (spark.network.timeout)."""
EARLY = "the session is not open yet"
WAITS = "no executor has registered for it yet"


@dataclass(slots=True)
class _Host:
    """A host. leased: whether it was requested here, not found. executor: None while it waits. gone: why, once it is."""

    type: str
    leased: bool = True
    executor: str | None = None
    starting: bool = False
    gone: str = ""
    released: bool = False

    @property
    def waits(self) -> bool:
        return self.executor is None and not self.gone and not self.released

    @property
    def counts(self) -> bool:
        """Whether it is one of those that Spark may have."""
        return not self.gone and not self.released


class GrantedExecutors(Provider):
    """The executors of a session, as hosts.

    terms: what one of them is taken for, and how many there may be. granting: None where the session is opened later, and
    `bind` says so. allowed: how many executors Spark may have before anyone asks. alone: whether the session has no
    executor but those leased here: what comes beside them is given back. ends: whether `close` gives back what was leased
    here; otherwise it lives on with the session. folder: where it is kept which executor is which host. elsewhere: says
    for the address of an executor why a host cannot be there, empty where it can.
    """

    def __init__(
        self,
        terms: Terms,
        granting: Granting | None = None,
        *,
        allowed: int = UNLIMITED,
        alone: bool = False,
        ends: bool = False,
        folder: Path | None = None,
        elsewhere: Callable[[str], str] = lambda address: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.terms = terms
        self._clock = clock
        self._granting = granting
        self._allowed = self._total = allowed
        self._limited = allowed < UNLIMITED
        self._alone, self._ends, self._elsewhere = alone, ends, elsewhere
        self._file = None if folder is None else folder / KEPT
        self._lock = threading.RLock()
        self._hosts: dict[str, _Host] = {}
        self._surplus: set[str] = set()  # executors given back that nobody requested
        self._held: dict[str, None] = {}  # fenced ones that nobody requested, which are given back later
        self._given_back = -math.inf  # when the last of them was
        self._withdrawn = 0  # requests since, for which executors may come yet
        self._beside = 0
        self._written = ""
        if granting is not None:
            self._restore(granting)

    def bind(self, granting: Granting) -> None:
        """Lease through the session of `granting` from now on, which was opened for these hosts.

        What the session before it has left, whose driver was killed, ends now: requests that wait on the cluster, such as
        pods that are pending, would come for nobody.
        """
        earlier = str(self._read_kept().get("application") or "")
        if earlier and earlier != granting.application:
            granting.bury(earlier)
        with self._lock:
            self._granting = granting
            self._request()
            self._keep()

    def lease(self, hosts: Mapping[str, HostType]) -> None:
        """Let Spark have an executor more for each of `hosts`."""
        known = {kind.name for kind in self.terms.types}
        for name, kind in hosts.items():
            if not name:
                raise CloudError("a host needs a name")
            if known and kind.name not in known:
                raise CloudError(f"{name}: executors here are of type {', '.join(sorted(known))}, not {kind.name!r}")
        with self._lock:
            new = {name: _Host(kind.name) for name, kind in hosts.items() if name not in self._hosts}
            self._hosts |= new
            if new:
                self._keep()
                self._request()

    def adopt(self, host: str, executor: str, kind: HostType) -> None:
        """Take in an executor that was not requested here, as `host`.

        Spark puts executors where there is room: one that was requested for a host leased elsewhere may have come here, on
        a worker whose own was given back. Counted, it leaves that of the host to be launched still.
        """
        with self._lock:
            self._hosts[host] = _Host(kind.name, leased=False, executor=executor)
            if sum(each.counts for each in self._hosts.values()) + self._beside > self._total:
                self._request()

    def beside(self, others: int) -> None:
        """Note how many executors come up or run on hosts that were leased elsewhere: they count in Spark's total too."""
        with self._lock:
            changed, self._beside = others != self._beside, others
            if changed and self._total != self._allowed:
                self._request()

    def release(self, hosts: Collection[str]) -> None:
        """Withdraw requests; give executors back, whatever still runs there."""
        with self._lock:
            for name in hosts:
                host = self._hosts.get(name)
                if host is None or host.released:
                    continue
                host.released = True
                self._withdrawn += host.executor is None and not host.gone
                if host.executor is not None and not host.gone:
                    self._give_back(host.executor)
            self._forget()
            if self._total != self._allowed:
                self._request()
            self._keep()

    def hosts(self) -> Mapping[str, HostStatus]:
        """Every host, by the session's last look at its executors."""
        with self._lock:
            if self._granting is None:
                return {name: HostStatus(host.type, Phase.REQUESTED, EARLY) for name, host in self._hosts.items()}
            seen = self._granting.seen
            self._bind_fresh(self._granting, seen)
            lost = self._find_lost(self._granting, seen)
            word = self._take_in_word(self._granting)
            self._forget()
            if lost and self._total != self._allowed:
                self._request()  # or Spark would start others in their place
            self._keep()
            return {name: self._status(host, seen, word) for name, host in self._hosts.items()}

    def close(self) -> None:
        """Give back what was leased here, where that ends with this provider; what was found lives on with the session.

        Spark may then have as many executors as before, or as remain where it could have all of the cluster; none in a
        session of ours, which ends next.
        """
        with self._lock:
            if self._granting is None:
                return
            leased = [host for host in self._hosts.values() if host.leased] if self._ends else []
            for host in leased:
                host.released = True
            going = [host.executor for host in leased if host.executor is not None and not host.gone]
            stay = sum(host.counts for host in self._hosts.values())
            total = 0 if self._alone else stay if leased and self._allowed >= UNLIMITED else self._allowed
            self._allowed = total
            if self._total != total:
                self._set_total(total)
            for executor in going:
                self._granting.kill(executor)
            self._hosts = {name: host for name, host in self._hosts.items() if not host.released}
            self._keep()

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _bind_fresh(self, granting: Granting, seen: Collection[str]) -> None:
        """Bind executors that nobody has to the oldest requests; give back those that nobody wants."""
        bound = {host.executor for host in self._hosts.values()} | self._surplus | self._held.keys()
        fresh = [executor for executor in seen if executor not in bound]
        waiting = [host for host in self._hosts.values() if host.waits]
        for executor, host in zip(fresh, waiting, strict=False):
            host.executor = executor
            if refused := self._elsewhere(granting.seen[executor].host):
                host.gone = refused
                self._give_back(executor)
        self._surplus &= set(seen)
        beyond, now = fresh[len(waiting) :] if self._alone else [], self._clock()
        self._held = {executor: None for executor in self._held if executor in seen}
        if now < self._given_back + HELD:
            for executor in beyond[self._withdrawn :]:
                log.warning("executor %s came without a request: it gets no task, and goes once Spark tells of a loss, or"
                            " in %.0f s", executor, HELD)  # fmt: skip
                granting.fence(executor)
                self._held[executor] = None
            beyond = beyond[: self._withdrawn]
        else:
            beyond, self._held = [*self._held, *beyond], {}
        for executor in beyond:
            log.warning(
                "executor %s came without a request, in place of one that was lost or withdrawn: given back", executor
            )
            self._surplus.add(executor)
            if self._withdrawn:
                self._withdrawn -= 1
            else:
                self._given_back = now
            self._give_back(executor)

    def _find_lost(self, granting: Granting, seen: Collection[str]) -> bool:
        """Note which executors are gone unasked; returns whether there are new ones."""
        found = False
        for host in self._hosts.values():
            if host.executor is not None and host.executor not in seen and not host.gone:
                why = granting.ending(host.executor) if not host.released else ""
                host.gone = f"executor {host.executor} is gone" + (f": {why}" if why else "")
                found = True
        if found:
            self._given_back = -math.inf  # what came in the place of one goes with the next look
        return found

    def _take_in_word(self, granting: Granting) -> ClusterWord:
        """What the cluster says while hosts wait."""
        waiting = [host for host in self._hosts.values() if host.waits]
        word = granting.word() if waiting else ClusterWord()
        for host in waiting[: word.starting]:
            host.starting = True
        never = [host for host in waiting if word.never and not host.starting]
        for host in never:
            host.gone = word.reason
        if never:
            self._request()
        return word

    def _status(self, host: _Host, seen: Mapping[str, object], word: ClusterWord) -> HostStatus:
        if host.gone:
            return HostStatus(host.type, Phase.GONE, host.gone, executor=host.executor or "")
        if host.executor is None:
            if host.starting:
                return HostStatus(host.type, Phase.STARTING, "granted; its executor has not registered yet")
            reason = f"{WAITS}: {word.reason}" if word.reason else WAITS
            return HostStatus(host.type, Phase.REQUESTED, reason, refused=word.refused)
        assert self._granting is not None
        phase = Phase.ENDING if host.released else Phase.UP
        return HostStatus(host.type, phase, address=self._granting.seen[host.executor].host, executor=host.executor)

    def _forget(self) -> None:
        """Drop hosts that were released and are gone, or never had an executor."""
        for name in [name for name, host in self._hosts.items() if host.released and (host.gone or host.executor is None)]:
            del self._hosts[name]

    def _give_back(self, executor: str) -> None:
        """End an executor, and let Spark have no other in its place."""
        self._limited = True
        self._request()
        if self._granting is not None:
            self._granting.kill(executor)

    def _request(self) -> None:
        """Let Spark have as many executors as there are and are requested, less those that go.

        Where it may have all that the cluster has room for, and none was given back, asking for more changes nothing.
        """
        if self._limited and self._granting is not None:
            self._set_total(sum(host.counts for host in self._hosts.values()) + self._beside)

    def _set_total(self, total: int) -> None:
        if total != self._total and self._granting is not None:
            self._granting.request(total)
            self._total = total

    # -- what outlives this provider -----------------------------------------------------------------------------------

    def _restore(self, granting: Granting) -> None:
        """Take over the hosts that an earlier provider leased in the same application."""
        kept = self._read_kept()
        if kept and kept.get("application") == granting.application:
            self._hosts = {each["host"]: _Host(each["type"], executor=each["executor"]) for each in kept["hosts"]}
            self._request()

    def _read_kept(self) -> Mapping[str, Any]:
        """What was written last; nothing where that was nothing, or is damaged."""
        if self._file is None or not self._file.exists():
            return {}
        try:
            kept = json.loads(self._file.read_text())
            _ = kept["application"], [(each["host"], each["type"], each["executor"]) for each in kept["hosts"]]
            return dict(kept)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s cannot be read (%s): executors leased earlier are found under new names", self._file, error)
            return {}

    def _keep(self) -> None:
        """Write which executor is which host, where that changed."""
        if self._file is None or self._granting is None:
            return
        hosts = [
            {"host": name, "type": host.type, "executor": host.executor}
            for name, host in self._hosts.items()
            if host.leased and not host.released
        ]
        text = json.dumps({"application": self._granting.application, "hosts": hosts})
        if text != self._written:
            try:
                replace_whole(self._file, text.encode())
                self._written = text
            except OSError as error:
                log.warning("%s cannot be written (%s): after a restart these hosts have new names", self._file, error)


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
class ExecutorCloud(Cloud):
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
