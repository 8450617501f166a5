"""Schemes that bring a running query to a new placement, for comparison on the same load.

`RESTART` is Storm's rebalance, `PROCESS` what users of Spark must do instead, `EXECUTORS` the rebalance of T-Storm and
TS-Storm, `ONLINE` N-Storm, `LAZY` N-Storm+ and Elastream (N-Storm, section 5.2).
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.core.task_id import TaskId
from elastream.spark.jvm.driver_side import DriverSide, java_context
from elastream.spark.jvm.executors import Executors, Location
from elastream.spark.jvm.state_partitions import StatePartitions
from elastream.spark.placement.allocation import AllocationStore
from elastream.spark.placement.placing import MigrationLimits, Placing

log = logging.getLogger(__name__)


class Scheme(StrEnum):
    """How a new version of the plan is applied."""

    # The query stops and starts again with the new placement.
    RESTART = "stop and restart"
    # As RESTART, with a new driver and new executors. The owner of the follower restarts them.
    PROCESS = "restart of the job"
    # Executors that lose or gain a task are killed and replaced; the query continues on the others.
    EXECUTORS = "restart of executors"
    # All tasks move with the next batch, and load their state in it.
    ONLINE = "online"
    # One task per host and batch, after the new executor has loaded its state; right after each batch.
    LAZY = "online, lazy"


@dataclass(frozen=True, slots=True)
class Cycles:
    """Seconds between reads of the plan (N-Storm's T_S), and between checks of the query (T_W)."""

    plan: float
    batches: float


# The paper's defaults (section 5.2); for N-Storm+ those of Elastream.
CYCLES: Mapping[Scheme, Cycles] = {
    Scheme.RESTART: Cycles(10.0, 3.0),
    Scheme.PROCESS: Cycles(10.0, 3.0),
    Scheme.EXECUTORS: Cycles(10.0, 3.0),
    Scheme.ONLINE: Cycles(10.0, 3.0),
    Scheme.LAZY: Cycles(1.0, 0.05),
}

LIMITS: Mapping[Scheme, MigrationLimits] = {
    scheme: MigrationLimits() if scheme is Scheme.LAZY else MigrationLimits(per_host=None, lazy=False) for scheme in Scheme
}


class Follower:
    """A query that follows a plan under a scheme; the plan names hosts by address. Close it.

    `failure` is the error that ended the thread.
    """

    def __init__(
        self,
        spark: SparkSession,
        start: Callable[[], StreamingQuery],
        plan: AllocationStore,
        scheme: Scheme,
        *,
        operator: str,
        partitions: int,
        cycles: Cycles | None = None,
    ) -> None:
        """Start the query where `plan` has its tasks, and a thread that follows it.

        `start` also restarts the query from its checkpoint.
        """
        self._spark, self._start, self.plan = spark, start, plan
        self._operator, self._partitions = operator, partitions
        self._executors = Executors(DriverSide(spark))
        self.ended = -1
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)
        self.scheme = scheme
        self.cycles = cycles or CYCLES[scheme]
        self.query = start()
        self.restarts = 0
        self.failure: BaseException | None = None
        self.placing = Placing({operator: self._states()}, time.time, plan, limits=LIMITS[scheme])
        self.acted = plan.latest.version
        self._put(plan.latest.hosts)
        self._thread.start()

    def switch(self, scheme: Scheme, cycles: Cycles | None = None, limits: MigrationLimits | None = None) -> None:
        """Continue with another scheme, under its own or other limits of moves."""
        self.scheme, self.cycles = scheme, cycles or CYCLES[scheme]
        self.placing.limits = limits or LIMITS[scheme]

    def close(self) -> None:
        """Stop the thread and the query; a running batch is aborted without effect."""
        self._stopping.set()
        self._thread.join()
        self.placing.close()
        self.query.stop()

    def target(self, address: str) -> Location | None:
        """Return the executor of a host; None if it has none."""
        return self._locations().get(address)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        next_plan = time.monotonic()
        while not self._stopping.wait(self.cycles.batches):
            try:
                if time.monotonic() >= next_plan:
                    next_plan = time.monotonic() + self.cycles.plan
                    if self.plan.refresh().version > self.acted:
                        self._enact()
                        self.acted = self.plan.latest.version
                self._look()
            except Exception as error:
                # Calls may fail while executors start and stop; any other error, and the end of the query, is a failure.
                if not isinstance(error, Py4JError | PySparkException) or not self.query.isActive:
                    self.failure = error
                    return
                log.debug("a pass of the follower failed", exc_info=True)

    def _look(self) -> None:
        progress = self.query._jsq.lastProgress()
        batch = -1 if progress is None else int(progress.batchId())
        if batch > self.ended:
            self.ended = batch
            self.placing.batch_ended([self._operator], batch, self._locations().get)
        elif not self.query.isActive and (error := self.query.exception()) is not None:
            raise error

    def _locations(self) -> dict[str, Location]:
        executors = self._executors.by_address().items()
        return {address: Location(address, each.id) for address, each in executors}

    def _enact(self) -> None:
        hosts = self.plan.latest.hosts
        moved = {task: host for task, host in hosts.items() if self._at(task) not in (None, host)}
        if not moved:
            return
        if self.scheme is Scheme.RESTART:
            self._restart(hosts)
        elif self.scheme is Scheme.EXECUTORS:
            self._replace({*moved.values(), *(str(self._at(task)) for task in moved)})

    def _restart(self, hosts: Mapping[TaskId, str]) -> None:
        before = self.placing_states
        self.query.stop()
        self.query = self._start()
        self.restarts += 1
        states = self._states()
        states.resume(before)
        self._put(hosts)
        self.placing.detach(self._operator)
        self.placing.attach(self._operator, states)

    def _put(self, hosts: Mapping[TaskId, str]) -> None:
        """Place the state of a query that has just started."""
        locations = self._locations()
        for task, host in hosts.items():
            if (place := locations.get(host)) is not None:
                self.placing_states.move(task.index, place)

    def _replace(self, addresses: set[str]) -> None:
        context = java_context(self._spark)
        executors = self._executors.by_address()
        for address in addresses:
            if (executor := executors.get(address)) is not None:
                try:
                    context.killAndReplaceExecutor(executor.id)
                except Py4JError:
                    log.info("executor %s ended before it was replaced", executor.id, exc_info=True)

    def _at(self, task: TaskId) -> str | None:
        at = self.placing.where().get(task)
        return None if at is None else at.address

    def _states(self) -> StatePartitions:
        self.placing_states = StatePartitions(self._spark, self.query, self._partitions)
        return self.placing_states
