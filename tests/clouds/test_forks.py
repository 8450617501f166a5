"""Real processes, without Spark: what a host would load is a small module of the test."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastream.clouds.local.confinement import TAG
from elastream.clouds.local.forks import REQUIRED_ENVIRONMENT
from support.waiting import wait_until

SLOW = """
import os, sys
from elastream.clouds.local.forks import run_in_fork

def preload():
    with open(os.environ["LOADED"], "a") as file:
        file.write("x")

def run():
    said = [sys.argv[1:], os.getcwd(), os.environ["MINE"], sys.stdin.readline(), hash("word")]
    print(said)
    sys.exit(int(os.environ.get("ENDS", "0")))

if __name__ == "__main__" and not run_in_fork("slow"):
    print("loads for itself")
"""


class Cluster:
    """A server, and processes that ask it to take over."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, secrets.token_hex(4)
        (folder / "slow.py").write_text(SLOW)
        self.environment = {**os.environ, **REQUIRED_ENVIRONMENT, "LOADED": str(folder / "loaded"), "MINE": "?"}
        # No empty entry: that would be the folder that a process was started in, and each host has its own.
        path = [str(folder), *filter(None, [self.environment.get("PYTHONPATH")])]
        self.environment["PYTHONPATH"] = os.pathsep.join(path)
        self.server = subprocess.Popen(
            [sys.executable, "-m", "elastream.clouds.local.forks", self.run], env={**os.environ, **REQUIRED_ENVIRONMENT}
        )
        wait_until(lambda: f"@elastream-forks-{self.run}" in Path("/proc/net/unix").read_text())

    def ask(self, host: str = "h1", **environment: str) -> str:
        folder = self.folder / host
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "slow", "an", "argument"]
        values = {**self.environment, TAG: f"{self.run}/{host}", "MINE": host, **environment}
        return subprocess.run(command, cwd=folder, env=values, input="a line\n", stdout=subprocess.PIPE, text=True).stdout

    @property
    def loaded(self) -> int:
        file = self.folder / "loaded"
        return len(file.read_text()) if file.exists() else 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.server.kill()
    made.server.wait()


def test_hosts_fork_from_a_process_that_loaded_once(cluster, tmp_path):
    word = subprocess.run(
        [sys.executable, "-c", "print(hash('word'))"], env=cluster.environment, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    for host in ("h1", "h2"):
        said = cluster.ask(host)
        assert said == f"{[['an', 'argument'], str(tmp_path / host), host, 'a line' + chr(10), int(word)]}\n"
    assert cluster.loaded == 1
    assert cluster.server.poll() is None


def test_a_fork_that_fails_ends_alone(cluster):
    cluster.ask(ENDS="3")
    assert "an" in cluster.ask()


def test_a_process_that_is_not_alike_or_finds_no_server_loads_for_itself(cluster):
    cluster.ask()
    path = os.pathsep.join([cluster.environment["PYTHONPATH"], "/elsewhere"])
    for other in ({TAG: "another-cluster/h1"}, {TAG: ""}, {"PYTHONHASHSEED": "7"}, {"PYTHONPATH": path}):
        assert cluster.ask(**other) == "loads for itself\n"
    assert cluster.loaded == 1
