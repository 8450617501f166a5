"""Key tables in the workers: look up each record's alternate, and run an operator by them."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise, repeat
from operator import call, itemgetter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elastream.dataflow.operators import Form
from elastream.recording.key_table_log import read_rows
from elastream.recording.paths import AnyPath, stamp_of, write_whole
from elastream.spark.worker.composition import table_digit
from elastream.spark.worker.meter import MeteredRunner, cpu_seconds
from elastream.spark.worker.records import Chunk
from elastream.spark.worker.runner import Results, Runner, map_each

Numbers = NDArray[np.int16]

# Arrow indexes all keys anew for each batch. That takes as long as looking up one record for every four keys.
KEYS_PER_LOOKUP = 4
# An array of answers (two bytes per slot) pays while the span of integer keys stays below this multiple of their number.
MAX_SLOTS_PER_KEY = 8


def publish_table(folder: AnyPath, operator: str, version: int, file: AnyPath) -> None:
    write_whole(_place(folder, operator, table_digit(version)), file.read_bytes())


def lookup(folder: AnyPath, operator: str, digit: int, alternates: Sequence[str]) -> "Lookup":
    """Return the indexed table of `digit`; its answers are positions in `alternates`."""
    place = _place(folder, operator, digit)
    return _cached_lookup(place, *stamp_of(place), tuple(alternates))


def _place(folder: AnyPath, operator: str, digit: int) -> AnyPath:
    return folder / operator / f"{digit:03d}.arrow"


@lru_cache(maxsize=64)
def _cached_lookup(place: AnyPath, _inode: int, _written: int, alternates: tuple[str, ...]) -> "Lookup":
    columns, rows = read_rows(place.read_bytes())
    return Lookup(columns, rows, alternates)


class Lookup:
    """A key table, indexed: the alternate's number by key, -1 for missing keys."""

    def __init__(self, columns: Sequence[str], rows: Mapping[tuple[Any, ...], str], alternates: Sequence[str]) -> None:
        self.columns = tuple(columns)
        number = {name: at for at, name in enumerate(alternates)}
        # The value of a single column is the key itself, which saves a tuple per record.
        single = len(self.columns) == 1
        self._by_key: dict[Any, int] = {key[0] if single else key: number[name] for key, name in rows.items()}
        # The last entry, at -1, is for missing keys.
        self._numbers = np.array([*self._by_key.values(), -1], dtype=np.int16)
        self._keys: dict[pa.DataType, Any] = {}

    def of_key(self, key: Sequence[Any]) -> int:
        """Return the alternate's number for one key, a value a column."""
        return self._by_key.get(key[0] if len(self.columns) == 1 else tuple(key), -1)

    def of_values(self, values: Sequence[Any], names: Sequence[str]) -> Numbers:
        """Return the alternates' numbers for Python records."""
        keys = values if len(names) == 1 else map(itemgetter(*self.columns), values)
        return np.fromiter(map(self._by_key.get, keys, repeat(-1)), dtype=np.int16, count=len(values))

    def of_batch(self, batch: pa.RecordBatch) -> Numbers:
        if len(self.columns) > 1:
            columns = [batch.column(name).to_pylist() for name in self.columns]
            return np.array([self._by_key.get(key, -1) for key in zip(*columns, strict=True)], dtype=np.int16)
        column = batch.column(self.columns[0])
        if pa.types.is_integer(column.type):
            return self._of_integers(column)
        if batch.num_rows * KEYS_PER_LOOKUP < len(self._by_key):
            return np.array([self._by_key.get(key, -1) for key in column.to_pylist()], dtype=np.int16)
        if (keys := self._keys.get(column.type)) is None:
            keys = self._keys[column.type] = pa.array(list(self._by_key)).cast(column.type)
        at = pc.fill_null(pc.index_in(column, value_set=keys), -1)
        numbers: Numbers = self._numbers[at.to_numpy(zero_copy_only=False)]
        return numbers

    def _of_integers(self, column: pa.Array) -> Numbers:
        values = pc.fill_null(column, 0) if column.null_count else column
        keys = values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        numbers: Numbers
        if self._dense is None:
            numbers = self._numbers[self._index.get_indexer(keys)]
        else:
            least, answers = self._dense
            # As unsigned numbers, keys below the least lie beyond the last: one comparison covers both.
            numbers = answers[np.minimum((keys - least).view(np.uint64), np.uint64(len(answers) - 1)).view(np.int64)]
        if column.null_count:
            numbers[column.is_null().to_numpy(zero_copy_only=False)] = -1
        return numbers

    @cached_property
    def _dense(self) -> tuple[int, Numbers] | None:
        # A tenth of the work of a hash for each record.
        least = min(self._by_key, default=0)
        span = max(self._by_key, default=0) - least + 1
        if span > MAX_SLOTS_PER_KEY * len(self._by_key):
            return None
        answers = np.full(span + 1, -1, dtype=np.int16)
        answers[np.array(list(self._by_key), dtype=np.int64) - least] = self._numbers[:-1]
        return least, answers

    @cached_property
    def _index(self) -> pd.Index:
        return pd.Index(np.array(list(self._by_key), dtype=np.int64))


# Forms of functions that take single records.
RECORD_FORMS = frozenset({Form.MAP, Form.FLAT_MAP, Form.FILTER, Form.SWITCH})
# Up to TIMED_RECORDS of a chunk, or an eighth of a large one, run alternate by alternate, which measures their costs. The
# rest is called in record order at a third of that overhead; its time is divided in proportion to those costs.
TIMED_RECORDS, TIMED_DIVISOR = 1000, 8


class KeyTableRunner:
    """An operator in one task whose alternate a key table chooses for each record.

    Functions of single records keep record order; results of batch functions are grouped by alternate. `make` returns the
    runner of an alternate; `otherwise` is the one for missing keys.
    """

    def __init__(self, make: Callable[[int], Runner], lookup: Lookup, otherwise: int, schema: pa.Schema) -> None:
        self._make, self._lookup, self._otherwise, self._schema = make, lookup, otherwise, schema
        self.runs: dict[int, MeteredRunner] = {}
        # CPU seconds per record by alternate, from the last timed calls.
        self._costs: dict[int, float] = {}

    def __call__(self, chunk: Chunk) -> Chunk:
        """Apply the operator to `chunk`. Raises OperatorError."""
        started = cpu_seconds()
        numbers = chunk.by(self._lookup.of_values, self._lookup.of_batch)
        if numbers.min() < 0:
            numbers[numbers < 0] = self._otherwise
        counts = np.bincount(numbers).tolist()
        runs = {each: self._run(each) for each, count in enumerate(counts) if count}
        choosing = (cpu_seconds() - started) / chunk.rows
        for each, run in runs.items():
            run.busy += choosing * counts[each]
        if len(runs) == 1:
            return next(iter(runs.values()))(chunk)
        forms = {run.runner.chosen.form for run in runs.values()}
        loops = any(run.runner.loop is not None for run in runs.values())
        if len(forms) == 1 and forms <= RECORD_FORMS and not loops:
            return self._record_by_record(chunk, numbers, runs, forms.pop())
        # Group records by alternate, each group in record order.
        ordered = chunk.at(np.argsort(numbers, kind="stable"))
        spans = pairwise([0, *np.cumsum([counts[each] for each in runs]).tolist()])
        results = [run(ordered.slice(*span)) for run, span in zip(runs.values(), spans, strict=True)]
        batches = [result.batch() for result in results if result.rows]
        return Chunk(self._schema, pa.concat_batches(batches)) if batches else results[0]

    def _run(self, number: int) -> MeteredRunner:
        return self.runs.get(number) or self.runs.setdefault(number, MeteredRunner(self._make(number)))

    def _record_by_record(self, chunk: Chunk, numbers: Numbers, runs: Mapping[int, MeteredRunner], form: Form) -> Chunk:
        values, begun = chunk.values(), time.time()
        pooled = any(run.runner.pool is not None for run in runs.values())
        timed = chunk.rows if pooled else max(TIMED_RECORDS, chunk.rows // TIMED_DIVISOR)
        bad = set[int]()
        made = self._by_alternate(values[:timed], numbers[:timed], runs, bad)
        if timed < chunk.rows:
            made += self._in_order(values, timed, numbers, runs, form, bad)
        results = Results(form, values, made, bad)
        output = self._output(results, chunk, numbers, runs)
        rows_in, rows_out = np.bincount(numbers), np.bincount(numbers, np.array(results.counts(), dtype=np.int64))
        for number, run in runs.items():
            run.count(begun, 0.0, int(rows_in[number]), int(rows_out[number]))
        return output

    def _by_alternate(
        self, values: list[Any], numbers: Numbers, runs: Mapping[int, MeteredRunner], bad: set[int]
    ) -> list[Any]:
        made: list[Any] = [None] * len(values)
        for number, run in runs.items():
            if mine := np.flatnonzero(numbers == number).tolist():
                started, apart = cpu_seconds(), set[int]()
                for at, result in zip(mine, run.runner.for_each([values[at] for at in mine], apart), strict=True):
                    made[at] = result
                bad |= {mine[at] for at in apart}
                spent = cpu_seconds() - started
                run.busy += spent
                self._costs[number] = spent / len(mine)
        return made

    def _in_order(
        self, values: list[Any], first: int, numbers: Numbers, runs: Mapping[int, MeteredRunner], form: Form, bad: set[int]
    ) -> list[Any]:
        rest, chosen = values[first:], numbers[first:]
        started, left = cpu_seconds(), iter(rest)
        functions = {number: run.runner.chosen.function for number, run in runs.items()}
        results = map(call, map(functions.__getitem__, chosen.tolist()), left)

        def failed(at: int, error: BaseException) -> None:
            runs[int(chosen[at])].runner.failed(values, bad, first + at, error)

        each_made = map(list, results) if form is Form.FLAT_MAP else results
        made = map_each(each_made, left, len(rest), Results.blank(form), failed)
        usual, counts = sum(self._costs.values()) / len(self._costs), np.bincount(chosen, minlength=max(runs) + 1)
        parts = {number: self._costs.get(number, usual) * int(counts[number]) for number in runs}
        each = (cpu_seconds() - started) / max(sum(parts.values()), 1e-12)
        for number, run in runs.items():
            run.busy += each * parts[number]
        return made

    def _output(self, results: Results, chunk: Chunk, numbers: Numbers, runs: Mapping[int, MeteredRunner]) -> Chunk:
        if not next(iter(runs.values())).runner.as_arrow:
            return results.chunk(chunk, self._schema)
        started = cpu_seconds()
        output = results.arrow(chunk, self._schema, lambda at, why: runs[int(numbers[at])].runner.misfit(results, at, why))
        spent = (cpu_seconds() - started) / len(runs)
        for run in runs.values():
            run.busy += spent
        return output
