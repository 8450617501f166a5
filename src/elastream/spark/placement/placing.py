"""Locations of state partitions, and migration of those that are not on their planned host.

After each batch every task is checked; one elsewhere migrates (`elastream.core.migration`). Without a ring, an operator has
one of all usable hosts at even tokens.
"""

import logging
import math
import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import filterfalse

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from elastream.core.alarm import AlarmedThread, Alarms
from elastream.core.migration import Migration, MigrationState
from elastream.core.ring import Ring, in_zones
from elastream.core.task_id import TaskId
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.state_partitions import StatePartitions
from elastream.spark.placement.allocation import Allocation, AllocationStore, InMemoryPlan
from elastream.spark.telemetry.state_files import MoveLoad, move_load

log = logging.getLogger(__name__)

PRELOAD_THREADS = 4


@dataclass(frozen=True, slots=True, eq=False)
class StatePreload:
    """States of an operator that one job loads. `keep`: batches still run at the old place."""

    operator: str
    keep: bool
    places: dict[TaskId, Location]


class PreloadThreads:
    """Runs `load` for queued preloads, in a few threads. A thread that dies raises an alarm."""

    def __init__(self, load: Callable[[StatePreload], None], alarms: Alarms) -> None:
        self._load, self._alarms = load, alarms
        self._waiting: queue.SimpleQueue[StatePreload | None] = queue.SimpleQueue()
        self._threads: list[AlarmedThread] = []

    def put(self, load: StatePreload) -> None:
        self._waiting.put(load)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) < PRELOAD_THREADS:
            thread = AlarmedThread(self._alarms, f"load-state-{len(self._threads)}", self._work)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Start no further preload. Running ones are not awaited: without their executor they may never end."""
        for _ in self._threads:
            self._waiting.put(None)

    def _work(self) -> None:
        while (load := self._waiting.get()) is not None:
            try:
                self._load(load)
            except (Py4JError, PySparkException, OSError):
                # A query or session that ends meanwhile raises; the migration continues without the load.
                log.warning("state of %r was not loaded ahead of its move", load.operator, exc_info=True)


# Reports to Spark; one or two are normal.
STRAYS_AFTER, MAX_REPORTS = 3, 20
ENDED_MIGRATIONS = 5_000
# A restarted query comes back within minutes.
PLAN_RETENTION_S = 3600.0
# Priority of migrations off a host that is taken away, above any load.
URGENT = 1e6
# Loading ahead, and a snapshot before, only save time; the migration continues without.
MAX_PRELOADS = MAX_SNAPSHOTS = 3

# Maps a host to its executor; None if it has none, or is not usable.
Target = Callable[[str], Location | None]


@dataclass(frozen=True, slots=True)
class MigrationLimits:
    # Migrations to one host, hence per batch; None: no limit. One with a standby replica there does not count.
    per_host: int | None = 1
    lazy: bool = True  # load state ahead of the move, if no batch waits for it


@dataclass
class _ActiveMigration:
    migration: Migration
    place: Location | None = None
    due: int = 0
    loads: int = 0
    snapshots: int = 0
    load: StatePreload | None = None
    loaded: bool = False
    keep: bool = False


class Placing:
    """State partitions of operators, as tasks. Thread-safe. `moves` counts all migrations that ever landed."""

    def __init__(
        self,
        states: Mapping[str, StatePartitions],
        clock: Callable[[], float],
        plan: AllocationStore | InMemoryPlan,
        *,
        limits: MigrationLimits | None = None,
        benefit: Callable[[TaskId], float] = lambda task: 0.0,
        alarms: Alarms | None = None,
    ) -> None:
        """Create without locations. `benefit` is the priority of a task's migration, higher first."""
        # The attached partitions by operator, one object a run of its query: immutable, to be read without the lock.
        self.states: Mapping[str, StatePartitions] = dict(states)
        self._ended_at = dict.fromkeys({task.operator for task in plan.latest.hosts}, clock())
        self._clock, self.plan, self.limits, self.benefit = clock, plan, limits or MigrationLimits(), benefit
        self.may_wait: Callable[[TaskId], bool] = lambda task: True  # for a snapshot
        self.replica_hosts: Callable[[], Mapping[TaskId, Collection[str]]] = dict
        self._lock = threading.RLock()
        self._where: dict[TaskId, Location] = {}
        self._under_way: dict[TaskId, _ActiveMigration] = {}
        self._landed_on: dict[TaskId, str] = {}
        self._stateless: dict[str, Sequence[str]] = {}
        self._cold: set[str] = set()
        self._as_of: dict[str, int] = {}
        self._followed: object = None
        self._loaders = PreloadThreads(self._load, alarms or Alarms(clock))
        self.landed: list[Migration] = []
        self.dropped: list[Migration] = []
        self.moves = self.drifted = 0

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(TaskId(name, index) for name, count in self.partitions.items() for index in range(count))

    @property
    def partitions(self) -> Mapping[str, int]:
        return {name: state.partitions for name, state in self.states.items()}

    def where(self) -> Mapping[TaskId, Location]:
        with self._lock:
            return dict(self._where)

    def stateless(self) -> Mapping[TaskId, str]:
        """Return the executor on which each task without state ran last."""
        with self._lock:
            rows = list(self._stateless.items())
        return {TaskId(name, index): each for name, executors in rows for index, each in enumerate(executors)}

    def targets(self) -> Mapping[TaskId, str]:
        with self._lock:
            return {task: each.migration.host for task, each in self._under_way.items()}

    def strays(self) -> frozenset[TaskId]:
        """Return tasks that Spark knows to belong elsewhere and still runs where they were.

        It does so while the executor with their state is busy for over `spark.locality.wait`.
        """
        with self._lock:
            return frozenset(task for task, each in self._under_way.items() if self._strays(each.migration))

    def migrations(self) -> tuple[Migration, ...]:
        with self._lock:
            return tuple(each.migration for each in self._under_way.values())

    def attach(self, name: str, states: StatePartitions) -> None:
        """Add the state partitions of an operator, or replace those of a restarted query."""
        with self._lock:
            self.states = {**self.states, name: states}
            self._ended_at.pop(name, None)

    def detach(self, name: str) -> None:
        """Remove an operator whose query has ended; its planned hosts stay a while."""
        with self._lock:
            self.states = {operator: states for operator, states in self.states.items() if operator != name}
            self._ended_at[name] = self._clock()
            for task in [task for task in self._under_way if task.operator == name]:
                self._end(task, MigrationState.DROPPED)
            self._where = {task: at for task, at in self._where.items() if task.operator != name}
            self._landed_on = {task: host for task, host in self._landed_on.items() if task.operator != name}
            self._stateless.pop(name, None)
            self._as_of.pop(name, None)
            self._cold.discard(name)

    def move(self, task: TaskId, host: str, why: str = "") -> None:
        """Plan `host` for `task` from the next batch on, in place of an earlier request."""
        self.move_all({task: host}, why)

    def move_load(self, task: TaskId, host: str = "") -> MoveLoad:
        """Return what a move of `task` loads: nothing on a `host` with a standby replica."""
        states = self.states.get(task.operator)
        if states is None:
            return MoveLoad()
        return (
            MoveLoad(0.0) if host and host in self.replica_hosts().get(task, ()) else move_load(states.saved(), task.index)
        )

    def pin(self, hosts: Mapping[TaskId, str], why: str = "") -> None:
        self.plan.publish(hosts, at=self._clock(), why=why)

    def move_all(self, hosts: Mapping[TaskId, str], why: str = "", *, there: Collection[TaskId] = ()) -> None:
        """Plan hosts for several tasks, as one version of the plan. Those in `there` are in place already."""
        self.plan.publish(hosts, at=self._clock(), why=why)
        with self._lock:
            for task, host in hosts.items():
                if task not in there:
                    self._request(task, host, why)

    def refresh(self) -> Allocation:
        """Read the newest plan, also of other processes; drop hosts of operators that ended long ago."""
        with self._lock:
            gone = {name for name, since in self._ended_at.items() if self._clock() - since > PLAN_RETENTION_S}
            self._ended_at = {name: since for name, since in self._ended_at.items() if name not in gone}
        if stale := [task for task in self.plan.latest.hosts if task.operator in gone]:
            self.plan.publish(dict.fromkeys(stale), at=self._clock(), why="their queries have ended")
        return self.plan.refresh()

    def look(self, operators: Iterable[str] | None = None) -> None:
        """Read the locations of the tasks of `operators` (default: all)."""
        for name in list(self.states) if operators is None else operators:
            if (states := self.states.get(name)) is not None:
                locations = {TaskId(name, index): location for index, location in states.where().items()}
                with self._lock:
                    self._where |= locations

    def ran(self, operator: str, batch: int, executors: Sequence[str]) -> None:
        """Record the executor of each task of a batch, unless a `look` is newer."""
        with self._lock:
            if operator in self.states and batch > self._as_of.get(operator, -1):
                self._as_of[operator] = batch
                self._where |= {TaskId(operator, index): Location("", each) for index, each in enumerate(executors)}

    def ran_without_state(self, operator: str, executors: Sequence[str]) -> None:
        """Record the executors of an operator's tasks without state; none if they cannot be placed."""
        with self._lock:
            self._stateless[operator] = executors
            self._ended_at.pop(operator, None)

    def relocate(self, places: Mapping[TaskId, Location]) -> None:
        """Record where tasks are from now on, whatever batches report."""
        with self._lock:
            self._where |= {task: at for task, at in places.items() if task.operator in self.states}

    def follow(self, target: Target) -> None:
        """Start a migration of each misplaced task, if the plan or a report of `ran` is new."""
        with self._lock:
            state = (self.plan.latest.version, dict(self._as_of))
            if self.plan.latest.hosts and state != self._followed:
                self._follow_plan(self.states, target)
            self._followed = state

    def batch_ended(self, operators: Collection[str], batch: int, target: Target) -> None:
        """Process the end of batch `batch` of the query of `operators`: read locations, and advance migrations."""
        self.look(operators)
        with self._lock:
            self._as_of |= {name: batch for name in operators if name in self.states}
            for task in [task for task in self._under_way if task.operator in operators]:
                self._settle(task, batch, target)
            self._follow_plan(operators, target)
            self._start_migrations(target, operators)
            for each in list(self._under_way.values()):
                if each.migration.task.operator in operators and each.place is not None and not self._waits(each):
                    self._flip(each)

    def close(self) -> None:
        self._loaders.close()

    # -- steps, under the lock -----------------------------------------------------------------------------------------

    def _strays(self, migration: Migration) -> bool:
        back = self._landed_on.get(migration.task) == migration.host
        return migration.flips >= (1 if back else STRAYS_AFTER)

    def _request(self, task: TaskId, host: str, why: str) -> None:
        if (running := self._under_way.get(task)) is not None:
            if running.migration.host == host:
                return
            self._end(task, MigrationState.DROPPED)
        self._under_way[task] = _ActiveMigration(Migration(task, host, self._clock(), why))

    def _settle(self, task: TaskId, batch: int, target: Target) -> None:
        each = self._under_way[task]
        state, place = each.migration.state, target(each.migration.host)
        if place is None:
            self._end(task, MigrationState.DROPPED)
            return
        if each.place is not None and each.place != place and state is not MigrationState.WANTED:
            self._restart(each)
            return
        there = self._where.get(task) == place
        if state is MigrationState.FLIPPED:
            self._settle_reported(each, there, batch, place)
        elif there and each.load is None:
            self._end(task, MigrationState.LANDED)
        elif state is MigrationState.WARMING and each.load is None:
            if each.loaded:
                self._step(each, MigrationState.WARM)
            else:
                self._restart(each)

    def _settle_reported(self, each: _ActiveMigration, there: bool, batch: int, place: Location) -> None:
        task = each.migration.task
        if not there and each.migration.flips >= MAX_REPORTS:
            # Spark or another program moves the task back each time: give up.
            self.plan.publish({task: None}, at=self._clock(), why=f"abandoned after {MAX_REPORTS} attempts")
            self._end(task, MigrationState.DROPPED)
        elif not there:
            self._restart(each)
            if each.keep and each.loaded and batch < each.due and place not in self._where.values():
                each.place = place  # a batch planned before overwrote the report; the state is still loaded there
        elif batch >= each.due:
            # The coordinator returns the reported location; only a batch planned since confirms it.
            self._end(task, MigrationState.LANDED)

    def _follow_plan(self, operators: Collection[str], target: Target) -> None:
        for task, host in self.plan.latest.hosts.items():
            if task.operator not in operators or task not in self._where:
                continue
            running, place = self._under_way.get(task), target(host)
            if running is None and place is not None and self._where[task] != place:
                drifted = self._landed_on.get(task) == host
                self.drifted += drifted
                self._request(task, host, "Spark ran it elsewhere" if drifted else self.plan.latest.why)
            elif running is not None and running.migration.host != host:
                self._request(task, host, self.plan.latest.why)

    def _start_migrations(self, target: Target, ended: Collection[str]) -> None:
        active = [each for each in self._under_way.values() if each.migration.state is not MigrationState.FLIPPED]
        count = Counter(each.migration.host for each in active if each.place is not None)
        waiting = [each for each in self._under_way.values() if each.place is None]
        # State is loaded ahead only if no batch waits for it: by an executor without tasks, or between batches. During a
        # batch, a load on a participating executor would delay the batch.
        occupied, most = set(self._where.values()), math.inf if self.limits.per_host is None else self.limits.per_host
        hosts = {each.migration.host for each in waiting if self.limits.lazy}
        fresh = {host for host in hosts if target(host) not in occupied}
        copied = self.replica_hosts() if waiting else {}
        loads: dict[tuple[str, bool], StatePreload] = {}
        looked: Counter[str] = Counter()  # migrations that move now, and as many again that request a snapshot

        def order(each: _ActiveMigration) -> tuple[bool, float, float, TaskId]:
            move, benefit = each.migration, self.benefit(each.migration.task)
            # A stray may come back each time: it holds up no other, except before a deadline.
            return self._strays(move) and benefit < URGENT, -benefit, move.since, move.task

        for each in sorted(waiting, key=order):
            host = each.migration.host
            place, task, keep = target(host), each.migration.task, host in fresh
            if place is not None and host in copied.get(task, ()):
                each.place, each.keep = place, keep
                each.migration = replace(each.migration, megabytes=0.0)
                continue
            if place is None or (not keep and looked[host] >= 2 * most):
                continue
            looked[host] += 1
            size, preloads = self.move_load(task), self._preloads(each, keep)
            if not preloads and size.worth_a_snapshot and self._snapshot_comes(each, ended):
                continue
            if not keep and count[host] >= most:
                continue
            count[host] += 1
            each.place = place
            each.migration = replace(each.migration, megabytes=size.megabytes)
            if preloads:
                # One job loads all states selected now: a job costs the driver more than loading a small state.
                each.load = loads.setdefault((task.operator, keep), StatePreload(task.operator, keep, {}))
                each.load.places[task] = place
                each.loads, each.loaded, each.keep = each.loads + 1, False, keep
                self._step(each, MigrationState.WARMING)
        for load in loads.values():
            self._loaders.put(load)

    def _preloads(self, each: _ActiveMigration, keep: bool) -> bool:
        task = each.migration.task
        possible = self.limits.lazy and task in self._where and task.operator not in self._cold
        return possible and each.loads < MAX_PRELOADS and (keep or self.states[task.operator].idle())

    def _snapshot_comes(self, each: _ActiveMigration, ended: Collection[str]) -> bool:
        # Asks when the task's batch ends, a few times; returns False if none will come in time.
        task = each.migration.task
        if each.snapshots >= MAX_SNAPSHOTS or not self.may_wait(task):
            return False
        if task.operator not in ended:
            return True
        each.snapshots += 1
        try:
            return self.states[task.operator].snapshot(task.index)
        except Py4JError:
            log.info("no snapshot of %s before its move", task, exc_info=True)
            return False

    def _waits(self, each: _ActiveMigration) -> bool:
        # While an executor without tasks loads: its first task would unload the rest.
        neighbours = (other for other in self._under_way.values() if other.migration.host == each.migration.host)
        return each.load is not None or (each.keep and any(other.load for other in neighbours))

    def _flip(self, each: _ActiveMigration) -> None:
        if each.migration.state in (MigrationState.WANTED, MigrationState.WARM):
            assert each.place is not None
            states, task = self.states[each.migration.task.operator], each.migration.task
            states.move(task.index, each.place)
            # An already planned batch may have chosen its executors before the report.
            each.due = states.planned() + 1
            self._step(each, MigrationState.FLIPPED)

    def _load(self, load: StatePreload) -> None:
        loaded: Collection[int] | None = ()
        try:
            places = {task.index: place for task, place in load.places.items()}
            if (states := self.states.get(load.operator)) is None:
                return  # its query has ended meanwhile
            loaded = states.load(places, keep=load.keep)
        finally:
            with self._lock:
                if loaded is None:
                    self._cold.add(load.operator)
                for task in load.places:
                    each = self._under_way.get(task)
                    if each is not None and each.load is load:
                        each.load, each.loaded = None, task.index in (loaded or ())
                self._flip_loaded(set(load.places.values()))

    def _flip_loaded(self, places: Collection[Location]) -> None:
        for each in self._under_way.values():
            if each.place in places and not self._waits(each):
                if each.loaded and each.migration.state is MigrationState.WARMING:
                    self._step(each, MigrationState.WARM)
                self._flip(each)

    def _restart(self, each: _ActiveMigration) -> None:
        self._step(each, MigrationState.WANTED)
        each.place = each.load = None

    def _step(self, each: _ActiveMigration, state: MigrationState) -> None:
        each.migration = each.migration.to(state, self._clock())

    def _end(self, task: TaskId, state: MigrationState) -> None:
        ended = self._under_way.pop(task).migration.to(state, self._clock())
        if state is MigrationState.LANDED:
            self._landed_on[task] = ended.host
            self.moves += 1
            size = "state" if ended.megabytes != ended.megabytes else f"{ended.megabytes:.3g} MB of state"
            log.info("%s moved to %s with %s, in %.1f s", task, ended.host, size, ended.history[-1][0] - ended.since)
        ends = self.landed if state is MigrationState.LANDED else self.dropped
        ends.append(ended)
        if len(ends) >= 2 * ENDED_MIGRATIONS:
            del ends[:-ENDED_MIGRATIONS]


class Rings:
    """Rings by operator. Thread-safe."""

    def __init__(self, placing: Placing, usable: Callable[[], Sequence[str]], zone: Callable[[str], str]) -> None:
        """Create without rings. `usable` returns the hosts that take tasks, `zone` a host's fault zone."""
        self._placing, self._usable, self._zone = placing, usable, zone
        self._lock = threading.Lock()
        self._rings: Mapping[str, Ring] = {}
        self._even_of: tuple[Mapping[str, str], Ring | None] = {}, None

    @property
    def active(self) -> Mapping[str, Ring]:
        running = self._placing.partitions
        return {name: ring for name, ring in self._rings.items() if name in running}

    def of(self, operator: str) -> Ring | None:
        """Return the ring that was set for `operator`, else the implicit one; None without any host."""
        ring = self._rings.get(operator)
        return self._even() if ring is None else ring

    def successors(self, task: TaskId, at: str) -> Sequence[str]:
        """Return the hosts to take `task` over if its host `at` is lost: clockwise neighbours, nearest first.

        For a host off the ring, the task's owner comes first.
        """
        ring = self.of(task.operator)
        if ring is None or at in ring:
            return () if ring is None else ring.successors(at, len(ring))
        owner = ring.owner(task.index / self._placing.partitions[task.operator])
        return (owner, *ring.successors(owner, len(ring)))

    def even_order(self) -> Sequence[str]:
        ring = self._even()
        return () if ring is None else ring.nodes

    def _even(self) -> Ring | None:
        zones = {host: self._zone(host) for host in self._usable()}
        before, ring = self._even_of
        if list(zones.items()) != list(before.items()):
            ring = Ring.even(in_zones(zones)) if zones else None
            self._even_of = zones, ring
        return ring

    def owner(self, task: TaskId) -> str | None:
        """Return the owner of `task` by the ring that was set for its operator; None without one."""
        ring, count = self._rings.get(task.operator), self._placing.partitions.get(task.operator)
        return None if ring is None or count is None else ring.owner(task.index / count)

    def follow(self, operator: str, ring: Ring, last_hosts: Mapping[TaskId, str], why: str) -> int:
        """Place the partitions of `operator` by `ring`, as one version of the plan. Return how many move."""
        with self._lock:
            self._rings = {**self._rings, operator: ring}
        hosts = ring.hosts_of(self._placing.partitions[operator])
        placement = {TaskId(operator, index): host for index, host in enumerate(hosts)}
        targets = self._placing.targets()
        there = {task for task, host in placement.items() if targets.get(task, last_hosts.get(task)) == host}
        self._placing.move_all(placement, why, there=there)
        return len(placement) - len(there)

    def forget(self, operator: str) -> None:
        with self._lock:
            self._rings = {name: ring for name, ring in self._rings.items() if name != operator}

    def leave(self, host: str) -> None:
        """Take `host` off all rings; its clockwise neighbour owns its keys."""
        self._reduce(lambda node: node != host)

    def retain(self, present: Collection[str]) -> Mapping[TaskId, str]:
        """Take all hosts but `present` off every ring; return the new host of each orphaned partition."""
        before = self._rings
        self._reduce(lambda node: node in present)
        orphaned: dict[TaskId, str] = {}
        for operator, ring in self._rings.items():
            count = self._placing.partitions.get(operator)
            if ring is before.get(operator) or count is None:
                continue
            pairs = zip(before[operator].hosts_of(count), ring.hosts_of(count), strict=True)
            orphaned |= {TaskId(operator, index): new for index, (old, new) in enumerate(pairs) if old not in present}
        return orphaned

    def _reduce(self, stays: Callable[[str], bool]) -> None:
        with self._lock:
            rings = {name: ring for name, ring in self._rings.items() if any(map(stays, ring.nodes))}
            self._rings = {name: reduce(Ring.without, filterfalse(stays, ring.nodes), ring) for name, ring in rings.items()}
