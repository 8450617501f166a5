"""How much of a run was in time: by its records, and by the clock. Summary, report and live view count it here."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from elastream.core.frames import Floats
from elastream.core.latency import share_within
from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch
from elastream.core.wording import UNKNOWN, percent
from elastream.recording.recorder import Recording

Values: TypeAlias = Floats | float


@dataclass
class InTime:
    """Counts what was within `target` seconds so far; None: nothing was promised, and nothing is counted.

    judged, within: records, and those of them in time; by_batches: whether batches said so. seconds, kept: of periods whose
    99th percentile is known, and of those in which it was within the target.
    """

    target: float | None
    judged: float = 0.0
    within: float = 0.0
    seconds: float = 0.0
    kept: float = 0.0
    by_batches: bool = False

    def batches(self, batches: Iterable[MicroBatch]) -> None:
        """Count the records of `batches`, spread evenly between the latencies of the oldest and of the newest one."""
        if self.target is None:
            return
        for batch in batches:
            if batch.records > 0 and not math.isnan(batch.oldest):
                self.judged += batch.records
                self.within += batch.records * share_within(self.target, batch.oldest, batch.newest)
                self.by_batches = True

    def period(self, seconds: Values, p99: Values, compliance: Values, records: Values) -> None:
        """Count periods: their lengths, the 99th percentile of latency, the part of the records in time, and these.

        Numbers or arrays of one shape; NaN where unknown. Records count here where no batch says how long its own took.
        """
        if self.target is None:
            return
        known = ~np.isnan(p99)
        self.seconds += float(np.sum(np.where(known, seconds, 0.0)))
        self.kept += float(np.sum(np.where(known & (np.asarray(p99) <= self.target), seconds, 0.0)))
        if not self.by_batches:
            judged = np.where(np.isnan(compliance), 0.0, records)
            self.judged += float(np.sum(judged))
            self.within += float(np.sum(judged * np.nan_to_num(compliance)))

    @property
    def records(self) -> float:
        """Fraction of the records that were in time; NaN where none is judged."""
        return self.within / self.judged if self.judged > 0 else math.nan

    @property
    def time(self) -> float:
        """Fraction of the time in which the 99th percentile was within the target; NaN where it was never known."""
        return self.kept / self.seconds if self.seconds > 0 else math.nan

    def __str__(self) -> str:
        """`"99% of the records, 97% of the time"`; the shorter where only one is known."""
        records, time = percent(self.records), percent(self.time)
        if records == UNKNOWN:
            return UNKNOWN if time == UNKNOWN else f"{time} of the time"
        return f"{records} of the records, {time} of the time"


def in_time(recording: Recording, before: InTime | None = None, widths: Floats | None = None) -> InTime:
    """What was in time of a recording, and `before`. widths: seconds of each of its periods."""
    kept = InTime(recording.header.target_latency) if before is None else replace(before)
    kept.batches(recording.batches)
    widths = np.diff(recording.times, prepend=0.0) if widths is None else widths
    served = np.nan_to_num(recording.application(Metric.THROUGHPUT) * widths)
    kept.period(widths, recording.application(Metric.LATENCY_P99), recording.application(Metric.COMPLIANCE), served)
    return kept
