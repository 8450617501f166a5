"""Elastic Allocator: places tasks by their needs of cores and links, beside other load.

From "Elastic Allocator: an adaptive task scheduler for streaming query in the cloud" (SOSE, 2014), section IV. Time is
counted in trials, so results are deterministic.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from elastream.core.action import MoveTask
from elastream.core.decision import Unknown
from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Context, Exchange, Observation
from elastream.core.plant import Plan, Policy
from elastream.errors import InputError
from elastream.policies.common.measures import TICK, host_capacity
from elastream.policies.static import missing_hosts, placement_unsupported_reason
from elastream.units import ROUNDING

# Utilisation below which a host is light, and from which it is heavy (paper, section IV-D).
LIGHT, HEAVY = 0.4, 0.8
# Weight of utilisation against deviation for Objective.UTILISATION: makes the order lexicographic.
BY_USE = 1e12
# Weight of load above the allowed part of a host.
BEYOND = 1e15
# Capacity of a host without a free slot: must be above 0.
NO_SLOT = 1e-6
# Tasks moved at random per perturbation, and perturbations per task without a gain before stopping.
SHAKEN, PATIENCE = 3, 200


class Level(IntEnum):
    """Load level of a host, by the more utilised of its cores and link (paper, section IV-D)."""

    LIGHT = 0
    MODERATE = 1
    HEAVY = 2


class Objective(StrEnum):
    """Objective of a placement (paper, section IV-C)."""

    # R_utl, maximised: utilisation of all cores and links, at most 1 per host; ties by R_dev.
    UTILISATION = "utilisation"
    # R_dev, minimised: unevenness of utilisation (`deviation`).
    DEVIATION = "deviation"


def deviation(loads: Floats, capacities: Floats) -> float:
    """Return R_dev: root of the summed squared differences of utilisation from its mean over hosts."""
    used = loads / capacities
    return float(np.sqrt(((used - used.mean(axis=0)) ** 2).sum()))


def columns(needs: ArrayLike, base: ArrayLike, capacities: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Return needs, base loads and capacities as arrays. Raises InputError if their shapes differ."""
    wants, used, sizes = (np.ascontiguousarray(a, dtype=np.float64) for a in (needs, base, capacities))
    if wants.ndim != 2 or used.shape != sizes.shape or used.ndim != 2 or wants.shape[1] != used.shape[1] or not len(used):
        raise InputError(f"needs of shape {wants.shape} do not match hosts of shapes {used.shape} and {sizes.shape}")
    return wants, used, sizes


@dataclass(frozen=True, slots=True)
class Matching:
    place: Integers  # host of each task
    trials: int  # pairs of task and host tried
    rest: int  # tasks spread over light hosts for lack of trials or room


def levels(used: Floats) -> Integers:
    """Return the `Level` of each host. `used` is utilisation, shape (hosts, resources)."""
    most = used.max(axis=1)
    return np.where(most < LIGHT, Level.LIGHT, np.where(most < HEAVY, Level.MODERATE, Level.HEAVY)).astype(np.int64)


def utilisation(loads: Floats, capacities: Floats) -> float:
    """Return R_utl: mean over resources of used over total capacity, each host capped at its capacity."""
    return float((np.minimum(loads, capacities).sum(axis=0) / capacities.sum(axis=0)).mean())


def allocate(
    needs: ArrayLike,
    base: ArrayLike,
    capacities: ArrayLike,
    *,
    objective: Objective = Objective.DEVIATION,
    most: float = 1.0,
    trials: int = 100_000_000,
    slots: ArrayLike | None = None,
    search: bool = True,
) -> Matching:
    """Return a greedy matching (Algorithm 1), improved by a search.

    Each task goes to the best host of the lightest level with room; those without room are spread over light hosts. With
    `search`, moves and exchanges then improve the objective, from random starts.

    Args:
        base: Load of the hosts before (F0), shape (hosts, resources).
        most: Allowed part of a host's capacity (D_CPU, D_BW).
        slots: Free slots of each host (section IV-D); None for any number.
    """
    wants, used, sizes = columns(needs, base, capacities)
    if np.isnan(wants).any() or np.isnan(used).any() or not (sizes > 0).all():
        raise InputError("the needs of tasks, or the capacities of hosts, are unknown")
    place = np.full(len(wants), -1, dtype=np.int64)
    scored = wants.shape[1]
    if slots is not None:
        # A slot is one more resource, of which each task needs one; it counts in no objective and in no level.
        free = np.maximum(np.asarray(slots, dtype=np.float64), NO_SLOT) / most
        wants = np.column_stack([wants, np.ones(len(wants))])
        used, sizes = np.column_stack([used, np.zeros(len(used))]), np.column_stack([sizes, free])
    match = _search if search else _match
    tried, rest = match(wants, used.copy(), sizes, place, most, trials, objective is Objective.UTILISATION, scored)
    return Matching(place, tried, rest)


@njit(cache=True)
def _match(  # noqa: C901
    wants: Floats, load: Floats, sizes: Floats, place: Integers, most: float, trials: int, utilise: bool, scored: int
) -> tuple[int, int]:
    """Place tasks one by one. Returns (trials, tasks without trial or room)."""
    tasks, kinds = wants.shape
    hosts = sizes.shape[0]
    inverse = 1 / sizes
    used = load * inverse
    totals = np.zeros(kinds)
    level = np.zeros(hosts, dtype=np.int64)
    for h in range(hosts):
        for k in range(kinds):
            totals[k] += used[h, k]
        level[h] = _level(used[h, :scored])
    tried = rest = 0
    for i in range(tasks):
        chosen = -1
        if tried + hosts <= trials:
            tried += hosts
            best, lowest = np.inf, 3
            for h in range(hosts):
                if level[h] > lowest:
                    continue
                # Change of the squared deviation times the number of hosts, n sum(u^2) - (sum u)^2.
                worth = gained = 0.0
                fits = True
                for k in range(kinds):
                    part, before = wants[i, k] * inverse[h, k], used[h, k]
                    after = before + part
                    fits = fits and (after <= most + ROUNDING or part == 0)
                    if k >= scored:
                        continue
                    worth += hosts * part * (before + after) - part * (2 * totals[k] + part)
                    gained += min(1.0, after) - min(1.0, before)
                if utilise and gained > ROUNDING:
                    worth -= BY_USE * gained
                if fits and (level[h] < lowest or worth < best - 1e-15):
                    best, lowest, chosen = worth, level[h], h
        if chosen < 0:
            rest += 1
            chosen = _least_used(used, level, scored, most)
        place[i] = chosen
        for k in range(kinds):
            part = wants[i, k] * inverse[chosen, k]
            load[chosen, k] += wants[i, k]
            used[chosen, k] += part
            totals[k] += part
        level[chosen] = _level(used[chosen, :scored])
    return tried, rest


@njit(cache=True)
def _improve(  # noqa: C901
    wants: Floats, load: Floats, sizes: Floats, place: Integers, most: float, left: int, utilise: bool, scored: int
) -> int:
    tasks, kinds = wants.shape
    hosts = sizes.shape[0]
    totals = np.zeros(kinds)
    for h in range(hosts):
        for k in range(kinds):
            totals[k] += load[h, k] / sizes[h, k]
    tried = 0
    better = True
    while better:
        better = False
        for i in range(tasks):
            if tried + hosts + tasks > left:
                return tried
            a = place[i]
            best, chosen, other = -ROUNDING, -1, -1
            tried += hosts
            for h in range(hosts):
                if h != a and _fits(wants[i], load[h], sizes[h], most):
                    worth = _shifted(wants[i], load, sizes, totals, a, h, utilise, scored)
                    if worth < best:
                        best, chosen = worth, h
            if chosen < 0:
                tried += tasks - i
                for j in range(i + 1, tasks):
                    b = place[j]
                    if b != a:
                        change = wants[i] - wants[j]
                        if _fits(change, load[b], sizes[b], most) and _fits(-change, load[a], sizes[a], most):
                            worth = _shifted(change, load, sizes, totals, a, b, utilise, scored)
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
    return tried


@njit(cache=True)
def _search(
    wants: Floats, load: Floats, sizes: Floats, place: Integers, most: float, trials: int, utilise: bool, scored: int
) -> tuple[int, int]:
    """Place and improve, then perturb and improve while gains occur. Returns as `_match`."""
    tasks, hosts = wants.shape[0], sizes.shape[0]
    tried, rest = _match(wants, load, sizes, place, most, trials, utilise, scored)
    tried += _improve(wants, load, sizes, place, most, trials - tried, utilise, scored)
    best = _objective(load, sizes, most, utilise, scored)
    at, tried_load = place.copy(), load.copy()
    draw, idle = 12345, 0
    while idle < PATIENCE * tasks and tried + 2 * (hosts + tasks) * tasks <= trials:
        for _ in range(SHAKEN):
            draw = (draw * 1103515245 + 12345) % 2147483648
            i = (draw >> 8) % tasks
            draw = (draw * 1103515245 + 12345) % 2147483648
            h = (draw >> 8) % hosts
            if h != at[i]:
                tried_load[at[i]] -= wants[i]
                tried_load[h] += wants[i]
                at[i] = h
        tried += _improve(wants, tried_load, sizes, at, most, trials - tried, utilise, scored)
        idle += 1
        worth = _objective(tried_load, sizes, most, utilise, scored)
        if worth < best - ROUNDING:
            best, idle = worth, 0
            place[:] = at
            load[:] = tried_load
        else:
            at[:] = place
            tried_load[:] = load
    return tried, rest


@njit(cache=True)
def _fits(want: Floats, load: Floats, size: Floats, most: float) -> bool:
    fits = True
    for k in range(want.size):
        fits = fits and (want[k] <= 0 or load[k] + want[k] <= most * size[k] + ROUNDING)
    return fits


@njit(cache=True)
def _objective(load: Floats, sizes: Floats, most: float, utilise: bool, scored: int) -> float:
    """Return the objective, lexicographic: overload, negative utilisation, n sum(u^2) - (sum u)^2."""
    worth = used = 0.0
    hosts, kinds = sizes.shape
    for k in range(kinds):
        total = squares = 0.0
        for h in range(hosts):
            u = load[h, k] / sizes[h, k]
            total += u
            squares += u * u
            used += min(1.0, u) if k < scored else 0.0
            worth += BEYOND * max(0.0, u - most - ROUNDING)
        worth += hosts * squares - total * total if k < scored else 0.0
    return worth - BY_USE * np.round(used, 9) if utilise else worth


@njit(cache=True)
def _level(used: Floats) -> int:
    most = used.max()
    return 0 if most < LIGHT else 1 if most < HEAVY else 2


@njit(cache=True)
def _least_used(used: Floats, level: Integers, scored: int, most: float) -> int:
    chosen, best, lowest, crowded = 0, np.inf, 3, True
    for h in range(level.size):
        full = False
        for k in range(scored, used.shape[1]):
            full = full or used[h, k] >= most - ROUNDING
        busy = used[h, :scored].max()
        if (crowded, lowest, best) > (full, level[h], busy):
            chosen, best, lowest, crowded = h, busy, level[h], full
    return chosen


@njit(cache=True)
def _shifted(
    moved: Floats, load: Floats, sizes: Floats, totals: Floats, a: int, b: int, utilise: bool, scored: int
) -> float:
    change = used = 0.0
    hosts = sizes.shape[0]
    for k in range(scored):
        less, more = moved[k] / sizes[a, k], moved[k] / sizes[b, k]
        load_a, load_b = load[a, k] / sizes[a, k], load[b, k] / sizes[b, k]
        shift = more - less
        change += hosts * (more * (2 * load_b + more) - less * (2 * load_a - less)) - shift * (2 * totals[k] + shift)
        used += min(1.0, load_b + more) - min(1.0, load_b) + min(1.0, load_a - less) - min(1.0, load_a)
    return change - BY_USE * used if utilise and abs(used) > ROUNDING else change


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
    round: float = -math.inf  # time of the next round
    changed: float = -math.inf  # last change of hosts or of tasks' places
    hosts: frozenset[str] = frozenset()
    # cores and link bytes/s by host, moving means while nothing changed
    background: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    measured: float = math.nan  # time of the newest such measurement
    began: float = math.nan  # start of the newest committed micro-batch, NaN without

    def after(self, observation: Observation) -> "AllocatorMemory":
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
    """Elastic Allocator policy: allocates `operators` beside all other load (C0, B_pre; section IV) every `period` seconds.

    A round waits until measurements belong to the current placement, since unmeasured work moves along with its tasks.

    Args:
        operators: Names; empty for all.
        objective: `utilisation` or `deviation`.
        most: Allowed part of a host's capacity.
        worth: Least relative drop of the deviation that justifies moves.
        trials: Time limit of the matching.
        search: Improve the matching. False: Algorithm 1 as published.
        slots: Each task fills a slot, as on Storm; otherwise tasks share cores.
    """

    operators: Sequence[str] = ()
    objective: str = Objective.DEVIATION.value
    most: float = 1.0
    period: float = 10.0
    worth: float = 0.05
    trials: int = 100_000_000
    search: bool = True
    slots: bool = False
    hosts: int = 0

    def __post_init__(self) -> None:
        if self.objective not in tuple(Objective):
            raise InputError(f"objective is {self.objective!r}; it must be {' or '.join(map(repr, map(str, Objective)))}")

    needs: ClassVar[Needs] = frozenset({(Rows.TASK, Metric.BUSY_CORES)})
    wants_traffic: ClassVar = True
    places_stateless: ClassVar = True
    name: ClassVar = "elastic_allocator"

    def plan(self, observation: Observation, memory: AllocatorMemory | None = None) -> Plan:
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
            needs[mine],
            base,
            sizes,
            objective=Objective(self.objective),
            most=self.most,
            trials=self.trials,
            slots=free,
            search=self.search,
        ).place
        if self.search and not self._better(needs[mine], base, sizes, at[mine], placement):
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
    """Return the sum of the bytes/s that each task sends and receives; 0 if unknown."""
    total = np.zeros(tasks)
    for side in (exchange.source, exchange.target):
        on_host = side >= 0
        total += np.bincount(side[on_host], exchange.rate[on_host], tasks)
    return total


def load_before(
    observation: Observation,
    rows: Integers,
    mine: Integers,
    needs: Floats,
    background: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> Floats:
    """Return F0: use of these hosts without the tasks in `mine`, shape (rows, 2)."""
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
    return np.asarray(np.nan_to_num(np.maximum(0.0, np.stack([cores, link], axis=1))))


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
