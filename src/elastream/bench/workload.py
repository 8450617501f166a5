"""Workload of a benchmark: a query over a sequence of events, and the rows that it must give."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from elastream.bench.comparison import Difference
from elastream.loads.pattern import Pattern

EVENTS = "events.pickle"  # file of the events, in the folder of a source
BEGAN = "began"  # file of the time at which a producer began
CLOSING_TIME = datetime(2100, 1, 1, tzinfo=UTC)

Kind = TypeVar("Kind", bound=str, contravariant=True)


class Numbered(Protocol[Kind]):
    """Events that are functions of their number, so that any range can be made anywhere."""

    @property
    def load(self) -> Pattern:
        """Events due over time; it has an end."""

    def schema(self, kind: Kind) -> pa.Schema:
        """Return the columns of a kind of event."""

    def reached(self, kind: Kind, count: int) -> int:
        """Return how many events of all kinds come before number `count` of `kind`, counted from 0.

        The closing row is the event behind the last.
        """

    def batches(self, kind: Kind, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Yield the events of one kind among the events `first` to `last` (exclusive)."""


@dataclass(frozen=True)
class Reading:
    """How the sources of a query read.

    Attributes:
        control: Folder of the sources' files, which tasks read too.
        checkpoint: Checkpoint of the query, whose commits date batches.
        kafka: Servers of a Kafka broker whose topics are read, if any.
    """

    control: Path
    checkpoint: Path
    tasks: int
    kafka: str = ""


def closing_row(schema: pa.Schema) -> pa.RecordBatch:
    """Return the row that follows the last event: CLOSING_TIME in columns of time, -1 or empty in others."""
    values = [
        CLOSING_TIME if pa.types.is_timestamp(t) else b"" if pa.types.is_binary(t) else "" if t == pa.string() else -1
        for t in schema.types
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array([value], t) for value, t in zip(values, schema.types, strict=True)], schema=schema
    )


class Workload(Protocol):
    """A query with its load and its answer."""

    @property
    def name(self) -> str:
        """Name in tables."""

    @property
    def load(self) -> Pattern:
        """Events due over time; it has an end."""

    @property
    def target_latency(self) -> float | None:
        """Target latency of its own (seconds), if any."""

    @property
    def mode(self) -> Literal["append", "update"]:
        """Output mode."""

    @property
    def disk(self) -> bool:
        """True if the query's state needs RocksDB."""

    @property
    def facts(self) -> tuple[str, str, str]:
        """Contents of a row, kind of state, and limits of Spark, for the page."""

    def make(self, count: int) -> Iterator[pa.RecordBatch]:
        """Make the first `count` events."""

    def check(self) -> None:
        """Raise EnvironmentProblem if the PySpark at hand lacks what the query needs."""

    def result(self, spark: SparkSession, reading: Reading) -> DataFrame:
        """Return the query's result stream."""

    def difference(self, rows: pd.DataFrame) -> Difference:
        """Compare all rows that were written, each with the batch that wrote it, with the answer."""
