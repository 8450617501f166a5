"""One process of pytest, one JVM at a time: the session that tests share, and how a module gets a JVM of its own."""

import os
import sys
import tempfile

from pyspark import SparkContext
from pyspark.sql import SparkSession

from elastream.spark.jvm.session import session_settings


def shared_session() -> SparkSession:
    """A session on this process's own cores, for all tests that need no hosts: the one that is open, or a new one."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        **session_settings(),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": tempfile.mkdtemp(prefix="warehouse-"),
        # On a crowded machine a Python worker may take longer to come up than the 15 s that Spark waits.
        "spark.python.authenticate.socketTimeout": "300s",
    }
    builder = SparkSession.builder.master("local[2]").appName("tests")
    if SparkSession.getActiveSession() is None:
        for key, value in settings.items():
            builder = builder.config(key, value)
    return builder.getOrCreate()


def end_session() -> None:
    """Stop the session that is open, if there is one."""
    if (session := SparkSession.getActiveSession()) is not None:
        session.stop()


def forget_jvm() -> None:
    """End the JVM that earlier sessions of this process left, so that the next session starts a new one."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    end_session()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None
