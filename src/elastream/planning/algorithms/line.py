"""A line through rates and busy cores, with its error: what a rate works, as far as it is like those seen."""

import math
from dataclasses import dataclass

from elastream.model.observation import Floats

__all__ = ["CERTAIN", "Line"]

CERTAIN = 1.645
"""Standard errors above what is expected that the hosts can still process when full: one case in twenty is higher."""


@dataclass(frozen=True, slots=True)
class Line:
    """Least squares of busy cores on records/s: cores busy without load, and core-seconds per additional record.

    A micro-batch has a fixed cost: in proportion to records, a light load would overestimate the cost of a record, and a
    step of the load would be answered with too many hosts. Far beyond the rates seen the slope is uncertain, and too few
    hosts would come: there counts the upper bound of the mean response, but no more than in proportion.
    """

    fixed: float
    each: float
    deviation: float
    mean: float
    spread: float
    highest: float
    samples: int

    @classmethod
    def through(cls, rates: Floats, busy: Floats) -> "Line":
        mean, apart = float(rates.mean()), rates - rates.mean()
        spread = float((apart * apart).sum())
        each = float((apart * (busy - busy.mean())).sum() / spread)
        fixed = float(busy.mean()) - each * mean
        rest = busy - fixed - each * rates
        deviation = math.sqrt(float((rest * rest).sum()) / (len(rates) - 2))
        return cls(fixed, each, deviation, mean, spread, float(rates.max()), len(rates))

    def cores(self, rate: float, proportional: float) -> float:
        """Cores busy at `rate`; proportional: the work per record measured, times `rate`."""
        cores = self.fixed + self.each * rate
        if rate <= self.highest:
            return cores
        error = self.deviation * math.sqrt(1 / self.samples + (rate - self.mean) ** 2 / self.spread)
        return max(cores, min(cores + CERTAIN * error, proportional))
