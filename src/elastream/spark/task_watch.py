"""What single state partitions cost, measured: Spark's own telemetry of the tasks of each stateful stage, batch by batch.

The driver's status store has it all, web interface or not; one call of the gateway brings what the newest batches of a
query cost, however many tasks that are. Works on any query of any session. That task p of a stage holds state partition p
is how Spark schedules stateful stages.
"""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from elastream.spark.driver_side import HERE, DriverSide
from elastream.spark.stage_load import StageLoad, read_loads
from elastream.spark.stateful import StatefulStage, ranked_kinds, stateful_stages

__all__ = ["TaskLoads", "TaskWatch"]


class TaskLoads(DriverSide):
    """The methods of `TaskLoads.java`. Raises EnvironmentProblem where this Spark does not tell what single tasks cost."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, HERE / "TaskLoads.java")


class TaskWatch:
    """The tasks of the stateful stages of one run of a query.

    senders: tell also of the stages that feed those (they have no `ranks`), as `exchanged` needs them.
    """

    def __init__(
        self, spark: SparkSession, driver: DriverSide, loads: TaskLoads, query: StreamingQuery, *, senders: bool = False
    ) -> None:
        self._context: Any = spark.sparkContext._jsc.sc()
        self._execution: Any = query._jsq.streamingQuery()
        self._driver, self._loads, self._senders = driver, loads, senders
        self._stages: tuple[StatefulStage, ...] | None = None
        self._told = -1

    @property
    def stages(self) -> tuple[StatefulStage, ...] | None:
        """What the query keeps state in; None before its first batch."""
        if self._stages is None:
            self._stages = stateful_stages(self._driver, self._execution)
        return self._stages

    def poll(self, batches: int = 1) -> tuple[StageLoad, ...]:
        """Loads of the newest `batches` batches that ended since the last call, oldest first.

        Those before are left out: a look must not cost more because it came late. Raises Py4JError as any call does.
        """
        if not self.stages:
            return ()
        kinds = ranked_kinds(self.stages)
        found = read_loads(
            self._loads.ask("loads", self._context, self._execution, kinds, self._told, batches, self._senders)
        )
        self._told = max((load.batch for load in found), default=self._told)
        return found
