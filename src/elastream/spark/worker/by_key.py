"""Runs an operator whose alternate a key table chooses: records are split by their key, run, and put together again.

Functions of single records leave everything in order. Functions of batches get the records of their keys as one batch each,
and what they return follows in the order of the alternates: nobody can say which record came of which.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from operator import call
from typing import Any

import numpy as np
import pyarrow as pa

from elastream.dataflow.operators import Form
from elastream.spark.worker.meter import cpu_seconds
from elastream.spark.worker.records import Chunk
from elastream.spark.worker.runner import Runner
from elastream.spark.worker.table_lookup import Lookup, Numbers
from elastream.spark.worker.tolerant import Made, each_of

SINGLE = frozenset({Form.MAP, Form.FLAT_MAP, Form.FILTER})
"""Forms of functions that take single records."""
TIMED, PART = 1000, 8
"""So many records of a chunk, and an eighth of a large one, run alternate by alternate, which tells what each costs.
The others are called one after the other, which costs a third of that, and their time is dealt by what the first told."""


@dataclass(slots=True)
class Metered:
    """A runner and what it has done in one task under one composition. first, last: epoch seconds."""

    runner: Runner
    rows_in: int = 0
    rows_out: int = 0
    busy: float = 0.0
    first: float = field(default_factory=time.time)
    last: float = field(default_factory=time.time)

    def __call__(self, chunk: Chunk) -> Chunk:
        """Apply the operator to `chunk`."""
        begun, started = time.time(), cpu_seconds()
        result = self.runner(chunk)
        self.took(begun, cpu_seconds() - started, chunk.rows, result.rows)
        return result

    def took(self, begun: float, busy: float, rows_in: int, rows_out: int) -> None:
        """Count a call that began at `begun` and ends now."""
        if not self.rows_in:
            self.first = begun
        self.busy += busy
        self.last = time.time()
        self.rows_in += rows_in
        self.rows_out += rows_out


class ByKey:
    """The operator in one task, under a composition with a key table.

    made: a runner by the number of its alternate. otherwise: the alternate for keys that `lookup` does not name.
    """

    def __init__(self, made: Callable[[int], Runner], lookup: Lookup, otherwise: int, schema: pa.Schema) -> None:
        self._made, self._lookup, self._otherwise, self._schema = made, lookup, otherwise, schema
        self.runs: dict[int, Metered] = {}
        self._costs: dict[int, float] = {}
        """CPU seconds of a record of each alternate, as they were last timed."""

    def __call__(self, chunk: Chunk) -> Chunk:
        """Apply the operator to `chunk`. Raises OperatorFailed."""
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
        if len(forms) == 1 and forms <= SINGLE:
            return self._singly(chunk, numbers, runs, forms.pop())
        # Records of one alternate after the other, each in their order; small numbers are sorted by their digits.
        ordered = chunk.at(np.argsort(numbers, kind="stable"))
        spans = pairwise([0, *np.cumsum([counts[each] for each in runs]).tolist()])
        results = [run(ordered.slice(*span)) for run, span in zip(runs.values(), spans, strict=True)]
        batches = [result.batch() for result in results if result.rows]
        return Chunk(self._schema, pa.concat_batches(batches)) if batches else results[0]

    def _run(self, number: int) -> Metered:
        return self.runs.get(number) or self.runs.setdefault(number, Metered(self._made(number)))

    def _singly(self, chunk: Chunk, numbers: Numbers, runs: Mapping[int, Metered], form: Form) -> Chunk:
        """What functions of single records make of `chunk`, in order."""
        values, begun = chunk.values(), time.time()
        pooled = any(run.runner.pool is not None for run in runs.values())
        timed = chunk.rows if pooled else max(TIMED, chunk.rows // PART)
        bad = set[int]()
        made = self._apart(values[:timed], numbers[:timed], runs, bad)
        if timed < chunk.rows:
            made += self._in_turn(values, timed, numbers, runs, form, bad)
        found = Made(form, values, made, bad)
        result = self._fitted(found, chunk, numbers, runs)
        taken = np.bincount(numbers)
        emitted = np.bincount(numbers, np.array(found.counts(), dtype=np.int64))
        for number, run in runs.items():
            run.took(begun, 0.0, int(taken[number]), int(emitted[number]))
        return result

    def _apart(self, values: list[Any], numbers: Numbers, runs: Mapping[int, Metered], bad: set[int]) -> list[Any]:
        """The result of each value, computed alternate by alternate. bad: to which the numbers of those left out go."""
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

    def _in_turn(
        self, values: list[Any], first: int, numbers: Numbers, runs: Mapping[int, Metered], form: Form, bad: set[int]
    ) -> list[Any]:
        """The result of each value from number `first` on, computed one after the other."""
        rest, chosen = values[first:], numbers[first:]
        started, left = cpu_seconds(), iter(rest)
        functions = {number: run.runner.chosen.function for number, run in runs.items()}
        results = map(call, map(functions.__getitem__, chosen.tolist()), left)

        def failed(at: int, error: BaseException) -> None:
            runs[int(chosen[at])].runner.failed(values, bad, first + at, error)

        made = each_of(map(list, results) if form is Form.FLAT_MAP else results, left, len(rest), Made.blank(form), failed)
        usual, taken = sum(self._costs.values()) / len(self._costs), np.bincount(chosen, minlength=max(runs) + 1)
        parts = {number: self._costs.get(number, usual) * int(taken[number]) for number in runs}
        each = (cpu_seconds() - started) / max(sum(parts.values()), 1e-12)
        for number, run in runs.items():
            run.busy += each * parts[number]
        return made

    def _fitted(self, found: Made, chunk: Chunk, numbers: Numbers, runs: Mapping[int, Metered]) -> Chunk:
        """What is emitted, as Arrow where that is wanted; an error names the alternate whose value does not fit."""
        if not next(iter(runs.values())).runner.as_arrow:
            return found.chunk(chunk, self._schema)
        started = cpu_seconds()
        result = found.arrow(chunk, self._schema, lambda at, error: runs[int(numbers[at])].runner.misfit(found, at, error))
        spent = (cpu_seconds() - started) / len(runs)
        for run in runs.values():
            run.busy += spent
        return result
