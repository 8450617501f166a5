"""Functions on windows as Spark calls them: state, time-outs and counts, without Spark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from elastream.dataflow.operators import Form, OnError
from elastream.dataflow.windows import Timeout, Window
from elastream.spark.worker.exits import ORDER
from elastream.spark.worker.runner import Implementation
from elastream.spark.worker.stateful import MOMENT, WATCHED, AlternateDigits, KeyedOperator, state_function
from elastream.spark.worker.walk import WorkerPaths
from elastream.spark.worker.windows import Grouping

COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64())])


@dataclass
class State:
    """A key's state, as Spark gives it to a function. ends: the milliseconds that its time-out was set to."""

    getOption: tuple[Any, ...] | None = None
    hasTimedOut: bool = False
    watermark: int = 0
    ends: int | None = None
    oldTimeoutTimestamp: int = -1

    @property
    def exists(self) -> bool:
        return self.getOption is not None

    def update(self, value: tuple[Any, ...]) -> None:
        self.getOption = value

    def remove(self) -> None:
        self.getOption = None

    def getCurrentWatermarkMs(self) -> int:
        return self.watermark

    def setTimeoutDuration(self, milliseconds: int) -> None:
        self.ends = milliseconds

    setTimeoutTimestamp = setTimeoutDuration


class Sink:
    def __init__(self) -> None:
        self.rows: list[list[Any]] = []

    def add(self, rows: list[list[Any]]) -> None:
        self.rows += rows


class Function:
    """The operator on numbers, which emits what is in each window."""

    def __init__(
        self, window: Window, timeout: Timeout | None = None, function: Any = None, on_error: OnError = OnError.FAIL
    ) -> None:
        function = function or (lambda key, rows: pd.DataFrame({"key": [key], "n": [list(rows.n)]}))
        numbers = Implementation("all", Form.WINDOW, function)
        grouping = Grouping("grouped", Form.WINDOW, window, (COLUMNS,))
        keyed = KeyedOperator("grouped", (numbers,), grouping, AlternateDigits(), timeout, on_error)
        self.sink = Sink()
        self._function = state_function(cloudpickle.dumps(keyed), "segment", WorkerPaths(), self.sink)  # type: ignore

    def __call__(
        self,
        state: State,
        numbers: Sequence[int] = (),
        key: tuple[Any, ...] = ("a",),
        more: Mapping[str, Any] | None = None,
    ) -> list[list[int]]:
        rows = [{"k": "a", "n": n, ORDER: n, **(more or {})} for n in numbers]
        emitted = list(self._function(key, iter([pd.DataFrame(rows)] if rows else []), state))
        self.keys = [row for frame in emitted for row in frame.key]
        return [row for frame in emitted for row in frame.n]


def test_a_window_of_count_ends_by_its_last_record_or_by_its_timeout():
    function, state = Function(Window(count=3), Timeout(2.0)), State()
    assert function(state, [0, 1, 2, 3]) == [[0, 1, 2]]
    assert state.ends == 2000
    state.hasTimedOut = True
    assert function(state) == [[3]]
    assert not state.exists
    assert [tuple(row[4:6]) for row in function.sink.rows] == [(4, 2)]


def test_a_key_without_an_incomplete_window_has_no_state():
    function, state = Function(Window(count=2)), State()
    assert function(state, [0]) == []
    assert state.exists
    assert function(state, [1]) == [[0, 1]]
    assert not state.exists
    assert state.ends is None


def test_an_event_time_out_follows_the_newest_record_and_the_watermark():
    function, state = Function(Window(count=9), Timeout(2.0, by="at")), State(watermark=1000)
    function(state, [0], more={MOMENT: 500, WATCHED: pd.Timestamp.max})
    assert state.ends == 2500
    state.watermark = 9000
    function(state, [1], more={MOMENT: 600, WATCHED: pd.Timestamp.max})
    assert state.ends == 9000


@pytest.mark.parametrize(("watermark", "emitted"), [(4999, []), (5000, [[1, 2]])])
def test_a_window_of_time_ends_once_the_watermark_reaches_its_end(watermark: int, emitted: list[list[int]]):
    function, state = Function(Window(seconds=5.0, by="n")), State(watermark=watermark)
    key = ("a", pd.Timestamp(0), pd.Timestamp(5, unit="s"), 5000)
    assert function(state, [2, 1], key) == emitted
    if not emitted:
        assert state.ends == 4999
        state.hasTimedOut = True
        assert function(state, key=key) == [[1, 2]]
    assert function.keys == [key[:-1]]
    assert not state.exists


def test_a_failing_window_is_left_out_and_the_next_is_called():
    def fails(key, rows):
        if 2 in list(rows.n):
            raise ValueError("no two")
        return pd.DataFrame({"key": [key], "n": [list(rows.n)]})

    function, state = Function(Window(count=2), function=fails, on_error=OnError.SKIP), State()
    assert function(state, [0, 1, 2, 3, 4, 5]) == [[0, 1], [4, 5]]
    assert not state.exists
    assert [tuple(row[4:6]) for row in function.sink.rows] == [(6, 2)]
