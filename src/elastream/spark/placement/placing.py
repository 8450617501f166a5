"""Tracks the locations of state partitions and migrates those that are not on their planned host.

The plan is an `AllocationStore`, which outlives the driver; a planned host holds until changed. After each batch every
task is checked: if it is not on its planned host, because the plan changed or Spark ran it elsewhere, it is migrated
(`elastream.core.migration` defines the states). This module does not depend on a dataflow: callers name the tasks, and
`target` maps hosts to executors.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from elastream.core.alarm import Alarms
from elastream.core.migration import Migration, MigrationState
from elastream.core.task_id import TaskId
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.state_partitions import StatePartitions
from elastream.spark.placement.allocation import Allocation, AllocationStore, VolatilePlan
from elastream.spark.placement.loading import Load, Loaders

ATTEMPTS = 20
"""Most reports to Spark of a migration before it is abandoned; one or two are normal."""
KEPT = 5_000
"""Migrations that have ended, of which each is kept."""
FORGOTTEN = 3600.0
"""Seconds for which the plan of a query that has ended is kept: one that is started again comes within minutes."""
LOADS = 3
"""Most attempts to load a state ahead; then the migration continues without, because loading ahead only saves time."""

Target = Callable[[str], Location | None]
"""Maps a host to its executor; None if it has none, or is not usable."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of concurrent migrations; None: unlimited.

    per_host: to one host, and thereby per batch: loading a partition takes time from the batch that needs it. One of which
    the host holds a copy loads nothing, and does not wait for its turn. lazy: whether the new executor loads the state
    before the new location is reported, if no batch waits for it.
    """

    per_host: int | None = 1
    lazy: bool = True


@dataclass
class _UnderWay:
    """A migration with its target executor and the batch that will confirm it.

    load: the running load. loaded: whether the last load succeeded.
    """

    migration: Migration
    place: Location | None = None
    due: int = 0
    loads: int = 0
    load: Load | None = None
    loaded: bool = False
    keep: bool = False


class Placing:
    """State partitions of operators, as tasks. Thread-safe.

    landed, dropped: the newest migrations that have ended; moves: how many ever landed. states: by operator name of the
    tasks; changed by `attach` and `detach`. clock: seconds, for histories. plan: stores requests. benefit: priority of a
    task's migration, any unit, higher first. copied: hosts that hold a copy of a task's state, nearly up to date, by task.
    alarms: raised by a loader that dies.
    """

    def __init__(
        self,
        states: Mapping[str, StatePartitions],
        clock: Callable[[], float],
        plan: AllocationStore | VolatilePlan,
        *,
        limits: Limits | None = None,
        benefit: Callable[[TaskId], float] = lambda task: 0.0,
        alarms: Alarms | None = None,
    ) -> None:
        self._states: Mapping[str, StatePartitions] = dict(states)  # replaced, never changed: read without the lock
        self._gone = dict.fromkeys({task.operator for task in plan.latest.hosts}, clock())
        self._clock = clock
        self.plan = plan
        self.limits = limits or Limits()
        self.benefit = benefit
        self.copied: Callable[[], Mapping[TaskId, Collection[str]]] = dict
        self._lock = threading.RLock()
        self._where: dict[TaskId, Location] = {}
        self._under_way: dict[TaskId, _UnderWay] = {}
        self._held: dict[TaskId, str] = {}
        self._cold: set[str] = set()
        self._as_of: dict[str, int] = {}
        self._followed: object = None
        self._loaders = Loaders(self._load, alarms or Alarms(clock))
        self.landed: list[Migration] = []
        self.dropped: list[Migration] = []
        self.moves = self.drifted = 0

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """All state partitions."""
        states = self._states
        return tuple(TaskId(name, index) for name, state in states.items() for index in range(state.partitions))

    @property
    def partitions(self) -> Mapping[str, int]:
        """State partitions by operator."""
        return {name: state.partitions for name, state in self._states.items()}

    @property
    def states(self) -> Mapping[str, StatePartitions]:
        """By operator, what is attached: one object a run of its query."""
        return self._states

    def where(self) -> Mapping[TaskId, Location]:
        """Last location of each task, from the last `look` or a later report of its batch."""
        with self._lock:
            return dict(self._where)

    def wanted(self) -> Mapping[TaskId, str]:
        """Target host of each running migration, by task."""
        with self._lock:
            return {task: each.migration.host for task, each in self._under_way.items()}

    def migrations(self) -> tuple[Migration, ...]:
        """The running migrations."""
        with self._lock:
            return tuple(each.migration for each in self._under_way.values())

    def attach(self, name: str, states: StatePartitions) -> None:
        """Add the state partitions of an operator, or replace those of a restarted query."""
        with self._lock:
            self._states = {**self._states, name: states}
            self._gone.pop(name, None)

    def detach(self, name: str) -> None:
        """Remove an operator whose query has ended; its entries in the plan stay for FORGOTTEN, should it come back."""
        with self._lock:
            self._states = {known: states for known, states in self._states.items() if known != name}
            self._gone[name] = self._clock()
            for task in [task for task in self._under_way if task.operator == name]:
                self._end(task, MigrationState.DROPPED)
            self._where = {task: at for task, at in self._where.items() if task.operator != name}
            self._held = {task: host for task, host in self._held.items() if task.operator != name}
            self._as_of.pop(name, None)
            self._cold.discard(name)

    def want(self, task: TaskId, host: str, why: str = "") -> None:
        """Plan `host` for `task` from the next batch on; replaces an earlier request."""
        self.want_all({task: host}, why)

    def keep(self, hosts: Mapping[TaskId, str], why: str = "") -> None:
        """Plan tasks where they are, as one version of the plan."""
        self.plan.publish(hosts, at=self._clock(), why=why)

    def want_all(self, hosts: Mapping[TaskId, str], why: str = "", *, there: Collection[TaskId] = ()) -> None:
        """`want` for several tasks, as one version of the plan. there: those that are where they are wanted already."""
        self.plan.publish(hosts, at=self._clock(), why=why)
        with self._lock:
            for task, host in hosts.items():
                if task not in there:
                    self._want(task, host, why)

    def adopt(self) -> Allocation:
        """Read the newest plan, also of other processes, once per period; changes take effect after the next batch.

        Entries of operators that have been gone for FORGOTTEN are dropped.
        """
        with self._lock:
            gone = {name for name, since in self._gone.items() if self._clock() - since > FORGOTTEN}
            self._gone = {name: since for name, since in self._gone.items() if name not in gone}
        if stale := [task for task in self.plan.latest.hosts if task.operator in gone]:
            self.plan.publish(dict.fromkeys(stale), at=self._clock(), why="their queries have ended")
        return self.plan.refresh()

    def look(self, operators: Iterable[str] | None = None) -> None:
        """Query the coordinator for the locations of the tasks of `operators`, by default of all."""
        for name in list(self._states) if operators is None else operators:
            if (states := self._states.get(name)) is not None:
                found = {TaskId(name, index): location for index, location in states.where().items()}
                with self._lock:
                    self._where |= found

    def ran(self, operator: str, batch: int, executors: Sequence[str]) -> None:
        """Register on which executor each task of a batch ran, unless a `look` is newer."""
        with self._lock:
            if operator in self._states and batch > self._as_of.get(operator, -1):
                self._as_of[operator] = batch
                self._where |= {TaskId(operator, index): Location("", each) for index, each in enumerate(executors)}

    def found(self, places: Mapping[TaskId, Location]) -> None:
        """Register where tasks are from now on, whatever batches reported."""
        with self._lock:
            self._where |= {task: at for task, at in places.items() if task.operator in self._states}

    def follow(self, target: Target) -> None:
        """Start a migration of each task that is not on its planned host, if the plan or a report of `ran` is new.

        Makes no call to Spark: it detects changes while no batch is followed.
        """
        with self._lock:
            seen = (self.plan.latest.version, dict(self._as_of))
            if self.plan.latest.hosts and seen != self._followed:
                self._follow_plan(self._states, target)
            self._followed = seen

    def batch_ended(self, operators: Collection[str], batch: int, target: Target) -> None:
        """Process the end of batch `batch` of the query of `operators`: read locations, and advance migrations.

        Locations reported by a running batch hold until its end: the coordinator is informed at the end of a batch, or by
        an executor that has started to load a partition since.
        """
        self.look(operators)
        with self._lock:
            self._as_of |= {name: batch for name in operators if name in self._states}
            for task in [task for task in self._under_way if task.operator in operators]:
                self._settle(task, batch, target)
            self._follow_plan(operators, target)
            self._begin(target)
            for each in list(self._under_way.values()):
                if each.migration.task.operator in operators and each.place is not None and not self._waits(each):
                    self._flip(each)

    def close(self) -> None:
        """Start no further load; a running one is not awaited."""
        self._loaders.close()

    # -- steps, under the lock -----------------------------------------------------------------------------------------

    def _want(self, task: TaskId, host: str, why: str) -> None:
        known = self._under_way.get(task)
        if known is not None:
            if known.migration.host == host:
                return
            self._end(task, MigrationState.DROPPED)
        self._under_way[task] = _UnderWay(Migration(task, host, self._clock(), why, self.benefit(task)))

    def _settle(self, task: TaskId, batch: int, target: Target) -> None:
        """Advance a migration after the end of a batch, or drop it if its target is not usable."""
        each = self._under_way[task]
        state, place = each.migration.state, target(each.migration.host)
        if place is None:
            self._end(task, MigrationState.DROPPED)
            return
        if each.place is not None and each.place != place and state is not MigrationState.WANTED:
            self._back(each)
            return
        there = self._where.get(task) == place
        if state is MigrationState.FLIPPED:
            if not there and each.migration.flips >= ATTEMPTS:
                # Spark or another program moves the task back each time: give up.
                self.plan.publish({task: None}, at=self._clock(), why=f"abandoned after {ATTEMPTS} attempts")
                self._end(task, MigrationState.DROPPED)
            elif not there:
                self._back(each)
                if each.keep and each.loaded and batch < each.due and place not in self._where.values():
                    each.place = place  # a batch planned before overwrote the report; the state is still loaded there
            elif batch >= each.due:
                # The coordinator returns the reported location; only a batch planned since confirms it.
                self._end(task, MigrationState.LANDED)
        elif there and each.load is None:
            self._end(task, MigrationState.LANDED)
        elif state is MigrationState.WARMING and each.load is None:
            if each.loaded:
                self._step(each, MigrationState.WARM)
            else:
                self._back(each)

    def _follow_plan(self, operators: Collection[str], target: Target) -> None:
        """Start a migration of each task that is not on its planned host."""
        for task, host in self.plan.latest.hosts.items():
            if task.operator not in operators or task not in self._where:
                continue
            known, place = self._under_way.get(task), target(host)
            if known is None and place is not None and self._where[task] != place:
                drifted = self._held.get(task) == host
                self.drifted += drifted
                self._want(task, host, "Spark ran it elsewhere" if drifted else self.plan.latest.why)
            elif known is not None and known.migration.host != host:
                self._want(task, host, self.plan.latest.why)

    def _begin(self, target: Target) -> None:
        """Start as many migrations as the limits allow, the greatest benefit first, then the oldest."""
        count: dict[str, int] = {}
        for each in self._under_way.values():
            if each.place is not None and each.migration.state is not MigrationState.FLIPPED:
                count[each.migration.host] = count.get(each.migration.host, 0) + 1
        waiting = [each for each in self._under_way.values() if each.place is None]
        # State is loaded ahead only if no batch waits for it: by an executor without tasks, or between batches. During a
        # batch, a load on a participating executor would delay the batch.
        held, most = set(self._where.values()), math.inf if self.limits.per_host is None else self.limits.per_host
        fresh = {each.migration.host for each in waiting if self.limits.lazy and target(each.migration.host) not in held}
        copied = self.copied() if waiting else {}
        loads: dict[tuple[str, bool], Load] = {}
        for each in sorted(waiting, key=lambda each: (-each.migration.benefit, each.migration.since, each.migration.task)):
            host = each.migration.host
            place, task, keep = target(host), each.migration.task, host in fresh
            if place is not None and host in copied.get(task, ()):
                each.place, each.keep = place, keep
                continue
            if place is None or (not keep and count.get(host, 0) >= most):
                continue
            count[host] = count.get(host, 0) + 1
            each.place = place
            known = task in self._where and task.operator not in self._cold
            if self.limits.lazy and known and each.loads < LOADS and (keep or self._states[task.operator].idle()):
                # One job loads all states selected now: a job costs the driver more than loading a small state.
                each.load = loads.setdefault((task.operator, keep), Load(task.operator, keep, {}))
                each.load.places[task] = place
                each.loads, each.loaded, each.keep = each.loads + 1, False, keep
                self._step(each, MigrationState.WARMING)
        for load in loads.values():
            self._loaders.put(load)

    def _waits(self, each: _UnderWay) -> bool:
        """Whether an executor without tasks still loads other states: its first task would make it unload the rest."""
        return each.load is not None or (
            each.keep
            and any(other.load for other in self._under_way.values() if other.migration.host == each.migration.host)
        )

    def _flip(self, each: _UnderWay) -> None:
        """Report the new location to the coordinator, if it is time."""
        if each.migration.state in (MigrationState.WANTED, MigrationState.WARM):
            assert each.place is not None
            states, task = self._states[each.migration.task.operator], each.migration.task
            states.move(task.index, each.place)
            # An already planned batch may have chosen its executors before the report.
            each.due = states.planned() + 1
            self._step(each, MigrationState.FLIPPED)

    def _load(self, load: Load) -> None:
        """Load states, in a loader's thread, and report locations if the new executor already runs other tasks."""
        loaded: Collection[int] | None = ()
        try:
            places = {task.index: place for task, place in load.places.items()}
            if (states := self._states.get(load.operator)) is None:
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
        """Report what has been loaded at `places`, in the middle of a batch: the next one is planned by it.

        An executor that runs tasks has reported that it holds the state, and would unload it again if that did not stand.
        One without tasks takes over all that it is given at once, with the last load.
        """
        for each in self._under_way.values():
            if each.place in places and not self._waits(each):
                if each.loaded and each.migration.state is MigrationState.WARMING:
                    self._step(each, MigrationState.WARM)
                self._flip(each)

    def _back(self, each: _UnderWay) -> None:
        self._step(each, MigrationState.WANTED)
        each.place = each.load = None

    def _step(self, each: _UnderWay, state: MigrationState) -> None:
        each.migration = each.migration.to(state, self._clock())

    def _end(self, task: TaskId, state: MigrationState) -> None:
        ended = self._under_way.pop(task).migration.to(state, self._clock())
        if state is MigrationState.LANDED:
            self._held[task] = ended.host
            self.moves += 1
        ends = self.landed if state is MigrationState.LANDED else self.dropped
        ends.append(ended)
        if len(ends) >= 2 * KEPT:
            del ends[:-KEPT]
