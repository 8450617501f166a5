"""Limit for the records of the next micro-batch, from the durations of recent ones.

Without it, a late batch takes all records that became due meanwhile, and the next one is even later.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from elastream.core.frames import Floats
from elastream.units import ROUNDING

# Most records of the first batch: 5 s of one core at 50 ms per record, and twelve doublings below 400,000.
FIRST_ALLOWANCE = 100

# Batches used for an estimate: enough to resist two stalls, few enough to follow a change of hosts.
REMEMBERED = 8

# Least ratio of records between two batches used to separate the costs of records and batches.
APART = 1.1

# Growth of the next full batch if recent ones had about the same size, to measure the cost of a record.
TRIAL = 1.25

# Part of `batch_seconds` within which a batch is in time, however sums are rounded.
IN_TIME = 1 - ROUNDING

# (records, seconds)
Batch: TypeAlias = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Governor:
    """Limit of the next batch: `allowance` records, which take about `batch_seconds`.

    Records get at least half of `batch_seconds`. If an empty batch costs more than that, they get as much again: smaller
    batches would hardly be shorter, and fall behind. `recent` holds the last batches without the first one, which starts
    workers; None before it.
    """

    batch_seconds: float
    allowance: int = FIRST_ALLOWANCE
    recent: tuple[Batch, ...] | None = None

    def after(self, records: int, seconds: float) -> "Governor":
        """Return the governor after a batch of `records` that lasted `seconds`.

        A full or late batch sets the allowance to the estimate, at most halved or doubled. Other batches leave it
        unchanged.
        """
        if self.recent is None:
            return replace(self, recent=())
        recent = (*self.recent, (records, seconds))[-REMEMBERED:]
        sizes, durations = np.array(recent, dtype=np.float64).T
        return replace(self, allowance=next_allowance(sizes, durations, self.allowance, self.batch_seconds), recent=recent)


def next_allowance(records: Floats, seconds: Floats, allowance: int, batch_seconds: float) -> int:
    """Return the allowance after batches of `records` that lasted `seconds`, oldest first; shape (batches,) each.

    Costs follow from a Theil-Sen line, which resists stalled batches. It uses the lower quartile of the slopes, so noise is
    not attributed to records. If all batches have about the same size, all time is attributed to records. The function
    calls no others, because the simulator compiles it.
    """
    count = records.size
    if records[count - 1] < allowance and seconds[count - 1] < batch_seconds * IN_TIME:
        return allowance  # most rounds end here: no estimate changes the limit after a batch that was neither full nor late
    slopes, pairs = np.empty(count * count), 0
    for a in range(count):
        for b in range(count):
            if records[b] > records[a] and records[b] >= APART * records[a]:
                slopes[pairs] = (seconds[b] - seconds[a]) / (records[b] - records[a])
                pairs += 1
    if pairs:
        each = max(0.0, np.sort(slopes[:pairs])[(pairs - 1) // 4])
    else:
        each = np.median(seconds / records)
    fixed = max(0.0, np.median(seconds - each * records))
    for_records = fixed if fixed > batch_seconds else max(batch_seconds - fixed, batch_seconds / 2)
    if records[count - 1] < allowance and seconds[count - 1] <= fixed + for_records:
        return allowance
    least, most = max(1, allowance // 2), 2 * allowance
    fitting = for_records / each if each > 0 else float(most)
    if pairs == 0 and allowance / TRIAL < fitting < allowance * TRIAL:
        fitting = allowance * TRIAL + 1
    return int(min(max(fitting, float(least)), float(most)))
