"""Keeps micro-batches from running away: how many records the next one may take, from how long the last ones took.

Without it a batch that is late takes all that became due meanwhile and is later still. What is due and not taken waits at
the source, where policies see it as backlog. The clock is left to the source.
"""

from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import TypeAlias

__all__ = ["Governor"]

FIRST_ALLOWANCE = 100
"""Records of a first batch: at 50 ms a record five seconds of one core, and twelve doublings from 400,000."""

REMEMBERED = 8
"""Batches that an estimate rests on: enough to outvote two stalls, few enough to follow a change of hosts."""

APART = 1.1
"""Two batches tell the cost of a record apart from that of a batch where one has at least this many times the records."""

TRIAL = 1.25
"""Where all batches were of about one size, the next full one takes this many times as many, to learn what one costs."""

Batch: TypeAlias = tuple[int, float]
"""Records and seconds."""


@dataclass(frozen=True, slots=True)
class Governor:
    """What the next batch may take: `allowance` records, so that it takes about `batch_seconds`.

    Where merely having a batch takes more than half of `batch_seconds`, its records may take the other half all the same:
    smaller batches would spend all time on starting. `recent`: the last batches but the very first, which starts workers
    and says nothing about those to come; None before it.
    """

    batch_seconds: float
    allowance: int = FIRST_ALLOWANCE
    recent: tuple[Batch, ...] | None = None

    def after(self, records: int, seconds: float) -> "Governor":
        """The governor after a batch of `records` that took `seconds`.

        A batch that was full or too long sets the allowance to what fits, at most halving or doubling it. One that took
        all there was, in time, shows nothing about what more would take, and changes nothing.
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
    """Seconds of an empty batch, seconds a record, and whether the two can be told apart.

    After Theil and Sen, a line that a stalled batch does not bend, with the lower quartile of the slopes for their median:
    where noise is all that tells two batches apart, half of the slopes are negative and records are taken to cost nothing,
    so that a noisy machine is not mistaken for dear records. Where all batches are of about one size, all their time counts
    as their records'.
    """
    slopes = [
        (t2 - t1) / (n2 - n1) for (n1, t1), (n2, t2) in combinations(sorted(batches), 2) if n2 >= APART * n1 and n2 > n1
    ]
    each = max(0.0, _lower_quartile(slopes)) if slopes else median(t / n for n, t in batches)
    return max(0.0, median(t - each * n for n, t in batches)), each, bool(slopes)


def _lower_quartile(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 4]
