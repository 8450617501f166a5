"""Inner loop for single items: a first-come-first-served queue before instances of unequal speed.

It is exact, because instances and speeds change only at window borders.
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
    """Serve a station's queue in [begin, end).

    Args:
        queued, born: Queueing and dataflow entry times of waiting items.
        mean: Mean service time by instance (seconds).
        free: Time at which each instance can take an item; updated.
        finish, finish_queued, finish_born: Items in service, inf if idle; updated.
        busy: Seconds worked; added to.
        leaving: Rows (finish, queued, born) of items at removed instances; unfinished ones move to the front.
        number: Draw number of the first waiting item.
        messaging: Mean seconds before the queue.
        each: Items out per item in.

    Returns:
        (Items taken, rows left in `leaving`, emitted times and born times, durations, their sum, items within limits).
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
    started = 0
    if instances > 0 and queued.size > 0:
        service = sequence(seed, stream)
        heap = np.arange(instances)
        for at in range(instances // 2 - 1, -1, -1):
            _sift_down(heap, free, instances, at)
        while started < queued.size:
            i = heap[0]
            start = max(queued[started], free[i], begin)
            if start >= end:
                break
            stop = start + mean[i] * factor(kind, shape, samples, service, number + started)
            free[i] = stop
            _sift_down(heap, free, instances, 0)
            busy[i] += min(stop, end) - start
            if stop < end:
                done[count] = stop, queued[started], born[started]
                count += 1
            else:
                finish[i], finish_queued[i], finish_born[i] = stop, queued[started], born[started]
            started += 1
    remaining = 0
    for k in range(leaving.shape[0]):
        if leaving[k, 0] < end:
            done[count] = leaving[k]
            count += 1
        else:
            leaving[remaining] = leaving[k]
            remaining += 1
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
    return started, remaining, times, births, durations, total, within


@njit(cache=True)
def sort_rows(rows: Floats, count: int) -> None:
    """Sort the first `count` rows by their first column; insertion suits nearly sorted rows."""
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
    """Merge two sorted flows, the first flow first at ties."""
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
    """Send items over a link that each occupies for `gaps` seconds.

    Returns arrival times, and when the link is free again.
    """
    out = np.empty_like(times)
    for k in range(times.size):
        previous = max(previous, times[k]) + gaps[k]
        out[k] = previous
    return out, previous
