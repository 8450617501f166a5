"""Loads the state of a partition into an executor before the stream needs it there.

A task that opens the state store of a partition leaves it open in its executor, where the next micro-batch finds it. Spark
has such a task, `ReadStateStoreRDD`. How to open the store exactly as the query does (schemas, encoding) is known to the
query's own operator: it is asked for its RDD over an empty input, which runs nothing, and that RDD for what it was made of.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.spark.executors import Location

__all__ = ["StateOpener", "find_opener"]

OPENED_BY_ONE_RDD = frozenset({"StateStoreSaveExec", "StreamingDeduplicateExec", "FlatMapGroupsInPandasWithStateExec"})
"""Operators that keep one store and open it in a StateStoreRDD. A stream-stream join has four stores, with names that this
RDD cannot have; its state is loaded by the batch that finds it moved."""


@dataclass(frozen=True)
class StateOpener:
    """Opens the state of one operator of one run of a query, on any executor."""

    spark: SparkSession
    partitions: int
    made_of: Mapping[str, Any]

    def open(self, execution: Any, partition: int, at: Location) -> None:
        """Run one task at `at` that opens the state that the batch of `execution` began with; blocks until it has.

        The executor reports to the coordinator that it holds the partition now. Raises Py4JError where the task failed.
        """
        jvm: Any = self.spark._jvm
        context = self.spark.sparkContext
        preferred = jvm.PythonUtils.toSeq([f"executor_{at.address}_{at.executor}"])
        # The number of a task is the number of the state partition that it opens: one row for each, and one task is run.
        rows = jvm.PythonUtils.toSeq([jvm.scala.Tuple2("", preferred) for _ in range(self.partitions)])
        anything = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.Object"))
        made_of = self.made_of
        opening = jvm.org.apache.spark.sql.execution.streaming.state.ReadStateStoreRDD(
            context._jsc.sc().makeRDD(rows, anything),
            _reads_nothing(jvm),
            made_of["checkpointLocation"],
            made_of["queryRunId"],
            made_of["operatorId"],
            int(execution.currentBatchId()),
            jvm.scala.Option.empty(),
            made_of["stateSchemaBroadcast"],
            made_of["keySchema"],
            made_of["valueSchema"],
            made_of["keyStateEncoderSpec"],
            execution.sparkSession().sessionState(),
            jvm.scala.Option.empty(),  # with a coordinator the task would prefer the executor that holds the partition
            made_of["useColumnFamilies"],
            _module(jvm, "scala.collection.immutable.Map$").empty(),
            anything,
            anything,
        )
        gateway: Any = context._gateway
        wanted = gateway.new_array(jvm.int, 1)
        wanted[0] = partition
        context.setJobDescription(f"load state partition {partition} on executor {at.executor}")
        try:
            opening.toJavaRDD().collectPartitions(wanted)
        finally:
            context.setJobDescription(None)  # type: ignore[arg-type]


def find_opener(spark: SparkSession, execution: Any, operator: int, partitions: int) -> StateOpener | None:
    """What opens the state of `operator` of the query whose ended batch `execution` is; None where there is no way."""
    jvm: Any = spark._jvm
    try:
        for node in _nodes(execution.executedPlan()):
            # By its name: to ask any other node for what it lacks would be to run it.
            if str(node.getClass().getSimpleName()) in OPENED_BY_ONE_RDD and node.getStateInfo().operatorId() == operator:
                nothing = jvm.PythonUtils.toSeq([])
                empty = jvm.org.apache.spark.sql.execution.LocalTableScanExec(
                    node.child().output(), nothing, jvm.scala.Option.empty(), False
                )
                rdd = node.withNewChildren(jvm.PythonUtils.toSeq([empty])).execute()
                while str(rdd.getClass().getSimpleName()) != "StateStoreRDD":
                    rdd = rdd.dependencies().apply(0).rdd()
                made_of = {name: _field(rdd, name) for name in PARTS}
                # Stores that take several values a key, or versions with names of their own, open in another way.
                if made_of.pop("useMultipleValuesPerKey") or made_of.pop("uniqueId").isDefined():
                    return None
                return StateOpener(spark, partitions, made_of)
    except (Py4JError, TypeError, KeyError):
        return None
    return None


PARTS = (
    "checkpointLocation",
    "queryRunId",
    "operatorId",
    "stateSchemaBroadcast",
    "keySchema",
    "valueSchema",
    "keyStateEncoderSpec",
    "useColumnFamilies",
    "useMultipleValuesPerKey",
    "uniqueId",
)
"""Fields of a StateStoreRDD that say how its store is opened."""


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for position in range(children.size()):
        yield from _nodes(children.apply(position))


def _field(instance: Any, name: str) -> Any:
    """A private field of a Java object, of its class or one above; KeyError where there is none."""
    kind = instance.getClass()
    while kind is not None:
        for field in kind.getDeclaredFields():
            if str(field.getName()) == name:
                field.setAccessible(True)
                return field.get(instance)
        kind = kind.getSuperclass()
    raise KeyError(name)


def _module(jvm: Any, name: str) -> Any:
    """The instance of a Scala object."""
    return jvm.java.lang.Class.forName(name).getField("MODULE$").get(None)


def _reads_nothing(jvm: Any) -> Any:
    """A serializable Scala function of two arguments that answers anything with an empty iterator.

    Made of what Scala's own library has, because executors know no class of ours: a map that has the same answer to every
    key is a function of one argument.
    """
    empty = jvm.PythonUtils.toSeq([]).toIndexedSeq().view().iterator()
    answer = _module(jvm, "scala.collection.immutable.Map$").empty().withDefaultValue(empty)
    return _module(jvm, "scala.Function$").untupled(answer)
