"""Applies native operators to DataFrames: `select`, `where`, users' functions, and the others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from elastream.dataflow import natives
from elastream.dataflow.operators import Alternate, Operator
from elastream.dataflow.schema import columns_of
from elastream.errors import DataflowError, first_line
from elastream.spark.jvm.branches import QueryBranches, stateful_nodes
from elastream.spark.worker.composition import CompositionCodec


@dataclass(frozen=True)
class NativeSteps:
    """Native operators, one behind the other.

    Attributes:
        branches: Of the query that runs them. None if no operator has alternates.
    """

    operators: tuple[Operator, ...] = ()
    codec: CompositionCodec | None = None
    branches: QueryBranches | None = None

    def __bool__(self) -> bool:
        return bool(self.operators)

    def __call__(self, frame: DataFrame, keep: Sequence[str] = (), code: int | None = None) -> DataFrame:
        """Apply the operators to `frame`.

        Args:
            code: Of the batch's composition. None: in a stream, each batch chooses its alternates.

        Raises:
            DataflowError: An operator is invalid.
        """
        for operator in self.operators:
            digit = self.codec.alternates.get(operator.name) if self.codec is not None else None
            if digit is None:
                frame = _applied(frame, operator, operator.alternates[0], keep)
            elif code is not None:
                frame = _applied(frame, operator, operator.alternates[digit.of(code)], keep)
            else:
                assert self.branches is not None
                frame = self.branches.union(frame, _alternates(operator, keep), digit.weight, digit.radix)
        return frame

    def check_batches(self, frame: DataFrame) -> None:
        """Raise DataflowError if the operators cannot be applied to the batches of the stream `frame` one by one."""
        for operator in self.operators:
            before = len(stateful_nodes(frame))
            frame, *_ = [function(frame) for function in _alternates(operator, ())]
            if len(state := stateful_nodes(frame)) > before:
                raise DataflowError(
                    f"operator {operator.name!r} keeps state ({state[0]}), but gets its records batch by batch, because "
                    f"its query has several branches or sinks: put a durable edge before {self.operators[0].name!r}"
                )


def _alternates(operator: Operator, keep: Sequence[str]) -> list[Callable[[DataFrame], DataFrame]]:
    """Return a function for each alternate. It raises DataflowError if the alternate keeps state or differs in columns."""
    first: list[str] = []

    def function_of(alternate: Alternate) -> Callable[[DataFrame], DataFrame]:
        def apply(frame: DataFrame) -> DataFrame:
            after = _applied(frame, operator, alternate, keep)
            if len(operator.alternates) == 1:
                return after
            if len(nodes := stateful_nodes(after)) > len(stateful_nodes(frame)):
                what = "sets a watermark" if nodes[0] == "EventTimeWatermark" else f"keeps state ({nodes[0]})"
                raise DataflowError(
                    f"alternate {alternate.name!r} of operator {operator.name!r} {what}, which would rest and be wrong "
                    "while another alternate runs: put that part into an operator of its own"
                )
            first.append(_columns(after))
            if first[-1] != first[0]:
                raise DataflowError(
                    f"the alternates of operator {operator.name!r} return different columns: "
                    f"{operator.alternates[0].name!r} {first[0]}, {alternate.name!r} {first[-1]}"
                )
            return after

        return apply

    return list(map(function_of, operator.alternates))


def _columns(frame: DataFrame) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields)


def _applied(frame: DataFrame, operator: Operator, alternate: Alternate, keep: Sequence[str]) -> DataFrame:
    function = alternate.function
    which = f" (alternate {alternate.name!r})" if len(operator.alternates) > 1 else ""
    try:
        if isinstance(function, Mapping):
            return frame.select(*(as_column(each).alias(name) for name, each in function.items()), *keep)
        after = _native(frame, function, keep) if isinstance(function, natives.Native) else cast(Any, function)(frame)
    except (AnalysisException, ParseException) as error:
        what, verb = ("column expressions", "are") if isinstance(function, Mapping) else ("DataFrame code", "is")
        raise DataflowError(f"the {what} of {operator.name!r}{which} {verb} invalid: {first_line(error)}") from None
    except DataflowError:
        raise
    except Exception as error:
        raise DataflowError(
            f"the function of operator {operator.name!r}{which} failed: {type(error).__name__}: {first_line(error)}"
        ) from error
    if not isinstance(after, DataFrame) or (frame.isStreaming and not after.isStreaming):
        kind = "DataFrame that is no stream" if isinstance(after, DataFrame) else type(after).__name__
        raise DataflowError(
            f"the function of operator {operator.name!r}{which} returned a {kind}: it must return a DataFrame that it "
            "makes of the one that it gets"
        )
    if missing := [name for name in keep if name not in after.columns]:
        raise DataflowError(f"operator {operator.name!r}{which} drops the column {missing[0]!r}, which the next one needs")
    if operator.returns:
        _check_returned(operator, which, after, keep)
    return after


def _check_returned(operator: Operator, which: str, frame: DataFrame, keep: Sequence[str]) -> None:
    promised = list(columns_of(operator.returns, f"what operator {operator.name!r} returns"))
    if promised != (names := [name for name in frame.columns if name not in keep]):
        raise DataflowError(
            f"operator {operator.name!r}{which} returns the columns {', '.join(names)}, where `returns` has "
            f"{', '.join(promised)}"
        )


def as_column(expression: Any) -> Column:
    return F.expr(expression) if isinstance(expression, str) else expression


def _native(frame: DataFrame, native: natives.Native, keep: Sequence[str]) -> DataFrame:
    match native:
        case natives.Where(condition):
            return frame.where(as_column(condition))
        case natives.Select(items):
            return frame.select(*map(as_column, items), *keep)
        case natives.WithColumns(expressions):
            return frame.withColumns({name: as_column(each) for name, each in expressions.items()})
        case natives.Drop(names):
            return frame.drop(*names)
        case natives.Explode(column, into, outer):
            return frame.withColumn(into, (F.explode_outer if outer else F.explode)(as_column(column)))
        case natives.JoinTable(table, on, how):
            return frame.join(table(frame.sparkSession) if callable(table) else table, list(on), how)
        case natives.DropDuplicates(names, by, within):
            if within is None:
                return frame.dropDuplicates(list(names) or None)
            watched = frame.withWatermark(by, f"{round(within * 1e6)} microseconds")
            return watched.dropDuplicatesWithinWatermark(list(names) or None)
        case natives.Sql(text):
            return frame.sparkSession.sql(text, stream=frame)
    raise AssertionError(f"unknown native operator {native!r}")
