"""Meters each operator by batch inside the Python workers, at two clock readings a call."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from pyspark import Accumulator, SparkContext
from pyspark.accumulators import AddingAccumulatorParam

from elastream.spark.worker.records import Chunk
from elastream.spark.worker.runner import Runner
from elastream.spark.worker.signals import SignalRow

# One task's counts for one alternate: segment, batch, operator, code, rows in, rows out, busy, first, last, alternate's
# name (empty for the lead of a stage), task number.
TaskRow: TypeAlias = tuple[str, int, str, int, int, int, float, float, float, str, int]
# Batches of a query whose task rows are merged with later reports: the running one and some before.
MERGED_BATCHES = 4
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class MeterRow:
    """Counts of one alternate of an operator in one batch. A replayed task counts once.

    The lead of a stage has a row without alternate: records that entered, and their transfer time.
    """

    segment: str
    batch: int
    operator: str
    code: int
    rows_in: int
    rows_out: int
    busy: float  # thread time, or occupied time of a pool's threads (seconds)
    first: float  # start of the first call (epoch seconds)
    last: float  # end of the last call (epoch seconds)
    tasks: int  # number of tasks
    alternate: str = ""


class Meter:
    """The meter on the driver, with the accumulators that workers add to."""

    def __init__(self, context: SparkContext) -> None:
        self.sink: Accumulator[list[TaskRow]] = context.accumulator([], AddingAccumulatorParam([]))
        self.signals: Accumulator[list[SignalRow]] = context.accumulator([], AddingAccumulatorParam([]))
        self._reported: dict[tuple[str, int], list[TaskRow]] = {}

    def drain(self) -> list[MeterRow]:
        """Return the merged rows of all batches with reports since the last call."""
        rows = _drained(self.sink)
        fresh = dict.fromkeys((row[0], row[1]) for row in rows)
        for row in rows:
            self._reported.setdefault((row[0], row[1]), []).append(row)
        counts = merged(row for batch in fresh for row in self._reported[batch])
        newest = dict(sorted(self._reported))  # a query's last batch comes last
        self._reported = {
            key: task_rows for key, task_rows in self._reported.items() if key[1] > newest[key[0]] - MERGED_BATCHES
        }
        return counts

    def drain_signals(self) -> list[SignalRow]:
        """Return the signals' rows reported since the last call."""
        return _drained(self.signals)


def _drained(sink: Accumulator[list[Row]]) -> list[Row]:
    reported = sink.value
    # Spark's thread only extends the list, so that its head can be removed without a lock.
    rows = reported[: len(reported)]
    del reported[: len(rows)]
    return rows


def cpu_seconds() -> float:
    """Return the CPU time of this thread and of ended child processes (seconds)."""
    import resource  # not at the top: Windows, where nothing runs, has none

    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime


def merged(rows: Iterable[TaskRow]) -> list[MeterRow]:
    """Sum the rows of tasks by segment, batch, operator, code and alternate. A task's last row counts."""
    newest = {(*row[:4], *row[9:]): row for row in rows}
    counts: dict[tuple[str, int, str, int, str], MeterRow] = {}
    for segment, batch, operator, code, rows_in, rows_out, busy, first, last, alternate, _ in newest.values():
        key = (segment, batch, operator, code, alternate)
        before = counts.get(key) or MeterRow(*key[:4], 0, 0, 0.0, first, last, 0, alternate)
        numbers = before.rows_in + rows_in, before.rows_out + rows_out
        times = before.busy + busy, min(before.first, first), max(before.last, last)
        counts[key] = MeterRow(*key[:4], *numbers, *times, before.tasks + 1, alternate)
    return [counts[key] for key in sorted(counts)]


@dataclass(slots=True)
class MeteredRunner:
    """A runner with its counts in one task under one composition."""

    runner: Runner
    rows_in: int = 0
    rows_out: int = 0
    busy: float = 0.0
    first: float = field(default_factory=time.time)
    last: float = field(default_factory=time.time)

    def __call__(self, chunk: Chunk) -> Chunk:
        begun, started = time.time(), cpu_seconds()
        result = self.runner(chunk)
        self.count(begun, cpu_seconds() - started, chunk.rows, result.rows)
        return result

    def count(self, begun: float, busy: float, rows_in: int, rows_out: int) -> None:
        """Count a call that started at `begun` (epoch seconds) and ends now."""
        if not self.rows_in:
            self.first = begun
        self.busy += busy
        self.last = time.time()
        self.rows_in += rows_in
        self.rows_out += rows_out
