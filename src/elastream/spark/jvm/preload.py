"""Loads the state of a partition into an executor before the query needs it there.

A task that opens the state store of a partition leaves it open in its executor, where the next micro-batch uses it. Spark
has such a task, `ReadStateStoreRDD`. The parameters of the store (schemas, encoding) come from the query's operator: they
are read from its RDD over an empty input, which runs nothing.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.spark.jvm.adapters import further
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.gateway import Java, jvm_of

log = logging.getLogger(__name__)

OPENED_BY_ONE_RDD = frozenset({"StateStoreSaveExec", "StreamingDeduplicateExec", "FlatMapGroupsInPandasWithStateExec"})
"""Operators that keep one store and open it in a StateStoreRDD. A stream-stream join has four stores, with names that this
RDD cannot have; its state is loaded by the batch that finds it moved."""


OPENS = "elastream.opens"
"""Local property of a job that loads state ahead: the run whose state it opens. An executor that keeps a copy uses it."""


@dataclass(frozen=True)
class StateOpener:
    """Opens the state of one operator, of one run of a query, on any executor."""

    spark: SparkSession
    partitions: int
    state: Java
    made_of: Mapping[str, Java]

    def open(self, session: Java, version: int, places: Mapping[int, Location]) -> None:
        """Run one task per partition, each at its place, that opens its state of `version`; blocks until all have ended.

        The executors report to the coordinator that they hold the state. session: the query's JVM session. A task whose
        executor stays busy runs on another one, which then reports. Raises Py4JError if a task failed.
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
        context.setLocalProperty(OPENS, str(state.queryRunId()))
        try:
            opening.toJavaRDD().collectPartitions(wanted)
        finally:
            context.setLocalProperty(OPENS, None)  # type: ignore[arg-type]
            context.setJobDescription(None)  # type: ignore[arg-type]


def find_opener(spark: SparkSession, execution: Java, operator: int, partitions: int) -> StateOpener | None:
    """The opener for the state of `operator`, from the query's ended batch `execution`; None if not possible."""
    jvm = jvm_of(spark)
    try:
        with _session_of(jvm, execution):
            return _opener_in(spark, execution, operator, partitions)
    except (Py4JError, TypeError, KeyError) as error:
        said = " ".join(str(error).split("\n")[:2])
        log.warning("operator %d: its state is not loaded ahead of moves: %s", operator, said, exc_info=True)
        return None


def _opener_in(spark: SparkSession, execution: Java, operator: int, partitions: int) -> StateOpener | None:
    found = _opened(spark, execution, operator)
    if found is None:
        return None
    node, rdd = found
    made_of = {name: _field(rdd, name) for name in PARTS}
    # Stores with several values per key, or with named versions, open in another way.
    if made_of.pop("useMultipleValuesPerKey") or made_of.pop("uniqueId").isDefined():
        return None
    return StateOpener(spark, partitions, node.getStateInfo(), made_of)


def store_rdd(spark: SparkSession, execution: Java, operator: int) -> Java | None:
    """Spark's StateStoreRDD of `operator`, over no input, by the plan of `execution`, which exists; None if there is none.

    Raises Py4JError if this Spark has other operators.
    """
    jvm = jvm_of(spark)
    with _session_of(jvm, execution):
        found = _opened(spark, execution, operator)
    return None if found is None else found[1]


def _opened(spark: SparkSession, execution: Java, operator: int) -> tuple[Java, Java] | None:
    """The node of `operator` in the plan, and the RDD that opens its state."""
    jvm = jvm_of(spark)
    for node in _nodes(execution.executedPlan()):
        # Found by name: querying another node for a missing member would execute it.
        if str(node.getClass().getSimpleName()) in OPENED_BY_ONE_RDD and node.getStateInfo().operatorId() == operator:
            nothing = jvm.PythonUtils.toSeq([])
            empty = jvm.org.apache.spark.sql.execution.LocalTableScanExec(
                node.child().output(), nothing, jvm.scala.Option.empty(), *further("LocalTableScanExec", spark.version)
            )
            rdd = node.withNewChildren(jvm.PythonUtils.toSeq([empty])).execute()
            while str(rdd.getClass().getSimpleName()) != "StateStoreRDD":
                rdd = rdd.dependencies().apply(0).rdd()
            return node, rdd
    return None


PARTS = (
    "keySchema",
    "valueSchema",
    "keyStateEncoderSpec",
    "useColumnFamilies",
    "useMultipleValuesPerKey",
    "uniqueId",
)
"""Fields of a StateStoreRDD with the parameters of its store."""


@contextlib.contextmanager
def _session_of(jvm: Java, execution: Java) -> Iterator[None]:
    """Make the session of a query the active one of this thread.

    A physical operator, also a copy, belongs to the session that is active in its thread. A thread without one, such as
    those started here, creates operators without a session, which fail with a NullPointerException.
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
    """An empty row whose task prefers these places."""
    return jvm.scala.Tuple2("", jvm.PythonUtils.toSeq(list(preferred)))


def _nodes(plan: Java) -> Iterator[Java]:
    yield plan
    children = plan.children()
    for position in range(children.size()):
        yield from _nodes(children.apply(position))


def _field(instance: Java, name: str) -> Java:
    """A private field of a Java object, of its class or a superclass. Raises KeyError if there is none."""
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
    """A serializable Scala function of two arguments that returns an empty iterator.

    It is built from Scala's library, because executors have no class of ours: a map with a default value is a function of
    one argument.
    """
    jvm: Java = gateway.jvm
    empty = jvm.PythonUtils.toSeq([]).toIndexedSeq().view().iterator()
    answer = gateway.new_array(jvm.java.lang.Object, 1)
    answer[0] = _module(jvm, "scala.collection.immutable.Map$").empty().withDefaultValue(empty)
    functions = _module(jvm, "scala.Function$")
    # Four methods of this name differ only in return type: a call by name may reach any of them, depending on the JVM.
    (untupled,) = (
        each
        for each in functions.getClass().getMethods()
        if str(each.getName()) == "untupled" and str(each.getReturnType().getName()) == "scala.Function2"
    )
    return untupled.invoke(functions, answer)
