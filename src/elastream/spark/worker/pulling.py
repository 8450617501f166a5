"""Calls an operator that pulls: it is given an iterator over the records kept for it, and gives an iterator of its own.

In a walk records are pushed from operator to operator; one that pulls gets them once all of the task's have come, so that
it needs no thread. Records are let go as it reads them.
"""

from collections import deque
from collections.abc import Iterator

import pyarrow as pa

from elastream.spark.worker.records import Chunk, conformed
from elastream.spark.worker.runner import Implementation, OperatorFailed


def pulled(operator: str, chosen: Implementation, schema: pa.Schema, held: deque[pa.RecordBatch]) -> Iterator[Chunk]:
    """What the function makes of `held`, one of its batches after the other. Raises OperatorFailed."""
    newest = held[0]

    def records() -> Iterator[pa.RecordBatch]:
        nonlocal newest
        while held:
            newest = held.popleft()
            yield newest

    def failed(error: BaseException | str) -> OperatorFailed:
        return OperatorFailed(operator, chosen.name, error, newest.slice(0, 1).to_pylist()[0], newest.num_rows)

    try:
        for result in chosen.function(records()):
            if not isinstance(result, pa.RecordBatch):
                raise failed(f"it emitted a {type(result).__name__}, not a pyarrow.RecordBatch")
            yield Chunk(schema, conformed(result, schema))
    except OperatorFailed:
        raise
    except Exception as error:
        raise failed(error) from error
    finally:
        held.clear()
