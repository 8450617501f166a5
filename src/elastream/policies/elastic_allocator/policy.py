"""Elastic Allocator: places tasks by their needs of cores and links, next to other running tasks.

From "Elastic Allocator: an adaptive task scheduler for streaming query in the cloud" (SOSE, 2014): its models of load and
bandwidth (section IV), and the policy around its greedy matching (`policies.elastic_allocator.matching`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from elastream.core.action import MoveTask
from elastream.core.decision import Unknown
from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Context, Exchange, Observation
from elastream.core.plant import Plan, Policy
from elastream.errors import InputError
from elastream.policies.common.measures import TICK, host_capacity
from elastream.policies.elastic_allocator.exact import deviation
from elastream.policies.elastic_allocator.matching import Objective, allocate, utilisation
from elastream.policies.static import missing_hosts, placement_unsupported_reason
from elastream.units import ROUNDING

SETTLES = 10.0
"""Seconds after a change of places from which measurements are of the new ones, where a batch has begun since."""
OVER = 30.0
"""Seconds over which the mean is taken of what hosts do beside their tasks."""
LEAST = 0.01
"""Of the capacity of hosts: by less than that no placement is more even than another, whatever its deviation was."""


def overload(received: Floats, sent: Floats) -> Floats:
    """r_j / s_j (section IV-A) if above 1, the factor of need over use; 1 if the operator keeps up or rates are unknown."""
    ratio = np.divide(received, sent, out=np.ones(np.broadcast(received, sent).shape), where=sent > 0)
    return np.where(ratio > 1, ratio, 1.0)


@dataclass(frozen=True, slots=True)
class Settling:
    """What the policy remembers. round: when its next round is. changed: when places of tasks, or hosts, last changed.
    background: cores and link bytes/s by host, a moving mean of what was measured while neither did; taken: when last.
    began: when the newest committed micro-batch did, NaN where there are none."""

    round: float = -math.inf
    changed: float = -math.inf
    hosts: frozenset[str] = frozenset()
    background: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    taken: float = math.nan
    began: float = math.nan

    def after(self, seen: Observation) -> "Settling":
        """With what `seen` says of it."""
        hosts = frozenset(seen.usable)
        changed = seen.time if seen.moving or (self.hosts and hosts != self.hosts) else self.changed
        began = max((batch.start for batch in seen.batches), default=self.began)
        now = replace(self, changed=changed, hosts=hosts, began=began)
        if not now.settled(seen):
            return now
        weight = 1.0 if math.isnan(self.taken) else 1 - math.exp(-(seen.time - self.taken) / OVER)
        means: dict[str, tuple[float, float]] = {}
        unknown = np.isnan(seen.hosts.column(Metric.CPU)).tolist()
        for host, lacks, (cores, link) in zip(seen.hosts.ids, unknown, background_of(seen).tolist(), strict=True):
            was = self.background.get(host)
            if not lacks:
                was_cores, was_link = was or (cores, link)
                means[host] = (was_cores + weight * (cores - was_cores), was_link + weight * (link - was_link))
            elif was is not None:
                means[host] = was
        return replace(now, background=means, taken=seen.time)

    def settled(self, seen: Observation) -> bool:
        """Whether what is measured of hosts is of the places where tasks are now: of a micro-batch that began after them,
        where there are any."""
        settles = self.changed + SETTLES
        if math.isnan(self.began):
            return seen.time - seen.hosts.age(Metric.CPU) >= settles
        return seen.time >= settles and self.began >= self.changed


@dataclass(frozen=True)
class ElasticAllocator(Policy):
    """The policy: every `period` seconds, tasks of `operators` are allocated in addition to all others.

    What a host does for others counts as its load before (C0 and B_pre, section IV): its measured use of cores and link,
    less that of the tasks on it, a mean of half a minute. Where tasks do work that is not measured of them that is among
    it, and goes where they go: by a measurement of other places than today's they would follow one another in a circle.
    So a round waits until what is measured is of the present places.

    operators: names; all if empty. objective: `utilisation` or `deviation`. most: allowed fraction of a host's capacity.
    worth: least fraction by which the deviation must fall for tasks to be moved again; by less than a hundredth of the
    capacity never. trials: time limit of the matching. slots: whether each task fills one of its host's slots, as on Storm,
    so that a host takes no more tasks than that; otherwise they share its cores. hosts: number of hosts to keep leased; 0:
    the hosts present. No moves while the needs of tasks are unknown.

    Memory: `Settling`.
    """

    operators: Sequence[str] = ()
    objective: str = Objective.DEVIATION.value
    most: float = 1.0
    period: float = 10.0
    worth: float = 0.05
    trials: int = 100_000_000
    slots: bool = False
    hosts: int = 0

    def __post_init__(self) -> None:
        if self.objective not in tuple(Objective):
            raise InputError(f"objective is {self.objective!r}; it must be {' or '.join(map(repr, map(str, Objective)))}")

    needs: ClassVar[Needs] = frozenset({(Rows.TASK, Metric.BUSY_CORES)})
    wants_traffic: ClassVar = True
    """It reads who sends whom how much, which a plant may have to measure for it."""
    name: ClassVar = "elastic_allocator"

    def plan(self, observation: Observation, memory: Settling | None = None) -> Plan:
        """The moves of this round's allocation; none between two rounds, nor before measurements are of today's places."""
        known = (memory or Settling()).after(observation)
        if observation.time < known.round - TICK:
            return Plan(memory=known)
        moves: list[MoveTask] = []
        if known.settled(observation):
            moves = self._allocate(observation, known.background)
            changed = observation.time if moves else known.changed
            known = replace(known, round=observation.time + self.period, changed=changed)
        actions = (*missing_hosts(observation, self.hosts), *moves)
        return Plan(actions, known, unknown=self._lacking(observation))

    def unsupported_reason(self, context: Context) -> str | None:
        """Return why it can do nothing, or None."""
        return placement_unsupported_reason(self.name, self.hosts, context)

    def _lacking(self, observation: Observation) -> tuple[Unknown, ...]:
        """The task whose need is unknown, for which all are left where they are."""
        tasks, unknown = observation.tasks, np.isnan(needs_of(observation)[:, 0])
        rows = np.flatnonzero((tasks.host >= 0) & unknown & np.isnan(tasks.column(Metric.BUSY_CORES)))
        named = (str(tasks.tasks[int(rows[0])]),) if rows.size else ()
        return tuple(Unknown(Metric.BUSY_CORES, Rows.TASK, task, "cannot place") for task in named)

    def _allocate(self, observation: Observation, background: Mapping[str, tuple[float, float]]) -> list[MoveTask]:
        tasks = observation.tasks
        usable = np.array(
            [row for row, host in enumerate(observation.hosts.ids) if _takes(observation, host)], dtype=np.int64
        )
        needs = needs_of(observation)
        mine = movable(observation, self.operators)
        if usable.size < 2 or not mine.size or np.isnan(needs[tasks.host >= 0]).any():
            return []
        sizes = capacities_of(observation, usable)
        rank = np.full(len(observation.hosts), -1, dtype=np.int64)
        rank[usable] = np.arange(usable.size)
        at = rank[tasks.host]
        base = load_before(observation, usable, mine, needs, background)
        free = free_slots(observation, usable, mine) if self.slots else None
        found = allocate(
            needs[mine], base, sizes, objective=Objective(self.objective), most=self.most, trials=self.trials, slots=free
        ).place
        if not self._better(needs[mine], base, sizes, at[mine], found):
            return []
        hosts = observation.hosts.ids
        return [
            MoveTask(tasks.tasks[row], hosts[usable[host]], why="allocated by its needs of cores and links")
            for row, host, before in zip(mine.tolist(), found.tolist(), at[mine].tolist(), strict=True)
            if host != before
        ]

    def _better(self, needs: Floats, base: Floats, sizes: Floats, now: Integers, then: Integers) -> bool:
        """Whether the allocation is worth its moves: higher utilisation, or a deviation lower by `worth`."""
        before, after = base.copy(), base.copy()
        np.add.at(before, now, needs)
        np.add.at(after, then, needs)
        gained = utilisation(after, sizes) - utilisation(before, sizes)
        was, will_be = deviation(before, sizes), deviation(after, sizes)
        return gained > ROUNDING or (gained > -ROUNDING and will_be < (1 - self.worth) * was and was - will_be > LEAST)


def _takes(observation: Observation, host: str) -> bool:
    return observation.leases[host].state is HostState.RUNNING


def movable(observation: Observation, operators: Sequence[str]) -> Integers:
    """Rows of the tasks of `operators` (all if empty) that are placed on running hosts."""
    tasks = observation.tasks
    takes = np.array([_takes(observation, host) for host in observation.hosts.ids], dtype=np.bool_)
    chosen = (tasks.host >= 0) & np.append(takes, False)[tasks.host]
    if operators:
        wanted = [row for name, row in observation.operators.rows.items() if name in operators]
        chosen &= np.isin(tasks.operator, wanted)
    return np.flatnonzero(chosen)


def needs_of(observation: Observation) -> Floats:
    """Cores of speed 1 and link bytes/s that each task needs; shape (tasks, 2), NaN if its cores are unknown.

    Measured use, times the overload r / s of its operator or of any operator upstream. An unknown exchange counts as 0.
    """
    tasks, graph, busy = observation.tasks, observation.context.graph, busy_of(observation)
    frame = observation.operators
    ratio = overload(frame.column(Metric.ARRIVAL_RATE), frame.column(Metric.PROCESSED_RATE))
    for source in graph.sources:
        row = frame.rows[source.name]
        ratio[row] = overload(frame.column(Metric.ARRIVAL_RATE), frame.column(Metric.EMITTED_RATE))[row]
    held = dict(zip(frame.ids, ratio.tolist(), strict=True))
    for name in graph.order:
        above = [held[edge.source] for edge in graph.inputs[name]]
        held[name] = max(held[name], *above) if above else held[name]
    factor = np.array([held[name] for name in frame.ids])[tasks.operator]
    return np.stack([busy * factor, sent_by(observation.exchange, len(tasks)) * factor], axis=1)


def sent_by(exchange: Exchange, tasks: int) -> Floats:
    """Bytes/s that each task sends and receives, on any host; shape (tasks,), 0 if unknown."""
    total = np.zeros(tasks)
    for side in (exchange.source, exchange.target):
        there = side >= 0
        total += np.bincount(side[there], exchange.rate[there], tasks)
    return total


def load_before(
    observation: Observation,
    rows: Integers,
    mine: Integers,
    needs: Floats,
    background: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> Floats:
    """F0: cores and link bytes/s that these hosts have in use without the tasks in `mine`; shape (rows, 2).

    That is what the other tasks need, and what no task explains: C0 and B_pre. needs: as `needs_of` has them. background:
    the latter by host, where more is known of it than is measured now.
    """
    tasks = observation.tasks
    rank = np.full(len(observation.hosts) + 1, -1, dtype=np.int64)
    rank[rows] = np.arange(rows.size)
    at = rank[tasks.host]
    others = np.setdiff1d(np.flatnonzero(at >= 0), mine)
    base = background_of(observation)
    for host, known in background.items():
        base[observation.hosts.rows[host]] = known
    base = base[rows]
    np.add.at(base, at[others], needs[others])
    return base


def background_of(observation: Observation) -> Floats:
    """Cores of speed 1 (C0) and link bytes/s (B_pre) that each host uses beyond its tasks, 0 where unknown; (hosts, 2)."""
    tasks, hosts = observation.tasks, observation.hosts
    placed = tasks.host >= 0
    own = np.bincount(tasks.host[placed], busy_of(observation)[placed], len(hosts))
    has = np.array([host_capacity(observation, host) for host in hosts.ids])
    cores = hosts.column(Metric.CPU) * has - own
    link = hosts.column(Metric.BANDWIDTH) - observation.exchange.over_links(tasks.host, len(hosts))
    found: Floats = np.nan_to_num(np.maximum(0.0, np.stack([cores, link], axis=1)))
    return found


def free_slots(observation: Observation, rows: Integers, mine: Integers) -> Integers:
    """Slots of these hosts that tasks other than those in `mine` leave; shape (rows,)."""
    held = np.bincount(observation.tasks.host[observation.tasks.host >= 0], minlength=len(observation.hosts))
    held -= np.bincount(observation.tasks.host[mine], minlength=len(observation.hosts))
    slots = np.array([observation.leases[observation.hosts.ids[row]].type.slots for row in rows.tolist()])
    return np.maximum(0, slots - held[rows])


def busy_of(observation: Observation) -> Floats:
    """Cores of speed 1 that each task was seen to use; shape (tasks,), NaN if unknown."""
    tasks, graph = observation.tasks, observation.context.graph
    busy = tasks.column(Metric.BUSY_CORES)
    if np.isnan(busy).all():
        cores = np.array([graph.by_name[name].cores for name in observation.operators.ids])
        busy = tasks.column(Metric.UTILISATION) * cores[tasks.operator]
    speeds = [*(observation.speeds.get(host, 1.0) for host in observation.hosts.ids), 1.0]  # the last: of tasks without one
    return np.asarray(busy * np.array(speeds)[tasks.host])


def capacities_of(observation: Observation, rows: Integers) -> Floats:
    """Cores of speed 1 and link bytes/s of these hosts, (rows, 2); unlimited links have ten times the total exchange."""
    hosts = [observation.hosts.ids[row] for row in rows.tolist()]
    cores = [host_capacity(observation, host) for host in hosts]
    given = [observation.leases[host].type.bandwidth for host in hosts]
    unlimited = 10 * max(1.0, float(observation.exchange.rate.sum()))
    return np.array([cores, [unlimited if link is None else link for link in given]]).T
