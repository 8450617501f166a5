"""Compiled loops of `cohorts`: serving in time slots, and durations."""

import math

import numpy as np
from numba import njit

from elastream.core.frames import Floats
from elastream.simulator.draws import below
from elastream.simulator.serving import sort_rows
from elastream.units import ROUNDING

# Most parts of a slot in rate mode; splits cohorts larger than one round of the instances.
PARTS = 16
# Most groups of neighbouring cohorts over which percentiles are taken.
GROUPS = 24


@njit(cache=True)
def work_off(
    queue: Floats,
    came_times: Floats,
    came_born: Floats,
    came_counts: Floats,
    grain: float,
    finishing: Floats,
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
    """Queue cohorts and serve them for `slots` slots of `width` seconds.

    Args:
        came_times, came_born, came_counts: Cohorts, each spread over the time to the next.
        grain: Longest spread (seconds).
        free: Time at which each instance is ready; inf if unplaced.
        crew_busy: Seconds each instance worked; added to.
        each: Items out per item in.

    Returns:
        (Waiting rows, starts, emitted rows of times, born times and counts, ring head, items done, waiting, in service).
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
        return waiting, np.empty((0, 3)), np.empty((3, 0)), head, 0.0, waiting[:, 3].sum(), finishing[:, 0].sum()
    ready = free[free < math.inf]
    if ready.size and ready.max() > begin:
        ready = np.sort(ready)  # otherwise all are ready from the start and order does not matter
    front, starts, finishes, busy, head = _serve(
        waiting, finishing, head, begin, slots, width, mean, ready, weights, first, occupied
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
    left = waiting[front:].copy()
    return left, starts, emitted, head, done, left[:, 3].sum(), finishing[:, 0].sum()


@njit(cache=True)
def _serve(
    queue: Floats,
    finishing: Floats,
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
    """Serve `queue` for `slots` slots.

    Args:
        queue: Rows (available, queued, born, count, initial count, span) of items spread evenly over `span` seconds. Counts
        are reduced.
        finishing: Ring of items that finish in later slots, rows (count, count x queued, count x born).

    Returns:
        (Cohorts fully taken, starts (time, queued, count), finishes (time, born, count), busy instance-seconds, ring head).
    """
    length = finishing.shape[0]
    starts = np.empty(((PARTS + 2) * slots + queue.shape[0] + 1, 3))
    finishes = np.empty(((PARTS + 2) * slots + queue.shape[0] + 1, 3))
    started = finished = front = 0
    busy = 0.0
    in_service = finishing[:, 0].sum()
    for slot in range(slots):
        now = begin + slot * width
        most = math.inf
        instances = np.searchsorted(ready, now, side="right")
        if occupied:
            done = finishing[head, 0]
            if done > 0.0:
                finishes[finished] = now + 0.5 * width, finishing[head, 2] / done, done
                finished += 1
            idle = max(0.0, instances - in_service)
            freed = max(0.0, instances - in_service + done) - idle
            in_service -= done
            finishing[head] = 0.0
        else:
            idle, freed = 0.0, instances * width / mean
            most = freed * max(mean / width, 1 / PARTS)
        used, entered = 0.0, -1
        while front < queue.shape[0]:
            whole, span = queue[front, 4], queue[front, 5]
            gone = 1.0 - queue[front, 3] / whole
            available = queue[front, 0] + span * gone
            if available >= now + width:
                break
            if not occupied and available > now:
                # In rate mode, capacity before the cohort's arrival is lost.
                used = max(used, (available - now) / width * freed)
            room = idle + freed - used
            if room <= ROUNDING:
                break
            count = min(queue[front, 3], room, most)
            if span > 0.0:
                count = min(count, max(1e-6 * whole, whole * (now + width - available) / span))
            shift = span * (gone + 0.5 * count / whole)
            middle = used + 0.5 * count
            at = now if middle <= idle else now + width * (middle - idle) / freed
            if not occupied:
                # A fluid is served half an item later on average than single items, the first of which do not wait.
                at -= 0.5 * mean
            start = max(queue[front, 0] + shift, at)
            used += count
            queued = queue[front, 1] + shift
            # Parts of a cohort in one slot are one entry where they wait alike, and leave as one: nothing finer than a slot
            # is known of when items come to the next operator.
            again = not occupied and entered == front
            if again and abs(start - queued - (starts[started - 1, 0] - starts[started - 1, 1])) <= width / PARTS:
                part = count / (starts[started - 1, 2] + count)
                starts[started - 1, 0] += part * (start - starts[started - 1, 0])
                starts[started - 1, 1] += part * (queued - starts[started - 1, 1])
                starts[started - 1, 2] += count
            else:
                starts[started] = start, queued, count
                started += 1
            entered = front
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
                    finishing[row, 0] += share
                    finishing[row, 1] += share * queue[front, 1]
                    finishing[row, 2] += share * queue[front, 2]
                in_service += count
            elif again:
                part = count / (finishes[finished - 1, 2] + count)
                finishes[finished - 1, 0] += part * (start + mean - finishes[finished - 1, 0])
                finishes[finished - 1, 2] += count
            else:
                finishes[finished] = start + mean, queue[front, 2], count
                finished += 1
            queue[front, 3] -= count
            if queue[front, 3] <= ROUNDING:
                front += 1
        head = (head + 1) % length
    return front, starts[:started], finishes[:finished], busy, head


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
    """Return durations of started items: (items, sum, items within each limit, durations, weights).

    Args:
        before: Equally likely seconds before the queue.
        certain: Multiple of the mean that no service exceeds.
        points: Equally likely service times over their mean.
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
