"""Keeps micro-batches from running away: how many records the next one may take, from how long the last ones took.

Without it a batch that is late takes all that became due meanwhile and is later still. What is due and not taken waits at
the source, where policies see it as backlog. The clock is left to the source.
"""

import math
from dataclasses import dataclass, replace

__all__ = ["Governor"]

FIRST_ALLOWANCE = 100
"""Records of a first batch: at 50 ms a record five seconds of one core, and twelve doublings from 400,000."""


@dataclass(frozen=True, slots=True)
class Governor:
    """What the next batch may take: `allowance` records, so that a batch takes about `batch_seconds`.

    shortest: seconds of the shortest batch so far. A batch is not asked to be shorter than twice that, because an almost
    empty one takes as long, and taking still fewer records would only spend all time on starting batches.
    """

    batch_seconds: float
    allowance: int = FIRST_ALLOWANCE
    shortest: float = math.inf

    def after(self, records: int, seconds: float) -> "Governor":
        """The governor after a batch of `records` that took `seconds`.

        A batch that was too long, or was full and had time left, sets the allowance to what fits at its rate; but it at
        most halves or doubles, so that one stall does not undo what many batches showed. A batch that took all there was
        in time shows nothing about what more would take, and changes nothing.
        """
        shortest = min(self.shortest, seconds)
        wanted = max(self.batch_seconds, 2 * shortest)
        if records < self.allowance and seconds <= wanted:
            return replace(self, shortest=shortest)
        fitting = records / seconds * wanted
        least, most = max(1, self.allowance // 2), 2 * self.allowance
        return replace(self, allowance=int(min(max(fitting, least), most)), shortest=shortest)
