"""Lines through measured points that outliers do not bend."""

import numpy as np

from elastream.core.frames import Floats

# More points are thinned: pairs grow with their square.
MOST = 400


def line_through(x: Floats, y: Floats) -> tuple[float, float]:
    """Fit a line: return (value at 0, slope), neither negative.

    Theil-Sen estimator with pairs weighted by distance (Jaeckel 1972); the value at 0 is the median residual.
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
