"""Opens a cloud beside a session that somebody else started: its hosts join the master that this session has already.

What `run(cloud=...)` takes begins with a master of its own; here there is one, so only hosts are started, and only where an
executor as the session asks for them fits one.
"""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from elastream.clouds.local.local import LocalCluster, executor_memory
from elastream.clouds.provider import Cloud
from elastream.model.cloud import HostType
from elastream.model.errors import CloudError

__all__ = ["join"]


def join(cloud: Cloud, spark: SparkSession, folder: Path) -> LocalCluster:
    """The cluster behind `cloud`, whose hosts join the master of `spark`; it is the caller's to close.

    Raises CloudError where they cannot: the session has another kind of master, the hosts have a network of their own, or
    are too small for the executors of this session. Raises ElastreamError for what `LocalCluster.start` raises.
    """
    cluster = cloud.cluster(folder, None)
    try:
        for kind in cluster.local.types:
            _check_fit(kind, spark)
        cluster.start(str(spark.sparkContext.master))
    except BaseException:
        cluster.close()
        raise
    return cluster


def _check_fit(kind: HostType, spark: SparkSession) -> None:
    """Raise CloudError where no executor of the session has room on a host of type `kind`: none would ever come up."""
    context: Any = spark.sparkContext._jsc
    memory, slots = int(context.sc().executorMemory()), int(spark.sparkContext.getConf().get("spark.executor.cores") or 1)
    if memory > executor_memory(kind) or slots > kind.slots:
        raise CloudError(
            f"an executor of this session takes {memory} MiB and {slots} slots, and a host of type {kind.name!r} has"
            f" {executor_memory(kind)} MiB and {kind.slots}: spark.executor.memory and spark.executor.cores must fit"
        )
