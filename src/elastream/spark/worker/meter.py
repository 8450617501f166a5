"""Meters each operator per batch inside the Python workers, at the cost of two clock readings per call.

Spark does not see operators fused into one stage, and its time metrics of an Arrow stage include waiting. The meter is an
accumulator, updated by each finished task; `spark.telemetry` derives metrics from it.
"""

import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from pyspark import Accumulator, SparkContext
from pyspark.accumulators import AddingAccumulatorParam

from elastream.spark.worker.signals import SignalRow

TaskRow: TypeAlias = tuple[str, int, str, int, int, int, float, float, float, str, int]
"""Counts of one task for one alternate of an operator: segment, batch, operator, code, rows in, rows out, busy, first,
last, the name of the alternate, empty for what leads a stage and is no function, and the task's number in its stage."""
KEPT = 4
"""Batches of a query of which what was told is kept: the one that runs, and some before."""
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class MeterRow:
    """Counts of one alternate of an operator in one batch.

    code: of the composition. rows_in, rows_out: records. busy: seconds of thread time over all tasks; for a waiting
    operator, seconds that threads of its pool were occupied. first, last: epoch seconds of the first call's begin and the
    last call's end. tasks: number of tasks. alternate: its name, empty for the lead of a stage. A task that ran again,
    because its results were lost or its batch is replayed, counts once; a failed one does not.

    The lead of a stage (a source, a durable edge's target, a keyed operator) has a row without alternate: its records are
    those that entered the stage, its busy time is the transport into and out of Python.
    """

    segment: str
    batch: int
    operator: str
    code: int
    rows_in: int
    rows_out: int
    busy: float
    first: float
    last: float
    tasks: int
    alternate: str = ""


class Meter:
    """The meter on the driver; `sink` and `signals` are the accumulators passed to the workers' functions."""

    def __init__(self, context: SparkContext) -> None:
        self.sink: Accumulator[list[TaskRow]] = context.accumulator([], AddingAccumulatorParam([]))
        self.signals: Accumulator[list[SignalRow]] = context.accumulator([], AddingAccumulatorParam([]))
        self._told: dict[tuple[str, int], list[TaskRow]] = {}

    def drain(self) -> list[MeterRow]:
        """All that was told of those batches of which tasks have reported since the last call, merged."""
        rows = _drained(self.sink)
        fresh = dict.fromkeys((row[0], row[1]) for row in rows)
        for row in rows:
            self._told.setdefault((row[0], row[1]), []).append(row)
        found = merged(row for batch in fresh for row in self._told[batch])
        newest = dict(sorted(self._told))  # a query's last batch comes last
        self._told = {key: told for key, told in self._told.items() if key[1] > newest[key[0]] - KEPT}
        return found

    def drain_signals(self) -> list[SignalRow]:
        """What tasks have told of signals since the last call."""
        return _drained(self.signals)


def _drained(sink: Accumulator[list[Row]]) -> list[Row]:
    reported = sink.value
    # Spark's thread only extends the list, so that its head can be removed without a lock.
    rows = reported[: len(reported)]
    del reported[: len(rows)]
    return rows


def cpu_seconds() -> float:
    """CPU seconds of this thread and of ended child processes, whose work counts as the operator's."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime


def merged(rows: Iterable[TaskRow]) -> list[MeterRow]:
    """Sum the rows of tasks, in order of segment, batch, operator, composition and alternate.

    Of a task that has told of the same twice, the last counts.
    """
    newest = {(*row[:4], *row[9:]): row for row in rows}
    found: dict[tuple[str, int, str, int, str], MeterRow] = {}
    for segment, batch, operator, code, rows_in, rows_out, busy, first, last, alternate, _ in newest.values():
        key = (segment, batch, operator, code, alternate)
        before = found.get(key) or MeterRow(*key[:4], 0, 0, 0.0, first, last, 0, alternate)
        found[key] = MeterRow(
            *key[:4],
            before.rows_in + rows_in,
            before.rows_out + rows_out,
            before.busy + busy,
            min(before.first, first),
            max(before.last, last),
            before.tasks + 1,
            alternate,
        )
    return [found[key] for key in sorted(found)]
