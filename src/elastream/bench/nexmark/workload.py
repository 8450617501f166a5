"""Nexmark's queries as workloads of the benchmark."""

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.group import GroupedData

from elastream.bench.comparison import Difference, compare, final_rows
from elastream.bench.nexmark.answers import ANSWERS
from elastream.bench.nexmark.events import KINDS, Events, kind_of
from elastream.bench.nexmark.queries import QUERIES, Query
from elastream.bench.sources import read_events, with_watermark
from elastream.bench.workload import Reading
from elastream.errors import EnvironmentProblem, InputError
from elastream.loads.pattern import Pattern
from elastream.settings import Seconds

SIDE = pd.DataFrame({"key": range(10_000), "value": [f"value {number}" for number in range(10_000)]})
WATERMARK_S = 4  # by which the watermark follows event times
WATERMARK_DELAY = f"{WATERMARK_S} seconds"


def query_of(text: str) -> Query:
    name = text.strip()
    if name not in QUERIES:
        raise InputError(f"there is no query {name!r} (there are: q0 to q{len(QUERIES) - 1})")
    return QUERIES[name]


def queries_of(text: str) -> Mapping[Query, float | None]:
    """Return the queries that `text` names, with targets of their own (seconds), such as "q0,q5@20s".

    Raises:
        ElastreamError: There is no such query, or a target is no positive duration.
    """
    named = [each.partition("@") for each in text.split(",")]
    return {query_of(name): Seconds(positive=True).read("target", target) if at else None for name, at, target in named}


@dataclass(frozen=True)
class Nexmark:
    """A query of Nexmark over events with a load that ends, and with a target latency of its own (seconds), if any.

    Raises:
        InputError: Events may be as late as the watermark's delay.
    """

    query: Query
    events: Events
    target_latency: float | None = None

    def __post_init__(self) -> None:
        if (latest := self.events.longest_delay) >= WATERMARK_S:
            raise InputError(
                f"a disorder of {latest:g} s: events behind the watermark, which follows by {WATERMARK_S} s, have no answer"
            )

    @property
    def name(self) -> str:
        return self.query.name

    @property
    def load(self) -> Pattern:
        return self.events.load

    @property
    def mode(self) -> Literal["append", "update"]:
        return self.query.mode

    @property
    def disk(self) -> bool:
        return self.query.python_state

    @property
    def facts(self) -> tuple[str, str, str]:
        return self.query.title, self.query.state, self.query.limits or "-"

    def make(self, count: int) -> Iterator[pa.RecordBatch]:
        for kind in KINDS:
            yield from Events(self.events.seed).batches(kind, 0, count)

    def check(self, grouped: type = GroupedData, functions: Any = F) -> None:
        if self.query.python_state and not hasattr(grouped, "transformWithStateInPandas"):
            raise self._unsupported("transformWithState", "4.0")
        if self.name == "q19" and "k" not in inspect.signature(functions.min_by).parameters:
            raise self._unsupported("min_by(..., k)", "4.2")

    def _unsupported(self, what: str, since: str) -> EnvironmentProblem:
        has = f"{self.name} needs {what}, which PySpark {pyspark.__version__} lacks"
        return EnvironmentProblem(f"{has}: use {since} or later, or leave the query out")

    def result(self, spark: SparkSession, reading: Reading) -> DataFrame:
        streams = [
            with_watermark(read_events(spark, self.events, kind_of(stream), reading), "date_time", WATERMARK_DELAY)
            for stream in self.query.streams
        ]
        varied: dict[str, Any] = {"side": spark.createDataFrame(SIDE)} if self.name == "q13" else {}
        if self.name in ("q4", "q6", "q9"):
            varied["longest"] = f"{math.ceil(self.events.longest_auction)} seconds"
        return self.query.build(*streams, **varied)

    def difference(self, rows: pd.DataFrame) -> Difference:
        total = self.load.count(self.load.seconds)
        inputs = [self.events.table(kind_of(stream), 0, total).to_pandas() for stream in self.query.streams]
        answer = ANSWERS[self.name](*inputs, **({"side": SIDE} if self.name == "q13" else {}))
        final = final_rows(rows, self.query.key, self.query.updates)
        if self.name == "q12" and len(final):  # the window of a bid depends on when it was read
            final = final.groupby("bidder")["bid_count"].sum().reset_index()
        return compare(final, answer)
