"""A line through points, robust against outliers: what a batch costs in any case, and what a record adds."""

import numpy as np

from elastream.core.frames import Floats

MOST = 400
"""Most points of which pairs are formed; of more points, every n-th is used."""


def line_through(x: Floats, y: Floats) -> tuple[float, float]:
    """Fit a line: (value at 0, slope), neither negative. x, y: shape (points,), at least one point, x >= 0.

    Theil-Sen estimator with pairs weighted by their distance (Jaeckel 1972): the slope is the weighted median of the
    slopes of all pairs of points, the value at 0 the median residual.
    """
    step = -(-x.size // MOST)
    x, y = x[::step], y[::step]
    first, second = np.triu_indices(x.size, 1)
    apart = x[second] - x[first]
    distinct = apart != 0
    each = 0.0
    if distinct.any():
        slopes = (y[second] - y[first])[distinct] / apart[distinct]
        each = max(0.0, _weighted_median(slopes, np.abs(apart[distinct])))
    fixed = float(np.median(y - each * x))
    if fixed < 0:
        fixed, each = 0.0, max(0.0, _weighted_median(y[x > 0] / x[x > 0], x[x > 0]))
    return fixed, each


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
