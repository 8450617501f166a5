"""The rows in which records leave a walk: of several exits in one stream, numbered where an operator needs their order."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

EXIT = "_exit"
"""Column with the number of the exit of a record, in a region with several exits."""
ORDER = "_order"
"""Column with the place of a record in its micro-batch, where that is needed: its task, then its place in the task."""
TASK = 1 << 40
"""Records of one task that places tell apart, at most."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Where records leave: to a sink, a durable edge, a keyed operator, or native columns before one of these."""

    name: str
    schema: pa.Schema


def leaving_schema(exits: Sequence[Exit], ordered: bool) -> pa.Schema:
    """Of the rows that leave a walk. Without an exit there are none, and a column only because Spark needs one."""
    match exits:
        case []:
            schema = pa.schema([pa.field(EXIT, pa.int32())])
        case [exit]:
            schema = exit.schema
        case _:
            schema = tagged_schema(exits)
    return schema.append(pa.field(ORDER, pa.int64())) if ordered else schema


class Leaving:
    """Turns what leaves a walk by its exits into rows of its schema. task: number of this task in the micro-batch."""

    def __init__(self, exits: Sequence[Exit], ordered: bool, task: int) -> None:
        self._tagged = tagged_schema(exits) if len(exits) > 1 else None
        self._ordered = ordered
        self._place = task * TASK

    def __call__(self, exit: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch`, which leaves by exit number `exit`, as rows."""
        rows = batch if self._tagged is None else _tagged(exit, batch, self._tagged)
        if self._ordered:
            rows = rows.append_column(ORDER, pa.array(np.arange(self._place, self._place + rows.num_rows)))
            self._place += rows.num_rows
        return rows


def tagged_schema(exits: Sequence[Exit]) -> pa.Schema:
    """Schema for rows of several exits in one stream: the exit number, and a struct per exit, one of them filled."""
    return pa.schema(
        [pa.field(EXIT, pa.int32()), *(pa.field(f"_{n}", pa.struct(list(exit.schema))) for n, exit in enumerate(exits))]
    )


def _tagged(exit: int, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` as rows of `tagged_schema`."""
    rows = batch.num_rows
    columns: list[pa.Array] = [pa.repeat(pa.scalar(exit, pa.int32()), rows)]
    for number in range(len(schema) - 1):
        kind = schema.field(number + 1).type
        filled = number == exit
        columns.append(pa.StructArray.from_arrays(batch.columns, fields=list(kind)) if filled else pa.nulls(rows, kind))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
