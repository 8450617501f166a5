"""Folds the records of a diagnostic branch into a signal's value inside the walk.

Each task folds its own records, in any order. `spark.telemetry.signals` combines the parts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from elastream.dataflow.endpoints import Fold
from elastream.dataflow.signals import SignalValue
from elastream.spark.worker.runner import OperatorError

# Number of folded values and their result: the sum for `sum` and `mean`, 1 or 0 for `any` and `all`.
Part: TypeAlias = tuple[int, float]
# One task's report of one signal: segment, batch, signal, task number, and its part.
SignalRow: TypeAlias = tuple[str, int, str, int, int, float]


@dataclass(frozen=True, slots=True)
class SignalTap:
    """The end of a diagnostic branch, whose records become a signal's value."""

    name: str
    fold: Fold
    column: str = ""


class Folding:
    def __init__(self, tap: SignalTap) -> None:
        self.tap, self.count, self.value = tap, 0, 0.0

    @property
    def part(self) -> Part:
        return self.count, self.value

    def add(self, batch: pa.RecordBatch) -> None:
        """Fold the records of `batch`, without nulls and NaN. Raises OperatorError for other types."""
        if self.tap.fold is Fold.COUNT:
            self.count += batch.num_rows
            return
        if len(column := self._values(batch)):
            value = float(_OF_COLUMN[self.tap.fold](column).as_py())
            self.count, self.value = _both(self.tap.fold, self.part, (len(column), value))

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        column = batch.column(self.tap.column).drop_null()
        try:
            if self.tap.fold in (Fold.ANY, Fold.ALL):
                return column.cast(pa.bool_())
            column = column.cast(pa.float64(), safe=False)
        except pa.ArrowException as error:
            name = f"signal({self.tap.name})"
            raise OperatorError(name, name, error, batch.slice(0, 1).to_pylist()[0], batch.num_rows) from error
        return column.filter(pc.invert(pc.is_nan(column)))


_OF_COLUMN = {Fold.SUM: pc.sum, Fold.MEAN: pc.sum, Fold.MIN: pc.min, Fold.MAX: pc.max, Fold.ANY: pc.any, Fold.ALL: pc.all}


def folded(fold: Fold, parts: Iterable[Part]) -> SignalValue | None:
    """Return the value of all parts together; None if nothing was folded."""
    whole: Part = (0, 0.0)
    for part in parts:
        whole = _both(fold, whole, part)
    count, value = whole
    if not count:
        return None
    match fold:
        case Fold.COUNT:
            return float(count)
        case Fold.MEAN:
            return value / count
        case Fold.ANY | Fold.ALL:
            return bool(value)
    return value


def _both(fold: Fold, one: Part, other: Part) -> Part:
    if not one[0] or not other[0]:
        return one if one[0] else other
    match fold:
        case Fold.MIN | Fold.ALL:
            value = min(one[1], other[1])
        case Fold.MAX | Fold.ANY:
            value = max(one[1], other[1])
        case _:
            value = one[1] + other[1]
    return one[0] + other[0], value
