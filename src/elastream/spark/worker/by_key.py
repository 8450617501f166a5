"""Runs an operator whose alternate a key table chooses: records are split by their key, run, and put together again.

Functions of single records leave everything in order. Functions of batches get the records of their keys as one batch each,
and what they return follows in the order of the alternates: nobody can say which record came of which.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from elastream.model.graph import Form
from elastream.spark.worker.key_table import Lookup
from elastream.spark.worker.meter import cpu_seconds
from elastream.spark.worker.records import Chunk
from elastream.spark.worker.runner import Runner

__all__ = ["ByKey", "Metered"]

Span: TypeAlias = tuple[int, int]
"""The first of some records, and the one behind the last."""

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
        if numbers.min() < 0:
            numbers[numbers < 0] = self._otherwise
        counts = np.bincount(numbers)
        present = np.flatnonzero(counts).tolist()
        runs = [self.runs.get(each) or self.runs.setdefault(each, Metered(self._made(each))) for each in present]
        if len(runs) == 1:
            runs[0].busy += cpu_seconds() - started
            return runs[0](chunk)
        # Records of one alternate after the other, each in their order; small numbers are sorted by their digits.
        order = np.argsort(numbers, kind="stable")
        spans = list(pairwise([0, *np.cumsum(counts[present]).tolist()]))
        forms = {run.runner.chosen.form for run in runs}
        each = len(forms) == 1 and forms <= SINGLE
        if each:
            parted = np.fromiter(chunk.values(), dtype=object, count=chunk.rows)[order].tolist()
        else:
            sorted_chunk = chunk.at(order)
        choosing = (cpu_seconds() - started) / chunk.rows
        for run, (first, last) in zip(runs, spans, strict=True):
            run.busy += choosing * (last - first)
        if each:
            return self._in_order(chunk, runs, order, spans, parted, forms.pop())
        results = [run(sorted_chunk.slice(*span)) for run, span in zip(runs, spans, strict=True)]
        batches = [result.batch() for result in results if result.rows]
        return Chunk(self._schema, pa.concat_batches(batches)) if batches else results[0]

    def _in_order(
        self, chunk: Chunk, runs: list[Metered], order: Any, spans: list[Span], parted: list[Any], form: Form
    ) -> Chunk:
        """What functions of single records make of `chunk`. parted: its values in the order `order`; spans: of each run."""
        counted = {Form.FLAT_MAP: len, Form.FILTER: bool}.get(form)
        made: list[Any] = []
        for run, (first, last) in zip(runs, spans, strict=True):
            begun, started = time.time(), cpu_seconds()
            results = run.runner.for_each(parted[first:last])
            made += results
            out = last - first if counted is None else sum(map(counted, results))
            run.took(begun, cpu_seconds() - started, last - first, out)
        placed = np.empty(chunk.rows, dtype=object)
        placed[order] = np.fromiter(made, dtype=object, count=chunk.rows)
        found = placed.tolist()
        if form is Form.FILTER:
            return chunk.kept(found)
        result = Chunk(self._schema, values=list(chain.from_iterable(found)) if form is Form.FLAT_MAP else found)
        if runs[0].runner.as_arrow:
            self._fit(result, runs, spans, made, form)
        return result

    def _fit(self, result: Chunk, runs: list[Metered], spans: list[Span], made: list[Any], form: Form) -> None:
        """Make `result` Arrow; where a value does not fit, the alternate that gave it is named."""
        begun, started = time.time(), cpu_seconds()
        try:
            result.batch()
        except Exception:
            for run, span in zip(runs, spans, strict=True):
                values = made[slice(*span)]
                flat = list(chain.from_iterable(values)) if form is Form.FLAT_MAP else values
                run.runner.fitted(Chunk(self._schema, values=flat))
            raise
        spent = (cpu_seconds() - started) / len(runs)
        for run in runs:
            run.took(begun, spent, 0, 0)
