"""Confidence intervals of means over runs, by Student's t: they decide whether a bar is held, missed or undecided.

Runs that are compared share a seed, and their difference or ratio is what an interval is of: what a seed does to both is
then no part of its width.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

CONFIDENCE = 0.95
"""Chance that an interval covers the true mean."""


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """Mean of `runs` independent values and its two-sided confidence interval; NaN bounds for fewer than two."""

    mean: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float], confidence: float = CONFIDENCE) -> "MeanInterval":
        """The interval of `values`; NaN throughout if there are none."""
        if len(values) < 2:
            return cls(values[0] if values else math.nan, math.nan, math.nan, len(values))
        mean = statistics.fmean(values)
        wide = t_quantile(len(values) - 1, confidence) * statistics.stdev(values, mean) / math.sqrt(len(values))
        return cls(mean, mean - wide, mean + wide, len(values))

    def at_least(self, bar: float) -> bool | None:
        """Whether the true mean is at least `bar`; None: the interval holds both answers, or there is none."""
        return True if self.low >= bar else False if self.high < bar else None

    def at_most(self, bar: float) -> bool | None:
        """Whether the true mean is at most `bar`."""
        return True if self.high <= bar else False if self.low > bar else None

    def shown(self, digits: int = 4) -> str:
        """ "mean (low to high)"; the mean alone without an interval, and how many runs all gave it where none differs."""
        if math.isnan(self.low):
            return f"{self.mean:.{digits}f}"
        if self.low == self.high:  # nothing that is drawn enters: an interval of no width would claim to be of a sample
            return f"{self.mean:.{digits}f} (in all of {self.runs} runs)"
        return f"{self.mean:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def t_quantile(freedom: int, confidence: float) -> float:
    """The t with P(|T| < t) = `confidence` for T of Student's distribution with `freedom` >= 1 degrees of freedom."""
    return float(stdtrit(freedom, (1 + confidence) / 2))
