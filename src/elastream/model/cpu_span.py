"""Over which seconds the CPU use of hosts is told: whole micro-batches where these are long enough to matter.

A batch uses CPU unevenly: reading, a shuffle, state, and nothing between its end and the next. Of batches of seconds, the
last three say which part of one they were, and hosts seem to take turns in being busy.
"""

import math
from collections.abc import Iterable, Sequence

from elastream.model.frames import Floats

__all__ = ["CPU_WINDOW", "LONGEST", "whole_batches"]

CPU_WINDOW = 3.0
"""Seconds that a host's CPU use is averaged over, at least: a few batches, since between two it is near nothing."""
SHORTEST, LONGEST = 0.75, 7.5
"""Seconds from one batch to the next from which the use is that of whole batches, since CPU_WINDOW has too few for what is
cut off of one not to matter; and up to which, because that of longer ones would come too late. Neither is near a usual
trigger (1, 5, 10 s), around which times from batch to batch would lie on both sides."""
MOST_BATCHES = 1 + math.ceil(CPU_WINDOW / SHORTEST)


def whole_batches(queries: Iterable[Sequence[float] | Floats], now: float) -> tuple[float, float]:
    """Over which seconds before `now` the use is told: from how many ago, until how many ago.

    They are those of the newest whole batches that last CPU_WINDOW together, of the query with the longest; CPU_WINDOW
    where no query's last SHORTEST to LONGEST each. queries: ends of the batches of each, oldest first, as `now` counts.
    """
    longest, found = 0.0, (CPU_WINDOW, 0.0)
    for every in queries:
        ends = every[-MOST_BATCHES:]
        if not len(ends) or not 0 <= now - ends[-1] <= LONGEST:
            continue
        count = next((each for each in range(2, 1 + len(ends)) if ends[-1] - ends[-each] >= CPU_WINDOW), 0)
        if not count or ends[1 - count] - ends[-count] > LONGEST:  # the others are less than CPU_WINDOW together
            continue
        length = (ends[-1] - ends[-count]) / (count - 1)
        if SHORTEST <= length <= LONGEST and length > longest:
            longest, found = float(length), (float(now - ends[-count]), float(now - ends[-1]))
    return found
