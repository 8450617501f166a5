"""Describes what sources read and sinks write, as plain values that the Spark plant compiles to readers and writers; and
where external signals come from."""

import bisect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from elastream.dataflow.signals import Signal, SignalKind, Signals, SignalValue
from elastream.errors import DataflowError


@runtime_checkable
class ArrivalPattern(Protocol):
    """A load over time; see `elastream.loads` for constant, steps, ramp, sine, random walk and recorded traces."""

    @property
    def seconds(self) -> float:
        """Length in seconds; `math.inf` if endless."""
        ...

    def rate(self, time: float) -> float:
        """Records/s at `time` seconds after the start; 0 after the end."""
        ...

    def count(self, time: float) -> int:
        """Records due by `time`: the integral of `rate`, non-decreasing, identical on every machine."""
        ...

    def due(self, number: int) -> float:
        """When record `number` (from 0) is due: the smallest time with `count(time) > number`; inf if never."""
        ...


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Lines of UTF-8 text files: a file, a folder, or a glob. One column, `value`; blank lines are skipped.

    With a `load` the lines arrive at that pattern and repeat from the start when they run out; without one, every file is
    read once, and new files as they appear.
    """

    path: str
    load: ArrivalPattern | None = None
    schema: str = "value string"


@dataclass(frozen=True, slots=True)
class Files:
    """Records of parquet, JSON-lines or CSV files with a schema; `load` as for `TextFiles`."""

    path: str
    schema: str
    format: str = "parquet"
    load: ArrivalPattern | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """Records defined in the program, as dicts by column; they arrive at the pattern `load` and repeat."""

    rows: tuple[Mapping[str, object], ...]
    schema: str
    load: ArrivalPattern | None = None


@dataclass(frozen=True, slots=True)
class Simulated:
    """A load without records, of a source that can only be simulated."""

    load: ArrivalPattern
    schema: str = ""


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A Kafka topic, as source or sink. As a source it has the columns `key string, value string, timestamp timestamp`.

    group: of a source, the consumer group that its offsets are committed to, for tools that show how far behind it is; a
    run goes on from its checkpoint, whatever the group has.
    """

    topic: str
    servers: str
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str = "key string, value string, timestamp timestamp"
    load: None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class ParquetSink:
    """Parquet files in a folder.

    Append-only results are appended. Updated results (of a keyed operator before the sink) are written as a change log, one
    folder `batch=N` per micro-batch; `elastream.latest` reads the newest row of each key. path: empty for a folder of the
    run's own, `results/NAME` by the name of the sink (`RunResult.output`).
    """

    path: str = ""


@dataclass(frozen=True, slots=True)
class Collected:
    """Rows kept in memory under a name, for tests and notebooks."""

    name: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """The sink of an empty branch of a choice: records are not sent there. Both plants run it at no cost."""


class Fold(StrEnum):
    """How the records of a micro-batch become one value of a signal; the order of records does not matter."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    ANY = "any"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class DomainSignal:
    """The sink of a diagnostic branch: a value that guards read, one for each micro-batch that has records for it.

    name: of the signal. fold, column: what it is of the records of a batch, `mean` of `error`; `count` takes no column.
    Nulls and NaN are left out; without any other value the batch gives none. `any` and `all` are of a boolean column.
    stale: seconds after which a value counts as unknown. trace: its values where it is simulated, from seconds since the
    start of the run (None where unknown), for instance a `Trace`; None: it has none there.

    The value of a batch can be read once that batch is committed, and counts as taken then; that of a replay replaces it.
    """

    name: str
    fold: Fold
    column: str = ""
    stale: float = math.inf
    trace: Callable[[float], SignalValue | None] | None = None

    @property
    def declared(self) -> Signal:
        """As guards are checked against it."""
        kind = SignalKind.TRUTH if self.fold in (Fold.ANY, Fold.ALL) else SignalKind.NUMBER
        return Signal(self.name, kind, self.stale)


@dataclass(frozen=True, slots=True)
class Trace:
    """A signal as it was recorded: at a time, the newest of `values` taken by then; None before the first."""

    times: tuple[float, ...]
    values: tuple[SignalValue | None, ...]

    def __post_init__(self) -> None:
        if len(self.times) != len(self.values):
            raise DataflowError(f"a trace of {len(self.times)} times has {len(self.values)} values: it needs one for each")
        if any(later <= before for before, later in pairwise(self.times)):
            raise DataflowError("the times of a trace must increase")

    def __call__(self, time: float) -> SignalValue | None:
        """The value at `time`."""
        reached = bisect.bisect_right(self.times, time)
        return self.values[reached - 1] if reached else None


@runtime_checkable
class StreamReader(Protocol):
    """A source of the user's own: anything that Spark can read as a stream. On Spark only; simulated, it needs a load.

    schema: columns of what it reads, as Spark DDL (`"word string, n long"`). If it has an attribute `timestamp`, that names
    the column of what it reads with the time at which each record came to be: latency counts from there.
    """

    schema: str

    def read(self, spark: Any, /) -> Any:
        """The streaming DataFrame that `spark`, a SparkSession, reads, with the columns of `schema`."""
        ...


@runtime_checkable
class StreamWriter(Protocol):
    """A sink of the user's own, called on the driver for every micro-batch.

    If it has a method `refuse(graph)`, that raises an ElastreamError before anything is started where the sink is of no use
    in that dataflow.
    """

    def write(self, rows: Any, batch: int, /) -> None:
        """Write the DataFrame `rows`, the changes of a keyed operator or new records, of batch number `batch`.

        After a crash the last batch comes again under its number: writing it twice must change nothing.
        """
        ...


class SignalSource(Protocol):
    """Where external signals come from, polled outside the control loop: `newest` answers at once from what is there."""

    def follow(self, signals: Iterable[Signal]) -> None:
        """Poll the feeds of these signals and no others; those polled before keep their newest reading.

        Called at the start and for each new version of the guards. Raises ElastreamError for what cannot be polled.
        """
        ...

    def newest(self) -> Signals:
        """The newest reading of each, on the clock of the run. One that was never read is left out; one whose poll fails
        keeps its last reading, which ages."""
        ...

    def close(self) -> None:
        """Poll nothing any more; may be called twice."""
        ...


Replayable = TextFiles | Files | Records
"""Sources whose records can arrive at a declared load."""
SourceSpec = Replayable | Simulated | KafkaTopic | StreamReader
SinkSpec = ParquetSink | Collected | KafkaTopic | Nothing | DomainSignal | StreamWriter


def text_files(path: object) -> TextFiles:
    """Lines of UTF-8 text files: a file, a folder or a glob."""
    return TextFiles(str(path))


def files(path: object, schema: str, format: str = "parquet") -> Files:
    """Records of parquet, JSON-lines (`"json"`) or CSV files."""
    return Files(str(path), schema, format)


def records(rows: object, schema: str) -> Records:
    """Records defined in the program."""
    return Records(tuple(dict(row) for row in rows), schema)  # type: ignore[attr-defined]


def kafka(topic: str, servers: str = "127.0.0.1:9092", *, group: str = "", **options: str) -> KafkaTopic:
    """A Kafka topic, as source or as sink. group: of a source, the consumer group that its offsets are committed to."""
    return KafkaTopic(topic, servers, dict(options), group=group)


def parquet(path: object = "") -> ParquetSink:
    """Parquet files in a folder; without one, in the run's own (`RunResult.output`)."""
    return ParquetSink(str(path))


def collect(name: str) -> Collected:
    """Rows kept in memory under a name."""
    return Collected(name)


_AGGREGATE = re.compile(r"\s*(\w+)\s*\(\s*(.*?)\s*\)\s*")


def domain_signal(
    name: str,
    aggregate: str,
    *,
    stale: float = math.inf,
    trace: Callable[[float], SignalValue | None] | None = None,
) -> DomainSignal:
    """The signal `name`: `"count()"`, or `"mean(error)"` and the like. Raises DataflowError for another aggregate."""
    found = _AGGREGATE.fullmatch(aggregate)
    fold, column = found.groups() if found else ("", "")
    if fold not in set(Fold) or (fold == Fold.COUNT) == bool(column):
        raise DataflowError(
            f"the signal {name!r} cannot be {aggregate!r}: it is count(), or {', '.join(list(Fold)[1:-1])} or all of a "
            "column, such as 'mean(error)'"
        )
    signal = DomainSignal(name, Fold(fold), column, stale, trace)
    if isinstance(trace, Trace):
        kind = signal.declared.kind
        if wrong := [value for value in trace.values if value is not None and not kind.admits(value)]:
            raise DataflowError(f"the trace of the signal {name!r} has the value {wrong[0]!r}, and {aggregate} is a {kind}")
    return signal
