"""Places of state partitions in the driver's JVM (`Recovery.java`), when a query starts or an executor is lost.

Python would notice a second later, with a batch waiting.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.errors import EnvironmentProblem, first_line
from elastream.spark.jvm.driver_side import HERE, DriverSide, java_queries, java_session
from elastream.spark.jvm.state_partitions import StatefulStage


class StageSuccessors(NamedTuple):
    """State partitions of a stage of a run, with each one's successors, nearest first."""

    run: str
    stage: StatefulStage
    successors: Sequence[Sequence[str]]


class Loss(NamedTuple):
    """A lost executor, or a stage submitted meanwhile that still waits for it."""

    executor: str
    at: float  # time of Spark's event (epoch seconds)
    reason: str
    took: float  # duration of the failover (seconds)
    waiting: int  # tasks that would have waited for the lost executor
    fault: str  # reason of a failure, if any
    moved: Mapping[tuple[str, tuple[int, ...], int], str]  # new executor by (run, operator ids, partition)


class Recovery(DriverSide):
    """The listener in the JVM of a session, active from `start` to `close`."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, HERE / "Recovery.java", "org.apache.spark.scheduler.SparkListener")
        self._sent, self._spread, self._placed, self._listens = "", "", "", False
        # True if tasks without state can be placed, None before `start`. Under FAIR, no stage is seen before its offers.
        self.places: bool | None = None
        try:
            coordinator = java_session(spark).streams().stateStoreCoordinator()
            self._object.begin(self.context, coordinator, java_queries(spark))
        except (Py4JError, TypeError) as error:
            raise EnvironmentProblem(f"this Spark does not tell of lost executors: {first_line(error)}") from error

    def start(self) -> None:
        if not self._listens:
            self._listens = True
            self.places = bool(self._object.listen())

    def spread(self, executors: Sequence[str]) -> None:
        """Spread first batches of later queries over `executors`, in their order."""
        if (named := ",".join(executors)) != self._spread:
            self._object.spread(named)
            self._spread = named

    def follow(self, stages: Sequence[StageSuccessors]) -> None:
        """Replace all partitions and their successors, by a call only on a change."""
        table = "\n".join(_line(each) for each in stages)
        if table != self._sent:
            self._object.follow(table)
            self._sent = table

    def place(self, executors: Mapping[str, Sequence[str]]) -> None:
        """Replace planned executors of tasks without state, by run and index ("": none)."""
        table = "\n".join("\t".join((run, *each)) for run, each in executors.items())
        if table != self._placed:
            self._object.place(table)
            self._placed = table

    def losses(self) -> tuple[Loss, ...]:
        """Return executors lost since the last call, oldest first."""
        return tuple(_loss(fields) for fields in self.ask("losses"))

    @property
    def over(self) -> bool:
        return bool(self.context.isStopped())

    def close(self) -> None:
        self._listens = False
        self._object.end()


def _line(followed: StageSuccessors) -> str:
    operators = ";".join(f"{each.id}:{','.join(each.stores)}" for each in followed.stage.operators)
    return "\t".join((followed.run, followed.stage.root, operators, *map(",".join, followed.successors)))


def _loss(fields: Sequence[str]) -> Loss:
    executor, at, reason, took, waiting, fault, *moves = fields
    moved = {}
    for move in moves:
        run, operators, partition, to = move.rsplit(":", 3)
        moved[run, tuple(map(int, operators.split("+"))), int(partition)] = to
    return Loss(executor, int(at) / 1e3, reason, int(took) / 1e6, int(waiting), fault, moved)
