"""Finds Java and says how Spark's own daemons are started from pyspark's jars, without its shell scripts.

The scripts start a JVM of their own only to print a command; going without them halves the time to a running worker.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from elastream.model.errors import EnvironmentProblem

__all__ = ["daemon_command", "daemon_environment", "find_java"]

JAVA = 17
"""The oldest Java that Spark 4 runs on."""

# Master and workers only shuffle messages: a small heap, no compilation beyond the first tier, one collector thread.
SMALL_JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
)
SETTINGS = (
    "-Dspark.decommission.enabled=true",  # without it SIGPWR would simply kill a worker
    "-Dspark.storage.decommission.enabled=false",
    "-Dspark.master.rest.enabled=false",
    "-Dspark.port.maxRetries=0",  # a port that is taken meanwhile is an error, not another port
    "-Dspark.deploy.maxExecutorRetries=-1",  # hosts come and go here; lost executors are no reason to end the application
)

FOREIGN = frozenset({"SPARK_PUBLIC_DNS", "SPARK_LOCAL_HOSTNAME", "SPARK_CONF_DIR"})
"""Variables of a user's own Spark that would make ours listen or look elsewhere."""


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """The `java` that Spark will run on: of JAVA_HOME where that is set, else the first on PATH.

    Raises EnvironmentProblem where there is none or it is older than Java 17.
    """
    home = environment.get("JAVA_HOME")
    advice = f"Spark needs Java {JAVA} or newer: install one (Debian, Ubuntu: openjdk-17-jre-headless) or set JAVA_HOME"
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise EnvironmentProblem(f"JAVA_HOME is {home}, but there is no {java}; {advice}")
    else:
        found = shutil.which("java", path=environment.get("PATH", ""))
        if found is None:
            raise EnvironmentProblem(f"no Java: neither JAVA_HOME nor PATH leads to one; {advice}")
        java = Path(found).resolve()
    said = subprocess.run([java, "-version"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None:
        raise EnvironmentProblem(f"{java} does not say which version it is; {advice}")
    if int(version[1]) < JAVA:
        raise EnvironmentProblem(f"{java} is Java {version[1]}; {advice}")
    return java


def spark_home() -> Path:
    """The folder of the installed pyspark, which holds Spark's jars; raises EnvironmentProblem where it is incomplete."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise EnvironmentProblem("the package pyspark is not installed")
    return Path(found.origin).parent


def daemon_command(java: Path, main: str, *arguments: str) -> list[str]:
    """The command that runs the class `org.apache.spark.deploy.<main>` in a small JVM."""
    classpath = f"{spark_home() / 'jars'}/*"
    return [str(java), *SMALL_JVM, *SETTINGS, "-cp", classpath, f"org.apache.spark.deploy.{main}", *arguments]


def daemon_environment(address: str) -> dict[str, str]:
    """This process's environment, plus what Spark's own scripts would set, for a daemon that listens at `address` only."""
    home = spark_home()
    core = next((home / "jars").glob("spark-core_*.jar"), None)
    if core is None:
        raise EnvironmentProblem(f"Spark's jars are missing from {home / 'jars'}: install pyspark anew")
    return {
        **{key: value for key, value in os.environ.items() if key not in FOREIGN},
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": core.name.removeprefix("spark-core_").partition("-")[0],
        "SPARK_LOCAL_IP": address,
    }
