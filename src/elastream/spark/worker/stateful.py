"""Runs functions with state per key inside `applyInPandasWithState`: alternates, states and time-outs."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pandas as pd
from pyspark import Accumulator, TaskContext, cloudpickle

from elastream.dataflow.operators import OnError
from elastream.dataflow.windows import Timeout
from elastream.spark.worker.code import later_code
from elastream.spark.worker.composition import Digit
from elastream.spark.worker.left_out import LeftOut, attempt_of
from elastream.spark.worker.meter import TaskRow
from elastream.spark.worker.runner import Implementation, OperatorError
from elastream.spark.worker.states import States
from elastream.spark.worker.table_lookup import Lookup, lookup
from elastream.spark.worker.walk import WorkerPaths, batch_number, task_number
from elastream.spark.worker.windows import Grouping, PortTables, pack

# Column with a record's time (milliseconds since 1970), for a time-out by event time.
MOMENT = "_moment"
# Column that Spark takes for the one with the watermark, beside MOMENT.
WATCHED = "_watched"

# The state of a key after a call, whichever alternate is active:
#
# | event | function | state after | time-out |
# | --- | --- | --- | --- |
# | records | returns (rows, state) | its alternate's field; others unchanged | set anew |
# | records | returns (rows, None) | no such field; none without any | set anew, or none |
# | records | raises | unchanged: the batch fails and replays | unchanged |
# | records | raises, with an `on_error` | unchanged; the records are left out | set anew, or none |
# | time-out | raises, with an `on_error` | none; the state is left out | none |
# | time-out | emits rows, or is missing | none | none |
StateFunction = Callable[[tuple[Any, ...], Iterable[pd.DataFrame], Any], Iterator[pd.DataFrame]]


@dataclass(frozen=True, slots=True)
class AlternateDigits:
    pick: Digit | None = None
    table: Digit | None = None
    by: tuple[int, ...] = ()  # positions of the table's columns in the key


@dataclass(frozen=True, slots=True)
class KeyedOperator:
    """A keyed operator, as sent to the workers."""

    name: str
    alternates: tuple[Implementation, ...]
    states: States | Grouping  # codec of the key's states, or grouping of its window records
    choice: AlternateDigits
    timeout: Timeout | None = None
    on_error: OnError = OnError.FAIL


@lru_cache(maxsize=64)
def _loaded(pickled: bytes) -> KeyedOperator:
    # A worker process executes many tasks: user functions and their modules are loaded once. PySpark pads a key's
    # output with empty rows, about which pandas warns.
    warnings.filterwarnings("ignore", "The behavior of DataFrame concatenation with empty", FutureWarning)
    keyed: KeyedOperator = cloudpickle.loads(pickled)
    return keyed


class _Task:
    def __init__(
        self, keyed: KeyedOperator, number: int, segment: str, paths: WorkerPaths, sink: Accumulator[list[TaskRow]]
    ) -> None:
        self._segment, self._sink, self._batch, self._task = segment, sink, batch_number(), task_number()
        self._code = code = paths.code(self._batch)
        if (later := later_code(paths.later, keyed.name, code)) is not None:
            keyed = replace(keyed, alternates=later.alternates, choice=replace(keyed.choice, pick=later.pick))
        self.keyed, self.number = keyed, number
        choice = keyed.choice
        self._otherwise = choice.pick.of(code) if choice.pick else 0
        self._table: Lookup | None = None
        if choice.table is not None and (digit := choice.table.of(code)):
            assert paths.tables is not None
            self._table = lookup(paths.tables, keyed.name, digit, [each.name for each in keyed.alternates])
        self._counted: dict[int, list[Any]] = {}
        context = TaskContext.get()
        # Functions after it run in the same task under its name, so this file needs another one.
        self._left_out = LeftOut(paths.left_out, self._batch, f"{keyed.name} by key", self._task, attempt_of(context))
        self._left_out.flush()

    def chosen(self, key: tuple[Any, ...]) -> int:
        if self._table is None:
            return self._otherwise
        number = self._table.of_key([key[at] for at in self.keyed.choice.by])
        return self._otherwise if number < 0 else number

    def leave_out(
        self, alternate: int, key: tuple[Any, ...], records: pd.DataFrame | list[Any], failed: OperatorError
    ) -> None:
        """Leave out the records of a failed call, or raise `failed`."""
        keyed = self.keyed
        if keyed.on_error is OnError.FAIL:
            raise failed
        rows = records if isinstance(records, list) else records.to_dict("records")
        keep = keyed.on_error is OnError.DEAD_LETTER
        self._left_out.add(keyed.name, keyed.alternates[alternate].name, keep, failed.error, rows, list(key))
        self._left_out.flush()  # PySpark calls nothing at the end of the task

    def count(self, alternate: int, rows_in: int, rows_out: int, busy: float) -> None:
        if (counts := self._counted.get(alternate)) is None:
            name, now = self.keyed.alternates[alternate].name, time.time()
            counts = [self._segment, self._batch, self.keyed.name, self._code, 0, 0, 0.0, now - busy, now, name, self._task]
            self._counted[alternate] = counts
            # The accumulator holds the list object that later calls update: it is pickled when the task ends.
            self._sink.add([counts])  # type: ignore[list-item]
        counts[4] += rows_in
        counts[5] += rows_out
        counts[6] += busy
        counts[8] = time.time()


def state_function(shipped: bytes, segment: str, paths: WorkerPaths, sink: Accumulator[list[TaskRow]]) -> StateFunction:
    """Build the function for `applyInPandasWithState` of a pickled KeyedOperator."""
    newest: list[_Task] = []

    def task() -> _Task:
        context = TaskContext.get()
        number = context.taskAttemptId() if context is not None else -1
        if not newest or newest[0].number != number:
            newest[:] = [_Task(_loaded(shipped), number, segment, paths, sink)]
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
    keyed, number = task.keyed, task.chosen(key)
    chosen, timeout = keyed.alternates[number], keyed.timeout
    (rows, moments), stored, started = _rows(frames), state.getOption, time.thread_time()
    try:
        result, left = chosen.function(key, rows, states.of(stored, number))
        after = states.after(stored, number, left)
    except Exception as error:
        task.leave_out(number, key, rows, OperatorError(keyed.name, chosen.name, error, key, len(rows)))
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
    keyed, number, stored = task.keyed, task.chosen(key), state.getOption
    state.remove()
    if keyed.timeout is None or (function := keyed.timeout.function) is None:
        return
    started = time.thread_time()
    try:
        result = function(key, states.of(stored, number))
        emitted = len(result)
    except Exception as error:
        task.leave_out(number, key, [stored], OperatorError(keyed.name, keyed.alternates[number].name, error, key))
        return
    task.count(number, 0, emitted, time.thread_time() - started)
    yield result


def _windowed(
    task: _Task, grouping: Grouping, key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any
) -> Iterator[pd.DataFrame]:
    timeout, started, rows, moments = task.keyed.timeout, time.thread_time(), 0, None
    waiting = grouping.unpack(state.getOption)
    if state.hasTimedOut:
        windows, waiting = grouping.flush(waiting), grouping.empty
    else:
        incoming, moments = _rows(frames)
        rows, waiting = len(incoming), grouping.joined(waiting, grouping.incoming(incoming))
        if not grouping.in_time:
            windows, waiting = grouping.complete(waiting)
        elif int(key[-1]) <= state.getCurrentWatermarkMs():
            windows, waiting = grouping.flush(waiting), grouping.empty
        else:
            windows = []
    if any(part.num_rows for part in waiting):
        state.update(pack(waiting))
        if grouping.in_time:
            state.setTimeoutTimestamp(int(key[-1]) - 1)  # the state ends once the watermark passes it
        elif timeout is not None:
            _set_timeout(state, timeout, moments)
    elif state.exists:
        state.remove()
    yield from _call_windows(task, grouping, key, windows, rows, started)


def _call_windows(
    task: _Task, grouping: Grouping, key: tuple[Any, ...], windows: Iterable[PortTables], rows: int, started: float
) -> Iterator[pd.DataFrame]:
    """Apply the function to complete windows; the first one counts `rows` and the time since `started`."""
    number = task.chosen(key)
    chosen = task.keyed.alternates[number]
    named = key[:-1] if grouping.in_time else key
    for window in windows:
        try:
            result = grouping.call(chosen, named, window)
        except OperatorError as failed:
            task.leave_out(number, named, [row for part in window for row in part.to_pylist()], failed)
            continue
        task.count(number, rows, len(result), time.thread_time() - started)
        if len(result):
            yield result
        started, rows = time.thread_time(), 0
    if rows:
        task.count(number, rows, 0, time.thread_time() - started)


def _rows(frames: Iterable[pd.DataFrame]) -> tuple[pd.DataFrame, "pd.Series[int] | None"]:
    first, *others = frames
    rows = pd.concat([first, *others], ignore_index=True) if others else first
    if MOMENT not in rows.columns:
        return rows, None
    moments = rows.pop(MOMENT)
    rows.pop(WATCHED)
    return rows, moments


def _set_timeout(state: Any, timeout: Timeout, moments: "pd.Series[int] | None") -> None:
    milliseconds = max(1, round(timeout.seconds * 1000))
    if moments is None:
        state.setTimeoutDuration(milliseconds)
        return
    newest = moments.max()
    due = int(newest) + milliseconds if newest == newest else 0
    # If the watermark is later, the state ends in the next batch without records of the key.
    state.setTimeoutTimestamp(max(due, state.oldTimeoutTimestamp, state.getCurrentWatermarkMs(), 1))
