"""Arrival times, arrival rates and backlogs of sources, from what each source can report.

A declared load dates each record; a source may timestamp its records or files; otherwise its polls bound the times. One
`Origin` serves one source of one query.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from elastream.core.frames import OLD
from elastream.core.latency import Basis
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.recording.file_log import FileLog, InputFile
from elastream.recording.paths import AnyPath, modified_at
from elastream.spark.dataflow.stamps import POINTS
from elastream.spark.telemetry.batches import Batch, SourceProgress

# Window of the arrival rate of a source without a load (seconds): files and polls come in lumps.
ARRIVALS = 10.0
NAN = float("nan")
# (epoch second from which records count, number of records).
Moments: TypeAlias = list[tuple[float, float]]


class Origin:
    """Source `number` of the query with its checkpoint at `checkpoint`, and the declared load `pattern`.

    `stamped` names the observation of its records' timestamps, if they have any; `place` are the local files that it reads.
    """

    def __init__(
        self,
        number: int,
        checkpoint: AnyPath,
        pattern: ArrivalPattern | None = None,
        stamped: str | None = None,
        place: str | None = None,
    ) -> None:
        self.number, self.pattern, self._stamped, self._place = number, pattern, stamped, place
        self._checkpoint = checkpoint
        self._files: FileLog | None = None
        self._samples: deque[tuple[float, float]] = deque()
        self._rows = self._bytes = self._records = 0.0
        # Records waiting at a source without a load, as of its last batch or by its files' sizes.
        self.backlog, self._committed, self._ended = NAN, -1, NAN
        self.basis: Basis | None = None  # of its recent latencies; None before its first batch

    def add_batch(self, batch: Batch) -> Moments:
        """Add the next committed batch; return from when its records count."""
        progress = batch.source(self.number)
        if "logOffset" in progress.end and self._files is None and self.pattern is None:
            self._files = FileLog(self._checkpoint / "sources" / str(self.number), self._place)
        moments = self._moments(batch, progress)
        if self.pattern is None:
            self._rows, self.backlog, self._ended = self._rows + progress.rows, progress.behind, batch.end
            if self._files is None:
                self._note(batch.start, self._rows + (progress.behind if progress.behind == progress.behind else 0.0))
        return moments

    def ends(self, batch: Batch, moments: Moments) -> tuple[float, float]:
        """Return the moments of a batch's oldest and newest record; NaN without records."""
        progress = batch.source(self.number)
        if self.pattern is not None and progress.rows:
            first, last = progress.numbers
            started = float(progress.end.get("started") or NAN)
            return started + self.pattern.due(first), started + self.pattern.due(last - 1)
        times = [at for at, _ in moments] or [NAN]
        return min(times), max(times)

    def look(self, now: float, under_way: bool, interval: float) -> None:
        """Measure the backlog at epoch second `now`.

        Args:
            now: Epoch seconds.
            under_way: True if a batch is planned and not committed.
            interval: Longest time to the next poll [s]. Until a poll has returned nothing, records may still have arrived.
        """
        if self.pattern is not None:
            return
        if self._files is not None:
            self._files.refresh()
            waiting, planned = self._files.waiting(), self._files.files(self._committed, self._committed + 1)
            if waiting is not None and self._bytes > 0:
                each = self._records / self._bytes
                self.backlog = each * _bytes(waiting)
                self._note(now, self._rows + self.backlog + (each * _bytes(planned) if under_way else 0.0))
                return
        if not under_way and self._samples and now - interval > self._ended:
            self._note(now - interval, self._samples[-1][1])

    def stepped(self) -> None:
        """Forget arrival times measured before the clock was set."""
        self._samples.clear()

    @property
    def arrivals(self) -> float:
        """Arrival rate [records/s] of a source without a load over the last ARRIVALS seconds; NaN before two samples."""
        if len(self._samples) < 2:
            return NAN
        (base, before), (last, total) = self._counted
        return max(0.0, total - before) / (last - base)

    @property
    def arrivals_age(self) -> float:
        """Mean age [s] of the records that `arrivals` counts."""
        if len(self._samples) < 2:
            return 0.0
        (first, _), (last, _) = self._counted
        spacing = (self._samples[-1][0] - self._samples[0][0]) / (len(self._samples) - 1)
        return min((last - first + spacing) / 2, OLD)

    @property
    def _counted(self) -> tuple[tuple[float, float], tuple[float, float]]:
        last = self._samples[-1]
        first = (each for each in reversed(self._samples) if each[0] <= last[0] - ARRIVALS)
        return next(first, self._samples[0]), last

    def _note(self, at: float, total: float) -> None:
        if not self._samples or at > self._samples[-1][0]:
            self._samples.append((at, total))
        while len(self._samples) > 2 and self._samples[1][0] <= self._samples[-1][0] - ARRIVALS:
            self._samples.popleft()

    # -- moments -------------------------------------------------------------------------------------------------------

    def _moments(self, batch: Batch, progress: SourceProgress) -> Moments:
        if self.pattern is not None:
            self.basis = Basis.DUE
            started, (first, last) = float(progress.end.get("started") or NAN), progress.numbers
            return [(started + self.pattern.due(n), weight) for n, weight in points(first, last)]
        if not progress.rows:
            return []
        begun = self._begun(batch)
        if self._files is not None:
            moments = self._of_files(progress)
        else:
            moments = _of_stamps(batch.observed.get(self._stamped or "", {}), progress.rows)
        rest = progress.rows - sum(weight for _, weight in moments)
        self.basis = Basis.BOUND if rest > 0.5 else Basis.TIMESTAMPS if self._files is None else Basis.FILES
        if rest > 0.5:
            moments.append((progress.waiting if progress.waiting == progress.waiting else begun, rest))
        # Records from before the run count as waiting from its start on.
        return [(max(at, begun), weight) for at, weight in moments]

    def _begun(self, batch: Batch) -> float:
        try:
            return min(batch.start, modified_at(self._checkpoint / "metadata"))
        except OSError:
            return batch.start

    def _of_files(self, progress: SourceProgress) -> Moments:
        assert self._files is not None
        self._files.refresh()
        before = int(progress.start.get("logOffset", -1))
        self._committed = int(progress.end["logOffset"])
        files = self._files.files(before, self._committed)
        if (size := _bytes(files)) > 0:
            self._bytes, self._records = self._bytes + size, self._records + progress.rows
            return [(file.modified, progress.rows * file.bytes / size) for file in files]
        return [(file.modified, progress.rows / len(files)) for file in files]


def mean_age(sources: Iterable[tuple[float, float]]) -> float:
    """Return the mean age [s] of all records, by (rate, age) of each source. An unknown rate does not count."""
    known = [(rate, age) for rate, age in sources if rate > 0]
    return math.fsum(rate * age for rate, age in known) / math.fsum(rate for rate, _ in known) if known else 0.0


def points(first: int, last: int) -> list[tuple[int, float]]:
    """Return up to POINTS record numbers, evenly spread over [first, last), and how many records each stands for."""
    count = min(POINTS, last - first)
    return [(int(first + (point + 0.5) * (last - first) / count), (last - first) / count) for point in range(count)]


def condensed(moments: Moments) -> Moments:
    """Reduce `moments` to at most 8 * POINTS, each for the same number of records."""
    if len(moments) <= 8 * POINTS:
        return moments
    table = np.array(sorted(moments))
    reached = np.cumsum(table[:, 1])
    ranks = (np.arange(8 * POINTS) + 0.5) / (8 * POINTS) * reached[-1]
    return [(float(at), float(reached[-1]) / (8 * POINTS)) for at in table[np.searchsorted(reached, ranks), 0]]


def _bytes(files: Sequence[InputFile]) -> float:
    return sum(file.bytes for file in files)


def _of_stamps(observed: object, rows: float) -> Moments:
    """Return the observed quantiles of timestamps, for the share of records that carry one."""
    if not isinstance(observed, dict) or not (quantiles := observed.get("at")):
        return []
    # If a batch is computed twice, an observation counts its records twice. So only the share with a stamp is used.
    share = observed["stamped"] / observed["records"] if observed["records"] else 0.0
    inner = quantiles[1:-1]
    return [(float(at), rows * share / len(inner)) for at in inner]
