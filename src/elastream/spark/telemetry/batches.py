"""Micro-batches of a query, from Spark's progress and offsets, and rates over them."""

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from elastream.recording.paths import AnyPath, modified_at
from elastream.spark.dataflow.stamps import OBSERVATION_PREFIX
from elastream.spark.worker.composition import latest_batch, offsets_of

# Seconds of batches in one observation of our own queries: a few batches, so that one slow batch shows but does not
# dominate.
WINDOW = 3.0
NAN = float("nan")
# Most groups of waiting records that are distinguished.
MOST_GROUPS = 50
WaitingRecords: TypeAlias = tuple[tuple[float, float], ...]
# Offset keys of our own sources that follow a load: they count all records ever emitted.
OWN = {"n", "t", "started", "version"}
# Seconds between two polls of a query without an interval (spark.sql.streaming.pollingDelay).
POLLING = 0.01


class QueryStatus(NamedTuple):
    """Status of a query at one look."""

    poll: float = NAN  # seconds between two polls while idle; NaN if unknown
    processing: bool = False
    planned: int = -1  # number of the newest planned batch


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Progress of one source in one batch."""

    start: Mapping[str, Any] = field(default_factory=dict)  # its first offset
    end: Mapping[str, Any] = field(default_factory=dict)  # its last offset
    rows: int = 0  # records taken
    behind: float = NAN  # records that the source still has after the batch was planned; NaN if it reports none
    everything: bool = True  # True if the batch took all that was available, as far as the source reports
    # Epoch second before which none of the records can have arrived, at the earliest the start of the first batch seen
    waiting: float = NAN
    # Records still waiting, oldest first: (earliest arrival [epoch s], count; inf if unreported)
    waiting_records: WaitingRecords = ()

    def shifted(self, seconds: float) -> "SourceProgress":
        """Return the progress as a clock set forward by `seconds` would have dated it."""
        waiting_records = tuple((at + seconds, count) for at, count in self.waiting_records)
        return replace(self, waiting=self.waiting + seconds, waiting_records=waiting_records)

    @property
    def numbers(self) -> tuple[int, int]:
        """Return the number of the first record and of the one after the last, for our own sources."""
        return int(self.start.get("n", 0)), int(self.end.get("n", 0))


@dataclass(frozen=True, slots=True)
class Batch:
    """One committed micro-batch; times are epoch seconds."""

    query: str
    id: int
    start: float
    seconds: float
    rows: int
    # End of the previous batch, but at most WINDOW before `start`. Rates count from here, so that waits for a trigger
    # count.
    since: float = NAN
    sources: tuple[SourceProgress, ...] = ()  # in the order in which the query reads them
    # Observed values of the sources' timestamps, by source
    observed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # True if the system clock was set meanwhile. Its times are bounds then, and latencies are unknown.
    stepped: bool = False

    @property
    def end(self) -> float:
        """Commit time."""
        return self.start + self.seconds

    def shifted(self, seconds: float) -> "Batch":
        """Return the batch as a clock set forward by `seconds` would have dated it."""
        sources = tuple(each.shifted(seconds) for each in self.sources)
        return replace(self, start=self.start + seconds, since=self.since + seconds, sources=sources)

    def between(self, before: float, now: float) -> "Batch":
        """Return the batch with bounds `before` and `now` as times, because the clock was set while it ran."""
        seconds = self.seconds if 0 <= self.seconds <= now - before else max(0.0, now - before)
        sources = tuple(replace(each, waiting=NAN, waiting_records=()) for each in self.sources)
        return replace(self, start=now - seconds, seconds=seconds, since=now - seconds, sources=sources, stepped=True)

    @property
    def behind(self) -> float:
        """Records that its sources report as waiting; NaN if none reports any."""
        reports = [source.behind for source in self.sources if source.behind == source.behind]
        return sum(reports) if reports else NAN

    @property
    def waiting(self) -> float:
        """Epoch second before which none of its records can have arrived; NaN if unknown."""
        return min((source.waiting for source in self.sources if source.rows), default=NAN)

    def source(self, number: int) -> SourceProgress:
        """Return the progress of source `number`; an empty one if it is not reported."""
        return self.sources[number] if number < len(self.sources) else SourceProgress()


def read_status(fields: Sequence[str]) -> QueryStatus:
    """Parse the last line of `batches` in `DriverSide.java`."""
    trigger, message, planned = fields
    interval = re.search(r"ProcessingTimeTrigger\((\d+)\)", trigger)
    poll = max(POLLING, int(interval[1]) / 1e3) if interval else NAN
    return QueryStatus(poll, message == "Processing new data", int(planned))


def read_batch(query: str, fields: Sequence[str], before: Batch | None, poll: float = NAN) -> Batch:
    """Parse a batch of `query` from a line of `batches` in `DriverSide.java`. poll: seconds between polls while idle."""
    number, at, rows, took, polled, observed, *sources = fields
    start = int(at) / 1e3
    # While a query is idle it polls its sources; the last poll before this batch found nothing.
    last_poll = start - poll - (int(polled) / 1e3 if polled.isdigit() else 0.0)
    idle = before is not None and last_poll >= before.end
    progress = []
    for position, each in enumerate(sources):
        # What was there before the query was first seen counts from then on.
        since = start if before is None else last_poll if idle else before.start
        waiting = () if before is None else before.source(position).waiting_records
        progress.append(_dated(_source_progress(json.loads(each)), waiting, since))
    return Batch(
        query=query,
        id=int(number),
        start=start,
        seconds=int(took) / 1e3,
        rows=sum(each.rows for each in progress) if progress else int(rows),
        since=start if before is None else min(start, max(before.end, start - WINDOW)),
        sources=tuple(progress),
        observed={unquote(key.removeprefix(OBSERVATION_PREFIX)): row for key, row in json.loads(observed or "{}").items()},
    )


def _source_progress(progress: Mapping[str, Any]) -> SourceProgress:
    """Parse the JSON of a SourceProgress, without arrival times."""
    start, end, latest = (progress.get(name) for name in ("startOffset", "endOffset", "latestOffset"))
    rows = int(progress.get("numInputRows", 0))
    if "due" in (after := _offset(end)):  # a source of ours says itself what it held, where Spark does not ask
        latest = {**after, "n": after["due"]}
    if rows and after.keys() >= OWN:
        # The source counts the records it gave; Spark counts those of a task that ran twice, as after a loss, twice.
        rows = int(after["n"]) - int(_offset(start).get("n", 0))
    mean = (progress.get("metrics") or {}).get("avgOffsetsBehindLatest")
    behind = _counted(start, end, latest, rows) if mean is None else float(mean) * _partitions(end)
    everything = latest is None or latest == end if math.isnan(behind) else behind == 0
    return SourceProgress(_offset(start), _offset(end), rows, behind, everything)


def _counted(start: object, end: object, latest: object, rows: int) -> float:
    """Return the records between `end` and `latest`; NaN if no offset field counts records.

    A field counts records if it grew by as many as were taken. Sources without metrics, such as Python data sources, report
    their backlog this way.
    """
    before, after, newest = (_offset(each) for each in (start, end, latest))
    for name, number in after.items():
        numbers = [before.get(name, 0), number, newest.get(name)]
        if rows > 0 and all(type(each) in (int, float) for each in numbers) and number - numbers[0] == rows:
            return float(max(0, numbers[2] - number))
    return NAN


def _dated(progress: SourceProgress, before: WaitingRecords, since: float) -> SourceProgress:
    """Return `progress` with bounds of its records' arrival times.

    A source emits the oldest records first. So those waiting `before` come first, then those that came after `since`.
    """
    left = 0.0 if progress.everything else math.inf if math.isnan(progress.behind) else progress.behind
    queue = [*before, (since, max(0.0, left + progress.rows - math.fsum(count for _, count in before)))]
    waiting = next((at for at, count in queue if count > 0), since)
    if left == math.inf:
        return replace(progress, waiting=waiting, waiting_records=((waiting, left),))
    waiting_records: list[tuple[float, float]] = []
    for at, count in reversed(queue):
        if (remaining := min(count, left)) > 0:
            waiting_records.insert(0, (at, remaining))
            left -= remaining
    if len(waiting_records) > MOST_GROUPS:  # one group for the oldest
        oldest = waiting_records[: 1 - MOST_GROUPS]
        waiting_records[: 1 - MOST_GROUPS] = [(oldest[0][0], math.fsum(count for _, count in oldest))]
    return replace(progress, waiting=waiting, waiting_records=tuple(waiting_records))


def span_of(batches: Sequence[Batch]) -> float:
    """Return the seconds that consecutive batches cover, gaps included; NaN unless positive."""
    seconds = max((batch.end for batch in batches), default=NAN) - min((batch.since for batch in batches), default=NAN)
    return seconds if seconds > 0 else NAN


def rate_of(batches: Sequence[Batch], source: int | None = None) -> float:
    """Return the records/s that consecutive batches took, from all sources or from source `source`."""
    rows = sum(batch.rows if source is None else batch.source(source).rows for batch in batches)
    return rows / span_of(batches)


def _partitions(offset: object) -> int:
    """Count the partitions in Kafka offsets such as {"topic": {"0": 12, "1": 7}}; its lag is a mean over them."""
    topics = offset.values() if isinstance(offset, dict) else ()
    return max(1, sum(len(each) for each in topics if isinstance(each, dict)))


def _offset(value: object) -> Mapping[str, Any]:
    """Return an offset as a mapping; empty for offsets of other shapes."""
    return value if isinstance(value, dict) else {}


def planned_offsets(checkpoint: AnyPath, at_least: int) -> Sequence[Mapping[str, Any]]:
    """Return the sources' offsets from the newest entry of the offset log, written when a batch is planned."""
    for batch in (at_least + 1, at_least):
        with contextlib.suppress(OSError):  # no such batch was planned yet, or its entry was cleaned up
            return offsets_of(checkpoint, batch)
    return ()


def planned_at(checkpoint: AnyPath, last: int | None) -> float:
    """Return the epoch second at which the batch after `last` (committed) was planned; NaN if none runs."""
    number = last + 1 if last is not None else latest_batch(checkpoint)
    try:
        planned = modified_at(checkpoint / "offsets" / str(number))
    except OSError:  # none was planned since
        return NAN
    return NAN if (checkpoint / "commits" / str(number)).exists() else planned
