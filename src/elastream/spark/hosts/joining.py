"""Opens a cloud for an existing session; its hosts join the session's master."""

from pathlib import Path

from pyspark.sql import SparkSession

from elastream.clouds.provider import Cloud, ExistingSession, Provider
from elastream.model.alarms import Alarms
from elastream.spark.jvm.gateway import java_context

__all__ = ["join"]


def join(cloud: Cloud, spark: SparkSession, folder: Path, alarms: Alarms | None = None) -> Provider:
    """The provider of `cloud`, whose hosts join the master of `spark`; it is the caller's to close.

    Raises ElastreamError where they cannot: the session has another kind of master, or its executors do not fit the hosts.
    """
    memory, slots = (
        int(java_context(spark).executorMemory()),
        int(spark.sparkContext.getConf().get("spark.executor.cores") or 1),
    )
    session = ExistingSession(str(spark.sparkContext.master), memory, slots)
    return cloud.open(folder, session=session, alarms=alarms)
