"""Moves state partitions of a running query between executors.

Spark's state store coordinator remembers, per state partition, the executor that loaded it last, and schedules the
partition's task there. Telling the coordinator otherwise between two batches makes the next batch run there, with the
state loaded from the checkpoint; nothing is copied and nothing can be lost. A batch under way reports its own locations
and may overwrite what it was told, which is why callers move right after a batch ends, look again, and repeat.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from elastream.model.errors import EnvironmentProblem

__all__ = ["Location", "StatePartitions"]


@dataclass(frozen=True, slots=True)
class Location:
    """Where a state partition was last: the address of its host and the id of its executor."""

    address: str
    executor: str


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
        self._jvm = jvm
        self._streams = spark._jsparkSession.streams()
        self._query_id = jvm.java.util.UUID.fromString(query.id)
        self._run_id = jvm.java.util.UUID.fromString(query.runId)
        self._root: str | None = None
        self._providers: dict[tuple[int, str], Any] = {}
        try:
            self._coordinator = self._streams.stateStoreCoordinator()
        except (Py4JError, TypeError) as error:
            raise EnvironmentProblem(f"this Spark does not let state partitions be moved: {error}") from None

    def where(self) -> Mapping[int, Location]:
        """Location of every partition that has been loaded anywhere; empty before the first batch."""
        if self._state_root() is None:
            return {}
        found: dict[int, Location] = {}
        for partition in range(self.partitions):
            location = self._coordinator.getLocation(self._provider(partition, self._stores[0]))
            if location.isDefined():
                # The coordinator answers in the form of a task location, "executor_HOST_ID".
                _, address, executor = location.get().split("_", 2)
                found[partition] = Location(address, executor)
        return found

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

    def load(self, partition: int, at: Location) -> bool:
        """Load the state of `partition` at `at` while it stays where it is; whether that could be done."""
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

    def _execution(self) -> Any:
        """The newest execution of the query, None before its first batch and after its end."""
        wrapper = self._streams.get(self._query_id)
        return None if wrapper is None else wrapper.streamingQuery().lastExecution()
