"""Streams of Nexmark's events in Spark: a data source that makes them at a load, and files.

After the last event follows a closing row with a time far later. It moves the watermark past all windows and belongs to no
result.
"""

import pickle
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from elastream.bench.nexmark.events import SCHEMAS, Events, Kind
from elastream.loads.pattern import Pattern, constant
from elastream.spark.dataflow.readers import Steering
from elastream.spark.dataflow.sources import LOAD, ShapedReader, Slice
from elastream.spark.worker.composition import freeze_imports

FORMAT = "nexmark"
EVENTS = "events.pickle"
CLOSING_TIME = datetime(2100, 1, 1, tzinfo=UTC)
WATERMARK_DELAY = "4 seconds"


def kind_of(stream: str) -> Kind:
    """Return the kind of event in the stream `persons`, `auctions` or `bids`."""
    return {"persons": "person", "auctions": "auction", "bids": "bid"}[stream]  # type: ignore[return-value]


def with_watermark(events: DataFrame, delay: str = WATERMARK_DELAY) -> DataFrame:
    """Return a stream of events with a watermark on their time, without the closing row."""
    # The optimiser moves a condition on another column below the watermark, which would then never see the closing row.
    return events.withWatermark("date_time", delay).where(F.col("date_time") < F.lit(CLOSING_TIME))


def closing_row(kind: Kind) -> pa.RecordBatch:
    """Return the row that follows the last event."""
    schema = SCHEMAS[kind]
    values = [CLOSING_TIME if pa.types.is_timestamp(t) else "" if t == pa.string() else -1 for t in schema.types]
    return pa.RecordBatch.from_arrays(
        [pa.array([value], t) for value, t in zip(values, schema.types, strict=True)], schema=schema
    )


def write_files(table: pa.Table, kind: Kind, folder: Path, files: int) -> None:
    """Write a kind of event to `folder` as `files` files in order, and the closing row behind them."""
    folder.mkdir(parents=True)
    edges = pairwise(table.num_rows * part // files for part in range(files + 1))
    for number, (first, last) in enumerate(edges):
        parquet.write_table(table.slice(first, last - first), folder / f"{number:03}.parquet")
    parquet.write_table(pa.Table.from_batches([closing_row(kind)]), folder / f"{files:03}.parquet")


def read_files(spark: SparkSession, kind: Kind, folder: Path, files_per_batch: int = 1) -> DataFrame:
    """Return the stream of the events in `folder`."""
    schema = from_arrow_schema(SCHEMAS[kind])
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch).parquet(str(folder))


def read_events(
    spark: SparkSession,
    events: Events,
    kind: Kind,
    control: Path,
    *,
    checkpoint: Path,
    tasks: int,
    batch_seconds: float,
) -> DataFrame:
    """Return the stream of one kind of event as they fall due, with the closing row behind the last.

    The load begins after the query's first, empty batch, and not while `elastream.spark.dataflow.sources.HOLD` is in
    `control`.

    Args:
        spark: Session of the query.
        events: Events; their load must have an end.
        kind: Kind of event.
        control: Folder of the source's files, which tasks read too.
        checkpoint: Checkpoint of the query, whose commits date batches.
        tasks: Number of tasks that make the events of a batch.
        batch_seconds: Target duration of a batch.
    """
    control.mkdir(parents=True, exist_ok=True)
    (control / EVENTS).write_bytes(pickle.dumps(events))
    (control / LOAD).write_bytes(cloudpickle.dumps(closed(events.load)))
    steering = Steering(kind, control / "wanted.json", tasks)
    spark.dataSource.register(EventSource)
    return (
        spark.readStream.format(FORMAT)
        .options(kind=kind, control=str(control.resolve()), steering=steering.option())
        .options(batch_seconds=batch_seconds, commits=str(checkpoint.resolve() / "commits"))
        .load()
    )


def closed(load: Pattern) -> Pattern:
    """Return a load with one event more, the closing row, a second after its end."""
    return load.then(constant("1/s", lasts=1.0))


class EventSource(DataSource):
    """Spark data source of one kind of Nexmark's events. Offsets are event numbers."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the kind."""
        return from_arrow_schema(SCHEMAS[self._kind])

    @property
    def _kind(self) -> Kind:
        return self.options["kind"]  # type: ignore[return-value]

    def streamReader(self, schema: StructType) -> "EventReader":
        """Create the reader."""
        options: Mapping[str, str] = self.options
        steering = Steering.of(options["steering"])
        batch_seconds, commits = float(options["batch_seconds"]), Path(options["commits"])
        return EventReader(Path(options["control"]), steering, batch_seconds, SCHEMAS[self._kind], commits, self._kind)


class EventReader(ShapedReader):
    """Reader of a range of events, which makes them where they are read."""

    def __init__(
        self, control: Path, steering: Steering, batch_seconds: float, schema: pa.Schema, commits: Path, kind: Kind
    ) -> None:
        super().__init__(control, steering, batch_seconds, schema, commits)
        self._kind: Kind = kind

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Yield the events of a slice."""
        freeze_imports()
        events: Events = pickle.loads((self._control / EVENTS).read_bytes())
        total = events.load.count(events.load.seconds)
        yield from events.batches(self._kind, partition.first, min(partition.last, total))
        if partition.last > total:
            yield closing_row(self._kind)
