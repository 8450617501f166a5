"""Mends undone, one at a time: what the checkers must notice. Each entry names the mend, and puts back what was before it.

A mutant is caught where some seed breaks a rule that it does not break without it.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from campaign.paper import Engine
from campaign.patching import patched
from campaign.schedule import Schedule
from elastream.clouds.pool import Membership
from elastream.control import arbitration, loop
from elastream.control.journal import Journal, JournalWriter
from elastream.control.loop import Loop
from elastream.core.action import LeaseHost
from elastream.errors import ElastreamError
from elastream.pool.arbiter import ArbiterNode
from elastream.pool.region import RegionNode
from elastream.pool.state_log import StateLog
from elastream.recording.lease_log import LeaseLog
from elastream.recording.lines import Lines
from elastream.sharing import arbiter
from elastream.spark.hosts import first_hosts
from elastream.spark.hosts.hosts import HostLedger, Hosts
from elastream.spark.placement.placing import Placing
from elastream.spark.queries.query import Query
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.reconciler import Reconciler
from elastream.spark.telemetry.frames import HostCpuUsage


@dataclass(frozen=True, slots=True)
class Mutant:
    """undoes: the mend, in words. parts: what replaces what. world: the one in which it can show; empty: either. needs:
    faults of which it takes `least` for it to show, each a part of "who: kind: how"; empty: any. besides: faults of which
    it takes as many.
    """

    name: str
    undoes: str
    parts: Callable[[], Sequence[tuple[Any, str, Any]]]
    world: str = ""
    needs: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()
    least: int = 1

    def shows(self, schedule: Schedule) -> bool:
        """Whether it can make a difference under `schedule`."""
        said = [f"{fault.who}: {fault.kind}: {fault.how}" for fault in schedule.faults]

        def there(wanted: tuple[str, ...]) -> bool:
            return not wanted or sum(any(need in each for need in wanted) for each in said) >= self.least

        return self.world in ("", schedule.world) and there(self.needs) and there(self.besides)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The mend is undone inside."""
        with ExitStack() as stack:
            for owner, name, value in self.parts():
                stack.enter_context(patched(owner, name, value))
            yield


# -- the loop and its journal --------------------


def _unguarded_round() -> Sequence[tuple[Any, str, Any]]:
    def hold(self: Loop, observation: Any, plans: bool) -> None:
        self._follow(observation)
        if plans:
            self._plan(observation)

    return [(Loop, "_run_round", hold)]


def _blindness_ends() -> Sequence[tuple[Any, str, Any]]:
    def unseen(self: Loop) -> Any:
        raise SystemExit("ten observations in a row failed")

    return [(Loop, "_unseen", unseen)]


def _unchecked_plans() -> Sequence[tuple[Any, str, Any]]:
    return [(loop, "check_plan", lambda plan: plan), *_unguarded_round()]


def _full_disk_ends() -> Sequence[tuple[Any, str, Any]]:
    def written(self: JournalWriter, write: Callable[[], object]) -> bool:
        try:
            write()
        except ElastreamError as error:
            raise SystemExit(str(error)) from error
        return True

    return [(JournalWriter, "_written", written)]


def _nothing_kept() -> Sequence[tuple[Any, str, Any]]:
    def flush(self: Journal) -> None:
        lines, self._unwritten = self._unwritten, []
        for line in lines:
            if self._lines is not None:
                self._lines.append(line)

    return [(Journal, "flush", flush)]


def _half_lines() -> Sequence[tuple[Any, str, Any]]:
    def append(self: Lines, fields: Mapping[str, Any]) -> None:
        from elastream.recording.formats import marked
        from elastream.recording.lines import line, write_whole

        try:
            write_whole(self._file, line(fields if self._file.tell() else marked(fields)))
        except OSError as error:
            raise self._problem(error) from error

    return [(Lines, "append", append)]


def _torn_lines() -> Sequence[tuple[Any, str, Any]]:
    original = Lines.__init__

    def begin(self: Lines, path: Any, what: str) -> None:
        from pathlib import Path

        before = Path(path).read_bytes() if Path(path).is_file() else b""
        original(self, path, what)
        if not before.endswith(b"\n") and before:
            self._content = before
            self._file.truncate(0)
            self._file.write(before)

    return [(Lines, "__init__", begin)]


def _no_stall_rule() -> Sequence[tuple[Any, str, Any]]:
    rules = tuple(rule for rule in arbitration.RULES if rule.__name__ != "batch_stalled")
    return [(arbitration, "RULES", rules), (Query, "stalled", lambda self, now: 0.0)]


def _no_bounds() -> Sequence[tuple[Any, str, Any]]:
    from elastream.spark.hosts.actions import HostActions

    rules = tuple(rule for rule in arbitration.RULES if rule.__name__ != "out_of_bounds")
    lease = HostActions.lease

    def boundless(self: Any, action: LeaseHost) -> Any:
        return lease(replace(self, most=1000), action)

    return [(arbitration, "RULES", rules), (HostActions, "lease", boundless)]


def _no_growth_bound() -> Sequence[tuple[Any, str, Any]]:
    begin = arbitration._Plan.__init__

    def boundless(self: Any, observation: Any, under_way: Any, growth: float, limits: Any) -> None:
        begin(self, observation, under_way, math.inf, limits)

    return [(arbitration._Plan, "__init__", boundless)]


# -- time --------------------


def _clock_believed() -> Sequence[tuple[Any, str, Any]]:
    return [(Query, "_notice_step", lambda self, now: None)]


def _across_believed() -> Sequence[tuple[Any, str, Any]]:
    def noticed(self: Query, now: float) -> None:
        notice(self, now)
        self._across = False

    notice = Query._notice_step
    return [(Query, "_notice_step", noticed)]


def _odd_counters() -> Sequence[tuple[Any, str, Any]]:
    def cpu(self: HostCpuUsage, lease: Any, known: Any, use: Any, now: float, share: float) -> float:
        if known.cpu_seconds is None:
            return use(lease.host)
        samples = self._cpu.setdefault(lease.host, deque())
        samples.append((now, known.cpu_seconds))
        while len(samples) > 2 and samples[1][0] <= now - 3.0:
            samples.popleft()
        then, before = samples[0]
        return (known.cpu_seconds - before) / (now - then) / lease.type.cores / share if now > then else float("nan")

    return [(HostCpuUsage, "_cpu_of", cpu)]


def _unseen_is_over() -> Sequence[tuple[Any, str, Any]]:
    def finished(self: SessionQueries, now: float) -> bool:
        return not self.live and now - max(self._gone_since.values(), default=0.0) > 15.0

    return [(SessionQueries, "finished", finished)]


def _given_up() -> Sequence[tuple[Any, str, Any]]:
    refusal = arbitration.BackOff.refusal
    return [(arbitration.BackOff, "refusal", lambda self, action, now, *, vital=False: refusal(self, action, now))]


# -- leases --------------------


def _leases_unlogged() -> Sequence[tuple[Any, str, Any]]:
    return [(LeaseLog, "requested", lambda self, host, type, at: None)]


def _ends_unlogged() -> Sequence[tuple[Any, str, Any]]:
    return [(LeaseLog, "ended", lambda self, lease, why="": None)]


def _ends_dropped() -> Sequence[tuple[Any, str, Any]]:
    def write(self: HostLedger) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for lease in unwritten:
            if self._log is not None:
                with suppress(ElastreamError):
                    self._log.ended(lease, "")

    return [(HostLedger, "_write_ends", write)]


def _orphans_stay() -> Sequence[tuple[Any, str, Any]]:
    return [(Hosts, "_release_orphans", lambda self: None)]


def _nothing_adopted() -> Sequence[tuple[Any, str, Any]]:
    def forget(leases: Any, provider: Any, last_seen: float) -> Any:
        return first_hosts.EarlierLeases()

    return [(first_hosts, "take_over", forget)]


def _orphans_adopted() -> Sequence[tuple[Any, str, Any]]:
    def release(self: Hosts) -> None:
        for name in self._listed.get(self.provider, {}):
            if name not in self._leases and self._log is not None:
                kind = self.provider.terms.types[0]
                self.adopt(name, kind, self._clock())
                self._log.requested(name, kind, self._clock())
                self._withdraw(name)

    return [(Hosts, "_release_orphans", release)]


def _ended_listed() -> Sequence[tuple[Any, str, Any]]:
    return [(Hosts, "_release_ended", lambda self: None)]


# -- the reconciler and placement --------------------


def _reconciler_dies() -> Sequence[tuple[Any, str, Any]]:
    def once(self: Reconciler) -> float | None:
        return self.step()

    return [(Reconciler, "once", once)]


def _drift_stays() -> Sequence[tuple[Any, str, Any]]:
    return [(Placing, "_follow_plan", lambda self, operators, target: None)]


def _landed_at_once() -> Sequence[tuple[Any, str, Any]]:
    from elastream.core.migration import MigrationState

    settle = Placing._settle

    def hasty(self: Placing, task: Any, batch: int, target: Any) -> None:
        if self._under_way[task].migration.state is MigrationState.FLIPPED:
            self._end(task, MigrationState.LANDED)
        else:
            settle(self, task, batch, target)

    return [(Placing, "_settle", hasty)]


# -- shared hosts --------------------


def _said_before_written() -> Sequence[tuple[Any, str, Any]]:
    def become(self: ArbiterNode, state: Any, keys: Mapping[str, str]) -> None:
        self._state, self._keys = state, {name: key for name, key in keys.items() if name in state.applications}

    return [(ArbiterNode, "_commit", become)]


def _order_unwritten() -> Sequence[tuple[Any, str, Any]]:
    def become(self: RegionNode, state: Any) -> None:
        self.state = state

    return [(RegionNode, "_commit", become)]


def _old_claims() -> Sequence[tuple[Any, str, Any]]:
    hear = arbiter._apply_claim

    def believe(ledger: Any, claim: Any) -> bool:
        return hear(ledger, replace(claim, number=ledger.members[claim.application].number + 1, seen=10**9))

    return [(arbiter, "_apply_claim", believe), *_unlocked_machines()]


def _unlocked_machines() -> Sequence[tuple[Any, str, Any]]:
    return [(Membership, "_locked", lambda self, machine: True)]


def _two_controllers() -> Sequence[tuple[Any, str, Any]]:
    from campaign import driver, world

    @contextmanager
    def open_to_all(directory: Any) -> Iterator[None]:
        yield

    return [(driver, "run_lock", open_to_all), (world, "run_lock", open_to_all)]


def _nothing_written() -> Sequence[tuple[Any, str, Any]]:
    def commit(self: StateLog, tables: Any) -> None:
        self._baseline = {name: dict(table) for name, table in tables.items()}

    return [(StateLog, "commit", commit)]


# -- the engine: what the history's checkers are for --------------------


def _old_state() -> Sequence[tuple[Any, str, Any]]:
    return [(Engine, "loads", staticmethod(lambda cached, wanted: wanted if cached is None else cached))]


def _another_range() -> Sequence[tuple[Any, str, Any]]:
    return [(Engine, "replays", False)]


def _twice() -> Sequence[tuple[Any, str, Any]]:
    return [(Engine, "salted", True)]


FULL, GATEWAY, POLICY, STRAY = ("a full disk",), ("the gateway fails",), "the policy fails", ("a stray host",)
ARBITER_DIES, REGION_DIES = ("arbiter: killed",), ("east: killed", "west: killed")
MUTANTS: tuple[Mutant, ...] = (
    Mutant("ten failed observations end the run", "what cannot be seen goes on as planned", _blindness_ends, needs=GATEWAY),
    Mutant("an odd plan ends the run", "plans are checked, and faults of a round freeze the plan", _unchecked_plans,
           needs=(f"{POLICY}: no plan", f"{POLICY}: odd actions")),
    Mutant("a full disk ends the run", "a journal that cannot be written freezes the plan", _full_disk_ends, needs=FULL),
    Mutant("what could not be written is forgotten", "the journal keeps it and writes it later", _nothing_kept, needs=FULL),
    Mutant("half lines stay", "a line that was written in part is cut off", _half_lines, needs=FULL),
    Mutant("torn lines stay", "a torn last line is cut off at the next start", _torn_lines,
           needs=("killed in a write: inside",)),
    Mutant("a batch that hangs is no batch", "nothing is taken away while a batch hangs", _no_stall_rule,
           needs=("a batch hangs",)),
    Mutant("bounds are not checked", "never more than max_hosts", _no_bounds, needs=(f"{POLICY}: greedy",)),
    Mutant("all hosts at once", "growth per round is bounded", _no_growth_bound, needs=(f"{POLICY}: greedy",)),
    Mutant("the clock is believed", "steps of the clock are noticed", _clock_believed, needs=("the clock is set",)),
    Mutant("a batch is dated by two clocks", "one under way when the clock was set is dated anew", _across_believed,
           needs=("the clock is set",)),
    Mutant("counters that cannot be count", "use that cannot be is unknown", _odd_counters,
           needs=("use is absurd: negative",)),
    Mutant("queries not looked at have ended", "what was never seen has not ended", _unseen_is_over, needs=(" queries",)),
    Mutant("leases are given up", "without a host a lease is tried again within a minute", _given_up, "own",
           needs=("the provider raises", "no room"), besides=("a host dies", "hosts die"), least=2),
    Mutant("leases are not logged", "a lease is on disk before its provider is asked", _leases_unlogged,
           needs=("killed",)),
    Mutant("ends are not logged", "ends of leases are on disk", _ends_unlogged),
    Mutant("ends that could not be written are dropped", "they are written when there is room", _ends_dropped, needs=FULL),
    Mutant("orphans stay", "what nobody leased is released, and in the ledger", _orphans_stay, "own", STRAY),
    Mutant("an orphan is adopted before it is written", "it is written first", _orphans_adopted, "own", STRAY),
    Mutant("nothing is taken over", "a run that goes on adopts or writes off its leases", _nothing_adopted, "own",
           ("a: killed",)),
    Mutant("ended hosts stay listed", "hosts that ended are released at their provider", _ended_listed),
    Mutant("the mover dies of a fault", "a pass that failed is followed by the next", _reconciler_dies, needs=GATEWAY),
    Mutant("drift stays", "partitions that ran elsewhere return", _drift_stays),
    Mutant("a report is believed", "a move has landed once a batch confirms it", _landed_at_once,
           needs=("reports to the coordinator lost",)),
    Mutant("the arbiter speaks before it writes", "state is on disk before it is said", _said_before_written, "shared",
           ARBITER_DIES),
    Mutant("a region acts before it writes", "state is on disk before it is acted on", _order_unwritten, "shared",
           REGION_DIES),
    Mutant("old claims count", "a claim that is not newer is ignored, and machines are locked", _old_claims, "shared",
           ("messages doubled",)),
    Mutant("machines are not locked", "the kernel gives a machine to one process", _unlocked_machines, "shared"),
    Mutant("a second controller is let in", "one process holds a run's folder", _two_controllers,
           needs=("a second controller",)),
    Mutant("managers write nothing", "managers have a journal", _nothing_written, "shared",
           (*ARBITER_DIES, *REGION_DIES)),
    Mutant("state of an older version is loaded", "the engine loads what the batch before committed", _old_state),
    Mutant("a batch is planned anew", "a batch is replayed as it was planned", _another_range),
    Mutant("content depends on the executor", "content is a function of the records", _twice),
)  # fmt: skip
"""Every mend that is undone."""
