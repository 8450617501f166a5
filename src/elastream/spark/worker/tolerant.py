"""Calls functions of users on records of which some are bad, and says which: the others' results are as if they came alone.

Functions of single records go on behind the record that they raised on, so that none is called twice. Functions of batches
are called again on halves, down to single records. Where nothing raises, either costs what it would without this.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress
from operator import length_hint
from typing import Any

import pyarrow as pa

from elastream.dataflow.operators import Form
from elastream.spark.worker.records import Chunk

Failed = Callable[[int, BaseException], None]
"""Takes the number of a record and what was raised on it; may raise itself, and then nothing goes on."""


def each_of(calls: Iterator[Any], left: Iterator[Any], count: int, blank: Any, failed: Failed) -> list[Any]:
    """What `calls` gives for each of `count` records, `blank` for those that it raises on.

    calls: `map`s over the list iterator `left`, which go on after they have raised.
    """
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


class Made:
    """What a function of single records made of `values`, one result for each; of FLAT_MAP, a collection each.

    bad: numbers of the records that are left out; it grows with those whose results do not fit.
    """

    def __init__(self, form: Form, values: list[Any], made: list[Any], bad: set[int]) -> None:
        self.form, self.values, self.made, self.bad = form, values, made, bad

    @staticmethod
    def blank(form: Form) -> Any:
        """What stands for the result of a record that is left out."""
        return {Form.FLAT_MAP: (), Form.FILTER: False}.get(form)

    def chunk(self, of: Chunk, schema: pa.Schema) -> Chunk:
        """What is emitted; of: the records themselves, which a filter keeps or not."""
        return of.kept(self.made) if self.form is Form.FILTER else Chunk(schema, values=self.emitted(0, len(self.made)))

    def emitted(self, first: int, behind: int) -> list[Any]:
        """What is emitted for the records with the numbers from `first` to before `behind`."""
        made = self.made if (first, behind) == (0, len(self.made)) else self.made[first:behind]
        match self.form:
            case Form.FLAT_MAP:
                return list(chain.from_iterable(made))
            case Form.FILTER:
                return list(compress(self.values[first:behind], made))
        return [each for at, each in enumerate(made, first) if at not in self.bad] if self.bad else made

    def counts(self) -> Sequence[int]:
        """How many records are emitted for each."""
        match self.form:
            case Form.FLAT_MAP:
                return list(map(len, self.made))
            case Form.FILTER:
                return list(map(bool, self.made))
        return [at not in self.bad for at in range(len(self.made))]

    def arrow(self, of: Chunk, schema: pa.Schema, failed: Failed) -> Chunk:
        """The same as Arrow, without the records whose results do not fit `schema`: each is told to `failed`."""
        result = self.chunk(of, schema)
        try:
            result.batch()
        except Exception:
            self._fit(schema, failed)
            result = self.chunk(of, schema)
            result.batch()
        return result

    def _fit(self, schema: pa.Schema, failed: Failed) -> None:
        parts = [(0, len(self.made))]
        while parts:
            first, behind = parts.pop()
            try:
                Chunk(schema, values=self.emitted(first, behind)).batch()
            except Exception as error:  # whatever a value of the user's raises here, it is the one that does not fit
                if behind - first > 1:
                    half = (first + behind) // 2
                    parts += [(half, behind), (first, half)]
                    continue
                failed(first, error)
                self.made[first] = self.blank(self.form)


def halved(
    call: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch, failed: Callable[[Any, BaseException], None]
) -> list[Any]:
    """What `call` gives for `batch`, else for parts of it; `failed` takes each record that it raises on by itself."""
    try:
        return [call(batch)]
    except Exception as error:
        if batch.num_rows == 1:
            failed(Chunk(batch.schema, batch).values()[0], error)
            return []
    half = batch.num_rows // 2
    return [*halved(call, batch.slice(0, half), failed), *halved(call, batch.slice(half), failed)]
