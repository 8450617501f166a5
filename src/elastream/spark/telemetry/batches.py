"""What Spark reports of one micro-batch of a query - its progress, its offsets - as a `Batch`, and rates over batches."""

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from elastream.recording.places import Place, modified_at
from elastream.spark.dataflow.stamps import OBSERVATION_PREFIX
from elastream.spark.worker.composition import latest_batch, offsets_of

WINDOW = 3.0
"""Seconds of batches that one observation of our own queries speaks of: a few batches, so that one slow batch shows and
does not rule."""
NAN = float("nan")
HELD = 50
"""Most groups of records held back that are told apart."""
Held: TypeAlias = tuple[tuple[float, float], ...]
OWN = {"n", "t", "started", "version"}
"""Keys of an offset of a source of ours that follows a load: it counts all records that it ever gave."""
POLLING = 0.01
"""Seconds between two polls of the sources of a query without an interval (spark.sql.streaming.pollingDelay)."""


class Doing(NamedTuple):
    """What a query was doing when it was looked at.

    poll: seconds between two polls while it is idle, NaN if unknown. planned: number of the batch that was planned last.
    """

    poll: float = NAN
    processing: bool = False
    planned: int = -1


@dataclass(frozen=True, slots=True)
class Taken:
    """What a batch took from one source.

    start, end: its offsets. rows: records. behind: records that it says it still held when the batch was planned, NaN if it
    says nothing. everything: whether the batch took all that there was, as far as the source tells. waiting: epoch second
    before which none of the records can have come, if the source shows what it has whenever it is asked; at the earliest
    the start of the first batch seen. held: what it holds back, oldest first: epoch second before which these records
    cannot have come, and how many they are, inf if it does not say.
    """

    start: Mapping[str, Any] = field(default_factory=dict)
    end: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 0
    behind: float = NAN
    everything: bool = True
    waiting: float = NAN
    held: Held = ()

    @property
    def numbers(self) -> tuple[int, int]:
        """Of a source of ours, the number of the first record and of the one behind the last."""
        return int(self.start.get("n", 0)), int(self.end.get("n", 0))


@dataclass(frozen=True, slots=True)
class Batch:
    """One committed micro-batch. Times are epoch seconds.

    since: the end of the batch before, or `start` less WINDOW where that was longer ago: what rates are over, so that the
    wait for the next trigger counts. sources: in the order in which the query reads them. observed: values that the plan
    observed of the sources' time stamps, by name of the source. stepped: whether the machine's clock was set while it ran,
    so that its times are bounds, and nothing is known of how long its records waited.
    """

    query: str
    id: int
    start: float
    seconds: float
    rows: int
    since: float = NAN
    sources: tuple[Taken, ...] = ()
    observed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stepped: bool = False

    @property
    def end(self) -> float:
        """When it was committed."""
        return self.start + self.seconds

    def shifted(self, seconds: float) -> "Batch":
        """The same by a clock that was set forward by `seconds` since."""
        sources = tuple(
            replace(each, waiting=each.waiting + seconds, held=tuple((at + seconds, count) for at, count in each.held))
            for each in self.sources
        )
        return replace(self, start=self.start + seconds, since=self.since + seconds, sources=sources)

    def between(self, before: float, now: float) -> "Batch":
        """The same if the clock was set while it ran: all that is known then is that it ended in between."""
        seconds = self.seconds if 0 <= self.seconds <= now - before else max(0.0, now - before)
        sources = tuple(replace(each, waiting=NAN, held=()) for each in self.sources)
        return replace(self, start=now - seconds, seconds=seconds, since=now - seconds, sources=sources, stepped=True)

    @property
    def behind(self) -> float:
        """Records that its sources report they still hold; NaN where none reports it."""
        known = [source.behind for source in self.sources if source.behind == source.behind]
        return sum(known) if known else NAN

    @property
    def waiting(self) -> float:
        """Epoch second before which none of its records can have come; NaN if unknown."""
        return min((source.waiting for source in self.sources if source.rows), default=NAN)

    def source(self, number: int) -> Taken:
        """What it took from its source `number`; nothing where that is not reported."""
        return self.sources[number] if number < len(self.sources) else Taken()


def read_doing(fields: Sequence[str]) -> Doing:
    """The last line of `batches` in `DriverSide.java`."""
    trigger, message, planned = fields
    found = re.search(r"ProcessingTimeTrigger\((\d+)\)", trigger)
    poll = max(POLLING, int(found[1]) / 1e3) if found else NAN
    return Doing(poll, message == "Processing new data", int(planned))


def read_batch(query: str, fields: Sequence[str], before: Batch | None, poll: float = NAN) -> Batch:
    """A batch from a line of `batches` in `DriverSide.java`; before: the one before it of the same query, if any.

    poll: seconds between two polls of an idle query.
    """
    number, at, rows, took, polled, observed, *sources = fields
    start = int(at) / 1e3
    # While a query is idle it polls its sources; the last poll before this batch found nothing.
    asked = start - poll - (int(polled) / 1e3 if polled.isdigit() else 0.0)
    idle = before is not None and asked >= before.end
    taken = []
    for position, each in enumerate(sources):
        last = before.source(position) if before is not None else None
        if last is None or before is None:
            since = start  # what was there before the query was first seen counts from then on
        else:
            since = asked if idle else before.start
        taken.append(_dated(_taken(json.loads(each)), () if last is None else last.held, since))
    return Batch(
        query=query,
        id=int(number),
        start=start,
        seconds=int(took) / 1e3,
        rows=sum(each.rows for each in taken) if taken else int(rows),
        since=start if before is None else min(start, max(before.end, start - WINDOW)),
        sources=tuple(taken),
        observed={
            unquote(name.removeprefix(OBSERVATION_PREFIX)): row for name, row in json.loads(observed or "{}").items()
        },
    )


def _taken(progress: Mapping[str, Any]) -> Taken:
    """What the JSON of a SourceProgress says; when its records came is left out."""
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
    return Taken(_offset(start), _offset(end), rows, behind, everything)


def _counted(start: object, end: object, latest: object, rows: int) -> float:
    """Records from `end` to `latest`, where a number in the offsets counts records: it grew by as many as were taken.

    That is how sources without metrics of their own tell what they hold, as Python data sources; NaN where none does.
    """
    before, after, newest = (_offset(each) for each in (start, end, latest))
    for name, number in after.items():
        numbers = [before.get(name, 0), number, newest.get(name)]
        if rows > 0 and all(type(each) in (int, float) for each in numbers) and number - numbers[0] == rows:
            return float(max(0, numbers[2] - number))
    return NAN


def _dated(taken: Taken, before: Held, since: float) -> Taken:
    """`taken` with when its records can have come: first those held `before`, then what came after epoch second `since`.

    A source gives what is oldest first, so what it holds now came last.
    """
    left = 0.0 if taken.everything else math.inf if math.isnan(taken.behind) else taken.behind
    queue = [*before, (since, max(0.0, left + taken.rows - math.fsum(count for _, count in before)))]
    waiting = next((at for at, count in queue if count > 0), since)
    if left == math.inf:
        return replace(taken, waiting=waiting, held=((waiting, left),))
    held: list[tuple[float, float]] = []
    for at, count in reversed(queue):
        if (kept := min(count, left)) > 0:
            held.insert(0, (at, kept))
            left -= kept
    if len(held) > HELD:  # the oldest as one group, which counts from when the first of them can have come
        oldest = held[: 1 - HELD]
        held[: 1 - HELD] = [(oldest[0][0], math.fsum(count for _, count in oldest))]
    return replace(taken, waiting=waiting, held=tuple(held))


def span_of(batches: Sequence[Batch]) -> float:
    """Wall-clock seconds that a run of batches covers, from the end of the batch before it, gaps included.

    NaN unless they are above 0.
    """
    if not batches:
        return NAN
    seconds = max(batch.end for batch in batches) - min(batch.since for batch in batches)
    return seconds if seconds > 0 else NAN


def rate_of(batches: Sequence[Batch], source: int | None = None) -> float:
    """Records/s that a run of batches took, from all of their sources or from one by its number."""
    if not batches:
        return NAN
    rows = sum(batch.rows if source is None else batch.source(source).rows for batch in batches)
    return rows / span_of(batches)


def _partitions(offset: object) -> int:
    """Kafka reports what it is behind as a mean over partitions, which its offsets name: {"topic": {"0": 12, "1": 7}}."""
    topics = offset.values() if isinstance(offset, dict) else ()
    return max(1, sum(len(each) for each in topics if isinstance(each, dict)))


def _offset(value: object) -> Mapping[str, Any]:
    """An offset as a mapping; sources other than our own have offsets of other shapes, which say nothing here."""
    return value if isinstance(value, dict) else {}


def planned_offsets(checkpoint: Place, at_least: int) -> Sequence[Mapping[str, Any]]:
    """The sources' offsets in the newest entry of the offset log, which is written when a batch is planned."""
    for batch in (at_least + 1, at_least):
        with contextlib.suppress(OSError):  # no such batch was planned yet, or its entry was cleaned up
            return offsets_of(checkpoint, batch)
    return ()


def planned_at(checkpoint: Place, last: int | None) -> float:
    """Epoch second at which the batch under way was planned; NaN where none is. last: the newest batch seen committed."""
    number = last + 1 if last is not None else latest_batch(checkpoint)
    try:
        planned = modified_at(checkpoint / "offsets" / str(number))
    except OSError:  # none was planned since
        return NAN
    return NAN if (checkpoint / "commits" / str(number)).exists() else planned
