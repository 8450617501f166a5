"""What a session is opened with, and what is left of one whose opening is interrupted."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from pyspark import __version__ as SPARK
from pyspark.sql import SparkSession

from elastream.errors import EnvironmentProblem
from elastream.spark.jvm.jars import copies_settings
from elastream.spark.jvm.releases import STANDBY_SINCE, release_of
from elastream.spark.jvm.session import (
    ONE_CORE_JVM,
    SMALL_JVM,
    STATE_STORES,
    _silence,
    in_properties,
    open_session,
    settings_for,
)
from support.shared_session import forget_jvm
from support.waiting import wait_until


class NoSpark:
    def master(self, _: str) -> "NoSpark":
        return self

    def appName(self, _: str) -> "NoSpark":
        return self

    def config(self, _: str, __: str) -> "NoSpark":
        return self

    def getOrCreate(self) -> None:
        raise OSError("there is none")


def test_workers_run_the_drivers_interpreter_wherever_they_are_started(tmp_path, monkeypatch):
    monkeypatch.setattr(SparkSession, "builder", NoSpark())
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "?")
    monkeypatch.setattr(sys, "executable", "venv/bin/python")
    with pytest.raises(EnvironmentProblem, match="there is none"):
        open_session("local", "name", tmp_path, {"spark.driver.host": "localhost"})
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == str(Path.cwd() / "venv/bin/python")


@pytest.mark.parametrize(
    ("cores", "told"),
    [
        ([0.35], SMALL_JVM), ([1.0], ONE_CORE_JVM), ([2.0], ()), ([], ()),
        ([0.5, 8.0], SMALL_JVM), ([1.0, 1.5], ONE_CORE_JVM), ([1.0, 8.0], ()),
    ],
)  # fmt: skip
def test_the_smaller_a_host_the_less_its_executor_optimises(cores, told):
    made = settings_for(
        driver_address="", executor_memory=1, executor_cores=1, state_partitions=1, host_cores=cores, java_options=["-Da=b"]
    )
    assert made["spark.executor.extraJavaOptions"].split() == [*told, "-Da=b"]


def jvms() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if any("spark" in word for word in child.cmdline())]


def test_a_jvm_that_ends_first_leaves_no_traceback_of_accumulators():
    told = []
    server = SimpleNamespace(handle_error=lambda request, address: told.append(str(sys.exception())))
    _silence(server)
    for error in (EOFError(), ConnectionResetError(), ValueError("another token")):
        try:
            raise error
        except Exception:
            server.handle_error("request", "address")
    assert told == ["another token"]


def test_java_reads_a_folder_with_any_letters_in_any_locale():
    assert in_properties("a\\b") == r"a\u005cb"
    assert in_properties("/runs/gâteaux 🍰/driver.log") == r"/runs/g\u00e2teaux \ud83c\udf70/driver.log"


@pytest.mark.slow
@pytest.mark.spark
def test_an_interrupted_opening_leaves_no_jvm_and_the_next_one_works(tmp_path):
    """In a process of its own: an interrupt would end one that runs tests for another."""
    given = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    code = f"from pathlib import Path; from test_session import interrupted; interrupted(Path({str(tmp_path)!r}))"
    ended = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": given}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


def interrupted(folder: Path) -> None:
    log = folder / "driver.log"

    def interrupt() -> None:
        wait_until(lambda: log.exists() and "Failed to connect to master" in log.read_text())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
    with pytest.raises(KeyboardInterrupt):
        open_session("spark://127.0.0.1:9", "interrupted", folder, settings)
    assert not jvms()
    spark = open_session("local[1]", "another", folder, settings)
    try:
        assert spark.range(3).count() == 3
    finally:
        spark.stop()
        forget_jvm()


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_inherits_no_settings_of_an_earlier_one(tmp_path):
    base = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
    forget_jvm()
    provider = "spark.sql.streaming.stateStore.providerClass"
    found = []
    plugin = copies_settings() if release_of(SPARK) >= STANDBY_SINCE else {"spark.plugins": ""}
    for number, more in enumerate((STATE_STORES["disk"], plugin, {})):
        (folder := tmp_path / str(number)).mkdir()
        session = open_session("local[1]", "one of several", folder, {**base, **more})
        found.append(("RocksDB" in session.conf.get(provider), session.conf.get("spark.plugins", "none")))
        assert list((folder / "scratch").iterdir())
        session.stop()
    forget_jvm()
    assert found == [(True, "none"), (False, plugin["spark.plugins"]), (False, "none")]
