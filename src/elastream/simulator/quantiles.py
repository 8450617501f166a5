"""Weighted quantiles, compiled: every monitoring period of every operator needs two."""

import numpy as np
from numba import njit

from elastream.core.frames import Floats


@njit(cache=True)
def weighted(values: Floats, weights: Floats, wanted: Floats) -> Floats:
    """Weighted quantiles at `wanted`: of each the smallest value with at least that share of the weight at or below it.

    By selection, which is faster than sorting.
    """
    found = np.empty(wanted.size)
    total = weights.sum()
    for number in range(wanted.size):
        need = wanted[number] * total * (1 - 1e-12)
        left, heavy = values.copy(), weights.copy()
        size = left.size
        while True:
            pivot = left[size // 2]
            below = level = 0.0
            for k in range(size):
                if left[k] < pivot:
                    below += heavy[k]
                elif left[k] == pivot:
                    level += heavy[k]
            if below < need <= below + level:
                found[number] = pivot
                break
            smaller = need <= below
            kept = 0
            for k in range(size):
                if left[k] < pivot if smaller else left[k] > pivot:
                    left[kept], heavy[kept] = left[k], heavy[k]
                    kept += 1
            if kept == 0:  # rounding left a remainder
                found[number] = pivot
                break
            size = kept
            if not smaller:
                need -= below + level
    return found
