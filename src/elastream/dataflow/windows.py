"""Ends of windows and of key state in keyed operators, as plain values for both plants.

A window holds records of one key (thesis, 2.1, P3; landmarks: p. 24). `join` and `group_by` need windows (p. 42).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from elastream.errors import DataflowError

# Each window of a record is a row or copy of its own.
MAX_OVERLAPPING_WINDOWS = 1_000
# Suffix of a joined column that both sides have.
RIGHT = "_right"

T = TypeVar("T")


class WindowKind(StrEnum):
    """Event that completes a window."""

    # The watermark passes its end. Native on Spark.
    TIME = "time"
    # It holds a number of records of its key. On Spark a stateful function stores them until then.
    COUNT = "count"
    # A record marks its end. On Spark a stateful function stores the records until then.
    LANDMARK = "landmark"


@dataclass(frozen=True, slots=True)
class Window:
    """Windows of a keyed operator, each of one key.

    A window is emitted once, when complete. Replays complete the same windows.

    Exactly one of `seconds`, `count` and `landmark` is set.

    Attributes:
        seconds: Length of a time window. Windows are half open and start at multiples of `every` since 1970-01-01 UTC. A
            window is complete when the watermark reaches its end: the newest `by` of *earlier* micro-batches, less `late`;
            of a join, the older of both inputs. Records of complete windows are dropped and counted.
        count: Records of a key in a count window. The k-th window holds records k * every to k * every + count - 1, in
            order of arrival, and is complete with its last record.
        landmark: Boolean column. A record where it is true is the last of its key's window; null counts as false.
        every: Distance between the starts of windows, in seconds or records, at most the length. None: no overlap.
        by: Timestamp column of a time window. For other windows, the column that orders a key's records within a
            micro-batch; empty: order of arrival.
        late: Time by which records of a time window may be late (seconds).

    Raises:
        DataflowError: The attributes contradict each other.
    """

    seconds: float | None = None
    count: int | None = None
    landmark: str | None = None
    every: float | None = None
    by: str = ""
    late: float = 0.0

    def __post_init__(self) -> None:
        lengths = [name for name in ("seconds", "count", "landmark") if getattr(self, name) is not None]
        if len(lengths) != 1:
            _fail(f"a window is of seconds, count or landmark, exactly one (it has {' and '.join(lengths) or 'none'})")
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
        if self.every is not None and length > MAX_OVERLAPPING_WINDOWS * self.every:
            _fail(
                f"windows of {length:g} {unit} every {self.every:g} would hold each record more than "
                f"{MAX_OVERLAPPING_WINDOWS:,} times: begin one less often"
            )

    @property
    def kind(self) -> WindowKind:
        if self.seconds is not None:
            return WindowKind.TIME
        return WindowKind.COUNT if self.count is not None else WindowKind.LANDMARK

    @property
    def step(self) -> float:
        """Distance between the starts of windows, in seconds or records; 0 for landmarks."""
        return self.every or self.seconds or self.count or 0.0


@dataclass(frozen=True, slots=True)
class Timeout:
    """End of a key's state some time after the key's last record.

    Replays end the same keys. A key with records in a batch does not end in that batch. When a key of a count or landmark
    window ends, its incomplete window is emitted and `function` is not used.

    Attributes:
        seconds: Time after the key's last record: on the cluster's clock, between starts of micro-batches; or with `by`,
            until the watermark passes the key's newest value plus `seconds`.
        by: Timestamp column that measures the time. Empty: the cluster's clock.
        late: Time by which records may be late (seconds).
        function: `(key, state) -> rows`, called once as the state ends; None emits nothing. `state` is that of the active
            alternate, or None. All states of the key end, also those of other alternates.

    Raises:
        DataflowError: A time is out of range.
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
    """Default function of a join: all pairs of a left and a right record.

    Columns of the key come first, then the left's others, then the right's. A right column that the left also has is
    suffixed with `_right`.
    """

    on: tuple[str, ...]

    def __call__(self, key: tuple[Any, ...], left: Any, right: Any) -> Any:
        names = list(self.on)
        pairs = left.merge(right.drop(columns=names), how="cross", suffixes=("", RIGHT))
        return pairs[names + [name for name in pairs.columns if name not in self.on]]

    def columns(self, left: Mapping[str, T], right: Mapping[str, T]) -> dict[str, T]:
        """Return the property of each column of a pair from those of the left and right columns."""
        joined = {name: left[name] for name in (*self.on, *left)}
        for name in right:
            if name in self.on:
                continue
            label = name + RIGHT if name in left else name
            if label in joined:
                _fail(f"both sides of the join have a column {label!r}: rename one before it, with select or map")
            joined[label] = right[name]
        return joined


def _fail(sentence: str) -> NoReturn:
    raise DataflowError(sentence)
