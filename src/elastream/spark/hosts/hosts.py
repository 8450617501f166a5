"""The hosts of a plant on Spark, leased or found in the session, and their lifecycle.

A host is what a `Provider` leases, with the executor that Spark runs there. In a session of the user,
executors that were not leased are hosts too. States and edges are `elastream.core.hosts.TRANSITIONS`:

    REQUESTED -> STARTING   its provider has begun to start it
    REQUESTED -> RELEASED   released, or withdrawn: for the provider's patience nothing started while other hosts worked
    STARTING  -> RUNNING    its executor has registered and is warm; an executor that was found is both
    STARTING  -> LOST       no executor registered, or none was warm, within START_LIMIT
    RUNNING   -> DRAINING   a drain, or Spark gives its executor nothing new: it is being decommissioned, or is excluded
    DRAINING  -> RUNNING    the drain was cancelled, or Spark uses its executor again
    STARTING, RUNNING, DRAINING -> RELEASING   a release
    RELEASING -> RELEASED   it is gone, as its provider says
    any       -> LOST       its provider says that it is gone, or refused it

There is one way out for every host: once it holds nothing, or patience ends, its executor is fenced, so that it gets no
further task; GRACE_BATCHES later, when nothing that it wrote is needed any more, or when patience ends again, its provider
is asked to end it. Patience is GRACE_LIMIT, and IDLE_LIMIT while no batch is under way.

One thread calls `look` and `step`, in turn. `look` only sees (and warms new executors up); `step` acts. All other methods
are cheap and may be called from any thread.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from elastream.clouds.executors import ExecutorProvider
from elastream.clouds.provider import HostStatus, Phase, Provider, RunState
from elastream.core.alarm import Alarms
from elastream.core.hosts import Billing, HostState, HostType, Lease
from elastream.errors import in_one_line
from elastream.recording.lease_log import LeaseLog
from elastream.spark.hosts.book import HostBook, Known
from elastream.spark.hosts.taking_over import Begun, TakenOver
from elastream.spark.jvm.executors import Executor, Executors, newest_by_address

log = logging.getLogger(__name__)

START_LIMIT = 90.0
"""Seconds a host may take to register an executor before it is given up as lost, or three times what its type says; a cold
laptop needs about 15."""
SETTLING_BATCHES = 3
"""Batches after which a host that takes tasks is reported as settled: in its first ones it still compiles what it runs."""
GRACE_BATCHES = 2
"""Batches that must end between a host's last task and its end: the one under way, and one that surely began after."""
GRACE_LIMIT = 20.0
"""Seconds that a releasing host waits for batches to end: one may be far longer than usual, or its query be at fault."""
IDLE_LIMIT = 3.0
"""The same where no batch is under way."""
BUSY_WINDOW = 15.0
"""Seconds that an executor's use is averaged over: tasks count when they end."""


def unpriced(slots: int) -> HostType:
    """An executor of so many slots that nothing is known of: a core each, and no price."""
    return HostType("executor", cores=slots, slots=slots, price=0.0, billing=Billing(1.0))


class Hosts(HostBook):
    """All hosts so far, as `HostBook` keeps them.

    provider: where hosts are leased. clock: seconds of the run. fence: lets an executor get no further task. warm: makes a
    new executor fast before it counts, on a thread of its own; None where none is warmed. session: takes in executors that
    were not leased, and gives them back; None in a session that has only those leased here. found: what one of those of so
    many slots is taken for, with its price. log: of leases. alone: whether nobody else leases of the provider: what it
    lists and nobody leased here is an orphan then, and released.
    """

    def __init__(
        self,
        executors: Executors,
        provider: Provider,
        clock: Callable[[], float],
        *,
        fence: Callable[[str], None],
        warm: Callable[[Executor], None] | None = None,
        session: ExecutorProvider | None = None,
        found: Callable[[int], HostType] = unpriced,
        log: LeaseLog | None = None,
        alone: bool = True,
        alarms: Alarms | None = None,
    ) -> None:
        super().__init__(provider, clock, log, alarms)
        self._executors, self._session, self._found_as = executors, session, found
        self._fence, self._warm = fence, warm
        self._alone = alone
        self._listed: dict[Provider, Mapping[str, HostStatus]] = {}
        self._ever: set[str] = set()  # executors that have been some host's
        self._kept: set[str] = set()
        self._critical = False
        self.taken_over = TakenOver()
        self._reported = RunState()
        self._last_start = 0.0
        self._closed = False

    @property
    def only_leased(self) -> bool:
        """Whether no executor can come but on hosts of the provider."""
        return self._session is None

    # -- requests ------------------------------------------------------------------------------------------------------

    def lease(self, host: str, type: HostType) -> None:
        """Request a host; raises what the provider raises, the host then is LOST."""
        with self._lock:
            if self._log is not None:
                self._log.requested(host, type, self._clock())  # what cannot be written is not leased
            self.adopt(host, type, self._clock())
            try:
                self.provider.lease({host: type})
            except Exception as error:
                self._lose(host, in_one_line(error))
                raise
            self._see_start(host, self.provider.hosts().get(host))

    def take_over(self, before: TakenOver) -> None:
        """Adopt what an earlier driver leased and is still there; no host is called as one of before was."""
        with self._lock:
            self.taken_over, self._numbered = before, max(self._numbered, before.next_number)
            for host, lease in before.adopted.items():
                self.adopt(host, lease.type, lease.since)

    def begin(self, begun: Begun) -> None:
        """Take the hosts that the run begins with into the ledger, and those that an earlier driver had."""
        with self._lock:
            over = {**begun.before.ended, **begun.before.gone}
            self._enter(over)
            self._known |= {host: Known(self.provider, reason=lease.note) for host, lease in over.items()}
            self.take_over(begun.before)
            for host, kind in begun.first.items():
                self.adopt(host, kind, begun.since)

    def adopt(self, host: str, type: HostType, since: float) -> None:
        """Take over a host that was requested from the provider at `since`, before there was a session."""
        with self._lock:
            self._enter({host: Lease(host, type, since)})
            self._known[host] = Known(self.provider, milestones={"lease": since})

    def drain(self, host: str) -> None:
        """RUNNING to DRAINING."""
        with self._lock:
            self._to(host, HostState.DRAINING)

    def cancel_drain(self, host: str) -> None:
        """DRAINING to RUNNING."""
        with self._lock:
            self._to(host, HostState.RUNNING)

    def release(self, host: str) -> None:
        """To RELEASING: it ends as soon as nothing depends on it; at once where it never began to start."""
        with self._lock:
            if self._leases[host].state is HostState.REQUESTED:
                self._withdraw(host)
            else:
                self._to(host, HostState.RELEASING)
            self._known[host].waiting_since = self._clock()

    def keep(self, host: str) -> None:
        """Tell the provider that a recalled host is not left, as nothing else could do its work."""
        with self._lock:
            self._kept.add(host)

    @property
    def recalled(self) -> tuple[str, ...]:
        """Hosts that their owner wants back, that are not on their way yet, and that are not kept."""
        staying = (HostState.REQUESTED, HostState.STARTING, HostState.RUNNING, HostState.DRAINING)
        with self._lock:
            return tuple(
                name
                for name, lease in self.active.items()
                if (status := self._known[name].status) is not None and status.recalled
                if lease.state in staying and name not in self._kept
            )

    def critical(self, now: bool) -> None:
        """Note for the provider whether the service level is missed."""
        with self._lock:
            self._critical = now

    def close(self, *, ended: bool = True) -> None:
        """Every lease ends now; the hosts are their provider's to end.

        ended: whether they do; else the log keeps the leases, for who takes them over.
        """
        with self._lock:
            self._closed = True
            if not ended:
                self._log = None
            for name in self.active:
                # A host that never started goes straight to its end: `_to` skips what the table does not know.
                for state in (HostState.RELEASING, HostState.RELEASED):
                    self._to(name, state)

    # -- the one thread ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read the state of every host. Raises what the provider and the session raise, with nothing changed."""
        seen = self._executors.look()
        with self._lock:
            providers: list[Provider] = [self.provider]
            if self._session is not None and self._session is not self.provider:
                self._session.count_others(sum(self._is_leased(name) for name, lease in self.active.items() if lease.there))
                providers.append(self._session)
            self._listed = {provider: provider.hosts() for provider in providers}
            addresses = newest_by_address(seen)
            for name in self.active:
                self._see(name, seen, addresses)
            if self._session is not None:
                for executor in seen.values():
                    if executor.id not in self._ever:
                        self._find(self._session, executor)

    @property
    def compiling(self) -> frozenset[str]:
        """Hosts that take tasks and have not worked off their first batches."""
        with self._lock:
            return frozenset(name for name in self.usable if not self._known[name].settled)

    def step(self, *, batch: int, idle: bool, holds: Callable[[str], bool]) -> None:
        """Do what is due. batch: rounds of batches that ended; idle: none is under way; holds: whether one has state."""
        with self._lock:
            for name, lease in self.active.items():
                known = self._known[name]
                match lease.state:
                    case HostState.REQUESTED:
                        waited = self._clock() - max(lease.since, self._last_start)
                        if self.usable and waited > known.provider.terms.patience:
                            known.reason = f"withdrawn: nothing started for {waited:.0f} s"
                            self._withdraw(name)
                    case HostState.STARTING:
                        self._last_start = self._clock()
                        limit = max(START_LIMIT, 3 * lease.type.start)
                        if self._clock() - lease.history[-1][0] > limit:
                            came = "registered" in known.milestones
                            what = "its executor was not warm" if came else "no executor registered"
                            self._lose(name, f"{what} within {limit:.0f} s")
                    case HostState.RUNNING | HostState.DRAINING:
                        self._settle(known, batch)
                    case HostState.RELEASING:
                        self._give_back(name, known, batch, idle, holds)
            self._release_ended()
            self._write_ends()
            self._forget_ended()
            self._report(holds)
            self._release_orphans()

    # -- under the lock: seeing ----------------------------------------------------------------------------------------

    def _see(self, name: str, seen: Mapping[str, Executor], addresses: Mapping[str, Executor]) -> None:
        known = self._known[name]
        before, status = known.status, self._listed[known.provider].get(name)
        known.status = status
        if status is None or status.phase is Phase.GONE:
            reason = "its provider does not know it" if status is None else status.reason
            known.executor = None
            if self._leases[name].state is HostState.RELEASING:
                self._to(name, HostState.RELEASED)
            else:
                self._lose(name, reason)
            return
        if status.reason and (before is None or before.reason != status.reason):
            log.info("host %s is %s: %s", name, "recalled" if status.recalled else status.phase, status.reason)
        if not status.recalled:
            self._kept.discard(name)
        self._see_start(name, status)
        waits = self._leases[name].state is HostState.REQUESTED
        note = status.reason if waits or status.recalled else ""
        self._leases[name] = replace(self._leases[name], note=note, refused=waits and status.refused)
        executor = known.executor = seen.get(status.executor) if status.executor else addresses.get(status.address)
        if executor is not None:
            self._follow(name, known, executor)

    def _see_start(self, name: str, status: HostStatus | None) -> None:
        if status is not None and status.there and self._leases[name].state is HostState.REQUESTED:
            self._known[name].milestones["spawned"] = self._clock()
            self._to(name, HostState.STARTING)

    def _follow(self, name: str, known: Known, executor: Executor) -> None:
        """Take in how the executor of a host does."""
        now = self._clock()
        self._ever.add(executor.id)
        known.milestones.setdefault("registered", now)
        state = self._leases[name].state
        # Also of one that replaces another on a host at work: a cold one would hold up every batch that it has tasks of.
        warm = state in (HostState.STARTING, HostState.RUNNING) and self._is_warm(known, executor)
        if state is HostState.STARTING and warm:
            known.milestones["warm"] = now
            self._to(name, HostState.RUNNING)
        known.busy.append((now, executor.busy))
        while len(known.busy) > 2 and known.busy[1][0] <= now - BUSY_WINDOW:
            known.busy.popleft()
        if executor.leaving != known.leaving and self._leases[name].state is not HostState.RELEASING:
            known.leaving = executor.leaving
            self._to(name, HostState.DRAINING if executor.leaving else HostState.RUNNING)

    def _find(self, session: ExecutorProvider, executor: Executor) -> None:
        """Take in an executor that was not leased."""
        name, now = f"h{self.next_number}", self._clock()
        kind = replace(self._found_as(executor.slots), name=f"executor-{executor.slots}")
        session.adopt(name, executor.id, kind)
        self._enter({name: Lease(name, kind, now).to(HostState.STARTING, now).to(HostState.RUNNING, now)})
        self._known[name] = known = Known(session, executor=executor, warm={executor.id})
        self._follow(name, known, executor)

    def _is_warm(self, known: Known, executor: Executor) -> bool:
        """Whether an executor is warm; begins to warm it up where it is not."""
        if self._warm is None:
            known.warm.add(executor.id)
        if executor.id in known.warm:
            return True
        if known.warming != executor.id:
            known.warming = executor.id
            threading.Thread(target=self._warm_up, args=(self._warm, known, executor), name="warm-up", daemon=True).start()
        return False

    def _warm_up(self, warm: Callable[[Executor], None], known: Known, executor: Executor) -> None:
        try:
            warm(executor)
        except Exception:
            # A cold executor is slow, not wrong; a dead one shows at the next look. At the end all of them go, in mid-way.
            level = logging.DEBUG if self._closed else logging.WARNING
            log.log(level, "executor %s at %s could not be warmed up", executor.id, executor.host, exc_info=True)
        finally:
            known.warm.add(executor.id)

    # -- under the lock: acting ----------------------------------------------------------------------------------------

    def _settle(self, known: Known, batch: int) -> None:
        if known.settles_after is None:
            known.settles_after = batch + SETTLING_BATCHES
        known.settled = known.settled or batch > known.settles_after

    def _give_back(self, name: str, known: Known, batch: int, idle: bool, holds: Callable[[str], bool]) -> None:
        executor = known.executor
        tired = self._clock() - known.waiting_since > (IDLE_LIMIT if idle else GRACE_LIMIT)
        if executor is not None and known.fenced != executor.id:
            if tired or not holds(name):
                self._fence(executor.id)
                known.fenced, known.fenced_batch, known.waiting_since = executor.id, batch, self._clock()
        elif executor is None or tired or batch - known.fenced_batch >= GRACE_BATCHES:
            known.provider.release([name])

    def _release_ended(self) -> None:
        """Release what providers still list although its lease has ended: hosts that are lost, or were refused."""
        for provider, listed in self._listed.items():
            ended = [name for name in listed if name in self._leases and name not in self._present]
            if ended:
                provider.release(ended)

    def _release_orphans(self) -> None:
        """Release hosts of this run's provider that no lease is known of, and put them into the ledger."""
        if self._log is None or not self._alone:
            return
        for name, status in self._listed.get(self.provider, {}).items():
            if name in self._leases:
                continue
            known = {kind.name: kind for kind in self.provider.terms.types}
            kind = known.get(status.type) or HostType(status.type, cores=1.0, price=0.0)
            self._log.requested(name, kind, self._clock())  # first: its end could not be read without it
            self.adopt(name, kind, self._clock())
            self._known[name].reason = "an orphan: its provider lists it, and no lease of this run; released"
            log.warning("host %s is %s", name, self._known[name].reason)
            self._withdraw(name)

    def _report(self, holds: Callable[[str], bool]) -> None:
        works = (HostState.RUNNING, HostState.DRAINING, HostState.RELEASING)
        ready = {name for name, lease in self.active.items() if lease.state in works and self._is_leased(name)}
        settled = {name for name in ready if self._known[name].settled}
        holding = {name for name in ready if holds(name)}
        state = RunState(frozenset(ready), frozenset(settled), frozenset(holding), frozenset(self._kept), self._critical)
        if state != self._reported:
            self.provider.report(state)
            self._reported = state

    def _withdraw(self, name: str) -> None:
        self._to(name, HostState.RELEASED)
        self._known[name].provider.release([name])

    def _lose(self, name: str, reason: str) -> None:
        self._known[name].reason = reason
        self._leases[name] = replace(self._leases[name], note=reason)
        self._to(name, HostState.LOST)
        log.warning("host %s is lost: %s", name, reason)
