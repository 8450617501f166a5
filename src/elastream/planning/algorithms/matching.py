"""Greedy matching: tasks to hosts, by what they need of several resources, beside what runs there already.

Algorithm 1 of "Elastic Allocator: an adaptive task scheduler for streaming query in the cloud" (SOSE, 2014): each task is
tried on each host and kept where that makes the objective better, over and over until nothing does or time is up. Time is
counted in trials, so that the same question always has the same answer. What tasks need is `elastic_allocator`'s to say.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from elastream.model.errors import InputError
from elastream.model.observation import Floats, Integers

__all__ = ["ALIKE", "Level", "Matching", "Objective", "allocate", "levels", "utilisation"]

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
class Matching:
    """place: int64, host of each task. trials: pairs of task and host tried. rest: tasks that were placed on light hosts
    evenly, without a trial or because no host had room. passes: how often all tasks were gone through."""

    place: Integers
    trials: int
    passes: int
    rest: int


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
) -> Matching:
    """Greedy matching (Algorithm 1).

    needs: float64 of shape (tasks, resources). base: what is used of hosts already (F0), shape (hosts, resources).
    capacities: likewise. most: part of a host that may be used, D_CPU and D_BW. trials: the time limit, in pairs of a task
    and a host. begin: where tasks are now; those at -1, or all, are placed first.

    First each task, in its order, goes where the objective is best, on hosts of the lightest level that has room for it.
    Then every task is tried on every other host, and every two on each other's, as long as that makes it better; and then,
    while trials last and it still pays, a few are moved by chance and all are tried again.

    When the trials are used up, tasks not placed yet are spread evenly over light hosts, or over the least used ones where
    none is light; so is, at once, a task for which no host has room. Raises InputError where needs are unknown or there is
    no host.
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
    return Matching(place, tried, passes, rest)


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
