"""When a keyed operator is done with a group of records: the end of a window, and the end of a key's state.

Plain values that both plants read. A window holds records of one key (thesis, 2.1, P3 and the landmarks of p. 24); `join`
and `group_by` are defined on windows only (p. 42).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Pairs", "Timeout", "Window", "WindowKind"]


class WindowKind(StrEnum):
    """What ends a window."""

    TIME = "time"
    """The watermark passes its end; on Spark, native."""
    COUNT = "count"
    """It holds so many records of its key; on Spark, a function with state that keeps them until then."""
    LANDMARK = "landmark"
    """A record says so; on Spark, a function with state that keeps the records until then."""


@dataclass(frozen=True, slots=True)
class Window:
    """The windows of a keyed operator; exactly one of seconds, count and landmark is given. Raises DataflowError.

    A window belongs to one key and is emitted **once**, when it is complete, and never changed afterwards.

    seconds: length of a time window. Windows are half open, [start, start + seconds), and aligned to whole multiples of
        `every` since 1970-01-01 UTC. A record is in those that hold the value of its column `by`. A window is complete when
        the watermark reaches its end: the newest value of `by` that any record of the query's input had in an *earlier*
        micro-batch, less `late` seconds. A record that comes when its windows are complete is dropped and counted.
    count: records of the key in a count window. Windows start `every` records apart; the k-th (from 0) holds the records
        k * every to k * every + count - 1 of its key, in the order of arrival, and is complete with its last record.
    landmark: a column of type boolean. A record where it is true ends the window of *its own key*, and is its last record;
        null counts as false.
    every: distance between the starts of windows, in seconds or records; None: they follow each other without overlap. At
        most the length: records between windows would be in none.
    by: for a time window the column of type timestamp that it goes by. For count and landmark windows the column that
        orders the records of a key within one micro-batch, ties by the other columns; empty: order of arrival, which a
        replay of the batch keeps where records come from one task only (`sequential`).
    late: seconds by which records of a time window may come late.

    A replayed batch ends the same windows: what they hold is Spark's state, which is that after the batch before.
    """

    seconds: float | None = None
    count: int | None = None
    landmark: str | None = None
    every: float | None = None
    by: str = ""
    late: float = 0.0

    @property
    def kind(self) -> WindowKind:
        """What ends it."""
        if self.seconds is not None:
            return WindowKind.TIME
        return WindowKind.COUNT if self.count is not None else WindowKind.LANDMARK

    @property
    def step(self) -> float:
        """Distance between the starts of windows, in seconds or records; 0 for landmark windows."""
        return self.every or self.seconds or self.count or 0.0


@dataclass(frozen=True, slots=True)
class Timeout:
    """When the state of a key ends. It is set anew in each batch that has records of the key.

    seconds: how long after the key's last record. Without `by` that is time on the clock of the cluster, between the
        starts of micro-batches; with it, time in that column: it is over when the watermark (the newest value of `by` in
        the batches before, less `late` seconds) passes the newest value that the key had, plus `seconds`.
    function: `(key, state) -> rows`, called once as the state ends; its rows are emitted. None: nothing is. state: the
        tuple as the operator's function left it; with states of their own, that of the alternate that is active in the
        batch (None where it has none). All states of the key are gone afterwards, also those of the other alternates.

    For count and landmark windows: what a key's incomplete window holds is emitted as if it were complete; `function` is
    not used. A key with records in a batch does not end in it. The rows belong to that batch: a replay ends the same keys.
    """

    seconds: float
    by: str = ""
    late: float = 0.0
    function: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class Pairs:
    """The function of a join that has no other: all pairs of a left and a right record; none where one side has none."""

    on: tuple[str, ...]

    def __call__(self, key: tuple[Any, ...], left: Any, right: Any) -> Any:
        """The pairs of one key and window, from pandas DataFrames: the key's columns, the left's, the right's."""
        names = list(self.on)
        pairs = left.merge(right, on=names)
        return pairs[names + [name for name in pairs.columns if name not in self.on]]
