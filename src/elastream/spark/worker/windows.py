"""Windows in the workers: the records of a key wait, as Arrow, until a window of them is complete."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StructField, StructType

from elastream.dataflow.operators import Form
from elastream.dataflow.windows import Window, WindowKind
from elastream.spark.worker.exits import EXIT, ORDER
from elastream.spark.worker.runner import Implementation, OperatorError

# Columns of a record's time window: its start, its end, and its end in milliseconds since 1970.
START, END, UNTIL = "_start", "_end", "_until"
# Records of one key by port, in order.
PortTables: TypeAlias = tuple[pa.Table, ...]


@dataclass(frozen=True, slots=True)
class Grouping:
    """The grouping of an operator's records; `window` is None for a zip."""

    name: str
    form: Form
    window: Window | None
    ports: tuple[pa.Schema, ...]

    @property
    def schema(self) -> StructType:
        """Return the schema of the state of one key: a column of bytes per port, with the records that wait there."""
        return StructType([StructField(f"port_{number}", BinaryType()) for number in range(len(self.ports))])

    @property
    def empty(self) -> PortTables:
        return tuple(schema.empty_table() for schema in self.ports)

    def unpack(self, stored: Sequence[bytes | None] | None) -> PortTables:
        """Return the tables that `pack` stored; empty ones without state."""
        if stored is None:
            return self.empty
        pairs = zip(stored, self.ports, strict=True)
        return tuple(schema.empty_table() if each is None else _table(bytes(each), schema) for each, schema in pairs)

    @property
    def in_time(self) -> bool:
        return self.window is not None and self.window.kind is WindowKind.TIME

    def incoming(self, rows: pd.DataFrame) -> PortTables:
        """Return a key's records in one micro-batch, by port and in order."""
        rows = rows.sort_values(ORDER)
        if len(self.ports) == 1:
            table = pa.Table.from_pandas(rows, self.ports[0], preserve_index=False).replace_schema_metadata()
            return (table if self.in_time else self._in_order(table),)
        tables = list[pa.Table]()
        for port, schema in enumerate(self.ports):
            values = [_as_dict(value) for value in rows.loc[rows[EXIT] == port, f"_{port}"]]
            batch = pa.RecordBatch.from_struct_array(pa.array(values, pa.struct(list(schema))))
            tables.append(pa.Table.from_batches([batch], schema))
        return tuple(tables) if self.in_time else tuple(map(self._in_order, tables))

    def joined(self, before: PortTables, after: PortTables) -> PortTables:
        return tuple(pa.concat_tables(pair) for pair in zip(before, after, strict=True))

    def complete(self, waiting: PortTables) -> tuple[list[PortTables], PortTables]:
        """Return the complete windows, oldest first, and the rest. Not for time windows."""
        if self.window is None:
            whole = min(part.num_rows for part in waiting)
            first = tuple(part.slice(0, whole) for part in waiting)
            return [first] if whole else [], tuple(part.slice(whole) for part in waiting)
        spans = [_spans(self.window, part) for part in waiting]
        count = min(map(len, spans))
        if not count:
            return [], waiting
        pairs = list(zip(waiting, spans, strict=True))
        windows = [tuple(part.slice(of[n][0], of[n][1] - of[n][0]) for part, of in pairs) for n in range(count)]
        return windows, tuple(part.slice(of[count - 1][2]) for part, of in pairs)

    def flush(self, waiting: PortTables) -> list[PortTables]:
        """Return the windows to emit when no more records are expected."""
        if self.window is None or self.in_time:
            return [tuple(map(self._in_order, waiting))]
        left = []
        for part in waiting:
            spans = _spans(self.window, part)
            rest = part.slice(spans[-1][2]) if spans else part
            left.append([*(part.slice(a, b - a) for a, b, _ in spans), *([rest] if rest.num_rows else [])])
        return [
            tuple(none if part is None else part for part, none in zip(window, self.empty, strict=True))
            for window in zip_longest(*left)
        ]

    def call(self, chosen: Implementation, key: tuple[Any, ...], window: PortTables) -> pd.DataFrame:
        """Apply the alternate `chosen` to one complete window. Raises OperatorError."""
        if self.form is Form.ZIP:
            columns = [column for part in window for column in part.columns]
            return frame_of(pa.Table.from_arrays(columns, [name for part in window for name in part.column_names]))
        try:
            result = chosen.function(key, *map(frame_of, window))
        except Exception as error:
            raise self._failed(chosen, error, window) from error
        if not isinstance(result, pd.DataFrame):
            raise self._failed(chosen, f"it returned a {type(result).__name__}, not a pandas DataFrame", window)
        return result

    def _failed(self, chosen: Implementation, error: BaseException | str, window: PortTables) -> OperatorError:
        first = next(part for part in window if part.num_rows).slice(0, 1).to_pylist()[0]
        return OperatorError(self.name, chosen.name, error, first, sum(part.num_rows for part in window))

    def _in_order(self, part: pa.Table) -> pa.Table:
        if self.window is None or not self.window.by or not part.num_rows:
            return part
        return part.take(pc.sort_indices(part, [(self.window.by, "ascending")]))


Span: TypeAlias = tuple[int, int, int]


def _spans(window: Window, part: pa.Table) -> Sequence[Span]:
    """Return the complete windows of `part`: start, end, and the next start."""
    if window.kind is WindowKind.COUNT:
        length, step = int(window.count or 0), int(window.step)
        return [(at, at + length, at + step) for at in range(0, part.num_rows - length + 1, step)]
    marked = pc.fill_null(part.column(window.landmark or "").cast(pa.bool_()), False)
    ends = (np.flatnonzero(marked.to_numpy(zero_copy_only=False)) + 1).tolist()
    return [(first, behind, behind) for first, behind in zip([0, *ends], ends, strict=False)]


def frame_of(part: pa.Table) -> pd.DataFrame:
    """Convert records to pandas as Spark does for pandas functions."""
    frame: pd.DataFrame = part.to_pandas(date_as_object=True, coerce_temporal_nanoseconds=True)
    return frame


def pack(tables: PortTables) -> tuple[bytes | None, ...]:
    """Return records as state: one value per port, None for no records."""
    return tuple(_bytes(part) if part.num_rows else None for part in tables)


def _bytes(part: pa.Table) -> bytes:
    (batch,) = part.combine_chunks().to_batches()
    content: bytes = batch.serialize().to_pybytes()
    return content


def _table(stored: bytes, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(stored), schema)])


def _as_dict(value: Any) -> Any:
    return value.asDict() if hasattr(value, "asDict") else value
