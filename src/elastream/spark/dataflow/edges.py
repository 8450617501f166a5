"""A durable edge as a source of our own: what the query upstream has written, taken range by range by the query behind it.

Spark's own file source takes all files there are into one batch, in as many tasks as the cluster has cores: no queue to
see, nothing to scale. Here records are numbered as they were written, so that a batch is a range of them, what is left is
the edge's backlog, and the offset carries composition and parallelism as that of a shaped load does (see `sources`).
"""

import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructType

from elastream.model.graph import Edge
from elastream.spark.dataflow.pacing import Pacing, shares
from elastream.spark.worker.composition import COLUMN, Wanted, read_wanted, wanted_file
from elastream.spark.worker.records import conformed
from elastream.spark.worker.setup import settle_in

__all__ = ["Channel", "EdgeLog", "EdgeOffset", "EdgeReader", "EdgeSource", "FilePiece", "edge_name", "open_edge"]

FORMAT = "elastream_edge"
ROWS = 10_000
"""Records an Arrow batch, at most."""


class EdgeOffset(TypedDict):
    """How far an edge has been taken, and what the batch that ends here runs under.

    edge: its name, `"source-target"`, for a query may read several. n: records taken so far.
    """

    edge: str
    n: int
    version: int
    code: int
    partitions: int


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Records `first` to `first + rows` (exclusive) of the file at `path`."""

    path: str
    first: int
    rows: int


@dataclass(frozen=True)
class EdgeSlice(InputPartition):
    """What one task reads, to be stamped with `code`."""

    pieces: tuple[FilePiece, ...]
    code: int


@dataclass(frozen=True, slots=True)
class Channel:
    """Folders of an edge: what travels over it, and what is wanted of the batches that take it."""

    records: Path
    control: Path


class EdgeLog:
    """The files of an edge in the order of their records: batch by batch, in a batch by file name.

    A batch's folder appears whole (`sinks.write_batch`) and never changes, so a record's number is the same for whoever
    looks. Every batch leaves a folder, so the next one is looked for by name and nothing is ever listed twice.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._batches = 0
        self._files: list[str] = []
        self._ends: list[int] = []
        self._written: list[float] = []
        self._forgotten = 0

    def refresh(self) -> int:
        """Records written so far."""
        while (batch := self._folder / f"batch={self._batches}").is_dir():
            written = batch.stat().st_mtime
            for file in sorted(batch.glob("[!._]*.parquet")):
                if rows := pq.read_metadata(file).num_rows:
                    self._ends.append(self.total + rows)
                    self._files.append(str(file))
                    self._written.append(written)
            self._batches += 1
        return self.total

    @property
    def total(self) -> int:
        """Records written, as of the last `refresh`."""
        return self._ends[-1] if self._ends else self._forgotten

    def forget(self, upto: int) -> None:
        """Drop what is known of files whose records all come before number `upto`."""
        gone = bisect_right(self._ends, upto)
        if gone:
            self._forgotten = self._ends[gone - 1]
            del self._ends[:gone], self._files[:gone], self._written[:gone]

    def written(self, number: int) -> float:
        """Epoch second at which record `number` was written; NaN for one not written yet, or forgotten."""
        at = bisect_right(self._ends, number)
        return self._written[at] if self._forgotten <= number and at < len(self._written) else float("nan")

    def by(self, time: float) -> int:
        """Records written by epoch second `time`, forgotten ones included."""
        at = bisect_right(self._written, time)
        return self._ends[at - 1] if at else self._forgotten

    def pieces(self, first: int, last: int) -> tuple[FilePiece, ...]:
        """Records `first` to `last` (exclusive), which must have been written and not forgotten, file by file."""
        found = []
        at = bisect_right(self._ends, first)
        while first < last:
            begins = self._ends[at - 1] if at else self._forgotten
            upto = min(last, self._ends[at])
            found.append(FilePiece(self._files[at], first - begins, upto - first))
            first, at = upto, at + 1
        return tuple(found)


def edge_name(edge: Edge) -> str:
    """What an edge is called in offsets and control folders."""
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
    """The stream of records on `channel`, batch by batch, with a column `_composition bigint` behind their own.

    partitions: tasks a batch, where wanted.json in the control folder does not say otherwise, but no more than one for each
    `rows_each` records. batch_seconds: what a batch should last at most; what it leaves behind is the edge's backlog.
    checkpoint: that of the query that reads, whose log tells when each batch was committed.
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
    """A durable edge; options as the arguments of `open_edge`, and `commits`, the commit log."""

    @classmethod
    def name(cls) -> str:
        """What `spark.readStream.format` calls it."""
        return FORMAT

    def streamReader(self, schema: StructType) -> "EdgeReader":
        """A reader in the driver's or a worker's Python process."""
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


class EdgeReader(DataSourceStreamReader):
    """Plans batches in a process of its own beside the driver, and reads slices of them in the workers."""

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
        self._name, self._control, self._rows_each, self._schema = name, channel.control, rows_each, schema
        self._default = Wanted(version=0, code=0, partitions=partitions)
        self._log = EdgeLog(channel.records)
        self._pacing = Pacing(batch_seconds, commits)

    def initialOffset(self) -> dict[str, Any]:
        """Nothing taken."""
        return dict(self._offset(0))

    def latestOffset(self, start: dict[str, Any], limit: object = None) -> dict[str, Any]:
        """All that is written, as far as the governor allows; `start` itself, which means no batch, where nothing is."""
        now = time.time()
        self._pacing.settle(now)
        taken = int(start["n"])
        upto = min(self._log.refresh(), taken + self._pacing.allowance)
        if upto <= taken:
            return dict(start)
        self._pacing.begin(upto - taken, now)
        return dict(self._offset(upto))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[EdgeSlice]:
        """Contiguous shares of the batch, as even as can be, none of them empty."""
        first, last = int(start["n"]), int(end["n"])
        if self._log.total < last:  # a batch that is replayed after a restart is asked for before anything else
            self._log.refresh()
        width = max(1, min(int(end["partitions"]), -(-(last - first) // self._rows_each)))
        return [EdgeSlice(self._log.pieces(a, b), int(end["code"])) for a, b in shares(first, last, width) if b > a]

    def read(self, partition: EdgeSlice) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Arrow batches of a slice, stamped."""
        settle_in()
        for piece in partition.pieces:
            # As a file on its own: as a dataset, the folder's `batch=N` would become a column.
            table = pq.ParquetFile(piece.path).read().slice(piece.first, piece.rows)
            stamped = table.append_column(COLUMN, pa.array(np.full(piece.rows, partition.code)))
            for batch in stamped.to_batches(max_chunksize=ROWS):
                yield conformed(batch, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing before `end` is asked for again."""
        self._log.forget(int(end["n"]))

    def _offset(self, n: int) -> EdgeOffset:
        wanted = read_wanted(wanted_file(self._control), self._default)
        return EdgeOffset(edge=self._name, n=n, version=wanted.version, code=wanted.code, partitions=wanted.partitions)
