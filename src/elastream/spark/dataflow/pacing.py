"""Shared by Elastream's sources: offsets, batch sizes by the durations of earlier batches, and the division of batches."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader

from elastream.policies.common.governor import Governor
from elastream.recording.places import Place, scanned, write_whole
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.dataflow.steering import Course, Steering


class Pacing:
    """A governor that gets each batch's duration from the commit log of its query.

    batch_seconds: target duration of a batch. commits: folder of the log; None: a batch lasts until the next is planned.
    """

    def __init__(self, batch_seconds: float, commits: Place | None) -> None:
        self._governor = Governor(batch_seconds)
        self._commits = commits
        self._under_way: tuple[int, float] | None = None

    @property
    def batch_seconds(self) -> float:
        """Target duration of a batch, seconds."""
        return self._governor.batch_seconds

    @property
    def allowance(self) -> int:
        """Most records of the next batch."""
        return self._governor.allowance

    def allow(self, records: int) -> None:
        """Raise the next batch's limit to at least `records`."""
        self._governor = replace(self._governor, allowance=max(self._governor.allowance, records))

    def settle(self, now: float) -> None:
        """Report the end of the last batch to the governor; called when the next is planned, `now` in epoch seconds."""
        if self._under_way is not None:
            records, since = self._under_way
            self._governor = self._governor.after(records, committed(self._commits, since, now) - since)
            self._under_way = None

    def begin(self, records: int, now: float) -> None:
        """Register a batch of `records`, planned at `now`, epoch seconds."""
        self._under_way = (records, now)


PLANNED = "planned"
"""Folder in a checkpoint with the offset that each reader gave last, where Spark does not say from which to go on."""


class RangeReader(DataSourceStreamReader):
    """Plans batches in a Python process on the driver, and reads their slices in the workers: what all its kinds share.

    schema: of the records. batch_seconds, commits: as of `Pacing`. log: of the edge that it reads, if it reads one.

    Spark asks for the latest offset, since 4.2 after a given one. Before, the reader goes on after what it gave last, which
    it keeps beside the commit log: Spark has planned that or less, and a batch reaches from there to the next. What `due`
    then says in an offset of a batch, the records that are there, Spark does not ask for before 4.2.
    """

    def __init__(
        self,
        steering: Steering,
        batch_seconds: float,
        schema: pa.Schema,
        commits: Place | None = None,
        log: EdgeLog | None = None,
    ) -> None:
        self._schema = schema
        self._course = Course(steering, log)
        self._pacing = Pacing(batch_seconds, commits)
        self._kept = None if commits is None else commits.parent / PLANNED / steering.name
        self._last: dict[str, Any] | None = None

    def plan(self, start: dict[str, Any]) -> dict[str, Any]:
        """The offset behind the next batch, which begins at `start`; `start` itself for none."""
        raise NotImplementedError

    def due(self) -> int | None:
        """Number of the record behind the last that was there when a batch was planned; None if that is not known."""
        return None

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        """What Spark calls for the next batch; without a start before 4.2."""
        if start is not None:
            return self.plan(start)
        begin = self._last or self._recalled() or self.initialOffset()
        end = self.plan(begin)
        if end != begin and (due := self.due()) is not None:
            end["due"] = due
        if end != self._last:
            self._last = dict(end)
            if self._kept is not None:
                write_whole(self._kept, json.dumps(end).encode())
        return end

    def _recalled(self) -> dict[str, Any] | None:
        if self._kept is None or not self._kept.exists():
            return None
        found: dict[str, Any] = json.loads(self._kept.read_text())
        return found

    def _offset(self, **position: Any) -> dict[str, Any]:
        """A position, and what the batch that ends there runs under: version, code, partitions."""
        course = self._course
        return {**position, "version": course.next.version, "code": course.next.code, "partitions": course.partitions}


def committed(commits: Place | None, since: float, now: float) -> float:
    """Commit time (epoch seconds) of the batch planned at `since`: that of the newest entry of the commit log.

    It excludes the wait for the next trigger. Falls back to `now`, when the next batch is planned, if the log has no entry
    after `since`.
    """
    try:
        entries = [entry.modified for entry in scanned(commits) if entry.name.isdecimal()] if commits else []
    except OSError:
        entries = []  # an entry was purged between the two calls
    newest = max(entries, default=now)
    return newest if since < newest <= now else now


def shares(first: int, last: int, width: int) -> list[tuple[int, int]]:
    """Divide records `first` to `last` (exclusive) into `width` contiguous ranges, as even as possible."""
    return list(pairwise(first + (last - first) * part // width for part in range(width + 1)))
