"""The records of a durable edge by number: files in the order in which they were written, and what each was written under.

Used by all who look at an edge: its reader, readers beside it, telemetry. Nothing is kept of files that were forgotten.
"""

import contextlib
import json
from array import array
from bisect import bisect_right
from dataclasses import dataclass

import pyarrow.parquet as pq

from elastream.recording.formats import marked, unmarked
from elastream.recording.places import Place, names_in, readable, remove_tree, there_as_a_whole, write_whole, written_at
from elastream.spark.worker.composition import Ran

COMPOSITION = "_composition.json"
"""File in a batch's folder: what it was written under. Spark's readers skip it."""
FIRST = "_first.json"
"""File in an edge's folder: its oldest batch, and how many records came before that, whose folders are gone."""
SPARE = 10
"""Newest batches that are never removed: the writing query may be about to write the last of them again."""
EACH = 100
"""Batches that are removed at a time, at least: each time FIRST is written first."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Records `first` to `first + rows` (exclusive) of the file at `path`."""

    path: Place
    first: int
    rows: int


def note_composition(folder: Place, ran: Ran) -> None:
    """Note in a batch's folder, before it appears under its name, what the batch ran under."""
    write_whole(folder / COMPOSITION, json.dumps(ran).encode())


class EdgeLog:
    """The files of an edge in record order: by batch, within a batch by file name.

    A batch's folder appears atomically (`sinks.write_batch`) and never changes, so that record numbers are the same in
    every process. Every batch writes a folder, so that the next one is found by name, without listing folders again. Its
    reader removes the folders of batches that nobody needs any more, and notes which one is the first that is left.

    versions: whether to read what each batch ran under, which is noted where records keep their version.
    """

    def __init__(self, folder: Place, *, versions: bool = False) -> None:
        self._folder, self._versions = folder, versions
        self._batches = 0
        self._files: list[Place] = []
        self._ends: list[int] = []
        self._written: list[float] = []
        self._batch: list[int] = []
        self._under: list[Ran | None] = []
        self._newest: Ran | None = None
        self._forgotten = 0
        self._first = 0
        self._batch_ends, self._batch_written = array("q"), array("d")

    def refresh(self) -> int:
        """Register newly written files; returns the number of records written so far."""
        if not there_as_a_whole(self._folder / f"batch={self._batches}"):
            self._skip_removed()
        while there_as_a_whole(batch := self._folder / f"batch={self._batches}"):
            written = written_at(batch)
            if self._versions:
                self._newest = _noted(batch) or self._newest
            for name in sorted(each for each in names_in(batch) if each.endswith(".parquet") and each[0] not in "._"):
                if rows := pq.read_metadata(readable(file := batch / name)).num_rows:
                    self._ends.append(self.total + rows)
                    self._files.append(file)
                    self._written.append(written)
                    self._batch.append(self._batches)
                    self._under.append(self._newest)
            self._batches += 1
            self._batch_ends.append(self.total)
            self._batch_written.append(written)
        return self.total

    def _skip_removed(self) -> None:
        """Go on with the oldest batch that is there, where those before it were read and removed."""
        with contextlib.suppress(FileNotFoundError):
            found = unmarked(json.loads((self._folder / FIRST).read_text()), self._folder / FIRST)
            if found["batch"] > self._batches:
                self.forget(self.total)
                self._first = self._batches = int(found["batch"])
                self._forgotten = int(found["records"])
                self._batch_ends, self._batch_written = array("q"), array("d")

    def retire(self, upto: int, before: float) -> None:
        """Remove the oldest batches, of which all records come before number `upto`, and that were written before epoch
        second `before`. Only its reader does that, and with records that it never wants again.
        """
        count, most = 0, len(self._batch_ends) - SPARE
        while count < most and self._batch_ends[count] <= upto and self._batch_written[count] < before:
            count += 1
        if count < EACH:
            return
        first, records = self._first + count, self._batch_ends[count - 1]
        write_whole(self._folder / FIRST, json.dumps(marked({"batch": first, "records": records})).encode())
        for number in range(self._first, first):
            with contextlib.suppress(OSError):
                remove_tree(self._folder / f"batch={number}")
        self._first = first
        del self._batch_ends[:count], self._batch_written[:count]

    @property
    def total(self) -> int:
        """Records written up to the last `refresh`."""
        return self._ends[-1] if self._ends else self._forgotten

    @property
    def batches(self) -> int:
        """Number of the batch behind the last that `refresh` found."""
        return self._batches

    @property
    def forgotten(self) -> int:
        """Records before the first that is kept."""
        return self._forgotten

    def forget(self, upto: int) -> None:
        """Drop the files whose records all come before number `upto`."""
        gone = bisect_right(self._ends, upto)
        if gone:
            self._forgotten = self._ends[gone - 1]
            del self._ends[:gone], self._files[:gone], self._written[:gone], self._batch[:gone], self._under[:gone]

    def shift(self, seconds: float) -> None:
        """Date what is registered by a clock that was set forward by `seconds` since."""
        self._written = [written + seconds for written in self._written]

    def ran(self, number: int) -> Ran | None:
        """What record `number` was written under; if it is not written yet, what the newest batch was; None before one."""
        at = bisect_right(self._ends, number)
        return self._under[at] if at < len(self._under) else self._newest

    def until(self, first: int, version: int) -> int:
        """Number of the first record from `first` on that was written under a later version than `version`."""
        at = bisect_right(self._ends, first)
        while at < len(self._ends) and ((ran := self._under[at]) is None or ran.version <= version):
            first, at = self._ends[at], at + 1
        return first

    def written(self, number: int) -> float:
        """Epoch seconds at which record `number` was written; NaN if not written yet, or forgotten."""
        at = bisect_right(self._ends, number)
        return self._written[at] if self._forgotten <= number and at < len(self._written) else float("nan")

    def wrote(self, first: int, last: int) -> list[tuple[int, float, int]]:
        """Records `first` to `last` (exclusive), as far as known: (batch that wrote them, when, how many) by file."""
        found = []
        first = max(first, self._forgotten)
        at = bisect_right(self._ends, first)
        while first < last and at < len(self._ends):
            upto = min(last, self._ends[at])
            found.append((self._batch[at], self._written[at], upto - first))
            first, at = upto, at + 1
        return found

    def by(self, time: float) -> int:
        """Records written by `time`, epoch seconds, forgotten ones included."""
        at = bisect_right(self._written, time)
        return self._ends[at - 1] if at else self._forgotten

    def pieces(self, first: int, last: int) -> tuple[FilePiece, ...]:
        """Records `first` to `last` (exclusive) by file; they must be written and not forgotten."""
        found = []
        at = bisect_right(self._ends, first)
        while first < last:
            begins = self._ends[at - 1] if at else self._forgotten
            upto = min(last, self._ends[at])
            found.append(FilePiece(self._files[at], first - begins, upto - first))
            first, at = upto, at + 1
        return tuple(found)


def _noted(folder: Place) -> Ran | None:
    try:
        return Ran(*json.loads((folder / COMPOSITION).read_text()))
    except FileNotFoundError:
        return None  # written by a run in which records did not keep their version
