"""Elastic Allocator: tasks placed by what they need of cores and links, beside others that run already.

From "Elastic Allocator: an adaptive task scheduler for streaming query in the cloud" (SOSE, 2014). Its greedy matching
(Algorithm 1) tries each task on each host and keeps what makes the objective better, over and over until nothing does or
its time is up. Time is counted in trials here, so that the same question always has the same answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from elastream.model.action import Action, MoveTask
from elastream.model.cloud import HostState
from elastream.model.errors import InputError
from elastream.model.observation import Exchange, Floats, Integers, Metric, Observation
from elastream.planning.exact import deviation
from elastream.planning.measures import host_capacity
from elastream.planning.static import missing_hosts

__all__ = [
    "Allocation",
    "ElasticAllocator",
    "Level",
    "Objective",
    "allocate",
    "capacities_of",
    "levels",
    "link_use",
    "movable",
    "needs_of",
    "node_load",
    "utilisation",
]

TICK = 1e-6
"""Seconds by which a round may come early: times are sums of fractions."""
LIGHT, HEAVY = 0.4, 0.8
"""Utilisation below which a host is light, and from which it is heavy (paper, section IV-D)."""
ALIKE = 1e-9
"""Differences of the objective below this are rounding."""
BY_USE = 1e12
"""Weight of utilisation over deviation, where that comes first: any of it beats all of the other."""
BEYOND = 1e15
"""Weight of what a host would be used beyond what it may."""


SHAKEN, PATIENCE = 3, 200
"""Tasks moved by chance before all are tried again, and for how many such attempts a task without a gain."""


class Level(IntEnum):
    """How used a host is, by the more used of its cores and its link (paper, section IV-D)."""

    LIGHT = 0
    MODERATE = 1
    HEAVY = 2


class Objective(StrEnum):
    """What makes one placement better than another (paper, section IV-C)."""

    UTILISATION = "utilisation"
    """R_utl: of all cores and links the part in use, where no host is used beyond what it has. Of equals the more even."""
    DEVIATION = "deviation"
    """R_dev: how unevenly hosts are used."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """place: int64, host of each task. trials: pairs of task and host tried. rest: tasks that were placed on light hosts
    evenly, without a trial or because no host had room. passes: how often all tasks were gone through."""

    place: Integers
    trials: int
    passes: int
    rest: int


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


def levels(used: Floats) -> Integers:
    """`Level` of each host. used: utilisation, shape (hosts, resources)."""
    most = used.max(axis=1)
    return np.where(most < LIGHT, Level.LIGHT, np.where(most < HEAVY, Level.MODERATE, Level.HEAVY)).astype(np.int64)


def utilisation(loads: Floats, capacities: Floats) -> float:
    """R_utl over cores and links: the mean of what is used of each, no host counted beyond what it has.

    loads, capacities: shape (hosts,) or (hosts, resources).
    """
    return float((np.minimum(loads, capacities).sum(axis=0) / capacities.sum(axis=0)).mean())


def allocate(
    needs: ArrayLike,
    base: ArrayLike,
    capacities: ArrayLike,
    *,
    objective: Objective = Objective.DEVIATION,
    most: float = 1.0,
    trials: int = 100_000_000,
    begin: Integers | None = None,
) -> Allocation:
    """Greedy matching (Algorithm 1).

    needs: float64 of shape (tasks, resources). base: what is used of hosts already (F0), shape (hosts, resources).
    capacities: likewise. most: part of a host that may be used, D_CPU and D_BW. trials: the time limit, in pairs of a task
    and a host. begin: where tasks are now; those at -1, or all, are placed first.

    First each task, in its order, goes where the objective is best, on hosts of the lightest level that has room for it.
    Then every task is tried on every other host, and every two on each other's, as long as that makes it better; and then,
    while trials last and it still pays, a few are moved by chance and all are tried again.

    When the trials are used up,
    tasks not placed yet are spread evenly over light hosts, or over the least used ones where none is light; so is, at
    once, a task for which no host has room. Raises InputError where needs are unknown or there is no host.
    """
    wants, used, sizes = (np.ascontiguousarray(a, dtype=np.float64) for a in (needs, base, capacities))
    if wants.ndim != 2 or used.shape != sizes.shape or used.ndim != 2 or wants.shape[1] != used.shape[1] or not len(used):
        raise InputError(f"needs of shape {wants.shape} on hosts of shapes {used.shape} and {sizes.shape} do not fit")
    if np.isnan(wants).any() or np.isnan(used).any() or not (sizes > 0).all():
        raise InputError("what tasks need, or what hosts have, is unknown")
    place = np.full(len(wants), -1, dtype=np.int64) if begin is None else np.array(begin, dtype=np.int64)
    load = used.copy()
    here = place >= 0
    np.add.at(load, place[here], wants[here])
    tried, passes, rest = _search(wants, load, sizes, place, most, trials, objective is Objective.UTILISATION)
    return Allocation(place, tried, passes, rest)


@njit(cache=True)
def _match(
    wants: Floats, load: Floats, sizes: Floats, place: Integers, most: float, trials: int, utilise: bool
) -> tuple[int, int]:
    """Place what is at -1, task by task; `place` and `load` are brought up to date.

    Returns (trials, tasks placed as best as could be).
    """
    tasks, kinds = wants.shape
    hosts = sizes.shape[0]
    inverse = 1 / sizes
    used = load * inverse
    totals = np.zeros(kinds)
    level = np.zeros(hosts, dtype=np.int64)
    for h in range(hosts):
        for k in range(kinds):
            totals[k] += used[h, k]
        level[h] = _level(used, h)
    tried = rest = 0
    for i in range(tasks):
        if place[i] >= 0:
            continue
        chosen = -1
        if tried + hosts <= trials:
            tried += hosts
            best, lowest = np.inf, 3
            for h in range(hosts):
                if level[h] > lowest:
                    continue
                # Of the deviation it is the change of its square times the number of hosts, n sum(u^2) - (sum u)^2.
                worth = gained = 0.0
                fits = True
                for k in range(kinds):
                    part, before = wants[i, k] * inverse[h, k], used[h, k]
                    after = before + part
                    fits = fits and (after <= most + ALIKE or part == 0)
                    worth += hosts * part * (before + after) - part * (2 * totals[k] + part)
                    gained += min(1.0, after) - min(1.0, before)
                if utilise and gained > ALIKE:
                    worth -= BY_USE * gained
                if fits and (level[h] < lowest or worth < best - 1e-15):
                    best, lowest, chosen = worth, level[h], h
        if chosen < 0:
            rest += 1
            chosen = _least_used(used, level)
        place[i] = chosen
        for k in range(kinds):
            part = wants[i, k] * inverse[chosen, k]
            load[chosen, k] += wants[i, k]
            used[chosen, k] += part
            totals[k] += part
        level[chosen] = _level(used, chosen)
    return tried, rest


@njit(cache=True)
def _improve(
    wants: Floats, load: Floats, sizes: Floats, place: Integers, most: float, left: int, utilise: bool
) -> tuple[int, int]:
    """Try every task on every other host, and every two on each other's, as long as that makes it better.

    Returns (trials, passes); stops when `left` trials are used up.
    """
    tasks, kinds = wants.shape
    hosts = sizes.shape[0]
    totals = np.zeros(kinds)
    for h in range(hosts):
        for k in range(kinds):
            totals[k] += load[h, k] / sizes[h, k]
    tried = passes = 0
    better = True
    while better:
        better = False
        passes += 1
        for i in range(tasks):
            if tried + hosts + tasks > left:
                return tried, passes
            a = place[i]
            best, chosen, other = -ALIKE, -1, -1
            tried += hosts
            for h in range(hosts):
                if h != a and _fits(wants[i], load[h], sizes[h], most):
                    worth = _shifted(wants[i], load, sizes, totals, a, h, utilise)
                    if worth < best:
                        best, chosen = worth, h
            if chosen < 0:
                tried += tasks - i
                for j in range(i + 1, tasks):
                    b = place[j]
                    if b != a:
                        change = wants[i] - wants[j]
                        if _fits(change, load[b], sizes[b], most) and _fits(-change, load[a], sizes[a], most):
                            worth = _shifted(change, load, sizes, totals, a, b, utilise)
                            if worth < best:
                                best, chosen, other = worth, b, j
            if chosen >= 0:
                better = True
                moved = wants[i].copy()
                place[i] = chosen
                if other >= 0:
                    moved -= wants[other]
                    place[other] = a
                for k in range(kinds):
                    load[a, k] -= moved[k]
                    load[chosen, k] += moved[k]
                    totals[k] += moved[k] * (1 / sizes[chosen, k] - 1 / sizes[a, k])
    return tried, passes


@njit(cache=True)
def _search(
    wants: Floats, load: Floats, sizes: Floats, place: Integers, most: float, trials: int, utilise: bool
) -> tuple[int, int, int]:
    """Place, improve, and as long as there is time and it pays, shake what is placed and improve again, keeping the best.

    Returns (trials, passes, tasks placed as best as could be); `place` is brought up to date.
    """
    tasks, hosts = wants.shape[0], sizes.shape[0]
    tried, rest = _match(wants, load, sizes, place, most, trials, utilise)
    more, passes = _improve(wants, load, sizes, place, most, trials - tried, utilise)
    tried, passes = tried + more, passes + 1
    best = _worth(load, sizes, most, utilise)
    at, held = place.copy(), load.copy()
    draw, idle = 12345, 0
    while idle < PATIENCE * tasks and tried + 2 * (hosts + tasks) * tasks <= trials:
        for _ in range(SHAKEN):
            draw = (draw * 1103515245 + 12345) % 2147483648
            i = (draw >> 8) % tasks
            draw = (draw * 1103515245 + 12345) % 2147483648
            h = (draw >> 8) % hosts
            if h != at[i]:
                held[at[i]] -= wants[i]
                held[h] += wants[i]
                at[i] = h
        more, _ = _improve(wants, held, sizes, at, most, trials - tried, utilise)
        tried, passes, idle = tried + more, passes + 1, idle + 1
        worth = _worth(held, sizes, most, utilise)
        if worth < best - ALIKE:
            best, idle = worth, 0
            place[:] = at
            load[:] = held
        else:
            at[:] = place
            held[:] = load
    return tried, passes, rest


@njit(cache=True)
def _fits(want: Floats, load: Floats, size: Floats, most: float) -> bool:
    fits = True
    for k in range(want.size):
        fits = fits and (want[k] <= 0 or load[k] + want[k] <= most * size[k] + ALIKE)
    return fits


@njit(cache=True)
def _worth(load: Floats, sizes: Floats, most: float, utilise: bool) -> float:
    """The objective, less being better: n sum(u^2) - (sum u)^2, before it what is in use where that comes first, and before
    both what is above the part of hosts that may be used."""
    worth = used = 0.0
    hosts, kinds = sizes.shape
    for k in range(kinds):
        total = squares = 0.0
        for h in range(hosts):
            u = load[h, k] / sizes[h, k]
            total += u
            squares += u * u
            used += min(1.0, u)
            worth += BEYOND * max(0.0, u - most - ALIKE)
        worth += hosts * squares - total * total
    return worth - BY_USE * np.round(used, 9) if utilise else worth


@njit(cache=True)
def _level(used: Floats, h: int) -> int:
    most = used[h].max()
    return 0 if most < LIGHT else 1 if most < HEAVY else 2


@njit(cache=True)
def _least_used(used: Floats, level: Integers) -> int:
    """Of the lightest level that there is, the host that is used least: so what is left is spread evenly."""
    chosen, best = 0, np.inf
    lowest = level.min()
    for h in range(level.size):
        if level[h] == lowest and used[h].max() < best:
            chosen, best = h, used[h].max()
    return chosen


@njit(cache=True)
def _shifted(moved: Floats, load: Floats, sizes: Floats, totals: Floats, a: int, b: int, utilise: bool) -> float:
    """Change of the objective, less being better, where `moved` of each resource goes from host `a` to host `b`."""
    change = used = 0.0
    hosts = sizes.shape[0]
    for k in range(sizes.shape[1]):
        less, more = moved[k] / sizes[a, k], moved[k] / sizes[b, k]
        here, there = load[a, k] / sizes[a, k], load[b, k] / sizes[b, k]
        shift = more - less
        change += hosts * (more * (2 * there + more) - less * (2 * here - less)) - shift * (2 * totals[k] + shift)
        used += min(1.0, there + more) - min(1.0, there) + min(1.0, here - less) - min(1.0, here)
    return change - BY_USE * used if utilise and abs(used) > ALIKE else change


@dataclass
class ElasticAllocator:
    """The policy: every `period` seconds tasks of `operators` are allocated beside all others.

    operators: names; all where none is given. objective: `utilisation` or `deviation`. most: part of a host that may be
    used. worth: by what fraction the deviation must fall for tasks to be moved again once they are placed. trials: the time
    limit. hosts: how many to hold leased; 0: those that are there. Nothing is moved while what tasks need is unknown.
    """

    operators: Sequence[str] = ()
    objective: str = Objective.DEVIATION.value
    most: float = 1.0
    period: float = 10.0
    worth: float = 0.05
    trials: int = 100_000_000
    hosts: int = 0
    _due: float = field(default=-math.inf, init=False, repr=False, compare=False)
    _last: tuple[float, tuple[Action, ...]] = field(default=(-math.inf, ()), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.objective not in tuple(Objective):
            raise InputError(f"objective is {self.objective!r}; it is {' or '.join(map(repr, map(str, Objective)))}")

    @property
    def name(self) -> str:
        """What people call it."""
        return "elastic_allocator"

    def plan(self, observation: Observation) -> Sequence[Action]:
        """Moves that this round's allocation asks for; none between two rounds."""
        now = observation.time
        if now == self._last[0]:
            return self._last[1]
        actions: tuple[Action, ...] = ()
        if now >= self._due - TICK:
            self._due = now + self.period
            actions = (*missing_hosts(observation, self.hosts), *self._allocate(observation))
        self._last = (now, actions)
        return actions

    def _allocate(self, observation: Observation) -> list[Action]:
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
