"""The session's executors: listing them, setting their number, releasing and excluding single ones."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from elastream.clouds.provider import PendingReason
from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.cluster_manager import ClusterWatch, release_leftovers
from elastream.spark.jvm.driver_side import DriverSide, gateway_of, java_context, jvm_of
from elastream.spark.jvm.executor_use import ExecutorUse, Kind, Snapshot, Use


@dataclass(frozen=True, slots=True)
class Executor:
    """A registered executor. If its uses are known, `busy` and `active` count tasks of the watched queries only."""

    id: str
    host: str
    slots: int
    busy: float = 0.0  # seconds of its ended tasks
    leaving: bool = False  # True if it gets no new tasks
    active: int = 0  # number of running tasks
    uses: tuple[Use, ...] = ()  # what it runs and keeps, for watched queries and others
    others: str = ""  # what it runs and keeps for others
    others_active: int = 0  # running tasks of others
    others_busy: float = 0.0  # seconds of ended tasks of others
    endless: str = ""  # why it must stay: work that has no known end
    held_slots: int = 0  # slots of long tasks of others


@dataclass(frozen=True, slots=True)
class Location:
    """Last location of a state partition. Executor ids are unique, so only they are compared."""

    address: str = field(compare=False)
    executor: str


class Executors:
    """The session's executors, read without HTTP."""

    def __init__(
        self, driver: DriverSide, use: ExecutorUse | None = None, watches: Callable[[str], bool] = lambda query: bool(query)
    ) -> None:
        """Create a reader.

        Args:
            use: Reads what executors are used for; None: unknown, and all tasks count as the watched queries'.
            watches: True for the id of a watched query; it gets an empty text for other work.
        """
        self._driver, self.use, self._watches = driver, use, watches
        self.newest: Mapping[str, Executor] = {}
        self.task_seconds: dict[str, float] = {}  # of ended tasks, by query id; empty: other work
        self._busy: Mapping[tuple[str, str], float] = {}

    def look(self) -> Mapping[str, Executor]:
        """Return active executors by id; in local mode, that is the driver.

        Raises:
            Py4JError: The driver does not answer.
            EnvironmentProblem: The session has been stopped.
        """
        executors = {}
        for id, at, slots, busy, leaving, active in self._driver.ask("executors", self._driver.context):
            if int(slots) > 0:  # 0: the driver, if it has executors
                address = at.rsplit(":", 1)[0]
                executors[id] = Executor(id, address, int(slots), int(busy) / 1e3, leaving == "1", int(active))
        if self.use is not None:
            snapshot = self.use.look()
            self._count(snapshot.busy)
            executors = {id: self._with_use(each, snapshot) for id, each in executors.items()}
        if executors.keys() < self.newest.keys() and self._driver.context.isStopped():
            raise EnvironmentProblem("the session has been stopped")  # and with it all executors: none of them is lost
        self.newest = executors
        return executors

    def _count(self, busy: Mapping[tuple[str, str], float]) -> None:
        """Add the tasks that have ended since the last look."""
        for (executor, query), seconds in busy.items():
            since = seconds - self._busy.get((executor, query), 0.0)
            self.task_seconds[query] = self.task_seconds.get(query, 0.0) + since
        self._busy = busy

    def _with_use(self, executor: Executor, snapshot: Snapshot) -> Executor:
        uses = tuple(each for each in snapshot.uses if each.executor == executor.id)
        # A query whose tasks do not end is left alone: its tasks count as others', even if it was chosen.
        others = tuple(each for each in uses if each.mode or not self._watches(each.query))
        busy = {query: seconds for (id, query), seconds in snapshot.busy.items() if id == executor.id}
        own = sum(seconds for query, seconds in busy.items() if self._watches(query))
        tasks, others_tasks = (sum(each.count for each in of if each.kind is Kind.TASK) for of in (uses, others))
        soon = f"{snapshot.soon} is about to start, and may need its slots" if snapshot.soon else ""
        return replace(
            executor,
            busy=own,
            active=tasks - others_tasks,
            uses=uses,
            others=", ".join(each.text for each in others),
            others_active=others_tasks,
            others_busy=sum(busy.values()) - own,
            endless=next((each.endless for each in uses if each.endless), soon),
            held_slots=sum(each.count for each in others if each.long),
        )

    def ending(self, executor: str) -> str:
        lines = self._driver.ask("ending", self._driver.context, executor)
        return " ".join(" ".join(line[0] for line in lines).split())

    def by_address(self) -> Mapping[str, Executor]:
        """Return the newest active executor of each host, by the host's address."""
        return newest_by_address(self.look())


def newest_by_address(executors: Mapping[str, Executor]) -> Mapping[str, Executor]:
    newest = sorted(executors.values(), key=lambda each: int(each.id) if each.id.isdigit() else -1)
    return {each.host: each for each in newest}


class AllocationClient:
    """Spark's allocation client. Raises Py4JError in a stopped session."""

    def __init__(
        self,
        spark: SparkSession,
        executors: Executors,
        word: Callable[[int], PendingReason] = lambda registered: PendingReason(),
        watch: ClusterWatch | None = None,
    ) -> None:
        self._spark, self.executors, self._word, self._watch = spark, executors, word, watch

    @property
    def application(self) -> str:
        return str(self._spark.sparkContext.applicationId)

    @property
    def registered(self) -> Mapping[str, Executor]:
        return self.executors.newest

    def take_over(self) -> None:
        """Stop Spark's own dynamic allocation, if it runs."""
        manager = java_context(self._spark).executorAllocationManager()
        if manager.isDefined():
            manager.get().stop()

    def request(self, total: int) -> None:
        jvm = jvm_of(self._spark)
        java_context(self._spark).requestTotalExecutors(total, 0, jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap()))

    def kill(self, executor: str) -> None:
        jvm = jvm_of(self._spark)
        java_context(self._spark).schedulerBackend().killExecutors(jvm.PythonUtils.toSeq([executor]), False, False, True)

    def pending_reason(self) -> PendingReason:
        """Return the cluster manager's last reason for pending requests."""
        return self._word(len(self.registered))

    def notices(self) -> Mapping[str, tuple[float, str]]:
        """Return when (epoch seconds) and why the cluster manager takes executors away, as far as it tells."""
        return {} if self._watch is None else self._watch.notices()

    def protect(self, executors: Collection[str]) -> None:
        """Ask the cluster manager to leave these executors, and no others, where they are."""
        if self._watch is not None:
            self._watch.protect(executors)

    def unprotect(self) -> None:
        if self._watch is not None:
            self._watch.unprotect()

    def ending(self, executor: str) -> str:
        """Return Spark's reason for the end of an executor; empty if unknown."""
        return self.executors.ending(executor)

    def release_leftovers(self, application: str) -> None:
        """End what an earlier application left on the cluster, in a round trip or two."""
        release_leftovers(self._spark, application)

    def fence(self, executor: str) -> None:
        """Exclude `executor` from scheduling; it still serves its shuffle files.

        `triggeredByExecutor` keeps it uninformed, or it would exit while a batch still fetches from it.
        """
        gateway = gateway_of(self._spark)
        jvm = gateway.jvm
        info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("released", jvm.scala.Option.empty())
        pairs = gateway.new_array(jvm.scala.Tuple2, 1)
        pairs[0] = jvm.scala.Tuple2(executor, info)
        java_context(self._spark).schedulerBackend().decommissionExecutors(pairs, False, True)
