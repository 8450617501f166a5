"""Spark's own allocation client: how many executors it may have, which one it gives back, and which one gets no more tasks.

These are the calls that dynamic allocation itself uses, so they work on every cluster manager that has them.
"""

from typing import Any

from pyspark.sql import SparkSession

__all__ = ["UNLIMITED", "AllocationClient"]

UNLIMITED = 2**31 - 1
"""What Spark takes for "as many executors as the cluster has room for"."""


class AllocationClient:
    """The allocation client of `spark`. Every method raises Py4JError where the session has stopped."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def request(self, total: int) -> None:
        """Let Spark have `total` executors in all."""
        jvm: Any = self._spark._jvm
        self._context().requestTotalExecutors(total, 0, jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap()))

    def kill(self, executor: str) -> None:
        """Give one executor back, whatever still runs there. The total is left as it is: set it first."""
        jvm: Any = self._spark._jvm
        self._context().schedulerBackend().killExecutors(jvm.PythonUtils.toSeq([executor]), False, False, True)

    def fence(self, executor: str) -> None:
        """Let the scheduler offer no further task to `executor`, which itself goes on serving what it wrote.

        Spark marks it as being decommissioned; with `triggeredByExecutor` the executor is not told, so that it does not
        leave by itself while a batch still fetches from it.
        """
        gateway: Any = self._spark.sparkContext._gateway
        jvm = gateway.jvm
        no_host = jvm.scala.Option.empty()
        info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("released", no_host)
        pairs = gateway.new_array(jvm.scala.Tuple2, 1)
        pairs[0] = jvm.scala.Tuple2(executor, info)
        self._context().schedulerBackend().decommissionExecutors(pairs, False, True)

    def _context(self) -> Any:
        context: Any = self._spark.sparkContext._jsc
        return context.sc()
