"""Meters each operator per batch inside the Python workers, at the cost of two clock readings per call.

Spark does not see operators fused into one stage, and its time metrics of an Arrow stage include waiting. The meter is an
accumulator, updated by each finished task; `spark.telemetry` derives metrics from it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from pyspark import Accumulator, SparkContext
from pyspark.accumulators import AddingAccumulatorParam

__all__ = ["Meter", "MeterRow", "TaskRow", "merged"]

TaskRow: TypeAlias = tuple[str, int, str, int, int, int, float, float, float]
"""Counts of one task for one operator: segment, batch, operator, code, rows in, rows out, busy, first, last."""


@dataclass(frozen=True, slots=True)
class MeterRow:
    """Counts of one operator in one batch.

    code: of the composition. rows_in, rows_out: records. busy: seconds of thread time over all tasks; for a waiting
    operator, seconds that threads of its pool were occupied. first, last: epoch seconds of the first call's begin and the
    last call's end. tasks: number of tasks. A replayed batch is metered again; a failed task is not.

    The lead of a stage (a source, a durable edge's target, a keyed operator) has a row too: its records are those that
    entered the stage, its busy time includes the transport into and out of Python.
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


class Meter:
    """The meter on the driver; `sink` is the accumulator passed to the workers' functions."""

    def __init__(self, context: SparkContext) -> None:
        self.sink: Accumulator[list[TaskRow]] = context.accumulator([], AddingAccumulatorParam([]))

    def drain(self) -> list[MeterRow]:
        """Rows reported since the last call, merged by batch, operator and composition."""
        reported = self.sink.value
        # Spark's thread only extends the list, so that its head can be removed without a lock.
        rows = reported[: len(reported)]
        del reported[: len(rows)]
        return merged(rows)


def merged(rows: Iterable[TaskRow]) -> list[MeterRow]:
    """Sum the rows of tasks, in order of segment, batch and operator."""
    found: dict[tuple[str, int, str, int], MeterRow] = {}
    for segment, batch, operator, code, rows_in, rows_out, busy, first, last in rows:
        key = (segment, batch, operator, code)
        before = found.get(key) or MeterRow(*key, 0, 0, 0.0, first, last, 0)
        found[key] = MeterRow(
            *key,
            before.rows_in + rows_in,
            before.rows_out + rows_out,
            before.busy + busy,
            min(before.first, first),
            max(before.last, last),
            before.tasks + 1,
        )
    return [found[key] for key in sorted(found)]
