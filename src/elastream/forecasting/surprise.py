"""What a load did that its forecasts did not say, remembered: by how much it may jump again before hosts could come.

A trend tells nothing of jumps. A load that jumped by so much within a host's start several times lately will do so
again, and its hosts must be there before; one that jumped once, or rises as foreseen, needs none for that.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from elastream.model.observation import Floats

__all__ = ["Surprises"]

MEMORY = 7200.0
"""Seconds for which a surprise is remembered: long against the start of a host, short against the cycle of a day."""
RECURS = 2
"""Surprises of a size within MEMORY after which another one of that size is reckoned with: one alone is no pattern."""

NONE: Floats = np.zeros((4, 0))


@dataclass(frozen=True, eq=False, slots=True)
class Surprises:
    """Of the rounds of the last MEMORY seconds, oldest first, shape (4, rounds): times, levels, what was expected for the
    horizon, and by how much the level exceeded what had been expected for that round (0 where it did not)."""

    rounds: Floats = field(default_factory=lambda: NONE)

    def after(self, time: float, level: float, expected: float, horizon: float) -> "Surprises":
        """These, and the round at `time`: the level now, and what is expected in `horizon` seconds. None of it NaN."""
        times, _, foreseen, _ = self.rounds
        made = int(np.searchsorted(times, time - horizon, side="right")) - 1
        exceeded = max(0.0, level - float(foreseen[made])) if made >= 0 else 0.0
        kept = self.rounds[:, int(np.searchsorted(times, time - MEMORY)) :]
        return replace(self, rounds=np.column_stack([kept, (time, level, expected, exceeded)]))

    def upper(self, expected: float, horizon: float, pace: float) -> float:
        """The value that `expected` may become within `horizon` seconds, as it did before.

        At least `expected`, at most the highest level remembered. pace: seconds from one round to the next; a surprise
        lasts for as many rounds as a horizon has.
        """
        _, levels, _, exceeded = self.rounds
        rank = RECURS * max(1, round(horizon / max(pace, 1e-9)))
        if exceeded.size < rank:
            return expected
        again = float(np.partition(exceeded, -rank)[-rank])
        return max(expected, min(expected + again, float(levels.max())))
