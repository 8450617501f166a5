"""Native operators as values: DataFrame code that Spark's optimizer sees whole.

Expressions are SQL text or Columns of PySpark, which need a session when they are written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from elastream.dataflow.schema import Columns, OpenColumns, check_known, selected_name
from elastream.errors import DataflowError

# SQL text, or a Column of PySpark.
Expression: TypeAlias = Any


def is_expression(value: object) -> bool:
    return isinstance(value, str) or is_column(value)


def is_column(value: object) -> bool:
    """Return True for a Column of PySpark, which this package must not import."""
    return type(value).__name__ == "Column" and type(value).__module__.startswith("pyspark.")


class Native:
    """A native operator; users' functions from DataFrame to DataFrame are none.

    They are equal by text, because `==` of two Columns is a Column.
    """

    def columns(self, operator: str, arriving: Columns) -> Columns:
        """Return the columns of its records; by default, only Spark knows them."""
        return OpenColumns()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


@dataclass(frozen=True, eq=False)
class Where(Native):
    condition: Expression

    def columns(self, operator: str, arriving: Columns) -> Columns:
        return arriving


@dataclass(frozen=True, eq=False)
class Select(Native):
    """The columns `expressions`: SQL text such as `"lower(word) AS word"`, or Columns."""

    items: tuple[Expression, ...]

    def columns(self, operator: str, arriving: Columns) -> Columns:
        """Return the selected columns if all have names here; otherwise only Spark knows them."""
        if not all(names := [selected_name(each) for each in self.items]):
            return OpenColumns()
        return {name: arriving[name] if name == text else None for name, text in zip(names, self.items, strict=True)}


@dataclass(frozen=True, eq=False)
class WithColumns(Native):
    """The arriving columns, with `expressions` by name added or replaced."""

    expressions: Mapping[str, Expression]

    def columns(self, operator: str, arriving: Columns) -> Columns:
        if isinstance(arriving, OpenColumns):
            return arriving
        same = {name.lower(): name for name in arriving}
        new = {same.get(name.lower(), name): None for name in self.expressions}
        return {**arriving, **new}


@dataclass(frozen=True, eq=False)
class Drop(Native):
    names: tuple[str, ...]

    def columns(self, operator: str, arriving: Columns) -> Columns:
        if isinstance(arriving, OpenColumns):
            return arriving
        for name in self.names:
            check_known(arriving, name, f"operator {operator!r} drops")
        dropped = {name.lower() for name in self.names}
        if left := {name: kind for name, kind in arriving.items() if name.lower() not in dropped}:
            return left
        raise DataflowError(f"operator {operator!r} drops all columns of its records")


@dataclass(frozen=True, eq=False)
class Explode(Native):
    """A record for each element of the array `column`, in the column `into`. `outer`: also for an empty array."""

    column: Expression
    into: str
    outer: bool = False

    def columns(self, operator: str, arriving: Columns) -> Columns:
        return WithColumns({self.into: None}).columns(operator, arriving)


@dataclass(frozen=True, eq=False)
class JoinTable(Native):
    """A join with a static DataFrame, or with what a function of the session returns."""

    table: Any
    on: tuple[str, ...]
    how: str = "inner"

    def columns(self, operator: str, arriving: Columns) -> Columns:
        for name in self.on:
            check_known(arriving, name, f"operator {operator!r} joins on")
        return OpenColumns()


@dataclass(frozen=True, eq=False)
class DropDuplicates(Native):
    """The first record of each value of `names` (empty: of all columns).

    Attributes:
        within: Time within which duplicates arrive (seconds). None: all values are kept for ever.
    """

    names: tuple[str, ...] = ()
    by: str = ""
    within: float | None = None

    def columns(self, operator: str, arriving: Columns) -> Columns:
        for name in (*self.names, *filter(None, [self.by])):
            check_known(arriving, name, f"operator {operator!r} drops duplicates by")
        return arriving


@dataclass(frozen=True, eq=False)
class Sql(Native):
    """A query over the records, which are the table `{stream}`."""

    text: str


# A function from DataFrame to DataFrame.
