"""Executes one operator of a walk: its selected alternate, in any form, on a thread pool if it waits.

An error names operator, alternate and record if a function raises or returns values outside its schema.
"""

import json
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import length_hint
from typing import Any

import pyarrow as pa

from elastream.model.errors import first_line
from elastream.model.graph import Form
from elastream.spark.worker.records import Chunk, conformed

__all__ = ["FAILED", "WHOLE", "Implementation", "OperatorFailed", "Runner", "explain_failure"]

FAILED = "ELASTREAM-OPERATOR-FAILED "
"""Prefix of the JSON description of an operator's failure, which `explain_failure` searches for."""
SHOWN = 200
"""Most characters of a record in an error message."""
WHOLE = (Form.ARROW, Form.PANDAS, Form.STREAM)
"""Forms of functions that take batches; the others take single records."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """An alternate, as sent to the workers."""

    name: str
    form: Form
    function: Callable[..., Any]


class OperatorFailed(RuntimeError):
    """A user function raised, or returned values outside its schema. `explain_failure` parses the message."""

    def __init__(
        self, operator: str, alternate: str, error: BaseException | str, record: object, batch_of: int = 0
    ) -> None:
        what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        shown = repr(record)
        description = {
            "operator": operator,
            "alternate": alternate,
            "error": what.splitlines()[0] if what else "",
            "record": shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "...",
            "batch_of": batch_of,
        }
        super().__init__(FAILED + json.dumps(description))


class Runner:
    """The operator `name` in one task, with alternate `chosen` and output `schema`.

    width: threads of its pool if it waits, else None. as_arrow: whether its output must be Arrow. waited: seconds that
    threads of the pool were occupied.
    """

    def __init__(self, name: str, chosen: Implementation, schema: pa.Schema, width: int | None, as_arrow: bool) -> None:
        self.name = name
        self.chosen = chosen
        self.schema = schema
        self.width = width
        self.as_arrow = as_arrow
        self.pool = ThreadPoolExecutor(width) if width else None
        self.waited = 0.0

    def __call__(self, chunk: Chunk) -> Chunk:
        """Apply the operator to `chunk`. Raises OperatorFailed."""
        return self.fitted(self._whole(chunk) if self.chosen.form in WHOLE else self._each(chunk))

    def fitted(self, result: Chunk) -> Chunk:
        """`result`, as Arrow where that is wanted. Raises OperatorFailed for values outside the schema."""
        if self.as_arrow:
            try:
                result.batch()
            except KeyError as error:
                self._fail(f"it returned a record without the column {error}", self._misfit(result))
            except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
                self._fail(f"it returned a value that is not {self._promised()} ({error})", self._misfit(result))
        return result

    def for_each(self, values: list[Any]) -> list[Any]:
        """What the function gives for each of `values`, of a form that takes single records; of FLAT_MAP, a list each."""
        return self._results(values, self.chosen.form is Form.FLAT_MAP, apart=True)

    def failure(self, error: BaseException | str, record: object, batch_of: int = 0) -> OperatorFailed:
        """What to raise where its function fails on a record, or on a batch that begins with it."""
        return OperatorFailed(self.name, self.chosen.name, error, record, batch_of)

    def _each(self, chunk: Chunk) -> Chunk:
        form = self.chosen.form
        results = self._results(chunk.values(), form is Form.FLAT_MAP)
        return chunk.kept(results) if form is Form.FILTER else Chunk(self.schema, values=results)

    def _results(self, values: list[Any], flat: bool, apart: bool = False) -> list[Any]:
        """Apply the function to all values; after an error, the iterator's remaining length identifies the record.

        flat: it gives several values for one. apart: those of each value stay a list.
        """
        function = self.chosen.function
        if self.pool is not None:
            results = self._pooled([(value,) for value in values], (lambda v: list(function(v))) if flat else function)
            return list(chain.from_iterable(results)) if flat and not apart else results
        left = iter(values)
        try:
            if flat:
                found = map(function, left)
                return [list(each) for each in found] if apart else list(chain.from_iterable(found))
            return list(map(function, left))
        except Exception as error:
            raise self.failure(error, values[len(values) - length_hint(left) - 1]) from error

    def _whole(self, chunk: Chunk) -> Chunk:
        batch = chunk.batch()
        call = self._arrow if self.chosen.form is Form.ARROW else self._pandas
        try:
            if self.width is None:
                return Chunk(self.schema, call(batch))
            parts = min(self.width, batch.num_rows)
            cuts = [batch.num_rows * part // parts for part in range(parts + 1)]
            slices = [(batch.slice(start, stop - start),) for start, stop in pairwise(cuts)]
            return Chunk(self.schema, pa.concat_batches(self._pooled(slices, call)))
        except OperatorFailed:
            raise
        except Exception as error:
            first = batch.slice(0, 1).to_pylist()[0]
            raise self.failure(error, first, batch.num_rows) from error

    def _arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return conformed(self.chosen.function(batch), self.schema)

    def _pandas(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        frame = self.chosen.function(batch.to_pandas())
        return pa.RecordBatch.from_pandas(frame, schema=self.schema, preserve_index=False)

    def _pooled(self, arguments: Sequence[tuple[Any, ...]], function: Callable[..., Any]) -> list[Any]:
        """Results in order; adds the seconds that threads were occupied to `waited`."""

        def timed(given: tuple[Any, ...]) -> tuple[Any, float]:
            start = time.perf_counter()
            return function(*given), time.perf_counter() - start

        assert self.pool is not None
        done: list[Any] = []
        try:
            for result, seconds in self.pool.map(timed, arguments):
                done.append(result)
                self.waited += seconds
        except Exception as error:
            at_fault = arguments[len(done)][0]
            if isinstance(at_fault, pa.RecordBatch):
                raise self.failure(error, at_fault.slice(0, 1).to_pylist()[0], at_fault.num_rows) from error
            raise self.failure(error, at_fault) from error
        return done

    def _fail(self, error: str, record: object) -> None:
        raise self.failure(error, record) from None

    def _promised(self) -> str:
        return ", ".join(f"{field.name} {field.type}" for field in self.schema)

    def _misfit(self, result: Chunk) -> object:
        for value in result.values():
            try:
                Chunk(result.schema, values=[value]).batch()
            except Exception:  # whatever a value of the user's raises here, it is the one that the caller names
                return value
        return None


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
