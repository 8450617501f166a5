"""Moves state partitions of a running query between executors.

Spark's state store coordinator remembers, per state partition, the executor that loaded it last, and schedules the
partition's task there. Telling the coordinator otherwise between two batches makes the next batch run there, with the
state loaded from the checkpoint; nothing is copied and nothing can be lost. A batch under way reports its own locations
and may overwrite what it was told, which is why callers move right after a batch ends, look again, and repeat.
"""

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from elastream.model.errors import EnvironmentProblem
from elastream.spark.executors import Location
from elastream.spark.preload import StateOpener, find_opener

__all__ = ["Location", "StatePartitions"]

LOOK = 0.01
"""Seconds between two looks at who holds a partition being loaded: a batch that asks in between goes the wrong way."""

PATIENCE = 60.0
"""Seconds that the end of a batch is waited for, to see how its operators open their state."""


class StatePartitions:
    """The state partitions of one stateful operator of one query.

    operator: its number in Spark's physical plan (0 for the first). stores: names of its state stores, `("default",)`
    for aggregations.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: StreamingQuery,
        partitions: int,
        operator: int = 0,
        stores: tuple[str, ...] = ("default",),
    ) -> None:
        self.partitions = partitions
        self._operator = operator
        self._stores = stores
        jvm: Any = spark._jvm
        self._spark = spark
        self._jvm = jvm
        self._streams = spark._jsparkSession.streams()
        self._query_id = jvm.java.util.UUID.fromString(query.id)
        self._run_id = jvm.java.util.UUID.fromString(query.runId)
        self._root: str | None = None
        self._opener: StateOpener | None = None
        self._looked_for_opener = False
        self._providers: dict[tuple[int, str], Any] = {}
        try:
            self._coordinator = self._streams.stateStoreCoordinator()
        except (Py4JError, TypeError) as error:
            raise EnvironmentProblem(f"this Spark does not let state partitions be moved: {error}") from None

    def where(self) -> Mapping[int, Location]:
        """Location of every partition that has been loaded anywhere; empty before the first batch."""
        if self._state_root() is None:
            return {}
        located = ((partition, self._location(partition)) for partition in range(self.partitions))
        return {partition: location for partition, location in located if location is not None}

    def move(self, partition: int, to: Location) -> None:
        """Let the next batch run `partition` at `to`. About a millisecond; no effect before the first batch."""
        if self._state_root() is None:
            return
        nothing_else = self._jvm.PythonUtils.toSeq([])
        for store in self._stores:
            self._coordinator.reportActiveInstance(self._provider(partition, store), to.address, to.executor, nothing_else)

    def planned(self) -> int:
        """The newest batch that was planned; -1 before the first."""
        execution = self._execution()
        return -1 if execution is None else int(execution.currentBatchId())

    def resume(self, before: "StatePartitions") -> None:
        """Take over from an earlier run of the query, so that partitions can be placed before its first batch."""
        self._root = before._root

    def load(self, partition: int, at: Location, *, keep: bool) -> bool | None:
        """Load the state of `partition` at `at`, so that a batch finds it there; whether that was done, after it was.

        None where no state of this operator can be loaded so.

        The executor that loads it reports that it holds it now, and batches go there from then on. keep: put that right
        each time, so that they do not. An executor that runs other stateful tasks meanwhile is told by Spark to unload
        what it does not hold: `keep` is for those that run none yet.
        """
        execution = self._execution()
        if execution is None or execution.currentBatchId() < 1:
            return False
        if not self._looked_for_opener and self._has_ended(execution):
            self._opener = find_opener(self._spark, execution, self._operator, self.partitions)
            self._looked_for_opener = True
        before = self._location(partition)
        if self._opener is None or before is None:
            return None if self._looked_for_opener and self._opener is None else False
        opening = _Opening(self._opener, self._execution() or execution, partition, at)
        opening.start()
        seen = False
        while True:
            alive = opening.is_alive()
            if self._location(partition) == at:
                seen = True
                if keep and before != at:
                    self.move(partition, before)
            if not alive:
                return seen and opening.done
            opening.join(LOOK)

    def _has_ended(self, execution: Any) -> bool:
        """Wait until the batch of `execution` has ended; False where it does not within a minute.

        Its plan is made when it is first asked for. To ask for it before Spark does would be to make it in a thread that
        has not the settings of the query.
        """
        batch, until = int(execution.currentBatchId()), time.monotonic() + PATIENCE
        while time.monotonic() < until:
            wrapper = self._streams.get(self._query_id)
            progress = None if wrapper is None else wrapper.lastProgress()
            if progress is not None and int(progress.batchId()) >= batch:
                return True
            time.sleep(LOOK)
        return False

    def _provider(self, partition: int, store: str) -> Any:
        key = (partition, store)
        if key not in self._providers:
            state = self._jvm.org.apache.spark.sql.execution.streaming.state
            store_id = state.StateStoreId(self._state_root(), self._operator, partition, store)
            self._providers[key] = state.StateStoreProviderId(store_id, self._run_id)
        return self._providers[key]

    def _state_root(self) -> str | None:
        """Folder of the query's state, known to Spark once its first batch was planned."""
        if self._root is None:
            execution = self._execution()
            self._root = execution.checkpointLocation() if execution is not None else None
        return self._root

    def _location(self, partition: int) -> Location | None:
        location = self._coordinator.getLocation(self._provider(partition, self._stores[0]))
        if not location.isDefined():
            return None
        # The coordinator answers in the form of a task location, "executor_HOST_ID".
        _, address, executor = location.get().split("_", 2)
        return Location(address, executor)

    def _execution(self) -> Any:
        """The newest execution of the query, None before its first batch and after its end."""
        wrapper = self._streams.get(self._query_id)
        return None if wrapper is None else wrapper.streamingQuery().lastExecution()


class _Opening(threading.Thread):
    """One partition on its way into an executor. done: whether the task that opened it succeeded."""

    def __init__(self, opener: StateOpener, execution: Any, partition: int, at: Location) -> None:
        super().__init__(name=f"load-state-{partition}", daemon=True)
        self._arguments = opener, execution, partition, at
        self.done = False

    def run(self) -> None:
        opener, execution, partition, at = self._arguments
        # An executor that leaves meanwhile takes the task with it; the partition is moved all the same.
        with contextlib.suppress(Py4JError):
            opener.open(execution, partition, at)
            self.done = True
