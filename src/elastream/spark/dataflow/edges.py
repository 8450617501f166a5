"""Reads a durable edge as a Spark data source: ranges of numbered records.

Spark's file source takes all files into one batch, which leaves no backlog to measure and no parallelism to set.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from elastream.dataflow.operators import Edge
from elastream.recording.paths import AnyPath, path_of, readable
from elastream.spark.dataflow.edge_log import EdgeLog, FilePiece
from elastream.spark.dataflow.readers import RangeReader, Steering, shares
from elastream.spark.jvm.arrow_schemas import arrow_schema
from elastream.spark.worker.composition import freeze_imports
from elastream.spark.worker.records import conform

FORMAT = "elastream_edge"
MAX_BATCH_ROWS = 10_000
# Time for which records stay on disk after they were read (seconds): others follow the edge too, and may be late.
RETENTION_S = 600.0


@dataclass(frozen=True)
class EdgeSlice(InputPartition):
    pieces: tuple[FilePiece, ...]


def edge_name(edge: Edge) -> str:
    return f"{edge.source}-{edge.target}"


def open_edge(
    spark: SparkSession,
    schema: StructType,
    steering: Steering,
    *,
    records: AnyPath,
    rows_each: int,
    batch_seconds: float,
    checkpoint: AnyPath,
) -> DataFrame:
    records.mkdir(parents=True, exist_ok=True)
    spark.dataSource.register(EdgeSource)
    return (
        spark.readStream.format(FORMAT)
        .schema(schema)
        .options(
            steering=steering.option(),
            records=str(records.resolve()),
            rows_each=rows_each,
            batch_seconds=batch_seconds,
            commits=str(checkpoint.resolve() / "commits"),
        )
        .load()
    )


class EdgeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> "EdgeReader":
        options = self.options
        return EdgeReader(
            Steering.of(options["steering"]),
            path_of(options["records"]),
            int(options["rows_each"]),
            float(options["batch_seconds"]),
            arrow_schema(schema),
            path_of(options["commits"]),
        )


class EdgeReader(RangeReader):
    """Reader of a durable edge. An offset holds its name `edge` and `n`, the records so far."""

    def __init__(
        self,
        steering: Steering,
        records: AnyPath,
        rows_each: int,
        batch_seconds: float,
        schema: pa.Schema,
        commits: AnyPath | None,
    ) -> None:
        self._log = EdgeLog(records, versions=steering.wave)
        super().__init__(steering, batch_seconds, schema, commits, self._log)
        self._name, self._rows_each = steering.name, rows_each

    def initialOffset(self) -> dict[str, Any]:
        self._next_batch.look()
        return self._offset(edge=self._name, n=0)

    def plan(self, start: dict[str, Any]) -> dict[str, Any]:
        """Plan written records up to the governor's limit and the next version; `start` for no batch."""
        now = time.time()
        self._pacing.settle(now)
        self._next_batch.look()
        first = int(start["n"])
        upto = min(self._log.refresh(), first + self._pacing.allowance)
        if self._next_batch.wave:
            upto = min(upto, self._log.until(first, self._next_batch.next.version))
        if upto > first:
            self._pacing.begin(upto - first, now)
        elif not self._next_batch.announces:
            return dict(start)
        return self._offset(edge=self._name, n=upto)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[EdgeSlice]:
        first, last = int(start["n"]), int(end["n"])
        if self._log.total < last:  # after a restart, Spark replays a batch before it requests the latest offset
            self._log.refresh()
        width = max(1, min(int(end["partitions"]), -(-(last - first) // self._rows_each)))
        return [EdgeSlice(self._log.pieces(a, b)) for a, b in shares(first, last, width) if b > a]

    def read(self, partition: EdgeSlice) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        freeze_imports()
        for piece in partition.pieces:
            # Read as a single file: as a dataset, the folder's `batch=N` would become a column.
            table = pq.ParquetFile(readable(piece.path)).read().slice(piece.first, piece.rows)
            for batch in table.to_batches(max_chunksize=MAX_BATCH_ROWS):
                yield conform(batch, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Drop records before `end`, which Spark never requests again."""
        end_number = int(end["n"])
        self._log.retire(end_number, time.time() - RETENTION_S)
        self._log.forget(end_number)
