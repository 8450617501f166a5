"""Elastic Allocator: places tasks by their needs of cores and links, beside other load.

From "Elastic Allocator: an adaptive task scheduler for streaming query in the cloud" (SOSE, 2014), section IV.
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

# Seconds after a move before measurements show the new placement, unless a batch began since.
SETTLES = 10.0
# Averaging time of background load (s).
OVER = 30.0
# Least gain of deviation, as a share of the hosts' capacity.
LEAST = 0.01


def overload(received: Floats, sent: Floats) -> Floats:
    """Return the overload factor r_j / s_j (section IV-A), 1 if the operator keeps up or rates are unknown."""
    ratio = np.divide(received, sent, out=np.ones(np.broadcast(received, sent).shape), where=sent > 0)
    return np.where(ratio > 1, ratio, 1.0)


@dataclass(frozen=True, slots=True)
class AllocatorMemory:
    """Memory of the policy."""

    round: float = -math.inf  # time of the next round
    changed: float = -math.inf  # last change of hosts or of tasks' places
    hosts: frozenset[str] = frozenset()
    # cores and link bytes/s by host, moving means while nothing changed
    background: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    measured: float = math.nan  # time of the newest such measurement
    began: float = math.nan  # start of the newest committed micro-batch, NaN without

    def after(self, observation: Observation) -> "AllocatorMemory":
        """Return the memory, updated with an observation."""
        hosts = frozenset(observation.usable)
        changed = observation.time if observation.moving or (self.hosts and hosts != self.hosts) else self.changed
        began = max((batch.start for batch in observation.batches), default=self.began)
        now = replace(self, changed=changed, hosts=hosts, began=began)
        if not now.settled(observation):
            return now
        weight = 1.0 if math.isnan(self.measured) else 1 - math.exp(-(observation.time - self.measured) / OVER)
        means: dict[str, tuple[float, float]] = {}
        unknown = np.isnan(observation.hosts.column(Metric.CPU)).tolist()
        for host, lacks, (cores, link) in zip(
            observation.hosts.ids, unknown, background_of(observation).tolist(), strict=True
        ):
            was = self.background.get(host)
            if not lacks:
                was_cores, was_link = was or (cores, link)
                means[host] = (was_cores + weight * (cores - was_cores), was_link + weight * (link - was_link))
            elif was is not None:
                means[host] = was
        return replace(now, background=means, measured=observation.time)

    def settled(self, observation: Observation) -> bool:
        """Return True if host measurements belong to the current placement, from a batch that began after it."""
        settles = self.changed + SETTLES
        if math.isnan(self.began):
            return observation.time - observation.hosts.age(Metric.CPU) >= settles
        return observation.time >= settles and self.began >= self.changed


@dataclass(frozen=True)
class ElasticAllocator(Policy):
    """Elastic Allocator policy: every `period` seconds, `operators` are allocated beside all other load.

    Other use of a host counts as its load before (C0, B_pre; section IV). Unmeasured work of tasks is in it and moves along
    with them, so a round waits until measurements belong to the current placement.

    Args:
        operators: Names; empty for all.
        objective: `utilisation` or `deviation`.
        most: Allowed part of a host's capacity.
        worth: Least relative drop of the deviation that justifies moves.
        trials: Time limit of the matching.
        slots: Each task fills a slot, as on Storm; otherwise tasks share cores.
        hosts: Hosts to keep leased; 0 for those present.
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
    name: ClassVar = "elastic_allocator"

    def plan(self, observation: Observation, memory: AllocatorMemory | None = None) -> Plan:
        """Return the moves of this round; none between rounds or before measurements settle."""
        settling = (memory or AllocatorMemory()).after(observation)
        if observation.time < settling.round - TICK:
            return Plan(memory=settling)
        moves: list[MoveTask] = []
        if settling.settled(observation):
            moves = self._allocate(observation, settling.background)
            changed = observation.time if moves else settling.changed
            settling = replace(settling, round=observation.time + self.period, changed=changed)
        actions = (*missing_hosts(observation, self.hosts), *moves)
        return Plan(actions, settling, unknown=self._lacking(observation))

    def unsupported_reason(self, context: Context) -> str | None:
        """Return a sentence if hosts or placement do not fit, otherwise None."""
        return placement_unsupported_reason(self.name, self.hosts, context)

    def _lacking(self, observation: Observation) -> tuple[Unknown, ...]:
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
        placement = allocate(
            needs[mine], base, sizes, objective=Objective(self.objective), most=self.most, trials=self.trials, slots=free
        ).place
        if not self._better(needs[mine], base, sizes, at[mine], placement):
            return []
        hosts = observation.hosts.ids
        return [
            MoveTask(tasks.tasks[row], hosts[usable[host]], why="allocated by its needs of cores and links")
            for row, host, before in zip(mine.tolist(), placement.tolist(), at[mine].tolist(), strict=True)
            if host != before
        ]

    def _better(self, needs: Floats, base: Floats, sizes: Floats, now: Integers, then: Integers) -> bool:
        before, after = base.copy(), base.copy()
        np.add.at(before, now, needs)
        np.add.at(after, then, needs)
        gained = utilisation(after, sizes) - utilisation(before, sizes)
        was, will_be = deviation(before, sizes), deviation(after, sizes)
        return gained > ROUNDING or (gained > -ROUNDING and will_be < (1 - self.worth) * was and was - will_be > LEAST)


def _takes(observation: Observation, host: str) -> bool:
    return observation.leases[host].state is HostState.RUNNING


def movable(observation: Observation, operators: Sequence[str]) -> Integers:
    """Return rows of the tasks of `operators` (empty: all) on running hosts."""
    tasks = observation.tasks
    takes = np.array([_takes(observation, host) for host in observation.hosts.ids], dtype=np.bool_)
    chosen = (tasks.host >= 0) & np.append(takes, False)[tasks.host]
    if operators:
        rows = [row for name, row in observation.operators.rows.items() if name in operators]
        chosen &= np.isin(tasks.operator, rows)
    return np.flatnonzero(chosen)


def needs_of(observation: Observation) -> Floats:
    """Return cores of speed 1 and link bytes/s that each task needs, shape (tasks, 2); NaN if cores are unknown.

    Measured use times the overload of its operator or any upstream one. Unknown traffic counts as 0.
    """
    tasks, graph, busy = observation.tasks, observation.context.graph, busy_of(observation)
    frame = observation.operators
    ratio = overload(frame.column(Metric.ARRIVAL_RATE), frame.column(Metric.PROCESSED_RATE))
    for source in graph.sources:
        row = frame.rows[source.name]
        ratio[row] = overload(frame.column(Metric.ARRIVAL_RATE), frame.column(Metric.EMITTED_RATE))[row]
    ratios = dict(zip(frame.ids, ratio.tolist(), strict=True))
    for name in graph.order:
        above = [ratios[edge.source] for edge in graph.inputs[name]]
        ratios[name] = max(ratios[name], *above) if above else ratios[name]
    factor = np.array([ratios[name] for name in frame.ids])[tasks.operator]
    return np.stack([busy * factor, sent_by(observation.exchange, len(tasks)) * factor], axis=1)


def sent_by(exchange: Exchange, tasks: int) -> Floats:
    """Return bytes/s that each task sends and receives, 0 if unknown."""
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
    """Return F0: use of these hosts without the tasks in `mine`, shape (rows, 2).

    Args:
        needs: From `needs_of`.
        background: Averaged C0 and B_pre by host, instead of current ones.
    """
    tasks = observation.tasks
    rank = np.full(len(observation.hosts) + 1, -1, dtype=np.int64)
    rank[rows] = np.arange(rows.size)
    at = rank[tasks.host]
    others = np.setdiff1d(np.flatnonzero(at >= 0), mine)
    base = background_of(observation)
    for host, load in background.items():
        base[observation.hosts.rows[host]] = load
    base = base[rows]
    np.add.at(base, at[others], needs[others])
    return base


def background_of(observation: Observation) -> Floats:
    """Return cores (C0) and link bytes/s (B_pre) that each host uses beyond its tasks, shape (hosts, 2)."""
    tasks, hosts = observation.tasks, observation.hosts
    placed = tasks.host >= 0
    own = np.bincount(tasks.host[placed], busy_of(observation)[placed], len(hosts))
    has = np.array([host_capacity(observation, host) for host in hosts.ids])
    cores = hosts.column(Metric.CPU) * has - own
    link = hosts.column(Metric.BANDWIDTH) - observation.exchange.over_links(tasks.host, len(hosts))
    background: Floats = np.nan_to_num(np.maximum(0.0, np.stack([cores, link], axis=1)))
    return background


def free_slots(observation: Observation, rows: Integers, mine: Integers) -> Integers:
    """Return slots of these hosts without the tasks in `mine`."""
    used = np.bincount(observation.tasks.host[observation.tasks.host >= 0], minlength=len(observation.hosts))
    used -= np.bincount(observation.tasks.host[mine], minlength=len(observation.hosts))
    slots = np.array([observation.leases[observation.hosts.ids[row]].type.slots for row in rows.tolist()])
    return np.maximum(0, slots - used[rows])


def busy_of(observation: Observation) -> Floats:
    """Return the measured cores of speed 1 of each task, NaN if unknown."""
    tasks, graph = observation.tasks, observation.context.graph
    busy = tasks.column(Metric.BUSY_CORES)
    if np.isnan(busy).all():
        cores = np.array([graph.by_name[name].cores for name in observation.operators.ids])
        busy = tasks.column(Metric.UTILISATION) * cores[tasks.operator]
    speeds = [*(observation.speeds.get(host, 1.0) for host in observation.hosts.ids), 1.0]  # the last: of tasks without one
    return np.asarray(busy * np.array(speeds)[tasks.host])


def capacities_of(observation: Observation, rows: Integers) -> Floats:
    """Return cores of speed 1 and link bytes/s, shape (rows, 2). Unlimited links have ten times the total traffic."""
    hosts = [observation.hosts.ids[row] for row in rows.tolist()]
    cores = [host_capacity(observation, host) for host in hosts]
    links = [observation.leases[host].type.bandwidth for host in hosts]
    unlimited = 10 * max(1.0, float(observation.exchange.rate.sum()))
    return np.array([cores, [unlimited if link is None else link for link in links]]).T
