"""Repartition of a run's state, in the loop's thread: meanwhile there is nothing to observe or to control."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from elastream.core.action import Repartition, Status
from elastream.core.observation import Composition
from elastream.core.width import PauseLimit, TooLong
from elastream.core.wording import counted
from elastream.errors import ElastreamError, in_one_line
from elastream.spark.jvm.ending import end_after_batch
from elastream.spark.queries.segments import RunningSegment
from elastream.units import format_duration

log = logging.getLogger(__name__)

# Time for running batches to end. Meanwhile queries that have ended wait, and nothing is observed.
LONGEST_BATCH_S = 300.0

# A run of W partitions gets V. Rows are exact in every state.
#
# | state | event | next | a kill now: `--resume` goes on with |
# | --- | --- | --- | --- |
# | running W | no minute of the window, too long a pause predicted, a switch drains, a request withdrawn | running W | W |
# | running W | else | ending | W |
# | ending | each query has committed its batch | stopped | W |
# | ending | that takes too long, or the request is withdrawn | starting W | W; a batch that is cut off is replayed |
# | ending | a query fails | failed | W |
# | stopped | a checkpoint has V | stopped | W or V for each query |
# | stopped | all have V, and the manifest says so | starting V | V |
# | stopped | one cannot get V, it takes too long, or the request is withdrawn | undoing | W or V for each query |
# | starting V | the request is withdrawn | starting V | V |
# | starting V | all queries run | running V | V |
# | starting V | a query does not start, and none ran a batch | undoing | V |
# | starting V | a query does not start, and one ran a batch | failed | V |
# | undoing | all have W again | starting W | W |
# | starting W | all queries run | running W | W |
# | starting W | a query does not start | failed | W |

# Starts the queries of a run, with so many state partitions.
Start: TypeAlias = Callable[[Composition, int], tuple[RunningSegment, ...]]


class Change(Protocol):
    @property
    def rows(self) -> int: ...

    def undo(self) -> None:
        """Raise ElastreamError if a batch ran with it."""

    def keep(self) -> None: ...


class Checkpoints(Protocol):
    def refusal(self, action: Repartition) -> str:
        """Return why a repartition may not begin now, or ""."""

    def limit(self, action: Repartition) -> PauseLimit:
        """Return the limit of a pause that begins now."""

    def change(self, spark: SparkSession, checkpoint: Path, partitions: int, limit: PauseLimit) -> Change | None:
        """Change one within `limit`; return None if there is nothing to change. Raises ElastreamError."""

    def changed(self, partitions: int) -> None: ...


class Repartitioning:
    def __init__(self, spark: SparkSession, checkpoints: Checkpoints, start: Start) -> None:
        self._spark, self._checkpoints, self.start = spark, checkpoints, start

    def refusal(self, action: Repartition) -> str:
        return self._checkpoints.refusal(action)

    def apply(
        self, action: Repartition, running: Sequence[RunningSegment], composition: Composition, before: int
    ) -> tuple[tuple[RunningSegment, ...], Status, str]:
        """Return the queries that run now, and the outcome. Raises ElastreamError if nothing runs any more."""
        limit, changes = self._checkpoints.limit(action), list[Change]()
        try:
            self._stop(running, limit)
            for each in running:
                checkpoint = Path(str(each.checkpoint))
                if (change := self._checkpoints.change(self._spark, checkpoint, action.partitions, limit)) is not None:
                    changes.append(change)
            self._checkpoints.changed(action.partitions)
            started = self.start(composition, action.partitions)
        except StreamingQueryException:
            raise
        except (ElastreamError, PySparkException, Py4JError, OSError) as error:
            log.warning("the state keeps %d partitions", before, exc_info=True)
            for change in reversed(changes):
                change.undo()
            self._checkpoints.changed(before)
            return self.start(composition, before), Status.FAILED, in_one_line(error)
        for change in changes:
            change.keep()
        log.info("the state has %d partitions, %d before", action.partitions, before)
        rows = counted(sum(change.rows for change in changes), "row")
        paused = f"paused for {limit.now() - limit.began:.1f} s"
        return started, Status.DONE, f"{rows} of state, equal before and after; {paused}"

    def _stop(self, running: Sequence[RunningSegment], limit: PauseLimit) -> None:
        # All at once: a query may wait for records of another for its next batch, never for the one that runs.
        queries, latest = [each.query for each in running], limit.now() + LONGEST_BATCH_S

        def check() -> None:
            limit.check()
            if limit.now() > latest:
                raise TooLong(f"a batch runs for more than {format_duration(LONGEST_BATCH_S)}: nothing is changed")

        try:
            end_after_batch(self._spark, queries, check)
        except (ElastreamError, Py4JError):
            for query in queries:
                query.stop()
            raise
