"""Four ways to bring a running query to a new placement, so that they can be compared on the same load.

`RESTART` is Storm's rebalance, `EXECUTORS` what T-Storm and TS-Storm do, `ONLINE` N-Storm and `LAZY` N-Storm+ (N-Storm,
section 5.2). All read the plan from a store in a cycle of their own; what differs is what they do about a new version. Only
`LAZY` is what Elastream does by itself; the others are here to be measured against.
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

from elastream.model.action import TaskId
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.executors import Executors
from elastream.spark.jvm.gateway import java_context, java_query
from elastream.spark.jvm.state_partitions import Location, StatePartitions
from elastream.spark.placement.allocation import AllocationStore
from elastream.spark.placement.placing import Limits, Placing

__all__ = ["CYCLES", "Cycles", "Follower", "Scheme"]

log = logging.getLogger(__name__)


class Scheme(StrEnum):
    """What is done about a new version of the plan."""

    RESTART = "stop and restart"
    """The query stops and starts again with the new placement."""
    EXECUTORS = "restart of executors"
    """The executors that give or get a task are killed and replaced; the query goes on with what is left meanwhile."""
    ONLINE = "online"
    """All tasks move with the next batch, and load their state in it."""
    LAZY = "online, lazy"
    """One task a host and batch, once the new executor has loaded its state; looked after as soon as a batch has ended."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """plan: seconds between two looks into the plan (N-Storm's T_S). batches: between two looks at the query (its T_W)."""

    plan: float
    batches: float


CYCLES: Mapping[Scheme, Cycles] = {
    Scheme.RESTART: Cycles(10.0, 3.0),
    Scheme.EXECUTORS: Cycles(10.0, 3.0),
    Scheme.ONLINE: Cycles(10.0, 3.0),
    Scheme.LAZY: Cycles(1.0, 0.05),
}
"""The paper's default cycles (section 5.2) for all but N-Storm+, and the ones that Elastream runs with for that."""

LIMITS: Mapping[Scheme, Limits] = {
    scheme: Limits() if scheme is Scheme.LAZY else Limits(per_host=None, lazy=False) for scheme in Scheme
}


class Follower:
    """A query that follows a plan under a scheme; the plan names hosts by their addresses. Start and close it.

    start: begins the query, and begins it again from its checkpoint after a stop. operator: the name that the plan's tasks
    have. partitions: state partitions of the query's only stateful operator. `leaving`, for its caller to fill: addresses
    that take no tasks any more. `failure`: why it follows no longer, None while it does.
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
        self.leaving: set[str] = set()
        self.placing = Placing({operator: self._states()}, time.time, plan, limits=LIMITS[scheme])
        self.acted = plan.latest.version
        self._thread.start()

    def switch(self, scheme: Scheme, cycles: Cycles | None = None) -> None:
        """Go on under another scheme."""
        self.scheme, self.cycles = scheme, cycles or CYCLES[scheme]
        self.placing.limits = LIMITS[scheme]

    def close(self) -> None:
        """Follow no longer, and stop the query; a batch under way is broken off, as if it had never begun."""
        self._stopping.set()
        self._thread.join()
        self.placing.close()
        self.query.stop()

    def target(self, address: str) -> Location | None:
        """The executor of a host that has one and is not about to leave."""
        return self._there().get(address)

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
                # While executors come and go, what is asked of them may fail; a query that has ended is another matter.
                if not isinstance(error, Py4JError | PySparkException) or not self.query.isActive:
                    self.failure = error
                    return
                log.debug("the plan was not followed for a moment", exc_info=True)

    def _look(self) -> None:
        progress = java_query(self.query).lastProgress()
        batch = -1 if progress is None else int(progress.batchId())
        if batch > self.ended:
            self.ended = batch
            self.placing.batch_ended([self._operator], batch, self._there().get)
        elif not self.query.isActive and (error := self.query.exception()) is not None:
            raise error

    def _there(self) -> dict[str, Location]:
        """Executors that take tasks, by address."""
        found = self._executors.by_address().items()
        return {address: Location(address, each.id) for address, each in found if address not in self.leaving}

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
        there = self._there()
        for task, host in hosts.items():
            if (place := there.get(host)) is not None:
                states.move(task.index, place)
        self.placing.detach(self._operator)
        self.placing.attach(self._operator, states)

    def _replace(self, addresses: set[str]) -> None:
        """Kill the executors of some hosts; the master starts new ones there."""
        context = java_context(self._spark)
        found = self._executors.by_address()
        for address in addresses:
            if (executor := found.get(address)) is not None:
                try:
                    context.killAndReplaceExecutor(executor.id)
                except Py4JError:
                    log.info("executor %s was gone before it was replaced", executor.id, exc_info=True)

    def _at(self, task: TaskId) -> str | None:
        at = self.placing.where().get(task)
        return None if at is None else at.address

    def _states(self) -> StatePartitions:
        self.placing_states = StatePartitions(self._spark, self.query, self._partitions)
        return self.placing_states
