"""When the records of a batch came to be, how many come a second, and how many wait, by what their source can tell.

A declared load knows when each record was due; a source may stamp its records or its files; of any other the polls of the
source bound it. One `Origin` a source and query; what it does not know is NaN.
"""

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from elastream.core.latency import Basis
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.recording.places import Place, modified_at
from elastream.spark.dataflow.stamps import POINTS
from elastream.spark.telemetry.batches import Batch, Taken
from elastream.spark.telemetry.file_log import FileLog, TakenFile

ARRIVALS = 10.0
"""Seconds that the arrival rate of a source without a load is over: files and polls come in lumps."""
NAN = float("nan")
Moments: TypeAlias = list[tuple[float, float]]
"""Epoch seconds from which records count, and how many these are."""


class Origin:
    """Source number `number` of a query with its checkpoint at `checkpoint`.

    pattern: its declared load. stamped: name of the observation of its records' time stamps, if they have any. place: where
    it reads local files. basis: what its latencies were measured from lately; None before its first batch.
    """

    def __init__(
        self,
        number: int,
        checkpoint: Place,
        pattern: ArrivalPattern | None = None,
        stamped: str | None = None,
        place: str | None = None,
    ) -> None:
        self.number, self.pattern, self._stamped, self._place = number, pattern, stamped, place
        self._checkpoint = checkpoint
        self._files: FileLog | None = None
        self._samples: deque[tuple[float, float]] = deque()
        self._taken = self._bytes = self._records = 0.0
        self._behind = NAN
        self._committed, self._ended = -1, NAN
        self.basis: Basis | None = None

    def took(self, batch: Batch) -> Moments:
        """Take note of a committed batch, in order; from when on its records count."""
        taken = batch.source(self.number)
        if "logOffset" in taken.end and self._files is None and self.pattern is None:
            self._files = FileLog(self._checkpoint / "sources" / str(self.number), self._place)
        moments = self._moments(batch, taken)
        if self.pattern is None:
            self._taken, self._behind, self._ended = self._taken + taken.rows, taken.behind, batch.end
            if self._files is None:
                self._note(batch.start, self._taken + (taken.behind if taken.behind == taken.behind else 0.0))
        return moments

    def ends(self, batch: Batch, moments: Moments) -> tuple[float, float]:
        """Moments of the oldest and the newest record of a batch; NaN where it has none."""
        taken = batch.source(self.number)
        if self.pattern is not None and taken.rows:
            first, last = taken.numbers
            started = float(taken.end.get("started") or NAN)
            return started + self.pattern.due(first), started + self.pattern.due(last - 1)
        return min((at for at, _ in moments), default=NAN), max((at for at, _ in moments), default=NAN)

    def look(self, now: float, under_way: bool, interval: float) -> None:
        """Look what waits at epoch second `now`; under_way: whether a batch is planned and not committed. interval: seconds
        from one poll of the source to the next, or from a batch's end to the next poll, at most: until a poll has found
        nothing, it is not known that nothing comes.
        """
        if self.pattern is not None:
            return
        if self._files is not None:
            self._files.refresh()
            waiting, planned = self._files.waiting(), self._files.taken(self._committed, self._committed + 1)
            if waiting is not None and self._bytes > 0:
                each = self._records / self._bytes
                self._behind = each * _bytes(waiting)
                self._note(now, self._taken + self._behind + (each * _bytes(planned) if under_way else 0.0))
                return
        if not under_way and self._samples and now - interval > self._ended:
            self._note(now - interval, self._samples[-1][1])

    def stepped(self) -> None:
        """Forget when records came so far: that was by a clock which was set meanwhile."""
        self._samples.clear()

    @property
    def backlog(self) -> float:
        """Records that wait at a source without a load, as far as it tells: with its last batch, or by its files' sizes."""
        return self._behind

    @property
    def arrivals(self) -> float:
        """Records/s that came to a source without a load over the last ARRIVALS seconds known of; NaN until two are."""
        if len(self._samples) < 2:
            return NAN
        last, total = self._samples[-1]
        base, before = next(
            ((at, count) for at, count in reversed(self._samples) if at <= last - ARRIVALS), self._samples[0]
        )
        return max(0.0, total - before) / (last - base)

    def _note(self, at: float, total: float) -> None:
        """That `total` records had come by epoch second `at`."""
        if not self._samples or at > self._samples[-1][0]:
            self._samples.append((at, total))
        while len(self._samples) > 2 and self._samples[1][0] <= self._samples[-1][0] - ARRIVALS:
            self._samples.popleft()

    # -- moments -------------------------------------------------------------------------------------------------------

    def _moments(self, batch: Batch, taken: Taken) -> Moments:
        if self.pattern is not None:
            self.basis = Basis.DUE
            started, (first, last) = float(taken.end.get("started") or NAN), taken.numbers
            return [(started + self.pattern.due(n), weight) for n, weight in points(first, last)]
        if not taken.rows:
            return []
        begun = self._begun(batch)
        if self._files is not None:
            found = self._of_files(taken)
        else:
            found = _of_stamps(batch.observed.get(self._stamped or "", {}), taken.rows)
        rest = taken.rows - sum(weight for _, weight in found)
        self.basis = Basis.BOUND if rest > 0.5 else Basis.TIMESTAMPS if self._files is None else Basis.FILES
        if rest > 0.5:
            found.append((taken.waiting if taken.waiting == taken.waiting else begun, rest))
        # What was there before the run began did not wait for this run before it began.
        return [(max(at, begun), weight) for at, weight in found]

    def _begun(self, batch: Batch) -> float:
        """When the query began, at its first start: later ones continue from the same checkpoint."""
        try:
            return min(batch.start, modified_at(self._checkpoint / "metadata"))
        except OSError:
            return batch.start

    def _of_files(self, taken: Taken) -> Moments:
        """By the modification times of the files taken, weighted by their sizes."""
        assert self._files is not None
        self._files.refresh()
        before = int(taken.start.get("logOffset", -1))
        self._committed = int(taken.end["logOffset"])
        files = self._files.taken(before, self._committed)
        if (size := _bytes(files)) > 0:
            self._bytes, self._records = self._bytes + size, self._records + taken.rows
            return [(file.modified, taken.rows * file.bytes / size) for file in files]
        return [(file.modified, taken.rows / len(files)) for file in files]


def points(first: int, last: int) -> list[tuple[int, float]]:
    """Numbers of up to POINTS records, evenly spread from `first` to `last` (exclusive), and for how many each stands."""
    count = min(POINTS, last - first)
    return [(int(first + (point + 0.5) * (last - first) / count), (last - first) / count) for point in range(count)]


def condensed(moments: Moments) -> Moments:
    """`moments` as at most 8 * POINTS of them, which stand for equal numbers of records."""
    if len(moments) <= 8 * POINTS:
        return moments
    table = np.array(sorted(moments))
    reached = np.cumsum(table[:, 1])
    ranks = (np.arange(8 * POINTS) + 0.5) / (8 * POINTS) * reached[-1]
    return [(float(at), float(reached[-1]) / (8 * POINTS)) for at in table[np.searchsorted(reached, ranks), 0]]


def _bytes(files: Sequence[TakenFile]) -> float:
    """Their sizes together; NaN where one is unknown."""
    return sum(file.bytes for file in files)


def _of_stamps(observed: object, rows: int) -> Moments:
    """By the observed quantiles of time stamps of the `stamped` records."""
    if not isinstance(observed, dict) or not (quantiles := observed.get("at")):
        return []
    # An observation counts what a batch that is computed twice has taken twice: the share with a stamp is what counts.
    share = observed["stamped"] / observed["records"] if observed["records"] else 0.0
    inner = quantiles[1:-1]
    return [(float(at), rows * share / len(inner)) for at in inner]
