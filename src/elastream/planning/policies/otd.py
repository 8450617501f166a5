"""OTD, online task deployment: one task a round to where it talks most, without filling a host that is full.

From Zhang, Jin, Wang, Liu and Wan, "Online nonstop task management for Storm-based distributed stream processing engines"
(JCST, 2024), section 4. A *worker* is what runs tasks, a *node* what traffic stays within; here a worker is a host, and a
node a host or, where hosts of a region share a machine or a rack, a region. How a task is moved is the plant's.
"""

import math
from collections.abc import Set
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elastream.model.action import MoveTask, TaskId
from elastream.model.cloud import HostState
from elastream.model.errors import InputError
from elastream.model.observation import Exchange, Floats, Integers, Metric, Observation
from elastream.model.plant import Plan
from elastream.planning.algorithms.attraction import attraction, score_changes, touching
from elastream.planning.policies.static import missing_hosts

__all__ = [
    "Case",
    "LoadClass",
    "Otd",
    "OtdMemory",
    "Pair",
    "Rules",
    "Workers",
    "classes",
    "otd_round",
]

TICK = 1e-6
"""Seconds by which a round may come early: times are sums of fractions."""


class LoadClass(IntEnum):
    """How loaded a worker is. One whose load is unknown, or that takes no tasks, neither gives nor gets."""

    UNKNOWN = 0
    LOW = 1
    NORMAL = 2
    HIGH = 3


class Case(IntEnum):
    """The paper's four, by whether there are workers of high load and workers of low load."""

    BALANCE = 1
    """Both: the busiest gives a task away (Algorithm 1)."""
    SHORTAGE = 2
    """Only high: nobody can take anything, and a person is told so."""
    COMMUNICATION = 3
    """Only low: a task goes to those that it talks to (Algorithm 2)."""
    NONE = 4
    """Neither: nothing needs doing."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When a worker's load is high or low, and which benefit is worth a move; the paper gives no figures for these.

    high: utilisation from which it is high. low: below which it is low. long_queue: records waiting at a worker from which
    it is high whatever its CPU does. threshold: least change of the allocation score for Algorithm 2, as a fraction of what
    a task exchanges on average (the paper's threshold_ASC is in its own units).

    relief: ours. As published both algorithms look at communication alone. Algorithm 1 may move a task that does nothing,
    or so much that the receiver is as full as the giver was; Algorithm 2 may fill a worker that Algorithm 1 must then
    relieve, for ever. With `relief` above 0 a move of the first must bring the busier of the two down by that part of what
    lies between them, and where the busiest worker has no such task the next one of high load is asked; one of the second
    must leave its receiver below high load. 0: as published.
    """

    high: float = 0.9
    low: float = 0.7
    long_queue: float = 1000.0
    threshold: float = 0.01
    relief: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.relief < 0.5:
            raise InputError(
                f"relief is {self.relief:g}; it must be at least 0 and below a half, which is all that can be had"
            )
        if not 0 < self.low <= self.high:
            raise InputError(
                f"load is low below {self.low:g} and high from {self.high:g}: low must be above 0, not above high"
            )
        if self.threshold < 0 or not self.long_queue > 0:
            raise InputError(
                f"threshold is {self.threshold:g} and long_queue {self.long_queue:g}: they must not be negative"
            )


@dataclass(frozen=True)
class Workers:
    """Columns by worker. node: its number. utilisation: 0 to 1; queue: records that wait there; both NaN where unknown.

    takes: whether it takes tasks.
    """

    node: Integers
    utilisation: Floats
    queue: Floats
    takes: NDArray[np.bool_]

    @property
    def heaviest_last(self) -> Integers:
        """Order by load: by utilisation in hundredths, those equally used by their queue."""
        used = np.where(np.isnan(self.utilisation), 0.0, np.round(self.utilisation, 2))
        waiting = np.where(np.isnan(self.queue), 0.0, self.queue)
        return np.lexsort((waiting, used))


@dataclass(frozen=True, slots=True)
class Pair:
    """What a round comes to: the case, and for cases 1 and 3 the task to move, its new worker and the change of its
    allocation score (bytes/s; NaN where exchanges are unknown); -1 where none is worth it."""

    case: Case
    task: int = -1
    worker: int = -1
    change: float = math.nan


def classes(workers: Workers, rules: Rules) -> Integers:
    """Load class of each worker; a queue that is unknown leaves it to the CPU, and the other way round."""
    long = workers.queue >= rules.long_queue
    found = np.full(workers.node.size, LoadClass.UNKNOWN, dtype=np.int64)
    found[~np.isnan(workers.utilisation)] = LoadClass.NORMAL
    found[workers.utilisation < rules.low] = LoadClass.LOW
    found[(workers.utilisation >= rules.high) | long] = LoadClass.HIGH
    found[~workers.takes] = LoadClass.UNKNOWN
    return found


def otd_round(
    workers: Workers,
    host: Integers,
    load: Floats,
    exchange: Exchange,
    rules: Rules,
    without: frozenset[tuple[int, int]] = frozenset(),
) -> Pair:
    """One round over all tasks. host: worker of each task, -1 for nowhere. load: of each task, NaN where unknown.

    Where pairs are equally good - above all where exchanges are unknown - the one that evens loads out most is taken.
    without: pairs of task and worker that are not to be tried.
    """
    found = classes(workers, rules)
    high, low = found == LoadClass.HIGH, found == LoadClass.LOW
    case = (
        (Case.BALANCE if low.any() else Case.SHORTAGE) if high.any() else (Case.COMMUNICATION if low.any() else Case.NONE)
    )
    if case in (Case.SHORTAGE, Case.NONE) or not host.size:
        return Pair(case)
    order = workers.heaviest_last
    nodes = int(workers.node.max()) + 1
    # The least loaded of each node's low-load workers: walked from the heaviest on, the last one entered is the lightest.
    lightest = np.full(nodes, -1, dtype=np.int64)
    for worker in order[::-1][low[order[::-1]]].tolist():
        lightest[workers.node[worker]] = worker
    place = np.where(host >= 0, workers.node[host], -1)
    if case is Case.BALANCE:
        givers, weight = order[high[order]][::-1], _weights(workers, host, load)
        for giver in (givers if rules.relief > 0 else givers[:1]).tolist():
            pair = _balance(workers, host, weight, place, exchange, giver, lightest, rules, without)
            if pair.task >= 0:
                return pair
        return Pair(case)
    return _bring_together(workers, host, load, place, exchange, lightest, rules, without)


def _balance(
    workers: Workers,
    host: Integers,
    weight: Floats,
    place: Integers,
    exchange: Exchange,
    giver: int,
    lightest: Integers,
    rules: Rules,
    without: frozenset[tuple[int, int]],
) -> Pair:
    """Algorithm 1: of all tasks on the busiest worker and all lightest workers the pair with the greatest change.

    weight: of each task, see `_weights`.
    """
    mine, goals = np.flatnonzero(host == giver), np.flatnonzero(lightest >= 0)
    if not mine.size:
        return Pair(Case.BALANCE)
    nodes = lightest.size
    task, node = np.repeat(mine, goals.size), np.tile(goals, mine.size)
    worker = lightest[node]
    if exchange.known:
        change = score_changes(attraction(touching(exchange, mine, host.size), place, nodes), place, task, node, nodes)
    else:
        change = np.zeros(task.size)
    gap = workers.utilisation[giver] - workers.utilisation[worker]
    # A task that is half the gap leaves both alike: by so much it brings the busier of the two down.
    brings = np.minimum(weight[task], gap - weight[task])
    order = np.lexsort((worker, -np.where(np.isnan(brings), 0.0, brings), -change))
    for row in order.tolist():
        if rules.relief > 0 and brings[row] < rules.relief * gap[row]:
            continue
        if (int(task[row]), int(worker[row])) not in without:
            return Pair(Case.BALANCE, int(task[row]), int(worker[row]), float(change[row]) if exchange.known else math.nan)
    return Pair(Case.BALANCE)


def _weights(workers: Workers, host: Integers, load: Floats) -> Floats:
    """Part of its worker's utilisation that each task makes up; NaN where unknown, and for a task that stands nowhere."""
    at = np.append(workers.utilisation, np.nan)[host]
    total = np.bincount(np.maximum(host, 0), np.where(host >= 0, np.nan_to_num(load), 0.0), workers.node.size)
    return np.asarray(load / np.maximum(np.append(total, 1.0)[host], 1e-12) * at)


def _bring_together(
    workers: Workers,
    host: Integers,
    load: Floats,
    place: Integers,
    exchange: Exchange,
    lightest: Integers,
    rules: Rules,
    without: frozenset[tuple[int, int]],
) -> Pair:
    """Algorithm 2: of all tasks and all lightest workers the pair with the greatest change, if that is worth a move."""
    if not exchange.known:
        return Pair(Case.COMMUNICATION)
    nodes = lightest.size
    pulls = attraction(exchange, place, nodes)
    own = pulls.at(np.arange(host.size), place, nodes)
    # Where a task exchanges nothing it has nothing to gain, so only the pairs in the table can be worth a move.
    movable = (host >= 0) & workers.takes[host]
    goal = lightest[pulls.node]
    open_to = (goal >= 0) & (pulls.node != place[pulls.task]) & movable[pulls.task]
    if rules.relief > 0:
        open_to &= ~(workers.utilisation[goal] + _weights(workers, host, load)[pulls.task] >= rules.high)
    change = np.where(open_to, pulls.rate - own[pulls.task], -math.inf)
    if not change.size:
        return Pair(Case.COMMUNICATION)
    least = rules.threshold * float(pulls.rate.sum()) / host.size
    best = int(np.argmax(change))
    if without:
        barred = [(int(pulls.task[r]), int(goal[r])) in without for r in np.flatnonzero(change > least)]
        change[np.flatnonzero(change > least)[barred]] = -math.inf
        best = int(np.argmax(change))
    if not change[best] > least:
        return Pair(Case.COMMUNICATION)
    return Pair(Case.COMMUNICATION, int(pulls.task[best]), int(goal[best]), float(change[best]))


@dataclass(frozen=True, slots=True)
class OtdMemory:
    """What `Otd` remembers of a run. due: time of its next round. asked: the move of its last one.

    vain: (task, host) of moves that did not come about since the placement last changed.
    """

    due: float = -math.inf
    asked: MoveTask | None = None
    vain: frozenset[tuple[TaskId, str]] = frozenset()

    def after(self, observation: Observation) -> frozenset[tuple[TaskId, str]]:
        """Moves in vain, that of the last round included; none where that one came about."""
        if self.asked is None:
            return self.vain
        tasks = observation.tasks
        row = tasks.rows.get(str(self.asked.task))
        at = int(tasks.host[row]) if row is not None else -1
        moved = at >= 0 and observation.hosts.ids[at] == self.asked.host
        return frozenset() if moved else self.vain | {(self.asked.task, self.asked.host)}


@dataclass(frozen=True)
class Otd:
    """The policy: every `period` seconds at most one `MoveTask`, and a remark where resources are short.

    high, low, long_queue, threshold, relief: see `Rules`. node: what traffic within costs nothing, a host or a region.
    hosts: how many to hold leased; 0: those that are there.

    A move that did not come about is not planned again until the placement has changed; see `OtdMemory`.
    """

    high: float = 0.9
    low: float = 0.7
    long_queue: float = 1000.0
    threshold: float = 0.01
    relief: float = 0.1
    period: float = 5.0
    node: Literal["host", "region"] = "host"
    hosts: int = 0

    def __post_init__(self) -> None:
        if self.node not in ("host", "region"):
            raise InputError(f"node is {self.node!r}; it is 'host' or 'region'")
        _ = self.rules  # says at once what is wrong with them

    @property
    def name(self) -> str:
        """What people call it."""
        return "otd"

    @property
    def rules(self) -> Rules:
        """When loads are high or low, and what is worth a move."""
        return Rules(self.high, self.low, self.long_queue, self.threshold, self.relief)

    def plan(self, observation: Observation, memory: OtdMemory | None = None) -> Plan:
        """The best move of this round, if any; none between two rounds.

        Case 2 is no action but a remark: workers are overloaded, and there is none that could take over.
        """
        memory = memory or OtdMemory()
        if observation.time < memory.due - TICK:
            return Plan(memory=memory)
        vain = memory.after(observation)
        pair = self.decide(observation, vain)
        move = self._move(observation, pair) if pair.task >= 0 else None
        return Plan(
            (*missing_hosts(observation, self.hosts), *((move,) if move else ())),
            OtdMemory(observation.time + self.period, move, vain),
            remarks=(shortage(observation, self.rules),) if pair.case is Case.SHORTAGE else (),
        )

    def decide(self, observation: Observation, vain: Set[tuple[TaskId, str]] = frozenset()) -> Pair:
        """Case and best pair for this observation: rows of its tasks and hosts. vain: pairs that are not to be tried."""
        tasks, rows = observation.tasks, observation.hosts.rows
        without = frozenset(
            (tasks.rows[str(task)], rows[host]) for task, host in vain if str(task) in tasks.rows and host in rows
        )
        busy = tasks.column(Metric.BUSY_CORES)
        load = tasks.column(Metric.UTILISATION) if np.isnan(busy).all() else busy
        return otd_round(workers_of(observation, self.node), tasks.host, load, observation.exchange, self.rules, without)

    def _move(self, observation: Observation, pair: Pair) -> MoveTask:
        if pair.case is Case.BALANCE:
            why = "its host is the busiest of those overloaded"
        else:
            why = f"{pair.change:,.0f} bytes/s less between {self.node}s"
        return MoveTask(observation.tasks.tasks[pair.task], observation.hosts.ids[pair.worker], why=why)


def workers_of(observation: Observation, node: str = "host") -> Workers:
    """The hosts of an observation as workers, in their order there."""
    hosts, tasks = observation.hosts, observation.tasks
    leases = [observation.leases[host] for host in hosts.ids]
    if node == "region":
        regions = sorted({lease.type.region for lease in leases})
        number = np.array([regions.index(lease.type.region) for lease in leases], dtype=np.int64)
    else:
        number = np.arange(len(leases))
    backlog = tasks.column(Metric.BACKLOG)
    counted = (tasks.host >= 0) & ~np.isnan(backlog)
    queue = np.bincount(tasks.host[counted], backlog[counted], len(leases)).astype(np.float64)
    queue[np.bincount(tasks.host[counted], minlength=len(leases)) == 0] = np.nan
    takes = np.array([lease.state is HostState.RUNNING for lease in leases], dtype=np.bool_)
    return Workers(number, hosts.column(Metric.CPU), queue, takes)


def shortage(observation: Observation, rules: Rules) -> str:
    """The warning of case 2, as a sentence."""
    found = classes(workers_of(observation), rules)
    full = [host for host, kind in zip(observation.hosts.ids, found.tolist(), strict=True) if kind == LoadClass.HIGH]
    named = ", ".join(full[:5]) + (f" and {len(full) - 5} more" if len(full) > 5 else "")
    return f"resources are short: load is high on {named}, and no host has little enough to take a task over"
