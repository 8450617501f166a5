"""Compiled loops of `cohorts`: cohorts queued and served in time slots, and how long their items took.

Apart from the stations, because they know arrays only, and are compiled once.
"""

import math

import numpy as np
from numba import njit

from elastream.core.frames import Floats
from elastream.simulator.draws import below
from elastream.simulator.serving import sort_rows
from elastream.units import ROUNDING

PARTS = 16
"""Most parts of a slot in rate mode; a cohort larger than one round of the instances is served in such parts."""
GROUPS = 24
"""Most groups of neighbouring cohorts over which percentiles are taken."""


@njit(cache=True)
def work_off(
    queue: Floats,
    came_times: Floats,
    came_born: Floats,
    came_counts: Floats,
    grain: float,
    held: Floats,
    head: int,
    begin: float,
    slots: int,
    width: float,
    mean: float,
    free: Floats,
    crew_busy: Floats,
    weights: Floats,
    first: int,
    occupied: bool,
    each: float,
) -> tuple[Floats, Floats, Floats, int, float, float, float]:
    """Queue arrived cohorts and serve them for `slots` slots of `width` seconds; durations are computed in `judge`.

    came_*: cohorts of evenly spaced items, each spread over the time to the next cohort, at most `grain` seconds. free:
    when each instance is ready, inf if unplaced. crew_busy: seconds each instance worked; added to. each: items out per
    item in. Other arrays: see `_serve`. Returns (waiting rows, starts, emitted as rows of times, born times and counts,
    ring head, items done, items waiting, items in service).
    """
    waiting = np.empty((queue.shape[0] + came_times.size, 6))
    waiting[: queue.shape[0]] = queue
    for k in range(came_times.size):
        row = queue.shape[0] + k
        span = grain if k + 1 == came_times.size else min(grain, came_times[k + 1] - came_times[k])
        waiting[row, 0] = waiting[row, 1] = came_times[k] - 0.5 * span
        waiting[row, 2] = came_born[k]
        waiting[row, 3] = waiting[row, 4] = came_counts[k]
        waiting[row, 5] = span
    if slots <= 0:
        return waiting, np.empty((0, 3)), np.empty((3, 0)), head, 0.0, waiting[:, 3].sum(), held[:, 0].sum()
    ready = free[free < math.inf]
    if ready.size and ready.max() > begin:
        ready = np.sort(ready)  # otherwise all are ready from the start and order does not matter
    taken, starts, finishes, busy, head = _serve(
        waiting, held, head, begin, slots, width, mean, ready, weights, first, occupied
    )
    if ready.size:
        for i in range(free.size):
            if free[i] < math.inf:
                crew_busy[i] += busy / ready.size  # work is counted when it begins
    count = finishes.shape[0]
    sort_rows(finishes, count)
    emitted = np.empty((3, count))
    done = 0.0
    for k in range(count):
        emitted[0, k], emitted[1, k], emitted[2, k] = finishes[k, 0], finishes[k, 1], finishes[k, 2] * each
        done += finishes[k, 2]
    left = waiting[taken:].copy()
    return left, starts, emitted, head, done, left[:, 3].sum(), held[:, 0].sum()


@njit(cache=True)
def _serve(
    queue: Floats,
    held: Floats,
    head: int,
    begin: float,
    slots: int,
    width: float,
    mean: float,
    ready: Floats,
    weights: Floats,
    first: int,
    occupied: bool,
) -> tuple[int, Floats, Floats, float, int]:
    """Serve `queue` for `slots` slots; returns (cohorts fully taken, starts, finishes, busy instance-seconds, ring head).

    queue: rows (available, queued, born, count, initial count, span) of items that arrive evenly within `span` seconds
    from `available` on; a partly taken cohort's count is reduced. held: ring of items finishing in later slots, rows
    (count, count x queued, count x born), updated from row `head` on. starts: rows (time, queued, count). finishes: rows
    (time, born, count).
    """
    length = held.shape[0]
    starts = np.empty(((PARTS + 2) * slots + queue.shape[0] + 1, 3))
    finishes = np.empty(((PARTS + 2) * slots + queue.shape[0] + 1, 3))
    started = finished = taken = 0
    busy = 0.0
    in_service = held[:, 0].sum()
    for slot in range(slots):
        now = begin + slot * width
        most = math.inf
        instances = np.searchsorted(ready, now, side="right")
        if occupied:
            done = held[head, 0]
            if done > 0.0:
                finishes[finished] = now + 0.5 * width, held[head, 2] / done, done
                finished += 1
            idle = max(0.0, instances - in_service)
            freed = max(0.0, instances - in_service + done) - idle
            in_service -= done
            held[head] = 0.0
        else:
            idle, freed = 0.0, instances * width / mean
            most = freed * max(mean / width, 1 / PARTS)
        used, entered = 0.0, -1
        while taken < queue.shape[0]:
            whole, span = queue[taken, 4], queue[taken, 5]
            gone = 1.0 - queue[taken, 3] / whole
            available = queue[taken, 0] + span * gone
            if available >= now + width:
                break
            if not occupied and available > now:
                # In rate mode, capacity before the cohort's arrival is lost.
                used = max(used, (available - now) / width * freed)
            room = idle + freed - used
            if room <= ROUNDING:
                break
            count = min(queue[taken, 3], room, most)
            if span > 0.0:
                count = min(count, max(1e-6 * whole, whole * (now + width - available) / span))
            shift = span * (gone + 0.5 * count / whole)
            middle = used + 0.5 * count
            at = now if middle <= idle else now + width * (middle - idle) / freed
            if not occupied:
                # A fluid is served half an item later on average than single items, the first of which do not wait.
                at -= 0.5 * mean
            start = max(queue[taken, 0] + shift, at)
            used += count
            queued = queue[taken, 1] + shift
            # Parts of a cohort in one slot are one entry where they wait alike, and leave as one: nothing finer than a slot
            # is known of when items come to the next operator.
            again = not occupied and entered == taken
            if again and abs(start - queued - (starts[started - 1, 0] - starts[started - 1, 1])) <= width / PARTS:
                part = count / (starts[started - 1, 2] + count)
                starts[started - 1, 0] += part * (start - starts[started - 1, 0])
                starts[started - 1, 1] += part * (queued - starts[started - 1, 1])
                starts[started - 1, 2] += count
            else:
                starts[started] = start, queued, count
                started += 1
            entered = taken
            busy += count * mean
            if occupied:
                # Work of k to k + 1 slots that starts at `phase` of this slot ends in slot k or k + 1 from here, with
                # weights 1 - phase and phase; work that would end in this slot ends in the next.
                phase = min(1.0, max(0.0, (start - now) / width))
                carried = 0.0
                for k in range(first, weights.size):
                    share = count * ((1 - phase) * weights[k] + carried)
                    carried = phase * weights[k]
                    row = (head + max(1, k)) % length
                    held[row, 0] += share
                    held[row, 1] += share * queue[taken, 1]
                    held[row, 2] += share * queue[taken, 2]
                in_service += count
            elif again:
                part = count / (finishes[finished - 1, 2] + count)
                finishes[finished - 1, 0] += part * (start + mean - finishes[finished - 1, 0])
                finishes[finished - 1, 2] += count
            else:
                finishes[finished] = start + mean, queue[taken, 2], count
                finished += 1
            queue[taken, 3] -= count
            if queue[taken, 3] <= ROUNDING:
                taken += 1
        head = (head + 1) % length
    return taken, starts[:started], finishes[:finished], busy, head


@njit(cache=True)
def judge(
    starts: Floats,
    mean: float,
    before: Floats,
    limits: Floats,
    certain: float,
    points: Floats,
    kind: int,
    shape: float,
    samples: Floats,
) -> tuple[float, float, Floats, Floats, Floats]:
    """Durations of started items: (items, sum of durations, items within each of `limits`, durations, their weights).

    before: equally likely seconds spent before the queue. certain: multiple of the mean that no service exceeds. points:
    equally likely service times over their mean; durations are those of at most `GROUPS` groups of starts.
    """
    early_mean = before.mean()
    step = (starts.shape[0] + GROUPS - 1) // GROUPS
    groups = (starts.shape[0] + step - 1) // step
    waits, weights = np.zeros(groups), np.zeros(groups)
    within = np.zeros(limits.size)
    for k in range(starts.shape[0]):
        wait, count = starts[k, 0] - starts[k, 1], starts[k, 2]
        waits[k // step] += count * wait
        weights[k // step] += count
        for level in range(limits.size):
            if limits[level] == math.inf:  # without a service level all are within it
                within[level] += count
                continue
            chance = 0.0
            for early in before:
                left = limits[level] - wait - early
                if left >= certain * mean:
                    chance += 1.0
                elif left > 0.0:
                    chance += below(kind, shape, samples, left / mean)
            within[level] += count * chance / before.size
    items = weights.sum()
    durations = np.empty(groups * points.size)
    shares = np.empty(groups * points.size)
    for group in range(groups):
        for k in range(points.size):
            durations[group * points.size + k] = waits[group] / weights[group] + early_mean + mean * points[k]
            shares[group * points.size + k] = weights[group] / points.size
    return items, waits.sum() + items * (mean + early_mean), within, durations, shares
