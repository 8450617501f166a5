"""Holds the records between operators of a walk, as an Arrow batch or Python values, converted on demand.

Conversion dominates the cost of cheap operators: between two functions of single records the values stay Python objects,
and a batch is converted once for all branches.
"""

from collections.abc import Callable
from itertools import compress
from typing import Any

import pyarrow as pa


class Chunk:
    """Records between operators, as an Arrow batch, Python values, or both; each form is computed on demand.

    A Python value is that of the only column, or a dict by column.
    """

    __slots__ = ("_batch", "_values", "rows", "schema")

    def __init__(self, schema: pa.Schema, batch: pa.RecordBatch | None = None, values: list[Any] | None = None) -> None:
        self.schema = schema
        self._batch: Any = batch
        self._values: Any = values
        self.rows = batch.num_rows if batch is not None else len(values or ())

    def batch(self) -> pa.RecordBatch:
        """As Arrow, in the declared schema. Raises Arrow's exceptions for values that do not fit it."""
        if self._batch is None:
            values, names = self._values, self.schema.names
            if len(names) == 1:
                columns = [pa.array(values, self.schema.field(0).type)]
            else:
                columns = [pa.array([value[field.name] for value in values], field.type) for field in self.schema]
            self._batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return self._batch

    def values(self) -> list[Any]:
        """As Python values."""
        found: list[Any] | None = self._values
        if found is None:
            columns = [_column_values(column) for column in self._batch.columns]
            names = self.schema.names
            single = len(columns) == 1
            found = columns[0] if single else [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            self._values = found
        return found

    def by(self, of_values: Callable[[list[Any], list[str]], Any], of_batch: Callable[[pa.RecordBatch], Any]) -> Any:
        """What one of the two functions gives for the records, in whichever form they are there already."""
        return of_batch(self._batch) if self._batch is not None else of_values(self._values, self.schema.names)

    def at(self, rows: Any) -> "Chunk":
        """The records with the numbers `rows`, an array."""
        return Chunk(self.schema, self.batch().take(pa.array(rows)))

    def kept(self, keep: list[Any]) -> "Chunk":
        """The records for which `keep` is true."""
        batch = None if self._batch is None else self._batch.filter(pa.array(map(bool, keep), pa.bool_()))
        values = None if self._values is None else list(compress(self._values, keep))
        return Chunk(self.schema, batch, values)

    def slice(self, start: int, stop: int) -> "Chunk":
        """The records with the numbers from `start` to before `stop`."""
        return Chunk(self.schema, self.batch().slice(start, stop - start))

    def dealt(self, first: int, hands: int) -> "Chunk":
        """Every `hands`-th record, starting with number `first`."""
        if self._batch is None:
            return Chunk(self.schema, values=self._values[first::hands])
        return Chunk(self.schema, self._batch.take(pa.array(range(first, self.rows, hands), pa.int64())))

    def apart(self) -> "Chunk":
        """A copy without the Python values, so that a function that modifies a dict does not affect other branches."""
        return Chunk(self.schema, self._batch)


def _column_values(column: pa.Array) -> list[Any]:
    # to_pylist creates a Scalar per value: five times slower than numpy, which yields the same values here.
    kind = column.type
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if pa.types.is_string(kind) or (plain and column.null_count == 0):
        return list(column.to_numpy(zero_copy_only=False).tolist())
    return list(column.to_pylist())


def shareable(schema: pa.Schema) -> bool:
    """Whether branches may share Python values: a single column of immutable values."""
    return len(schema) == 1 and not pa.types.is_nested(schema.field(0).type)


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` in `schema`: columns selected by name and cast. Raises KeyError for a missing column, ArrowException."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        if (at := batch.schema.get_field_index(field.name)) < 0:
            raise KeyError(f"the batch it returned has no column {field.name!r} (it has: {', '.join(batch.schema.names)})")
        column = batch.column(at)
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
