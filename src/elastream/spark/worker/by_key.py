"""Runs an operator whose alternate a key table chooses: records are split by their key, run, and put together again.

Functions of single records leave everything in order. Functions of batches get the records of their keys as one batch each,
and what they return follows in the order of the alternates: nobody can say which record came of which.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from elastream.model.graph import Form
from elastream.spark.worker.key_table import Lookup
from elastream.spark.worker.meter import cpu_seconds
from elastream.spark.worker.records import Chunk
from elastream.spark.worker.runner import Runner

__all__ = ["ByKey", "Metered"]

SINGLE = frozenset({Form.MAP, Form.FLAT_MAP, Form.FILTER})
"""Forms of functions that take single records."""


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

    def __call__(self, chunk: Chunk) -> Chunk:
        """Apply the operator to `chunk`. Raises OperatorFailed."""
        started = cpu_seconds()
        numbers = chunk.by(self._lookup.of_values, self._lookup.of_batch)
        numbers[numbers < 0] = self._otherwise
        counts = np.bincount(numbers)
        present = np.flatnonzero(counts).tolist()
        runs = [self.runs.get(each) or self.runs.setdefault(each, Metered(self._made(each))) for each in present]
        if len(runs) == 1:
            runs[0].busy += cpu_seconds() - started
            return runs[0](chunk)
        # Records of one alternate after the other, each in their order; small numbers are sorted by their digits.
        order = np.argsort(numbers.astype(np.int16), kind="stable")
        ends = np.cumsum(counts[present])
        forms = {run.runner.chosen.form for run in runs}
        parted = None if forms <= SINGLE and len(forms) == 1 else chunk.at(order)
        choosing = (cpu_seconds() - started) / chunk.rows
        for run, count in zip(runs, counts[present].tolist(), strict=True):
            run.busy += choosing * count
        if parted is None:
            return self._in_order(chunk, runs, np.split(order, ends[:-1]), forms.pop())
        begins = [0, *ends.tolist()]
        results = [run(parted.slice(*rows)) for run, rows in zip(runs, pairwise(begins), strict=True)]
        batches = [result.batch() for result in results if result.rows]
        return Chunk(self._schema, pa.concat_batches(batches)) if batches else results[0]

    def _in_order(self, chunk: Chunk, runs: list[Metered], parts: list[Any], form: Form) -> Chunk:
        values = chunk.values()
        found: list[Any] = [None] * len(values)
        for run, part in zip(runs, parts, strict=True):
            begun, started = time.time(), cpu_seconds()
            at = part.tolist()
            results = run.runner.for_each([values[n] for n in at])
            for n, result in zip(at, results, strict=True):
                found[n] = result
            counted = {Form.FLAT_MAP: len, Form.FILTER: bool}.get(form)
            out = len(at) if counted is None else sum(map(counted, results))
            run.took(begun, cpu_seconds() - started, len(at), out)
        if form is Form.FILTER:
            return chunk.kept(found)
        result = Chunk(self._schema, values=list(chain.from_iterable(found)) if form is Form.FLAT_MAP else found)
        if runs[0].runner.as_arrow:
            self._fit(result, found, runs, parts, form)
        return result

    def _fit(self, result: Chunk, found: list[Any], runs: list[Metered], parts: list[Any], form: Form) -> None:
        """Make `result` Arrow; where a value does not fit, the alternate that gave it is named."""
        begun, started = time.time(), cpu_seconds()
        try:
            result.batch()
        except Exception:
            for run, part in zip(runs, parts, strict=True):
                values = [found[n] for n in part.tolist()]
                flat = list(chain.from_iterable(values)) if form is Form.FLAT_MAP else values
                run.runner.fitted(Chunk(self._schema, values=flat))
            raise
        spent = (cpu_seconds() - started) / len(runs)
        for run in runs:
            run.took(begun, spent, 0, 0)
