"""Opens the sources of a dataflow: shaped loads as a replayable data source, others with Spark's readers.

A shaped load's offset also carries the batch's composition, so that a batch never mixes two and a replay uses the same.
"""

import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from elastream.dataflow.endpoints import ArrivalPattern, Files, KafkaTopic, Records, SourceSpec, StreamReader, TextFiles
from elastream.dataflow.operators import Operator
from elastream.errors import InputError, first_line
from elastream.recording.file_log import files_in
from elastream.recording.paths import AnyPath, is_address, path_of, write_whole
from elastream.spark.dataflow.corpus import check_files, check_text, input_files, open_corpus, slices, store_corpus
from elastream.spark.dataflow.kafka import check_topic, source_options
from elastream.spark.dataflow.readers import RangeReader, Steering, shares
from elastream.spark.dataflow.stamps import with_stamps
from elastream.spark.jvm.arrow_schemas import arrow_schema
from elastream.spark.jvm.borrowed import in_session
from elastream.spark.worker.composition import freeze_imports

FORMAT = "elastream_load"
# Files in a source's control folder. While `hold` exists, a load does not begin. A paused source writes the request's
# version to `held` once it takes no more records.
CORPUS, LOAD, RECORDS, HOLD, HELD = "corpus.arrow", "load.pickle", "records", "hold", "held"


@dataclass(frozen=True)
class Slice(InputPartition):
    """Records `first` to `last` (exclusive) of the load."""

    first: int
    last: int


def open_source(
    spark: SparkSession,
    operator: Operator,
    *,
    control: Path,
    steering: Steering,
    batch_seconds: float,
    checkpoint: AnyPath | None = None,
    inputs: AnyPath | None = None,
) -> DataFrame:
    """Open the stream of a source: Elastream's data source with a load, else Spark's reader. Raises InputError.

    A load begins after the query's first, empty batch and follows the clock across restarts.

    Args:
        inputs: Folder from which tasks read the stored records; default `control`.
    """
    match operator.reads:
        case KafkaTopic() as topic:
            messages = spark.readStream.format("kafka").options(**source_options(topic)).load()
            messages = with_stamps(messages, "timestamp", operator.name)
            return messages.select(F.col("key").cast("string"), F.col("value").cast("string"), "timestamp")
        case TextFiles(path, None):
            reader, place = _file_reader(spark, path)
            return reader.text(place).select("value").where("trim(value) <> ''")
        case Files(path, schema, format, None):
            reader, place = _file_reader(spark, path)
            return reader.schema(schema).format(format).options(header=True).load(place)
        case Records(_, schema, None) as spec:
            folder = (inputs or control) / RECORDS
            store_corpus(spec, _arrow(spec.schema), control / CORPUS)
            _as_parquet(control / CORPUS, folder)
            return spark.readStream.schema(schema).parquet(str(folder))
        case TextFiles() | Files() | Records() as spec:
            control.mkdir(parents=True, exist_ok=True)
            store_corpus(spec, _arrow(spec.schema), control / CORPUS)
            (control / LOAD).write_bytes(cloudpickle.dumps(spec.load))
            corpus = (inputs or control) / CORPUS
            if not corpus.exists():
                write_whole(corpus, (control / CORPUS).read_bytes())
            spark.dataSource.register(ShapedSource)
            return (
                spark.readStream.format(FORMAT)
                .schema(spec.schema)
                .options(control=str(control.resolve()), corpus=str(corpus.resolve()), steering=steering.option())
                .options(batch_seconds=batch_seconds)
                .options(**({} if checkpoint is None else {"commits": str(checkpoint.resolve() / "commits")}))
                .load()
            )
        case StreamReader() as reader:
            return _read_by(reader, spark, operator.name)
    raise AssertionError(f"source {operator.name!r} was to be refused before")


def _read_by(reader: StreamReader, spark: SparkSession, name: str) -> DataFrame:
    what = f"source {name!r}: {type(reader).__name__}.read"
    try:
        frame = reader.read(spark)
    except Exception as error:
        raise InputError(f"{what} failed: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(frame, DataFrame) or not frame.isStreaming:
        raise InputError(f"{what} returned no streaming DataFrame")
    frame = in_session(frame, spark)
    columns = _arrow(reader.schema).names if reader.schema else frame.columns
    if missing := [column for column in columns if column not in frame.columns]:
        raise InputError(f"{what} returned no column {missing[0]!r} (it returned: {', '.join(frame.columns)})")
    if stamp := timestamp_of(reader):
        if stamp not in frame.columns:
            raise InputError(f"{what} returned no column {stamp!r}, which its `timestamp` names")
        frame = with_stamps(frame, stamp, name)
    return frame.select(*columns)


def timestamp_of(reads: SourceSpec | None) -> str | None:
    """Return the time stamp column of a source, if it has one."""
    return "timestamp" if isinstance(reads, KafkaTopic) else getattr(reads, "timestamp", None)


def files_read(operator: Operator, inputs: AnyPath) -> str | None:
    match operator.reads:
        case TextFiles(path, None) | Files(path, load=None) if not is_address(path):
            return str(Path(path).expanduser())
        case Records(load=None) if isinstance(inputs, Path):
            return str(inputs / RECORDS)
    return None


def check_source(operator: Operator, *, empty: bool = False) -> None:
    """Raise InputError for an invalid input. Spark itself checks addresses (`s3a://...`). empty: allow an empty folder."""
    if (
        empty
        and (folder := files_read(operator, Path())) is not None
        and not any(files_in(folder))
        and Path(folder).is_dir()
    ):
        return
    match operator.reads:
        case TextFiles(path, load) | Files(path, load=load) if is_address(path):
            if load is not None:
                raise InputError(f"source {operator.name!r}: a load needs local files, not {path}")
        case TextFiles(path):
            for file in input_files(path):
                check_text(file)
        case Files() as spec:
            check_files(spec)
        case Records(rows):
            if not rows:
                raise InputError(f"source {operator.name!r}: the list of records is empty")
        case KafkaTopic() as topic:
            check_topic(topic)
        case _:
            pass  # a StreamReader is checked on opening


class ShapedSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> "ShapedReader":
        options = self.options
        return ShapedReader(
            Path(options["control"]),
            Steering.of(options["steering"]),
            float(options["batch_seconds"]),
            arrow_schema(schema),
            path_of(options["commits"]) if "commits" in options else None,
            path_of(options["corpus"]) if "corpus" in options else None,
        )


class ShapedReader(RangeReader):
    """Reader of a load, which begins after the query's first, empty batch.

    An offset holds `n`, the records so far; `t`, the load's time (seconds); and `started` (epoch seconds, 0 before).
    """

    def __init__(
        self,
        control: Path,
        steering: Steering,
        batch_seconds: float,
        schema: pa.Schema,
        commits: AnyPath | None = None,
        corpus: AnyPath | None = None,
    ) -> None:
        super().__init__(steering, batch_seconds, schema, commits)
        self._control, self._corpus = control, corpus or control / CORPUS
        self._planned: dict[str, Any] | None = None
        self._paused: int | None = None
        self._began: float | None = None
        self._due: tuple[int, float] | None = None

    @cached_property
    def _load(self) -> ArrivalPattern:
        # Loaded only where batches are planned: a long trace must not be sent with every task.
        load: ArrivalPattern = pickle.loads((self._control / LOAD).read_bytes())
        return load

    def initialOffset(self) -> dict[str, Any]:
        self._next_batch.look()
        return self._offset(n=0, t=0.0, started=0.0)

    def plan(self, start: dict[str, Any]) -> dict[str, Any]:
        now = time.time()
        self._pacing.settle(now)
        self._next_batch.look()
        if paused := self._next_batch.request.paused:
            self._acknowledge(self._next_batch.request.version)
        if not start["started"] and (self._planned is None or (self._control / HOLD).exists()):
            self._planned = dict(start)
            return dict(start)
        if self._began is None:
            self._began = float(start["started"]) or now
            # Two batch durations of arrivals are no burst, whatever a record costs.
            self._pacing.allow(int(2 * self._pacing.batch_seconds * self._load.rate(now - self._began)))
        position, started = int(start["n"]), self._began
        due = self._load.count(now - started)
        upto = position if paused else min(due, position + self._pacing.allowance)
        self._planned, self._due = dict(start), (max(due, position), now - started)
        if upto > position:
            seconds = now - started if upto == due else self._load.due(upto - 1)
            self._planned = self._offset(n=upto, t=seconds, started=started)
            self._pacing.begin(upto - position, now)
        elif self._next_batch.announces:
            self._planned = self._offset(n=position, t=float(start["t"]), started=started)
        return dict(self._planned)

    def due(self) -> int | None:
        return None if self._due is None else self._due[0]

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the due records. Spark's progress shows them minus the end offset as backlog."""
        if self._planned is None or self._due is None:
            return None
        due, elapsed = self._due
        # Without due records only the time would differ, and records would seem to wait.
        return dict(self._planned) if due == self._planned["n"] else {**self._planned, "n": due, "t": elapsed}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Slice]:
        first, last = int(start["n"]), int(end["n"])
        width = max(1, min(int(end["partitions"]), last - first))
        return [Slice(a, b) for a, b in shares(first, last, width)]

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        freeze_imports()
        for batch in slices(open_corpus(self._corpus), partition.first, partition.last):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: every range can be read again."""

    def _acknowledge(self, version: int) -> None:
        if self._paused != version:
            write_whole(self._control / HELD, str(version).encode())
            self._paused = version


def _file_reader(spark: SparkSession, path: str) -> tuple[DataStreamReader, str]:
    place = Path(path).expanduser()
    if place.is_file():
        return spark.readStream.option("pathGlobFilter", place.name), str(place.parent)
    return spark.readStream, path if is_address(path) else str(place)


def _arrow(schema: StructType | str) -> pa.Schema:
    return arrow_schema(cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema)


def _as_parquet(corpus: Path, folder: AnyPath) -> None:
    target = folder / "records.parquet"
    if not target.exists():
        out = pa.BufferOutputStream()
        pa.parquet.write_table(open_corpus(corpus), out)
        write_whole(target, out.getvalue().to_pybytes())
