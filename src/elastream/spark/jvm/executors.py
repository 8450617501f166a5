"""Lists the session's executors with host and load, sets their number, and releases or excludes single ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from elastream.clouds.provider import PendingReason
from elastream.spark.jvm.cluster_word import bury
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.gateway import gateway_of, java_context, jvm_of


@dataclass(frozen=True, slots=True)
class Executor:
    """One registered executor. host: the address it was started with. slots: concurrent tasks.

    busy: seconds of its ended tasks so far. leaving: it gets no new tasks, because it is being decommissioned or excluded.
    active: tasks that it runs now.
    """

    id: str
    host: str
    slots: int
    busy: float = 0.0
    leaving: bool = False
    active: int = 0


@dataclass(frozen=True, slots=True)
class Location:
    """Last location of a state partition: the id of the executor, and the address of its host, `""` if unknown.

    Executor ids are unique within an application: two locations with the same id are equal.
    """

    address: str = field(compare=False)
    executor: str


class Executors:
    """The session's executors, read through the gateway (no HTTP; works without the web interface).

    seen: those of the last `look`, by id.
    """

    def __init__(self, driver: DriverSide) -> None:
        self._driver = driver
        self.seen: Mapping[str, Executor] = {}

    def look(self) -> Mapping[str, Executor]:
        """Active executors by id; in local mode the driver. Raises Py4JError."""
        found = {}
        for executor, host_port, slots, busy, leaving, active in self._driver.ask("executors", self._driver.context):
            if int(slots) > 0:  # the driver of a session that has executors has none
                address = host_port.rsplit(":", 1)[0]
                found[executor] = Executor(executor, address, int(slots), int(busy) / 1e3, leaving == "1", int(active))
        self.seen = found
        return found

    def ending(self, executor: str) -> str:
        """Why an executor that was here is gone, as Spark was told; empty where it was not. Raises Py4JError."""
        said = self._driver.ask("ending", self._driver.context, executor)
        return " ".join(" ".join(line[0] for line in said).split())

    def by_address(self) -> Mapping[str, Executor]:
        """Active executors by address of their host; the newest of each host."""
        return newest_by_address(self.look())


def newest_by_address(executors: Mapping[str, Executor]) -> Mapping[str, Executor]:
    """`executors` by address of their host; the newest of each host, by the highest id."""
    newest = sorted(executors.values(), key=lambda each: int(each.id) if each.id.isdigit() else -1)
    return {each.host: each for each in newest}


class AllocationClient:
    """Spark's allocation client: the calls of dynamic allocation, which every cluster manager that supports it has.

    It is the `clouds.provider.ExecutorAllocator` of a session. executors: whose last look says what is there. word: what
    the cluster manager says of requests. Every method raises Py4JError if the session has stopped.
    """

    def __init__(
        self,
        spark: SparkSession,
        executors: Executors,
        word: Callable[[int], PendingReason] = lambda registered: PendingReason(),
    ) -> None:
        self._spark, self.executors, self._word = spark, executors, word

    @property
    def application(self) -> str:
        """The id of the session's application."""
        return str(self._spark.sparkContext.applicationId)

    @property
    def registered(self) -> Mapping[str, Executor]:
        """The executors of the last look, by id."""
        return self.executors.seen

    def take_over(self) -> None:
        """Stop Spark's own manager of executors, where the session began with one: from now on only we request any."""
        manager = java_context(self._spark).executorAllocationManager()
        if manager.isDefined():
            manager.get().stop()

    def request(self, total: int) -> None:
        """Request `total` executors in total."""
        jvm = jvm_of(self._spark)
        java_context(self._spark).requestTotalExecutors(total, 0, jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap()))

    def kill(self, executor: str) -> None:
        """Release an executor, with all tasks on it. Does not change the requested total: set it first."""
        jvm = jvm_of(self._spark)
        java_context(self._spark).schedulerBackend().killExecutors(jvm.PythonUtils.toSeq([executor]), False, False, True)

    def pending_reason(self) -> PendingReason:
        """What the cluster manager last said of what was requested and has not registered."""
        return self._word(len(self.registered))

    def ending(self, executor: str) -> str:
        """Why an executor is gone, as Spark was told; empty where it was not."""
        return self.executors.ending(executor)

    def release_leftovers(self, application: str) -> None:
        """End what an earlier application of the same cluster has left there. Takes a round trip or two."""
        bury(self._spark, application)

    def fence(self, executor: str) -> None:
        """Exclude `executor` from scheduling; it still serves its shuffle files.

        Spark marks it as decommissioned; with `triggeredByExecutor` the executor is not informed, so that it does not exit
        while a batch still fetches from it.
        """
        gateway = gateway_of(self._spark)
        jvm = gateway.jvm
        no_host = jvm.scala.Option.empty()
        info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("released", no_host)
        pairs = gateway.new_array(jvm.scala.Tuple2, 1)
        pairs[0] = jvm.scala.Tuple2(executor, info)
        java_context(self._spark).schedulerBackend().decommissionExecutors(pairs, False, True)
