"""Copies of state partitions that executors keep beside their own, for the task that comes to need one: warm standby.

Spark drops a store that its coordinator has elsewhere, so copies are none that it knows of. Each executor's follower
(`copies/Follower.java`) reads what committed batches changed from the checkpoint, in a thread of its own, and gives
a copy to the task that is about to open the partition there. Here is said who keeps what, and read what became of it.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.gateway import Java, jvm_of
from elastream.spark.jvm.state_partitions import StatePartitions

log = logging.getLogger(__name__)

NO_DESK = "no copies of state are kept: Spark was started without the plugin that keeps them (spark.plugins)"
OTHER_STORE = (
    "operator {id} ({kind}) opens its state in a way of its own: it is loaded from the checkpoint when a host is lost"
)


@dataclass(frozen=True, slots=True)
class KeptCopy:
    """A copy of one store of one state partition, as its executor reports. operator: run, number and store, by slashes.

    state: of its life, see `copies/Copy.java`. version: committed batches that it holds, -1 for none; committed: those that
    there are, as its executor sees it. memory, disk: bytes. why: why it is not there, or was not.
    """

    executor: str
    operator: str
    partition: int
    state: str
    version: int
    committed: int
    memory: int
    disk: int
    why: str

    @property
    def there(self) -> bool:
        """Whether a task could use it."""
        return self.state == "following"


class OpenedCopy(NamedTuple):
    """A copy that a task opened. copied: committed batches that it held; wanted: those that the task asked for.

    files: read from the checkpoint to make up for the difference. seconds: that opening took.
    """

    executor: str
    operator: str
    partition: int
    copied: int
    wanted: int
    files: int
    seconds: float


class CopiesDesk:
    """Where followers of a session ask and report. Raises EnvironmentProblem where the session has none."""

    def __init__(self, spark: SparkSession) -> None:
        jvm = jvm_of(spark)
        try:
            loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
            desk: Java = jvm.java.lang.Class.forName("elastream.copies.Desk", True, loader).getField("open").get(None)
        except (Py4JError, TypeError, OSError):
            raise EnvironmentProblem(NO_DESK) from None
        if desk is None:
            raise EnvironmentProblem(NO_DESK)
        self.java = desk
        self._opened: list[OpenedCopy] = []

    def reports(self) -> tuple[tuple[KeptCopy, ...], Mapping[str, str]]:
        """All copies by the last reports; and by executor that reports, what its follower cannot do, empty for none.

        Executors that are gone are among them. Raises Py4JError if the session has stopped.
        """
        found, faults = [], {}
        for line in _lines(self.java.reports()):
            executor, _, first, *fields = line.split("\t")
            if len(fields) == 1:  # the first line of a report: what copies may take, and a fault
                faults[executor] = fields[0]
                continue
            partition, state, *numbers, why = fields
            version, committed, memory, disk = map(int, numbers)
            found.append(KeptCopy(executor, first, int(partition), state, version, committed, memory, disk, why))
        return tuple(found), faults

    def kept(self) -> tuple[KeptCopy, ...]:
        """All copies by the last reports."""
        return self.reports()[0]

    def opened(self) -> tuple[OpenedCopy, ...]:
        """Copies that tasks have opened so far."""
        for line in _lines(self.java.opened()):
            executor, operator, partition, copied, wanted, files, took = line.split("\t")
            numbers = int(partition), int(copied), int(wanted), int(files)
            self._opened.append(OpenedCopy(executor, operator, *numbers, float(took) / 1e3))
        return tuple(self._opened)


def desk_of(spark: SparkSession) -> CopiesDesk | None:
    """The desk of `spark`; None, with a warning, where its executors can keep no copies."""
    try:
        return CopiesDesk(spark)
    except EnvironmentProblem as problem:
        log.warning("%s", problem)
        return None


class Copies:
    """Copies of the state partitions of one stage, in one run of its query.

    why: a sentence for each operator of it that cannot be copied, known once a batch was planned: then nothing is kept of
    the stage, because a task needs the state of all its operators.
    """

    def __init__(self, desk: CopiesDesk, states: StatePartitions) -> None:
        self._desk, self._states = desk, states
        self._names: tuple[str, ...] = ()
        self._tables: dict[str, str] = {}
        self._committed = -1
        self.why: tuple[str, ...] = ()

    def follow(self, places: Mapping[int, Sequence[Location]]) -> None:
        """Let the executors of `places` keep copies, by partition, the first to take over first; others let theirs go.

        Costs a call where this changes; nothing happens before the first batch was planned. Raises Py4JError.
        """
        if not self._names and not self.why:
            self._learn()
        if self._names:
            self._committed = self._states.planned()
        rows = sorted((at.executor, p, rank) for p, each in places.items() for rank, at in enumerate(each))
        table = "".join(f"{executor}\t{partition}\t{rank}\n" for executor, partition, rank in rows)
        for name in self._names:
            if self._tables.get(name) != table:
                self._desk.java.want(name, table)
                self._tables[name] = table

    def forget(self) -> None:
        """The run is over: nobody keeps a copy any more."""
        for name in self._names:
            self._desk.java.forget(name)
        self._names, self._tables = (), {}

    def lag(self, kept: Sequence[KeptCopy] | None = None) -> Mapping[int, Mapping[str, float]]:
        """By partition and executor, committed batches that a copy does not hold yet; NaN for one that is not there yet.

        kept: as `CopiesDesk.kept` answers.
        """
        mine = self._mine(kept)
        # Executors see a commit a moment later; those before the batch that was planned last are there.
        newest = max([self._committed, *(each.committed for each in mine)])
        found: dict[int, dict[str, float]] = {}
        for each in mine:
            lag = float(newest - each.version) if each.there else math.nan
            by_executor = found.setdefault(each.partition, {})
            # Of several operators in one task, the one that is furthest behind; NaN where one is not there.
            before = by_executor.get(each.executor, lag)
            by_executor[each.executor] = math.nan if math.isnan(before) or math.isnan(lag) else max(before, lag)
        return found

    def bytes(self, kept: Sequence[KeptCopy] | None = None) -> Mapping[int, Mapping[str, int]]:
        """By partition and executor, bytes of memory that a copy takes."""
        found: dict[int, dict[str, int]] = {}
        for each in self._mine(kept):
            by_executor = found.setdefault(each.partition, {})
            by_executor[each.executor] = by_executor.get(each.executor, 0) + (each.memory if each.there else 0)
        return found

    def _mine(self, kept: Sequence[KeptCopy] | None) -> list[KeptCopy]:
        return [each for each in (self._desk.kept() if kept is None else kept) if each.operator in self._names]

    def _learn(self) -> None:
        stores = self._states.stores()
        if stores is None:
            return
        names, why = [], []
        for operator, rdd in stores.items():
            if rdd is None:
                why.append(OTHER_STORE.format(id=operator.id, kind=operator.kind))
                continue
            answer, _, said = str(self._desk.java.learn(rdd, self._states.partitions)).partition("\t")
            if answer == "name":
                names.append(said)
            else:
                why.append(f"operator {operator.id} ({operator.kind}) is not kept warm: {said}")
        self.why, self._names = tuple(why), () if why else tuple(names)


def _lines(text: Java) -> list[str]:
    return [line for line in str(text).split("\n") if line]
