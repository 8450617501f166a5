"""Loads the state of a partition into an executor before the stream needs it there.

A task that opens the state store of a partition leaves it open in its executor, where the next micro-batch finds it. Spark
has such a task, `ReadStateStoreRDD`. How to open the store exactly as the query does (schemas, encoding) is known to the
query's own operator: it is asked for its RDD over an empty input, which runs nothing, and that RDD for what it was made of.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.gateway import Java, jvm_of

__all__ = ["StateOpener", "find_opener"]

log = logging.getLogger(__name__)

OPENED_BY_ONE_RDD = frozenset({"StateStoreSaveExec", "StreamingDeduplicateExec", "FlatMapGroupsInPandasWithStateExec"})
"""Operators that keep one store and open it in a StateStoreRDD. A stream-stream join has four stores, with names that this
RDD cannot have; its state is loaded by the batch that finds it moved."""


@dataclass(frozen=True)
class StateOpener:
    """Opens the state of one operator of one run of a query, on any executor."""

    spark: SparkSession
    partitions: int
    state: Java
    made_of: Mapping[str, Java]

    def open(self, session: Java, version: int, places: Mapping[int, Location]) -> None:
        """Run one task a partition, each at its place, that opens its state of `version`; blocks until all have.

        Their executors report to the coordinator that they hold them now. session: the query's, of the JVM. A task whose
        executor is busy for long is run elsewhere, and that one reports. Raises Py4JError where a task failed.
        """
        jvm = jvm_of(self.spark)
        context = self.spark.sparkContext
        gateway: Java = context._gateway
        # The number of a task is the number of the state partition that it opens: a row for each, though few are run.
        rows = jvm.java.util.ArrayList(jvm.java.util.Collections.nCopies(self.partitions, _row(jvm)))
        for partition, at in places.items():
            rows.set(partition, _row(jvm, f"executor_{at.address}_{at.executor}"))
        anything = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.Object"))
        state = self.state
        # By way of the method that Spark's operators use: it has tasks forget their store. One that was left behind in its
        # thread would be taken for its own by the next task of any query that opens none for reading first.
        operations = _module(jvm, "org.apache.spark.sql.execution.streaming.state.package$")
        opening = operations.StateStoreOps(
            context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(rows), anything), anything
        ).mapPartitionsWithReadStateStore(
            state.copy(
                state.checkpointLocation(),
                state.queryRunId(),
                state.operatorId(),
                version,
                state.numPartitions(),
                state.stateSchemaMetadata(),
                jvm.scala.Option.empty(),
            ),
            self.made_of["keySchema"],
            self.made_of["valueSchema"],
            self.made_of["keyStateEncoderSpec"],
            session.sessionState(),
            jvm.scala.Option.empty(),  # with a coordinator the task would prefer the executor that holds the partition
            self.made_of["useColumnFamilies"],
            _module(jvm, "scala.collection.immutable.Map$").empty(),
            _reads_nothing(gateway),
            anything,
        )
        wanted = gateway.new_array(jvm.int, len(places))
        for position, partition in enumerate(places):
            wanted[position] = partition
        context.setJobDescription(f"load state of version {version}, partitions {', '.join(map(str, places))}")
        try:
            opening.toJavaRDD().collectPartitions(wanted)
        finally:
            context.setJobDescription(None)  # type: ignore[arg-type]


def find_opener(spark: SparkSession, execution: Java, operator: int, partitions: int) -> StateOpener | None:
    """What opens the state of `operator` of the query whose ended batch `execution` is; None where there is no way."""
    jvm = jvm_of(spark)
    try:
        with _session_of(jvm, execution):
            return _opener_in(spark, execution, operator, partitions)
    except (Py4JError, TypeError, KeyError) as error:
        said = " ".join(str(error).split("\n")[:2])
        log.warning("operator %d: its state is not loaded ahead of moves: %s", operator, said, exc_info=True)
        return None


def _opener_in(spark: SparkSession, execution: Java, operator: int, partitions: int) -> StateOpener | None:
    jvm = jvm_of(spark)
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
            return StateOpener(spark, partitions, node.getStateInfo(), made_of)
    return None


PARTS = (
    "keySchema",
    "valueSchema",
    "keyStateEncoderSpec",
    "useColumnFamilies",
    "useMultipleValuesPerKey",
    "uniqueId",
)
"""Fields of a StateStoreRDD that say how its store is opened."""


@contextlib.contextmanager
def _session_of(jvm: Java, execution: Java) -> Iterator[None]:
    """While inside, the session of a query is the active one of this thread.

    A physical operator belongs to the session that is active where it is made, copies included. A thread that has none, as
    any that we start, makes operators without a session, which fail with a NullPointerException at once.
    """
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(execution.sparkSession())
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _row(jvm: Java, *preferred: str) -> Java:
    """A row of no content, whose task prefers these places."""
    return jvm.scala.Tuple2("", jvm.PythonUtils.toSeq(list(preferred)))


def _nodes(plan: Java) -> Iterator[Java]:
    yield plan
    children = plan.children()
    for position in range(children.size()):
        yield from _nodes(children.apply(position))


def _field(instance: Java, name: str) -> Java:
    """A private field of a Java object, of its class or one above; KeyError where there is none."""
    kind = instance.getClass()
    while kind is not None:
        for field in kind.getDeclaredFields():
            if str(field.getName()) == name:
                field.setAccessible(True)
                return field.get(instance)
        kind = kind.getSuperclass()
    raise KeyError(name)


def _module(jvm: Java, name: str) -> Java:
    """The instance of a Scala object."""
    return jvm.java.lang.Class.forName(name).getField("MODULE$").get(None)


def _reads_nothing(gateway: Java) -> Java:
    """A serializable Scala function of two arguments that answers anything with an empty iterator.

    Made of what Scala's own library has, because executors know no class of ours: a map that has the same answer to every
    key is a function of one argument.
    """
    jvm: Java = gateway.jvm
    empty = jvm.PythonUtils.toSeq([]).toIndexedSeq().view().iterator()
    answer = gateway.new_array(jvm.java.lang.Object, 1)
    answer[0] = _module(jvm, "scala.collection.immutable.Map$").empty().withDefaultValue(empty)
    functions = _module(jvm, "scala.Function$")
    # Four methods of this name differ only in what they return: called by name, any of them may answer, a JVM at a time.
    (untupled,) = (
        each
        for each in functions.getClass().getMethods()
        if str(each.getName()) == "untupled" and str(each.getReturnType().getName()) == "scala.Function2"
    )
    return untupled.invoke(functions, answer)
