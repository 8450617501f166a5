"""Streams of events in Spark: a data source that makes them at a load.

After the last event follows a closing row with a time far later. It moves the watermark past all windows and belongs to no
result.
"""

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from elastream.bench.workload import CLOSING_TIME, EVENTS, Kind, Numbered, Reading, closing_row
from elastream.loads.pattern import Pattern, constant
from elastream.spark.dataflow.readers import Steering
from elastream.spark.dataflow.sources import LOAD, ShapedReader, Slice
from elastream.spark.worker.composition import freeze_imports

FORMAT = "elastream-bench"
UNLIMITED_S, UNLIMITED = 1e9, 10**12  # time and events of a batch: it takes all that are due, as of Kafka


def with_watermark(events: DataFrame, time: str, delay: str) -> DataFrame:
    """Return a stream of events with a watermark on the column `time`, without the closing row."""
    # The optimiser moves a condition on another column below the watermark, which would then never see the closing row.
    return events.withWatermark(time, delay).where(F.col(time) < F.lit(CLOSING_TIME))


def read_events(spark: SparkSession, events: Numbered[Kind], kind: Kind, reading: Reading) -> DataFrame:
    """Return the stream of one kind of event as they fall due, with the closing row behind the last.

    The load begins after the query's first, empty batch, and not while `elastream.spark.dataflow.sources.HOLD` is in the
    kind's folder of `reading.control`.
    """
    control = reading.control / kind
    control.mkdir(parents=True, exist_ok=True)
    (control / EVENTS).write_bytes(pickle.dumps(events))
    if reading.kafka:
        from elastream.bench.kafka import read_topic  # of an optional broker

        return read_topic(spark, events, kind, reading.kafka, control, reading.tasks)
    (control / LOAD).write_bytes(cloudpickle.dumps(closed(events.load)))
    steering = Steering(kind, control / "wanted.json", reading.tasks)
    spark.dataSource.register(EventSource)
    return (
        spark.readStream.format(FORMAT)
        .options(kind=kind, control=str(control.resolve()), steering=steering.option())
        .options(commits=str(reading.checkpoint.resolve() / "commits"))
        .load()
    )


def closed(load: Pattern) -> Pattern:
    """Return a load with one event more, the closing row, a second after its end."""
    return load.then(constant("1/s", lasts=1.0))


class EventSource(DataSource):
    """Spark data source of one kind of event. Offsets are event numbers."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(self._columns)

    @property
    def _columns(self) -> pa.Schema:
        events: Numbered[str] = pickle.loads((Path(self.options["control"]) / EVENTS).read_bytes())
        return events.schema(self.options["kind"])

    def streamReader(self, schema: StructType) -> "EventReader":
        options: Mapping[str, str] = self.options
        steering = Steering.of(options["steering"])
        commits = Path(options["commits"])
        return EventReader(Path(options["control"]), steering, self._columns, commits, options["kind"])


class EventReader(ShapedReader):
    def __init__(self, control: Path, steering: Steering, schema: pa.Schema, commits: Path, kind: str) -> None:
        super().__init__(control, steering, UNLIMITED_S, schema, commits)
        self._pacing.allow(UNLIMITED)
        self._kind = kind

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        freeze_imports()
        events: Numbered[str] = pickle.loads((self._control / EVENTS).read_bytes())
        total = events.load.count(events.load.seconds)
        yield from events.batches(self._kind, partition.first, min(partition.last, total))
        if partition.last > total:
            yield closing_row(events.schema(self._kind))
