"""Spark's own allocation client: how many executors it may have, which one it gives back, and which one gets no more tasks.

These are the calls that dynamic allocation itself uses, so they work on every cluster manager that has them.
"""

from pyspark.sql import SparkSession

from elastream.spark.jvm.gateway import gateway_of, java_context, jvm_of

__all__ = ["UNLIMITED", "AllocationClient"]

UNLIMITED = 2**31 - 1
"""What Spark takes for "as many executors as the cluster has room for"."""


class AllocationClient:
    """The allocation client of `spark`. Every method raises Py4JError where the session has stopped."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def request(self, total: int) -> None:
        """Let Spark have `total` executors in all."""
        jvm = jvm_of(self._spark)
        java_context(self._spark).requestTotalExecutors(total, 0, jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap()))

    def kill(self, executor: str) -> None:
        """Give one executor back, whatever still runs there. The total is left as it is: set it first."""
        jvm = jvm_of(self._spark)
        java_context(self._spark).schedulerBackend().killExecutors(jvm.PythonUtils.toSeq([executor]), False, False, True)

    def fence(self, executor: str) -> None:
        """Let the scheduler offer no further task to `executor`, which itself goes on serving what it wrote.

        Spark marks it as being decommissioned; with `triggeredByExecutor` the executor is not told, so that it does not
        leave by itself while a batch still fetches from it.
        """
        gateway = gateway_of(self._spark)
        jvm = gateway.jvm
        no_host = jvm.scala.Option.empty()
        info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("released", no_host)
        pairs = gateway.new_array(jvm.scala.Tuple2, 1)
        pairs[0] = jvm.scala.Tuple2(executor, info)
        java_context(self._spark).schedulerBackend().decommissionExecutors(pairs, False, True)
