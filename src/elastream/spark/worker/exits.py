"""The rows in which records leave a walk: tagged with their exit, and numbered if order matters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

# Column with the number of a record's exit, in a chain with several exits.
EXIT = "_exit"
# Column with a record's position in its micro-batch: its task, then its place in the task.
ORDER = "_order"
# Positions reserved for the records of one task.
MAX_TASK_RECORDS = 1 << 40


@dataclass(frozen=True, slots=True)
class Exit:
    """An exit of records: a sink, a durable edge, a keyed operator, or native columns."""

    name: str
    schema: pa.Schema


def exit_schema(exits: Sequence[Exit], ordered: bool) -> pa.Schema:
    """Return the schema of a walk's output rows; Spark needs a column even without exits."""
    match exits:
        case []:
            schema = pa.schema([pa.field(EXIT, pa.int32())])
        case [exit]:
            schema = exit.schema
        case _:
            schema = tagged_schema(exits)
    return schema.append(pa.field(ORDER, pa.int64())) if ordered else schema


class ExitRows:
    """Converts records at the exits of task number `task` into output rows."""

    def __init__(self, exits: Sequence[Exit], ordered: bool, task: int) -> None:
        self._tagged = tagged_schema(exits) if len(exits) > 1 else None
        self._ordered = ordered
        self._place = task * MAX_TASK_RECORDS

    def __call__(self, exit: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch if self._tagged is None else _tagged(exit, batch, self._tagged)
        if self._ordered:
            rows = rows.append_column(ORDER, pa.array(np.arange(self._place, self._place + rows.num_rows)))
            self._place += rows.num_rows
        return rows


def tagged_schema(exits: Sequence[Exit]) -> pa.Schema:
    """Return the schema of several exits: the exit's number and a struct per exit, one filled."""
    return pa.schema(
        [pa.field(EXIT, pa.int32()), *(pa.field(f"_{n}", pa.struct(list(exit.schema))) for n, exit in enumerate(exits))]
    )


def _tagged(exit: int, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    rows = batch.num_rows
    columns: list[pa.Array] = [pa.repeat(pa.scalar(exit, pa.int32()), rows)]
    for number in range(len(schema) - 1):
        kind = schema.field(number + 1).type
        filled = number == exit
        columns.append(pa.StructArray.from_arrays(batch.columns, fields=list(kind)) if filled else pa.nulls(rows, kind))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
