"""Sources, sinks and signals as plain values, which the Spark plant compiles to readers and writers."""

import bisect
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from elastream.dataflow.schema import Schema, ddl_of
from elastream.dataflow.signals import Signal, SignalKind, Signals, SignalValue
from elastream.errors import DataflowError


@runtime_checkable
class ArrivalPattern(Protocol):
    """A load over time. `elastream.loads` has constant, steps, ramp, sine, random walk and recorded traces."""

    @property
    def seconds(self) -> float:
        """Length (seconds); `math.inf` if endless."""
        ...

    def rate(self, time: float) -> float:
        """Return the arrival rate (records/s) `time` seconds after the start; 0 after the end."""
        ...

    def count(self, time: float) -> int:
        """Return the records due by `time`: the integral of `rate`, non-decreasing, equal on every machine."""
        ...

    def due(self, number: int) -> float:
        """Return the smallest time with `count(time) > number`, where records count from 0; inf if never."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Endless load at a constant rate `per_second`, as `load="10/s"` declares it."""

    per_second: float
    seconds: float = math.inf

    def rate(self, time: float) -> float:
        """Return the rate (records/s)."""
        return self.per_second if time >= 0 else 0.0

    def count(self, time: float) -> int:
        return int(self.per_second * max(0.0, time))

    def due(self, number: int) -> float:
        """Return the smallest time with `count(time) > number`; inf if the rate is 0."""
        if number < 0 or self.per_second == 0:
            return 0.0 if number < 0 else math.inf
        time = (number + 1) / self.per_second
        while self.count(time) <= number:
            time = math.nextafter(time, math.inf)
        while self.count(before := math.nextafter(time, 0.0)) > number:
            time = before
        return time


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Lines of UTF-8 text files (a file, a folder or a glob), in one column `value`. Blank lines are skipped.

    Without a load, each file is read once, and new files as they appear. With a load, lines repeat when they run out.
    """

    path: str
    load: ArrivalPattern | None = None
    schema: str = "value string"


@dataclass(frozen=True, slots=True)
class Files:
    """Records of parquet, JSON-lines or CSV files (a file, a folder or a glob)."""

    path: str
    schema: str
    format: str = "parquet"
    load: ArrivalPattern | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """Records defined in the program, as dicts by column. They arrive at the pattern `load` and repeat."""

    rows: tuple[Mapping[str, object], ...]
    schema: str
    load: ArrivalPattern | None = None


@dataclass(frozen=True, slots=True)
class Simulated:
    """Load without records, of a source that can only be simulated."""

    load: ArrivalPattern
    schema: str = ""


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """Kafka topic, as source or sink.

    Attributes:
        group: Consumer group to which a source commits its offsets, for lag monitoring. A run resumes from its checkpoint.
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

    Append-only results are appended. Updates, after a keyed operator, form a change log with one folder `batch=N` per
    micro-batch; `elastream.latest` reads the newest row of each key.

    Attributes:
        path: The folder. Empty: `results/NAME` in the run's folder, by name of the sink (`RunResult.output`).
    """

    path: str = ""


@dataclass(frozen=True, slots=True)
class Collected:
    """Rows in memory under a name, for tests and notebooks."""

    name: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """Sink of an empty branch of a choice. It gets no records and costs nothing."""


class Fold(StrEnum):
    """Reduction of a micro-batch to one value of a signal, independent of the order of records."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    ANY = "any"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class DomainSignal:
    """Sink of a diagnostic branch: one value for guards per micro-batch that has records for it.

    Nulls and NaN are ignored; a batch without other values gives none. A value is readable once its batch is committed, and
    has the time of the commit. The value of a replayed batch replaces it.

    Attributes:
        fold: Reduction of the records; `any` and `all` take a boolean column.
        stale: Age at which a value counts as unknown (seconds).
        trace: Values for simulated runs, by seconds since the start; None where unknown. See `Trace`.
    """

    name: str
    fold: Fold
    column: str = ""
    stale: float = math.inf
    trace: Callable[[float], SignalValue | None] | None = None

    @property
    def declared(self) -> Signal:
        """Declaration against which guards are checked."""
        kind = SignalKind.TRUTH if self.fold in (Fold.ANY, Fold.ALL) else SignalKind.NUMBER
        return Signal(self.name, kind, self.stale)


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded signal: at any time, the newest of `values` so far; None before the first."""

    times: tuple[float, ...]
    values: tuple[SignalValue | None, ...]

    def __post_init__(self) -> None:
        if len(self.times) != len(self.values):
            raise DataflowError(f"a trace of {len(self.times)} times has {len(self.values)} values: it needs one for each")
        if any(later <= before for before, later in pairwise(self.times)):
            raise DataflowError("the times of a trace must increase")

    def __call__(self, time: float) -> SignalValue | None:
        reached = bisect.bisect_right(self.times, time)
        return self.values[reached - 1] if reached else None


@runtime_checkable
class StreamReader(Protocol):
    """User-defined source: anything that Spark reads as a stream. To be simulated it needs a load.

    Attributes:
        timestamp: Optional. Column with the time at which a record originated; latency counts from there.
    """

    schema: str

    def read(self, spark: Any, /) -> Any:
        """Return the streaming DataFrame with the columns of `schema`; `spark` is a SparkSession."""
        ...


@runtime_checkable
class StreamWriter(Protocol):
    """User-defined sink, called on the driver for every micro-batch.

    An optional method `refuse(graph)` raises an ElastreamError before the run starts if the sink does not fit the dataflow.
    """

    def write(self, rows: Any, batch: int, /) -> None:
        """Write new records, or changes of a keyed operator. Idempotent: after a crash the last batch comes again."""
        ...


@dataclass(frozen=True, slots=True)
class ForEachBatch:
    """A function of each micro-batch and its number, as Spark's `foreachBatch`."""

    function: Callable[[Any, int], object]

    def write(self, rows: Any, batch: int, /) -> None:
        self.function(rows, batch)


@dataclass(frozen=True, slots=True)
class FrameSource:
    """A streaming DataFrame of the user's.

    Attributes:
        frame: The DataFrame, or a function of the SparkSession that returns it.
        schema: Columns of the records, as Spark DDL. Empty: those of the DataFrame.
        timestamp: Column with the time at which a record originated; latency counts from there. Empty: none.
        load: Always None: a stream has its own arrivals.
    """

    frame: Any
    schema: str = ""
    timestamp: str = ""
    load: None = None

    def read(self, spark: Any, /) -> Any:
        return self.frame(spark) if callable(self.frame) else self.frame


@dataclass(frozen=True, slots=True)
class FrameSink:
    """End of a dataflow where the user's own code continues, from the DataFrame to its `DataStreamWriter`."""

    writer: Callable[[Any], Any]


class SignalSource(Protocol):
    """Source of external signals, polled outside the control loop."""

    def follow(self, signals: Iterable[Signal]) -> None:
        """Poll the feeds of `signals` from now on, and no others. Signals polled before keep their newest reading.

        The loop calls it at the start and when the guards change. Raises ElastreamError for a feed that cannot be polled.
        """
        ...

    def newest(self) -> Signals:
        """Return the newest reading of each signal at once, on the clock of the run.

        Signals without a reading are absent. After a failed poll the last reading stays and ages.
        """
        ...

    def close(self) -> None: ...


# Sources whose records can arrive at a declared load.
Replayable = TextFiles | Files | Records
SourceSpec = Replayable | Simulated | KafkaTopic | FrameSource | StreamReader
SinkSpec = ParquetSink | Collected | KafkaTopic | Nothing | DomainSignal | FrameSink | StreamWriter


def text_files(path: object) -> TextFiles:
    """Return a source of lines of UTF-8 text files: a file, a folder or a glob."""
    return TextFiles(str(path))


def files(path: object, schema: Schema, format: str = "parquet") -> Files:
    """Return a source of records in files of `format` `"parquet"`, `"json"` (lines) or `"csv"`.

    `schema`: Spark DDL, a StructType, a dataclass or a pydantic model.
    """
    return Files(str(path), ddl_of(schema, f"the schema of {path}"), format)


def records(rows: object, schema: Schema) -> Records:
    """Return a source of records that the program defines: `rows` is an iterable of dicts by column.

    `schema`: as for `files`.
    """
    listed = tuple(rows) if isinstance(rows, Iterable) else (rows,)
    for row in listed:
        if not isinstance(row, Mapping):
            raise DataflowError(f"records are dicts by column, and {reprlib.repr(row)} is none")
    return Records(tuple(map(dict, listed)), ddl_of(schema, "the schema of records"))


def kafka(topic: str, servers: str = "127.0.0.1:9092", *, group: str = "", **options: str) -> KafkaTopic:
    """Return a Kafka topic, as source or sink.

    Args:
        group: Consumer group to which a source commits its offsets.
        **options: Further options of Spark's Kafka connector.
    """
    return KafkaTopic(topic, servers, dict(options), group=group)


def parquet(path: object = "") -> ParquetSink:
    """Return a sink of parquet files in the folder `path`; empty: in the run's folder (`RunResult.output`)."""
    return ParquetSink(str(path))


def collect(name: str) -> Collected:
    """Return a sink that collects rows in memory under `name`."""
    return Collected(name)


_AGGREGATE = re.compile(r"\s*(\w+)\s*\(\s*(.*?)\s*\)\s*")


def domain_signal(
    name: str,
    aggregate: str,
    *,
    stale: float = math.inf,
    trace: Callable[[float], SignalValue | None] | None = None,
) -> DomainSignal:
    """Return the sink of the signal `name`.

    Args:
        aggregate: `"count()"`, or a reduction of a column such as `"mean(error)"`.
        stale: Age at which a value counts as unknown (seconds).
        trace: Values for simulated runs.

    Raises:
        DataflowError: The aggregate is unknown, or the trace has values of another type.
    """
    match = _AGGREGATE.fullmatch(aggregate)
    fold, column = match.groups() if match else ("", "")
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
