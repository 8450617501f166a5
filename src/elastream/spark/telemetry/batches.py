"""What Spark reports of one micro-batch of a query - its progress, its offsets - as a `Batch`, and rates over batches."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["WINDOW", "Batch", "planned_offsets", "rate_of", "read_batch", "span_of"]

WINDOW = 3.0
"""Seconds of batches that one observation of our own queries speaks of: a few batches, so that one slow batch shows and
does not rule."""
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Batch:
    """One committed micro-batch. Times are epoch seconds; `first`, `last` number the records taken, NaN if unknown.

    since: the end of the batch before, or `start` less WINDOW where that was longer ago: what rates are over, so that the
    wait for the next trigger counts. taken: per durable edge of files, by name, the numbers of the first record taken and
    of the one behind the last. behind: records that its sources report they still hold.
    """

    query: str
    id: int
    start: float
    seconds: float
    rows: int
    first: float = NAN
    last: float = NAN
    load_started: float = NAN
    since: float = NAN
    taken: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    behind: float = NAN

    @property
    def end(self) -> float:
        """When it was committed."""
        return self.start + self.seconds


def read_batch(query: str, fields: Sequence[str], before: Batch | None) -> Batch:
    """A batch from a line of `batches` in `DriverSide.java`; before: the one before it of the same query, if any."""
    number, at, rows, took = fields[:4]
    start = int(at) / 1e3
    columns = (fields[column::3] for column in (4, 5, 6))
    sources = [(_offset(first), _offset(last), behind) for first, last, behind in zip(*columns, strict=True)]
    first, last = next(((first, last) for first, last, _ in sources if "edge" not in last), ({}, {}))
    behind = [float(each) * _partitions(last) for _, last, each in sources if each]
    return Batch(
        query=query,
        id=int(number),
        start=start,
        seconds=int(took) / 1e3,
        rows=int(rows),
        first=float(first.get("n", 0 if last.get("n") is not None else NAN)),
        last=float(last.get("n", NAN)),
        load_started=float(last.get("started") or NAN),
        since=start if before is None else min(start, max(before.end, start - WINDOW)),
        taken={last["edge"]: (int(first.get("n", 0)), int(last["n"])) for first, last, _ in sources if "edge" in last},
        behind=math.fsum(behind) if behind else NAN,
    )


def span_of(batches: Sequence[Batch]) -> float:
    """Wall-clock seconds that a run of batches covers, from the end of the batch before it, gaps included."""
    if not batches:
        return NAN
    return max(1e-3, max(batch.end for batch in batches) - min(batch.since for batch in batches))


def rate_of(batches: Sequence[Batch]) -> float:
    """Records/s that a run of batches took."""
    return sum(batch.rows for batch in batches) / span_of(batches) if batches else NAN


def _partitions(offset: Mapping[str, Any]) -> int:
    """Kafka reports what it is behind as a mean over partitions, which its offsets name: {"topic": {"0": 12, "1": 7}}."""
    return max(1, sum(len(each) for each in offset.values() if isinstance(each, dict)))


def _offset(value: str) -> Mapping[str, Any]:
    """An offset as a mapping; sources other than our own have offsets of other shapes, which say nothing here."""
    try:
        found = json.loads(value or "null")
    except ValueError:  # a source may write its offsets as it likes
        return {}
    return found if isinstance(found, dict) else {}


def planned_offsets(checkpoint: Path, at_least: int) -> Sequence[Mapping[str, Any]]:
    """The sources' offsets in the newest entry of the offset log, which is written when a batch is planned."""
    folder = checkpoint / "offsets"
    for batch in (at_least + 1, at_least):
        try:
            lines = (folder / str(batch)).read_text().splitlines()
        except OSError:  # no such batch was planned yet, or its entry was cleaned up
            continue
        return [_offset(line) for line in lines[2:]]
    return ()
