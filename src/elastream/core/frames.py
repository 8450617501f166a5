"""Columns of metrics by rows, as numpy arrays.

Unknown is NaN in a column and None in a `Reading`, never zero. Old and impossible values (`Quantity.most`) read as unknown.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

# Seconds after which a value is too old and unknown: Prometheus' default, `query.lookback-delta`.
OLD = 300.0


# Rows up to which a loop checks a column.
FEW = 16
# Largest possible value by metric.
MOST: Mapping[Metric, float] = {metric: metric.quantity.most for metric in Metric}


class Implausible(NamedTuple):
    metric: Metric
    row: str
    value: float

    def __str__(self) -> str:
        return f"{self.metric.replace('_', ' ')} of {self.row} is {self.value:g}, which is impossible: it counts as unknown"


def known_sum(values: Iterable[float]) -> float:
    """Return the sum of the known `values`; NaN if none is known."""
    known_values = [value for value in (values.tolist() if isinstance(values, np.ndarray) else values) if value == value]
    return math.fsum(known_values) if known_values else math.nan


@dataclass(frozen=True, slots=True)
class Reading:
    """One observed value: None if unknown; `age` in seconds."""

    value: float | None
    age: float = 0.0

    @property
    def known(self) -> bool:
        return self.value is not None


class Frame:
    """Rows (operators, hosts, tasks, ...) by columns (metrics). Columns are float64 of length `len(frame)`, read-only.

    A missing metric is a column of NaN: unknown. Values older than OLD are unknown. So are impossible values (infinite,
    negative, above `Quantity.most`), which `implausible` lists.

    Args:
        values: Columns by metric.
        ages: Seconds since the measurement, for the frame or by metric.
    """

    _implausible: tuple[Implausible, ...] = ()

    def __init__(
        self,
        ids: Sequence[str] = (),
        values: Mapping[Metric, ArrayLike] | None = None,
        ages: float | Mapping[Metric, float] = 0.0,
    ) -> None:
        self.ids: tuple[str, ...] = tuple(ids)
        self._enter(values, ages)

    def _enter(self, values: Mapping[Metric, ArrayLike] | None, ages: float | Mapping[Metric, float]) -> None:
        self._ages = ages
        self._columns: dict[Metric, Floats] = {}
        for metric, column in (values or {}).items():
            if self.age(metric) > OLD:
                column = np.full(len(self.ids), np.nan)
            array = np.asarray(column, dtype=np.float64)
            if array.shape != (len(self.ids),):
                raise ValueError(f"column {metric} has shape {array.shape}, the frame has {len(self.ids)} rows")
            array = self._plausible(metric, array).view()
            array.flags.writeable = False
            self._columns[metric] = array

    @property
    def implausible(self) -> tuple[Implausible, ...]:
        """Impossible values read so far as unknown, one per metric."""
        return self._implausible

    def _plausible(self, metric: Metric, column: Floats) -> Floats:
        """Return `column` with NaN for impossible values."""
        limit = MOST[metric]
        if column.size <= FEW:  # a loop over few values is faster than two reductions
            for value in column.tolist():
                if value < 0 or value > limit:
                    break
            else:
                return column
        elif not (np.fmin.reduce(column) < 0 or np.fmax.reduce(column) > limit):  # NaN where all of it is unknown
            return column
        wrong = (column < 0) | (column > MOST[metric])
        row = int(np.argmax(wrong))
        self._doubt(metric, self.ids[row], float(column[row]))
        return np.where(wrong, np.nan, column)

    def _doubt(self, metric: Metric, row: str, value: float) -> None:
        if metric not in (each.metric for each in self._implausible):
            self._implausible = (*self._implausible, Implausible(metric, self._called(row), value))

    def _called(self, row: str) -> str:
        return row

    @cached_property
    def rows(self) -> Mapping[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return tuple(self._columns)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    def column(self, metric: Metric) -> Floats:
        """Return all values of `metric`, NaN if unknown; shape (rows,)."""
        column = self._columns.get(metric)
        return column if column is not None else np.full(len(self.ids), np.nan)

    def age(self, metric: Metric) -> float:
        """Return the seconds since `metric` was measured."""
        return self._ages if isinstance(self._ages, (int, float)) else self._ages.get(metric, 0.0)

    def reading(self, name: str, metric: Metric) -> Reading:
        """Return one value; unknown if row or metric is missing."""
        row = self.rows.get(name)
        column = self._columns.get(metric)
        if row is None or column is None or np.isnan(column[row]):
            return Reading(None, self.age(metric))
        return Reading(float(column[row]), self.age(metric))

    def value(self, name: str, metric: Metric) -> float:
        """Return one value, NaN if unknown."""
        row = self.rows.get(name)
        column = self._columns.get(metric)
        return math.nan if row is None or column is None else float(column[row])


class TableFrame(Frame):
    """A frame over an existing table without conversion or copies, so that long histories cost little.

    Args:
        at: Row of the table by metric.
        table: float64, shape (metrics, rows); it becomes read-only.
    """

    def __init__(
        self, rows: Mapping[str, int], at: Mapping[Metric, int], table: Floats, ages: float | Mapping[Metric, float] = 0.0
    ) -> None:
        self.ids = tuple(rows)
        self.rows = rows
        self._ages = ages
        self._at = (
            at if isinstance(ages, (int, float)) and ages <= OLD else {m: a for m, a in at.items() if self.age(m) <= OLD}
        )
        self._table = table
        table.flags.writeable = False

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return tuple(self._at)

    def column(self, metric: Metric) -> Floats:
        row = self._at.get(metric)
        if row is None:
            return np.full(len(self.ids), np.nan)
        return self._plausible(metric, self._table[row])

    def reading(self, name: str, metric: Metric) -> Reading:
        value = self.value(name, metric)
        return Reading(None if math.isnan(value) else value, self.age(metric))

    def value(self, name: str, metric: Metric) -> float:
        row, at = self.rows.get(name), self._at.get(metric)
        if row is None or at is None:
            return math.nan
        value = float(self._table[at, row])
        if value < 0 or value > MOST[metric]:
            self._doubt(metric, name, value)
            return math.nan
        return value


def application_frame(name: str, values: Mapping[Metric, float], ages: float | Mapping[Metric, float] = 0.0) -> Frame:
    table = np.array([*values.values()], dtype=np.float64).reshape(-1, 1)
    return TableFrame({name: 0}, {metric: row for row, metric in enumerate(values)}, table, ages)


class TaskFrame(Frame):
    """Tasks: metrics, and the rows of each task's operator and host (-1 without a host).

    `operator` and `host` are int64 arrays of shape (tasks,), rows of `Observation.operators` and `.hosts`. `index`
    numbers the tasks of an operator. Ids are built on demand.
    """

    def __init__(
        self,
        operator: ArrayLike = (),
        index: ArrayLike = (),
        host: ArrayLike = (),
        operators: Sequence[str] = (),
        values: Mapping[Metric, ArrayLike] | None = None,
        ages: float | Mapping[Metric, float] = 0.0,
    ) -> None:
        self.operator: Integers = np.asarray(operator, dtype=np.int64)
        self.index: Integers = np.asarray(index, dtype=np.int64)
        self.host: Integers = np.asarray(host, dtype=np.int64)
        self._operators = tuple(operators)
        self._rows_of: dict[int, Integers] = {}
        super().__init__(range(len(self.operator)), values, ages)  # type: ignore[arg-type]

    def measured(self, values: Mapping[Metric, ArrayLike], ages: float | Mapping[Metric, float] = 0.0) -> "TaskFrame":
        other = object.__new__(TaskFrame)
        vars(other).update(vars(self), _implausible=())
        other._enter(values, ages)
        return other

    def rows_of(self, operator: int) -> Integers:
        rows = self._rows_of.get(operator)
        if rows is None:
            rows = self._rows_of[operator] = np.flatnonzero(self.operator == operator)
        return rows

    @cached_property
    def per_host(self) -> Integers:
        """Number of tasks by row of a host, up to the last host with a task."""
        return np.bincount(self.host[self.host >= 0])

    @cached_property
    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(
            TaskId(self._operators[o], int(i)) for o, i in zip(self.operator.tolist(), self.index.tolist(), strict=True)
        )

    def _called(self, row: str) -> str:
        return str(self.tasks[int(row)])

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Row number by `"count#3"`."""
        return {str(task): row for row, task in enumerate(self.tasks)}


# Least seconds over which a host's CPU use is averaged: a few batches, since between two it is near nothing.
CPU_WINDOW = 3.0
# Range of batch intervals for which the use covers whole batches. Below, cut batches hardly matter within CPU_WINDOW;
# above, the figure would come too late. Neither is near a usual trigger (1, 5, 10 s), around which intervals would fall on
# both sides.
SHORTEST, LONGEST = 0.75, 7.5
MOST_BATCHES = 1 + math.ceil(CPU_WINDOW / SHORTEST)


def whole_batches(queries: Iterable[Sequence[float] | Floats], now: float) -> tuple[float, float]:
    """Return the span over which CPU use is measured: (begin, end) in seconds before `now`.

    It covers the newest whole batches that last CPU_WINDOW together, of the query with the longest ones, or CPU_WINDOW if
    no query's batches last SHORTEST to LONGEST each.

    Args:
        queries: Ends of each query's batches, oldest first, on the clock of `now`.
    """
    longest, span = 0.0, (CPU_WINDOW, 0.0)
    for every in queries:
        ends = every[-MOST_BATCHES:]
        if not len(ends) or not 0 <= now - ends[-1] <= LONGEST:
            continue
        count = next((each for each in range(2, 1 + len(ends)) if ends[-1] - ends[-each] >= CPU_WINDOW), 0)
        if not count or ends[1 - count] - ends[-count] > LONGEST:  # the others are less than CPU_WINDOW together
            continue
        length = (ends[-1] - ends[-count]) / (count - 1)
        if SHORTEST <= length <= LONGEST and length > longest:
            longest, span = float(length), (float(now - ends[-count]), float(now - ends[-1]))
    return span
