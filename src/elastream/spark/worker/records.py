"""Records between the operators of a walk, as an Arrow batch or Python values."""

from collections.abc import Callable
from itertools import compress
from typing import Any

import pyarrow as pa


class Chunk:
    """Records as an Arrow batch, Python values (plain, or dicts by column), or both."""

    # Conversion dominates the cost of cheap operators: values stay Python objects between two functions of single records.
    __slots__ = ("_batch", "_values", "rows", "schema")

    def __init__(self, schema: pa.Schema, batch: pa.RecordBatch | None = None, values: list[Any] | None = None) -> None:
        self.schema = schema
        self._batch: Any = batch
        self._values: Any = values
        self.rows = batch.num_rows if batch is not None else len(values or ())

    def batch(self) -> pa.RecordBatch:
        """Return the records as Arrow. Raises Arrow's exceptions for values outside the schema."""
        if self._batch is None:
            values, names = self._values, self.schema.names
            if len(names) == 1:
                columns = [pa.array(values, self.schema.field(0).type)]
            else:
                columns = [pa.array([value[field.name] for value in values], field.type) for field in self.schema]
            self._batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return self._batch

    def values(self) -> list[Any]:
        values: list[Any] | None = self._values
        if values is None:
            columns = [_column_values(column) for column in self._batch.columns]
            names = self.schema.names
            single = len(columns) == 1
            values = columns[0] if single else [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            self._values = values
        return values

    def by(self, of_values: Callable[[list[Any], list[str]], Any], of_batch: Callable[[pa.RecordBatch], Any]) -> Any:
        """Apply `of_batch` if the Arrow form exists, else `of_values`."""
        return of_batch(self._batch) if self._batch is not None else of_values(self._values, self.schema.names)

    def at(self, rows: Any) -> "Chunk":
        return Chunk(self.schema, self.batch().take(pa.array(rows)))

    def filtered(self, keep: list[Any]) -> "Chunk":
        batch = None if self._batch is None else self._batch.filter(pa.array(map(bool, keep), pa.bool_()))
        values = None if self._values is None else list(compress(self._values, keep))
        return Chunk(self.schema, batch, values)

    def slice(self, start: int, stop: int) -> "Chunk":
        return Chunk(self.schema, self.batch().slice(start, stop - start))

    def every(self, first: int, hands: int) -> "Chunk":
        if self._batch is None:
            return Chunk(self.schema, values=self._values[first::hands])
        return Chunk(self.schema, self._batch.take(pa.array(range(first, self.rows, hands), pa.int64())))

    def without_values(self) -> "Chunk":
        """Return a copy whose dicts other branches cannot modify."""
        return Chunk(self.schema, self._batch)


def _column_values(column: pa.Array) -> list[Any]:
    # to_pylist creates a Scalar per value: five times slower than numpy, which yields the same values here.
    kind = column.type
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if pa.types.is_string(kind) or (plain and column.null_count == 0):
        return list(column.to_numpy(zero_copy_only=False).tolist())
    return list(column.to_pylist())


def is_shareable(schema: pa.Schema) -> bool:
    """Return True if branches may share Python values, which are immutable."""
    return len(schema) == 1 and not pa.types.is_nested(schema.field(0).type)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch` in `schema`, columns by name and cast. Raises KeyError and ArrowException."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        if (at := batch.schema.get_field_index(field.name)) < 0:
            raise KeyError(f"the batch it returned has no column {field.name!r} (it has: {', '.join(batch.schema.names)})")
        column = batch.column(at)
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
