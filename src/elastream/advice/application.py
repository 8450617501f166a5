"""An application as its log describes it."""

import bisect
import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

from elastream.core.lateness import BatchTimes, StageTimes
from elastream.errors import ElastreamError
from elastream.units import duration

NAN = float("nan")
# Newest batches of a query that are kept.
KEPT_BATCHES = 50_000
# First batches of a run, which start workers, and first seconds, in which JVMs compile code. The latter are at most this
# share of a short run's batches.
COLD_BATCHES, COLD_S, COLD_SHARE = 2, 30.0, 0.25
# Test for a trigger: least part of the starts at multiples of an interval; largest distance from these, as a part of the
# interval and in seconds; and largest probability that random starts lie there.
ON_TRIGGER, OFF_PART, OFF_S, CHANCE = 0.8, 0.05, 0.25, 1e-3
# Largest error by which a recording dates a start too early (seconds).
EARLY_S = 0.02
# Most seconds between a poll without records and the batch that takes the next ones, for a query without an interval.
POLL_S = 0.1
# Shares of a batch, and of the batches of a run, for which a bounded run may wait. Seconds for which one that ends may have
# been idle.
BOUNDED_WAIT, BOUNDED_WAITS, BOUNDED_IDLE_S = 0.05, 0.05, 1.0
# Largest last batch of such a run over the others, which its limit fills.
REST = 0.9
# Share of its batches that a log lacks, from which latency and sizes are unknown: a program printed progress now and then.
LACKING = 0.1
# Sources that do not report how many records wait.
SILENT_SOURCES = ("FileStreamSource", "Delta", "CloudFiles")


@dataclass(frozen=True, slots=True)
class Stage:
    """Completed stage. delay: seconds until its last task is launched; 0 if unknown."""

    times: StageTimes
    records: float = 0.0
    spilled: float = 0.0
    gc: float = 0.0
    failed: int = 0
    files: int = 0
    written: float = 0.0
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Lag:
    """The Kafka partition with the largest lag. `total` is that of all `partitions`."""

    partition: str
    records: float
    total: float
    partitions: int


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """One micro-batch.

    Attributes:
        start: Epoch seconds.
        behind: Records that its sources still had; NaN if unknown.
        durations: Seconds of the parts of its trigger, by Spark's names.
        state: Rows of all stateful operators; NaN without any.
        watermark: Epoch seconds; NaN without one.
        newest: Largest event time of its records (epoch seconds); NaN without one.
        files: Files that it read; 0 if unknown.
        state_work: Core-seconds of commits and removals of its state.
        first, last: Arrival of its first and last record (epoch seconds); NaN if unknown.
        files_behind: Files that its sources still had; NaN if unknown.
        estimated: True if `behind` follows from files or time.
    """

    number: int
    start: float
    seconds: float
    rows: float
    behind: float = NAN
    durations: Mapping[str, float] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    state: float = NAN
    removed: float = 0.0
    state_bytes: float = 0.0
    watermark: float = NAN
    newest: float = NAN
    files: int = 0
    lag: Lag | None = None
    state_work: float = 0.0
    first: float = NAN
    last: float = NAN
    files_behind: float = NAN
    estimated: bool = False

    @property
    def end(self) -> float:
        return self.start + self.seconds

    @property
    def run(self) -> float:
        return math.fsum(stage.times.run for stage in self.stages)


@dataclass
class LoggedQuery:
    """A streaming query, through all its runs.

    Attributes:
        failure: Why a run failed last; empty if none did.
        failures: Runs that failed.
        ends: Ends of runs that ended between batches (epoch seconds).
        idle: When it was last idle (epoch seconds).
        rocksdb: True if its state is in RocksDB.
        dropped: Batches that were too many to keep.
        unfinished: Seconds for which a batch had run when the log ended; 0 without one.
        width: Tasks of its widest stage; 0 if unknown.
        stateful: Spark's name of its largest stateful operator; empty if unknown.
        window: Longest window or interval in its plan (seconds); NaN if unknown.
        shuffled: Seconds of tasks that read a shuffle, by executor.
    """

    id: str
    name: str
    batches: deque[LoggedBatch] = field(default_factory=lambda: deque(maxlen=KEPT_BATCHES))
    sources: tuple[str, ...] = ()
    sink: str = ""
    failure: str = ""
    failures: int = 0
    ends: set[float] = field(default_factory=set)
    idle: float = -math.inf
    rocksdb: bool = False
    starts: list[float] = field(default_factory=list)
    dropped: int = 0
    unfinished: float = 0.0
    width: int = 0
    stateful: str = ""
    window: float = NAN
    shuffled: Mapping[str, float] = field(default_factory=dict)

    def end(self) -> None:
        """Note the end of a run, if it came soon after a batch."""
        if self.batches and self.idle <= self.batches[-1].end + BOUNDED_IDLE_S:
            self.ends.add(self.batches[-1].end)

    def add(self, batch: LoggedBatch) -> None:
        """Add a batch; one that runs again replaces its first try."""
        if self.batches and self.batches[-1].number == batch.number:
            self.batches.pop()
        self.dropped += len(self.batches) == KEPT_BATCHES
        self.batches.append(batch)

    @cached_property
    def warm(self) -> list[LoggedBatch]:
        """Batches with records, without the first ones of each run."""
        cold: set[int] = set()
        order = [batch.start for batch in self.batches]
        starts = self.starts or order[:1]
        for start, end in pairwise([*starts, math.inf]):
            first, compiled, last = (bisect.bisect_left(order, at) for at in (start - 1.0, start + COLD_S, end - 1.0))
            number = min(compiled - first, int(COLD_SHARE * (last - first)))
            cold |= set(range(first, first + max(COLD_BATCHES, number)))
        return [batch for at, batch in enumerate(self.batches) if at not in cold and batch.rows > 0]

    @cached_property
    def runs(self) -> list[list[LoggedBatch]]:
        batches = list(self.batches)
        cuts = [bisect.bisect_left(batches, at - EARLY_S, key=lambda batch: batch.start) for at in self.starts]
        return [batches[first:last] for first, last in pairwise(sorted({0, *cuts, len(batches)}))]

    @cached_property
    def bounded(self) -> bool:
        """True if most runs read what was there at their start, as with `availableNow`."""
        silent = any(source.startswith(SILENT_SOURCES) for source in self.sources)
        ended = [run for run in self.runs if run[-1].end in self.ends and _read_what_was_there(run)]
        runs = [run for run in ended if len(run) == 1 or silent or run[-1].behind == 0]
        # One run of a source that tells nothing may have been stopped between two batches.
        sure = len(runs) > 1 or any(len(run) > 1 and (not silent or _ends_with_a_rest(run)) for run in runs)
        return sure and 2 * len(runs) > len(self.runs)

    @cached_property
    def waiting_files(self) -> float:
        """Usual number of waiting files, if their records are unknown."""
        reports = [batch for batch in self.batches if batch.files_behind >= 0]
        return statistics.median([0.0 if each.behind >= 0 else each.files_behind for each in reports] or [0.0])

    @cached_property
    def lacking(self) -> int:
        # 0 for few
        lacking = sum(max(0, b.number - a.number - 1) for run in self.runs for a, b in pairwise(run))
        return lacking if lacking > LACKING * (lacking + len(self.batches)) else 0

    @property
    def function(self) -> bool:
        return "foreachbatch" in self.sink.lower()

    @cached_property
    def _idle(self) -> list[tuple[LoggedBatch, LoggedBatch]]:
        pairs = ((a, b) for run in self.runs for a, b in pairwise(run) if b.number <= a.number + 1)
        return [(a, b) for a, b in pairs if b.start - a.end > POLL_S]

    @property
    def restless(self) -> bool:
        """True if each batch followed at once."""
        return not self._idle[COLD_BATCHES:]

    @cached_property
    def trigger(self) -> float:
        """Seconds between the starts that its trigger sets; NaN without an interval.

        Spark starts such batches at multiples of the interval.
        """
        # A batch that overruns the interval is followed at once. Only after an idle time the trigger started one. The first
        # batch starts with its query.
        usual = statistics.mode(sorted((round(b.start - a.start, 1) for a, b in self._idle[1:]), reverse=True) or [0.0])
        for interval in filter(None, (round(usual), usual)):
            off = min(OFF_S, OFF_PART * interval)
            others = [b.start - a.end for a, b in self._idle if (b.start + EARLY_S) % interval > off]
            on = len(self._idle) - len(others)
            # A busy driver takes longer than a poll to follow at once.
            contrary = sum(idle > max(OFF_S, OFF_PART * interval) for idle in others)
            if on >= max(len(others), ON_TRIGGER * (on + contrary)) and (off / interval) ** on <= CHANCE:
                return interval
        return NAN


def _ends_with_a_rest(run: Sequence[LoggedBatch]) -> bool:
    *sizes, last = (batch.files or batch.rows for batch in run)
    return last < REST * statistics.median(sizes)


def _read_what_was_there(run: Sequence[LoggedBatch]) -> bool:
    # Its batches followed each other at once, no record came meanwhile, and none waited at its end.
    waits = sum(b.start - a.end > max(POLL_S, BOUNDED_WAIT * a.seconds) for a, b in pairwise(run))
    came = any(abs(a.behind - b.rows - b.behind) >= 1 for a, b in pairwise(run) if not a.estimated)
    return waits <= BOUNDED_WAITS * len(run) and not came and not (run[-1].behind > 0 or run[-1].files_behind > 0)


@dataclass(slots=True)
class Executor:
    """An executor. `removed` is infinite if it stayed; `run`: seconds that its tasks ran."""

    id: str
    cores: float
    added: float
    removed: float = math.inf
    reason: str = ""
    run: float = 0.0


@dataclass
class Application:
    """An application.

    Attributes:
        others: Spans of jobs of no query (epoch seconds), by their ends.
        unreadable: Lines that cannot be read.
        target: Its own target latency (seconds), if known.
        continuous: True if a query has epochs in place of micro-batches.
        remarks: Remarks of Elastream with their share of the decisions.
    """

    source: str
    kind: str
    name: str = ""
    id: str = ""
    version: str = ""
    begun: float = NAN
    ended: float = NAN
    settings: dict[str, str] = field(default_factory=dict)
    executors: dict[str, Executor] = field(default_factory=dict)
    queries: dict[str, LoggedQuery] = field(default_factory=dict)
    others: list[tuple[float, float]] = field(default_factory=list)
    unreadable: int = 0
    jobs: int = 0
    continuous: bool = False
    target: float | None = None
    remarks: dict[str, float] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    @property
    def working(self) -> tuple[Executor, ...]:
        """Executors that run tasks: the driver only where there are no others."""
        others = tuple(each for each in self.executors.values() if each.id != "driver")
        return others or tuple(self.executors.values())

    @property
    def cores_each(self) -> float:
        cores = sorted(each.cores for each in self.working)
        return cores[len(cores) // 2] if cores else NAN

    @property
    def task_cpus(self) -> float:
        cpus = self.settings.get("spark.task.cpus", "")
        return max(1.0, float(cpus)) if cpus.isdecimal() else 1.0

    def time(self, name: str, default: str) -> float:
        """Return a setting in seconds; without a unit it is in milliseconds."""
        text = self.settings.get(name, default).strip()
        try:
            return duration(f"{text}ms" if text.isdecimal() else text)
        except ElastreamError:
            return duration(default)

    def enabled(self, name: str, *, default: bool = False) -> bool:
        return self.settings.get(name, str(default)).strip().lower() == "true"

    def slots(self, at: float) -> int:
        """Return the tasks that run at once at epoch second `at`, at least 1."""
        times, slots = self._slots
        return max(1, slots[bisect.bisect_right(times, at)])

    @cached_property
    def _slots(self) -> tuple[list[float], list[int]]:
        changes = []
        for each in self.working:
            slots = int(each.cores // self.task_cpus)
            changes += [(each.added, slots), (each.removed, -slots)]
        changes.sort()
        return [at for at, _ in changes], list(accumulate((change for _, change in changes), initial=0))

    def others_within(self, begun: float, ended: float) -> list[tuple[float, float]]:
        first = bisect.bisect_right(self.others, begun, key=lambda span: span[1])
        last = bisect.bisect_left(self.others, ended, key=lambda span: span[1])
        return [span for span in self.others[first : last + 8] if span[0] < ended]

    @property
    def span(self) -> tuple[float, float]:
        """First start and last end of a batch (epoch seconds)."""
        batches = [batch for query in self.queries.values() for batch in (query.batches[0], query.batches[-1])]
        return min(batch.start for batch in batches), max(batch.end for batch in batches)


def times_of(batch: LoggedBatch, others: Sequence[tuple[float, float]] = ()) -> BatchTimes:
    return BatchTimes(batch.start, batch.seconds, batch.durations, [stage.times for stage in batch.stages], others)
