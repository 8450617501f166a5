"""OTD, online task deployment: moves one task per round, to cut traffic or to relieve a loaded worker.

From Zhang, Jin, Wang, Liu and Wan, "Online nonstop task management for Storm-based distributed stream processing engines"
(JCST, 2024), section 4. A *worker* is a host; traffic within a *node*, a host or region, is free.
"""

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from elastream.core.action import MoveTask
from elastream.core.decision import Unknown
from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Context, Exchange, Observation
from elastream.core.plant import Plan, Policy
from elastream.core.task_id import TaskId
from elastream.errors import InputError
from elastream.policies.common.measures import TICK
from elastream.policies.static import missing_hosts, placement_unsupported_reason


@dataclass(frozen=True)
class Attraction:
    """Bytes/s that each task exchanges with each node; sorted by task and node, without zeros."""

    task: Integers
    node: Integers
    rate: Floats

    def at(self, task: Integers, node: Integers, nodes: int) -> Floats:
        """Return the rates of these pairs of task and node, 0 without traffic."""
        keys, requested = self.task * nodes + self.node, task * nodes + node
        if not keys.size:
            return np.zeros(requested.size)
        rows = np.minimum(np.searchsorted(keys, requested), keys.size - 1)
        return np.where(keys[rows] == requested, self.rate[rows], 0.0)


def attraction(exchange: Exchange, place: Integers, nodes: int) -> Attraction:
    """Return the sums of Equation 4. Traffic with unplaced tasks is ignored.

    Args:
        place: Node of each task, -1 if unplaced.
    """
    source, target, rate = exchange.source, exchange.target, exchange.rate
    between = (source >= 0) & (target >= 0) & (source != target)
    source, target, rate = source[between], target[between], rate[between]
    task, other = np.concatenate([source, target]), np.concatenate([target, source])
    node, both = place[other], np.concatenate([rate, rate])
    placed = node >= 0
    keys = task[placed] * nodes + node[placed]
    order = np.argsort(keys)
    keys, both = keys[order], both[placed][order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(both, first) if first.size else np.zeros(0)
    return Attraction(keys[first] // nodes, keys[first] % nodes, sums)


def score_changes(pulls: Attraction, place: Integers, task: Integers, node: Integers, nodes: int) -> Floats:
    """Return ASC of Equation 5 for moving each of `task` alone to its `node`."""
    return np.asarray(pulls.at(task, node, nodes) - pulls.at(task, place[task], nodes))


def touching(exchange: Exchange, tasks: Integers, count: int) -> Exchange:
    """Return the entries with one of `tasks` as source or target."""
    mine = np.zeros(count + 1, dtype=np.bool_)
    mine[tasks] = True
    rows = mine[exchange.source] | mine[exchange.target]
    return Exchange(exchange.source[rows], exchange.target[rows], exchange.rate[rows])


class LoadClass(IntEnum):
    """Load class of a worker. UNKNOWN workers, and those that accept no tasks, take no part."""

    UNKNOWN = 0
    LOW = 1
    NORMAL = 2
    HIGH = 3


class Case(IntEnum):
    """The paper's four cases, by workers with high and with low load."""

    # Both: move a task off the busiest worker (Algorithm 1).
    BALANCE = 1
    # Only high: no worker has room.
    SHORTAGE = 2
    # Only low: move a task to the node it exchanges most with (Algorithm 2).
    COMMUNICATION = 3
    # Neither.
    NONE = 4


@dataclass(frozen=True, slots=True)
class OtdRules:
    """Thresholds of load and benefit. The paper gives no figures.

    `relief` is an extension: as published, both algorithms consider traffic alone and may undo each other without end. With
    it, Algorithm 1 must lower the higher utilisation by that share, and Algorithm 2 must leave its receiver below high
    load.

    Args:
        long_queue: Waiting records that make load high, if the worker's rate is unknown.
        long_wait: Seconds of waiting work that make load high.
        threshold: Least change of score for Algorithm 2, as a share of a task's mean traffic (paper: threshold_ASC).
        relief: Least relief; 0 as published, default one second without processing over a minute.
    """

    high: float = 0.9
    low: float = 0.7
    long_queue: float = 1000.0
    long_wait: float = 10.0
    threshold: float = 0.01
    relief: float = 1 / 60

    def __post_init__(self) -> None:
        if not 0 <= self.relief < 0.5:
            raise InputError(f"relief is {self.relief:g}; it must be at least 0 and below 0.5, the largest possible relief")
        if not 0 < self.low <= self.high:
            raise InputError(
                f"load is low below {self.low:g} and high from {self.high:g}: low must be above 0 and at most high"
            )
        if self.threshold < 0:
            raise InputError(f"threshold is {self.threshold:g}; it must not be negative")
        if not (self.long_queue > 0 and self.long_wait > 0):
            raise InputError(
                f"long_queue is {self.long_queue:g} records and long_wait {self.long_wait:g} s; both must be above 0"
            )


@dataclass(frozen=True)
class Workers:
    node: Integers  # number of its node
    utilisation: Floats  # 0 to 1, NaN if unknown
    queue: Floats  # waiting records, NaN if unknown
    takes: NDArray[np.bool_]  # accepts tasks
    processed: Floats | None = None  # records/s, NaN or None if unknown

    def long(self, rules: OtdRules) -> NDArray[np.bool_]:
        rate = np.nan if self.processed is None else self.processed
        return np.asarray(self.queue >= np.where(np.greater(rate, 0), rules.long_wait * rate, rules.long_queue))

    def nodes_of(self, host: Integers) -> Integers:
        return np.where(host >= 0, self.node[host], -1)

    @property
    def heaviest_last(self) -> Integers:
        """Workers by utilisation rounded to 0.01, then by queue."""
        used = np.where(np.isnan(self.utilisation), 0.0, np.round(self.utilisation, 2))
        waiting = np.where(np.isnan(self.queue), 0.0, self.queue)
        return np.lexsort((waiting, used))


@dataclass(frozen=True, slots=True)
class Pair:
    case: Case
    task: int = -1  # task to move in cases 1 and 3
    worker: int = -1  # its new worker, -1 for no move
    change: float = math.nan  # change of its allocation score (bytes/s), NaN if traffic is unknown


def classes(workers: Workers, rules: OtdRules) -> Integers:
    """Return the load class of each worker by CPU and queue, or by the known one."""
    long = workers.long(rules)
    level = np.full(workers.node.size, LoadClass.UNKNOWN, dtype=np.int64)
    level[~np.isnan(workers.utilisation)] = LoadClass.NORMAL
    level[workers.utilisation < rules.low] = LoadClass.LOW
    level[(workers.utilisation >= rules.high) | long] = LoadClass.HIGH
    level[~workers.takes] = LoadClass.UNKNOWN
    return level


def otd_round(
    workers: Workers,
    host: Integers,
    load: Floats,
    exchange: Exchange,
    rules: OtdRules,
    without: frozenset[tuple[int, int]] = frozenset(),
) -> Pair:
    """Return the result of one round. Ties go to the better balance of loads.

    Args:
        host: Worker of each task, -1 if unplaced.
        load: Of each task, NaN if unknown.
        without: Excluded pairs of task and worker.
    """
    level = classes(workers, rules)
    high, low = level == LoadClass.HIGH, level == LoadClass.LOW
    case = (
        (Case.BALANCE if low.any() else Case.SHORTAGE) if high.any() else (Case.COMMUNICATION if low.any() else Case.NONE)
    )
    if case in (Case.SHORTAGE, Case.NONE) or not host.size:
        return Pair(case)
    order = workers.heaviest_last
    nodes = int(workers.node.max()) + 1
    # The least loaded low-load worker of each node: iterating from the heaviest, the last assignment is the lightest.
    lightest = np.full(nodes, -1, dtype=np.int64)
    for worker in order[::-1][low[order[::-1]]].tolist():
        lightest[workers.node[worker]] = worker
    if case is Case.BALANCE:
        givers, weight = order[high[order]][::-1], _weights(workers, host, load)
        for giver in (givers if rules.relief > 0 else givers[:1]).tolist():
            pair = _balance(workers, host, weight, exchange, giver, lightest, rules, without)
            if pair.task >= 0:
                return pair
        return Pair(case)
    return _bring_together(workers, host, load, exchange, lightest, rules, without)


def _balance(
    workers: Workers,
    host: Integers,
    weight: Floats,
    exchange: Exchange,
    giver: int,
    lightest: Integers,
    rules: OtdRules,
    without: frozenset[tuple[int, int]],
) -> Pair:
    """Algorithm 1: return the task on `giver` and lightest worker of a node with the greatest change of score."""
    mine, goals = np.flatnonzero(host == giver), np.flatnonzero(lightest >= 0)
    if not mine.size:
        return Pair(Case.BALANCE)
    nodes, place = lightest.size, workers.nodes_of(host)
    task, node = np.repeat(mine, goals.size), np.tile(goals, mine.size)
    worker = lightest[node]
    if exchange.known:
        change = score_changes(attraction(touching(exchange, mine, host.size), place, nodes), place, task, node, nodes)
    else:
        change = np.zeros(task.size)
    gap = workers.utilisation[giver] - workers.utilisation[worker]
    # The relief of the busier worker; largest for a task of half the gap.
    brings = np.minimum(weight[task], gap - weight[task])
    order = np.lexsort((worker, -np.where(np.isnan(brings), 0.0, brings), -change))
    for row in order.tolist():
        if rules.relief > 0 and brings[row] < rules.relief * workers.utilisation[giver]:
            continue
        if (int(task[row]), int(worker[row])) not in without:
            return Pair(Case.BALANCE, int(task[row]), int(worker[row]), float(change[row]) if exchange.known else math.nan)
    return Pair(Case.BALANCE)


def _weights(workers: Workers, host: Integers, load: Floats) -> Floats:
    at = np.append(workers.utilisation, np.nan)[host]
    total = np.bincount(np.maximum(host, 0), np.where(host >= 0, np.nan_to_num(load), 0.0), workers.node.size)
    return np.asarray(load / np.maximum(np.append(total, 1.0)[host], 1e-12) * at)


def _bring_together(
    workers: Workers,
    host: Integers,
    load: Floats,
    exchange: Exchange,
    lightest: Integers,
    rules: OtdRules,
    without: frozenset[tuple[int, int]],
) -> Pair:
    """Algorithm 2: return task and lightest worker of a node with the greatest change above the threshold."""
    if not exchange.known:
        return Pair(Case.COMMUNICATION)
    nodes, place = lightest.size, workers.nodes_of(host)
    pulls = attraction(exchange, place, nodes)
    own = pulls.at(np.arange(host.size), place, nodes)
    # Without traffic a task gains nothing: only pairs in the table can be worth a move.
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
    due: float = -math.inf  # time of the next round
    requested: MoveTask | None = None  # last move
    # (task, host) of moves without effect since the placement last changed
    failed: frozenset[tuple[TaskId, str]] = frozenset()

    def after(self, observation: Observation) -> frozenset[tuple[TaskId, str]]:
        """Return failed moves, the last one included; empty if it took effect."""
        if self.requested is None:
            return self.failed
        tasks = observation.tasks
        row = tasks.rows.get(str(self.requested.task))
        at = int(tasks.host[row]) if row is not None else -1
        moved = at >= 0 and observation.hosts.ids[at] == self.requested.host
        return frozenset() if moved else self.failed | {(self.requested.task, self.requested.host)}


@dataclass(frozen=True)
class Otd(OtdRules, Policy):
    """OTD policy: at most one `MoveTask` every `period` seconds.

    A move without effect is not repeated until the placement changes.

    Args:
        node: Unit within which traffic is free: "host" or "region".
        hosts: Hosts to keep leased; 0 for those present.
    """

    period: float = 5.0
    node: Literal["host", "region"] = "host"
    hosts: int = 0

    def __post_init__(self) -> None:
        if self.node not in ("host", "region"):
            raise InputError(f"node is {self.node!r}; it must be 'host' or 'region'")
        super().__post_init__()

    needs: ClassVar[Needs] = frozenset({(Rows.TASK, Metric.BUSY_CORES), (Rows.HOST, Metric.CPU)})
    wants_traffic: ClassVar = True
    places_stateless: ClassVar = True
    name: ClassVar = "otd"

    def plan(self, observation: Observation, memory: OtdMemory | None = None) -> Plan:
        """Return the best move of this round; none between rounds.

        In case 2 workers are overloaded and none has room: a remark instead of an action.
        """
        memory = memory or OtdMemory()
        if observation.time < memory.due - TICK:
            return Plan(memory=memory)
        failed = memory.after(observation)
        pair = self.decide(observation, failed)
        move = self._move(observation, pair) if pair.task >= 0 else None
        return Plan(
            (*missing_hosts(observation, self.hosts), *((move,) if move else ())),
            OtdMemory(observation.time + self.period, move, failed),
            remarks=(shortage(observation, self),) if pair.case is Case.SHORTAGE else (),
            unknown=tuple(_lacking(observation, pair)),
        )

    def unsupported_reason(self, context: Context) -> str | None:
        return placement_unsupported_reason(self.name, self.hosts, context)

    def decide(self, observation: Observation, failed: Set[tuple[TaskId, str]] = frozenset()) -> Pair:
        tasks, rows = observation.tasks, observation.hosts.rows
        without = frozenset(
            (tasks.rows[str(task)], rows[host]) for task, host in failed if str(task) in tasks.rows and host in rows
        )
        busy = tasks.column(Metric.BUSY_CORES)
        load = tasks.column(Metric.UTILISATION) if np.isnan(busy).all() else busy
        return otd_round(workers_of(observation, self.node), tasks.host, load, observation.exchange, self, without)

    def _move(self, observation: Observation, pair: Pair) -> MoveTask:
        if pair.case is Case.BALANCE:
            why = "its host is the busiest of the overloaded ones"
        else:
            why = f"{pair.change:,.0f} bytes/s less between {self.node}s"
        return MoveTask(observation.tasks.tasks[pair.task], observation.hosts.ids[pair.worker], why=why)


def _lacking(observation: Observation, pair: Pair) -> Iterator[Unknown]:
    workers = workers_of(observation)
    for row in np.flatnonzero(workers.takes & np.isnan(workers.utilisation)).tolist():
        yield Unknown(Metric.CPU, Rows.HOST, observation.hosts.ids[row], "cannot place on it")
    traffic = observation.tasks.column(Metric.TRAFFIC)
    if pair.case is Case.COMMUNICATION and not observation.exchange.known and np.isnan(traffic).all():
        yield Unknown(Metric.TRAFFIC, Rows.TASK, consequence="cannot bring tasks together")


def workers_of(observation: Observation, node: str = "host") -> Workers:
    hosts, tasks = observation.hosts, observation.tasks
    leases = [observation.leases[host] for host in hosts.ids]
    if node == "region":
        regions = sorted({lease.type.region for lease in leases})
        number = np.array([regions.index(lease.type.region) for lease in leases], dtype=np.int64)
    else:
        number = np.arange(len(leases))

    def by_host(metric: Metric) -> Floats:
        values = tasks.column(metric)
        counted = (tasks.host >= 0) & ~np.isnan(values)
        sums = np.bincount(tasks.host[counted], values[counted], len(leases)).astype(np.float64)
        sums[np.bincount(tasks.host[counted], minlength=len(leases)) == 0] = np.nan
        return sums

    takes = np.array([lease.state is HostState.RUNNING for lease in leases], dtype=np.bool_)
    return Workers(number, hosts.column(Metric.CPU), by_host(Metric.BACKLOG), takes, by_host(Metric.PROCESSED_RATE))


def shortage(observation: Observation, rules: OtdRules) -> str:
    level = classes(workers_of(observation), rules)
    full = [host for host, kind in zip(observation.hosts.ids, level.tolist(), strict=True) if kind == LoadClass.HIGH]
    named = ", ".join(full[:5]) + (f" and {len(full) - 5} more" if len(full) > 5 else "")
    return f"resources are short: load is high on {named}, and no host has a load low enough to accept a task"
