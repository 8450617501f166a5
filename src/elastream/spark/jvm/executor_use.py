"""Uses of executors (`ExecutorUse.java`): running tasks, shuffle files of jobs under way, cached blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.core.wording import counted, duration_text
from elastream.errors import EnvironmentProblem, first_line
from elastream.spark.jvm.driver_side import HERE, DriverSide, java_queries

# A task that runs this long may run for ever, if no task of its stage has ended.
UNKNOWN_END_S = 600.0
# Slots that tasks of other work have occupied for this long (seconds) do not count as available.
LONG_TASK_S = 10.0


class Kind(StrEnum):
    TASK = "task"
    SHUFFLE = "shuffle"  # files that a job under way may read
    CACHE = "cache"
    CHECKPOINT = "checkpoint"  # blocks of a local checkpoint: a job that misses one fails


@dataclass(frozen=True, slots=True)
class Use:
    """One use of an executor. `query`: id, or empty; `ended`: succeeded tasks of its stage; `mode`: of endless tasks."""

    executor: str
    kind: Kind
    query: str
    label: str
    count: int
    seconds: float = 0.0
    ended: int = 0
    mode: str = ""

    @property
    def text(self) -> str:
        match self.kind:
            case Kind.TASK:
                return f"{counted(self.count, 'task')} of {self.label}"
            case Kind.SHUFFLE:
                return f"{counted(self.count, 'shuffle file')} of {self.label}"
        return f"{counted(self.count, 'block')} of {self.label}"

    @property
    def long(self) -> bool:
        """Return True for tasks that hold their slots for long."""
        return self.kind is Kind.TASK and (bool(self.mode) or self.seconds >= LONG_TASK_S)

    @property
    def endless(self) -> str:
        """Return why its end is unknown, so that the executor must stay; empty if it ends."""
        if self.kind is Kind.CHECKPOINT:
            return f"{self.text}, which nothing can make again"
        if self.mode:
            return f"{self.text}, which runs {self.mode}"
        if self.kind is Kind.TASK and self.seconds >= UNKNOWN_END_S and not self.ended:
            return f"{self.text}, which runs for {duration_text(self.seconds)}, and no task of its stage has ended"
        return ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Uses of all executors at one moment.

    Attributes:
        busy: Seconds of ended tasks, by executor and query (empty: other work).
        soon: A query of endless tasks, or a barrier stage, that needs the present slots and is about to start.
    """

    uses: Sequence[Use] = ()
    busy: Mapping[tuple[str, str], float] = field(default_factory=dict)
    soon: str = ""


class ExecutorUse(DriverSide):
    """The listener in the JVM of a session, active from `start` to `close`."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, HERE / "ExecutorUse.java", "org.apache.spark.scheduler.SparkListener")
        try:
            self._object.begin(self.context, java_queries(spark))
        except (Py4JError, TypeError) as error:
            raise EnvironmentProblem(f"this Spark does not tell what executors run: {first_line(error)}") from error

    def start(self) -> None:
        self._object.listen()

    def look(self) -> Snapshot:
        return read_uses(self.ask("use"))

    def close(self) -> None:
        self._object.end()


def read_uses(lines: Sequence[Sequence[str]]) -> Snapshot:
    uses, busy, soon = list[Use](), dict[tuple[str, str], float](), ""
    for kind, *fields in lines:
        if kind == "soon":
            (soon,) = fields
        elif kind == "busy":
            executor, query, milliseconds = fields
            busy[executor, query] = int(milliseconds) / 1e3
        elif kind == Kind.TASK:
            executor, query, label, count, milliseconds, ended, mode = fields
            uses.append(Use(executor, Kind.TASK, query, label, int(count), int(milliseconds) / 1e3, int(ended), mode))
        else:
            executor, query, label, count = fields
            uses.append(Use(executor, Kind(kind), query, label, int(count)))
    return Snapshot(tuple(uses), busy, soon)
