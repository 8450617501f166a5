"""The process beside the workers of an executor that measures how fast its cores are."""

import math
import os
import subprocess
import sys

import psutil
import pytest

from elastream.spark.worker import probe
from support.waiting import wait_until

DAEMON = """
import os, sys, time
from elastream.spark.worker import probe
probe.name_executor()
probe.begin()
print(os.environ[probe.EXECUTOR_VARIABLE], *open(f"/proc/self/task/{os.getpid()}/children").read().split(), flush=True)
sys.stdin.read()
"""
JVM = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {DAEMON!r}])"


def test_a_daemon_probes_for_its_executor_until_it_ends(tmp_path):
    command = [sys.executable, "-c", JVM, "--driver-url", "x", "--executor-id", "17", "--hostname", "y"]
    environment = {**os.environ, probe.FOLDER_VARIABLE: str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as jvm:
        executor, child = jvm.stdout.readline().split()
        assert executor == "17"
        wait_until(probe.file_of(tmp_path, "17").exists)
        beside = psutil.Process(int(child))
        assert beside.nice() == probe.NICENESS
        jvm.stdin.close()
        assert not jvm.stdout.read(), "the probe keeps no end of the daemon's pipes"
    wait_until(lambda: not beside.is_running())
    assert [path.name for path in tmp_path.iterdir()] == ["17.json"]


def test_without_an_executor_or_a_folder_nothing_is_probed(monkeypatch, tmp_path):
    monkeypatch.delenv(probe.EXECUTOR_VARIABLE, raising=False)
    monkeypatch.setenv(probe.FOLDER_VARIABLE, str(tmp_path))
    probe.name_executor()  # of this process, whose parent is no executor
    assert probe.EXECUTOR_VARIABLE not in os.environ
    probe.begin()
    monkeypatch.delenv(probe.FOLDER_VARIABLE)
    monkeypatch.setenv(probe.EXECUTOR_VARIABLE, "1")
    probe.begin()
    assert not list(tmp_path.iterdir())


def test_a_limit_that_changes_is_read_again(monkeypatch, tmp_path):
    limits, parents, written = iter([2e9, 1e9, math.inf]), iter([7, 7, 7, 1]), []
    monkeypatch.setattr(probe, "memory_allowed", lambda groups: next(limits))
    monkeypatch.setattr(probe, "timed", lambda: 0.1)
    monkeypatch.setattr(probe, "_write", lambda file, reading: written.append(reading.limit))
    monkeypatch.setattr(probe.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(probe.time, "sleep", lambda seconds: None)
    probe._probe(tmp_path / "1.json", 7)
    assert written == [2000.0, 1000.0, None]


def test_the_daemon_knows_its_executor_before_it_loads_anything_heavy():
    told = "import sys; import elastream.spark.worker.probe; print('numpy' in sys.modules, 'pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True).stdout.split() == ["False"] * 2


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [((0, 0), (100, 0), 1.0), ((0, 0), (75, 25), 0.75), ((1000, 10), (1030, 40), 0.5), ((5, 5), (5, 10), 1.0)],
)
def test_what_was_stolen_is_a_part_of_what_was_wanted(before, after, kept):
    assert probe.share_received(before, after) == kept


def test_probing_takes_a_thousandth_of_a_host_at_most_however_small_it_is():
    assert [probe.pause(spent, cores) for spent, cores in ((0.002, 1.0), (0.002, 0.1), (0.03, 2.0))] == pytest.approx(
        [probe.PERIOD_S, 20.0, 15.0]
    )
