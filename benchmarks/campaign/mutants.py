"""Mutants, each of which undoes one fix. A checker notices one if a seed breaks a rule only with it."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

from campaign import driver, world
from campaign.paper import Engine
from campaign.schedule import Schedule
from elastream.clouds.pool import Membership
from elastream.control import arbitration, loop
from elastream.control.arbitration import BackOff
from elastream.control.journal import Journal, JournalWriter
from elastream.control.loop import Loop
from elastream.core.action import LeaseHost
from elastream.core.migration import MigrationState
from elastream.errors import ElastreamError
from elastream.pool.arbiter import ArbiterNode
from elastream.pool.region import RegionNode
from elastream.pool.state_log import StateLog
from elastream.recording.formats import marked
from elastream.recording.lease_log import LeaseLog
from elastream.recording.lines import Lines, line, write_whole
from elastream.sharing import arbiter
from elastream.spark.hosts import first_hosts
from elastream.spark.hosts.actions import HostActions
from elastream.spark.hosts.hosts import HostLedger, Hosts
from elastream.spark.placement.placing import Placing
from elastream.spark.queries.query import Query
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.reconciler import Reconciler
from elastream.spark.telemetry.frames import HostCpuUsage

Part: TypeAlias = tuple[Any, str, Any]  # owner, attribute, replacement


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fix that is undone.

    undoes: the fix, in words. parts: the replacements. world: the one in which it can show; empty: either. needs: faults,
    each a part of "who: kind: how", of which it needs `least` to show; empty: any. besides: further faults, of which it
    needs the same number.
    """

    name: str
    undoes: str
    parts: tuple[Part, ...]
    world: str = ""
    needs: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()
    least: int = 1

    def shows(self, schedule: Schedule) -> bool:
        """Return True if it can make a difference under `schedule`."""
        faults = [f"{fault.who}: {fault.kind}: {fault.how}" for fault in schedule.faults]

        def present(needs: tuple[str, ...]) -> bool:
            return not needs or sum(any(need in each for need in needs) for each in faults) >= self.least

        return self.world in ("", schedule.world) and present(self.needs) and present(self.besides)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, value in self.parts:
                stack.enter_context(patch.object(owner, name, value))
            yield


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def calls(function: Callable[..., Any], **changes: Any) -> Callable[..., Any]:
    """Return `function` with keywords that replace those of the caller."""
    return lambda *arguments, **keywords: function(*arguments, **{**keywords, **changes})


def ends(why: str) -> Callable[..., None]:
    def end(*_: Any) -> None:
        raise SystemExit(why)

    return end


def without_rule(name: str) -> Part:
    return arbitration, "RULES", tuple(rule for rule in arbitration.RULES if rule.__name__ != name)


def round_without_guard(self: Loop, observation: Any, plans: bool) -> None:
    self._follow(observation)
    if plans:
        self._plan(observation)


UNGUARDED: Part = (Loop, "_run_round", round_without_guard)


def write_or_end(self: JournalWriter, write: Callable[[], object]) -> bool:
    try:
        write()
    except ElastreamError as error:
        raise SystemExit(str(error)) from error
    return True


def flush_once(self: Journal) -> None:
    lines, self._unwritten = self._unwritten, []
    for each in lines:
        if self._lines is not None:
            self._lines.append(each)


def append_in_part(self: Lines, fields: Mapping[str, Any]) -> None:
    try:
        write_whole(self._file, line(fields if self._file.tell() else marked(fields)))
    except OSError as error:
        raise self._problem(error) from error


def begin_torn(self: Lines, path: Any, what: str, begin: Callable[..., None] = Lines.__init__) -> None:
    before = Path(path).read_bytes() if Path(path).is_file() else b""
    begin(self, path, what)
    if not before.endswith(b"\n") and before:
        self._content = before
        self._file.truncate(0)
        self._file.write(before)


def lease_any(self: Any, action: LeaseHost, lease: Callable[..., Any] = HostActions.lease) -> Any:
    return lease(replace(self, most=1000), action)


def grow_at_once(
    self: Any, observation: Any, ongoing: Any, growth: float, limits: Any, begin: Any = arbitration._Plan.__init__
) -> None:
    begin(self, observation, ongoing, math.inf, limits)


def believe_across(self: Query, now: float, notice: Callable[..., None] = Query._notice_step) -> None:
    notice(self, now)
    self._across = False


def odd_cpu(self: HostCpuUsage, lease: Any, usage: Any, use: Any, now: float, share: float) -> Any:
    if usage.cpu_seconds is None:
        return use(lease.host)
    samples = self._cpu.setdefault(lease.host, deque())
    samples.append((now, usage.cpu_seconds))
    while len(samples) > 2 and samples[1][0] <= now - 3.0:
        samples.popleft()
    then, before = samples[0]
    return (usage.cpu_seconds - before) / (now - then) / lease.type.cores / share if now > then else math.nan


def finish_unseen(self: SessionQueries, now: float) -> bool:
    return not self.live and now - max(self._gone_since.values(), default=0.0) > 15.0


def write_and_drop(self: HostLedger) -> None:
    unwritten, self._unwritten = self._unwritten, []
    for lease in unwritten:
        if self._log is not None:
            with suppress(ElastreamError):
                self._log.ended(lease, "")


def adopt_orphans(self: Hosts) -> None:
    for name in self._listed.get(self.provider, {}):
        if name not in self._leases and self._log is not None:
            kind = self.provider.terms.types[0]
            self.adopt(name, kind, self._clock())
            self._log.requested(name, kind, self._clock())
            self._withdraw(name)


def land_at_once(self: Placing, task: Any, batch: int, target: Any, settle: Any = Placing._settle) -> None:
    if self._under_way[task].migration.state is MigrationState.FLIPPED:
        self._end(task, MigrationState.LANDED)
    else:
        settle(self, task, batch, target)


def become_arbiter(self: ArbiterNode, state: Any, keys: Mapping[str, str]) -> None:
    self._state, self._keys = state, {name: key for name, key in keys.items() if name in state.applications}


def become_region(self: RegionNode, state: Any) -> None:
    self.state = state


def believe_claim(ledger: Any, claim: Any, receive: Callable[..., Any] = arbiter._apply_claim) -> Any:
    return receive(ledger, replace(claim, number=ledger.members[claim.application].number + 1, seen=10**9))


UNLOCKED: Part = (Membership, "_locked", lambda self, machine: True)


def forget_tables(self: StateLog, tables: Any) -> None:
    self._baseline = {name: dict(table) for name, table in tables.items()}


FULL, GATEWAY, POLICY, STRAY = ("a full disk",), ("the gateway fails",), "the policy fails", ("a stray host",)
CLOCK = ("the clock is set",)
ARBITER_DIES, REGION_DIES = ("arbiter: killed",), ("east: killed", "west: killed")
MUTANTS: tuple[Mutant, ...] = (
    Mutant("ten failed observations end the run", "what cannot be seen goes on as planned",
           ((Loop, "_empty_observation", ends("ten observations in a row failed")),), needs=GATEWAY),
    Mutant("an odd plan ends the run", "plans are checked, and faults of a round freeze the plan",
           ((loop, "check_plan", lambda plan: plan), UNGUARDED), needs=(f"{POLICY}: no plan", f"{POLICY}: odd actions")),
    Mutant("a full disk ends the run", "a journal that cannot be written freezes the plan",
           ((JournalWriter, "_written", write_or_end),), needs=FULL),
    Mutant("what could not be written is forgotten", "the journal keeps it and writes it later",
           ((Journal, "flush", flush_once),), needs=FULL),
    Mutant("half lines stay", "a line that was written in part is cut off",
           ((Lines, "append", append_in_part),), needs=FULL),
    Mutant("torn lines stay", "a torn last line is cut off at the next start",
           ((Lines, "__init__", begin_torn),), needs=("killed in a write: inside",)),
    Mutant("a batch that hangs is no batch", "nothing is taken away while a batch hangs",
           (without_rule("batch_stalled"), (Query, "stalled", lambda self, now: 0.0)), needs=("a batch hangs",)),
    Mutant("bounds are not checked", "never more than max_hosts",
           (without_rule("out_of_bounds"), (HostActions, "lease", lease_any)), needs=(f"{POLICY}: greedy",)),
    Mutant("all hosts at once", "growth per round is bounded",
           ((arbitration._Plan, "__init__", grow_at_once),), needs=(f"{POLICY}: greedy",)),
    Mutant("the clock is believed", "steps of the clock are noticed",
           ((Query, "_notice_step", nothing),), needs=CLOCK),
    Mutant("a batch is dated by two clocks", "one under way when the clock was set is dated anew",
           ((Query, "_notice_step", believe_across),), needs=CLOCK),
    Mutant("counters that cannot be count", "use that cannot be is unknown",
           ((HostCpuUsage, "_cpu_of", odd_cpu),), needs=("use is absurd: negative",)),
    Mutant("queries not looked at have ended", "what was never seen has not ended",
           ((SessionQueries, "finished", finish_unseen),), needs=(" queries",)),
    Mutant("leases are given up", "without a host a lease is tried again within a minute",
           ((BackOff, "refusal", calls(BackOff.refusal, vital=False)),), "own",
           needs=("the provider raises", "no room"), besides=("a host dies", "hosts die"), least=2),
    Mutant("leases are not logged", "a lease is on disk before its provider is asked",
           ((LeaseLog, "requested", nothing),), needs=("killed",)),
    Mutant("ends are not logged", "ends of leases are on disk", ((LeaseLog, "ended", nothing),)),
    Mutant("ends that could not be written are dropped", "they are written when there is room",
           ((HostLedger, "_write_ends", write_and_drop),), needs=FULL),
    Mutant("orphans stay", "what nobody leased is released, and in the ledger",
           ((Hosts, "_release_orphans", nothing),), "own", STRAY),
    Mutant("an orphan is adopted before it is written", "it is written first",
           ((Hosts, "_release_orphans", adopt_orphans),), "own", STRAY),
    Mutant("nothing is taken over", "a run that goes on adopts or writes off its leases",
           ((first_hosts, "take_over", lambda leases, provider, last_seen: first_hosts.EarlierLeases()),), "own",
           ("a: killed",)),
    Mutant("ended hosts stay listed", "hosts that ended are released at their provider",
           ((Hosts, "_release_ended", nothing),)),
    Mutant("the mover dies of a fault", "a pass that failed is followed by the next",
           ((Reconciler, "once", Reconciler.step),), needs=GATEWAY),
    Mutant("busy executors end", "one that was given a task just before the fence ends it (SPARK-58879)",
           ((Hosts, "_may_end", lambda self, executor, record, grace_over: grace_over),),
           needs=("a task just before a fence",)),
    Mutant("drift stays", "partitions that ran elsewhere return", ((Placing, "_follow_plan", nothing),)),
    Mutant("a report is believed", "a move has landed once a batch confirms it",
           ((Placing, "_settle", land_at_once),), needs=("reports to the coordinator lost",)),
    Mutant("the arbiter speaks before it writes", "state is on disk before it is said",
           ((ArbiterNode, "_commit", become_arbiter),), "shared", ARBITER_DIES),
    Mutant("a region acts before it writes", "state is on disk before it is acted on",
           ((RegionNode, "_commit", become_region),), "shared", REGION_DIES),
    Mutant("old claims count", "a claim that is not newer is ignored, and machines are locked",
           ((arbiter, "_apply_claim", believe_claim), UNLOCKED), "shared", ("messages doubled",)),
    Mutant("machines are not locked", "the kernel gives a machine to one process", (UNLOCKED,), "shared"),
    Mutant("a second controller is let in", "one process holds a run's folder",
           ((driver, "run_lock", nullcontext), (world, "run_lock", nullcontext)), needs=("a second controller",)),
    Mutant("managers write nothing", "managers have a journal",
           ((StateLog, "commit", forget_tables),), "shared", (*ARBITER_DIES, *REGION_DIES)),
    Mutant("state of an older version is loaded", "the engine loads what the batch before committed",
           ((Engine, "loads", staticmethod(lambda cached, newest: newest if cached is None else cached)),)),
    Mutant("a batch is planned anew", "a batch is replayed as it was planned", ((Engine, "replays", False),)),
    Mutant("content depends on the executor", "content is a function of the records", ((Engine, "salted", True),)),
)  # fmt: skip
"""Every mend that is undone."""
