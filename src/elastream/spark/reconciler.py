"""The one thread that acts by itself: it moves state partitions, steps hosts, and releases what leaves.

Only it calls `look`, `critical` and `step` of `Hosts`, and `batch_ended` and `follow` of `Placing`. While nothing moves it
polls once a second, or less often if that would take more than POLL_SHARE cores.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from elastream.core.action import Outcome, ReleaseHost
from elastream.core.alarm import AlarmedThread, Alarms
from elastream.core.hosts import HostState
from elastream.core.task_id import TaskId
from elastream.core.wording import counted
from elastream.errors import ElastreamError, in_one_line
from elastream.spark.failover import FailoverPlan
from elastream.spark.hosts.hosts import DEADLINE_MARGIN_S, Hosts
from elastream.spark.jvm.driver_side import RunningQuery, running_queries
from elastream.spark.jvm.session import session_stopped
from elastream.spark.placement.placing import URGENT, Rings
from elastream.spark.queries.query import QueryAccess
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.standby import WarmStandby
from elastream.spark.telemetry.state_files import DELTAS

if TYPE_CHECKING:  # Autopilot watches queries and never loads the compiler
    from elastream.spark.queries.compiled import CompiledQueries

# Seconds between checks for the end of a batch while tasks wait to move (the T_W of N-Storm); LONG_STEP_S if no batch
# has ended for RECENT_S.
STEP_S, LONG_STEP_S, RECENT_S = 0.05, 1.0, 10.0
# Seconds between checks of the hosts while one changes state; CALM_S otherwise, also between reads of the plan
# (N-Storm's T_S).
HOST_STEP_S, CALM_S = 0.25, 1.0
# Cores for polling while nothing moves: one fifth of Autopilot's bar.
POLL_SHARE = 0.01
# Load of a task whose load is unknown: such tasks are spread by their number.
UNKNOWN_LOAD = 1e-9
# Seconds between batches up to which a move waits for one.
MOST_WAIT_S = 10.0
# A query that stops, or a host that goes, makes one or two passes fail.
MAX_FAULTS = 5
CLOSE_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)

# Triggers and actions of the reconciler:
#
#   a batch ended of a query with migrations        advance them (`Placing.batch_ended`), right after the end
#   tasks ran elsewhere than planned, or
#   another process wrote the plan                  start a migration (`Placing.follow`)
#   a host drains or is released and holds tasks    move them to the others, heaviest first, or as their ring says
#   a draining host runs nothing but strays         fence it (`Hosts.step`): Spark gives it tasks while others are busy
#   a host of a ring is lost                        move its partitions to its neighbour (`Rings.retain`)
#   its owner recalls a host                        release it; keep it if nothing else could do its work
#   an executor was lost                            adopt the driver's failover (`FailoverPlan.look`)
#   a second has passed                             update standby replicas (`WarmStandby.look`)
#   a host registers, warms, empties, disappears    take it to its next state (`Hosts.step`)
#   a switch waits for records to drain             poll until they are (`CompiledQueries.settle`)
#   a pass failed                                   log and go on; MAX_FAULTS in a row, or an unknown kind: alarm
#   the service level is missed                     report it to the provider (`Hosts.critical`)


@dataclass(frozen=True, slots=True)
class ObservedLoad:
    # Busy cores by task; the heaviest waiting task moves first
    weights: Mapping[TaskId, float] = field(default_factory=dict)
    capacities: Mapping[str, float] = field(default_factory=dict)  # cores of speed 1 by host
    critical: bool = False  # True if the service level is missed
    state: Mapping[TaskId, float] = field(default_factory=dict)  # MB that a task's state takes in memory
    room: Mapping[str, float] = field(default_factory=dict)  # MB of state that a host may take; absent if unknown
    files: Mapping[TaskId, float] = field(default_factory=dict)  # MB that a move of a task loads


class BatchBarrier:
    """Counts rounds. In a round, each query ends a batch or is idle, and at least one ends one.

    After two rounds, no batch is under way that was when the first began. A released host must outlast these batches.
    """

    def __init__(self) -> None:
        self.count = -1
        self._began: Mapping[str, int] = {}

    def look(self, ended: Mapping[str, int], idle: Collection[str]) -> None:
        further = {query for query, batch in ended.items() if batch > self._began.get(query, -1)}
        if further and all(query in further or query in idle for query in ended):
            self.count, self._began = self.count + 1, dict(ended)


class Reconciler:
    """Moves state partitions between hosts, and steps hosts; `start` and `close` it."""

    def __init__(
        self,
        instruments: QueryAccess,
        queries: "CompiledQueries | SessionQueries",
        hosts: Hosts,
        rings: Rings,
        clock: Callable[[], float],
        alarms: Alarms,
        *,
        failover: FailoverPlan | None = None,
        standby: WarmStandby | None = None,
    ) -> None:
        """Create without starting. Without `failover`, Spark places what a lost executor held."""
        self._spark, self._driver, self._placing = instruments.spark, instruments.driver, instruments.placing
        self._queries, self._hosts, self._rings = queries, hosts, rings
        self._failover, self._standby, self._clock, self._alarms = failover, standby, clock, alarms
        self._release: Callable[[ReleaseHost], Outcome]
        self._load: Callable[[], ObservedLoad] = ObservedLoad
        self._placing.benefit, self._placing.may_wait = self._benefit_of, self._may_wait
        if standby is not None:
            # A replica makes a move cheap even if it lacks this many batches: without one, a task also reads a snapshot.
            self._placing.replica_hosts = partial(standby.replica_hosts, DELTAS)
        self._ended: dict[str, int] = {}
        self._ended_at: dict[str, float] = {}
        self._deadlines: Mapping[str, float] = {}
        self._usual_limits, self._round_s = self._placing.limits, 0.0
        self._remaining: dict[str, list[TaskId]] = {}  # by host with a deadline
        self._messages: deque[str] = deque(maxlen=100)
        self._barrier, self._acts = BatchBarrier(), False
        self._last_end, self._next_look, self._faults = -RECENT_S, 0.0, 0
        self._closing, self._woken = threading.Event(), threading.Event()
        self._thread = AlarmedThread(alarms, "elastream-reconciler", self._run)

    def start(
        self, release: Callable[[ReleaseHost], Outcome], load: Callable[[], ObservedLoad], *, acts: bool = True
    ) -> None:
        """Start the thread, which calls `release` for recalled hosts. If not `acts`, it only looks at hosts."""
        self._release, self._load, self._acts = release, load, acts
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """Stop moving and stepping; wait for the thread, up to a timeout."""
        self._closing.set()
        self._woken.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_TIMEOUT_S)
        if self._failover is not None:
            self._failover.close()
        if self._standby is not None:
            self._standby.close()
        self._placing.close()

    def locations(self) -> dict[TaskId, str]:
        """Return the host that each task ran on last, if both are known."""
        host_of = self._hosts.host_of()
        return {task: host_of[at.executor] for task, at in self._placing.where().items() if at.executor in host_of}

    def placements(self) -> dict[TaskId, str]:
        return self.locations() | dict(self._placing.targets())

    def empty(self, host: str) -> None:
        """Move all tasks off `host`: to their ring's owner, else the heaviest first to the least load a core.

        Hosts without a free slot get none.
        """
        self._rings.leave(host)
        placements, leases = self.placements(), self._hosts.active
        others = [name for name in self._hosts.usable if name != host and self._hosts.foreign_share(name) < 1]
        leaving = sorted((t for t, where in placements.items() if where == host), key=self._order_of_leaving(host))
        if not others or not leaving:
            return
        capacities, state = self._load().capacities, self._load().state
        room = {name: self._load().room.get(name, math.inf) for name in others}
        for task, to in self._placing.targets().items():
            if to in room:
                room[to] -= state.get(task, 0.0)  # the observation may be older than the migration
        awaited = (HostState.REQUESTED, HostState.STARTING)
        coming = any(lease.state in awaited and not lease.refused for lease in leases.values())
        power = {name: capacities.get(name, leases[name].type.cores * leases[name].type.speed) for name in others}
        load = dict.fromkeys(others, 0.0)
        for task, where in placements.items():
            if where in load:
                load[where] += self._load_of(task) or UNKNOWN_LOAD
        targets: dict[TaskId, str] = {}
        for task in leaving:
            weight, owner = self._load_of(task) or UNKNOWN_LOAD, self._rings.owner(task)
            roomy = [name for name in others if room[name] >= state.get(task, 0.0)]
            if not roomy and coming:
                continue  # a full heap would end the executor that takes it
            roomy = roomy or [max(others, key=room.__getitem__)]
            emptiest = min(roomy, key=lambda name: ((load[name] + weight) / power[name], name))
            targets[task] = target = owner if owner is not None and owner in roomy else emptiest
            load[target] += weight
            room[target] -= state.get(task, 0.0)
        self._placing.move_all(targets, f"{self._hosts.describe(host)} is leaving")
        self.wake()

    def _load_of(self, task: TaskId) -> float:
        return self._load().weights.get(task, 0.0)

    def _order_of_leaving(self, host: str) -> Callable[[TaskId], tuple[float, float, TaskId]]:
        """Return the order in which tasks leave `host`: heaviest first, before a deadline largest."""
        if host not in self._hosts.deadlines:
            return lambda task: (0.0, -self._load_of(task), task)
        files = self._load().files
        return lambda task: (-files.get(task, 0.0), -self._load_of(task), task)

    def _benefit_of(self, task: TaskId) -> float:
        """Return a migration's priority: the task's load, before a deadline its bytes."""
        if self._deadlines and self.locations().get(task) in self._deadlines:
            return URGENT + self._load().files.get(task, 0.0) + self._load_of(task)
        return self._load_of(task)

    def _may_wait(self, task: TaskId) -> bool:
        """Return True if the next batch comes soon, and the host of `task` is not about to go."""
        host = self.locations().get(task, "")
        lease = self._hosts.active.get(host)
        leaves = host in self._deadlines or (lease is not None and lease.state is HostState.RELEASING)
        starts = [
            batch.start for query in self._queries.live if task.operator in query.operators for batch in query.batches
        ]
        return not leaves and len(starts) > 1 and starts[-1] - starts[-2] <= MOST_WAIT_S

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause: float | None = 0.0
        while pause is not None:
            self._woken.wait(pause)
            self._woken.clear()
            pause = None if self._closing.is_set() else self.once()

    def once(self) -> float | None:
        """Make one pass, faults included; return the seconds until the next, None when closing."""
        try:
            pause = self.step()
        except Exception as error:
            if self._closing.is_set() or session_stopped(self._spark):
                return None
            self._failed(error)
            return CALM_S
        self._faults = 0
        self._alarms.clear("moves")
        return pause

    def _failed(self, error: Exception) -> None:
        self._faults += 1
        log.log(logging.WARNING if self._faults == 1 else logging.DEBUG, "a pass of the reconciler failed", exc_info=error)
        # A query or host that has just gone makes one pass fail. Other faults are a provider's or ours, and may last.
        passing = isinstance(error, Py4JError | PySparkException | ElastreamError | OSError)
        if self._faults >= MAX_FAULTS or not passing:
            message = f"state partitions and hosts are stuck: passes of the reconciler fail with {in_one_line(error)}"
            self._alarms.sound("moves", message, error)

    def step(self) -> float:
        now, spent = self._clock(), self._driver.cpu_seconds()
        due = now >= self._next_look
        waiting = {task.operator for task in self._placing.targets()}
        running = {each.id: each for each in running_queries(self._driver, self._spark)} if waiting or due else {}
        if waiting:
            self._follow_batches(running, waiting)
        if due:
            self._look_around(running)
            spent = self._driver.cpu_seconds() - spent
            self._next_look = now + (max(CALM_S, spent / POLL_SHARE) if self._hosts.settled else HOST_STEP_S)
        until = max(STEP_S, self._next_look - self._clock())
        if self._queries.settle():
            return STEP_S
        if not self._placing.targets():
            return until
        return min(until, STEP_S if self._clock() - self._last_end < RECENT_S else LONG_STEP_S)

    def _hurry(self) -> None:
        """Allow the simultaneous migrations that the nearest deadline needs; report the state on hosts with a deadline."""
        remaining: dict[str, list[TaskId]] = {host: [] for host in self._deadlines}
        for task, host in self.locations().items():
            if host in remaining:
                remaining[host].append(task)
        for host, tasks in remaining.items():
            if tasks and host not in self._remaining:
                left = max(0.0, self._deadlines[host] - self._clock())
                self._messages.append(f"host {host} is taken away in {left:.0f} s: {self._text(tasks)} to move")
            elif self._remaining.get(host) and not tasks:
                self._messages.append(f"host {host}, which is taken away, holds no state any more")
        for host in self._remaining.keys() - remaining.keys():
            if self._remaining[host] and host not in self._hosts.active:
                self._messages.append(f"host {host} was taken away with {self._text(self._remaining[host])} left")
        self._remaining = remaining
        nearest = min((self._deadlines[host] for host, tasks in remaining.items() if tasks), default=math.inf)
        per_host, targets = self._usual_limits.per_host, len(self._hosts.usable)
        if nearest < math.inf and per_host is not None and targets and self._round_s > 0:
            rounds = max(1.0, (nearest - DEADLINE_MARGIN_S - self._clock()) / self._round_s)
            per_host = max(per_host, math.ceil(sum(map(len, remaining.values())) / targets / rounds))
        self._placing.limits = replace(self._usual_limits, per_host=per_host)

    def _text(self, tasks: Sequence[TaskId]) -> str:
        megabytes = sum(self._load().files.get(task, math.nan) for task in tasks)
        size = f" of {megabytes:.3g} MB" if megabytes == megabytes else ""
        return f"{counted(len(tasks), 'state partition')}{size}"

    def drain_messages(self) -> Sequence[str]:
        """Return a sentence for each host that is taken away, and for what became of its state, since the last call."""
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def _follow_batches(self, running: Mapping[str, RunningQuery], waiting: set[str]) -> None:
        for query in self._queries.live:
            if query.id not in running or waiting.isdisjoint(query.operators):
                continue
            batch = running[query.id].batch
            if batch != self._ended.get(query.id):
                if query.id in self._ended_at and batch == self._ended[query.id] + 1:
                    self._round_s = self._clock() - self._ended_at[query.id]
                self._ended[query.id] = batch
                self._ended_at[query.id] = self._last_end = self._clock()
                self._placing.batch_ended(query.operators, batch, self._hosts.target)

    def _look_around(self, running: Mapping[str, RunningQuery]) -> None:
        self._hosts.look()
        if not self._acts:
            return
        if orphaned := self._rings.retain(list(self._hosts.active)):
            self._placing.move_all(orphaned, "its host was lost: its neighbour on the ring takes over")
        if self._failover is not None:
            self._failover.look()
        self._placing.refresh()
        self._placing.follow(self._hosts.target)
        if self._standby is not None:
            self._standby.look()
        self._deadlines = self._hosts.deadlines
        for host in self._hosts.recalled:
            # The owner decides, not the policy.
            if self._release(ReleaseHost(host, why=self._hosts.reason(host) or "its owner wants it back")).succeeded:
                continue
            if host in self._deadlines:
                self._hosts.drain(host)  # it is lost anyway: policies lease another host, then release this one
            else:
                self._hosts.keep(host)
        for name, lease in self._hosts.active.items():
            if lease.state in (HostState.DRAINING, HostState.RELEASING):
                self.empty(name)  # repeated: a move may have been dropped, or a task have run there since
        mine = [running[query.id] for query in self._queries.live if query.id in running]
        self._barrier.look({each.id: each.batch for each in mine}, {each.id for each in mine if each.idle})
        idle = all(each.idle for each in mine)
        self._hurry()
        self._hosts.critical(self._load().critical)
        strays, locations = self._placing.strays(), self.locations()
        holding = {host for task, host in locations.items() if task not in strays}
        overrun = set(locations.values()) - holding
        self._hosts.step(batch=self._barrier.count, idle=idle, holds=holding.__contains__, overrun=overrun)
