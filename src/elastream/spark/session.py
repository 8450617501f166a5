"""Opens the Spark session that a dataflow runs in, with the settings that elastic streaming needs, and probes it once.

What is set here is what was measured to matter: short locality waits, so that a lost executor stalls a batch for a
second and not for half a minute; no limit on executors lost, because releasing hosts is normal here; nothing on screen.
"""

import logging
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from elastream.model.errors import EnvironmentProblem
from elastream.spark.compile import session_settings

__all__ = ["open_session", "settings_for"]

LOCALITY_WAIT = "1s"
"""How long a task waits for the executor that holds its state. A lost executor costs at most this once per batch; below
half a second, tasks of an unevenly loaded stage start to run away from their state."""

LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yy/MM/dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""
"""Spark's own log goes to the run's folder: the terminal is for the live view, and hosts that leave make Spark talk."""


def settings_for(
    *,
    driver_address: str,
    executor_memory: float,
    executor_cores: int,
    state_partitions: int,
    ports: range | None = None,
    packages: Sequence[str] = (),
) -> Mapping[str, str]:
    """Spark settings of an elastic session; `executor_memory` in mebibytes, `ports` for driver and block manager."""
    settings = {
        "spark.driver.host": driver_address,
        "spark.driver.bindAddress": driver_address,
        "spark.driver.memory": "1g",
        "spark.executor.memory": f"{executor_memory:.0f}m",
        "spark.executor.cores": str(executor_cores),
        "spark.decommission.enabled": "true",
        # Shuffle files of one micro-batch are worthless to the next; waiting for their migration would only keep a host.
        "spark.storage.decommission.enabled": "false",
        "spark.executor.heartbeatInterval": "5s",
        "spark.locality.wait": LOCALITY_WAIT,
        "spark.stage.maxConsecutiveAttempts": "32",
        "spark.excludeOnFailure.enabled": "false",
        "spark.sql.shuffle.partitions": str(state_partitions),
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "200",
        **session_settings(),
    }
    if ports is not None:
        settings |= {
            "spark.driver.port": str(ports[0]),
            "spark.driver.blockManager.port": str(ports[1]),
            "spark.port.maxRetries": "16",
        }
    if packages:
        settings["spark.jars.packages"] = ",".join(packages)
    return settings


def open_session(master: str, name: str, folder: Path, settings: Mapping[str, str]) -> SparkSession:
    """A session on `master`; raises EnvironmentProblem where one is open already or Spark does not start.

    `folder` takes Spark's warehouse and scratch files, so that a run leaves nothing elsewhere.
    """
    if SparkSession.getActiveSession() is not None:
        raise EnvironmentProblem("a Spark session is open in this process already; stop it before run(...)")
    os.environ["SPARK_LOCAL_IP"] = settings["spark.driver.host"]
    # Workers run the interpreter of the driver, and find the modules that lie beside the user's program.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # What goes wrong on the way down is told by the run, in a sentence; the gateway would add a stack trace of its own.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    builder = SparkSession.builder.master(master).appName(name)
    logs = folder / "driver-log4j2.properties"
    logs.write_text(LOGGING.format(file=folder / "driver.log"))
    places = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logs.as_uri()}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(_own_modules()),
    }
    for key, value in {**settings, **places}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        raise EnvironmentProblem(f"Spark did not start on {master}: {str(error).splitlines()[0]}") from error
    return spark


def _own_modules() -> list[str]:
    """Entries of the module path that the interpreter does not bring by itself: the user's program and its neighbours."""
    brought = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return [entry for entry in dict.fromkeys(sys.path) if entry and Path(entry).is_dir() and not entry.startswith(brought)]
