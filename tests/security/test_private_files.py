"""What is written: folders of mode 700, files of mode 600; and what others may see of an environment."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from elastream.clouds.local.authentication import POOL_TOKEN, Secrets, for_others
from elastream.clouds.local.processes import SECRET
from elastream.control.journal import Journal
from elastream.pool.state_log import StateLog
from elastream.recording.directory import RunDirectory, create_private
from elastream.recording.lease_log import LeaseLog
from elastream.recording.recorder import Recorder
from elastream.spark.placement.allocation import AllocationStore


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_runs_folder_is_its_owners_alone(tmp_path):
    assert mode(RunDirectory.create(tmp_path / "runs", "flow").root) == 0o700


@pytest.mark.parametrize(
    "write",
    [
        lambda path: Journal(path),
        lambda path: LeaseLog(path),
        lambda path: Recorder(path),
        lambda path: StateLog(path, "arbiter of tests"),
        lambda path: AllocationStore(path),
        lambda path: Secrets.new().write(path),
    ],
    ids=["journal", "leases", "recording", "a manager's journal", "plan", "settings of daemons"],
)
def test_logs_and_journals_are_their_owners_alone_even_existing_ones(tmp_path, write):
    path = tmp_path / "file.jsonl"
    path.touch(mode=0o644)
    write(path)
    assert mode(path) == 0o600


def test_daemons_and_sessions_of_a_cluster_encrypt_what_they_send(tmp_path):
    Secrets.new().write(tmp_path / "settings")
    assert "spark.network.crypto.enabled true" in (tmp_path / "settings").read_text().splitlines()
    assert Secrets.new().session_settings["spark.network.crypto.enabled"] == "true"


def test_what_is_no_file_keeps_its_mode():
    before = mode(Path("/dev/null"))
    create_private(Path("/dev/null"))
    assert mode(Path("/dev/null")) == before


def test_the_environment_of_others_has_no_secrets():
    assert for_others({"A": "b", POOL_TOKEN: "c", SECRET: "d"}) == {"A": "b"}


def test_a_wiped_variable_is_gone_from_the_process_and_from_proc():
    program = f"""
import os
from elastream.clouds.local.processes import wipe
wipe({SECRET!r})
wipe("NEVER_SET")
assert {SECRET!r} not in os.environ
print(open("/proc/self/environ", "rb").read().count(b"hidden"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, SECRET: "hidden"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"


def test_secrets_are_not_shown_by_accident():
    secrets = Secrets.new()
    assert secrets.shared is not None
    assert secrets.shared not in repr(secrets)
    assert Secrets.new().shared != secrets.shared
