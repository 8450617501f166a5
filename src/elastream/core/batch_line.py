"""Seconds of a batch by its work: the line from which sizes, savings and simulations predict.

Work is in any unit, such as records per slot.
"""

from dataclasses import dataclass

import numpy as np

from elastream.core.frames import Floats
from elastream.core.lines import line_through

# Ratio of the 90 % to the 10 % quantile of batches' work, below which fixed time and work cannot be separated.
ALIKE = 1.5


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A line through batches.

    Attributes:
        fixed, each: Seconds of a batch without work, and per unit of work.
        separable: False if all batches had similar work, so `fixed` is an assumption.
    """

    fixed: float
    each: float
    separable: bool = True

    @classmethod
    def of(cls, work: Floats, seconds: Floats, assumed: float) -> "BatchLine":
        """Fit the line. assumed: fixed seconds if the batches do not show them."""
        low, high = np.quantile(work, (0.1, 0.9))
        if high >= ALIKE * low:
            return cls(*line_through(work, seconds))
        some = work > 0
        each = float(np.median(np.maximum(0.0, seconds - assumed)[some] / work[some])) if some.any() else 0.0
        return cls(assumed, each, separable=False)

    def seconds(self, work: Floats) -> Floats:
        return self.fixed + self.each * work

    def largest(self, seconds: float) -> float:
        """Return the work of a batch that takes `seconds`; infinite if work hardly counts."""
        return (seconds - self.fixed) / self.each if self.each > 0 else np.inf
