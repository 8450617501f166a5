"""Counts what each operator did in each batch, from inside the Python workers, at the price of two clock readings a call.

Operators fused into one stage are invisible to Spark; its own time metrics of an Arrow stage include waiting. The meter is
an accumulator whose updates come home with each finished task. What a count means for a policy is left to telemetry.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from pyspark import Accumulator, SparkContext
from pyspark.accumulators import AddingAccumulatorParam

__all__ = ["Meter", "MeterRow", "TaskRow", "merged"]

TaskRow: TypeAlias = tuple[str, int, str, int, int, int, float, float, float]
"""What one task did for one operator: segment, batch, operator, code, rows in, rows out, busy, first, last."""


@dataclass(frozen=True, slots=True)
class MeterRow:
    """What one operator did in one batch.

    segment, batch, operator: whose work. code: of the composition it ran under. rows_in, rows_out: records. busy: seconds
    of thread time over all tasks; for an operator that waits, seconds that threads of its pool were taken. first, last:
    epoch seconds of the first call's begin and the last call's end. tasks: how many took part. A batch that Spark replays
    is metered again; a task that failed is not.

    The operator that leads a stage (a source, a durable edge's target, a keyed operator) has a row too: its records are
    those that entered the stage, its busy time that of getting records into and out of Python.
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
    """Driver's end of the meter. `sink` goes into the functions that Spark ships to its workers."""

    def __init__(self, context: SparkContext) -> None:
        self.sink: Accumulator[list[TaskRow]] = context.accumulator([], AddingAccumulatorParam([]))

    def drain(self) -> list[MeterRow]:
        """What tasks have reported since the last call, merged by batch, operator and composition."""
        reported = self.sink.value
        # Spark's thread only ever extends the list, so that its head can be taken without a lock.
        rows = reported[: len(reported)]
        del reported[: len(rows)]
        return merged(rows)


def merged(rows: Iterable[TaskRow]) -> list[MeterRow]:
    """Rows of tasks added up, in order of segment, batch and operator."""
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
