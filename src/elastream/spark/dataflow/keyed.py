"""Compiles the keyed operator of a query: a native aggregation, or user functions with state per key.

Native aggregates are evaluated in the JVM. A function with state runs in `applyInPandasWithState`, which uses the same
state store and partitions, so that both migrate in the same way. Spark never learns which alternate is active: that is the
composition's, which the worker reads.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from elastream.dataflow.operators import Form, Operator
from elastream.dataflow.windows import Timeout
from elastream.errors import DataflowError, first_line
from elastream.spark.dataflow.shipping import pickled
from elastream.spark.worker.composition import CompositionCodec
from elastream.spark.worker.fused import Carrier
from elastream.spark.worker.meter import Meter
from elastream.spark.worker.runner import Implementation
from elastream.spark.worker.stateful import MOMENT, WATCHED, Choice, Keyed, state_function
from elastream.spark.worker.states import States
from elastream.spark.worker.windows import Grouping

DELAY = "spark.watermarkDelayMs"
"""Key of a column's metadata by which Spark knows the one with the watermark."""
NEVER_LATE = 1 << 62
"""A time, in microseconds since 1970, that no watermark reaches."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the workers of a keyed operator need to know of the query that it is in."""

    segment: str
    codec: CompositionCodec
    carrier: Carrier
    meter: Meter


def keyed_frame(frame: DataFrame, operator: Operator, wiring: Wiring) -> DataFrame:
    """Apply the keyed `operator` to `frame`, for a query in update mode.

    Raises DataflowError for aggregates whose types do not fit.
    """
    if operator.alternates[0].form is Form.STATE:
        schemas = [
            schema_from(operator.state_of(alternate), f"the state of operator {operator.name!r}")
            for alternate in operator.alternates
        ]
        timeout = operator.timeout
        timed = frame if timeout is None or not timeout.by else with_moments(frame, timeout, F.col(timeout.by))
        returns = schema_from(operator.returns, f"what operator {operator.name!r} returns")
        return stateful_frame(timed, operator, wiring, States(schemas, operator.own_state), operator.key, returns, "update")
    columns = operator.alternates[0].function
    assert isinstance(columns, Mapping)
    try:
        return frame.groupBy(*operator.key).agg(*(F.expr(sql).alias(name) for name, sql in columns.items()))
    except (AnalysisException, ParseException) as error:
        raise DataflowError(f"the aggregates of operator {operator.name!r} are invalid: {first_line(error)}") from None


def stateful_frame(
    frame: DataFrame,
    operator: Operator,
    wiring: Wiring,
    states: States | Grouping,
    by: Sequence[str],
    returns: StructType,
    mode: str,
) -> DataFrame:
    """Apply the alternates of `operator` to `frame`, grouped `by` these columns: with what is kept as `states` say."""
    codec, timeout = wiring.codec, operator.timeout
    keyed = Keyed(
        operator.name,
        tuple(Implementation(a.name, a.form, cast(Any, a.function)) for a in operator.alternates),
        states,
        Choice(
            codec.alternates.get(operator.name),
            codec.tables.get(operator.name),
            tuple(operator.key.index(column) for column in operator.selects),
        ),
        timeout,
        operator.on_error,
    )
    shipped = pickled(keyed, f"operator {operator.name!r}")
    function = state_function(shipped, wiring.segment, operator.name, wiring.carrier, wiring.meter.sink)
    by_time = isinstance(states, Grouping) and states.in_time
    kind = "ProcessingTimeTimeout" if timeout is not None and not timeout.by else "EventTimeTimeout"
    kind = "NoTimeout" if timeout is None and not by_time else kind
    return frame.groupBy(*by).applyInPandasWithState(function, returns, states.schema, mode, kind)


def with_moments(frame: DataFrame, timeout: Timeout, time: Column) -> DataFrame:
    """`frame` with a watermark, and the `time` of each record in milliseconds since 1970, which no time zone changes.

    Spark drops records by whose watermarked column they come late. So the column that counts as that one is another, and no
    record is late by it.
    """
    delay = round(timeout.late * 1000)
    watched = frame.withColumn(MOMENT, time.cast("timestamp")).withWatermark(MOMENT, f"{delay} milliseconds")
    never = F.lit(NEVER_LATE).alias(WATCHED, metadata={DELAY: delay})
    return watched.select(*(f"`{name}`" for name in frame.columns), F.unix_millis(MOMENT).alias(MOMENT), never)


def schema_from(ddl: object, what: str) -> StructType:
    """Parse columns written as Spark DDL. Raises DataflowError that quotes them."""
    with contextlib.suppress(ParseException, AnalysisException):
        schema = StructType.fromDDL(str(ddl))
        if isinstance(schema, StructType) and len(schema):
            return schema
    raise DataflowError(f"{what} is not a schema: {ddl!r} (write it like 'word string, n long')")
