"""Greedy matching of tasks to hosts by needs of several resources.

Algorithm 1 of "Elastic Allocator: an adaptive task scheduler for streaming query in the cloud" (SOSE, 2014). Time is
counted in trials, so results are deterministic.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from elastream.core.frames import Floats, Integers
from elastream.errors import InputError
from elastream.policies.elastic_allocator.exact import columns
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
    # R_dev, minimised: unevenness of utilisation (`exact.deviation`).
    DEVIATION = "deviation"


@dataclass(frozen=True, slots=True)
class Matching:
    """Result of `allocate`."""

    place: Integers  # host of each task
    trials: int  # pairs of task and host tried
    rest: int  # tasks spread over light hosts for want of trials or room


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
) -> Matching:
    """Return a greedy matching (Algorithm 1).

    Each task goes to the best host of the lightest level with room. Moves and exchanges then improve the objective, from
    random starts while trials remain. Tasks without room are spread over light hosts.

    Args:
        needs: Shape (tasks, resources).
        base: Load of the hosts before (F0), shape (hosts, resources).
        capacities: Shape (hosts, resources).
        most: Allowed part of a host's capacity (D_CPU, D_BW).
        trials: Time limit in pairs of task and host.
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
    tried, rest = _search(wants, used.copy(), sizes, place, most, trials, objective is Objective.UTILISATION, scored)
    return Matching(place, tried, rest)


@njit(cache=True)
def _match(
    wants: Floats, load: Floats, sizes: Floats, place: Integers, most: float, trials: int, utilise: bool, scored: int
) -> tuple[int, int]:
    """Place tasks one by one, updating `place` and `load`. Returns (trials, tasks without trial or room)."""
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
def _improve(
    wants: Floats, load: Floats, sizes: Floats, place: Integers, most: float, left: int, utilise: bool, scored: int
) -> int:
    """Move single tasks and exchange pairs while the objective improves. Returns the trials."""
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
    best = _worth(load, sizes, most, utilise, scored)
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
        tried += _improve(wants, held, sizes, at, most, trials - tried, utilise, scored)
        idle += 1
        worth = _worth(held, sizes, most, utilise, scored)
        if worth < best - ROUNDING:
            best, idle = worth, 0
            place[:] = at
            load[:] = held
        else:
            at[:] = place
            held[:] = load
    return tried, rest


@njit(cache=True)
def _fits(want: Floats, load: Floats, size: Floats, most: float) -> bool:
    fits = True
    for k in range(want.size):
        fits = fits and (want[k] <= 0 or load[k] + want[k] <= most * size[k] + ROUNDING)
    return fits


@njit(cache=True)
def _worth(load: Floats, sizes: Floats, most: float, utilise: bool, scored: int) -> float:
    """Return the objective, lexicographic: load above the allowed part, negative utilisation, n sum(u^2) - (sum u)^2."""
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
    """Return the change of the objective if `moved` goes from host `a` to host `b`."""
    change = used = 0.0
    hosts = sizes.shape[0]
    for k in range(scored):
        less, more = moved[k] / sizes[a, k], moved[k] / sizes[b, k]
        here, there = load[a, k] / sizes[a, k], load[b, k] / sizes[b, k]
        shift = more - less
        change += hosts * (more * (2 * there + more) - less * (2 * here - less)) - shift * (2 * totals[k] + shift)
        used += min(1.0, there + more) - min(1.0, there) + min(1.0, here - less) - min(1.0, here)
    return change - BY_USE * used if utilise and abs(used) > ROUNDING else change
