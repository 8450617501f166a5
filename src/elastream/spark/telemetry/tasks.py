"""What single state partitions cost, measured: Spark's own telemetry of the tasks of each stateful stage, batch by batch.

The driver's status store has it all, web interface or not; one call of the gateway brings what the newest batches of a
query cost, however many tasks that are. Works on any query of any session. That task p of a stage holds state partition p
is how Spark schedules stateful stages.
"""

from collections.abc import Sequence
from typing import Any

from elastream.spark.jvm.driver_side import TaskLoads
from elastream.spark.jvm.stateful import StatefulStage, ranked_kinds
from elastream.spark.telemetry.stage_load import StageLoad, read_loads

__all__ = ["TaskWatch"]


class TaskWatch:
    """The tasks of the stateful stages of one run of a query.

    execution: Spark's StreamExecution of the query. stages: what it keeps state in, all of it. senders: tell also of the
    stages that feed those (they have no `ranks`), as `Exchanged` needs them.
    """

    def __init__(self, loads: TaskLoads, execution: Any, stages: Sequence[StatefulStage], *, senders: bool = False) -> None:
        self._loads, self._execution, self._senders = loads, execution, senders
        self._kinds = ranked_kinds(stages)
        self._stage_of = {operator.rank: stage for stage in stages for operator in stage.operators}
        self._told = -1

    def poll(self, batches: int = 1) -> tuple[StageLoad, ...]:
        """Loads of the newest `batches` batches that ended since the last call, oldest first.

        Those before are left out: a look must not cost more because it came late. Raises Py4JError as any call does.
        """
        if not self._kinds:
            return ()
        lines = self._loads.ask(
            "loads", self._loads.context, self._execution, self._kinds, self._told, batches, self._senders
        )
        found = read_loads(lines)
        self._told = max((load.batch for load in found), default=self._told)
        return found

    def stage(self, load: StageLoad) -> StatefulStage | None:
        """What `load` tells of; None where that holds no state."""
        return self._stage_of[load.ranks[0]] if load.ranks else None
