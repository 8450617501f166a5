"""Compiles the keyed operator of a query: aggregates, functions with state, windows, joins and zips.

Native aggregates run in the JVM, functions in `applyInPandasWithState`, whose state also stores incomplete windows.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from elastream.dataflow.operators import Form, Operator
from elastream.dataflow.windows import Pairs, Timeout, Window, WindowKind
from elastream.errors import DataflowError, first_line
from elastream.spark.dataflow.channels import Outflow
from elastream.spark.dataflow.natives import as_column
from elastream.spark.dataflow.shipping import pickled
from elastream.spark.jvm.arrow_schemas import arrow_schema, in_zone
from elastream.spark.worker.composition import CompositionCodec
from elastream.spark.worker.exits import EXIT, ORDER
from elastream.spark.worker.meter import Meter
from elastream.spark.worker.runner import Implementation
from elastream.spark.worker.stateful import MOMENT, WATCHED, AlternateDigits, KeyedOperator, state_function
from elastream.spark.worker.states import States
from elastream.spark.worker.walk import WorkerPaths
from elastream.spark.worker.windows import END, START, UNTIL, Grouping

# Key in a column's metadata by which Spark recognises the watermark.
WATERMARK_DELAY_KEY = "spark.watermarkDelayMs"
# A time (microseconds since 1970) that no watermark reaches.
NEVER_LATE_US = 1 << 62


@dataclass(frozen=True, slots=True)
class Wiring:
    segment: str
    codec: CompositionCodec
    paths: WorkerPaths
    meter: Meter


def keyed_frame(frame: DataFrame, operator: Operator, wiring: Wiring) -> DataFrame:
    """Apply the keyed `operator` to `frame` in update mode. Raises DataflowError."""
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
        return frame.groupBy(*operator.key).agg(*(as_column(each).alias(name) for name, each in columns.items()))
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
    """Apply a function's alternates to `frame`, grouped `by` columns; `states` defines the state."""
    codec, timeout = wiring.codec, operator.timeout
    keyed = KeyedOperator(
        operator.name,
        tuple(Implementation(a.name, a.form, cast(Any, a.function)) for a in operator.alternates),
        states,
        AlternateDigits(
            codec.alternates.get(operator.name),
            codec.tables.get(operator.name),
            tuple(operator.key.index(column) for column in operator.selects),
        ),
        timeout,
        operator.on_error,
    )
    shipped = pickled(keyed, f"operator {operator.name!r}")
    function = state_function(shipped, wiring.segment, wiring.paths, wiring.meter.sink)
    by_time = isinstance(states, Grouping) and states.in_time
    kind = "ProcessingTimeTimeout" if timeout is not None and not timeout.by else "EventTimeTimeout"
    kind = "NoTimeout" if timeout is None and not by_time else kind
    return frame.groupBy(*by).applyInPandasWithState(function, returns, states.schema, mode, kind)


def with_moments(frame: DataFrame, timeout: Timeout, time: Column) -> DataFrame:
    """Add a watermark, and each record's `time` in milliseconds since 1970."""
    # Spark drops records that are late by the watermarked column. A constant column is marked instead, so none is late.
    delay = round(timeout.late * 1000)
    watched = frame.withColumn(MOMENT, time.cast("timestamp")).withWatermark(MOMENT, f"{delay} milliseconds")
    never = F.lit(NEVER_LATE_US).alias(WATCHED, metadata={WATERMARK_DELAY_KEY: delay})
    return watched.select(*(f"`{name}`" for name in frame.columns), F.unix_millis(MOMENT).alias(MOMENT), never)


def schema_from(ddl: object, what: str) -> StructType:
    """Parse columns in Spark's DDL, or raise DataflowError."""
    with contextlib.suppress(ParseException, AnalysisException):
        schema = StructType.fromDDL(str(ddl))
        if isinstance(schema, StructType) and len(schema):
            return schema
    raise DataflowError(f"{what} is not a schema: {ddl!r} (write it like 'word string, n long')")


# Column with a record's time window, and prefix of the columns with the times of a port's records.
SPAN, TIME = "_span", "_time"
# Constant column that makes all records of a zip one group.
ALL = "_all"


def windowed_frame(flows: Sequence[Outflow], operator: Operator, wiring: Wiring) -> DataFrame:
    """Apply the windowed `operator` to `flows`, one per port, in append mode. Raises DataflowError."""
    try:
        if operator.alternates[0].form is Form.AGGREGATE:
            return _aggregated(flows[0].part(flows[0].frame), operator)
        return _by_function(flows, operator, wiring)
    except (AnalysisException, ParseException) as error:
        what = "aggregates" if operator.alternates[0].form is Form.AGGREGATE else "windows"
        raise DataflowError(f"the {what} of operator {operator.name!r} are invalid: {first_line(error)}") from None


def _aggregated(frame: DataFrame, operator: Operator) -> DataFrame:
    columns, window = operator.alternates[0].function, operator.window
    assert isinstance(columns, Mapping)
    assert window is not None
    span = F.window(F.col(window.by), _seconds(window.seconds or 0.0), _seconds(window.step)).alias(SPAN)
    watched = frame.withWatermark(window.by, _seconds(window.late))
    results = watched.groupBy(*operator.key, span).agg(*(as_column(each).alias(name) for name, each in columns.items()))
    return results.select(
        *operator.key,
        F.col(SPAN)["start"].cast("timestamp").alias("window_start"),
        F.col(SPAN)["end"].cast("timestamp").alias("window_end"),
        *columns,
    )


def _by_function(flows: Sequence[Outflow], operator: Operator, wiring: Wiring) -> DataFrame:
    window, key = operator.window, operator.key
    frame, ports = _one_port(flows[0]) if len(flows) == 1 else _ports(flows, key)
    form = operator.alternates[0].form
    grouping = Grouping(operator.name, form, window, tuple(_naive(port) for port in ports))
    if form is Form.ZIP:
        groups: tuple[str, ...] = (ALL,)
        frame = frame.withColumn(ALL, F.lit(0))
    elif window is not None and window.kind is WindowKind.TIME:
        frame, groups = _in_time(frame, window, len(ports)), (*key, START, END, UNTIL)
    else:
        groups = key
        if operator.timeout is not None and operator.timeout.by:
            frame = with_moments(frame, operator.timeout, _of_port(len(ports), operator.timeout.by))
    return stateful_frame(frame, operator, wiring, grouping, groups, _returned(operator, ports), "append")


def _one_port(flow: Outflow) -> tuple[DataFrame, list[StructType]]:
    frame = flow.natives(flow.frame, [ORDER])
    return frame, [frame.drop(ORDER).schema]


def _ports(flows: Sequence[Outflow], key: Sequence[str]) -> tuple[DataFrame, list[StructType]]:
    frame = flows[0].frame
    for port, flow in enumerate(flows):
        others = [name for name in frame.columns if name != f"_{port}"]
        if flow.natives:
            inner = flow.natives(frame.select(*others, f"_{port}.*"), others)
            fields = [name for name in inner.columns if name not in others]
            frame = inner.select(*others, F.struct(*fields).alias(f"_{port}"))
    ports = [frame.schema[f"_{port}"].dataType for port in range(len(flows))]
    keys = [_of_port(len(flows), name).alias(name) for name in key]
    return frame.select(*frame.columns, *keys), [port for port in ports if isinstance(port, StructType)]


def _of_port(ports: int, column: str) -> Column:
    if ports == 1:
        return F.col(f"`{column}`")
    return F.coalesce(*(F.when(F.col(EXIT) == port, F.col(f"_{port}")[column]) for port in range(ports)))


def _in_time(frame: DataFrame, window: Window, ports: int) -> DataFrame:
    # Each input has its own watermark and Spark uses the slowest: a join waits for both inputs.
    columns, delay = frame.columns, _seconds(window.late)
    for port in range(ports):
        time = F.col(f"`{window.by}`") if ports == 1 else F.when(F.col(EXIT) == port, F.col(f"_{port}")[window.by])
        frame = frame.withColumn(f"{TIME}_{port}", time.cast("timestamp")).withWatermark(f"{TIME}_{port}", delay)
    time = F.coalesce(*(F.col(f"{TIME}_{port}") for port in range(ports)))
    spans = frame.withColumn(SPAN, F.window(time, _seconds(window.seconds or 0.0), _seconds(window.step)))
    end = F.col(SPAN)["end"]
    return spans.select(
        *columns,
        F.col(SPAN)["start"].alias(START),
        # Spark drops a row whose window ends before the watermark.
        end.alias(END, metadata={WATERMARK_DELAY_KEY: round(window.late * 1e3)}),
        F.unix_millis(end).alias(UNTIL),
    )


def _returned(operator: Operator, ports: Sequence[StructType]) -> StructType:
    if operator.returns:
        return schema_from(operator.returns, f"what operator {operator.name!r} returns")
    named = [{field.name: field.dataType for field in port} for port in ports]
    pairs = operator.alternates[0].function
    columns = (
        pairs.columns(*named) if isinstance(pairs, Pairs) else {name: kind for each in named for name, kind in each.items()}
    )
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def _seconds(seconds: float) -> str:
    return f"{round(seconds * 1e6)} microseconds"


def _naive(schema: StructType) -> pa.Schema:
    """Return `schema` with times as Spark passes them to pandas, without a zone."""
    return in_zone(arrow_schema(schema), None)
