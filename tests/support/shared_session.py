"""One process of pytest, one JVM at a time: the session that tests share, and how a module gets a JVM of its own."""

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from elastream.clouds.local.archive import archive_for, options_for
from elastream.clouds.local.java import DRIVER_OPTIONS, find_java
from elastream.spark.jvm.session import session_settings

_shared: SparkSession | None = None
_warehouse = tempfile.TemporaryDirectory(prefix="warehouse-")  # goes with the process


def shared_session() -> SparkSession:
    """A session on this process's own cores, for all tests that need no hosts: the one that is open, or a new one."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        **session_settings(),
        "spark.driver.host": "127.0.0.1",
        DRIVER_OPTIONS: archived(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.daemon.module": "elastream.spark.worker.daemon",
        "spark.sql.warehouse.dir": _warehouse.name,
        # On a crowded machine a Python worker may take longer to come up than the 15 s that Spark waits.
        "spark.python.authenticate.socketTimeout": "300s",
    }
    global _shared
    if _shared is None:
        try:
            _shared = _opened(settings)
        except Py4JJavaError:  # the JVM of earlier sessions wants jars that the last of them served
            forget_jvm()
            _shared = _opened(settings)
    return _shared


def _opened(settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def archived() -> str:
    """Options of a JVM that loads Spark's classes from the archive of this environment; empty where there is none."""
    archive = archive_for(find_java())
    return shlex.join(options_for(archive.file)) if archive is not None and archive.usable() else ""


def end_shared_session() -> None:
    """Stop the session that tests share, if it is open: there is room for one session, and a test wants its own."""
    global _shared
    if _shared is not None:
        _shared.stop()
        _shared = None


def forget_jvm() -> None:
    """End the JVM that earlier sessions of this process left, so that the next session starts a new one."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    end_shared_session()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None
