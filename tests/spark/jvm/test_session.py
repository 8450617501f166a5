"""What a session is opened with; no Spark is started."""

import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from elastream.model.errors import EnvironmentProblem
from elastream.spark.jvm.session import open_session


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
