"""Standby replicas: copies of state partitions that executors keep for a task that may need one.

Each executor's follower (`copies/Follower.java`) reads committed changes from the checkpoint, and hands a replica to a task
that opens the partition there. This module sets which replicas followers keep, and reads their reports.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.driver_side import Java, jvm_of
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.state_partitions import StatePartitions

log = logging.getLogger(__name__)

NO_PLUGIN = "no copies of state are kept: Spark was started without the plugin that keeps them (spark.plugins)"
UNSUPPORTED_STORE = (
    "operator {id} ({kind}) opens its state in a way of its own: it is loaded from the checkpoint when a host is lost"
)


@dataclass(frozen=True, slots=True)
class StandbyReplica:
    """A standby replica of one store of one state partition, as its executor reports."""

    executor: str
    operator: str  # run, operator number and store, joined by slashes
    partition: int
    state: str  # life cycle state, see `copies/Replica.java`
    version: int  # committed batches that it holds; -1 for none
    committed: int  # committed batches that its executor knows of
    memory: int  # bytes
    disk: int  # bytes
    why: str  # reason for its absence

    @property
    def ready(self) -> bool:
        return self.state == "following"


class OpenedReplica(NamedTuple):
    """A replica with `replica_version` batches, opened for `version`, after reading `files` of the checkpoint."""

    executor: str
    operator: str
    partition: int
    replica_version: int
    version: int
    files: int
    seconds: float


class StandbyRegistry:
    """The driver's end of all followers of a session. Raises EnvironmentProblem if the session has none."""

    def __init__(self, spark: SparkSession) -> None:
        jvm = jvm_of(spark)
        try:
            loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
            kind = jvm.java.lang.Class.forName("elastream.copies.StandbyRegistry", True, loader)
            registry: Java = kind.getField("open").get(None)
        except (Py4JError, TypeError, OSError):
            raise EnvironmentProblem(NO_PLUGIN) from None
        if registry is None:
            raise EnvironmentProblem(NO_PLUGIN)
        self.java = registry
        self._opened: list[OpenedReplica] = []

    def reports(self) -> tuple[tuple[StandbyReplica, ...], Mapping[str, str]]:
        """Return the last reported replicas, and each executor's fault (or an empty string). Raises Py4JError."""
        replicas, faults = [], {}
        for line in _lines(self.java.reports()):
            executor, _, operator, *fields = line.split("\t")
            if len(fields) == 1:  # the first line of a report: memory limit and fault
                faults[executor] = fields[0]
                continue
            partition, state, *numbers, why = fields
            version, committed, memory, disk = map(int, numbers)
            replicas.append(
                StandbyReplica(executor, operator, int(partition), state, version, committed, memory, disk, why)
            )
        return tuple(replicas), faults

    def opened(self) -> tuple[OpenedReplica, ...]:
        for line in _lines(self.java.opened()):
            executor, operator, partition, replica_version, version, files, took = line.split("\t")
            numbers = int(partition), int(replica_version), int(version), int(files)
            self._opened.append(OpenedReplica(executor, operator, *numbers, float(took) / 1e3))
        return tuple(self._opened)


def standby_registry(spark: SparkSession) -> StandbyRegistry | None:
    """Return the registry of `spark`; None, with a warning, if its executors cannot keep replicas."""
    try:
        return StandbyRegistry(spark)
    except EnvironmentProblem as problem:
        log.warning("%s", problem)
        return None


class StageReplicas:
    """Standby replicas of the state partitions of one stage, in one run of its query.

    `why` names operators that cannot be replicated. Then the stage has no replicas.
    """

    def __init__(self, registry: StandbyRegistry, states: StatePartitions) -> None:
        self._registry, self._states = registry, states
        self._names: tuple[str, ...] = ()
        self._tables: dict[str, str] = {}
        self._committed = -1
        self.why: tuple[str, ...] = ()

    def follow(self, places: Mapping[int, Sequence[Location]]) -> None:
        """Set the executors that keep replicas, by partition, nearest successor first. Raises Py4JError."""
        if not self._names and not self.why:
            self._learn()
        if self._names:
            self._committed = self._states.planned()
        rows = sorted((at.executor, p, rank) for p, each in places.items() for rank, at in enumerate(each))
        table = "".join(f"{executor}\t{partition}\t{rank}\n" for executor, partition, rank in rows)
        for name in self._names:
            if self._tables.get(name) != table:
                self._registry.java.want(name, table)
                self._tables[name] = table

    def forget(self) -> None:
        for name in self._names:
            self._registry.java.forget(name)
        self._names, self._tables = (), {}

    def lag(self, replicas: Sequence[StandbyReplica]) -> Mapping[int, Mapping[str, float]]:
        """Return, by partition and executor, the committed batches that a replica lacks; NaN if it is not ready."""
        mine = [each for each in replicas if each.operator in self._names]
        # Executors notice a commit late; all before the newest planned batch are certain.
        newest = max([self._committed, *(each.committed for each in mine)])
        lags: dict[int, dict[str, float]] = {}
        for each in mine:
            lag = float(newest - each.version) if each.ready else math.nan
            by_executor = lags.setdefault(each.partition, {})
            # Of several operators in one task, the one furthest behind; NaN if one is not ready.
            before = by_executor.get(each.executor, lag)
            by_executor[each.executor] = math.nan if math.isnan(before) or math.isnan(lag) else max(before, lag)
        return lags

    def bytes(self, replicas: Sequence[StandbyReplica]) -> Mapping[int, Mapping[str, int]]:
        """Return, by partition and executor, the bytes of memory that a replica takes."""
        sizes: dict[int, dict[str, int]] = {}
        for each in replicas:
            if each.operator in self._names:
                by_executor = sizes.setdefault(each.partition, {})
                by_executor[each.executor] = by_executor.get(each.executor, 0) + (each.memory if each.ready else 0)
        return sizes

    def _learn(self) -> None:
        names, why = list[str](), list[str]()
        for operator, rdd in (self._states.stores() or {}).items():
            if rdd is None:
                why.append(UNSUPPORTED_STORE.format(id=operator.id, kind=operator.kind))
                continue
            answer, _, text = str(self._registry.java.learn(rdd, self._states.partitions)).partition("\t")
            if answer == "name":
                names.append(text)
            else:
                why.append(f"operator {operator.id} ({operator.kind}) is not kept warm: {text}")
        self.why, self._names = tuple(why), () if why else tuple(names)


def _lines(text: Java) -> list[str]:
    return [line for line in str(text).split("\n") if line]
