"""Puts state partitions elsewhere the moment their executor is lost, in the driver's JVM (`Recovery.java`).

Python hears of a lost executor at its next look, which is up to a second later, and the batch under way has waited for it
meanwhile. So the JVM knows beforehand who follows whom, acts on Spark's own event, and says afterwards what it did.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.errors import EnvironmentProblem, first_line
from elastream.spark.jvm.driver_side import HERE, DriverSide
from elastream.spark.jvm.gateway import java_session
from elastream.spark.jvm.stateful import StatefulStage


class Followed(NamedTuple):
    """State partitions of one stage of a run of a query; by partition the executors that are to take it, nearest first."""

    run: str
    stage: StatefulStage
    successors: Sequence[Sequence[str]]


class Loss(NamedTuple):
    """An executor was lost, or a stage that was submitted meanwhile still waits for it.

    at: epoch seconds of Spark's event. took: seconds that what follows from it took. moved: executor that each partition
    was put on, by (run, ids of the stage's operators, partition). waiting: tasks of running stages that would have waited
    for the lost executor. fault: what was not done, and why; else empty.
    """

    executor: str
    at: float
    reason: str
    took: float
    waiting: int
    fault: str
    moved: Mapping[tuple[str, tuple[int, ...], int], str]


class Recovery(DriverSide):
    """The listener in the JVM of a session. Raises EnvironmentProblem where this Spark lacks what it uses.

    It does nothing before `start` and after `close`.
    """

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, HERE / "Recovery.java", "org.apache.spark.scheduler.SparkListener")
        self._told = ""
        try:
            self._object.begin(self.context, java_session(spark).streams().stateStoreCoordinator())
        except (Py4JError, TypeError) as error:
            raise EnvironmentProblem(f"this Spark does not tell of lost executors: {first_line(error)}") from error

    def start(self) -> None:
        """Act on lost executors from now on. Raises Py4JError."""
        self._object.listen()

    def follow(self, stages: Sequence[Followed]) -> None:
        """Replace what is known of state partitions and who takes them; a call only where it changed. Raises Py4JError."""
        told = "\n".join(_line(each) for each in stages)
        if told != self._told:
            self._object.follow(told)
            self._told = told

    def losses(self) -> tuple[Loss, ...]:
        """Executors lost since the last call, oldest first. Raises Py4JError."""
        return tuple(_loss(fields) for fields in self.ask("happened"))

    def close(self) -> None:
        """Listen no longer. Raises Py4JError if the session has stopped."""
        self._object.end()


def _line(followed: Followed) -> str:
    operators = ";".join(f"{each.id}:{','.join(each.stores)}" for each in followed.stage.operators)
    return "\t".join((followed.run, followed.stage.root, operators, *map(",".join, followed.successors)))


def _loss(fields: Sequence[str]) -> Loss:
    executor, at, reason, took, waiting, fault, *moves = fields
    moved = {}
    for move in moves:
        run, operators, partition, to = move.rsplit(":", 3)
        moved[run, tuple(map(int, operators.split("+"))), int(partition)] = to
    return Loss(executor, int(at) / 1e3, reason, int(took) / 1e6, int(waiting), fault, moved)
