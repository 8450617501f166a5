"""Exact sign-flip test of paired measurements (Fisher 1935, section 21), with interval, power and Holm's correction.

The p-value is the share of sign assignments with a mean as far from 0. Blocks of a noisy machine differ more than their
sides.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from elastream.core.frames import Floats

LEVEL = 0.05  # chance that any of several claims is decided wrongly
EXACT = 14  # up to so many differences all 2^14 signs are tried; beyond, 9,999 are drawn
HALVINGS = 40
TRIALS = 400  # simulated experiments per power: to about 0.025


@dataclass(frozen=True, slots=True)
class PairedClaim:
    """Claim that a mean difference is above 0.

    differences: one a block, in `unit`. bound: least difference of interest, for the power.
    """

    name: str
    differences: tuple[float, ...]
    unit: str
    bound: float
    source: str

    @property
    def mean(self) -> float:
        return float(np.mean(self.differences)) if self.differences else math.nan

    @property
    def p(self) -> float:
        """Return the two-sided p-value of the mean."""
        return min(1.0, 2 * min(_chance(self.differences, 0.0), _chance([-each for each in self.differences], 0.0)))

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the mean differences that the test does not reject; infinite if too few blocks."""
        return -_highest([-each for each in self.differences], level / 2), _highest(self.differences, level / 2)

    def power(self, level: float, blocks: int | None = None) -> float:
        """Return the chance to decide a true mean of `bound` at `level`, two-sided, with the observed spread."""
        number = blocks or len(self.differences)
        if len(self.differences) < 2 or 2 ** (1 - number) > level:
            return 0.0
        chance = np.random.default_rng(1)
        drawn = chance.normal(self.bound, float(np.std(self.differences, ddof=1)), (TRIALS, number))
        return float(np.mean([2 * _chance(each, 0.0) <= level for each in drawn]))


def decided(claims: Sequence[PairedClaim], level: float = LEVEL) -> list[bool | None]:
    """Return held, missed or None by claim, by Holm's step-down."""
    order = sorted(range(len(claims)), key=lambda number: claims[number].p)
    found: list[bool | None] = [None] * len(claims)
    for rank, number in enumerate(order):
        if not claims[number].p <= level / (len(claims) - rank):
            break
        found[number] = claims[number].mean > 0
    return found


def _chance(differences: Sequence[float] | Floats, shift: float) -> float:
    """Return the one-sided p-value if the true mean is `shift`; 1 without differences."""
    values = np.asarray(differences, dtype=np.float64) - shift
    if not values.size:
        return 1.0
    if values.size <= EXACT:
        signs = 1 - 2 * ((np.arange(2**values.size)[:, None] >> np.arange(values.size)) & 1)
        return float(np.mean(signs @ values >= values.sum() - 1e-9 * max(1.0, float(np.abs(values).sum()))))
    test = stats.permutation_test((values,), np.mean, permutation_type="samples", alternative="greater", rng=1)
    return float(test.pvalue)


def _highest(differences: Sequence[float], level: float) -> float:
    """Return the largest true mean that is not rejected, at one-sided `level`."""
    values = np.asarray(differences, dtype=np.float64)
    if not values.size or 2.0**-values.size > level:
        return math.inf
    low, high = float(values.min()), float(values.max())
    high += (high - low) + 1e-9
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        rejected = _chance(-values, -middle) <= level
        low, high = (low, middle) if rejected else (middle, high)
    return (low + high) / 2
