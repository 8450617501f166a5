"""Spark's allocation client: sets the number of executors, releases an executor, or excludes it from new tasks.

These are the calls of dynamic allocation, so that they work on every cluster manager that supports it.
"""

from pyspark.sql import SparkSession

from elastream.spark.jvm.gateway import gateway_of, java_context, jvm_of

__all__ = ["UNLIMITED", "AllocationClient"]

UNLIMITED = 2**31 - 1
"""Spark's value for "as many executors as the cluster has room for"."""


class AllocationClient:
    """The allocation client of `spark`. Every method raises Py4JError if the session has stopped."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def request(self, total: int) -> None:
        """Request `total` executors in total."""
        jvm = jvm_of(self._spark)
        java_context(self._spark).requestTotalExecutors(total, 0, jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap()))

    def kill(self, executor: str) -> None:
        """Release an executor, with all tasks on it. Does not change the requested total: set it first."""
        jvm = jvm_of(self._spark)
        java_context(self._spark).schedulerBackend().killExecutors(jvm.PythonUtils.toSeq([executor]), False, False, True)

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
