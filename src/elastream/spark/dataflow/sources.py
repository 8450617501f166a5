"""Where records come in: loads of our own making as a replayable Spark source, and Spark's own readers for the rest.

A shaped load is a function of time, so its offset is a record number and a time, and any range of it can be read again.
The offset also carries the composition that the batch runs under (see `composition`), which is how a batch never mixes
two and a replay meets the first one again. The records themselves are left to `corpus`, batch sizes to `planning.governor`.
"""

import pickle
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from elastream.model.endpoints import ArrivalPattern, Files, KafkaTopic, Records, StreamReader, TextFiles
from elastream.model.errors import InputError
from elastream.model.graph import Operator
from elastream.spark.dataflow.corpus import check_files, check_text, freeze, frozen, input_files, slices
from elastream.spark.dataflow.kafka import check_topic, source_options
from elastream.spark.dataflow.pacing import Pacing, shares
from elastream.spark.worker.composition import COLUMN, Wanted, read_wanted, wanted_file
from elastream.spark.worker.setup import settle_in

__all__ = ["Offset", "ShapedReader", "ShapedSource", "backlog", "check_source", "open_source"]

FORMAT = "elastream_load"
CORPUS, LOAD, RECORDS, HOLD = "corpus.arrow", "load.pickle", "records", "hold"
"""What lies in a source's control folder; while `hold` does, a load that has not begun does not begin."""


class Offset(TypedDict):
    """How far a load has been taken, and what the batch that ends here runs under.

    n: records taken so far. t: seconds of the load up to which they are taken. started: epoch seconds when it began, 0
    while it has not: the first batch of a query takes nothing, starts the workers, and only then does the load begin.
    """

    n: int
    t: float
    started: float
    version: int
    code: int
    partitions: int


@dataclass(frozen=True)
class Slice(InputPartition):
    """Records `first` to `last` (exclusive) of the load, to be stamped with `code`."""

    first: int
    last: int
    code: int


def open_source(
    spark: SparkSession,
    operator: Operator,
    *,
    control: Path,
    partitions: int,
    batch_seconds: float,
    checkpoint: Path | None = None,
) -> DataFrame:
    """The stream that a source operator reads.

    With a load: our own source, with a column `_composition bigint` behind those of the operator. Its composition and
    width are those in `control`/wanted.json, or the default and `partitions` where there is none yet; batches are held to
    about `batch_seconds`, for which the log in `checkpoint`, where it is given, tells when each was committed. The load
    begins when the query's first batch, an empty one, has started its workers, and goes on by the clock, restarts included.
    Without: Spark's readers, and no such column. Raises InputError for records that cannot be read.
    """
    match operator.reads:
        case KafkaTopic() as topic:
            messages = spark.readStream.format("kafka").options(**source_options(topic)).load()
            return messages.select(F.col("key").cast("string"), F.col("value").cast("string"), "timestamp")
        case TextFiles(path, None):
            reader, place = _file_reader(spark, path)
            return reader.text(place).select("value").where("trim(value) <> ''")
        case Files(path, schema, format, None):
            reader, place = _file_reader(spark, path)
            return reader.schema(schema).format(format).options(header=True).load(place)
        case Records(_, schema, None) as spec:
            folder = control / RECORDS
            freeze(spec, _arrow(spec.schema), control / CORPUS)
            _as_parquet(control / CORPUS, folder)
            return spark.readStream.schema(schema).parquet(str(folder))
        case TextFiles() | Files() | Records() as spec:
            control.mkdir(parents=True, exist_ok=True)
            freeze(spec, _arrow(spec.schema), control / CORPUS)
            (control / LOAD).write_bytes(cloudpickle.dumps(spec.load))
            spark.dataSource.register(ShapedSource)
            return (
                spark.readStream.format(FORMAT)
                .schema(f"{spec.schema}, {COLUMN} bigint")
                .options(control=str(control.resolve()), partitions=partitions, batch_seconds=batch_seconds)
                .options(**({} if checkpoint is None else {"commits": str(checkpoint.resolve() / "commits")}))
                .load()
            )
        case StreamReader() as reader:
            return _read_by(reader, spark, operator.name)
    raise InputError(f"source {operator.name!r} has nothing to read; it exists in simulation only")


def _read_by(reader: StreamReader, spark: SparkSession, name: str) -> DataFrame:
    """What a source of the user's own reads; raises InputError where that fails or is not as it declares."""
    what = f"source {name!r}: {type(reader).__name__}.read"
    try:
        frame = reader.read(spark)
    except Exception as error:
        raise InputError(f"{what} failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(frame, DataFrame) or not frame.isStreaming:
        raise InputError(f"{what} returned no streaming DataFrame")
    columns = _arrow(reader.schema).names
    if missing := [column for column in columns if column not in frame.columns]:
        raise InputError(f"{what} returned no column {missing[0]!r} (it returned: {', '.join(frame.columns)})")
    return frame.select(*columns)


def check_source(operator: Operator) -> None:
    """Raise InputError for what is wrong with the input of a source, before anything is started.

    A missing path, an empty folder, a text that is not UTF-8 (naming file and byte), an unknown format, a topic without
    name or servers. Paths with a scheme (`s3a://...`) are left to Spark where there is no load.
    """
    match operator.reads:
        case TextFiles(path, load) | Files(path, load=load) if "://" in path:
            if load is not None:
                raise InputError(f"source {operator.name!r}: a load draws on files of this machine, not on {path}")
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
        case StreamReader():
            pass  # what it reads is known when it is opened
        case _:
            raise InputError(f"source {operator.name!r} has nothing to read; it exists in simulation only")


def backlog(offset: Mapping[str, Any], load: ArrivalPattern, now: float) -> int:
    """Records of `load` due at epoch second `now` that `offset`, one of our own source, has not taken."""
    started = float(offset["started"])
    return max(0, load.count(now - started) - int(offset["n"])) if started else 0


class ShapedSource(DataSource):
    """A load over stored records; options `control`, `partitions`, `batch_seconds`, `commits` (see `open_source`)."""

    @classmethod
    def name(cls) -> str:
        """What `spark.readStream.format` calls it."""
        return FORMAT

    def streamReader(self, schema: StructType) -> "ShapedReader":
        """A reader in the driver's or a worker's Python process."""
        options = self.options
        return ShapedReader(
            Path(options["control"]),
            int(options["partitions"]),
            float(options["batch_seconds"]),
            to_arrow_schema(schema, timezone="UTC"),
            Path(options["commits"]) if "commits" in options else None,
        )


class ShapedReader(DataSourceStreamReader):
    """Plans batches in a process of its own beside the driver, and reads slices of them in the workers."""

    def __init__(
        self, control: Path, partitions: int, batch_seconds: float, schema: pa.Schema, commits: Path | None = None
    ) -> None:
        self._control = control
        self._default = Wanted(version=0, code=0, partitions=partitions)
        self._schema = schema
        self._pacing = Pacing(batch_seconds, commits)
        self._planned: Offset | None = None
        self._began: float | None = None

    @cached_property
    def _load(self) -> ArrivalPattern:
        # Only ever loaded where batches are planned: a trace of months must not travel with every task.
        found: ArrivalPattern = pickle.loads((self._control / LOAD).read_bytes())
        return found

    def initialOffset(self) -> dict[str, Any]:
        """Nothing taken, and the load not begun."""
        return dict(self._offset(0, 0.0, 0.0))

    def latestOffset(self, start: dict[str, Any], limit: object = None) -> dict[str, Any]:
        """All that is due, as far as the governor allows; `start` itself, which means no batch, where nothing is."""
        now = time.time()
        self._pacing.settle(now)
        if not start["started"] and (self._planned is None or (self._control / HOLD).exists()):
            self._planned = Offset(**start)  # type: ignore[typeddict-item]
            return dict(start)
        if self._began is None:
            self._began = float(start["started"]) or now
            # What the load brings in twice the time of a batch is no burst, whatever a record costs.
            self._pacing.allow(int(2 * self._pacing.batch_seconds * self._load.rate(now - self._began)))
        taken, started = int(start["n"]), self._began
        due = self._load.count(now - started)
        upto = min(due, taken + self._pacing.allowance)
        self._planned = Offset(**start)  # type: ignore[typeddict-item]
        if upto > taken:
            seconds = now - started if upto == due else self._load.due(upto - 1)
            self._planned = self._offset(upto, seconds, started)
            self._pacing.begin(upto - taken, now)
        return dict(self._planned)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What is due by now, for the progress report: there, latest less end offset is the backlog."""
        if self._planned is None or self._began is None:
            return None
        elapsed = time.time() - self._began
        return {**self._planned, "n": max(self._planned["n"], self._load.count(elapsed)), "t": elapsed}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Slice]:
        """Contiguous shares of the batch, as even as can be, none of them empty."""
        first, last = int(start["n"]), int(end["n"])
        width = max(1, min(int(end["partitions"]), last - first))
        return [Slice(a, b, int(end["code"])) for a, b in shares(first, last, width)]

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Arrow batches of a slice, stamped."""
        settle_in()
        stamps = pa.array(np.full(min(partition.last - partition.first, 10_000), partition.code))
        for batch in slices(frozen(self._control / CORPUS), partition.first, partition.last):
            columns = [*batch.columns, stamps.slice(0, batch.num_rows)]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to forget: every range can be read again."""

    def _offset(self, n: int, seconds: float, started: float) -> Offset:
        wanted = read_wanted(wanted_file(self._control), self._default)
        return Offset(
            n=n, t=seconds, started=started, version=wanted.version, code=wanted.code, partitions=wanted.partitions
        )


def _file_reader(spark: SparkSession, path: str) -> tuple[DataStreamReader, str]:
    """Spark's file source watches folders only: a single file is its folder with a filter."""
    place = Path(path).expanduser()
    if place.is_file():
        return spark.readStream.option("pathGlobFilter", place.name), str(place.parent)
    return spark.readStream, path if "://" in path else str(place)


def _arrow(schema: StructType | str) -> pa.Schema:
    return to_arrow_schema(
        cast(StructType, StructType.fromDDL(schema)) if isinstance(schema, str) else schema, timezone="UTC"
    )


def _as_parquet(corpus: Path, folder: Path) -> None:
    """Stored records as a folder that Spark's file source reads once."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "records.parquet"
    if not target.exists():
        hidden = folder / ".records.parquet"
        pa.parquet.write_table(frozen(corpus), hidden)
        hidden.rename(target)
