"""Memory of executors (`ExecutorMemory.java`), from the heartbeats that they send anyway."""

import contextlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.errors import EnvironmentProblem, first_line
from elastream.spark.jvm.driver_side import HERE, DriverSide, Java, java_context, jvm_of

OVERHEAD_FACTOR, MIN_OVERHEAD_MIB = 0.1, 384
MIB, MB = 2**20, 1e6


class Heartbeat(NamedTuple):
    at: float  # epoch seconds
    heap: float  # MB in use, garbage included
    off_heap: float  # MB of classes, compiled code and buffers
    full: int  # full collections so far
    concurrent: int  # concurrent collections of old memory so far; 0 before Java 20
    collecting: float  # seconds of garbage collection so far
    python: float | None = None  # MB of Python workers, pages that they share once for each; None if not counted


class ExecutorMemory(DriverSide):
    """The listener in the JVM of a session, active from `start` to `close`.

    Attributes:
        heap_limit: Most heap of an executor (MB).
        divided: True if the collector keeps a part of the heap for new objects; None if the settings do not say.
        container: Size of an executor's container (MB); None unless YARN or Kubernetes enforces it.
        counts_python: True if heartbeats tell the memory of Python workers.
    """

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, HERE / "ExecutorMemory.java", "org.apache.spark.scheduler.SparkListener")
        try:
            self._object.begin(self.context)
            self.heap_limit = heap_limit(java_context(spark), jvm_of(spark)) / MB
            self.container = container_size(java_context(spark))
            self.divided = is_divided(java_context(spark))
            self.counts_python = counts_python(java_context(spark))
        except (Py4JError, TypeError) as error:
            raise EnvironmentProblem(f"this Spark does not tell the memory of executors: {first_line(error)}") from error

    def start(self) -> None:
        self._object.listen()

    def look(self) -> Mapping[str, Heartbeat]:
        return {
            executor: Heartbeat(
                int(at) / 1e3,
                int(heap) / MB,
                sum(map(int, others)) / MB,
                int(full),
                int(concurrent),
                int(collecting) / 1e3,
                int(python) / MB or None if self.counts_python else None,
            )
            for executor, at, heap, *others, full, concurrent, collecting, python in self.ask("memory")
        }

    def close(self) -> None:
        """Stop listening; nothing happens in a stopped session."""
        with contextlib.suppress(Py4JError):
            self._object.end()


def heap_limit(context: Java, jvm: Java) -> int:
    """Return the maximum heap of an executor (bytes), in local mode of the driver."""
    if str(context.master()).startswith("local[") or str(context.master()) == "local":
        return int(jvm.java.lang.Runtime.getRuntime().maxMemory())
    return int(context.executorMemory()) * MIB


def is_divided(context: Java) -> bool | None:
    """Return True if an executor's collector keeps a part of the heap for new objects; None if the settings do not say."""
    local, settings = str(context.master()).startswith("local"), context.conf()
    options = str(settings.get(f"spark.{'driver' if local else 'executor'}.extraJavaOptions", ""))
    if named := re.search(r"-XX:\+Use(\w+)GC\b", options):
        return named[1] in ("Serial", "Parallel")
    # On one core, Java takes the serial collector, unless a pod sees all cores of its node.
    return None if not local and int(settings.get("spark.executor.cores", "1")) == 1 else False


def counts_python(context: Java) -> bool:
    return str(context.conf().get("spark.executor.processTreeMetrics.enabled", "false")) == "true"


def container_size(context: Java) -> float | None:
    """Return the size of an executor's container by Spark's settings (MB); None where no manager enforces one."""
    if not str(context.master()).startswith(("yarn", "k8s://")):
        return None
    settings, heap = context.conf(), int(context.executorMemory())
    pods = str(context.master()).startswith("k8s://")  # there spark-submit sets the older name, to 0.4 for Python
    usual = settings.get("spark.kubernetes.memoryOverheadFactor", str(OVERHEAD_FACTOR)) if pods else str(OVERHEAD_FACTOR)
    factor = float(settings.get("spark.executor.memoryOverheadFactor", usual))
    least = int(settings.getSizeAsMb("spark.executor.minMemoryOverhead", f"{MIN_OVERHEAD_MIB}m"))
    overhead = int(settings.getSizeAsMb("spark.executor.memoryOverhead", f"{max(least, int(heap * factor))}m"))
    off_heap = str(settings.get("spark.memory.offHeap.enabled", "false")) == "true"
    buffers = int(settings.getSizeAsMb("spark.memory.offHeap.size", "0m")) if off_heap else 0
    python = int(settings.getSizeAsMb("spark.executor.pyspark.memory", "0m"))
    return (heap + overhead + buffers + python) * MIB / MB
