"""The inner loop of single items: a first-come-first-served queue before instances of unequal speed.

A dataflow has no cycle, so a window of time is worked off operator by operator in topological order, and no list of
future events is needed: exact all the same, because instances and speeds change at window borders only.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from elastream.model.observation import Floats
from elastream.simulation.draws import factor

__all__ = ["judge", "paced", "serve"]


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
def serve(
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
    kind: int,
    shape: float,
    samples: Floats,
    seed: int,
    stream: int,
    number: int,
) -> tuple[int, Floats, Floats, Floats]:
    """Serve the queue in [begin, end); returns (items taken, finish, queued and born times of what finished, unsorted).

    queued, born: when each waiting item was queued here and when its record entered the dataflow, oldest first.
    mean: mean service time on each instance, seconds. free: when each instance can take its next item; updated.
    finish, finish_queued, finish_born: the item each instance works on, inf where it is idle; updated. busy: seconds
    each instance worked within the window; added to. number: of the first waiting item, for its draw.
    """
    instances = free.size
    done = np.empty(queued.size + instances)
    done_queued = np.empty(queued.size + instances)
    done_born = np.empty(queued.size + instances)
    count = 0
    for i in range(instances):
        if finish[i] < math.inf:
            busy[i] += max(0.0, min(finish[i], end) - begin)
            if finish[i] < end:
                done[count], done_queued[count], done_born[count] = finish[i], finish_queued[i], finish_born[i]
                count += 1
                finish[i] = math.inf
    taken = 0
    if instances > 0 and queued.size > 0:
        heap = np.arange(instances)
        for at in range(instances // 2 - 1, -1, -1):
            _sift_down(heap, free, instances, at)
        while taken < queued.size:
            i = heap[0]
            start = max(queued[taken], free[i], begin)
            if start >= end:
                break
            stop = start + mean[i] * factor(kind, shape, samples, seed, stream, number + taken)
            free[i] = stop
            _sift_down(heap, free, instances, 0)
            busy[i] += min(stop, end) - start
            if stop < end:
                done[count], done_queued[count], done_born[count] = stop, queued[taken], born[taken]
                count += 1
            else:
                finish[i], finish_queued[i], finish_born[i] = stop, queued[taken], born[taken]
            taken += 1
    return taken, done[:count], done_queued[:count], done_born[:count]


@njit(cache=True)
def judge(delay: Floats, counts: Floats, limits: Floats) -> tuple[float, Floats]:
    """(sum of `delay` weighted by `counts`, counts at or below each of `limits`)."""
    total = 0.0
    within = np.zeros(limits.size)
    for k in range(delay.size):
        total += delay[k] * counts[k]
        for level in range(limits.size):
            if delay[k] <= limits[level]:
                within[level] += counts[k]
    return total, within


@njit(cache=True)
def paced(times: Floats, gaps: Floats, previous: float) -> tuple[Floats, float]:
    """`times`, sorted, after a link that each occupies for `gaps` seconds; `previous`: when the link is first free.

    Returns (times at the far end, when the link is free again).
    """
    out = np.empty_like(times)
    for k in range(times.size):
        previous = max(previous, times[k]) + gaps[k]
        out[k] = previous
    return out, previous
