"""What is known of a plant's hosts: their leases, their executors, how busy they are. Reading only, from any thread.

How they come and go is `hosts.py`'s, which is the only one that changes any of it.
"""

import contextlib
import math
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from elastream.clouds.provider import HostStatus, Provider
from elastream.core.action import Action, Outcome, Status
from elastream.core.alarm import Alarms
from elastream.core.hosts import TRANSITIONS, HostState, Lease, Past, total_cost
from elastream.errors import EnvironmentProblem
from elastream.recording.lease_log import LeaseLog
from elastream.spark.jvm.executors import Executor, Location

NAN = math.nan
KEPT = 250
"""Leases that have ended, of which each is kept, at least; twice as many at most. A run of months keeps sums of more."""


@dataclass
class Known:
    """What is known of a host beside its lease. provider: whose it is."""

    provider: Provider
    status: HostStatus | None = None
    executor: Executor | None = None
    reason: str = ""
    leaving: bool = False
    warming: str | None = None
    warm: set[str] = field(default_factory=set)
    settles_after: int | None = None
    settled: bool = False
    fenced: str | None = None
    fenced_batch: int = 0
    waiting_since: float = 0.0
    busy: deque[tuple[float, float]] = field(default_factory=deque)
    milestones: dict[str, float] = field(default_factory=dict)


class HostBook:
    """All hosts so far, of those that have ended the newest; `past` is what the others came to. provider: where hosts are
    leased. clock: seconds of the run.

    log: where leases are written before their hosts are requested, and once they have ended; None: nowhere. alarms:
    raised while an end cannot be written.
    """

    def __init__(
        self,
        provider: Provider,
        clock: Callable[[], float],
        log: LeaseLog | None = None,
        alarms: Alarms | None = None,
    ) -> None:
        self.provider, self._clock = provider, clock
        self._log, self._alarms = log, alarms
        self._unwritten: list[Lease] = []
        self._lock = threading.RLock()
        self._leases: dict[str, Lease] = {}
        self._present: dict[str, None] = {}  # the active ones: a look costs what is there, not what has ever been
        self._known: dict[str, Known] = {}
        self.past = Past() if log is None else log.past
        self._numbered = 1  # names with a lower number belong to leases of before, or of now
        self._ended_cost: float | None = None  # of those that have ended and are kept; None: to be added up anew

    @property
    def leases(self) -> Mapping[str, Lease]:
        """Every lease by host name, ended ones too."""
        with self._lock:
            return dict(self._leases)

    @property
    def active(self) -> Mapping[str, Lease]:
        """The leases that have not ended, by host name."""
        with self._lock:
            return {name: self._leases[name] for name in self._present}

    @property
    def usable(self) -> tuple[str, ...]:
        """Hosts that take tasks."""
        return tuple(name for name, lease in self.active.items() if lease.state is HostState.RUNNING)

    @property
    def leased(self) -> tuple[str, ...]:
        """Active hosts that were leased here, not found in the session."""
        with self._lock:
            return tuple(filter(self._is_leased, self._present))

    @property
    def settled(self) -> bool:
        """Whether no host is on its way in or out."""
        return all(lease.state is HostState.RUNNING for lease in self.active.values())

    @property
    def next_number(self) -> int:
        """A number such that no host is called `h` and that, or more."""
        with self._lock:
            return self._numbered

    def state(self, host: str) -> HostState | None:
        """Where a host is in its life; None where there is no such host."""
        with self._lock:
            lease = self._leases.get(host)
            return None if lease is None else lease.state

    def expect(self, action: Action, host: str, *states: HostState) -> Outcome | None:
        """The refusal of `action` where `host` is in none of `states`, or is not there at all; None where it may go on."""
        state = self.state(host)
        if state is None:
            return Outcome(action, Status.REFUSED, f"there is no host {host!r}")
        return None if state in states else Outcome(action, Status.REFUSED, f"host {host!r} is {state}")

    def reason(self, host: str) -> str:
        """Why a host waits or is lost, in a sentence; empty where there is nothing to say."""
        with self._lock:
            known = self._known[host]
            return known.reason or (known.status.reason if known.status is not None else "")

    def milestones(self, host: str) -> Mapping[str, float]:
        """When (seconds of the run) it was leased, spawned, its executor registered and warm, as far as it came."""
        return dict(self._known[host].milestones)

    def cost(self, now: float) -> float:
        """Money owed by `now`: as the provider says where it does the sums, else what the leases cost."""
        owed = self.provider.owed()
        if owed is not None:
            return owed
        with self._lock:
            if self._ended_cost is None:
                self._ended_cost = total_cost((lease for lease in self._leases.values() if not lease.active), now)
            return math.fsum((self.past.cost, self._ended_cost, total_cost(self.active.values(), now)))

    def executor(self, host: str) -> Executor | None:
        """The executor of a host that is leased, where one has registered."""
        with self._lock:
            return self._known[host].executor if host in self._present else None

    def host_of(self) -> Mapping[str, str]:
        """Host by executor, of those that are there."""
        with self._lock:
            found = ((self._known[name].executor, name) for name in self._present)
            return {executor.id: name for executor, name in found if executor is not None}

    def target(self, host: str) -> Location | None:
        """The executor of a host that takes tasks; None while one that replaces another there is not warm yet."""
        executor = self.executor(host) if self.state(host) is HostState.RUNNING else None
        if executor is None or executor.id not in self._known[host].warm:
            return None
        return Location(executor.host, executor.id)

    def status(self, host: str) -> HostStatus | None:
        """What its provider said of a host last."""
        return self._known[host].status

    def describe(self, host: str) -> str:
        """A host as people know it."""
        known = self._known.get(host)
        executor = known.executor if known is not None else None
        return host if executor is None else f"executor {executor.id} ({executor.host})"

    def use(self, host: str) -> float:
        """Fraction of a host's slots that its tasks took, mean over BUSY_WINDOW; unknown until it was seen twice, and while
        it runs tasks and none has ended in that time: tasks tell when they end."""
        with self._lock:
            known, slots = self._known[host], self._leases[host].type.slots
            busy = known.busy
            if len(busy) < 2 or (known.executor is not None and known.executor.active and busy[0][1] == busy[-1][1]):
                return NAN
            (since, before), (now, after) = busy[0], busy[-1]
            return min(1.0, (after - before) / (now - since) / slots) if now > since else NAN

    def leaving(self, host: str) -> bool:
        """Whether Spark gives `host` nothing new, so that no cancelled drain brings it back."""
        return host in self._known and self._known[host].leaving

    def _is_leased(self, name: str) -> bool:
        return self._known[name].provider is self.provider and "lease" in self._known[name].milestones

    def _enter(self, leases: Mapping[str, Lease]) -> None:
        """Take leases into the ledger."""
        self._leases |= leases
        self._present |= {name: None for name, lease in leases.items() if lease.active}
        self._numbered = max(self._numbered, *(1 + _number(name) for name in leases), 1)
        if not all(lease.active for lease in leases.values()):
            self._ended_cost = None

    def _to(self, host: str, state: HostState) -> None:
        # Another thread may have sent it another way since it was seen: what is not in the table is not wanted.
        if state in TRANSITIONS[self._leases[host].state]:
            self._leases[host] = lease = self._leases[host].to(state, self._clock())
            if lease.active:
                return
            del self._present[host]
            if self._ended_cost is not None:
                self._ended_cost += lease.cost(self._clock())
            if self._log is not None and self._is_leased(host):
                self._unwritten.append(lease)
                self._write_ends()

    def _forget_ended(self) -> None:
        """Keep only sums of the leases that ended first, beyond KEPT."""
        if len(self._leases) - len(self._present) < 2 * KEPT or self._unwritten:
            return
        ended = [name for name in self._leases if name not in self._present]
        for name in sorted(ended, key=lambda name: self._leases[name].until or 0.0)[:-KEPT]:
            self.past = self.past.plus(self._leases.pop(name))
            self._ended_cost = None
            del self._known[name]
        if self._log is not None:
            kept = [replace(lease, note=self._known[name].reason) for name, lease in self._leases.items()]
            with contextlib.suppress(EnvironmentProblem):  # a full disk: the file stays as it is, and long
                self._log.forget(self.past, [lease for lease in kept if self._is_leased(lease.host) or not lease.active])

    def _write_ends(self) -> None:
        """Write the ends of leases; what cannot be written is kept for the next time, and an alarm stands meanwhile."""
        try:
            while self._log is not None and self._unwritten:
                lease = self._unwritten[0]
                self._log.ended(lease, self._known[lease.host].reason)
                self._unwritten.pop(0)
        except EnvironmentProblem as error:
            if self._alarms is not None:
                self._alarms.sound("leases", f"{error}: the end of {len(self._unwritten)} leases is not on disk", error)
        else:
            if self._alarms is not None:
                self._alarms.clear("leases")


def _number(name: str) -> int:
    """The number in a host's name of the form `h12`; 0 in others."""
    return int(name[1:]) if re.fullmatch(r"h\d+", name) else 0
