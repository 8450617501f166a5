"""The records of a durable edge by number: files in write order, and each batch's composition."""

import contextlib
import json
from array import array
from bisect import bisect_right
from dataclasses import dataclass

import pyarrow.parquet as pq

from elastream.recording.formats import marked, unmarked
from elastream.recording.paths import AnyPath, names_in, readable, remove_tree, there_as_a_whole, write_whole, written_at
from elastream.spark.worker.composition import BatchComposition

# File in a batch's folder, which Spark's readers skip: the composition of the batch.
COMPOSITION_FILE = "_composition.json"
# File in an edge's folder: its oldest batch, and the number of records in the removed batches before.
FIRST_FILE = "_first.json"
# Newest batches that are never removed: the writing query may write the last of them again.
SPARE_BATCHES = 10
# Batches are removed at least this many at a time, because FIRST_FILE is written each time.
REMOVED_BATCHES = 100


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Records `first` to `first + rows` (exclusive) of the file at `path`."""

    path: AnyPath
    first: int
    rows: int


def note_composition(folder: AnyPath, composition: BatchComposition) -> None:
    """Store a batch's composition in its folder, before the folder is renamed."""
    write_whole(folder / COMPOSITION_FILE, json.dumps(composition).encode())


class EdgeLog:
    """The files of an edge in record order: by batch, then by file name.

    A batch's folder appears atomically and never changes.

    Args:
        spare_batches: Newest batches, which are never removed.
        removed_batches: Fewest batches that are removed at once.

    Attributes:
        batches: Number of batches so far.
        forgotten: Records before the oldest one that is known.
    """

    def __init__(
        self,
        folder: AnyPath,
        *,
        versions: bool = False,
        spare_batches: int = SPARE_BATCHES,
        removed_batches: int = REMOVED_BATCHES,
    ) -> None:
        self._folder, self._versions = folder, versions
        self._spare_batches, self._removed_batches = spare_batches, removed_batches
        self.batches = 0
        self._files: list[AnyPath] = []
        self._ends: list[int] = []
        self._written: list[float] = []
        self._batch: list[int] = []
        self._under: list[BatchComposition | None] = []
        self._newest: BatchComposition | None = None
        self.forgotten = 0
        self._first = 0
        self._batch_ends, self._batch_written = array("q"), array("d")

    def refresh(self) -> int:
        """Register new files and return the number of records written so far."""
        if not there_as_a_whole(self._folder / f"batch={self.batches}"):
            self._skip_removed()
        while there_as_a_whole(batch := self._folder / f"batch={self.batches}"):
            written = written_at(batch)
            if self._versions:
                self._newest = _noted(batch) or self._newest
            for name in sorted(each for each in names_in(batch) if each.endswith(".parquet") and each[0] not in "._"):
                if rows := pq.read_metadata(readable(file := batch / name)).num_rows:
                    self._ends.append(self.total + rows)
                    self._files.append(file)
                    self._written.append(written)
                    self._batch.append(self.batches)
                    self._under.append(self._newest)
            self.batches += 1
            self._batch_ends.append(self.total)
            self._batch_written.append(written)
        return self.total

    def _skip_removed(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            first = unmarked(json.loads((self._folder / FIRST_FILE).read_text()), self._folder / FIRST_FILE)
            if first["batch"] > self.batches:
                self.forget(self.total)
                self._first = self.batches = int(first["batch"])
                self.forgotten = int(first["records"])
                self._batch_ends, self._batch_written = array("q"), array("d")

    def retire(self, upto: int, before: float) -> None:
        """Remove the oldest batches with only records before `upto`, written before epoch second `before`."""
        count, most = 0, len(self._batch_ends) - self._spare_batches
        while count < most and self._batch_ends[count] <= upto and self._batch_written[count] < before:
            count += 1
        if count < self._removed_batches:
            return
        first, records = self._first + count, self._batch_ends[count - 1]
        write_whole(self._folder / FIRST_FILE, json.dumps(marked({"batch": first, "records": records})).encode())
        for number in range(self._first, first):
            with contextlib.suppress(OSError):
                remove_tree(self._folder / f"batch={number}")
        self._first = first
        del self._batch_ends[:count], self._batch_written[:count]

    @property
    def total(self) -> int:
        return self._ends[-1] if self._ends else self.forgotten

    def forget(self, upto: int) -> None:
        gone = bisect_right(self._ends, upto)
        if gone:
            self.forgotten = self._ends[gone - 1]
            del self._ends[:gone], self._files[:gone], self._written[:gone], self._batch[:gone], self._under[:gone]

    def shift(self, seconds: float) -> None:
        """Shift all write times after the clock was set forward by `seconds`."""
        self._written = [written + seconds for written in self._written]

    def composition(self, number: int) -> BatchComposition | None:
        """Return the composition of record `number`; for a future record, that of the newest batch."""
        at = bisect_right(self._ends, number)
        return self._under[at] if at < len(self._under) else self._newest

    def until(self, first: int, version: int) -> int:
        """Return the first record from `first` on with a later version than `version`."""
        at = bisect_right(self._ends, first)
        while at < len(self._ends) and ((under := self._under[at]) is None or under.version <= version):
            first, at = self._ends[at], at + 1
        return first

    def written(self, number: int) -> float:
        """Return the write time of record `number` (epoch seconds); NaN if unknown."""
        at = bisect_right(self._ends, number)
        return self._written[at] if self.forgotten <= number and at < len(self._written) else float("nan")

    def files_between(self, first: int, last: int) -> list[tuple[int, float, int]]:
        """Return (batch, write time, records) of each file in records `first` to `last` (exclusive)."""
        parts = []
        first = max(first, self.forgotten)
        at = bisect_right(self._ends, first)
        while first < last and at < len(self._ends):
            upto = min(last, self._ends[at])
            parts.append((self._batch[at], self._written[at], upto - first))
            first, at = upto, at + 1
        return parts

    def by(self, time: float) -> int:
        """Return the records written by `time` (epoch seconds), forgotten ones included."""
        at = bisect_right(self._written, time)
        return self._ends[at - 1] if at else self.forgotten

    def pieces(self, first: int, last: int) -> tuple[FilePiece, ...]:
        """Return records `first` to `last` (exclusive) by file. All must be registered."""
        pieces = []
        at = bisect_right(self._ends, first)
        while first < last:
            begins = self._ends[at - 1] if at else self.forgotten
            upto = min(last, self._ends[at])
            pieces.append(FilePiece(self._files[at], first - begins, upto - first))
            first, at = upto, at + 1
        return tuple(pieces)


def _noted(folder: AnyPath) -> BatchComposition | None:
    try:
        return BatchComposition(*json.loads((folder / COMPOSITION_FILE).read_text()))
    except FileNotFoundError:
        return None  # the run stored no versions of records
