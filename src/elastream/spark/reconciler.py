"""The one thread that acts by itself: it moves state partitions, steps hosts, and lets go what leaves.

An action takes time - a move lands with a batch, a host comes and goes in seconds - and `apply` returns at once: it notes
what is wanted, in `placing` and `hosts`, and wakes the reconciler, which sees to it. What the reconciler does, and when:

    a batch ended of a query with migrations under way    their life goes on (`Placing.batch_ended`), right after the end
    tasks report that they ran elsewhere than planned, or
    another process wrote the plan                        a migration begins (`Placing.follow`)
    a host drains or is released and holds tasks          they are wanted on the others, the heaviest first, or where their
                                                          ring says
    a host of a ring is lost                              what it had is wanted on its neighbour (`Rings.keep`)
    its owner recalls a host                              it is released; kept where nothing else could do its work
    an executor was lost                                  the driver has put its partitions elsewhere; `Succession.look`
    a second has passed                                   who keeps copies of what state is said anew (`WarmStandby.look`)
    a host registers, is warm, holds nothing, is gone     `Hosts.step` takes it to its next state
    a change of the composition waits until
    records under way are drained                         until they are, it looks (`CompiledQueries.settle`)
    a pass failed                                         its traceback is logged, and the next is made; FAULTS in a row, or
                                                          one of an unknown kind, sound an alarm
    the newest observation misses the service level       the provider learns it with the next step (`Hosts.critical`)

Any thread may call `held`, `ran`, `empty`, `wake` and `close`. `observe` runs in the loop's thread: it acts on nothing, and
leaves its `ObservedLoad`, an immutable value, for the reconciler to read. Once a plant has begun, only the reconciler calls
`Hosts.look`, `Hosts.critical`, `Hosts.step`, `Placing.batch_ended` and `Placing.follow`.

While nothing moves and no host comes or goes it polls once a second at most, and less often if that is costly: it
takes SHARE of a core. While something moves it waits for the ends of batches with one call to the driver a look.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from elastream.core.action import Outcome, ReleaseHost
from elastream.core.alarm import AlarmedThread, Alarms
from elastream.core.hosts import HostState
from elastream.core.task_id import TaskId
from elastream.errors import ElastreamError, in_one_line
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.jvm.driver_side import DriverSide, RunningQuery, running_queries
from elastream.spark.jvm.session import session_stopped
from elastream.spark.placement.placing import Placing
from elastream.spark.placement.ring import Rings
from elastream.spark.queries.compiled import CompiledQueries
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.standby import WarmStandby
from elastream.spark.succession import Succession

STEP, LONG_STEP, RECENTLY = 0.05, 1.0, 10.0
"""Seconds between two checks for the end of a batch, while tasks wait to be moved: the delay to notice such an end
(the T_W of N-Storm). The longer ones where no batch has ended for the last RECENTLY seconds."""
HOST_STEP, CALM = 0.25, 1.0
"""Seconds between two checks of the hosts, which cost a few calls each: while one changes state, and otherwise. The latter
is also the time between two reads of the plan, for what other processes wrote there (N-Storm's T_S)."""
SHARE = 0.01
"""Cores that polling may take while nothing moves: one fifth of the bar of Autopilot."""
NEXT_TO_NOTHING = 1e-9
"""Replaces the load of a task if unknown: such tasks are spread by their number."""
NEAR = 10
"""Committed batches that a copy may lack for a move to it to load next to nothing: Spark's own snapshots of state are as
many apart (spark.sql.streaming.stateStore.minDeltasForSnapshot), so that a task without a copy reads more."""
FAULTS = 5
"""Passes in a row that fail before an alarm sounds: a query that stops, or a host that goes, makes one or two fail."""
ENDING = 10.0
"""Seconds that `close` waits for the thread."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ObservedLoad:
    """The load in the newest observation.

    Attributes:
        weights: Busy cores by task. Of moves that wait for their turn, the heaviest task's goes first.
        capacities: Cores of speed 1 by host, measured where speeds are.
        critical: Whether the service level is missed.
    """

    weights: Mapping[TaskId, float] = field(default_factory=dict)
    capacities: Mapping[str, float] = field(default_factory=dict)
    critical: bool = False


class BatchBarrier:
    """`count`: rounds that have ended. In a round each query ends a batch, or is seen with none under way; at least one
    ends one. After two rounds no batch is under way that was when the first began.

    A host that is released must outlast the batches that were under way, whichever query they are of; one that is new works
    off a few. A query that gets no records has no batches, and holds nothing up.
    """

    def __init__(self) -> None:
        self.count = -1
        self._began: Mapping[str, int] = {}

    def look(self, ended: Mapping[str, int], idle: Collection[str]) -> None:
        """Take the newest ended batch by query, of all that run now, and those that have none under way."""
        further = {query for query, batch in ended.items() if batch > self._began.get(query, -1)}
        if further and all(query in further or query in idle for query in ended):
            self.count, self._began = self.count + 1, dict(ended)


class Reconciler:
    """Moves the state partitions of `queries` between `hosts`, by way of `placing` and as `rings` say; `start` it and
    `close` it.

    succession: where what a lost executor held goes; None: Spark says.
    """

    def __init__(
        self,
        spark: SparkSession,
        driver: DriverSide,
        queries: CompiledQueries | SessionQueries,
        hosts: Hosts,
        placing: Placing,
        rings: Rings,
        clock: Callable[[], float],
        alarms: Alarms,
        *,
        succession: Succession | None = None,
        standby: WarmStandby | None = None,
        load: Callable[[], "ObservedLoad"] = lambda: ObservedLoad(),
    ) -> None:
        self._spark, self._driver, self._succession, self._standby = spark, driver, succession, standby
        self._queries, self._hosts, self._placing, self._rings = queries, hosts, placing, rings
        self._clock, self._alarms, self._load = clock, alarms, load
        self._release: Callable[[ReleaseHost], Outcome]
        self._acts = False
        placing.benefit = self._load_of
        if standby is not None:
            placing.copied = partial(standby.copies, NEAR)
        self._ended: dict[str, int] = {}
        self._barrier = BatchBarrier()
        self._last_end = -RECENTLY
        self._next_look = 0.0
        self._faults = 0
        self._closing, self._woken = threading.Event(), threading.Event()
        self._thread = AlarmedThread(alarms, "elastream-reconciler", self._run)

    def start(self, release: Callable[[ReleaseHost], Outcome], *, acts: bool = True) -> None:
        """Begin. release: does that action. acts: whether anything is moved or stepped; hosts are looked at in any case."""
        self._release, self._acts = release, acts
        self._thread.start()

    def wake(self) -> None:
        """Look at once: something is wanted."""
        self._woken.set()

    def close(self) -> None:
        """Move and step nothing any more; returns when the thread has ended, or after ENDING seconds."""
        self._closing.set()
        self._woken.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(ENDING)
        if self._succession is not None:
            self._succession.close()
        if self._standby is not None:
            self._standby.close()
        self._placing.close()

    def ran(self) -> dict[TaskId, str]:
        """Host that each task ran on last, where both are known."""
        host_of = self._hosts.host_of()
        return {task: host_of[at.executor] for task, at in self._placing.where().items() if at.executor in host_of}

    def held(self) -> dict[TaskId, str]:
        """The same, with migrations under way counted as done."""
        return self.ran() | dict(self._placing.wanted())

    def empty(self, host: str) -> None:
        """Want everything on `host` elsewhere: what has a ring on its owner there; the rest, the heaviest first, always
        where it leaves the least load a core."""
        self._rings.leave(host)
        held, leases = self.held(), self._hosts.active
        others = [name for name in self._hosts.usable if name != host]
        leaving = sorted((t for t, where in held.items() if where == host), key=lambda t: (-self._load_of(t), t))
        if not others or not leaving:
            return
        capacities = self._load().capacities
        power = {name: capacities.get(name, leases[name].type.cores * leases[name].type.speed) for name in others}
        load = dict.fromkeys(others, 0.0)
        for task, where in held.items():
            if where in load:
                load[where] += self._load_of(task) or NEXT_TO_NOTHING
        wishes: dict[TaskId, str] = {}
        for task in leaving:
            weight = self._load_of(task) or NEXT_TO_NOTHING
            owner = self._rings.owner(task)
            emptiest = min(others, key=lambda name: ((load[name] + weight) / power[name], name))
            target = owner if owner is not None and owner in load else emptiest
            load[target] += weight
            wishes[task] = target
        self._placing.want_all(wishes, f"{self._hosts.describe(host)} is leaving")
        self.wake()

    def _load_of(self, task: TaskId) -> float:
        return self._load().weights.get(task, 0.0)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause: float | None = 0.0
        while pause is not None:
            self._woken.wait(pause)
            self._woken.clear()
            pause = None if self._closing.is_set() else self.once()

    def once(self) -> float | None:
        """One pass, its faults included; seconds until the next is due, None where nothing is left to move."""
        try:
            pause = self.step()
        except Exception as error:
            if self._closing.is_set() or session_stopped(self._spark):
                return None
            self._failed(error)
            return CALM
        self._faults = 0
        self._alarms.clear("moves")
        return pause

    def _failed(self, error: Exception) -> None:
        self._faults += 1
        log.log(logging.WARNING if self._faults == 1 else logging.DEBUG, "a pass of the reconciler failed", exc_info=error)
        # A query that has just stopped, or a host that has just gone, answers with an error: the next pass tells. Any other
        # kind of fault is one of a provider or of ours, and the next pass may be no better.
        passing = isinstance(error, Py4JError | PySparkException | ElastreamError | OSError)
        if self._faults >= FAULTS or not passing:
            said = f"state partitions and hosts are stuck: passes of the reconciler fail with {in_one_line(error)}"
            self._alarms.sound("moves", said, error)

    def step(self) -> float:
        """Do what there is to do; seconds until the next pass is due. Called by the thread, and by tests instead of it."""
        now, spent = self._clock(), self._driver.cpu_seconds()
        due = now >= self._next_look
        waiting = {task.operator for task in self._placing.wanted()}
        running = {each.id: each for each in running_queries(self._driver, self._spark)} if waiting or due else {}
        if waiting:
            self._follow_batches(running, waiting)
        if due:
            self._look_around(running)
            spent = self._driver.cpu_seconds() - spent
            self._next_look = now + (max(CALM, spent / SHARE) if self._hosts.settled else HOST_STEP)
        until = max(STEP, self._next_look - self._clock())
        if self._queries.settle():
            return STEP
        if not self._placing.wanted():
            return until
        return min(until, STEP if self._clock() - self._last_end < RECENTLY else LONG_STEP)

    def _follow_batches(self, running: Mapping[str, RunningQuery], waiting: set[str]) -> None:
        for query in self._queries.live:
            if query.id not in running or waiting.isdisjoint(query.operators):
                continue
            batch = running[query.id].batch
            if batch != self._ended.get(query.id):
                self._ended[query.id], self._last_end = batch, self._clock()
                self._placing.batch_ended(query.operators, batch, self._hosts.target)

    def _look_around(self, running: Mapping[str, RunningQuery]) -> None:
        self._hosts.look()
        if not self._acts:
            return
        if bereft := self._rings.keep(list(self._hosts.active)):
            self._placing.want_all(bereft, "its host was lost: its neighbour on the ring takes over")
        if self._succession is not None:
            self._succession.look()
        self._placing.adopt()
        self._placing.follow(self._hosts.target)
        if self._standby is not None:
            self._standby.look()
        for host in self._hosts.recalled:
            # Its owner has the last word on who may use it, whatever the policy makes of it.
            if not self._release(ReleaseHost(host, why="its owner wants it back")).succeeded:
                self._hosts.keep(host)
        for name, lease in self._hosts.active.items():
            if lease.state in (HostState.DRAINING, HostState.RELEASING):
                self.empty(name)  # again and again: a move may have been dropped, or a task have been run there since
        mine = [running[query.id] for query in self._queries.live if query.id in running]
        self._barrier.look({each.id: each.batch for each in mine}, {each.id for each in mine if each.idle})
        idle = all(each.idle for each in mine)
        self._hosts.critical(self._load().critical)
        self._hosts.step(batch=self._barrier.count, idle=idle, holds=lambda host: host in self.ran().values())
