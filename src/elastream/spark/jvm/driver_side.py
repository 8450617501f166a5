"""Reads many values from the driver's JVM in one call.

A call through the gateway costs a third of a millisecond on both sides; the locations of 2,000 state partitions and the
loads of 2,000 tasks would take thousands of calls. `DriverSide.java` collects them in the JVM and returns lines of text. It
is compiled with the compiler that Spark's driver uses for generated code.
"""

import time
from pathlib import Path
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.adapters import for_release
from elastream.spark.jvm.gateway import Java, java_context, java_queries, java_session, jvm_of, why_in_java

HERE = Path(__file__).parent
"""Folder of the Java sources."""
ASKED, ASK_AGAIN = 10, 0.1
"""Times that it is asked for what is unknown while a batch is planned, and seconds between two."""


class DriverSide:
    """The methods of `DriverSide.java` in the JVM of a session; results are lines of tab-separated fields.

    source: another file of methods; each file probes the internals of Spark that it reads. extends: class of the JVM that
    these are to override methods of. Raises EnvironmentProblem if this Spark lacks them. context: the session's
    SparkContext, which most methods read.
    """

    def __init__(self, spark: SparkSession, source: Path = HERE / "DriverSide.java", extends: str = "") -> None:
        jvm = jvm_of(spark)
        self.context = java_context(spark)
        try:
            compiler = jvm.org.codehaus.janino.ClassBodyEvaluator()
            loader = java_session(spark).getClass().getClassLoader()
            compiler.setParentClassLoader(loader)
            if extends:
                compiler.setExtendedClass(loader.loadClass(extends))
            compiler.cook(for_release(source.read_text(encoding="utf-8"), str(spark.version)))
            # Through an object, because the gateway finds a class by name only in Spark's class loader.
            self._object = compiler.getClazz().getDeclaredConstructor(None).newInstance(None)
        except (Py4JError, TypeError) as error:
            raise EnvironmentProblem(f"this Spark lacks internals that are read: {why_in_java(error)}") from error

    def ask(self, method: str, *arguments: Java) -> list[list[str]]:
        """Call `method` with `arguments`; returns the fields of each line.

        Raises Py4JError, for instance if the session has stopped.
        """
        answer: str = getattr(self._object, method)(*arguments)
        return [line.split("\t") for line in answer.split("\n")[:-1]]

    def cpu_seconds(self) -> float:
        """CPU seconds of the calling thread so far, in Python and in the JVM; differences measure the cost of calls.

        Needs the methods of `DriverSide.java`.
        """
        return time.thread_time() + max(0, int(self._object.spent())) / 1e9


class TaskLoads(DriverSide):
    """The methods of `TaskLoads.java`. Raises EnvironmentProblem if this Spark does not expose the costs of tasks."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, HERE / "TaskLoads.java")


class RunningQuery(NamedTuple):
    """A running query. batch: the newest ended batch, -1 before the first. idle: no batch is running and no data waits.

    real_time: whether it runs in Spark's real-time mode. name: empty if it has none.
    """

    id: str
    run_id: str
    batch: int
    idle: bool
    real_time: bool
    name: str

    @property
    def label(self) -> str:
        """Its name, or the beginning of its id."""
        return self.name or self.id[:8]


def running_queries(driver: DriverSide, spark: SparkSession) -> tuple[RunningQuery, ...]:
    """All running queries of the application of `spark`, of whichever session. Raises Py4JError if it was stopped."""
    rows = driver.ask("queries", java_queries(spark))
    return tuple(
        RunningQuery(query, run, int(batch), idle == "1", real_time == "1", name)
        for query, run, batch, idle, real_time, name in rows
    )


def runs_python(driver: DriverSide, spark: SparkSession) -> bool:
    """Whether executors of the application of `spark` run Python for its queries, or may: without a query, where one has
    had no batch yet, and behind `foreachBatch`, nobody knows. Raises Py4JError."""
    for _ in range(ASKED):  # while a batch is being planned, its query has no plan
        if answer := driver.ask("python", driver.context, java_queries(spark)):
            return answer != [["0"]]
        time.sleep(ASK_AGAIN)
    return True
