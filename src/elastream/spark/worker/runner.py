"""Runs one operator in a task: its selected alternate, in any form, on a thread pool if it waits.

Errors name operator, alternate and record. With an `on_error` only failing records are left out; failing batches are
halved.
"""

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, compress, pairwise
from operator import length_hint
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from elastream.dataflow.functions import PORT, Loop
from elastream.dataflow.operators import Form
from elastream.errors import first_line
from elastream.spark.worker.left_out import LeaveOut
from elastream.spark.worker.records import Chunk, conform

# Prefix of the JSON description of an operator's failure, which `explain_failure` searches for.
FAILURE_PREFIX = "ELASTREAM-OPERATOR-FAILED "
MAX_RECORD_CHARS = 200
# Types whose iteration runs no user code.
BUILTIN_COLLECTIONS = frozenset({list, tuple, set, frozenset, dict, str})
# Forms of functions that take batches; the others take single records.
BATCH_FORMS = (Form.ARROW, Form.PANDAS, Form.STREAM, Form.PORT)
# Forms that need their input as Arrow.
ARROW_INPUT = (*BATCH_FORMS, Form.SWITCH)


@dataclass(frozen=True, slots=True)
class Implementation:
    """An alternate, as sent to the workers."""

    name: str
    form: Form
    function: Callable[..., Any]


def in_short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= MAX_RECORD_CHARS else shown[: MAX_RECORD_CHARS - 3] + "..."


class OperatorError(RuntimeError):
    """Error of a user function, or of a value outside its schema. `explain_failure` parses it."""

    def __init__(
        self, operator: str, alternate: str, error: BaseException | str, record: object, batch_of: int = 0
    ) -> None:
        self.error = error
        what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        description = {
            "operator": operator,
            "alternate": alternate,
            "error": what.splitlines()[0] if what else "",
            "record": in_short(record),
            "batch_of": batch_of,
        }
        super().__init__(FAILURE_PREFIX + json.dumps(description))


# Takes a record's position and the error; may raise to end the task.
OnFailure = Callable[[int, BaseException], None]


def map_each(calls: Iterator[Any], left: Iterator[Any], count: int, blank: Any, failed: OnFailure) -> list[Any]:
    """Return the result of each of `count` records, `blank` for failing ones."""
    made: list[Any] = []
    while True:
        try:
            made.extend(calls)
        except Exception as error:
            failed(count - length_hint(left) - 1, error)
        else:
            if len(made) == count:
                return made
            # A StopIteration of the function ends the map, as if there were no more records.
            failed(len(made), StopIteration())
        made.append(blank)


class Results:
    """Results of a function of single records: one each, or a collection for FLAT_MAP.

    Args:
        bad: Positions of left-out records; grows with unfit results.
    """

    def __init__(self, form: Form, values: list[Any], made: list[Any], bad: set[int]) -> None:
        self.form, self.values, self.made, self.bad = form, values, made, bad

    @staticmethod
    def blank(form: Form) -> Any:
        """Return the result that stands for a left-out record."""
        return {Form.FLAT_MAP: (), Form.FILTER: False}.get(form)

    def chunk(self, of: Chunk, schema: pa.Schema) -> Chunk:
        """Return the output; `of` are the input records, from which a filter selects."""
        match self.form:
            case Form.FILTER:
                return of.filtered(self.made)
            case Form.SWITCH:
                ports = pa.array([port for port in self.made if port is not None], pa.string())
                whole = of.filtered([port is not None for port in self.made]) if self.bad else of
                return Chunk(schema, pa.RecordBatch.from_arrays([*whole.batch().columns, ports], schema=schema))
        return Chunk(schema, values=self.emitted(0, len(self.made)))

    def emitted(self, first: int, behind: int) -> list[Any]:
        """Return the output values of the records from position `first` to `behind` (exclusive)."""
        made = self.made if (first, behind) == (0, len(self.made)) else self.made[first:behind]
        match self.form:
            case Form.FLAT_MAP:
                return list(chain.from_iterable(made))
            case Form.FILTER:
                return list(compress(self.values[first:behind], made))
        return [each for at, each in enumerate(made, first) if at not in self.bad] if self.bad else made

    def counts(self) -> Sequence[int]:
        """Return the number of output records of each input record."""
        match self.form:
            case Form.FLAT_MAP:
                return list(map(len, self.made))
            case Form.FILTER:
                return list(map(bool, self.made))
        return [at not in self.bad for at in range(len(self.made))]

    def arrow(self, of: Chunk, schema: pa.Schema, failed: OnFailure) -> Chunk:
        """Return the output as Arrow; records with unfit results go to `failed`."""
        result = self.chunk(of, schema)
        try:
            result.batch()
        except Exception:
            self._fit(schema, failed)
            result = self.chunk(of, schema)
            result.batch()
        return result

    def _fit(self, schema: pa.Schema, failed: OnFailure) -> None:
        parts = [(0, len(self.made))]
        while parts:
            first, behind = parts.pop()
            try:
                Chunk(schema, values=self.emitted(first, behind)).batch()
            except Exception as error:  # user values may raise anything
                if behind - first > 1:
                    half = (first + behind) // 2
                    parts += [(half, behind), (first, half)]
                    continue
                failed(first, error)
                self.made[first] = self.blank(self.form)


def call_by_halves(
    call: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch, failed: Callable[[Any, BaseException], None]
) -> list[Any]:
    """Return the results of `call` on ever smaller halves of `batch`; failing records go to `failed`."""
    try:
        return [call(batch)]
    except Exception as error:
        if batch.num_rows == 1:
            failed(Chunk(batch.schema, batch).values()[0], error)
            return []
    half = batch.num_rows // 2
    return [*call_by_halves(call, batch.slice(0, half), failed), *call_by_halves(call, batch.slice(half), failed)]


@dataclass(frozen=True, slots=True)
class _Raised:
    error: Exception


class Runner:
    """The operator `name` in one task, with the alternate `chosen`.

    Args:
        width: Threads of its pool if it waits.
        as_arrow: True if the output must be Arrow.
        leave_out: Takes failing records; None lets the task fail.

    Attributes:
        waited: Time that threads of the pool were occupied (seconds).
    """

    def __init__(
        self,
        name: str,
        chosen: Implementation,
        schema: pa.Schema,
        width: int | None,
        as_arrow: bool,
        leave_out: LeaveOut | None = None,
    ) -> None:
        self.name = name
        self.loop = chosen.function if isinstance(chosen.function, Loop) else None
        self.chosen = chosen if self.loop is None else replace(chosen, function=self.loop.step)
        self.schema = schema
        self.width = width
        self.as_arrow = as_arrow
        self.leave_out = leave_out
        self.pool = ThreadPoolExecutor(width) if width else None
        self.waited = 0.0

    def __call__(self, chunk: Chunk) -> Chunk:
        """Apply the operator to `chunk`. Raises OperatorError."""
        if self.loop is not None:
            return self._rounds(chunk, self.loop)
        if self.chosen.form in BATCH_FORMS:
            return self._call_whole(chunk)
        values, bad = chunk.values(), set[int]()
        results = Results(self.chosen.form, values, self.for_each(values, bad), bad)
        if not self.as_arrow:
            return results.chunk(chunk, self.schema)
        return results.arrow(chunk, self.schema, lambda at, error: self.misfit(results, at, error))

    def _rounds(self, chunk: Chunk, loop: Loop) -> Chunk:
        if self.chosen.form in BATCH_FORMS:
            return self._batch_rounds(chunk, loop)
        values, finished = chunk.values(), list[Any]()
        for _ in range(loop.at_most):
            bad = set[int]()
            results = Results(self.chosen.form, values, self.for_each(values, bad), bad)
            values = results.emitted(0, len(results.made))
            answers = self._answers(values, loop)
            finished += [value for value, answer in zip(values, answers, strict=True) if answer is True]
            values = [value for value, answer in zip(values, answers, strict=True) if answer is False]
            if not values:
                break
        self._unfinished(values, loop)
        results = Results(Form.MAP, finished, list(finished), set())
        if not self.as_arrow:
            return results.chunk(chunk, self.schema)
        return results.arrow(chunk, self.schema, lambda at, error: self.misfit(results, at, error))

    def _answers(self, values: list[Any], loop: Loop) -> list[bool | None]:
        """Return True or False for each record; None for a left-out one."""
        left = iter(values)

        def failed(at: int, error: BaseException) -> None:
            self.failed(values, set(), at, error)

        return map_each(map(bool, map(loop.until, left)), left, len(values), None, failed)

    def _unfinished(self, values: list[Any], loop: Loop) -> None:
        for at in range(len(values)):
            self.failed(values, set(), at, f"it is not finished after {loop.at_most} rounds")

    def _batch_rounds(self, chunk: Chunk, loop: Loop) -> Chunk:
        leaving, batch = list[pa.RecordBatch](), chunk.batch()
        for _ in range(loop.at_most):
            batch = self._call_whole(Chunk(batch.schema, batch)).batch()
            if batch.num_rows:
                finished = self._batch_answers(batch, loop)
                leaving.append(batch.filter(finished))
                batch = batch.filter(pc.invert(finished))  # nulls are neither true nor false, so they drop out
            if not batch.num_rows:
                break
        self._unfinished(batch.to_pylist(), loop)
        return Chunk(self.schema, pa.concat_batches(leaving) if leaving else batch.slice(0, 0))

    def _batch_answers(self, batch: pa.RecordBatch, loop: Loop) -> pa.BooleanArray:
        """Return True or False for each record; null for a left-out one."""

        def ask(part: pa.RecordBatch) -> pa.BooleanArray:
            answers = loop.until(part if self.chosen.form is Form.ARROW else part.to_pandas())
            if isinstance(answers, pa.ChunkedArray):
                answers = answers.to_pylist()
            if len(answers) != part.num_rows:
                raise ValueError(f"`until` returned {len(answers)} truths for {part.num_rows} records")
            return pc.fill_null(pa.array(answers).cast(pa.bool_()), False)

        try:
            return ask(batch)
        except Exception as error:
            if self.leave_out is None:
                raise self._failure(error, batch.slice(0, 1).to_pylist()[0], batch.num_rows) from error
        answers: list[bool | None] = []
        for record in (batch.slice(at, 1) for at in range(batch.num_rows)):
            try:
                answers += ask(record).to_pylist()
            except Exception as error:
                self.leave_out(error, record.to_pylist())
                answers.append(None)
        return pa.array(answers, pa.bool_())

    def for_each(self, values: list[Any], bad: set[int]) -> list[Any]:
        """Return each value's result; add left-out positions to `bad`. Raises OperatorError."""
        function, flat = self.chosen.function, self.chosen.form is Form.FLAT_MAP
        blank = Results.blank(self.chosen.form)

        def failed(at: int, error: BaseException) -> None:
            self.failed(values, bad, at, error)

        if self.pool is None:
            left = iter(values)
            results = map_each(map(function, left), left, len(values), blank, failed)
            if flat and not BUILTIN_COLLECTIONS.issuperset(map(type, results)):
                # Iterate now, so that errors of user-defined iterables surface here.
                left = iter(results)
                results = map_each(map(list, left), left, len(values), blank, failed)
            return results
        made: list[Any] = []
        for result in self._timed(values, (lambda value: list(function(value))) if flat else function):
            if isinstance(result, _Raised):
                failed(len(made), result.error)
                result = blank
            made.append(result)
        return made

    def failed(self, values: list[Any], bad: set[int], at: int, error: BaseException | str) -> None:
        """Leave out the record at position `at`. Raises OperatorError if the task must fail."""
        if self.leave_out is None:
            raise self._failure(error, values[at]) from (None if isinstance(error, str) else error)
        bad.add(at)
        self.leave_out(error, [values[at]])

    def misfit(self, results: Results, at: int, error: BaseException) -> None:
        """Leave out the record at position `at` for its unfit result. Raises OperatorError."""
        returned = next(filter(self._is_misfit, results.emitted(at, at + 1)), None)
        if isinstance(error, KeyError):
            message = f"it returned {in_short(returned)}, which has no column {error}"
        else:
            promised = ", ".join(f"{field.name} {field.type}" for field in self.schema)
            row = "a dict of " if len(self.schema) > 1 else ""
            message = f"it returned {in_short(returned)}, which is not {row}{promised} ({error})"
        self.failed(results.values, results.bad, at, message)

    def _failure(self, error: BaseException | str, record: object, batch_of: int = 0) -> OperatorError:
        return OperatorError(self.name, self.chosen.name, error, record, batch_of)

    def _call_whole(self, chunk: Chunk) -> Chunk:
        batch = chunk.batch()
        call = {Form.ARROW: self._arrow, Form.PORT: self._port}.get(self.chosen.form, self._pandas)
        parts = 1 if self.width is None else min(self.width, batch.num_rows)
        cuts = [batch.num_rows * part // parts for part in range(parts + 1)]
        slices = [batch.slice(start, stop - start) for start, stop in pairwise(cuts)]
        results: list[pa.RecordBatch] = []
        for part, result in zip(slices, self._timed(slices, call), strict=True):
            if not isinstance(result, _Raised):
                results.append(result)
            elif (leave_out := self.leave_out) is None:
                raise self._failure(result.error, part.slice(0, 1).to_pylist()[0], part.num_rows) from result.error
            else:
                results += call_by_halves(call, part, lambda record, error: leave_out(error, [record]))
        if len(results) == 1:
            return Chunk(self.schema, results[0])
        return Chunk(self.schema, pa.concat_batches(results) if results else pa.RecordBatch.from_pylist([], self.schema))

    def _arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return conform(self.chosen.function(batch), self.schema)

    def _port(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        port: Any = self.chosen.function
        return batch.filter(pc.equal(batch.column(PORT), port.name)).drop_columns([PORT])

    def _pandas(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        frame = self.chosen.function(batch.to_pandas())
        return pa.RecordBatch.from_pandas(frame, schema=self.schema, preserve_index=False)

    def _timed(self, values: Sequence[Any], function: Callable[..., Any]) -> Iterator[Any]:
        def timed(value: Any) -> tuple[Any, float]:
            start = time.perf_counter()
            try:
                result = function(value)
            except Exception as error:
                result = _Raised(error)
            return result, time.perf_counter() - start

        for result, seconds in map(timed, values) if self.pool is None else self.pool.map(timed, values):
            self.waited += seconds
            yield result

    def _is_misfit(self, value: Any) -> bool:
        try:
            Chunk(self.schema, values=[value]).batch()
        except Exception:  # user values may raise anything
            return True
        return False


_CAUSES = (
    (re.compile(r"No space left on device"), "the disk is full: Spark could not write its checkpoint, state or results"),
    (re.compile(r"Permission denied: '?([^'\n]+)|(/\S+): Permission denied"), "{0} cannot be written: permission denied"),
    (re.compile(r"ModuleNotFoundError: No module named '([^']+)'"), "the hosts lack the Python module {0!r}"),
    (re.compile(r"java\.lang\.OutOfMemoryError: ([^\n]+)"), "an executor ran out of memory ({0})"),
)
# The driver's error if the process that plans a user's data source ended.
_READER_ENDED = re.compile(r"\Ajava\.(net|io)\.\w+Exception\b.*?\bPythonStreamingSourceRunner\b", re.DOTALL)


def explain_failure(exception: BaseException) -> str:
    """Return the cause of a query's failure in one sentence: operator and record, or Spark's root cause."""
    text = str(exception)
    if (at := text.find(FAILURE_PREFIX)) >= 0:
        return _operator_failed(text[at + len(FAILURE_PREFIX) :])
    if _READER_ENDED.match(str(getattr(getattr(exception, "_cause", None), "_stackTrace", ""))):
        return "the Python process ended in which the reader of a data source runs on the driver: killed, or out of memory"
    for pattern, sentence in _CAUSES:
        if match := pattern.search(text):
            return sentence.format(*(group for group in match.groups() if group))
    causes = re.findall(r"(?:Caused by: |^)((?:[\w.$]+(?:Error|Exception)): [^\n]+)", text, re.MULTILINE)
    return f"the query failed: {causes[-1] if causes else first_line(exception)}"


def _operator_failed(text: str) -> str:
    failure, _ = json.JSONDecoder().raw_decode(text)
    alternate = f" (alternate {failure['alternate']!r})" if failure["alternate"] != failure["operator"] else ""
    where = f"a batch of {failure['batch_of']} records that begins with" if failure["batch_of"] else "the record"
    return f"operator {failure['operator']!r}{alternate} failed on {where} {failure['record']}: {failure['error']}"


def run_stream(operator: str, chosen: Implementation, schema: pa.Schema, buffer: deque[pa.RecordBatch]) -> Iterator[Chunk]:
    """Apply a function of a whole stream to its buffered records. Raises OperatorError.

    It runs after the task's last record and releases batches as it reads them.
    """
    newest = buffer[0]

    def records() -> Iterator[pa.RecordBatch]:
        nonlocal newest
        while buffer:
            newest = buffer.popleft()
            yield newest

    def failed(error: BaseException | str) -> OperatorError:
        return OperatorError(operator, chosen.name, error, newest.slice(0, 1).to_pylist()[0], newest.num_rows)

    try:
        for result in chosen.function(records()):
            if not isinstance(result, pa.RecordBatch):
                raise failed(f"it emitted a {type(result).__name__}, not a pyarrow.RecordBatch")
            yield Chunk(schema, conform(result, schema))
    except OperatorError:
        raise
    except Exception as error:
        raise failed(error) from error
    finally:
        buffer.clear()
