"""The hosts of a plant on Spark, leased or found in the session, and their lifecycle.

A releasing host is fenced (gets no task) once it holds none but strays, or after a timeout; GRACE_BATCHES later, when
nothing that it wrote is needed, its provider ends it. One thread calls `look` and `step`; other methods are cheap and
thread-safe.
"""

import contextlib
import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from elastream.clouds.executors import ExecutorProvider
from elastream.clouds.notices import NoticePoller
from elastream.clouds.provider import HostStatus, Phase, Provider, RunState
from elastream.core.action import Action, Outcome, Status
from elastream.core.alarm import Alarms
from elastream.core.hosts import TRANSITIONS, Billing, EndedLeases, HostState, HostType, Lease, total_cost
from elastream.errors import EnvironmentProblem, in_one_line
from elastream.recording.lease_log import LeaseLog
from elastream.spark.hosts.first_hosts import EarlierLeases, FirstHosts
from elastream.spark.jvm.executors import Executor, Executors, Location, newest_by_address

log = logging.getLogger(__name__)

# States and edges are `elastream.core.hosts.TRANSITIONS`:
#
#   REQUESTED -> STARTING   its provider has begun to start it
#   REQUESTED -> RELEASED   released; or nothing started within the provider's patience, while other hosts worked
#   STARTING  -> RUNNING    its executor has registered and is warm; one found in the session is both
#   STARTING  -> LOST       no executor registered, or an idle one was not warm, within START_TIMEOUT_S
#   RUNNING   -> DRAINING   a drain, or Spark decommissions or excludes its executor
#   DRAINING  -> RUNNING    the drain was cancelled, or Spark uses its executor again
#   STARTING, RUNNING, DRAINING -> RELEASING   a release
#   RELEASING -> RELEASED   its provider no longer lists it
#   any       -> LOST       its provider reports it gone or refused

NAN = math.nan
ENDED_LEASES = 250


@dataclass
class HostRecord:
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
    others_until: float = -math.inf  # when tasks of others last ran or ended there
    others_busy: float = 0.0
    milestones: dict[str, float] = field(default_factory=dict)

    @property
    def excluded(self) -> bool:
        """Return True if Spark gives its executor no more tasks."""
        return self.leaving or (self.executor is not None and self.fenced == self.executor.id)


class HostLedger:
    """All hosts: leases, executors, utilisation. `past` sums up the oldest ended leases."""

    def __init__(
        self, provider: Provider, clock: Callable[[], float], log: LeaseLog | None = None, alarms: Alarms | None = None
    ) -> None:
        """Create an empty ledger. `log` receives each lease before its host is requested, and its end."""
        self.provider, self._clock = provider, clock
        self._log, self._alarms = log, alarms or Alarms(clock)
        self._unwritten: list[Lease] = []
        self._lock = threading.RLock()
        self._leases: dict[str, Lease] = {}
        self._active: dict[str, None] = {}  # names only: a look must not cost more with each ended lease
        self._records: dict[str, HostRecord] = {}
        self.past = EndedLeases() if log is None else log.past
        self._next_number = 1  # lower numbers are taken
        self._ended_cost: float | None = None  # of ended leases above; None: to compute

    @property
    def leases(self) -> Mapping[str, Lease]:
        with self._lock:
            return dict(self._leases)

    @property
    def active(self) -> Mapping[str, Lease]:
        with self._lock:
            return {name: self._leases[name] for name in self._active}

    @property
    def usable(self) -> tuple[str, ...]:
        return tuple(name for name, lease in self.active.items() if lease.state is HostState.RUNNING)

    @property
    def leased(self) -> tuple[str, ...]:
        """Return the active hosts that were leased here, not found in the session."""
        with self._lock:
            return tuple(filter(self._is_leased, self._active))

    @property
    def settled(self) -> bool:
        """Return True if no host is starting or leaving."""
        return all(lease.state is HostState.RUNNING for lease in self.active.values())

    @property
    def next_number(self) -> int:
        with self._lock:
            return self._next_number

    def state(self, host: str) -> HostState | None:
        """Return the lifecycle state of a host; None if there is no such host."""
        with self._lock:
            return lease.state if (lease := self._leases.get(host)) is not None else None

    def expect(self, action: Action, host: str, *states: HostState) -> Outcome | None:
        state = self.state(host)
        if state is None:
            return Outcome(action, Status.REFUSED, f"there is no host {host!r}")
        return None if state in states else Outcome(action, Status.REFUSED, f"host {host!r} is {state}")

    def reason(self, host: str) -> str:
        """Return why a host waits or is lost."""
        with self._lock:
            record = self._records[host]
            return record.reason or (record.status.reason if record.status is not None else "")

    def milestones(self, host: str) -> Mapping[str, float]:
        """Return when a host was leased, spawned, registered and warm (seconds of the run)."""
        return dict(self._records[host].milestones)

    def cost(self, now: float) -> float:
        if (owed := self.provider.owed()) is not None:
            return owed
        with self._lock:
            if self._ended_cost is None:
                self._ended_cost = total_cost((lease for lease in self._leases.values() if not lease.active), now)
            return math.fsum((self.past.cost, self._ended_cost, total_cost(self.active.values(), now)))

    def executor(self, host: str) -> Executor | None:
        with self._lock:
            return self._records[host].executor if host in self._active else None

    def host_of(self) -> Mapping[str, str]:
        with self._lock:
            pairs = ((self._records[name].executor, name) for name in self._active)
            return {executor.id: name for executor, name in pairs if executor is not None}

    def target(self, host: str) -> Location | None:
        """Return the executor of a host that takes tasks, once warm."""
        executor = self.executor(host) if self.state(host) is HostState.RUNNING else None
        if executor is None or executor.id not in self._records[host].warm:
            return None
        return Location(executor.host, executor.id)

    def takes(self, host: str) -> Location | None:
        """Return `target`; None if others hold all of its slots."""
        return self.target(host) if self.foreign_share(host) < 1 else None

    def status(self, host: str) -> HostStatus | None:
        return self._records[host].status

    def describe(self, host: str) -> str:
        record = self._records.get(host)
        executor = record.executor if record is not None else None
        return host if executor is None else f"executor {executor.id} ({executor.host})"

    def use(self, host: str) -> float:
        """Return the busy fraction of a host's slots over BUSY_WINDOW_S; NaN while unknown."""
        with self._lock:
            record, slots = self._records[host], self._leases[host].type.slots
            busy = record.busy
            if len(busy) < 2 or (record.executor is not None and record.executor.active and busy[0][1] == busy[-1][1]):
                return NAN
            (since, before), (now, after) = busy[0], busy[-1]
            return min(1.0, (after - before) / (now - since) / slots) if now > since else NAN

    def others(self, host: str) -> str:
        """Return what others run or keep on a host, as far as known."""
        executor = self.executor(host)
        return "" if executor is None else executor.others

    def endless(self, host: str) -> str:
        """Return why work without a known end keeps a host, or ""."""
        executor = self.executor(host)
        return "" if executor is None else executor.endless

    def foreign_share(self, host: str) -> float:
        """Return the part of a host's slots that long tasks of others hold."""
        executor = self.executor(host)
        return 0.0 if executor is None else min(1.0, executor.held_slots / executor.slots)

    def shared(self, host: str) -> bool:
        """Return True if tasks of others ran on a host within BUSY_WINDOW_S, so that its CPU time is not the load's."""
        with self._lock:
            return self._clock() - self._records[host].others_until <= BUSY_WINDOW_S

    def leaving(self, host: str) -> bool:
        """Return True if Spark gives `host` no new tasks; no cancelled drain brings it back."""
        return host in self._records and self._records[host].excluded

    def _is_leased(self, name: str) -> bool:
        return self._records[name].provider is self.provider and "lease" in self._records[name].milestones

    def _enter(self, leases: Mapping[str, Lease]) -> None:
        self._leases |= leases
        self._active |= {name: None for name, lease in leases.items() if lease.active}
        numbers = (1 + int(name[1:]) for name in leases if re.fullmatch(r"h\d+", name))
        self._next_number = max(self._next_number, *numbers, 1)
        if not all(lease.active for lease in leases.values()):
            self._ended_cost = None

    def _to(self, host: str, state: HostState) -> None:
        # Another thread may have changed the state meanwhile: ignore transitions that are not in the table.
        if state in TRANSITIONS[self._leases[host].state]:
            self._leases[host] = lease = self._leases[host].to(state, self._clock())
            if lease.active:
                return
            del self._active[host]
            if self._ended_cost is not None:
                self._ended_cost += lease.cost(self._clock())
            if self._log is not None and self._is_leased(host):
                self._unwritten.append(lease)
                self._write_ends()

    def _forget_ended(self) -> None:
        if len(self._leases) - len(self._active) < 2 * ENDED_LEASES or self._unwritten:
            return
        ended = [name for name in self._leases if name not in self._active]
        for name in sorted(ended, key=lambda name: self._leases[name].until or 0.0)[:-ENDED_LEASES]:
            self.past = self.past.plus(self._leases.pop(name))
            self._ended_cost = None
            del self._records[name]
        if self._log is not None:
            retained = [replace(lease, note=self._records[name].reason) for name, lease in self._leases.items()]
            leased = [lease for lease in retained if self._is_leased(lease.host) or not lease.active]
            with contextlib.suppress(EnvironmentProblem):  # on a full disk the file stays as it is
                self._log.forget(self.past, leased)

    def _write_ends(self) -> None:
        try:
            while self._log is not None and self._unwritten:
                lease = self._unwritten[0]
                self._log.ended(lease, self._records[lease.host].reason)
                self._unwritten.pop(0)
            self._alarms.clear("leases")
        except EnvironmentProblem as error:
            self._alarms.sound("leases", f"{error}: the end of {len(self._unwritten)} leases is not on disk", error)


# Three times the type's start time, if that is longer; a cold laptop needs about 15 s.
START_TIMEOUT_S = 90.0
# In its first batches a host still compiles the code that it runs.
SETTLING_BATCHES = 3
# The batch under way, and one that surely began after the host's last task.
GRACE_BATCHES = 2
# A batch may be far longer than usual, or its query be at fault.
GRACE_TIMEOUT_S = 20.0
# Time before the deadline of a notice at which no batch begins on the host any more.
DEADLINE_MARGIN_S = 5.0
# The same timeout while no batch is under way.
IDLE_TIMEOUT_S = 3.0
# Tasks count when they end.
BUSY_WINDOW_S = 15.0


def unpriced(slots: int) -> HostType:
    """Return a host type without price for an executor of `slots` slots, one core each."""
    return HostType("executor", cores=slots, slots=slots, price=0.0, billing=Billing(1.0))


class Hosts(HostLedger):
    def __init__(  # noqa: PLR0913
        self,
        executors: Executors,
        provider: Provider,
        clock: Callable[[], float],
        *,
        fence: Callable[[str], None],
        warm: Callable[[Executor], None] | None = None,
        session: ExecutorProvider | None = None,
        existing: Callable[[int], HostType] = unpriced,
        log: LeaseLog | None = None,
        alone: bool = True,
        alarms: Alarms | None = None,
        drain_timeout: float = math.inf,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Create an empty ledger over `executors` and `provider`.

        Args:
            warm: Warms a new executor up, on its own thread, before it counts.
            session: Adopts and releases executors that were not leased, if any.
            alone: Nobody else leases from the provider: hosts without a lease are released.
            drain_timeout: Seconds that a leaving host waits for what its executor runs and keeps.
        """
        super().__init__(provider, clock, log, alarms)
        self._drain_timeout, self._wall = drain_timeout, wall
        template = provider.terms.notices
        self._notices = NoticePoller(template, self._alarms, wall=wall) if template else None
        self._executors, self._session, self._existing = executors, session, existing
        self._fence, self._warm, self._sole_user = fence, warm, alone
        self._listed: dict[Provider, Mapping[str, HostStatus]] = {}
        self._host_executors: set[str] = set()  # all executors that ever belonged to a host
        self._staying: set[str] = set()
        self.taken_over, self._reported = EarlierLeases(), RunState()
        self._critical, self._closed, self._last_start = False, False, 0.0

    @property
    def only_leased(self) -> bool:
        return self._session is None

    # -- requests ------------------------------------------------------------------------------------------------------

    def lease(self, host: str, type: HostType) -> None:
        """Request a host. If the provider raises, the host is LOST, and the error is passed on."""
        with self._lock:
            if self._log is not None:
                self._log.requested(host, type, self._clock())  # first: without a log entry, no lease
            self.adopt(host, type, self._clock())
            try:
                self.provider.lease({host: type})
            except Exception as error:
                self._lose(host, in_one_line(error))
                raise
            self._see_start(host, self.provider.hosts().get(host))

    def take_over(self, before: EarlierLeases) -> None:
        """Adopt the hosts of an earlier driver. New hosts get names that it has not used."""
        with self._lock:
            self.taken_over, self._next_number = before, max(self._next_number, before.next_number)
            for host, lease in before.adopted.items():
                self.adopt(host, lease.type, lease.since)

    def begin(self, begun: FirstHosts) -> None:
        """Record the run's first hosts, and all hosts of an earlier driver."""
        with self._lock:
            over = {**begun.before.ended, **begun.before.gone}
            self._enter(over)
            self._records |= {host: HostRecord(self.provider, reason=lease.note) for host, lease in over.items()}
            self.take_over(begun.before)
            for host, kind in begun.first.items():
                self.adopt(host, kind, begun.since)

    def adopt(self, host: str, type: HostType, since: float) -> None:
        with self._lock:
            self._enter({host: Lease(host, type, since)})
            self._records[host] = HostRecord(self.provider, milestones={"lease": since})

    def drain(self, host: str) -> None:
        with self._lock:
            self._to(host, HostState.DRAINING)

    def cancel_drain(self, host: str) -> None:
        with self._lock:
            self._to(host, HostState.RUNNING)

    def release(self, host: str) -> None:
        """Release a host: at once if it never began to start, else when nothing depends on it."""
        with self._lock:
            if self._leases[host].state is HostState.REQUESTED:
                self._withdraw(host)
            else:
                self._to(host, HostState.RELEASING)
            self._records[host].waiting_since = self._clock()

    def keep(self, host: str) -> None:
        """Keep a recalled host, because nothing else could do its work."""
        with self._lock:
            self._staying.add(host)

    @property
    def deadlines(self) -> Mapping[str, float]:
        """Return when each recalled host with a deadline is taken away (seconds of the run)."""
        with self._lock:
            return {name: each.deadline for name, each in self.active.items() if each.deadline is not None}

    @property
    def recalled(self) -> tuple[str, ...]:
        """Return hosts that their owner wants back, and that are neither leaving nor kept."""
        with self._lock:
            staying = [name for name, each in self.active.items() if each.state is not HostState.RELEASING]
            statuses = ((name, self._records[name].status) for name in staying if name not in self._staying)
            return tuple(name for name, status in statuses if status is not None and status.recalled)

    def critical(self, now: bool) -> None:
        """Record whether the service level is missed; providers ask."""
        with self._lock:
            self._critical = now

    def close(self, *, ended: bool = True) -> None:
        """End every lease. If the hosts live on (not `ended`), the log keeps the leases."""
        with self._lock:
            self._closed = True
            if self._notices is not None:
                self._notices.close()
            if not ended:
                self._log = None
            for name in self.active:
                # A host that never started skips RELEASING: `_to` ignores what is not in the table.
                for state in (HostState.RELEASING, HostState.RELEASED):
                    self._to(name, state)

    # -- the one thread ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read the state of every host. Raises errors of provider and session."""
        executors = self._executors.look()
        with self._lock:
            providers: list[Provider] = [self.provider]
            if self._session is not None and self._session is not self.provider:
                self._session.count_others(sum(self._is_leased(name) for name, lease in self.active.items() if lease.there))
                providers.append(self._session)
            self._listed = {provider: provider.hosts() for provider in providers}
            if self._notices is not None:
                self._listed[self.provider] = self._notices.mark(self._listed[self.provider])
            addresses = newest_by_address(executors)
            for name in self.active:
                self._see(name, executors, addresses)
            if self._session is not None:
                for executor in executors.values():
                    if executor.id not in self._host_executors:
                        self._adopt_executor(self._session, executor)

    @property
    def compiling(self) -> frozenset[str]:
        """Return the usable hosts that still compile code: they have run few micro-batches so far."""
        with self._lock:
            return frozenset(name for name in self.usable if not self._records[name].settled)

    def step(self, *, batch: int, idle: bool, holds: Callable[[str], bool], overrun: Collection[str] = frozenset()) -> None:
        """Do what is due.

        Args:
            batch: Rounds of batches so far.
            idle: True if none is under way.
            holds: Tells if a host has state.
            overrun: Hosts whose only tasks are strays.
        """
        with self._lock:
            for name, lease in self.active.items():
                record = self._records[name]
                match lease.state:
                    case HostState.REQUESTED:
                        waited = self._clock() - max(lease.since, self._last_start)
                        if self.usable and waited > record.provider.terms.patience:
                            record.reason = f"withdrawn: nothing started for {waited:.0f} s"
                            self._withdraw(name)
                    case HostState.STARTING:
                        self._await(name, lease, record)
                    case HostState.RUNNING | HostState.DRAINING:
                        if record.settles_after is None:
                            record.settles_after = batch + SETTLING_BATCHES
                        record.settled = record.settled or batch > record.settles_after
                        if lease.state is HostState.DRAINING and name in overrun and self._can_go(name):
                            self._fence_off(record, record.executor, batch)
                    case HostState.RELEASING:
                        self._give_back(name, record, batch, idle, holds)
            self._release_ended()
            self._write_ends()
            self._forget_ended()
            self._report(lambda host: holds(host) or host in overrun)
            self._release_orphans()

    # -- under the lock: seeing ----------------------------------------------------------------------------------------

    def _see(self, name: str, executors: Mapping[str, Executor], addresses: Mapping[str, Executor]) -> None:
        record = self._records[name]
        before, status = record.status, self._listed[record.provider].get(name)
        record.status = status
        if status is None or status.phase is Phase.GONE:
            record.executor = None
            if self._leases[name].state is HostState.RELEASING:
                self._to(name, HostState.RELEASED)
            else:
                self._lose(name, "its provider does not know it" if status is None else status.reason)
            return
        if status.reason and (before is None or before.reason != status.reason):
            log.info("host %s is %s: %s", name, "recalled" if status.recalled else status.phase, status.reason)
        if not status.recalled:
            self._staying.discard(name)
        self._see_start(name, status)
        waits = self._leases[name].state is HostState.REQUESTED
        note = status.reason if waits or status.recalled else ""
        deadline = None if status.deadline is None else status.deadline + self._clock() - self._wall()
        self._leases[name] = replace(self._leases[name], note=note, refused=waits and status.refused, deadline=deadline)
        executor = record.executor = executors.get(status.executor) if status.executor else addresses.get(status.address)
        if executor is not None:
            self._follow(name, record, executor)
        self._leases[name] = replace(self._leases[name], fenced=record.excluded)

    def _see_start(self, name: str, status: HostStatus | None) -> None:
        if status is not None and status.there and self._leases[name].state is HostState.REQUESTED:
            self._records[name].milestones["spawned"] = self._clock()
            self._to(name, HostState.STARTING)

    def _follow(self, name: str, record: HostRecord, executor: Executor) -> None:
        now = self._clock()
        self._host_executors.add(executor.id)
        record.milestones.setdefault("registered", now)
        state = self._leases[name].state
        # Replacements on a working host are warmed, too: a cold executor would delay every batch.
        warm = state in (HostState.STARTING, HostState.RUNNING) and self._is_warm(record, executor)
        if state is HostState.STARTING and warm:
            record.milestones["warm"] = now
            self._to(name, HostState.RUNNING)
        record.busy.append((now, executor.busy))
        if executor.others_active or executor.others_busy != record.others_busy:
            record.others_busy, record.others_until = executor.others_busy, now
        while len(record.busy) > 2 and record.busy[1][0] <= now - BUSY_WINDOW_S:
            record.busy.popleft()
        if record.fenced not in (None, executor.id) and self._leases[name].state is HostState.DRAINING:
            record.leaving, record.fenced = executor.leaving, None  # a new executor does not end the drain
        if executor.leaving != record.leaving and self._leases[name].state is not HostState.RELEASING:
            record.leaving = executor.leaving
            self._to(name, HostState.DRAINING if executor.leaving else HostState.RUNNING)

    def _adopt_executor(self, session: ExecutorProvider, executor: Executor) -> None:
        name, now = f"h{self.next_number}", self._clock()
        kind = replace(self._existing(executor.slots), name=f"executor-{executor.slots}")
        session.adopt(name, executor.id, kind)
        self._enter({name: Lease(name, kind, now).to(HostState.STARTING, now).to(HostState.RUNNING, now)})
        self._records[name] = record = HostRecord(session, executor=executor, warm={executor.id})
        self._follow(name, record, executor)

    def _is_warm(self, record: HostRecord, executor: Executor) -> bool:
        if self._warm is None:
            record.warm.add(executor.id)
        if executor.id in record.warm:
            return True
        if record.warming != executor.id:
            record.warming = executor.id
            threading.Thread(target=self._warm_up, args=(self._warm, record, executor), name="warm-up", daemon=True).start()
        return False

    def _warm_up(self, warm: Callable[[Executor], None], record: HostRecord, executor: Executor) -> None:
        try:
            warm(executor)
        except Exception:
            # A cold executor is only slow, and the next look notices a dead one. During close, failures are normal.
            level = logging.DEBUG if self._closed else logging.WARNING
            log.log(level, "executor %s at %s could not be warmed up", executor.id, executor.host, exc_info=True)
        finally:
            record.warm.add(executor.id)

    def _await(self, name: str, lease: Lease, record: HostRecord) -> None:
        self._last_start = self._clock()
        limit = max(START_TIMEOUT_S, 3 * lease.type.start)
        if self._clock() - lease.history[-1][0] <= limit:
            return
        if record.executor is not None and record.executor.active:
            record.warm.add(record.executor.id)  # tasks of others run there, and the warm-up's wait
        else:
            what = "its executor was not warm" if "registered" in record.milestones else "no executor registered"
            self._lose(name, f"{what} within {limit:.0f} s")

    # -- under the lock: acting ----------------------------------------------------------------------------------------

    def _give_back(self, name: str, record: HostRecord, batch: int, idle: bool, holds: Callable[[str], bool]) -> None:
        executor = record.executor
        grace = IDLE_TIMEOUT_S if idle else GRACE_TIMEOUT_S
        if record.fenced is None and (deadline := self.deadlines.get(name)) is not None:
            grace = max(0.0, deadline - DEADLINE_MARGIN_S - record.waiting_since)
        timed_out = self._clock() - record.waiting_since > grace
        if executor is not None and record.fenced != executor.id:
            if timed_out or not holds(name):
                self._fence_off(record, executor, batch)
        elif executor is None or self._may_end(executor, record, timed_out or batch - record.fenced_batch >= GRACE_BATCHES):
            record.provider.release([name])

    def _can_go(self, name: str) -> bool:
        return any(self.target(other) is not None for other in self.usable if other != name)

    def _fence_off(self, record: HostRecord, executor: Executor | None, batch: int) -> None:
        if executor is not None and record.fenced != executor.id and not executor.endless:
            self._fence(executor.id)
            record.fenced, record.fenced_batch, record.waiting_since = executor.id, batch, self._clock()

    def _may_end(self, executor: Executor, record: HostRecord, grace_over: bool) -> bool:
        # A task may have been assigned just before the fence. Dynamic allocation would end the executor (SPARK-58879).
        if executor.endless or not (executor.uses and grace_over):
            return grace_over and not executor.endless
        waited = self._clock() - record.waiting_since
        if waited > self._drain_timeout:
            lost = ", ".join(each.text for each in executor.uses)
            log.warning("executor %s is given back after %.0f s (drain_timeout): it cuts off %s", executor.id, waited, lost)
        return waited > self._drain_timeout

    def _release_ended(self) -> None:
        for provider, listed in self._listed.items():
            if ended := [name for name in listed if name in self._leases and name not in self._active]:
                provider.release(ended)

    def _release_orphans(self) -> None:
        if self._log is None or not self._sole_user:
            return
        for name, status in self._listed.get(self.provider, {}).items():
            if name in self._leases:
                continue
            types = {kind.name: kind for kind in self.provider.terms.types}
            kind = types.get(status.type) or HostType(status.type, cores=1.0, price=0.0)
            self._log.requested(name, kind, self._clock())  # first: the log cannot read an end without it
            self.adopt(name, kind, self._clock())
            self._records[name].reason = "an orphan: its provider lists it, and no lease of this run; released"
            log.warning("host %s is %s", name, self._records[name].reason)
            self._withdraw(name)

    def _report(self, holds: Callable[[str], bool]) -> None:
        works = (HostState.RUNNING, HostState.DRAINING, HostState.RELEASING)
        here = [name for name, lease in self.active.items() if lease.state in works]
        ready = frozenset(filter(self._is_leased, here))
        holding = frozenset(name for name in here if self._records[name].provider is self.provider and holds(name))
        settled = frozenset(name for name in ready if self._records[name].settled)
        state = RunState(ready, settled, holding, frozenset(self._staying), self._critical)
        if state != self._reported:
            self.provider.report(state)
            self._reported = state

    def _withdraw(self, name: str) -> None:
        self._to(name, HostState.RELEASED)
        self._records[name].provider.release([name])

    def _lose(self, name: str, reason: str) -> None:
        self._records[name].reason = reason
        self._leases[name] = replace(self._leases[name], note=reason)
        self._to(name, HostState.LOST)
        log.warning("host %s is lost: %s", name, reason)
