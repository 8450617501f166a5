"""Takes in what tasks left out of committed batches: counts of the run, and its dead letters.

A batch counts once: its tasks' files are there when it is committed, and stay until it is in the log of dead letters. A
batch that was not committed is planned again, by whoever goes on with the run, and leaves out anew what it leaves out.
"""

import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elastream.core.wording import counted
from elastream.dataflow.stages import Layout
from elastream.errors import ElastreamError, in_one_line
from elastream.recording.dead_letters import DeadLetters, LeftOutBatch
from elastream.recording.directory import RunDirectory
from elastream.recording.places import Place, RemotePath, names_in, remove_tree
from elastream.spark.worker.composition import latest_batch

MOST = 1000
"""Dead letters of one batch that are kept; those beyond are counted."""

STAYS = 120.0
"""Seconds for which tasks' files stay on a file system that another machine may go on from: the log is copied by then."""

log = logging.getLogger(__name__)


class LeftOutCounts:
    """Counts of the records that lenient operators of `layout` have left out so far."""

    def __init__(self, layout: Layout, directory: RunDirectory) -> None:
        self._folders = {
            segment.name: directory.left_out(segment.name)
            for segment in layout.segments
            if any(layout.graph.operator(name).lenient for name in segment.operators)
        }
        self._names = [operator.name for operator in layout.graph.operators if operator.lenient]
        self._log = DeadLetters(directory.dead_letters) if self._names else None
        self._said: set[str] = set()
        self._failed = ""
        self._taken: dict[tuple[str, int], float] = {}
        for segment in self._folders:
            self._take(segment, latest_batch(directory.checkpoint(segment), "commits"))

    @property
    def counts(self) -> Mapping[str, float]:
        """Records left out of committed batches, by operator that may leave any out."""
        return {} if self._log is None else {name: float(self._log.counts.get(name, 0)) for name in self._names}

    def committed(self, newest: Mapping[str, int]) -> None:
        """Take in all batches up to the `newest` committed one of each query."""
        for segment in self._folders:
            if segment in newest:
                self._take(segment, newest[segment])

    def close(self) -> None:
        """Close the log; may be called twice."""
        if self._log is not None:
            self._log.close()

    def _take(self, segment: str, newest: int) -> None:
        assert self._log is not None
        for batch, folder in _batches(self._folders[segment]):
            if batch > newest:
                break
            try:
                if self._kept_for_now(segment, batch):
                    continue
                if not self._log.has(segment, batch):
                    found = read_left_out(segment, batch, folder)
                    if found.counts:
                        self._log.take(found)
                        self._say(found)
            except (ElastreamError, OSError) as error:  # a full disk: the tasks' files stay, and are taken in later
                if (said := in_one_line(error)) != self._failed:
                    log.warning("records left out of batch %d of %s are not in the log yet: %s", batch, segment, said)
                self._failed = said
                return
            if isinstance(folder, RemotePath) and (segment, batch) not in self._taken:
                self._taken[segment, batch] = time.monotonic()
                continue
            self._taken.pop((segment, batch), None)
            with contextlib.suppress(OSError):
                remove_tree(folder)

    def _kept_for_now(self, segment: str, batch: int) -> bool:
        """Whether the log has a batch, and its tasks' files stay for a driver elsewhere, which may lack this log."""
        at = self._taken.get((segment, batch))
        return at is not None and time.monotonic() - at < STAYS

    def _say(self, found: LeftOutBatch) -> None:
        """Log the first that each operator leaves out."""
        for name, count in found.counts.items():
            if name not in self._said:
                self._said.add(name)
                letter = next((each for each in found.letters if each["operator"] == name), None)
                why = "" if letter is None else f", the first as {letter['error']}"
                log.warning("operator %r left out %s of batch %d%s", name, counted(count, "record"), found.batch, why)


def forget_uncommitted(folder: Place, newest: int) -> None:
    """Remove what tasks left out of batches behind the `newest` committed one: those are to run again."""
    for batch, each in _batches(folder):
        if batch > newest:
            remove_tree(each)


def read_left_out(segment: str, batch: int, folder: Place) -> LeftOutBatch:
    """What the tasks of a batch left out: of each task what its newest attempt says."""
    newest: dict[str, tuple[int, Place]] = {}
    for name in names_in(folder):
        path = folder / name
        task, _, attempt = name.rpartition(".")
        if attempt.isdigit() and (task not in newest or int(attempt) > newest[task][0]):
            newest[task] = int(attempt), path
    counts: Counter[str] = Counter()
    letters: list[dict[str, Any]] = []
    for _, path in (newest[task] for task in sorted(newest)):
        *whole, _ = path.read_text(encoding="utf-8").split("\n")  # an attempt that was killed may have torn its last line
        for line in whole:
            fields = json.loads(line)
            if "count" in fields:
                counts[fields["operator"]] += int(fields["count"])
            elif len(letters) < MOST:
                letters.append(fields)
    return LeftOutBatch(segment, batch, dict(counts), letters)


def _batches(folder: Place) -> Iterator[tuple[int, Place]]:
    try:
        names: Sequence[str] = names_in(folder)
    except FileNotFoundError:
        names = ()
    yield from ((number, folder / str(number)) for number in sorted(int(name) for name in names if name.isdigit()))
