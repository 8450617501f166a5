"""State partitions of a running query: its stateful operators, moves between executors, and loading state ahead.

Operators without a shuffle between them move together, as one `StatefulStage`.

Spark's coordinator schedules a partition's task where it was loaded last. A report of another executor between batches
makes the next one run there, with state from the checkpoint. A running batch may overwrite it: check, repeat.
"""

import contextlib
import logging
import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.driver_side import DriverSide, Java, field_of, java_queries, java_session, jvm_of, module_of
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.releases import further_arguments

if TYPE_CHECKING:
    from elastream.spark.telemetry.state_files import StateDisk


@dataclass(frozen=True, slots=True)
class StatefulOperator:
    """One stateful operator."""

    id: int  # its number in Spark's plan and checkpoint
    kind: str = ""  # such as `"StateStoreSave"`
    stores: tuple[str, ...] = ("default",)  # `("default",)` for most, four for a stream-stream join
    rank: int = 0  # position among the query's stateful operators by age of plan nodes
    position: int = 0  # position in the query's progress


@dataclass(frozen=True, slots=True)
class StatefulStage:
    """Stateful operators that share a task per partition. `name` is unique in its query; `root` is the state's folder."""

    name: str
    partitions: int
    root: str
    operators: tuple[StatefulOperator, ...]


def stateful_stages(driver: DriverSide, execution: Java) -> tuple[StatefulStage, ...] | None:
    """Return the stateful stages of the query of `execution` (Spark's StreamExecution), upstream first.

    None if no batch has a plan yet.
    """
    answer = driver.ask("stateful", driver.context, execution)
    if not answer:
        return None
    rows = answer[1:]
    ages = sorted(int(row[3]) for row in rows)
    stages = []
    for _, members in groupby(sorted(rows, key=lambda row: (int(row[0]), int(row[1]))), key=itemgetter(0)):
        group = list(members)
        operators = tuple(
            StatefulOperator(int(each[1]), each[4], tuple(each[6].split(",")), ages.index(int(each[3])), rows.index(each))
            for each in group
        )
        name = "+".join(f"{_word(operator.kind)}{operator.id}" for operator in operators)
        stages.append(StatefulStage(name, int(group[0][2]), group[0][5], operators))
    return tuple(stages[::-1])


def ranked_kinds(stages: Sequence[StatefulStage]) -> str:
    """Return the kinds of all stateful operators of a query by rank, as `TaskLoads.java` takes them."""
    return ",".join(each.kind for each in sorted((o for s in stages for o in s.operators), key=lambda o: o.rank))


def _word(kind: str) -> str:
    words = {
        "StateStoreSave": "aggregate",
        "StreamingSymmetricHashJoin": "join",
        "StreamingDeduplicate": "deduplicate",
        "SessionWindowStateStoreSave": "session",
        "FlatMapGroupsInPandasWithState": "apply-in-pandas-with-state",
        "TransformWithStateInPySpark": "transform-with-state",
    }
    return words.get(kind) or re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower()


log = logging.getLogger(__name__)

# A batch planned between two checks uses the wrong location.
LOCATION_CHECK_S = 0.01

# An ended batch's plan shows how its operators open their state.
BATCH_END_TIMEOUT_S = 60.0

# Operators with one store, opened in a StateStoreRDD. A stream-stream join has four stores, with names that this RDD cannot
# have; the next batch loads its state.
OPENED_BY_ONE_RDD = frozenset({"StateStoreSaveExec", "StreamingDeduplicateExec", "FlatMapGroupsInPandasWithStateExec"})

# Local property of a job that loads state ahead: the run whose state it opens. A standby replica serves it.
OPENED_RUN = "elastream.opens"


# Fields of a StateStoreRDD with the parameters of its store.
STORE_FIELDS = (
    "keySchema",
    "valueSchema",
    "keyStateEncoderSpec",
    "useColumnFamilies",
    "useMultipleValuesPerKey",
    "uniqueId",
)


@dataclass(frozen=True)
class StateOpener:
    """Opens the state of one operator, of one run of a query, on any executor."""

    spark: SparkSession
    partitions: int
    state: Java
    store: Mapping[str, Java]

    def open(self, session: Java, version: int, places: Mapping[int, Location]) -> None:
        """Run one task per partition, each at its place, that opens the state of `version`; block until all end.

        A task whose executor stays busy runs, and reports, elsewhere. Raises Py4JError if a task failed.
        """
        context = self.spark.sparkContext
        gateway: Java = context._gateway
        jvm = gateway.jvm
        # A task opens the state partition of its number: a row for each, although few run.
        rows = jvm.java.util.ArrayList(jvm.java.util.Collections.nCopies(self.partitions, _row(jvm)))
        for partition, at in places.items():
            rows.set(partition, _row(jvm, f"executor_{at.address}_{at.executor}"))
        anything = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.Object"))
        state = self.state
        where = state.checkpointLocation(), state.queryRunId(), state.operatorId()
        # Spark's operators use this method, which makes tasks forget their store. A store left in a thread would be used
        # by the next task there that opens none for reading.
        operations = module_of(jvm, "org.apache.spark.sql.execution.streaming.state.package$")
        opening = operations.StateStoreOps(
            context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(rows), anything), anything
        ).mapPartitionsWithReadStateStore(
            state.copy(*where, version, state.numPartitions(), state.stateSchemaMetadata(), jvm.scala.Option.empty()),
            *(self.store[name] for name in STORE_FIELDS[:3]),
            session.sessionState(),
            jvm.scala.Option.empty(),  # with a coordinator the task would prefer the executor that holds the partition
            self.store["useColumnFamilies"],
            module_of(jvm, "scala.collection.immutable.Map$").empty(),
            _reads_nothing(gateway),
            anything,
        )
        indices = gateway.new_array(jvm.int, len(places))
        for position, partition in enumerate(places):
            indices[position] = partition
        context.setJobDescription(f"load state of version {version}, partitions {', '.join(map(str, places))}")
        context.setLocalProperty(OPENED_RUN, str(state.queryRunId()))
        try:
            opening.toJavaRDD().collectPartitions(indices)
        finally:
            context.setLocalProperty(OPENED_RUN, None)  # type: ignore[arg-type]
            context.setJobDescription(None)  # type: ignore[arg-type]


def find_opener(spark: SparkSession, execution: Java, operator: int, partitions: int) -> StateOpener | None:
    """Return the opener for the state of `operator`, from the ended batch `execution`; None if impossible."""
    try:
        node, rdd = _opened(spark, execution, operator)
        if node is None:
            return None
        store = {name: field_of(rdd, name) for name in STORE_FIELDS}
        # Stores with several values per key, or with named versions, open in another way.
        if store.pop("useMultipleValuesPerKey") or store.pop("uniqueId").isDefined():
            return None
        return StateOpener(spark, partitions, node.getStateInfo(), store)
    except (Py4JError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split("\n")[:2])
        log.warning("operator %d: its state is not loaded ahead of moves: %s", operator, reason, exc_info=True)
        return None


def _opened(spark: SparkSession, execution: Java, operator: int) -> tuple[Java | None, Java | None]:
    """Return the plan's node of `operator` and its StateStoreRDD over no input, or (None, None)."""
    jvm = jvm_of(spark)
    with _session_of(jvm, execution):
        for node in _nodes(execution.executedPlan()):
            # By name: asking another node for a missing member would execute it.
            if str(node.getClass().getSimpleName()) in OPENED_BY_ONE_RDD and node.getStateInfo().operatorId() == operator:
                further = further_arguments("LocalTableScanExec", spark.version)
                empty = jvm.org.apache.spark.sql.execution.LocalTableScanExec(
                    node.child().output(), jvm.PythonUtils.toSeq([]), jvm.scala.Option.empty(), *further
                )
                rdd = node.withNewChildren(jvm.PythonUtils.toSeq([empty])).execute()
                while str(rdd.getClass().getSimpleName()) != "StateStoreRDD":
                    rdd = rdd.dependencies().apply(0).rdd()
                return node, rdd
    return None, None


@contextlib.contextmanager
def _session_of(jvm: Java, execution: Java) -> Iterator[None]:
    """Make the query's session active in this thread; without one, physical operators fail with a NullPointerException."""
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
    return jvm.scala.Tuple2("", jvm.PythonUtils.toSeq(list(preferred)))


def _nodes(plan: Java) -> Iterator[Java]:
    yield plan
    children = plan.children()
    for position in range(children.size()):
        yield from _nodes(children.apply(position))


def _reads_nothing(gateway: Java) -> Java:
    """Return a serializable Scala function of two arguments that returns an empty iterator."""
    jvm: Java = gateway.jvm
    empty = jvm.PythonUtils.toSeq([]).toIndexedSeq().view().iterator()
    answer = gateway.new_array(jvm.java.lang.Object, 1)
    answer[0] = module_of(jvm, "scala.collection.immutable.Map$").empty().withDefaultValue(empty)
    functions = module_of(jvm, "scala.Function$")
    # Four methods of this name differ only in return type: a call by name may reach any of them, depending on the JVM.
    (untupled,) = (
        each
        for each in functions.getClass().getMethods()
        if str(each.getName()) == "untupled" and str(each.getReturnType().getName()) == "scala.Function2"
    )
    return untupled.invoke(functions, answer)


class Run(NamedTuple):
    """One run of a query; `runId` is new after each restart."""

    id: str
    runId: str


class SavedState(NamedTuple):
    """State in a checkpoint: its files, its version, and each store's operator and name."""

    disk: "StateDisk"
    version: int
    stores: tuple[tuple[int, str], ...]


class StatePartitions:
    """The state partitions of one run of a query: reads and sets their locations."""

    def __init__(
        self,
        spark: SparkSession,
        query: Run | StreamingQuery,
        partitions: int,
        operators: Sequence[StatefulOperator] = (StatefulOperator(0),),
        driver: DriverSide | None = None,
        disk: "StateDisk | None" = None,
    ) -> None:
        """Connect to Spark's coordinator. operators: those of one task; by default the plan's first."""
        self._disk = disk
        self.partitions, self._operators = partitions, tuple(operators)
        self._spark, self._driver = spark, DriverSide(spark) if driver is None else driver
        jvm = jvm_of(spark)
        self._state = jvm.org.apache.spark.sql.execution.streaming.state
        self._nothing_else = jvm.PythonUtils.toSeq([])
        self._queries = java_queries(spark)
        self._query_id = jvm.java.util.UUID.fromString(query.id)
        self._run, self._run_id = query.runId, jvm.java.util.UUID.fromString(query.runId)
        self._root: str | None = None
        self._opener: StateOpener | None = None
        self._looked_for_opener = False
        try:
            self._coordinator = java_session(spark).streams().stateStoreCoordinator()
        except (Py4JError, TypeError) as error:
            raise EnvironmentProblem(f"this Spark does not support moving state partitions: {error}") from None

    def where(self) -> Mapping[int, Location]:
        """Return the location of every partition that was loaded; empty before the first batch."""
        root = self._state_root()
        if root is None:
            return {}
        first = self._operators[0]
        store = first.id, first.stores[0]
        answers = self._driver.ask("locations", self._coordinator, root, self._run, *store, self.partitions)
        return {partition: _location(place) for partition, (place,) in enumerate(answers) if place}

    def move(self, partition: int, to: Location) -> None:
        """Run `partition` at `to` in the next batch. Has no effect before the first batch."""
        if self._state_root() is None:
            return
        for operator in self._operators:
            for store in operator.stores:
                provider = self._provider(operator, partition, store)
                self._coordinator.reportActiveInstance(provider, to.address, to.executor, self._nothing_else)

    def snapshot(self, partition: int) -> bool:
        """Ask for a snapshot of `partition` with the next batch that begins; False if this Spark cannot."""
        stores = [(operator, store) for operator in self._operators for store in operator.stores]
        providers = [self._provider(operator, partition, store) for operator, store in stores]
        return [] not in [self._driver.ask("snapshot", self._coordinator, each) for each in providers]

    def stores(self) -> Mapping[StatefulOperator, Java | None] | None:
        """Return each operator's StateStoreRDD, if it has one; None before a batch's plan exists. Raises Py4JError."""
        execution = self._execution()
        stream = self._queries.get(self._query_id)
        if execution is None or stream is None or stateful_stages(self._driver, stream) is None:
            return None
        return {each: _opened(self._spark, execution, each.id)[1] for each in self._operators}

    def saved(self) -> SavedState | None:
        """Return where the newest state is; None before the first batch, and without a disk."""
        if self._disk is None or self._state_root() is None:
            return None
        stores = [(each.id, store) for each in self._operators for store in each.stores]
        return SavedState(self._disk, self._version(), tuple(stores))

    def planned(self) -> int:
        """Return the number of the newest planned batch; -1 before the first."""
        execution = self._execution()
        return -1 if execution is None else int(execution.currentBatchId())

    def idle(self) -> bool:
        """Return True if no batch is running, also for an ended query."""
        stream = self._queries.get(self._query_id)
        return stream is None or not stream.status().isTriggerActive()

    def resume(self, before: "StatePartitions") -> None:
        """Take the locations from an earlier run of the query, to place partitions before its first batch."""
        self._root = before._root

    def load(self, places: Mapping[int, Location], *, keep: bool) -> Collection[int] | None:
        """Load the state of partitions, each at its place, for a later batch; block until done.

        With `keep`, the old location is restored after each report: only for executors without tasks. Returns the loaded
        partitions; None if this state cannot be loaded ahead.
        """
        if len(self._operators) > 1:
            return None
        if self._version() < 1 or not (self._looked_for_opener or self._look_for_opener()):
            return ()
        if self._opener is None:
            return None
        execution = self._execution()
        origin = {partition: at for partition in places if (at := self._at(partition)) is not None}
        if execution is None or not origin:
            return ()
        arguments = execution.sparkSession(), self._version(), {each: places[each] for each in origin}
        opening, loaded = _OpeningThread(self._opener, arguments), set[int]()
        opening.start()
        alive = True
        while alive:
            # A check costs the driver as much as a batch: frequent only if reports must be reverted.
            opening.join(LOCATION_CHECK_S if keep else None)
            alive = opening.is_alive()
            for partition in origin.keys() - loaded:
                if (now := self._at(partition)) == places[partition]:
                    loaded.add(partition)
                if now != origin[partition] and (keep or now != places[partition]):
                    # Restore: the location must stay, or the task ran elsewhere because the executor was busy.
                    self.move(partition, origin[partition])
        if opening.fault is not None:
            raise opening.fault
        # A report overwritten by the next batch before a check is not counted as loaded.
        return loaded if opening.done else ()

    def _look_for_opener(self) -> bool:
        execution, until = self._execution(), time.monotonic() + BATCH_END_TIMEOUT_S
        if execution is None:
            return False
        while not self._has_ended(execution):
            if time.monotonic() >= until:
                return False
            time.sleep(LOCATION_CHECK_S)
        self._opener = find_opener(self._spark, execution, self._operators[0].id, self.partitions)
        self._looked_for_opener = True
        return True

    def _version(self) -> int:
        execution = self._execution()
        return 0 if execution is None else int(execution.currentBatchId()) + self._has_ended(execution)

    def _has_ended(self, execution: Java) -> bool:
        """Return True if the batch has ended; an earlier read would create its plan with wrong settings."""
        stream = self._queries.get(self._query_id)
        progress = None if stream is None else stream.lastProgress()
        return progress is not None and int(progress.batchId()) >= int(execution.currentBatchId())

    def _provider(self, operator: StatefulOperator, partition: int, store: str) -> Java:
        store_id = self._state.StateStoreId(self._state_root(), operator.id, partition, store)
        return self._state.StateStoreProviderId(store_id, self._run_id)

    def _state_root(self) -> str | None:
        if self._root is None:
            execution = self._execution()
            self._root = execution.checkpointLocation() if execution is not None else None
        return self._root

    def _at(self, partition: int) -> Location | None:
        first = self._operators[0]
        location = self._coordinator.getLocation(self._provider(first, partition, first.stores[0]))
        return _location(location.get()) if location.isDefined() else None

    def _execution(self) -> Java:
        stream = self._queries.get(self._query_id)
        return None if stream is None else stream.lastExecution()


class _OpeningThread(threading.Thread):
    def __init__(self, opener: StateOpener, arguments: tuple[Java, int, Mapping[int, Location]]) -> None:
        super().__init__(name="open-state", daemon=True)
        self._opener, self._arguments = opener, arguments
        self.done = False
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            self._opener.open(*self._arguments)
            self.done = True
        except Py4JError:
            # For instance, the executor was lost; the partitions are moved without loading ahead.
            log.info("state was not loaded ahead", exc_info=True)
        except BaseException as error:
            self.fault = error  # raised again by `load`, in a supervised thread


def _location(place: str) -> Location:
    _, address, executor = place.split("_", 2)
    return Location(address, executor)
