"""When a keyed operator is done with a group of records: the end of a window, and the end of a key's state.

Plain values that both plants read. A window holds records of one key (thesis, 2.1, P3 and the landmarks of p. 24); `join`
and `group_by` are defined on windows only (p. 42).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from elastream.errors import DataflowError

MOST_AT_ONCE = 1_000
"""Most windows that one record may be in: each is a row or a copy of its own."""
RIGHT = "_right"
"""Behind the name of a joined column that both sides have."""

T = TypeVar("T")


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
        the watermark reaches its end: the newest value of `by` that any record had in an *earlier* micro-batch, less
        `late` seconds; of a join, that of the input that is behind. A record that comes when its windows are
        complete is dropped and counted.
    count: records of the key in a count window. Windows start `every` records apart; the k-th (from 0) holds the records
        k * every to k * every + count - 1 of its key, in the order of arrival, and is complete with its last record.
    landmark: a column of type boolean. A record where it is true ends the window of *its own key*, and is its last record;
        null counts as false.
    every: distance between the starts of windows, in seconds or records; None: they follow each other without overlap. At
        most the length: records between windows would be in none.
    by: for a time window the column of type timestamp that it goes by. For count and landmark windows the column that
        orders the records of a key within one micro-batch, equal ones in the order of arrival; empty: order of arrival,
        that of the source, batch by batch, whichever task reads a record. Windows of time have them in the order of `by`.
    late: seconds by which records of a time window may come late.

    A replayed batch ends the same windows: what they hold is Spark's state, which is that after the batch before.
    """

    seconds: float | None = None
    count: int | None = None
    landmark: str | None = None
    every: float | None = None
    by: str = ""
    late: float = 0.0

    def __post_init__(self) -> None:
        given = [name for name in ("seconds", "count", "landmark") if getattr(self, name) is not None]
        if len(given) != 1:
            _fail(f"a window is of seconds, count or landmark, exactly one (it has {' and '.join(given) or 'none'})")
        self._check_length()
        if self.kind is WindowKind.TIME and not self.by:
            _fail("a window of time goes by the timestamps in a column: name it, as in by='time'")
        if self.late and self.kind is not WindowKind.TIME:
            _fail("`late` is for windows of time: those of count and landmark take records as they come")
        if not 0.0 <= self.late < math.inf:
            _fail(f"records of a window come late by {self.late:g} s: it must be 0 or more, and end")

    def _check_length(self) -> None:
        if self.landmark == "":
            _fail("a window of landmarks needs the boolean column that marks them, as in landmark='last'")
        if self.landmark is not None:
            if self.every is not None:
                _fail("`every` is for windows of time and count: those of landmarks follow each other")
            return
        length, unit = (self.count, "records") if self.seconds is None else (self.seconds, "seconds")
        for name, amount in (("window", length), ("step between windows", self.every)):
            if amount is None:
                continue
            if isinstance(amount, bool) or not 0 < amount < math.inf:
                _fail(f"a {name} of {amount} {unit} holds nothing: it must be above 0, and end")
            if unit == "records" and amount != int(amount):
                _fail(f"a {name} of {amount} records cannot be: it must be a whole number")
        assert length is not None
        if self.every is not None and self.every > length:
            _fail(f"windows of {length:g} {unit} every {self.every:g} would miss records between them")
        if self.every is not None and length > MOST_AT_ONCE * self.every:
            _fail(
                f"windows of {length:g} {unit} every {self.every:g} would hold each record more than {MOST_AT_ONCE:,} "
                "times: begin one less often"
            )

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

    def __post_init__(self) -> None:
        if not 0.0 < self.seconds < math.inf:
            _fail(f"a timeout of {self.seconds:g} s ends nothing: it must be above 0, and end")
        if not 0.0 <= self.late < math.inf:
            _fail(f"records come late by {self.late:g} s: it must be 0 or more, and end")
        if self.late and not self.by:
            _fail("`late` is for timeouts by the timestamps in a column: name it, as in by='time'")


@dataclass(frozen=True, slots=True)
class Pairs:
    """The function of a join that has no other: all pairs of a left and a right record; none where one side has none.

    on: columns of the key, which come first, then the left's others and the right's; a column of the right that the left
    has, too, gets `_right` behind its name.
    """

    on: tuple[str, ...]

    def __call__(self, key: tuple[Any, ...], left: Any, right: Any) -> Any:
        """The pairs of one key and window, from pandas DataFrames."""
        names = list(self.on)
        pairs = left.merge(right.drop(columns=names), how="cross", suffixes=("", RIGHT))
        return pairs[names + [name for name in pairs.columns if name not in self.on]]

    def columns(self, left: Mapping[str, T], right: Mapping[str, T]) -> dict[str, T]:
        """What is known of each column of a pair, in order, from that of the left and of the right records'."""
        joined = {name: left[name] for name in (*self.on, *left)}
        for name in right:
            if name in self.on:
                continue
            given = name + RIGHT if name in left else name
            if given in joined:
                _fail(f"both sides of the join have a column {given!r}: rename one before it, with select or map")
            joined[given] = right[name]
        return joined


def _fail(sentence: str) -> NoReturn:
    raise DataflowError(sentence)
