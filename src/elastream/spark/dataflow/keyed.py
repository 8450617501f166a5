"""Compiles the keyed operator of a query: a native aggregation, or a user function with state per key.

Native aggregates are evaluated in the JVM. A function with state runs in `applyInPandasWithState`, which uses the same
state store and partitions, so that both migrate in the same way.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import pandas as pd
from pyspark import Accumulator, TaskContext, cloudpickle
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from elastream.model.errors import DataflowError, first_line
from elastream.model.graph import Form, Operator
from elastream.spark.dataflow.shipping import pickled
from elastream.spark.worker.composition import CompositionCodec, Digit
from elastream.spark.worker.fused import Carrier, batch_number
from elastream.spark.worker.meter import Meter, TaskRow
from elastream.spark.worker.runner import Implementation, OperatorFailed

__all__ = ["keyed_frame"]


def keyed_frame(
    frame: DataFrame, operator: Operator, segment: str, codec: CompositionCodec, carrier: Carrier, meter: Meter
) -> DataFrame:
    """Apply the keyed `operator` to `frame`, for a query in update mode.

    Raises DataflowError for aggregates whose types do not fit.
    """
    if operator.alternates[0].form is Form.STATE:
        return _with_state(frame, operator, segment, codec, carrier, meter)
    columns = operator.alternates[0].function
    assert isinstance(columns, Mapping)
    try:
        return frame.groupBy(*operator.key).agg(*(F.expr(sql).alias(name) for name, sql in columns.items()))
    except (AnalysisException, ParseException) as error:
        raise DataflowError(f"the aggregates of operator {operator.name!r} are invalid: {first_line(error)}") from None


def _with_state(
    frame: DataFrame, operator: Operator, segment: str, codec: CompositionCodec, carrier: Carrier, meter: Meter
) -> DataFrame:
    returns = schema_from(operator.returns, f"what operator {operator.name!r} returns")
    state = schema_from(operator.state, f"the state of operator {operator.name!r}")
    alternates = tuple(Implementation(a.name, a.form, cast(Any, a.function)) for a in operator.alternates)
    function = state_function(
        pickled(alternates, f"operator {operator.name!r}"),
        segment,
        operator.name,
        codec.alternates.get(operator.name),
        carrier,
        meter.sink,
    )
    return frame.groupBy(*operator.key).applyInPandasWithState(function, returns, state, "update", "NoTimeout")


def schema_from(ddl: object, what: str) -> StructType:
    """Parse columns written as Spark DDL. Raises DataflowError that quotes them."""
    with contextlib.suppress(ParseException, AnalysisException):
        schema = StructType.fromDDL(str(ddl))
        if isinstance(schema, StructType) and len(schema):
            return schema
    raise DataflowError(f"{what} is not a schema: {ddl!r} (write it like 'word string, n long')")


StateFunction = Callable[[tuple[Any, ...], Iterable[pd.DataFrame], Any], Iterator[pd.DataFrame]]


def state_function(
    functions: bytes, segment: str, operator: str, pick: Digit | None, carrier: Carrier, sink: Accumulator[list[TaskRow]]
) -> StateFunction:
    """Build the function for `applyInPandasWithState`: called per key of a batch, metered as one row per task."""
    alternates: list[Implementation] = []
    current: dict[str, int] = {}
    counted: list[Any] = []

    def begin(task: int) -> None:
        current["task"], current["batch"] = task, batch_number()
        current["code"] = carrier.code(current["batch"])
        alternates[:] = [cloudpickle.loads(functions)[pick.of(current["code"]) if pick else 0]]
        # The accumulator holds the list object that later calls update: it is pickled when the task ends.
        counted[:] = [[segment, current["batch"], operator, current["code"], 0, 0, 0.0, time.time(), 0.0]]
        sink.add(counted[:])

    def run(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        context = TaskContext.get()
        task = context.taskAttemptId() if context is not None else -1
        if current.get("task") != task:
            begin(task)
        (chosen,) = alternates
        rows = pd.concat(list(frames), ignore_index=True)
        started = time.thread_time()
        try:
            result, changed = chosen.function(key, rows, state.get if state.exists else None)
        except Exception as error:
            raise OperatorFailed(operator, chosen.name, error, key, len(rows)) from error
        state.update(tuple(changed))
        tally = counted[0]
        tally[4] += len(rows)
        tally[5] += len(result)
        tally[6] += time.thread_time() - started
        tally[8] = time.time()
        yield result

    return run
