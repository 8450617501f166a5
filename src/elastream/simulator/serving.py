"""Inner loop for single items: a first-come-first-served queue before instances of unequal speed.

A dataflow is acyclic, so a time window is simulated operator by operator in topological order, without an event list. This
is exact, because instances and speeds change only at window borders.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from elastream.core.frames import Floats
from elastream.simulator.draws import factor, sequence
from elastream.units import ROUNDING


@njit(cache=True)
def _sift_down(heap: NDArray[np.int64], free: Floats, size: int, at: int) -> None:
    moved = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            free[heap[right]] < free[heap[child]] or (free[heap[right]] == free[heap[child]] and heap[right] < heap[child])
        ):
            child = right
        other = heap[child]
        if free[other] < free[moved] or (free[other] == free[moved] and other < moved):
            heap[at] = other
            at = child
        else:
            break
    heap[at] = moved


@njit(cache=True)
def work_off(
    queued: Floats,
    born: Floats,
    begin: float,
    end: float,
    mean: Floats,
    free: Floats,
    finish: Floats,
    finish_queued: Floats,
    finish_born: Floats,
    busy: Floats,
    leaving: Floats,
    kind: int,
    shape: float,
    samples: Floats,
    seed: int,
    stream: int,
    number: int,
    messaging: float,
    messaging_shape: float,
    messaging_stream: int,
    each: float,
    done_before: int,
    limits: Floats,
) -> tuple[int, int, Floats, Floats, Floats, float, Floats]:
    """Serve a station's queue in [begin, end): compute finishes, durations, compliance and emitted items.

    queued, born: when each waiting item was queued and when its record entered the dataflow, oldest first. mean: mean
    service time on each instance, seconds. free: when each instance can take its next item; updated. finish,
    finish_queued, finish_born: the item in service at each instance, inf if idle; updated. busy: seconds each instance
    worked in the window; added to. leaving: rows (finish, queued, born) of items in service at removed instances; the
    unfinished ones are moved to the front. number: of the first waiting item, for its random draw. messaging: mean seconds
    before the queue. each: items out per item in. done_before: items done so far. limits: seconds.

    Returns (items taken, rows of `leaving` that remain, times and born times of emitted items, durations of finished
    items, their sum, items within each limit).
    """
    instances = free.size
    done = np.empty((queued.size + instances + leaving.shape[0], 3))
    count = 0
    for i in range(instances):
        if finish[i] < math.inf:
            busy[i] += max(0.0, min(finish[i], end) - begin)
            if finish[i] < end:
                done[count] = finish[i], finish_queued[i], finish_born[i]
                count += 1
                finish[i] = math.inf
    taken = 0
    if instances > 0 and queued.size > 0:
        service = sequence(seed, stream)
        heap = np.arange(instances)
        for at in range(instances // 2 - 1, -1, -1):
            _sift_down(heap, free, instances, at)
        while taken < queued.size:
            i = heap[0]
            start = max(queued[taken], free[i], begin)
            if start >= end:
                break
            stop = start + mean[i] * factor(kind, shape, samples, service, number + taken)
            free[i] = stop
            _sift_down(heap, free, instances, 0)
            busy[i] += min(stop, end) - start
            if stop < end:
                done[count] = stop, queued[taken], born[taken]
                count += 1
            else:
                finish[i], finish_queued[i], finish_born[i] = stop, queued[taken], born[taken]
            taken += 1
    kept = 0
    for k in range(leaving.shape[0]):
        if leaving[k, 0] < end:
            done[count] = leaving[k]
            count += 1
        else:
            leaving[kept] = leaving[k]
            kept += 1
    sort_rows(done, count)
    durations = np.empty(count)
    total = 0.0
    within = np.zeros(limits.size)
    emitted = int(math.floor((done_before + count) * each + ROUNDING) - math.floor(done_before * each + ROUNDING))
    times, births = np.empty(emitted), np.empty(emitted)
    before = sequence(seed, messaging_stream)
    out = 0
    for k in range(count):
        duration = done[k, 0] - done[k, 1]
        if messaging > 0.0:
            duration += messaging * factor(1, messaging_shape, samples, before, done_before + k)
        durations[k] = duration
        total += duration
        for level in range(limits.size):
            if duration <= limits[level]:
                within[level] += 1.0
        if each == 1.0:
            times[k], births[k] = done[k, 0], done[k, 2]
            continue
        # After k finished items, floor(k * each) items have been emitted: whole items, evenly spaced.
        due = int(math.floor((done_before + k + 1) * each + ROUNDING) - math.floor(done_before * each + ROUNDING))
        while out < due:
            times[out], births[out] = done[k, 0], done[k, 2]
            out += 1
    return taken, kept, times, births, durations, total, within


@njit(cache=True)
def sort_rows(rows: Floats, count: int) -> None:
    """Stable insertion sort of the first `count` rows by their first column; fast, because rows are nearly sorted."""
    for k in range(1, count):
        if rows[k, 0] >= rows[k - 1, 0]:
            continue
        first, second, third = rows[k, 0], rows[k, 1], rows[k, 2]
        at = k
        while at > 0 and rows[at - 1, 0] > first:
            rows[at] = rows[at - 1]
            at -= 1
        rows[at] = first, second, third


@njit(cache=True)
def merged(
    times: Floats, born: Floats, counts: Floats, more_times: Floats, more_born: Floats, more_counts: Floats
) -> tuple[Floats, Floats, Floats]:
    """Merge two flows, each sorted by time; at equal times the first flow's items come first."""
    size = times.size + more_times.size
    out, out_born, out_counts = np.empty(size), np.empty(size), np.empty(size)
    a = b = 0
    for k in range(size):
        if b == more_times.size or (a < times.size and times[a] <= more_times[b]):
            out[k], out_born[k], out_counts[k] = times[a], born[a], counts[a]
            a += 1
        else:
            out[k], out_born[k], out_counts[k] = more_times[b], more_born[b], more_counts[b]
            b += 1
    return out, out_born, out_counts


@njit(cache=True)
def paced(times: Floats, gaps: Floats, previous: float) -> tuple[Floats, float]:
    """Send items over a link that each occupies for `gaps` seconds. times: sorted; previous: when the link is free.

    Returns (times at the receiving end, when the link is free again).
    """
    out = np.empty_like(times)
    for k in range(times.size):
        previous = max(previous, times[k]) + gaps[k]
        out[k] = previous
    return out, previous
