"""Records that lenient operators left out of committed batches: counts, and dead letters of the run.

A batch counts once: its tasks' files exist when it is committed and stay until it is in the log of dead letters.
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
from elastream.recording.paths import AnyPath, RemotePath, names_in, remove_tree
from elastream.spark.worker.composition import latest_batch

# Most dead letters of one batch; further ones are only counted.
MOST_LETTERS = 1000

# Seconds that tasks' files stay on a shared file system. Another machine may resume from it; by then the log is copied.
FILES_STAY_S = 120.0

log = logging.getLogger(__name__)


class LeftOutCounts:
    """Counts of records that lenient operators of `layout` have left out so far."""

    def __init__(self, layout: Layout, directory: RunDirectory) -> None:
        self._folders = {
            segment.name: directory.left_out(segment.name)
            for segment in layout.segments
            if any(layout.graph.operator(name).lenient for name in segment.operators)
        }
        self._names = [operator.name for operator in layout.graph.operators if operator.lenient]
        self._log = DeadLetters(directory.dead_letters) if self._names else None
        self._warned: set[str] = set()
        self._failed = ""
        self._logged_at: dict[tuple[str, int], float] = {}
        for segment in self._folders:
            self._take(segment, latest_batch(directory.checkpoint(segment), "commits"))

    @property
    def counts(self) -> Mapping[str, float]:
        """Records left out of committed batches, by lenient operator."""
        return {} if self._log is None else {name: float(self._log.counts.get(name, 0)) for name in self._names}

    def committed(self, newest: Mapping[str, int]) -> None:
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
                if self._stays(segment, batch):
                    continue
                if not self._log.has(segment, batch):
                    batch_left_out = read_left_out(segment, batch, folder)
                    if batch_left_out.counts:
                        self._log.take(batch_left_out)
                        self._warn(batch_left_out)
            except (ElastreamError, OSError) as error:  # a full disk: the tasks' files stay, and are taken in later
                if (message := in_one_line(error)) != self._failed:
                    log.warning("records left out of batch %d of %s are not in the log yet: %s", batch, segment, message)
                self._failed = message
                return
            if isinstance(folder, RemotePath) and (segment, batch) not in self._logged_at:
                self._logged_at[segment, batch] = time.monotonic()
                continue
            self._logged_at.pop((segment, batch), None)
            with contextlib.suppress(OSError):
                remove_tree(folder)

    def _stays(self, segment: str, batch: int) -> bool:
        """Return True if the files of a logged batch must stay for a driver that may lack this log."""
        at = self._logged_at.get((segment, batch))
        return at is not None and time.monotonic() - at < FILES_STAY_S

    def _warn(self, batch: LeftOutBatch) -> None:
        for name, count in batch.counts.items():
            if name not in self._warned:
                self._warned.add(name)
                letter = next((each for each in batch.letters if each["operator"] == name), None)
                why = "" if letter is None else f", the first as {letter['error']}"
                log.warning("operator %r left out %s of batch %d%s", name, counted(count, "record"), batch.batch, why)


def forget_uncommitted(folder: AnyPath, newest: int) -> None:
    """Remove files of batches after the `newest` committed one: those batches run again."""
    for batch, each in _batches(folder):
        if batch > newest:
            remove_tree(each)


def read_left_out(segment: str, batch: int, folder: AnyPath) -> LeftOutBatch:
    """Read what the tasks of a batch left out, from the newest attempt of each task."""
    newest: dict[str, tuple[int, AnyPath]] = {}
    for name in names_in(folder):
        path = folder / name
        task, _, attempt = name.rpartition(".")
        if attempt.isdigit() and (task not in newest or int(attempt) > newest[task][0]):
            newest[task] = int(attempt), path
    counts: Counter[str] = Counter()
    letters: list[dict[str, Any]] = []
    for _, path in (newest[task] for task in sorted(newest)):
        *whole, _ = path.read_text(encoding="utf-8").split("\n")  # a killed attempt may have torn its last line
        for line in whole:
            fields = json.loads(line)
            if "count" in fields:
                counts[fields["operator"]] += int(fields["count"])
            elif len(letters) < MOST_LETTERS:
                letters.append(fields)
    return LeftOutBatch(segment, batch, dict(counts), letters)


def _batches(folder: AnyPath) -> Iterator[tuple[int, AnyPath]]:
    try:
        names: Sequence[str] = names_in(folder)
    except FileNotFoundError:
        names = ()
    yield from ((number, folder / str(number)) for number in sorted(int(name) for name in names if name.isdigit()))
