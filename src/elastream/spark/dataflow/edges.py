"""Reads a durable edge as a Spark data source: the downstream query takes the upstream query's records range by range.

Spark's file source takes all files into one batch, in as many tasks as the cluster has cores, which leaves no backlog to
measure and no parallelism to set. Here records are numbered in write order (`edge_log`): a batch is a range, the rest is
the edge's backlog, and the offset carries composition and parallelism, as that of a shaped load does (see `sources`).
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
from elastream.recording.places import Place, place_of, readable
from elastream.spark.dataflow.edge_log import EdgeLog, FilePiece
from elastream.spark.dataflow.pacing import RangeReader, shares
from elastream.spark.dataflow.steering import Steering
from elastream.spark.jvm.adapters import arrow_schema
from elastream.spark.worker.composition import freeze_imports
from elastream.spark.worker.records import conformed

FORMAT = "elastream_edge"
ROWS = 10_000
"""Most records in an Arrow batch."""
KEPT = 600.0
"""Seconds for which records stay on disk once they were read: others follow the edge too, and may be late."""


@dataclass(frozen=True)
class EdgeSlice(InputPartition):
    """The records that one task reads."""

    pieces: tuple[FilePiece, ...]


def edge_name(edge: Edge) -> str:
    """Name of an edge in offsets and in what is wanted."""
    return f"{edge.source}-{edge.target}"


def open_edge(
    spark: SparkSession,
    schema: StructType,
    steering: Steering,
    *,
    records: Place,
    rows_each: int,
    batch_seconds: float,
    checkpoint: Place,
) -> DataFrame:
    """Open the stream of the records in a folder.

    steering: says under which composition, and in how many tasks; at most one per `rows_each` records. batch_seconds:
    target duration of a batch, which limits its size. checkpoint: that of the reading query, whose commit log has the
    commit time of each batch.
    """
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
    """Spark data source of a durable edge; options: the arguments of `open_edge`, and `commits`, the commit log."""

    @classmethod
    def name(cls) -> str:
        """Name of the format for `spark.readStream.format`."""
        return FORMAT

    def streamReader(self, schema: StructType) -> "EdgeReader":
        """Create the reader, in the driver's or a worker's Python process."""
        options = self.options
        return EdgeReader(
            Steering.of(options["steering"]),
            place_of(options["records"]),
            int(options["rows_each"]),
            float(options["batch_seconds"]),
            arrow_schema(schema),
            place_of(options["commits"]),
        )


class EdgeReader(RangeReader):
    """An offset has `edge`, the edge's name, because a query may read several, and `n`, records taken so far."""

    def __init__(
        self,
        steering: Steering,
        records: Place,
        rows_each: int,
        batch_seconds: float,
        schema: pa.Schema,
        commits: Place | None,
    ) -> None:
        self._log = EdgeLog(records, versions=steering.wave)
        super().__init__(steering, batch_seconds, schema, commits, self._log)
        self._name, self._rows_each = steering.name, rows_each

    def initialOffset(self) -> dict[str, Any]:
        """The offset before the first record."""
        self._course.look()
        return self._offset(edge=self._name, n=0)

    def plan(self, start: dict[str, Any]) -> dict[str, Any]:
        """The written records, up to the governor's limit and the next change of version where records keep theirs.

        `start`, which means no batch, if there are none.
        """
        now = time.time()
        self._pacing.settle(now)
        self._course.look()
        taken = int(start["n"])
        upto = min(self._log.refresh(), taken + self._pacing.allowance)
        if self._course.wave:
            upto = min(upto, self._log.until(taken, self._course.next.version))
        if upto > taken:
            self._pacing.begin(upto - taken, now)
        elif not self._course.announces:
            return dict(start)
        return self._offset(edge=self._name, n=upto)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[EdgeSlice]:
        """Contiguous shares of the batch, as even as possible, none of them empty."""
        first, last = int(start["n"]), int(end["n"])
        if self._log.total < last:  # after a restart, Spark replays a batch before it requests the latest offset
            self._log.refresh()
        width = max(1, min(int(end["partitions"]), -(-(last - first) // self._rows_each)))
        return [EdgeSlice(self._log.pieces(a, b)) for a, b in shares(first, last, width) if b > a]

    def read(self, partition: EdgeSlice) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Arrow batches of a slice."""
        freeze_imports()
        for piece in partition.pieces:
            # Read as a single file: as a dataset, the folder's `batch=N` would become a column.
            table = pq.ParquetFile(readable(piece.path)).read().slice(piece.first, piece.rows)
            for batch in table.to_batches(max_chunksize=ROWS):
                yield conformed(batch, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Forget the records before `end`, and remove what was written KEPT ago: Spark does not request them again."""
        taken = int(end["n"])
        self._log.retire(taken, time.time() - KEPT)
        self._log.forget(taken)
