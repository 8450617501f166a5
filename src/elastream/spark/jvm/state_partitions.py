"""Moves state partitions of a running query between executors.

Spark's state store coordinator stores, per state partition, the executor that loaded it last, and schedules the partition's
task there. Reporting another executor to the coordinator between two batches makes the next batch run there, with the state
loaded from the checkpoint; nothing is copied, and nothing can be lost. A running batch reports its own locations and may
overwrite the report, so that callers move right after a batch ends, check, and repeat.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.gateway import Java, java_queries, java_session, jvm_of
from elastream.spark.jvm.preload import StateOpener, find_opener, store_rdd
from elastream.spark.jvm.stateful import StatefulOperator, stateful_stages

log = logging.getLogger(__name__)

LOOK = 0.01
"""Seconds between checks of a loading partition's location: a batch planned in between uses the wrong one."""

FIRST = StatefulOperator(0)

PATIENCE = 60.0
"""Most seconds to wait for the end of a batch, whose plan shows how its operators open their state."""


class Run(NamedTuple):
    """One run of a query, with PySpark's names of its ids; the second is new after each restart."""

    id: str
    runId: str


class StatePartitions:
    """The state partitions of one run of a query: reads and sets their locations.

    operators: those that run in one task per partition; by default the first of Spark's physical plan, with one store, as
    of an aggregation. driver: reads all partitions in one call; created if not given.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: Run | StreamingQuery,
        partitions: int,
        operators: Sequence[StatefulOperator] = (FIRST,),
        driver: DriverSide | None = None,
    ) -> None:
        self.partitions = partitions
        self._operators = tuple(operators)
        self._driver = DriverSide(spark) if driver is None else driver
        jvm = jvm_of(spark)
        self._spark = spark
        self._jvm = jvm
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
        """Location of every partition that was loaded; empty before the first batch."""
        root = self._state_root()
        if root is None:
            return {}
        first = self._operators[0]
        answers = self._driver.ask(
            "locations", self._coordinator, root, self._run, first.id, first.stores[0], self.partitions
        )
        return {partition: _location(place) for partition, (place,) in enumerate(answers) if place}

    def move(self, partition: int, to: Location) -> None:
        """Run `partition` at `to` in the next batch. Takes about 1 ms per store; no effect before the first batch."""
        if self._state_root() is None:
            return
        for operator in self._operators:
            for store in operator.stores:
                provider = self._provider(operator, partition, store)
                self._coordinator.reportActiveInstance(provider, to.address, to.executor, self._nothing_else)

    def stores(self) -> Mapping[StatefulOperator, Java | None] | None:
        """What opens the state of each operator, Spark's StateStoreRDD; None for one that opens it in another way.

        None while no plan of a batch can be read. Raises Py4JError.
        """
        execution = self._execution()
        stream = self._queries.get(self._query_id)
        if execution is None or stream is None or stateful_stages(self._driver, stream) is None:
            return None
        return {each: store_rdd(self._spark, execution, each.id) for each in self._operators}

    def planned(self) -> int:
        """Number of the newest planned batch; -1 before the first."""
        execution = self._execution()
        return -1 if execution is None else int(execution.currentBatchId())

    def idle(self) -> bool:
        """Whether no batch is running; True for an ended query."""
        stream = self._queries.get(self._query_id)
        return stream is None or not stream.status().isTriggerActive()

    def resume(self, before: "StatePartitions") -> None:
        """Take the locations from an earlier run of the query, so that partitions can be placed before its first batch."""
        self._root = before._root

    def load(self, places: Mapping[int, Location], *, keep: bool) -> Collection[int] | None:
        """Load the state of partitions, each at its place, for a later batch; blocks until done.

        Returns the partitions that were loaded; None if the state of this operator cannot be loaded ahead.

        The loading executor reports that it holds the state, and later batches run there. keep: restore the old location
        after each such report. Spark makes an executor that runs other stateful tasks unload state that it does not hold:
        `keep` is only for executors without tasks.
        """
        if len(self._operators) > 1:
            return None
        if self._version() < 1 or not (self._looked_for_opener or self._look_for_opener()):
            return ()
        if self._opener is None:
            return None
        execution = self._execution()
        held = {partition: at for partition in places if (at := self._at(partition)) is not None}
        if execution is None or not held:
            return ()
        arguments = execution.sparkSession(), self._version(), {each: places[each] for each in held}
        opening, seen = _Opening(self._opener, arguments), set[int]()
        opening.start()
        alive = True
        while alive:
            # A check costs the driver as much as a batch: frequent only if reports must be reverted.
            opening.join(LOOK if keep else None)
            alive = opening.is_alive()
            for partition in held.keys() - seen:
                if (now := self._at(partition)) == places[partition]:
                    seen.add(partition)
                if now != held[partition] and (keep or now != places[partition]):
                    # Restore: the location must stay, or the task ran elsewhere because the executor was busy.
                    self.move(partition, held[partition])
        if opening.fault is not None:
            raise opening.fault
        # A report overwritten by the next batch before a check is not counted as loaded.
        return seen if opening.done else ()

    def _look_for_opener(self) -> bool:
        """Search for the opener after a batch has ended; returns whether the search was possible."""
        execution, until = self._execution(), time.monotonic() + PATIENCE
        while execution is not None and not (ended := self._has_ended(execution)) and time.monotonic() < until:
            time.sleep(LOOK)
        if execution is None or not ended:
            return False
        self._opener = find_opener(self._spark, execution, self._operators[0].id, self.partitions)
        self._looked_for_opener = True
        return True

    def _version(self) -> int:
        """The state version with which the running batch, or else the next one, begins."""
        execution = self._execution()
        return 0 if execution is None else int(execution.currentBatchId()) + self._has_ended(execution)

    def _has_ended(self, execution: Java) -> bool:
        """Whether the batch of `execution` has ended, so that its plan exists.

        Spark creates a plan on first use; reading it earlier would create it in a thread without the query's settings.
        """
        stream = self._queries.get(self._query_id)
        progress = None if stream is None else stream.lastProgress()
        return progress is not None and int(progress.batchId()) >= int(execution.currentBatchId())

    def _provider(self, operator: StatefulOperator, partition: int, store: str) -> Java:
        store_id = self._state.StateStoreId(self._state_root(), operator.id, partition, store)
        return self._state.StateStoreProviderId(store_id, self._run_id)

    def _state_root(self) -> str | None:
        """Folder of the query's state; None before its first batch is planned."""
        if self._root is None:
            execution = self._execution()
            self._root = execution.checkpointLocation() if execution is not None else None
        return self._root

    def _at(self, partition: int) -> Location | None:
        first = self._operators[0]
        location = self._coordinator.getLocation(self._provider(first, partition, first.stores[0]))
        return _location(location.get()) if location.isDefined() else None

    def _execution(self) -> Java:
        """The newest execution of the query; None before its first batch and after its end."""
        stream = self._queries.get(self._query_id)
        return None if stream is None else stream.lastExecution()


class _Opening(threading.Thread):
    """A thread that loads partitions into executors. done: whether all tasks succeeded; fault: an unexpected error."""

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
    """Parse the coordinator's task location, "executor_HOST_ID"."""
    _, address, executor = place.split("_", 2)
    return Location(address, executor)
