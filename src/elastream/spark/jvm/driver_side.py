"""Asks the driver's JVM for many values in one call, instead of one value in each of many calls.

A call through the gateway costs a third of a millisecond on both sides. Where each of 2,000 state partitions is and what
each of 2,000 tasks took would be some thousands of calls a look; `DriverSide.java` collects them beside the values and
answers with lines of text. Spark's driver always has the compiler for it: its own generated code goes through the same.
"""

import time
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.model.errors import EnvironmentProblem
from elastream.spark.jvm.gateway import Java, java_context, java_session, jvm_of

__all__ = ["HERE", "DriverSide", "TaskLoads", "first_line"]

HERE = Path(__file__).parent
"""Where the methods are."""


class DriverSide:
    """The methods of `DriverSide.java` in the JVM of one session, each as lines of tab-separated fields.

    source: another file of methods; what each reads of Spark's insides is probed by itself. Raises EnvironmentProblem where
    this Spark lacks what they read. context: the session's SparkContext, which most of them ask.
    """

    def __init__(self, spark: SparkSession, source: Path = HERE / "DriverSide.java") -> None:
        jvm = jvm_of(spark)
        self.context = java_context(spark)
        try:
            compiler = jvm.org.codehaus.janino.ClassBodyEvaluator()
            compiler.setParentClassLoader(java_session(spark).getClass().getClassLoader())
            compiler.cook(source.read_text(encoding="utf-8"))
            # Through an object, because the gateway finds a class by its name only where Spark's own loader knows it.
            self._object = compiler.getClazz().getDeclaredConstructor(None).newInstance(None)
        except (Py4JError, TypeError) as error:
            raise EnvironmentProblem(f"this Spark does not tell what its driver knows: {first_line(error)}") from error

    def ask(self, method: str, *arguments: Java) -> list[list[str]]:
        """What `method` answers to `arguments`, a list of fields a line.

        Raises Py4JError as any call does, when the session has stopped for one.
        """
        answer: str = getattr(self._object, method)(*arguments)
        return [line.split("\t") for line in answer.split("\n")[:-1]]

    def cpu_seconds(self) -> float:
        """CPU time that the calling thread has taken so far, here and in the JVM; differences of it tell what calls cost.

        Needs the methods of `DriverSide.java`.
        """
        return time.thread_time() + max(0, int(self._object.spent())) / 1e9


class TaskLoads(DriverSide):
    """The methods of `TaskLoads.java`. Raises EnvironmentProblem where this Spark does not tell what single tasks cost."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, HERE / "TaskLoads.java")


def first_line(error: Exception) -> str:
    """What `error` says, without the stack trace that follows."""
    return str(error).strip().partition("\n")[0]
