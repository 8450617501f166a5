"""Branches of a streaming plan of which each micro-batch runs one: alternates that are DataFrame code.

A query's plan is the union of all branches; the first reads the stream, the others an empty one. Spark optimises it anew
for every batch in the log. A rule then keeps one branch, by the batch's composition, which is equal in a replay.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import count
from typing import ClassVar
from weakref import WeakKeyDictionary

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from elastream.spark.jvm.driver_side import HERE, DriverSide, Java, gateway_of, java_session

# Nodes of a logical plan that keep something between micro-batches. A watermark is state of the driver.
_STATEFUL = {
    "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "EventTimeWatermark", "GlobalLimit",
    "FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "LocalLimit", "TransformWithState",
    "TransformWithStateInPandas", "TransformWithStateInPySpark",
}  # fmt: skip


class _Codes:
    """Java's view of `code_of`: from `"QUERY BATCH"` to the code of its composition."""

    def __init__(self) -> None:
        self.code_of: dict[str, Callable[[int], int]] = {}

    def apply(self, query_and_batch: str) -> str:
        query, batch = query_and_batch.split()
        return str(self.code_of[query](int(batch)))

    class Java:
        implements: ClassVar[list[str]] = ["java.util.function.Function"]


class Branches(DriverSide):
    """The methods of `ChosenBranches.java`, in one session. Raises EnvironmentProblem without the analyzer's internals."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, HERE / "ChosenBranches.java", "org.apache.spark.sql.catalyst.rules.Rule")
        ensure_callback_server_started(gateway_of(spark))  # type: ignore[no-untyped-call]
        self._codes = _Codes()
        self._names = count()
        self.ask("arm", java_session(spark), self.context, self._codes)

    def of_query(self, code_of: Callable[[int], int]) -> "QueryBranches":
        """Return the branches of a query that starts later. `code_of` returns the code of the composition of a batch."""
        name = f"q{next(self._names)}"
        self._codes.code_of[name] = code_of
        return QueryBranches(self, name)

    def input(self, frame: DataFrame) -> tuple[str, DataFrame, Callable[[], DataFrame]]:
        """Return a new name, `frame` under that name, and a function that makes an empty frame of that name."""
        name = f"elastream_input_{next(self._names)}"

        def empty() -> DataFrame:
            return DataFrame(self._object.emptyAs(frame._jdf), frame.sparkSession).alias(name)

        return name, frame.alias(name), empty


@dataclass(frozen=True)
class QueryBranches:
    session: Branches
    query: str

    def union(
        self, frame: DataFrame, functions: Sequence[Callable[[DataFrame], DataFrame]], weight: int, radix: int
    ) -> DataFrame:
        """Return the result of `functions`; a batch with the code c runs the one at the position c // weight % radix."""
        name, stream, empty = self.session.input(frame)
        branches = [functions[0](stream), *(function(empty()) for function in functions[1:])]
        # Spark merges nested unions into one, but not behind an alias.
        united = reduce(DataFrame.unionAll, [branch.alias(f"{name}_{n}") for n, branch in enumerate(branches)])
        # A query without the rule fails at the first record, instead of running the first branch for ever.
        mark = F.raise_error(F.lit(f"<elastream {name} {self.query} {weight} {radix}>"))
        return united.where(mark.cast("boolean"))


_of_session: "WeakKeyDictionary[SparkSession, Branches]" = WeakKeyDictionary()


def branches_of(spark: SparkSession) -> Branches:
    """Return the branches of the queries that `spark` starts. Raises EnvironmentProblem if Spark cannot switch them."""
    if spark not in _of_session:
        _of_session[spark] = Branches(spark)
    return _of_session[spark]


def stateful_nodes(frame: DataFrame) -> list[str]:
    """Return the nodes of the streaming plan of `frame` that keep something between micro-batches, by name."""
    return list(_stateful(frame._jdf.queryExecution().analyzed()))


def _stateful(plan: Java) -> Iterator[str]:
    children = [plan.children().apply(number) for number in range(plan.children().size())]
    name = str(plan.nodeName())
    joined = name == "Join" and all(child.isStreaming() for child in children)
    if plan.isStreaming() and (name in _STATEFUL or joined):
        yield name
    for child in children:
        yield from _stateful(child)
