"""Executes one operator of a walk: its selected alternate, in any form, on a thread pool if it waits.

An error names operator, alternate and record if a function raises or returns values outside its schema.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from elastream.dataflow.operators import Form
from elastream.errors import first_line
from elastream.spark.worker.left_out import LeaveOut
from elastream.spark.worker.records import Chunk, conformed
from elastream.spark.worker.tolerant import Made, each_of, halved

FAILED = "ELASTREAM-OPERATOR-FAILED "
"""Prefix of the JSON description of an operator's failure, which `explain_failure` searches for."""
SHOWN = 200
"""Most characters of a record in an error message."""
PLAIN = frozenset({list, tuple, set, frozenset, dict, str})
"""Types of results that can be iterated without any code of the user's."""
WHOLE = (Form.ARROW, Form.PANDAS, Form.STREAM)
"""Forms of functions that take batches; the others take single records."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """An alternate, as sent to the workers."""

    name: str
    form: Form
    function: Callable[..., Any]


def in_short(value: object) -> str:
    """`value` as Python writes it, cut off at SHOWN characters."""
    shown = repr(value)
    return shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "..."


class OperatorFailed(RuntimeError):
    """A user function raised, or returned values outside its schema. `explain_failure` parses the message."""

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
        super().__init__(FAILED + json.dumps(description))


@dataclass(frozen=True, slots=True)
class _Raised:
    """In the place of a result: what a function raised."""

    error: Exception


class Runner:
    """The operator `name` in one task, with alternate `chosen` and output `schema`.

    width: threads of its pool if it waits, else None. as_arrow: whether its output must be Arrow. leave_out: takes records
    on which its function raises; None: the task fails then. waited: seconds that threads of the pool were occupied.
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
        self.chosen = chosen
        self.schema = schema
        self.width = width
        self.as_arrow = as_arrow
        self.leave_out = leave_out
        self.pool = ThreadPoolExecutor(width) if width else None
        self.waited = 0.0

    def __call__(self, chunk: Chunk) -> Chunk:
        """Apply the operator to `chunk`. Raises OperatorFailed."""
        if self.chosen.form in WHOLE:
            return self._whole(chunk)
        values, bad = chunk.values(), set[int]()
        found = Made(self.chosen.form, values, self.for_each(values, bad), bad)
        if not self.as_arrow:
            return found.chunk(chunk, self.schema)
        return found.arrow(chunk, self.schema, lambda at, error: self.misfit(found, at, error))

    def for_each(self, values: list[Any], bad: set[int]) -> list[Any]:
        """What the function gives for each of `values`, of a form of single records; of FLAT_MAP, a collection each.

        bad: to which the numbers of those are added that are left out. Raises OperatorFailed.
        """
        function, flat = self.chosen.function, self.chosen.form is Form.FLAT_MAP
        blank = Made.blank(self.chosen.form)

        def failed(at: int, error: BaseException) -> None:
            self.failed(values, bad, at, error)

        if self.pool is None:
            left = iter(values)
            results = each_of(map(function, left), left, len(values), blank, failed)
            if flat and not PLAIN.issuperset(map(type, results)):  # what raises as it is iterated is found now
                left = iter(results)
                results = each_of(map(list, left), left, len(values), blank, failed)
            return results
        made: list[Any] = []
        for result in self._timed(values, (lambda value: list(function(value))) if flat else function):
            if isinstance(result, _Raised):
                failed(len(made), result.error)
                result = blank
            made.append(result)
        return made

    def failed(self, values: list[Any], bad: set[int], at: int, error: BaseException | str) -> None:
        """Leave out record number `at` of `values`, which is added to `bad`; raises OperatorFailed where it must not be."""
        if self.leave_out is None:
            raise self._failure(error, values[at]) from (None if isinstance(error, str) else error)
        bad.add(at)
        self.leave_out(error, [values[at]])

    def misfit(self, found: Made, at: int, error: BaseException) -> None:
        """Leave out record number `at`, as its result is not in the schema; raises OperatorFailed where it must not be."""
        returned = next(filter(self._is_misfit, found.emitted(at, at + 1)), None)
        if isinstance(error, KeyError):
            said = f"it returned {in_short(returned)}, which has no column {error}"
        else:
            promised = ", ".join(f"{field.name} {field.type}" for field in self.schema)
            row = "a dict of " if len(self.schema) > 1 else ""
            said = f"it returned {in_short(returned)}, which is not {row}{promised} ({error})"
        self.failed(found.values, found.bad, at, said)

    def _failure(self, error: BaseException | str, record: object, batch_of: int = 0) -> OperatorFailed:
        return OperatorFailed(self.name, self.chosen.name, error, record, batch_of)

    def _whole(self, chunk: Chunk) -> Chunk:
        batch = chunk.batch()
        call = self._arrow if self.chosen.form is Form.ARROW else self._pandas
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
                results += halved(call, part, lambda record, error: leave_out(error, [record]))
        if len(results) == 1:
            return Chunk(self.schema, results[0])
        return Chunk(self.schema, pa.concat_batches(results) if results else pa.RecordBatch.from_pylist([], self.schema))

    def _arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return conformed(self.chosen.function(batch), self.schema)

    def _pandas(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        frame = self.chosen.function(batch.to_pandas())
        return pa.RecordBatch.from_pandas(frame, schema=self.schema, preserve_index=False)

    def _timed(self, values: Sequence[Any], function: Callable[..., Any]) -> Iterator[Any]:
        """Results in order, or what was raised; adds the seconds that threads of the pool were occupied to `waited`."""

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
        except Exception:  # whatever a value of the user's raises here
            return True
        return False


_CAUSES = (
    (re.compile(r"No space left on device"), "the disk is full: Spark could not write its checkpoint, state or results"),
    (re.compile(r"Permission denied: '?([^'\n]+)|(/\S+): Permission denied"), "{0} cannot be written: permission denied"),
    (re.compile(r"ModuleNotFoundError: No module named '([^']+)'"), "the hosts lack the Python module {0!r}"),
    (re.compile(r"java\.lang\.OutOfMemoryError: ([^\n]+)"), "an executor ran out of memory ({0})"),
)
_READER_ENDED = re.compile(r"\Ajava\.(net|io)\.\w+Exception\b.*?\bPythonStreamingSourceRunner\b", re.DOTALL)
"""Stack trace of the error that the driver gets where the process ended in which a user's data source plans its batches."""


def explain_failure(exception: BaseException) -> str:
    """The cause of a streaming query's failure, in one sentence without a stack trace.

    For a user function that raised: operator, alternate, record and error. For known causes: a specific sentence. Else:
    the root cause in Spark's text.
    """
    text = str(exception)
    if (at := text.find(FAILED)) >= 0:
        return _operator_failed(text[at + len(FAILED) :])
    if _READER_ENDED.match(str(getattr(getattr(exception, "_cause", None), "_stackTrace", ""))):
        return "the Python process ended in which the reader of a data source runs on the driver: killed, or out of memory"
    for pattern, sentence in _CAUSES:
        if match := pattern.search(text):
            return sentence.format(*(group for group in match.groups() if group))
    causes = re.findall(r"(?:Caused by: |^)((?:[\w.$]+(?:Error|Exception)): [^\n]+)", text, re.MULTILINE)
    return f"the query failed: {causes[-1] if causes else first_line(exception)}"


def _operator_failed(text: str) -> str:
    found, _ = json.JSONDecoder().raw_decode(text)
    alternate = f" (alternate {found['alternate']!r})" if found["alternate"] != found["operator"] else ""
    where = f"a batch of {found['batch_of']} records that begins with" if found["batch_of"] else "the record"
    return f"operator {found['operator']!r}{alternate} failed on {where} {found['record']}: {found['error']}"
