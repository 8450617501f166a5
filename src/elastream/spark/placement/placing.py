"""Where the state partitions of running queries are, where a plan wants them, and how they get there.

The plan is an `AllocationStore`, which outlives the driver; what it says of a task holds until it says otherwise. After a
batch every task is looked up: one that is not where the plan wants it is migrated (`elastream.model.migration` has the life
of a migration), be it that the plan has changed or that Spark ran it elsewhere. Nothing here knows a dataflow: tasks are
named by whoever made the `StatePartitions`, and hosts are whatever `target` turns into executors.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from elastream.model.action import TaskId
from elastream.model.alarms import Alarms
from elastream.model.migration import Migration, MigrationState
from elastream.spark.jvm.state_partitions import Location
from elastream.spark.placement.allocation import Allocation
from elastream.spark.placement.loading import Load, Loaders

__all__ = ["AllocationPlan", "Limits", "Placing", "States", "Target"]

ATTEMPTS = 20
"""Times a migration is told again before it is dropped; one or two are normal."""
LOADS = 3
"""Times a state is loaded ahead before the migration goes on without: loading ahead only saves time."""

Target = Callable[[str], Location | None]
"""The executor of a usable host; None where there is none, or the host is not usable."""


class States(Protocol):
    """The state partitions of one operator of one query; `StatePartitions` is one."""

    @property
    def partitions(self) -> int:
        """How many there are."""
        ...

    def where(self) -> Mapping[int, Location]:
        """Where each was last."""
        ...

    def move(self, partition: int, to: Location) -> None:
        """Let batches that are planned from now on run it at `to`."""
        ...

    def planned(self) -> int:
        """The newest batch that was planned; -1 before the first."""
        ...

    def idle(self) -> bool:
        """Whether no batch is under way that would wait for what is loaded meanwhile."""
        ...

    def load(self, places: Mapping[int, Location], *, keep: bool) -> Collection[int] | None:
        """Load states, each at its place, and keep them where they are if asked to; those it was done for, once it was.

        None where state of this kind cannot be loaded ahead.
        """
        ...


class AllocationPlan(Protocol):
    """Where tasks shall be; `AllocationStore` is one that lasts."""

    @property
    def latest(self) -> Allocation:
        """The newest version known here."""
        ...

    def refresh(self) -> Allocation:
        """The newest version."""
        ...

    def publish(self, hosts: Mapping[TaskId, str | None], *, at: float, why: str = "") -> Allocation:
        """A version that changes the hosts of some tasks."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How many migrations go on at a time.

    per_host: towards one host, between their turn and their flip, so that many a batch: loading a partition takes time from
    the batch that needs it, and many at once would make one batch long. in_all: towards all hosts. None: as many as there
    are.
    lazy: whether the new executor loads the state before the plan flips, where no batch waits for that.
    """

    per_host: int | None = 1
    in_all: int | None = None
    lazy: bool = True


@dataclass
class _UnderWay:
    """A migration with what it needs to be stepped along: the executor it goes to, and the batch that will show it.

    load: the one under way. loaded: whether the last one succeeded.
    """

    migration: Migration
    place: Location | None = None
    due: int = 0
    loads: int = 0
    load: Load | None = None
    loaded: bool = False
    keep: bool = False


class Placing:
    """State partitions of some operators, by task. Thread-safe.

    states: by the name that tasks have as their operator; may be changed by `attach` and `detach`. clock: seconds, for
    histories. plan: where wishes are kept. benefit: what a migration of a task is good for, any unit; the most goes first.
    alarms: sounded by a loader that dies.
    """

    def __init__(
        self,
        states: Mapping[str, States],
        clock: Callable[[], float],
        plan: AllocationPlan,
        *,
        limits: Limits | None = None,
        benefit: Callable[[TaskId], float] = lambda task: 0.0,
        alarms: Alarms | None = None,
    ) -> None:
        self._states = dict(states)
        self._clock = clock
        self._plan = plan
        self.limits = limits or Limits()
        self.benefit = benefit
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
        self.drifted = 0

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """Every state partition there is."""
        return tuple(TaskId(name, index) for name, state in self._states.items() for index in range(state.partitions))

    @property
    def plan(self) -> AllocationPlan:
        """Where wishes are kept."""
        return self._plan

    def where(self) -> Mapping[TaskId, Location]:
        """Where each task ran last, as of the last `look`, or as its own batch reported since."""
        with self._lock:
            return dict(self._where)

    def wanted(self) -> Mapping[TaskId, str]:
        """Migrations under way: host by task."""
        with self._lock:
            return {task: each.migration.host for task, each in self._under_way.items()}

    def migrations(self) -> tuple[Migration, ...]:
        """Migrations under way, as they stand."""
        with self._lock:
            return tuple(each.migration for each in self._under_way.values())

    def attach(self, name: str, states: States) -> None:
        """Take in the state partitions of one operator more, or those of an operator whose query was started anew."""
        with self._lock:
            self._states[name] = states

    def detach(self, name: str) -> None:
        """Forget an operator whose query is gone; what the plan says of it stays."""
        with self._lock:
            self._states.pop(name, None)
            for task in [task for task in self._under_way if task.operator == name]:
                self._end(task, MigrationState.DROPPED)
            self._where = {task: at for task, at in self._where.items() if task.operator != name}
            self._as_of.pop(name, None)

    def want(self, task: TaskId, host: str, why: str = "") -> None:
        """Let `task` run on `host` from the next batch on, and for good; replaces an earlier wish for another host."""
        self.want_all({task: host}, why)

    def keep(self, task: TaskId, host: str, why: str = "") -> None:
        """Let `task` stay on `host`, where it is."""
        self._plan.publish({task: host}, at=self._clock(), why=why)

    def want_all(self, hosts: Mapping[TaskId, str], why: str = "") -> None:
        """The same for many tasks, as one version of the plan."""
        self._plan.publish(hosts, at=self._clock(), why=why)
        with self._lock:
            for task, host in hosts.items():
                self._want(task, host, why)

    def adopt(self) -> Allocation:
        """Read the newest plan, whoever wrote it: once a period. What it changes begins with the end of the next batch."""
        return self._plan.refresh()

    def look(self, operators: Iterable[str] | None = None) -> None:
        """Ask the coordinator where the tasks of `operators`, by default of all, are."""
        for name in list(self._states) if operators is None else operators:
            if (states := self._states.get(name)) is not None:
                found = {TaskId(name, index): location for index, location in states.where().items()}
                with self._lock:
                    self._where |= found

    def ran(self, operator: str, batch: int, executors: Sequence[str]) -> None:
        """Take the report of the tasks of a batch on which executor each ran, unless a `look` is newer."""
        with self._lock:
            if operator in self._states and batch > self._as_of.get(operator, -1):
                self._as_of[operator] = batch
                self._where |= {TaskId(operator, index): Location("", each) for index, each in enumerate(executors)}

    def follow(self, target: Target) -> None:
        """Begin a migration of each task that the plan has elsewhere, where the plan or a report of `ran` is new.

        Asks nobody anything: this is how a change is noticed while no batch is followed.
        """
        with self._lock:
            seen = (self._plan.latest.version, dict(self._as_of))
            if self._plan.latest.hosts and seen != self._followed:
                self._follow_plan(self._states, target)
            self._followed = seen

    def batch_ended(self, operators: Collection[str], batch: int, target: Target) -> None:
        """Batch `batch` of the query of `operators` has ended: see where it ran their tasks, and take migrations along.

        What a batch under way reports stands till its end: the coordinator is told at the end of a batch, or by the
        executor that has begun to load a partition since.
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
        """Begin no further load; one under way is not waited for."""
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
        """Take a migration where the batch that has ended, or its target, sends it."""
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
                # Something sends it back each time: to insist would be to fight.
                self._plan.publish({task: None}, at=self._clock(), why=f"told {ATTEMPTS} times in vain")
                self._end(task, MigrationState.DROPPED)
            elif not there:
                self._back(each)
            elif batch >= each.due:
                # The coordinator repeats what it was told; a batch planned since then makes it true.
                self._end(task, MigrationState.LANDED)
        elif there and each.load is None:
            self._end(task, MigrationState.LANDED)
        elif state is MigrationState.WARMING and each.load is None:
            if each.loaded:
                self._step(each, MigrationState.WARM)
            else:
                self._back(each)

    def _follow_plan(self, operators: Collection[str], target: Target) -> None:
        """Begin a migration of each task that is not where the plan has it."""
        for task, host in self._plan.latest.hosts.items():
            if task.operator not in operators or task not in self._where:
                continue
            known, place = self._under_way.get(task), target(host)
            if known is None and place is not None and self._where[task] != place:
                drifted = self._held.get(task) == host
                self.drifted += drifted
                self._want(task, host, "Spark ran it elsewhere" if drifted else self._plan.latest.why)
            elif known is not None and known.migration.host != host:
                self._want(task, host, self._plan.latest.why)

    def _begin(self, target: Target) -> None:
        """Give their turn to as many migrations as the limits allow, the greatest benefit first, then the oldest."""
        count: dict[str, int] = {}
        for each in self._under_way.values():
            if each.place is not None and each.migration.state is not MigrationState.FLIPPED:
                count[each.migration.host] = count.get(each.migration.host, 0) + 1
        waiting = [each for each in self._under_way.values() if each.place is None]
        # State is loaded ahead where no batch waits for it: by an executor that runs no task yet, or between batches. While
        # one runs, an executor that has a part in it would load in its time, and by a job of its own at that.
        held = set(self._where.values())
        fresh = {each.migration.host for each in waiting if self.limits.lazy and target(each.migration.host) not in held}
        loads: dict[tuple[str, bool], Load] = {}
        for each in sorted(waiting, key=lambda each: (-each.migration.benefit, each.migration.since, each.migration.task)):
            host = each.migration.host
            if _reached(sum(count.values()), self.limits.in_all):
                break
            place = target(host)
            if place is None or (host not in fresh and _reached(count.get(host, 0), self.limits.per_host)):
                continue
            count[host] = count.get(host, 0) + 1
            each.place = place
            task, keep = each.migration.task, host in fresh
            known = task in self._where and task.operator not in self._cold
            if self.limits.lazy and known and each.loads < LOADS and (keep or self._states[task.operator].idle()):
                # One job loads all that have their turn now: a job costs the driver more than loading a small state does.
                each.load = loads.setdefault((task.operator, keep), Load(task.operator, keep, {}))
                each.load.places[task] = place
                each.loads, each.loaded, each.keep = each.loads + 1, False, keep
                self._step(each, MigrationState.WARMING)
        for load in loads.values():
            self._loaders.put(load)

    def _waits(self, each: _UnderWay) -> bool:
        """Whether an executor that runs no task yet still loads others: the first to run would have it unload the rest."""
        return each.load is not None or (
            each.keep
            and any(other.load for other in self._under_way.values() if other.migration.host == each.migration.host)
        )

    def _flip(self, each: _UnderWay) -> None:
        """Tell the coordinator, where it is time to."""
        if each.migration.state in (MigrationState.WANTED, MigrationState.WARM):
            assert each.place is not None
            states, task = self._states[each.migration.task.operator], each.migration.task
            states.move(task.index, each.place)
            # A batch that was planned already may have chosen its executors before it was told, or not.
            each.due = states.planned() + 1
            self._step(each, MigrationState.FLIPPED)

    def _load(self, load: Load) -> None:
        """In a thread of its own: load states, and flip where the new executor runs other tasks already."""
        loaded: Collection[int] | None = ()
        try:
            places = {task.index: place for task, place in load.places.items()}
            loaded = self._states[load.operator].load(places, keep=load.keep)
            if loaded is None:
                self._cold.add(load.operator)
        finally:
            with self._lock:
                for task in load.places:
                    each = self._under_way.get(task)
                    if each is not None and each.load is load:
                        each.load, each.loaded = None, task.index in (loaded or ())
                        if each.loaded and not load.keep:
                            # The executor has reported by itself that it holds it; to wait would let it unload it again.
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
            self.landed.append(ended)
        else:
            self.dropped.append(ended)


def _reached(count: int, limit: int | None) -> bool:
    return limit is not None and count >= limit
