"""Limits the records of the next micro-batch, from the durations of recent ones, so that batches do not grow unboundedly.

Without a limit, a late batch takes all records that became due meanwhile, and the next is even later. Records that are due
but not taken wait at the source, where policies see them as backlog. The source measures the durations.
"""

from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import TypeAlias

__all__ = ["Governor"]

FIRST_ALLOWANCE = 100
"""Most records of the first batch: 5 s of one core at 50 ms per record, and twelve doublings below 400,000."""

REMEMBERED = 8
"""Batches used for an estimate: enough to be robust against two stalls, few enough to follow a change of hosts."""

APART = 1.1
"""Least ratio of records between two batches whose durations are used to separate the costs of records and batches."""

TRIAL = 1.25
"""Growth of the next full batch if all recent ones had about the same size, to measure the cost of a record."""

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
        fixed, each, certain = _costs(recent)
        for_records = max(self.batch_seconds - fixed, self.batch_seconds / 2)
        if records < self.allowance and seconds <= fixed + for_records:
            return replace(self, recent=recent)
        least, most = max(1, self.allowance // 2), 2 * self.allowance
        fitting = for_records / each if each > 0 else most
        if not certain and self.allowance / TRIAL < fitting < self.allowance * TRIAL:
            fitting = self.allowance * TRIAL + 1
        return replace(self, allowance=int(min(max(fitting, least), most)), recent=recent)


def _costs(batches: tuple[Batch, ...]) -> tuple[float, float, bool]:
    """(seconds of an empty batch, seconds per record, whether the data separates the two).

    Theil-Sen line, robust against stalled batches, with the lower quartile of the slopes instead of the median: if noise
    dominates, half of the slopes are negative and the cost per record becomes 0, so that noise is not attributed to
    records. If all batches have about the same size, all time is attributed to records.
    """
    slopes = [
        (t2 - t1) / (n2 - n1) for (n1, t1), (n2, t2) in combinations(sorted(batches), 2) if n2 >= APART * n1 and n2 > n1
    ]
    each = max(0.0, _lower_quartile(slopes)) if slopes else median(t / n for n, t in batches)
    return max(0.0, median(t - each * n for n, t in batches)), each, bool(slopes)


def _lower_quartile(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 4]
