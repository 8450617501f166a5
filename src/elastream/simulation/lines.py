"""Straight lines through noisy measurements that a stalled one does not bend."""

import numpy as np

from elastream.model.observation import Floats

__all__ = ["line_through"]

MOST = 400
"""Points that pairs are made of; of more, every n-th is taken."""


def line_through(x: Floats, y: Floats) -> tuple[float, float]:
    """(value at 0, slope) of the line through the points, neither negative; shape (points,) each, at least one, x >= 0.

    After Theil and Sen, with pairs weighted by how far they lie apart (Jaeckel 1972): the slope is the weighted median of
    those between any two points, the value at 0 the median of what is left.
    """
    step = -(-x.size // MOST)
    x, y = x[::step], y[::step]
    first, second = np.triu_indices(x.size, 1)
    apart = x[second] - x[first]
    told = apart != 0
    each = 0.0
    if told.any():
        each = max(0.0, _weighted_median((y[second] - y[first])[told] / apart[told], np.abs(apart[told])))
    fixed = float(np.median(y - each * x))
    if fixed < 0:
        fixed, each = 0.0, max(0.0, _weighted_median(y[x > 0] / x[x > 0], x[x > 0]))
    return fixed, each


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
