"""Access to the driver's JVM, and batched reads: one call instead of thousands, each a third of a millisecond."""

import re
import time
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.errors import EnvironmentProblem, first_line
from elastream.spark.jvm.releases import for_release

# Folder of the Java sources.
HERE = Path(__file__).parent
# While a batch is planned, its plan is unknown.
PLAN_ATTEMPTS, PLAN_RETRY_S = 10, 0.1


# An object, a class or a package of the JVM.
Java: TypeAlias = Any


def jvm_of(spark: SparkSession) -> Java:
    return spark._jvm


def gateway_of(spark: SparkSession) -> Java:
    """Return py4j's gateway, for arrays, callbacks and connections."""
    return spark.sparkContext._gateway


def java_session(spark: SparkSession) -> Java:
    return spark._jsparkSession


def java_context(spark: SparkSession) -> Java:
    """Return the JVM's SparkContext (not JavaSparkContext)."""
    return spark.sparkContext._jsc.sc()


def java_queries(spark: SparkSession) -> Java:
    """Return the JVM's running streaming queries of all sessions of the application, by id."""
    return java_session(spark).sharedState().activeStreamingQueries()


def field_of(instance: Java, name: str) -> Java:
    """Return the private field `name` of an object of the JVM. Raises KeyError."""
    kind = instance.getClass()
    while kind is not None:
        for field in kind.getDeclaredFields():
            if str(field.getName()) == name:
                field.setAccessible(True)
                return field.get(instance)
        kind = kind.getSuperclass()
    raise KeyError(name)


def module_of(jvm: Java, name: str) -> Java:
    """Return the Scala singleton of class `name`, such as `scala.Predef$`."""
    return jvm.java.lang.Class.forName(name).getField("MODULE$").get(None)


def why_in_java(error: BaseException) -> str:
    """Return the message of a JVM exception in one line, without what py4j and Kubernetes' client add."""
    match = re.search(r"^: [\w.$]+: (.+)$", str(error), re.MULTILINE)
    if match is None:
        return first_line(error)
    message = re.search(r"Message: (.+?)\.? Received status: ", match[1])
    return message[1] if message else match[1]


_numbers = count()


# Methods of all sources: a text as one field of a line, and the batch in a job's description, above every batch if there is
# none.
HELPERS = """
private static String line(String text) {
    return text == null ? "" : text.replace('\\t', ' ').replace('\\n', ' ');
}

private static long batchOf(org.apache.spark.status.api.v1.JobData job) {
    if (!job.description().isDefined()) return Long.MAX_VALUE;
    String text = (String) job.description().get();
    int at = text.lastIndexOf("batch = ");
    try { return at < 0 ? Long.MAX_VALUE : Long.parseLong(text.substring(at + 8).trim()); }
    catch (NumberFormatException other) { return Long.MAX_VALUE; }
}
"""


class DriverSide:
    """Methods of a Java source, compiled in the JVM of a session. They return lines of tab-separated fields."""

    def __init__(self, spark: SparkSession, source: Path = HERE / "DriverSide.java", extends: str = "") -> None:
        """Compile the Java methods in `source` into a subclass of `extends`.

        Raises:
            EnvironmentProblem: This Spark lacks internals that they call.
        """
        jvm = jvm_of(spark)
        self.context = java_context(spark)
        try:
            compiler = jvm.org.codehaus.janino.ClassBodyEvaluator()
            loader = java_session(spark).getClass().getClassLoader()
            compiler.setParentClassLoader(loader)
            # py4j remembers methods by the name of their class: two classes of one name would get each other's.
            compiler.setClassName(f"{source.stem}{next(_numbers)}")
            if extends:
                compiler.setExtendedClass(loader.loadClass(extends))
            compiler.cook(for_release(source.read_text(encoding="utf-8"), str(spark.version)) + HELPERS)
            # An object, because py4j finds classes by name only in Spark's class loader.
            self._object = compiler.getClazz().getDeclaredConstructor(None).newInstance(None)
        except (Py4JError, TypeError) as error:
            raise EnvironmentProblem(f"this Spark lacks internals that are read: {why_in_java(error)}") from error

    def ask(self, method: str, *arguments: Java) -> list[list[str]]:
        """Call `method`; return the fields of each line. Raises Py4JError."""
        answer: str = getattr(self._object, method)(*arguments)
        return [line.split("\t") for line in answer.split("\n")[:-1]]

    def cpu_seconds(self) -> float:
        """Return CPU seconds of the calling thread so far, in Python and the JVM. Needs `DriverSide.java`."""
        return time.thread_time() + max(0, int(self._object.spent())) / 1e9


class TaskLoads(DriverSide):
    """The methods of `TaskLoads.java`, if this Spark exposes task costs."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, HERE / "TaskLoads.java")


class StartedQueries(DriverSide):
    """Queries that an application starts, in all its sessions."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, HERE / "StartedQueries.java", "org.apache.spark.scheduler.SparkListener")
        self._object.follow(self.context, java_queries(spark))

    def executions(self) -> list[Java]:
        """Return executions, also ended ones. Raises EnvironmentProblem if one ended unseen."""
        executions = list(self._object.queries())
        if unseen := [each for each in executions if isinstance(each, str)]:
            raise EnvironmentProblem(f"query {unseen[0]} ended before it was seen, so that its sources are unknown")
        return executions


class RunningQuery(NamedTuple):
    """A running query.

    Attributes:
        batch: Newest ended one, -1 before the first.
        idle: True if no batch runs and no data waits.
        mode: "in real-time mode" or "with a continuous trigger" if its tasks do not end with a batch; else empty.
    """

    id: str
    run_id: str
    batch: int
    idle: bool
    mode: str
    name: str

    @property
    def label(self) -> str:
        return self.name or self.id[:8]


def running_queries(driver: DriverSide, spark: SparkSession) -> tuple[RunningQuery, ...]:
    rows = driver.ask("queries", java_queries(spark))
    return tuple(
        RunningQuery(query, run, int(batch), idle == "1", mode, name) for query, run, batch, idle, mode, name in rows
    )


def runs_python(driver: DriverSide, spark: SparkSession) -> bool:
    """Return True unless it is certain that no task runs Python."""
    for _ in range(PLAN_ATTEMPTS):
        if answer := driver.ask("python", driver.context, java_queries(spark)):
            return answer != [["0"]]
        time.sleep(PLAN_RETRY_S)
    return True
