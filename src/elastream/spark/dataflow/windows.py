"""Compiles keyed operators in windows: group_by and join in windows of time, count and landmarks, and zip.

Aggregates in windows of time are Spark's own, with its watermark. Functions on windows run in `applyInPandasWithState`,
which keeps the records of a window until it is complete: of time windows each is a group of its own, which ends by a
time-out of Spark's at the watermark. All emit a window once, so that their queries run in append mode.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from elastream.dataflow.operators import Form, Operator
from elastream.dataflow.windows import Pairs, Window, WindowKind
from elastream.errors import DataflowError, first_line
from elastream.spark.dataflow.channels import Outflow, selected
from elastream.spark.dataflow.keyed import DELAY, Wiring, schema_from, stateful_frame, with_moments
from elastream.spark.jvm.adapters import arrow_schema, in_zone
from elastream.spark.worker.leaving import EXIT, ORDER
from elastream.spark.worker.windows import END, START, UNTIL, Grouping

SPAN, TIME = "_span", "_time"
"""Column with a record's time window, as Spark has it; and how those begin that have the times of a port's records."""
ALL = "_all"
"""Column by which all records of a zip are one group."""


def windowed_frame(flows: Sequence[Outflow], operator: Operator, wiring: Wiring) -> DataFrame:
    """Apply the windowed `operator` to the records that come by `flows`, one for each of its ports; for append mode.

    Raises DataflowError for aggregates, or a column of times, whose types do not fit.
    """
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
    found = watched.groupBy(*operator.key, span).agg(*(F.expr(sql).alias(name) for name, sql in columns.items()))
    return found.select(
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
    """The records of the only input, and their columns; with their order."""
    frame = selected(flow.frame, flow.natives, [ORDER])
    return frame, [frame.drop(ORDER).schema]


def _ports(flows: Sequence[Outflow], key: Sequence[str]) -> tuple[DataFrame, list[StructType]]:
    """The records of several inputs, each in a struct of its port, with the columns of the key; and the columns of each."""
    frame = flows[0].frame
    for port, flow in enumerate(flows):
        others = [name for name in frame.columns if name != f"_{port}"]
        if flow.natives:
            inner = selected(frame.select(*others, f"_{port}.*"), flow.natives, others)
            fields = [name for name in inner.columns if name not in others]
            frame = inner.select(*others, F.struct(*fields).alias(f"_{port}"))
    ports = [frame.schema[f"_{port}"].dataType for port in range(len(flows))]
    keys = [_of_port(len(flows), name).alias(name) for name in key]
    return frame.select(*frame.columns, *keys), [port for port in ports if isinstance(port, StructType)]


def _of_port(ports: int, column: str) -> Column:
    """A column of a record, whichever of several ports it came by."""
    if ports == 1:
        return F.col(f"`{column}`")
    return F.coalesce(*(F.when(F.col(EXIT) == port, F.col(f"_{port}")[column]) for port in range(ports)))


def _in_time(frame: DataFrame, window: Window, ports: int) -> DataFrame:
    """`frame` with a row for each time window of a record; Spark knows the end of a window as the time of the row.

    Each input has a watermark of its own, and Spark goes by the slowest: a join waits for both of its inputs.
    """
    kept, delay = frame.columns, _seconds(window.late)
    for port in range(ports):
        time = F.col(f"`{window.by}`") if ports == 1 else F.when(F.col(EXIT) == port, F.col(f"_{port}")[window.by])
        frame = frame.withColumn(f"{TIME}_{port}", time.cast("timestamp")).withWatermark(f"{TIME}_{port}", delay)
    time = F.coalesce(*(F.col(f"{TIME}_{port}") for port in range(ports)))
    spans = frame.withColumn(SPAN, F.window(time, _seconds(window.seconds or 0.0), _seconds(window.step)))
    end = F.col(SPAN)["end"]
    return spans.select(
        *kept,
        F.col(SPAN)["start"].alias(START),
        # Spark drops a record where the end of its window is not beyond the watermark: one that all its windows are past.
        end.alias(END, metadata={DELAY: round(window.late * 1e3)}),
        F.unix_millis(end).alias(UNTIL),
    )


def _returned(operator: Operator, ports: Sequence[StructType]) -> StructType:
    """What the operator emits: what it declares, the pairs of a join, or the columns of all inputs of a zip."""
    if operator.returns:
        return schema_from(operator.returns, f"what operator {operator.name!r} returns")
    named = [{field.name: field.dataType for field in port} for port in ports]
    pairs = operator.alternates[0].function
    columns = (
        pairs.columns(*named) if isinstance(pairs, Pairs) else {name: kind for each in named for name, kind in each.items()}
    )
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def _seconds(seconds: float) -> str:
    """As Spark reads intervals."""
    return f"{round(seconds * 1e6)} microseconds"


def _naive(schema: StructType) -> pa.Schema:
    """`schema` with times as Spark gives them to pandas: of the session's time zone, without saying so."""
    return in_zone(arrow_schema(schema), None)
