"""How much of a run was in time: by its records, and by the clock. Summary, report and live view count it here."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from elastream.model.observation import Floats, Metric, MicroBatch
from elastream.model.wording import UNKNOWN, percent
from elastream.recording.recorder import Recording

__all__ = ["InTime", "in_time"]

Values: TypeAlias = Floats | float


@dataclass
class InTime:
    """Counts what was within `target` seconds so far; None: nothing was promised, and nothing is counted."""

    target: float | None
    _judged: float = 0.0
    _within: float = 0.0
    _seconds: float = 0.0
    _kept: float = 0.0
    _by_batches: bool = False

    def batches(self, batches: Iterable[MicroBatch]) -> None:
        """Count the records of `batches`, spread evenly between the latencies of the oldest and of the newest one."""
        if self.target is None:
            return
        for batch in batches:
            if batch.records > 0 and not math.isnan(batch.oldest):
                self._judged += batch.records
                self._within += batch.records * self._share(batch.oldest, batch.newest)
                self._by_batches = True

    def period(self, seconds: Values, p99: Values, compliance: Values, records: Values) -> None:
        """Count periods: their lengths, the 99th percentile of latency, the part of the records in time, and these.

        Numbers or arrays of one shape; NaN where unknown. Records count here where no batch says how long its own took.
        """
        if self.target is None:
            return
        known = ~np.isnan(p99)
        self._seconds += float(np.sum(np.where(known, seconds, 0.0)))
        self._kept += float(np.sum(np.where(known & (np.asarray(p99) <= self.target), seconds, 0.0)))
        if not self._by_batches:
            judged = np.where(np.isnan(compliance), 0.0, records)
            self._judged += float(np.sum(judged))
            self._within += float(np.sum(judged * np.nan_to_num(compliance)))

    def _share(self, oldest: float, newest: float) -> float:
        """Part of the latencies from `newest` to `oldest` that is within the target."""
        target = math.inf if self.target is None else self.target
        if oldest <= target or newest > target:
            return float(oldest <= target)
        return (target - newest) / (oldest - newest)

    @property
    def records(self) -> float:
        """Fraction of the records that were in time; NaN where none is judged."""
        return self._within / self._judged if self._judged > 0 else math.nan

    @property
    def time(self) -> float:
        """Fraction of the time in which the 99th percentile was within the target; NaN where it was never known."""
        return self._kept / self._seconds if self._seconds > 0 else math.nan

    def __str__(self) -> str:
        """`"99% of the records, 97% of the time"`; the shorter where only one is known."""
        records, time = percent(self.records), percent(self.time)
        if records == UNKNOWN:
            return UNKNOWN if time == UNKNOWN else f"{time} of the time"
        return f"{records} of the records, {time} of the time"


def in_time(recording: Recording) -> InTime:
    """What was in time of a whole run."""
    kept = InTime(recording.header.target_latency)
    kept.batches(recording.batches)
    widths = np.diff(recording.times, prepend=0.0)
    served = np.nan_to_num(recording.application(Metric.THROUGHPUT) * widths)
    kept.period(widths, recording.application(Metric.LATENCY_P99), recording.application(Metric.COMPLIANCE), served)
    return kept
