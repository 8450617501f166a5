"""Elastic Allocator: tasks placed by what they need of cores and links, beside others that run already.

From "Elastic Allocator: an adaptive task scheduler for streaming query in the cloud" (SOSE, 2014): its models of load and
of bandwidth (section IV), and the policy around its greedy matching, which is in `matching`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from elastream.model.action import MoveTask
from elastream.model.cloud import HostState
from elastream.model.errors import InputError
from elastream.model.observation import Exchange, Floats, Integers, Metric, Observation
from elastream.model.plant import Plan
from elastream.planning.algorithms.exact import deviation
from elastream.planning.algorithms.matching import ALIKE, Objective, allocate, utilisation
from elastream.planning.algorithms.measures import host_capacity
from elastream.planning.policies.static import missing_hosts

__all__ = ["ElasticAllocator", "capacities_of", "link_use", "movable", "needs_of", "node_load"]

TICK = 1e-6
"""Seconds by which a round may come early: times are sums of fractions."""


def node_load(demand: ArrayLike, received: ArrayLike, sent: ArrayLike, available: float, preserved: float = 0.0) -> float:
    """load(n), section IV-A: use of a host's cores by its operators and, before them, by the system (C0, a fraction).

    demand: e_j, cores an operator works with; received, sent: r_j and s_j, records/s that come to it and that it gets
    done; above 1, their ratio is an overload, and the operator needs that much more than it has. available: CS, cores.
    """
    e, r, s = (np.asarray(a, dtype=np.float64) for a in (demand, received, sent))
    return float((e * overload(r, s)).sum()) / available + preserved


def overload(received: Floats, sent: Floats) -> Floats:
    """r_j / s_j where it is above 1; 1 where an operator keeps up, or nothing is known of it."""
    ratio = np.divide(received, sent, out=np.ones(np.broadcast(received, sent).shape), where=sent > 0)
    return np.where(ratio > 1, ratio, 1.0)


def link_use(place: ArrayLike, use: ArrayLike, initial: ArrayLike) -> Floats:
    """B', section IV-B: bytes/s over each host's link, from what was there and the sum of what each task brings (A U).

    The paper's model is linear: a task brings the same wherever its partners are, so this is an upper bound.
    """
    before = np.asarray(initial, dtype=np.float64)
    return before + np.bincount(np.asarray(place), np.asarray(use, dtype=np.float64), before.size)


@dataclass(frozen=True)
class ElasticAllocator:
    """The policy: every `period` seconds tasks of `operators` are allocated beside all others.

    operators: names; all where none is given. objective: `utilisation` or `deviation`. most: part of a host that may be
    used. worth: by what fraction the deviation must fall for tasks to be moved again once they are placed. trials: the time
    limit. hosts: how many to hold leased; 0: those that are there. Nothing is moved while what tasks need is unknown.

    Its memory is the time of the next round.
    """

    operators: Sequence[str] = ()
    objective: str = Objective.DEVIATION.value
    most: float = 1.0
    period: float = 10.0
    worth: float = 0.05
    trials: int = 100_000_000
    hosts: int = 0

    def __post_init__(self) -> None:
        if self.objective not in tuple(Objective):
            raise InputError(f"objective is {self.objective!r}; it is {' or '.join(map(repr, map(str, Objective)))}")

    @property
    def name(self) -> str:
        """What people call it."""
        return "elastic_allocator"

    def plan(self, observation: Observation, memory: float | None = None) -> Plan:
        """Moves that this round's allocation calls for; none between two rounds."""
        if memory is not None and observation.time < memory - TICK:
            return Plan(memory=memory)
        actions = (*missing_hosts(observation, self.hosts), *self._allocate(observation))
        return Plan(actions, observation.time + self.period)

    def _allocate(self, observation: Observation) -> list[MoveTask]:
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
        others = np.setdiff1d(np.flatnonzero(at >= 0), mine)
        base = np.zeros(sizes.shape)
        np.add.at(base, at[others], needs[others])
        found = allocate(
            needs[mine], base, sizes, objective=Objective(self.objective), most=self.most, trials=self.trials
        ).place
        if not self._better(needs[mine], base, sizes, at[mine], found):
            return []
        hosts = observation.hosts.ids
        return [
            MoveTask(tasks.tasks[row], hosts[usable[host]], why="allocated by what it needs of cores and links")
            for row, host, before in zip(mine.tolist(), found.tolist(), at[mine].tolist(), strict=True)
            if host != before
        ]

    def _better(self, needs: Floats, base: Floats, sizes: Floats, now: Integers, then: Integers) -> bool:
        """Whether the allocation is worth its moves: more in use, or less uneven by `worth`."""
        before, after = base.copy(), base.copy()
        np.add.at(before, now, needs)
        np.add.at(after, then, needs)
        gained = utilisation(after, sizes) - utilisation(before, sizes)
        return gained > ALIKE or (
            gained > -ALIKE and deviation(after, sizes) < (1 - self.worth) * deviation(before, sizes) - ALIKE
        )


def _takes(observation: Observation, host: str) -> bool:
    return observation.leases[host].state is HostState.RUNNING


def movable(observation: Observation, operators: Sequence[str]) -> Integers:
    """Rows of the tasks of `operators`, of all where none is named, that stand on hosts which take tasks."""
    tasks = observation.tasks
    takes = np.array([_takes(observation, host) for host in observation.hosts.ids], dtype=np.bool_)
    chosen = (tasks.host >= 0) & np.append(takes, False)[tasks.host]
    if operators:
        wanted = [row for name, row in observation.operators.rows.items() if name in operators]
        chosen &= np.isin(tasks.operator, wanted)
    return np.flatnonzero(chosen)


def needs_of(observation: Observation) -> Floats:
    """Cores, and bytes/s of a link, that each task needs; shape (tasks, 2), NaN where the cores are unknown.

    What it was seen to use, times r / s of its operator and of the sources before it where these are held up. Links whose
    exchange is unknown are left out of the reckoning, as if nothing were sent.
    """
    tasks, graph = observation.tasks, observation.context.graph
    busy = tasks.column(Metric.BUSY_CORES)
    if np.isnan(busy).all():
        cores = np.array([graph.by_name[name].cores for name in observation.operators.ids])
        busy = tasks.column(Metric.UTILISATION) * cores[tasks.operator]
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
    """Bytes/s that each task sends and gets, wherever the others are; 0 where that is unknown."""
    total = np.zeros(tasks)
    for side in (exchange.source, exchange.target):
        there = side >= 0
        total += np.bincount(side[there], exchange.rate[there], tasks)
    return total


def capacities_of(observation: Observation, rows: Integers) -> Floats:
    """Cores and bytes/s of these hosts; an unlimited link counts as ten times what all tasks exchange."""
    hosts = [observation.hosts.ids[row] for row in rows.tolist()]
    cores = [host_capacity(observation, host) for host in hosts]
    given = [observation.leases[host].type.bandwidth for host in hosts]
    unlimited = 10 * max(1.0, float(observation.exchange.rate.sum()))
    return np.array([cores, [unlimited if link is None else link for link in given]]).T
