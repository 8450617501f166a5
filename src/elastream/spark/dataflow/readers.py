"""Readers of Elastream's sources and durable edges: composition, size and slices of their next batch.

Each reader decides alone: all know the positions of the last planned batch, and versions only grow along an edge.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader

from elastream.policies.common.governor import Governor
from elastream.recording.paths import AnyPath, path_of, scanned, write_whole
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.worker.composition import (
    BatchComposition,
    CompositionRequest,
    latest_batch,
    newest_composition,
    offsets_of,
    read_request,
)

# The next batch runs under the newest request, unless records keep the version they entered under (`Consistency.WAVE`):
#
# | inputs of the query | its next batch runs under |
# | --- | --- |
# | sources only | the newest request; a new version without due records gets an empty batch |
# | durable edges | the lowest next version of any edge; edges that are ahead wait, sources beside edges follow; a version |
# | | without records gets an empty batch, to announce it downstream |
BEGINNING = BatchComposition()


@dataclass(frozen=True, slots=True)
class Steering:
    """Files from which a reader learns its next composition, as an option of a data source.

    Attributes:
        wave: True if records keep their version; needs the next three.
    """

    name: str
    request: Path
    partitions: int = 1
    wave: bool = False
    checkpoint: AnyPath | None = None
    edges: Mapping[str, AnyPath] = field(default_factory=dict)
    before: BatchComposition = BEGINNING

    def option(self) -> str:
        return json.dumps(
            [
                self.name,
                str(self.request.resolve()),
                self.partitions,
                self.wave,
                None if self.checkpoint is None else str(self.checkpoint.resolve()),
                {name: str(path.resolve()) for name, path in self.edges.items()},
                self.before,
            ]
        )

    @classmethod
    def of(cls, option: str) -> "Steering":
        name, request, partitions, wave, checkpoint, edges, before = json.loads(option)
        return cls(
            name,
            Path(request),
            partitions,
            wave,
            None if checkpoint is None else path_of(checkpoint),
            {each: path_of(path) for each, path in edges.items()},
            BatchComposition(*before),
        )


class NextBatchPlan:
    """The plan of one reader's next batch; `log` is that of its own edge."""

    def __init__(self, steering: Steering, log: EdgeLog | None = None) -> None:
        self._steering = steering
        self._logs = {name: EdgeLog(folder, versions=True) for name, folder in steering.edges.items()}
        if log is not None and steering.wave:
            self._logs[steering.name] = log
        self._own = log
        self.request = CompositionRequest()
        self.next = self.last = steering.before

    def look(self) -> None:
        """Update `next`, the next batch's composition, and `last`, the newest planned batch's."""
        self.request = read_request(self._steering.request)
        self.next = self.request.composition
        if not self._steering.wave:
            return
        assert self._steering.checkpoint is not None
        planned = latest_batch(self._steering.checkpoint)
        offsets = offsets_of(self._steering.checkpoint, planned) if planned >= 0 else []
        self.last = newest_composition(offsets) or self._steering.before
        positions = {str(offset["edge"]): int(offset["n"]) for offset in offsets if "edge" in offset}
        if self._logs:
            self.next = min(self._has_next(name, positions.get(name, 0)) for name in self._logs)

    @property
    def wave(self) -> bool:
        return self._steering.wave

    @property
    def partitions(self) -> int:
        return self.request.partitions.get(self._steering.name, self._steering.partitions)

    @property
    def announces(self) -> bool:
        """Return True if an empty batch must announce its version downstream."""
        return self._steering.wave and self.next.version > self.last.version

    def _has_next(self, edge: str, position: int) -> BatchComposition:
        log = self._logs[edge]
        log.refresh()
        if log is not self._own:
            log.forget(position)
        return log.composition(position) or self._steering.before


class Pacing:
    """A governor that takes each batch's duration from the query's commit log."""

    def __init__(self, batch_seconds: float, commits: AnyPath | None) -> None:
        self._governor = Governor(batch_seconds)
        self._commits = commits
        self._under_way: tuple[int, float] | None = None

    @property
    def batch_seconds(self) -> float:
        return self._governor.batch_seconds

    @property
    def allowance(self) -> int:
        return self._governor.allowance

    def allow(self, records: int) -> None:
        """Raise the next batch's limit to at least `records`."""
        self._governor = replace(self._governor, allowance=max(self._governor.allowance, records))

    def settle(self, now: float) -> None:
        """Report the last batch's end to the governor, at `now` (epoch seconds)."""
        if self._under_way is not None:
            records, since = self._under_way
            self._governor = self._governor.after(records, committed(self._commits, since, now) - since)
            self._under_way = None

    def begin(self, records: int, now: float) -> None:
        """Register a batch of `records`, planned at `now` (epoch seconds)."""
        self._under_way = (records, now)


# Folder in a checkpoint with the last offset of each reader, for Spark versions that do not pass it.
PLANNED = "planned"


class RangeReader(DataSourceStreamReader):
    """Base of the readers. A process on the driver plans batches; workers read their slices."""

    def __init__(
        self,
        steering: Steering,
        batch_seconds: float,
        schema: pa.Schema,
        commits: AnyPath | None = None,
        log: EdgeLog | None = None,
    ) -> None:
        self._schema = schema
        self._next_batch = NextBatchPlan(steering, log)
        self._pacing = Pacing(batch_seconds, commits)
        self._file = None if commits is None else commits.parent / PLANNED / steering.name
        self._last: dict[str, Any] | None = None

    def plan(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the offset after the batch that begins at `start`; `start` itself for no batch."""
        raise NotImplementedError

    def due(self) -> int | None:
        """Return the records available when the batch was planned; None if unknown."""
        return None

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        # Before 4.2 Spark passes no start: the reader continues after its own last offset, stored beside the commit log,
        # and adds `due`, which Spark 4.2 requests separately.
        if start is not None:
            return self.plan(start)
        begin = self._last or self._recalled() or self.initialOffset()
        end = self.plan(begin)
        if end != begin and (due := self.due()) is not None:
            end["due"] = due
        if end != self._last:
            self._last = dict(end)
            if self._file is not None:
                write_whole(self._file, json.dumps(end).encode())
        return end

    def _recalled(self) -> dict[str, Any] | None:
        if self._file is None or not self._file.exists():
            return None
        offset: dict[str, Any] = json.loads(self._file.read_text())
        return offset

    def _offset(self, **position: Any) -> dict[str, Any]:
        next_batch = self._next_batch
        return {
            **position,
            "version": next_batch.next.version,
            "code": next_batch.next.code,
            "partitions": next_batch.partitions,
        }


def committed(commits: AnyPath | None, since: float, now: float) -> float:
    """Return the commit time of the batch planned at `since` (epoch seconds), by default `now`."""
    try:
        entries = [entry.modified for entry in scanned(commits) if entry.name.isdecimal()] if commits else []
    except OSError:
        entries = []  # an entry was purged meanwhile
    newest = max(entries, default=now)
    return newest if since < newest <= now else now


def shares(first: int, last: int, width: int) -> list[tuple[int, int]]:
    """Divide records `first` to `last` (exclusive) into `width` even, contiguous ranges."""
    return list(pairwise(first + (last - first) * part // width for part in range(width + 1)))
