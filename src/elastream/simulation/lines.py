"""Straight lines through noisy measurements that a stalled one does not bend."""

import numpy as np

from elastream.model.observation import Floats

__all__ = ["absolute_fit"]

ROUNDS = 60
"""Of reweighting; further ones move a coefficient by less than a thousandth."""


def absolute_fit(columns: Floats, values: Floats) -> Floats:
    """Coefficients, none negative, of the least sum of absolute errors of `columns` @ coefficients against `values`.

    columns: shape (measurements, coefficients); a column that explains nothing gets 0. By iteratively reweighted least
    squares; a coefficient that comes out negative is left out, the most negative first.
    """
    scale = np.abs(columns).max(axis=0, initial=0.0)
    used = [number for number in range(columns.shape[1]) if scale[number] > 0]
    while used:
        chosen = columns[:, used] / scale[used]
        weights = np.ones(len(values))
        found = np.zeros(len(used))
        for _ in range(ROUNDS):
            root = np.sqrt(weights)
            found = np.linalg.lstsq(chosen * root[:, None], values * root, rcond=None)[0]
            weights = 1 / np.maximum(np.abs(values - chosen @ found), 1e-6 * np.abs(values).max(initial=1e-300))
        if found.min() >= 0:
            fitted = np.zeros(columns.shape[1])
            fitted[used] = found / scale[used]
            return fitted
        del used[int(np.argmin(found))]
    return np.zeros(columns.shape[1])
