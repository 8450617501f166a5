"""Executes functions with state per key inside `applyInPandasWithState`: their alternates, their states, their time-outs.

What becomes of the state of a key, whichever alternate is active:

| call | function | state before | state after | time-out |
| --- | --- | --- | --- | --- |
| records of the key | returns (rows, state) | any | that alternate's field: state; others: as before | set anew |
| records of the key | returns (rows, None) | any | that field: none; without any field, no state | set anew, or none |
| records of the key | raises | any | as before: the batch fails, and replays under the same composition | as before |
| records of the key | raises, with an `on_error` | any | as before; the records are left out | set anew, or none |
| time-out | raises, with an `on_error` | any | none, of no alternate; its state is what is left out | none |
| time-out | has one: its rows are emitted | any | none, of no alternate | none |
| time-out | has none: nothing is emitted | any | none, of no alternate | none |
"""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pandas as pd
from pyspark import Accumulator, TaskContext, cloudpickle

from elastream.dataflow.operators import OnError
from elastream.dataflow.windows import Timeout
from elastream.spark.worker.composition import Digit
from elastream.spark.worker.fused import Carrier, batch_number, task_number
from elastream.spark.worker.left_out import LeftOut, attempt_of
from elastream.spark.worker.meter import TaskRow
from elastream.spark.worker.runner import Implementation, OperatorFailed
from elastream.spark.worker.states import States
from elastream.spark.worker.table_lookup import Lookup, lookup
from elastream.spark.worker.windows import Grouping, packed

MOMENT = "_moment"
"""Column with the time of a record in milliseconds since 1970, for a time-out by the time of records."""
WATCHED = "_watched"
"""Column that Spark takes for the one with the watermark, beside MOMENT."""

StateFunction = Callable[[tuple[Any, ...], Iterable[pd.DataFrame], Any], Iterator[pd.DataFrame]]


@dataclass(frozen=True, slots=True)
class Choice:
    """What says which alternate runs. Digits: pick of an alternate, table of a key table. by: its columns in the key."""

    pick: Digit | None = None
    table: Digit | None = None
    by: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Keyed:
    """A keyed operator, as sent to the workers.

    states: how the state of a key is kept, or the records of its windows. on_error: what becomes of records on which its
    function raises.
    """

    name: str
    alternates: tuple[Implementation, ...]
    states: States | Grouping
    choice: Choice
    timeout: Timeout | None = None
    on_error: OnError = OnError.FAIL


@lru_cache(maxsize=64)
def _loaded(pickled: bytes) -> Keyed:
    # A worker process executes many tasks: user functions and their modules are loaded once. PySpark pads what a key has
    # emitted with empty rows, which pandas warns of on standard error.
    warnings.filterwarnings("ignore", "The behavior of DataFrame concatenation with empty", FutureWarning)
    keyed: Keyed = cloudpickle.loads(pickled)
    return keyed


class _Task:
    """One task of the operator: its composition, and its counts, an entry for each alternate that runs."""

    def __init__(self, keyed: Keyed, number: int, segment: str, carrier: Carrier, sink: Accumulator[list[TaskRow]]) -> None:
        self.keyed, self.number = keyed, number
        self._segment, self._sink, self._batch, self._task = segment, sink, batch_number(), task_number()
        self._code = code = carrier.code(self._batch)
        choice = keyed.choice
        self._otherwise = choice.pick.of(code) if choice.pick else 0
        self._table: Lookup | None = None
        if choice.table is not None and (digit := choice.table.of(code)):
            assert carrier.tables is not None
            self._table = lookup(carrier.tables, keyed.name, digit, [each.name for each in keyed.alternates])
        self._counted: dict[int, list[Any]] = {}
        context = TaskContext.get()
        # The functions behind it run in the same task, and their stage has its name.
        self._left_out = LeftOut(carrier.left_out, self._batch, f"{keyed.name} by key", self._task, attempt_of(context))
        self._left_out.flush()

    def chosen(self, key: tuple[Any, ...]) -> int:
        """Number of the alternate that runs for `key`."""
        if self._table is None:
            return self._otherwise
        number = self._table.of_key([key[at] for at in self.keyed.choice.by])
        return self._otherwise if number < 0 else number

    def leave_out(
        self, alternate: int, key: tuple[Any, ...], records: pd.DataFrame | list[Any], failed: OperatorFailed
    ) -> None:
        """Leave out what a function has failed on; raises `failed` where it must not be."""
        keyed = self.keyed
        if keyed.on_error is OnError.FAIL:
            raise failed
        rows = records if isinstance(records, list) else records.to_dict("records")
        keep = keyed.on_error is OnError.DEAD_LETTER
        self._left_out.add(keyed.name, keyed.alternates[alternate].name, keep, failed.error, rows, list(key))
        self._left_out.flush()  # nothing is called when the task ends

    def count(self, alternate: int, rows_in: int, rows_out: int, busy: float) -> None:
        """Count a call of an alternate that ends now."""
        counts = self._counted.get(alternate)
        if counts is None:
            name, now = self.keyed.alternates[alternate].name, time.time()
            counts = [self._segment, self._batch, self.keyed.name, self._code, 0, 0, 0.0, now - busy, now, name, self._task]
            self._counted[alternate] = counts
            # The accumulator holds the list object that later calls update: it is pickled when the task ends.
            self._sink.add([counts])  # type: ignore[list-item]
        counts[4] += rows_in
        counts[5] += rows_out
        counts[6] += busy
        counts[8] = time.time()


def state_function(
    shipped: bytes, segment: str, operator: str, carrier: Carrier, sink: Accumulator[list[TaskRow]]
) -> StateFunction:
    """Build the function for `applyInPandasWithState`: called per key of a batch. shipped: a pickled `Keyed`."""
    newest: list[_Task] = []

    def task() -> _Task:
        context = TaskContext.get()
        number = context.taskAttemptId() if context is not None else -1
        if not newest or newest[0].number != number:
            newest[:] = [_Task(_loaded(shipped), number, segment, carrier, sink)]
        return newest[0]

    def run(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        now = task()
        if isinstance(states := now.keyed.states, Grouping):
            yield from _windowed(now, states, key, frames, state)
        elif state.hasTimedOut:
            yield from _ended(now, states, key, state)
        else:
            yield from _applied(now, states, key, frames, state)

    return run


def _applied(
    task: _Task, states: States, key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any
) -> Iterator[pd.DataFrame]:
    """The records of a key in one batch."""
    keyed, number = task.keyed, task.chosen(key)
    chosen, timeout = keyed.alternates[number], keyed.timeout
    rows, moments = _rows(frames)
    kept = state.getOption
    started = time.thread_time()
    try:
        result, left = chosen.function(key, rows, states.of(kept, number))
        after = states.after(kept, number, left)
    except Exception as error:
        task.leave_out(number, key, rows, OperatorFailed(keyed.name, chosen.name, error, key, len(rows)))
        if timeout is not None and state.exists:
            _set_timeout(state, timeout, moments)
        task.count(number, len(rows), 0, time.thread_time() - started)
        return
    if after is not None:
        state.update(after)
    elif state.exists:
        state.remove()
    if timeout is not None and after is not None:
        _set_timeout(state, timeout, moments)
    task.count(number, len(rows), len(result), time.thread_time() - started)
    yield result


def _ended(task: _Task, states: States, key: tuple[Any, ...], state: Any) -> Iterator[pd.DataFrame]:
    """The time-out of a key: its state ends."""
    keyed, number = task.keyed, task.chosen(key)
    function = keyed.timeout.function if keyed.timeout is not None else None
    kept = state.getOption
    state.remove()
    if function is None:
        return
    started = time.thread_time()
    try:
        result = function(key, states.of(kept, number))
        emitted = len(result)
    except Exception as error:
        task.leave_out(number, key, [kept], OperatorFailed(keyed.name, keyed.alternates[number].name, error, key))
        return
    task.count(number, 0, emitted, time.thread_time() - started)
    yield result


def _windowed(
    task: _Task, grouping: Grouping, key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any
) -> Iterator[pd.DataFrame]:
    """The records of a key, or its time-out, where records are kept until a window of them is complete."""
    number, timeout = task.chosen(key), task.keyed.timeout
    chosen, started, rows = task.keyed.alternates[number], time.thread_time(), 0
    kept = grouping.unpacked(state.getOption)
    moments = None
    if state.hasTimedOut:
        windows, kept = grouping.ended(kept), grouping.nothing
    else:
        arrived, moments = _rows(frames)
        rows, kept = len(arrived), grouping.joined(kept, grouping.arrived(arrived))
        if not grouping.in_time:
            windows, kept = grouping.complete(kept)
        elif int(key[-1]) <= state.getCurrentWatermarkMs():
            windows, kept = grouping.ended(kept), grouping.nothing
        else:
            windows = []
    if any(part.num_rows for part in kept):
        state.update(packed(kept))
        if grouping.in_time:
            state.setTimeoutTimestamp(int(key[-1]) - 1)  # it ends when the watermark is beyond that
        elif timeout is not None:
            _set_timeout(state, timeout, moments)
    elif state.exists:
        state.remove()
    named = key[:-1] if grouping.in_time else key
    for window in windows:
        try:
            result = grouping.call(chosen, named, window)
        except OperatorFailed as failed:
            task.leave_out(number, named, [row for part in window for row in part.to_pylist()], failed)
            continue
        task.count(number, rows, len(result), time.thread_time() - started)
        if len(result):
            yield result
        started, rows = time.thread_time(), 0
    if rows:
        task.count(number, rows, 0, time.thread_time() - started)


def _rows(frames: Iterable[pd.DataFrame]) -> tuple[pd.DataFrame, "pd.Series[int] | None"]:
    """The records of a key in one batch, and their times where a time-out goes by them."""
    first, *others = frames
    rows = pd.concat([first, *others], ignore_index=True) if others else first
    if MOMENT not in rows.columns:
        return rows, None
    moments = rows.pop(MOMENT)
    rows.pop(WATCHED)
    return rows, moments


def _set_timeout(state: Any, timeout: Timeout, moments: "pd.Series[int] | None") -> None:
    """Let the state end `timeout` after the newest record that its key has had."""
    milliseconds = max(1, round(timeout.seconds * 1000))
    if moments is None:
        state.setTimeoutDuration(milliseconds)
        return
    newest = moments.max()
    due = int(newest) + milliseconds if newest == newest else 0
    # The watermark may be beyond it: then it ends in the next batch without records of the key.
    state.setTimeoutTimestamp(max(due, state.oldTimeoutTimestamp, state.getCurrentWatermarkMs(), 1))
