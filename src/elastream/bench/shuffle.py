"""ShuffleBench's task: records are matched to consumers, and each consumer keeps a state that nobody else can read.

Task and terms are those of "ShuffleBench" (Henning, Vogel, Leichtfried, Ertl, Rabiser; ICPE 2024). Here a record has at
most one consumer, all are equally likely, and an event is about consecutive records, so that each can be checked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.group import GroupedData
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from elastream.bench.comparison import Difference, compare
from elastream.bench.sources import read_events
from elastream.bench.workload import Reading
from elastream.errors import EnvironmentProblem, InputError
from elastream.loads.pattern import Pattern

BATCH_ROWS = 16_384
COUNTERS = 3 * 8  # bytes of a state's numbers
CLASSES = 2**31  # equal parts of the consumers' range in which a record may fall


@dataclass(frozen=True)
class Records:
    """Records of `size` random bytes, each a function of the seed and its number.

    Attributes:
        size: Bytes of a record.
    """

    load: Pattern
    size: int = 1024
    seed: int = 1

    def schema(self, kind: str) -> pa.Schema:
        return pa.schema([("n", pa.int64()), ("value", pa.int64()), ("class", pa.int64()), ("payload", pa.binary())])

    def reached(self, kind: str, count: int) -> int:
        return count

    def batches(self, kind: str, first: int, last: int) -> Iterator[pa.RecordBatch]:
        for start in range(first, last, BATCH_ROWS):
            numbers = np.arange(start, min(last, start + BATCH_ROWS), dtype=np.int64)
            values = hashed(numbers, self.seed)
            words = hashed(values[:, None] + np.arange(-(-self.size // 8))[None, :], self.seed)
            payload = np.ascontiguousarray(words).view(np.uint8).reshape(len(numbers), -1)[:, : self.size]
            offsets = pa.array(np.arange(len(numbers) + 1, dtype=np.int32) * self.size)
            data = pa.py_buffer(np.ascontiguousarray(payload).tobytes())
            binary = pa.Array.from_buffers(pa.binary(), len(numbers), [None, offsets.buffers()[1], data])
            columns = [pa.array(numbers), pa.array(values), pa.array(classes(values)), binary]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema(kind))


def hashed(numbers: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return 63 random bits for each number (SplitMix64)."""
    with np.errstate(over="ignore"):
        x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x >> np.uint64(1)).astype(np.int64)


def classes(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return values % CLASSES


@dataclass(frozen=True)
class Shuffle:
    """Records that are matched to consumers with state.

    Attributes:
        selectivity: Consumers of a record, on average; at most 1.
        every: Records after which a consumer emits an event.
    """

    records: Records
    consumers: int = 1000
    selectivity: float = 0.2
    state_bytes: int = 1_000_000
    every: int = 10
    name: ClassVar[str] = "shuffle"
    target_latency: ClassVar[float | None] = None
    mode: ClassVar[Literal["append", "update"]] = "append"
    disk: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.selectivity <= 1:
            raise InputError(f"a selectivity of {self.selectivity:g}: it must lie above 0 and be at most 1")
        if self.state_each < COUNTERS:
            least = self.consumers * COUNTERS
            raise InputError(f"a state of {self.state_bytes} bytes: {self.consumers} consumers need {least} at least")

    @property
    def state_each(self) -> int:
        return self.state_bytes // self.consumers

    @property
    def load(self) -> Pattern:
        return self.records.load

    @property
    def facts(self) -> tuple[str, str, str]:
        kind = f"{self.consumers} x {self.state_each} bytes in `transformWithState` on RocksDB"
        return f"every {self.every} records of a consumer: count, sum, first and last number", kind, "-"

    def make(self, count: int) -> Iterator[pa.RecordBatch]:
        return self.records.batches("record", 0, count)

    def check(self) -> None:
        if not hasattr(GroupedData, "transformWithStateInPandas"):
            raise EnvironmentProblem(
                f"shuffle needs transformWithState, which PySpark {pyspark.__version__} lacks: use 4.0"
            )

    def result(self, spark: SparkSession, reading: Reading) -> DataFrame:
        records = read_events(spark, self.records, "record", reading)
        consumer = f"class * {self.consumers} div {self._matching}"
        matched = records.where(f"n >= 0 and class < {self._matching}").withColumn("consumer", F.expr(consumer))
        return matched.groupBy("consumer").transformWithStateInPandas(
            Consumer(self.every, self.state_each),
            "consumer long, count long, sum long, first long, last long",
            outputMode="append",
            timeMode="none",
        )

    @property
    def _matching(self) -> int:
        """Classes below which a record has a consumer."""
        return round(self.selectivity * CLASSES)

    def difference(self, rows: pd.DataFrame) -> Difference:
        numbers = np.arange(self.load.count(self.load.seconds), dtype=np.int64)
        values = hashed(numbers, self.records.seed)
        part = classes(values)
        with_consumer = part < self._matching
        frame = pd.DataFrame({"consumer": part * self.consumers // self._matching, "n": numbers, "value": values})
        frame = frame[with_consumer]
        groups = frame.groupby("consumer")
        frame["event"] = groups.cumcount() // self.every
        events = frame.groupby(["consumer", "event"]).agg(
            count=("n", "size"), sum=("value", _wrapped_sum), first=("n", "min"), last=("n", "max")
        )
        whole = events[events["count"] == self.every].reset_index()
        return compare(rows, whole.drop(columns="event"), ("consumer", "count", "sum", "first", "last"))


def _wrapped_sum(values: "pd.Series[int]") -> int:
    """Return the sum modulo 2^32."""
    return int((values.to_numpy() % 2**32).sum() % 2**32)


class Consumer(StatefulProcessor):
    """Counts a consumer's records and emits an event after each `every`; bytes of its last record fill its state."""

    def __init__(self, every: int, size: int) -> None:
        self._every, self._size = every, size

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("state", "count long, sum long, first long, data binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:
        records = pd.concat(rows).sort_values("n")
        count, total, first, data = self._state.get() or (0, 0, -1, b"")
        events = []
        for number, value in zip(records["n"].tolist(), records["value"].tolist(), strict=True):
            first = number if count == 0 else first
            count, total = count + 1, (total + value) % 2**32
            if count == self._every:
                events.append((key[0], count, total, first, number))
                count = total = 0
        data = bytes(records["payload"].iloc[-1])
        filler = (data * (1 + self._size // max(1, len(data))))[: self._size - COUNTERS]
        self._state.update((count, total, first, filler))
        yield pd.DataFrame(events, columns=["consumer", "count", "sum", "first", "last"], dtype="int64")

    def close(self) -> None:
        pass
