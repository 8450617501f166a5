"""What Spark says of one micro-batch - its progress, its offsets - as a `Batch`. What follows is `telemetry.py`'s."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from elastream.spark.jvm.gateway import java_query

__all__ = ["WINDOW", "Batch", "planned_offsets", "read_batch", "unseen"]

WINDOW = 3.0
"""Seconds of batches that one observation speaks of: a few batches, so that one slow batch shows and does not rule."""
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Batch:
    """One committed micro-batch. Times are epoch seconds; `first`, `last` number the records taken, NaN if unknown.

    since: the end of the batch before, or `start` less WINDOW where that was longer ago: what rates are over, so that the
    wait for the next trigger counts. taken: per durable edge of files, by name, the numbers of the first record taken and
    of the one behind the last.
    """

    segment: str
    id: int
    start: float
    seconds: float
    rows: int
    first: float = NAN
    last: float = NAN
    load_started: float = NAN
    since: float = NAN
    taken: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """When it was committed."""
        return self.start + self.seconds


def unseen(query: Any, last_seen: int) -> list[dict[str, Any]]:
    """Progress of every batch after `last_seen`, oldest first, fetching no more of them than needed."""
    recent = java_query(query).recentProgress()
    fresh: list[dict[str, Any]] = []
    for position in range(len(recent) - 1, -1, -1):
        progress = recent[position]
        if progress.batchId() <= last_seen:
            break
        if progress.durationMs().containsKey("addBatch"):  # otherwise an idle trigger, which shares the next batch's id
            fresh.append(json.loads(progress.json()))
    return fresh[::-1]


def read_batch(segment: str, progress: Mapping[str, Any], before: Batch | None) -> Batch:
    """The batch of a query's progress; before: the one before it in the same segment, if any."""
    started = datetime.fromisoformat(progress["timestamp"]).timestamp()
    ends = [(_offset(source.get("startOffset")), _offset(source.get("endOffset"))) for source in progress["sources"]]
    first, last = next(((first, last) for first, last in ends if "edge" not in last), ({}, {}))
    source = progress["sources"][0] if progress["sources"] else {}
    parts = {name: milliseconds / 1e3 for name, milliseconds in progress["durationMs"].items()}
    behind = (source.get("metrics") or {}).get("avgOffsetsBehindLatest")
    if behind is not None:
        # Kafka's is the mean over the partitions of its topics, which its offsets name: {"topic": {"0": 12, "1": 7}}.
        topics = ends[0][1].values()
        parts["behind"] = float(behind) * max(1, sum(len(each) for each in topics if isinstance(each, dict)))
    return Batch(
        segment=segment,
        id=progress["batchId"],
        start=started,
        seconds=parts["triggerExecution"],
        rows=int(progress["numInputRows"]),
        first=float(first.get("n", 0 if last.get("n") is not None else NAN)),
        last=float(last.get("n", NAN)),
        load_started=float(last.get("started") or NAN),
        since=started if before is None else min(started, max(before.end, started - WINDOW)),
        taken={last["edge"]: (int(first.get("n", 0)), int(last["n"])) for first, last in ends if "edge" in last},
        parts=parts,
    )


def _offset(value: Any) -> Mapping[str, Any]:
    """An offset as a mapping; sources other than our own have offsets of other shapes, which say nothing here."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def planned_offsets(checkpoint: Path, at_least: int) -> Sequence[Mapping[str, Any]]:
    """The sources' offsets in the newest entry of the offset log, which is written when a batch is planned."""
    folder = checkpoint / "offsets"
    for batch in (at_least + 1, at_least):
        try:
            lines = (folder / str(batch)).read_text().splitlines()
        except OSError:
            continue
        return [_offset(line) for line in lines[2:]]
    return ()
