"""Reads a durable edge as a Spark data source: the downstream query takes the upstream query's records range by range.

Spark's file source takes all files into one batch, in as many tasks as the cluster has cores, which leaves no backlog to
measure and no parallelism to set. Here records are numbered in write order: a batch is a range, the rest is the edge's
backlog, and the offset carries composition and parallelism, as that of a shaped load does (see `sources`).
"""

import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructType

from elastream.model.graph import Edge
from elastream.spark.dataflow.pacing import RangeReader, shares
from elastream.spark.worker.composition import COLUMN, freeze_imports
from elastream.spark.worker.records import conformed

__all__ = ["Channel", "EdgeLog", "EdgeReader", "EdgeSource", "FilePiece", "edge_name", "open_edge"]

FORMAT = "elastream_edge"
ROWS = 10_000
"""Most records in an Arrow batch."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Records `first` to `first + rows` (exclusive) of the file at `path`."""

    path: str
    first: int
    rows: int


@dataclass(frozen=True)
class EdgeSlice(InputPartition):
    """The records that one task reads and stamps with `code`."""

    pieces: tuple[FilePiece, ...]
    code: int


@dataclass(frozen=True, slots=True)
class Channel:
    """Folders of an edge: its records, and the settings requested for the batches that read them."""

    records: Path
    control: Path


class EdgeLog:
    """The files of an edge in record order: by batch, within a batch by file name.

    A batch's folder appears atomically (`sinks.write_batch`) and never changes, so that record numbers are the same in
    every process. Every batch writes a folder, so that the next one is found by name, without listing folders again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._batches = 0
        self._files: list[str] = []
        self._ends: list[int] = []
        self._written: list[float] = []
        self._batch: list[int] = []
        self._forgotten = 0

    def refresh(self) -> int:
        """Register newly written files; returns the number of records written so far."""
        while (batch := self._folder / f"batch={self._batches}").is_dir():
            written = batch.stat().st_mtime
            for file in sorted(batch.glob("[!._]*.parquet")):
                if rows := pq.read_metadata(file).num_rows:
                    self._ends.append(self.total + rows)
                    self._files.append(str(file))
                    self._written.append(written)
                    self._batch.append(self._batches)
            self._batches += 1
        return self.total

    @property
    def total(self) -> int:
        """Records written up to the last `refresh`."""
        return self._ends[-1] if self._ends else self._forgotten

    def forget(self, upto: int) -> None:
        """Drop the files whose records all come before number `upto`."""
        gone = bisect_right(self._ends, upto)
        if gone:
            self._forgotten = self._ends[gone - 1]
            del self._ends[:gone], self._files[:gone], self._written[:gone], self._batch[:gone]

    def written(self, number: int) -> float:
        """Epoch seconds at which record `number` was written; NaN if not written yet, or forgotten."""
        at = bisect_right(self._ends, number)
        return self._written[at] if self._forgotten <= number and at < len(self._written) else float("nan")

    def wrote(self, first: int, last: int) -> list[tuple[int, float, int]]:
        """Records `first` to `last` (exclusive), as far as known: (batch that wrote them, when, how many) by file."""
        found = []
        first = max(first, self._forgotten)
        at = bisect_right(self._ends, first)
        while first < last and at < len(self._ends):
            upto = min(last, self._ends[at])
            found.append((self._batch[at], self._written[at], upto - first))
            first, at = upto, at + 1
        return found

    def by(self, time: float) -> int:
        """Records written by `time`, epoch seconds, forgotten ones included."""
        at = bisect_right(self._written, time)
        return self._ends[at - 1] if at else self._forgotten

    def pieces(self, first: int, last: int) -> tuple[FilePiece, ...]:
        """Records `first` to `last` (exclusive) by file; they must be written and not forgotten."""
        found = []
        at = bisect_right(self._ends, first)
        while first < last:
            begins = self._ends[at - 1] if at else self._forgotten
            upto = min(last, self._ends[at])
            found.append(FilePiece(self._files[at], first - begins, upto - first))
            first, at = upto, at + 1
        return tuple(found)


def edge_name(edge: Edge) -> str:
    """Name of an edge in offsets and control folders."""
    return f"{edge.source}-{edge.target}"


def open_edge(
    spark: SparkSession,
    name: str,
    schema: StructType,
    *,
    channel: Channel,
    partitions: int,
    rows_each: int,
    batch_seconds: float,
    checkpoint: Path,
) -> DataFrame:
    """Open the stream of records on `channel`, with an additional last column `_composition bigint`.

    partitions: tasks per batch, unless wanted.json in the control folder sets another number; at most one per `rows_each`
    records. batch_seconds: target duration of a batch, which limits its size. checkpoint: that of the reading query, whose
    commit log has the commit time of each batch.
    """
    channel.records.mkdir(parents=True, exist_ok=True)
    spark.dataSource.register(EdgeSource)
    return (
        spark.readStream.format(FORMAT)
        .schema(StructType([*schema.fields]).add(COLUMN, LongType()))
        .options(
            name=name,
            records=str(channel.records.resolve()),
            control=str(channel.control.resolve()),
            partitions=partitions,
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
            options["name"],
            Channel(Path(options["records"]), Path(options["control"])),
            int(options["partitions"]),
            int(options["rows_each"]),
            float(options["batch_seconds"]),
            to_arrow_schema(schema, timezone="UTC"),
            Path(options["commits"]),
        )


class EdgeReader(RangeReader):
    """An offset has `edge`, the edge's name, because a query may read several, and `n`, records taken so far."""

    def __init__(
        self,
        name: str,
        channel: Channel,
        partitions: int,
        rows_each: int,
        batch_seconds: float,
        schema: pa.Schema,
        commits: Path,
    ) -> None:
        super().__init__(channel.control, partitions, batch_seconds, schema, commits)
        self._name, self._rows_each, self._log = name, rows_each, EdgeLog(channel.records)

    def initialOffset(self) -> dict[str, Any]:
        """The offset before the first record."""
        return self._offset(edge=self._name, n=0)

    def latestOffset(self, start: dict[str, Any], limit: object = None) -> dict[str, Any]:
        """The written records, up to the governor's limit; `start`, which means no batch, if there are none."""
        now = time.time()
        self._pacing.settle(now)
        taken = int(start["n"])
        upto = min(self._log.refresh(), taken + self._pacing.allowance)
        if upto <= taken:
            return dict(start)
        self._pacing.begin(upto - taken, now)
        return self._offset(edge=self._name, n=upto)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[EdgeSlice]:
        """Contiguous shares of the batch, as even as possible, none of them empty."""
        first, last = int(start["n"]), int(end["n"])
        if self._log.total < last:  # after a restart, Spark replays a batch before it requests the latest offset
            self._log.refresh()
        width = max(1, min(int(end["partitions"]), -(-(last - first) // self._rows_each)))
        return [EdgeSlice(self._log.pieces(a, b), int(end["code"])) for a, b in shares(first, last, width) if b > a]

    def read(self, partition: EdgeSlice) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Arrow batches of a slice, stamped with its code."""
        freeze_imports()
        for piece in partition.pieces:
            # Read as a single file: as a dataset, the folder's `batch=N` would become a column.
            table = pq.ParquetFile(piece.path).read().slice(piece.first, piece.rows)
            stamped = table.append_column(COLUMN, pa.array(np.full(piece.rows, partition.code)))
            for batch in stamped.to_batches(max_chunksize=ROWS):
                yield conformed(batch, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Forget the records before `end`: Spark does not request them again."""
        self._log.forget(int(end["n"]))
