"""What a load did that its forecasts did not say, remembered: by how much it may jump again before hosts could come.

A trend tells nothing of jumps. A load that jumped by so much within a host's start several times lately will do so
again, and its hosts must be there before; one that jumped once, or rises as foreseen, needs none for that.
"""

from dataclasses import dataclass, field
from itertools import dropwhile

import numpy as np

from elastream.model.observation import Floats

__all__ = ["Surprises"]

MEMORY = 7200.0
"""Seconds for which a surprise is remembered: long against the start of a host, short against the cycle of a day."""
RECURS = 2
"""Surprises of a size within MEMORY after which another one of that size is reckoned with: one alone is no pattern."""
NOTICED = 0.25
"""Part of what was expected by which the level must exceed it: less fits into what hosts leave free in any case."""

NONE: Floats = np.zeros((3, 0))


@dataclass(frozen=True, eq=False, slots=True)
class Surprises:
    """rounds: times, levels, and what was expected for the horizon, of the last MEMORY seconds, oldest first, shape
    (3, rounds). found: surprises in them, oldest first: (time of the last round, its largest excesses, descending).

    Rounds of excess that are less than a horizon apart are one surprise: a rise that outruns its forecast is one, however
    long. It counts by the excess that it had for half a horizon at least, since single rounds are noise.
    """

    rounds: Floats = field(default_factory=lambda: NONE)
    found: tuple[tuple[float, tuple[float, ...]], ...] = ()

    def after(self, time: float, level: float, expected: float, horizon: float, pace: float) -> "Surprises":
        """These, and the round at `time`: the level now, and what is expected in `horizon` seconds. None of it NaN.

        pace: seconds from one round to the next.
        """
        times, _, foreseen = self.rounds
        made = int(np.searchsorted(times, time - horizon, side="right")) - 1
        exceeded = level - float(foreseen[made]) if made >= 0 else 0.0
        found = tuple(dropwhile(lambda each: each[0] < time - MEMORY, self.found))
        if made >= 0 and exceeded > NOTICED * foreseen[made]:
            goes_on = bool(found) and time - found[-1][0] < horizon
            excesses = sorted((exceeded, *(found[-1][1] if goes_on else ())), reverse=True)
            now = (time, tuple(excesses[: _lasting(horizon, pace)]))
            found = (*(found[:-1] if goes_on else found), now)
        kept = self.rounds[:, int(np.searchsorted(times, time - MEMORY)) :]
        return Surprises(np.column_stack([kept, (time, level, expected)]), found)

    def upper(self, expected: float, horizon: float, pace: float) -> float:
        """The value that `expected` may become within `horizon` seconds, as it did before.

        At least `expected`, at most the highest level remembered.
        """
        least = _lasting(horizon, pace)
        sizes = sorted((excesses[-1] for _, excesses in self.found if len(excesses) >= least), reverse=True)
        if len(sizes) < RECURS:
            return expected
        return max(expected, min(expected + sizes[RECURS - 1], float(self.rounds[1].max())))


def _lasting(horizon: float, pace: float) -> int:
    """Rounds for which an excess must have lasted."""
    return max(1, round(horizon / max(pace, 1e-9) / 2))
