"""Micro-batches of a query, from Spark's progress and offsets, and rates over them."""

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from elastream.core.wording import counted
from elastream.recording.paths import AnyPath, modified_at
from elastream.spark.dataflow.stamps import OBSERVATION_PREFIX
from elastream.spark.worker.composition import latest_batch, offsets_of

# Seconds of batches in one observation of our own queries: a few batches, so that one slow batch shows but does not
# dominate.
WINDOW = 3.0
NAN = float("nan")
# Most groups of waiting records that are distinguished.
MOST_GROUPS = 50
# Share of the row limit from which a batch counts as full: Spark divides the limit among partitions, and rounds.
FULL = 0.9
WaitingRecords: TypeAlias = tuple[tuple[float, float], ...]
# Offset keys of our own sources that follow a load: they count all records ever emitted.
OWN = {"n", "t", "started", "version"}
# Seconds between two polls of a query without an interval (spark.sql.streaming.pollingDelay).
POLLING = 0.01


class SourceLimit(NamedTuple):
    """Limit of a batch's reads of one source, from Spark's plan.

    Attributes:
        unit: "rows", "files" or "bytes" of which a batch reads at most `most`, "other" (another limit) or "all" (no limit).
        files: Glob of the names of files that a file source reads; "?" if it leaves out others, too.
    """

    unit: str = "all"
    most: int = 0
    times: int = 1
    files: str = "?"

    @property
    def text(self) -> str:
        """Return the limit for people, such as "1 file"."""
        return counted(self.most, self.unit.removesuffix("s")) if self.most else "a part"

    def option(self, description: str) -> str:
        """Return the option that sets the limit of a source, by Spark's words for it; empty if unknown."""
        if description.startswith("Kafka"):
            return "maxOffsetsPerTrigger"
        return {"files": "maxFilesPerTrigger", "bytes": "maxBytesPerTrigger"}.get(self.unit, "")


class QueryStatus(NamedTuple):
    poll: float = NAN  # seconds between two polls while idle; NaN if unknown
    processing: bool = False
    planned: int = -1  # number of the newest planned batch
    trigger: float = NAN  # seconds between the starts that its trigger sets; NaN without an interval
    checkpoint: str = ""  # its folder, a URI; empty if unknown
    function: bool = False  # True if it hands batches to a function (foreachBatch)
    limits: tuple[SourceLimit, ...] = ()  # of its sources; empty before its first batch


NO_STATUS = QueryStatus()


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Progress of one source in one batch."""

    start: Mapping[str, Any] = field(default_factory=dict)  # its first offset
    end: Mapping[str, Any] = field(default_factory=dict)  # its last offset
    rows: float = 0  # records taken; NaN if unknown, as they were read several times
    scans: float = NAN  # how often Spark counted each record, in this batch or the last one that showed it
    behind: float = NAN  # records that the source still has after the batch was planned; NaN if it reports none
    # True if the batch took all that was available, as far as the source reports; None if its limit leaves that open
    everything: bool | None = True
    description: str = ""  # Spark's words for the source
    # Epoch second before which none of the records can have arrived, at the earliest the start of the first batch seen
    waiting: float = NAN
    # Records still waiting, oldest first: (earliest arrival [epoch s], count; inf if unreported)
    waiting_records: WaitingRecords = ()

    def shifted(self, seconds: float) -> "SourceProgress":
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
    rows: float
    # End of the previous batch, but at most WINDOW before `start`. Rates count from here, so that waits for a trigger
    # count.
    since: float = NAN
    sources: tuple[SourceProgress, ...] = ()  # in the order in which the query reads them
    # Observed values of the sources' timestamps, by source
    observed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # True if the system clock was set meanwhile. Its times are bounds then, and latencies are unknown.
    stepped: bool = False
    durations: Mapping[str, float] = field(default_factory=dict)  # seconds of the parts of its trigger, by Spark's names

    @property
    def end(self) -> float:
        """Commit time."""
        return self.start + self.seconds

    def shifted(self, seconds: float) -> "Batch":
        sources = tuple(each.shifted(seconds) for each in self.sources)
        return replace(self, start=self.start + seconds, since=self.since + seconds, sources=sources)

    def between(self, before: float, now: float) -> "Batch":
        """Return the batch with bounds `before` and `now` as times, because the clock was set while it ran."""
        seconds = self.seconds if 0 <= self.seconds <= now - before else max(0.0, now - before)
        sources = tuple(replace(each, waiting=NAN, waiting_records=()) for each in self.sources)
        return replace(self, start=now - seconds, seconds=seconds, since=now - seconds, sources=sources, stepped=True)

    def held_back(self, limits: Sequence[SourceLimit]) -> tuple[SourceProgress, SourceLimit] | None:
        """Return the first source of which a limit, as far as is known, held records back; None if none did."""
        for source, limit in zip(self.sources, limits, strict=False):
            reached = limit.unit != "rows" or not source.rows < FULL * limit.most
            if limit.unit != "all" and source.everything is not True and reached:
                return source, limit
        return None

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
    trigger, message, planned, *rest = fields
    interval = re.search(r"ProcessingTimeTrigger\((\d+)\)", trigger)
    every = int(interval[1]) / 1e3 if interval else NAN
    limits = [each.split("|") for each in rest[2:]]
    return QueryStatus(
        max(POLLING, every) if interval else NAN,
        message == "Processing new data",
        int(planned),
        every if every > 0 else NAN,
        rest[0] if rest else "",
        rest[1:2] == ["1"],
        tuple(SourceLimit(unit, int(most), int(times), files) for unit, most, times, files in limits),
    )


def read_batch(query: str, fields: Sequence[str], before: Batch | None, status: QueryStatus = NO_STATUS) -> Batch:
    number, at, rows, parts, reads, observed, *sources = fields
    start, poll = int(at) / 1e3, status.poll
    durations = {name: ms / 1e3 for name, ms in json.loads(parts).items() if ms is not None}
    # While a query is idle it polls its sources; the last poll before this batch found nothing.
    last_poll = start - poll - durations.get("latestOffset", 0.0)
    idle = before is not None and last_poll >= before.end
    progress = []
    for position, each in enumerate(sources):
        # Records from before the first look at the query count from that look on.
        since = start if before is None else last_poll if idle else before.start
        earlier = SourceProgress() if before is None else before.source(position)
        limit = status.limits[position] if position < len(status.limits) else SourceLimit()
        current = _source_progress(json.loads(each), read_records(reads), earlier.scans, limit)
        progress.append(_with_arrival_bounds(current, replace(earlier, everything=True) if idle else earlier, since))
    return Batch(
        query=query,
        id=int(number),
        start=start,
        seconds=durations.get("triggerExecution", 0.0),
        rows=sum(each.rows for each in progress) if progress else float(rows),
        since=start if before is None else min(start, max(before.end, start - WINDOW)),
        sources=tuple(progress),
        observed={unquote(key.removeprefix(OBSERVATION_PREFIX)): row for key, row in json.loads(observed or "{}").items()},
        durations=durations,
    )


def read_records(reads: str) -> Sequence[int] | None:
    """Parse the records that each stage of a batch read: "[500, 500]", or "-" (None) if nothing is read twice."""
    return None if reads == "-" else [int(each) for each in re.findall(r"\d+", reads)]


def _source_progress(
    progress: Mapping[str, Any], reads: Sequence[int] | None, scans: float, limit: SourceLimit
) -> SourceProgress:
    start, end, latest = (progress.get(name) for name in ("startOffset", "endOffset", "latestOffset"))
    counted = int(progress.get("numInputRows", 0))
    rows = _rows_by_offsets(str(progress.get("description")), start, end)
    if math.isnan(rows) and reads is not None:
        rows = rows_by_reads(counted, reads, limit.times)
        rows = counted / scans if math.isnan(rows) else rows
    elif math.isnan(rows):
        rows = float(counted)
    if "due" in (after := _offset(end)):  # Elastream's own source reports its backlog itself if Spark does not ask for it
        latest = {**after, "n": after["due"]}
    if rows and after.keys() >= OWN:
        # The source counts the records it gave; Spark counts those of a task that ran twice, as after a loss, twice.
        rows = float(int(after["n"]) - int(_offset(start).get("n", 0)))
    mean = (progress.get("metrics") or {}).get("avgOffsetsBehindLatest")
    if mean is not None:
        behind = float(mean) * _partitions(end)
    elif str(progress.get("description")).startswith("Kafka"):  # without metrics, as in older versions of Spark
        behind = _lag(_offset(end), _offset(latest))
    else:
        behind = _counted(start, end, latest, rows)
    behind = behind if behind >= 0 else NAN  # a negative number means that the topic was created again
    everything: bool | None = latest is None or latest == end if math.isnan(behind) else behind == 0
    # A source that generates its records up to the limit never has a backlog.
    limited = limit.unit != "all" and not str(progress.get("description")).startswith("RatePerMicroBatch")
    if limited and math.isnan(behind) and latest is None and not (limit.unit == "rows" and rows < limit.most):
        everything = None
    scans = counted / rows if rows > 0 and counted else scans
    return SourceProgress(_offset(start), _offset(end), rows, scans, behind, everything, str(progress.get("description")))


def _rows_by_offsets(description: str, start: object, end: object) -> float:
    before, after = _offset(start), _offset(end)
    if description.startswith("Kafka"):
        grown = [
            int(offset) - int(before[topic][partition])
            for topic, offsets in after.items()
            for partition, offset in offsets.items()
            if partition in before.get(topic, ())
        ]
        # A new partition begins where the topic begins; so do all partitions of a topic that was created again.
        complete = len(grown) == sum(map(len, after.values())) and min(grown, default=0) >= 0
        return float(sum(grown)) if complete else NAN
    if (rate := re.match(r"RateStreamV2\[rowsPerSecond=(\d+), rampUpTimeSeconds=0\b", description)) and type(end) is int:
        return float(rate[1]) * (end - (start if type(start) is int else 0))
    if description.startswith("RatePerMicroBatch"):
        return float(after["offset"] - before["offset"]) if "offset" in before and "offset" in after else NAN
    if description.startswith("TextSocketV2") and type(start) is int and type(end) is int:
        return float(end - start)
    return NAN


def rows_by_reads(counted: int, reads: Sequence[int], times: int = 1) -> float:
    """Return the records of a source that its batch may have read several times; NaN if unknown.

    Args:
        counted: Records that Spark counted over all reads.
        reads: Records that each stage without a shuffle before it has read, of this source or others.
        times: How often the plan has the source.
    """
    if not counted or (len(reads) == 1 and times == 1):
        return float(counted)
    whole = [each for each in set(reads) if each > 0 and counted % each == 0 and reads.count(each) >= counted // each]
    if whole and (times == 1 or max(whole) < counted):
        return float(max(whole))
    # All but one read a part only, such as the first rows.
    return float(max(reads)) if sum(reads) == counted and times == 1 else NAN


def _counted(start: object, end: object, latest: object, rows: float) -> float:
    """Return the records between `end` and `latest`, by an offset field that grew by as many as were taken; else NaN."""
    # Sources without metrics, such as Python data sources, report their backlog this way.
    before, after, newest = (_offset(each) for each in (start, end, latest))
    for name, number in after.items():
        numbers = [before.get(name, 0), number, newest.get(name)]
        if rows > 0 and all(type(each) in (int, float) for each in numbers) and number - numbers[0] == rows:
            return float(max(0, numbers[2] - number))
    return NAN


def _lag(end: Mapping[str, Any], latest: Mapping[str, Any]) -> float:
    """Return the records between offsets of Kafka, or NaN."""
    partitions = [(topic, partition) for topic, offsets in end.items() for partition in offsets]
    if not all(partition in latest.get(topic, ()) for topic, partition in partitions):
        return NAN
    left = [int(latest[topic][partition]) - int(end[topic][partition]) for topic, partition in partitions]
    return float(sum(left)) if min(left, default=-1) >= 0 else NAN


def _with_arrival_bounds(progress: SourceProgress, earlier: SourceProgress, since: float) -> SourceProgress:
    """Return `progress` with bounds of its records' arrival times."""
    # A source emits the oldest records first: those that waited in the batch before, then those that came after `since`.
    if earlier.everything is None or progress.everything is None:
        first = next((at for at, _ in earlier.waiting_records), since)
        return replace(progress, waiting=NAN if earlier.everything is None else first)
    before = earlier.waiting_records
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
    rows = sum(batch.rows if source is None else batch.source(source).rows for batch in batches)
    return rows / span_of(batches)


def _partitions(offset: object) -> int:
    topics = offset.values() if isinstance(offset, dict) else ()
    return max(1, sum(len(each) for each in topics if isinstance(each, dict)))


def _offset(value: object) -> Mapping[str, Any]:
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
