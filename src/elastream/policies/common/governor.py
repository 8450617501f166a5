"""Limits the records of the next micro-batch, from the durations of recent ones, so that batches do not grow unboundedly.

Without a limit, a late batch takes all records that became due meanwhile, and the next is even later. Records that are due
but not taken wait at the source, where policies see them as backlog. The source measures the durations.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from elastream.core.frames import Floats
from elastream.units import ROUNDING

FIRST_ALLOWANCE = 100
"""Most records of the first batch: 5 s of one core at 50 ms per record, and twelve doublings below 400,000."""

REMEMBERED = 8
"""Batches used for an estimate: enough to be robust against two stalls, few enough to follow a change of hosts."""

APART = 1.1
"""Least ratio of records between two batches whose durations are used to separate the costs of records and batches."""

TRIAL = 1.25
"""Growth of the next full batch if all recent ones had about the same size, to measure the cost of a record."""

IN_TIME = 1 - ROUNDING
"""Part of `batch_seconds` within which a batch is in time, however sums are rounded."""

Batch: TypeAlias = tuple[int, float]
"""(records, seconds)."""


@dataclass(frozen=True, slots=True)
class Governor:
    """Limit of the next batch: `allowance` records, chosen so that it lasts about `batch_seconds`.

    If the fixed cost of a batch exceeds half of `batch_seconds`, records still get half of it: smaller batches would spend
    all time on fixed costs. recent: the last batches without the very first, which starts workers and is not
    representative; None before it.
    """

    batch_seconds: float
    allowance: int = FIRST_ALLOWANCE
    recent: tuple[Batch, ...] | None = None

    def after(self, records: int, seconds: float) -> "Governor":
        """The governor after a batch of `records` that lasted `seconds`.

        A full or late batch sets the allowance to the estimate of what fits, at most halving or doubling it. A batch below
        the allowance and in time leaves it unchanged.
        """
        if self.recent is None:
            return replace(self, recent=())
        recent = (*self.recent, (records, seconds))[-REMEMBERED:]
        taken, lasted = np.array(recent, dtype=np.float64).T
        return replace(self, allowance=next_allowance(taken, lasted, self.allowance, self.batch_seconds), recent=recent)


def next_allowance(records: Floats, seconds: Floats, allowance: int, batch_seconds: float) -> int:
    """The allowance after batches of `records` that lasted `seconds`, oldest first; shape (batches,) each.

    Costs are those of a Theil-Sen line, robust against stalled batches, with the lower quartile of the slopes instead of
    the median: if noise dominates, half of the slopes are negative and the cost per record becomes 0, so that noise is not
    attributed to records. If all batches have about the same size, all time is attributed to records.

    One function without calls to others, because the simulator compiles it into its loop.
    """
    count = records.size
    if records[count - 1] < allowance and seconds[count - 1] < batch_seconds * IN_TIME:
        return allowance  # whatever a batch costs, as in most rounds: `fixed + for_records` is no less than `batch_seconds`
    slopes, found = np.empty(count * count), 0
    for a in range(count):
        for b in range(count):
            if records[b] > records[a] and records[b] >= APART * records[a]:
                slopes[found] = (seconds[b] - seconds[a]) / (records[b] - records[a])
                found += 1
    if found:
        each = max(0.0, np.sort(slopes[:found])[(found - 1) // 4])
    else:
        each = np.median(seconds / records)
    fixed = max(0.0, np.median(seconds - each * records))
    for_records = max(batch_seconds - fixed, batch_seconds / 2)
    if records[count - 1] < allowance and seconds[count - 1] <= fixed + for_records:
        return allowance
    least, most = max(1, allowance // 2), 2 * allowance
    fitting = for_records / each if each > 0 else float(most)
    if found == 0 and allowance / TRIAL < fitting < allowance * TRIAL:
        fitting = allowance * TRIAL + 1
    return int(min(max(fitting, float(least)), float(most)))
