"""`elastream run` on a real cluster, from outside: how it ends, what it says, and that nothing of it is left."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import httpx
import psutil
import pytest

from elastream.recording.directory import RunDirectory
from elastream.recording.recorder import Recording
from support.waiting import ended, wait_until

pytestmark = pytest.mark.spark

COMMAND = Path(sys.executable).with_name("elastream")

PROGRAM = """
from elastream import Dataflow, HostType, Local, run
from elastream.io import parquet, records
from elastream.loads import constant
from elastream.policies import Static

def split(line):
    if line == "poison":
        raise ValueError("bad apple")
    return line.split()

flow = Dataflow("small")
rows = [{{"value": "a b"}}] * 30 + [{{"value": {last!r}}}]
lines = flow.source(records(rows, "value string"), load=constant("40/s", lasts={lasts!r}))
words = lines.flat_map(split, returns="word string")
words.key_by("word").count().sink(parquet({out!r}))
tiny = HostType("tiny", cores=1.0, slots=1, memory=1000.0)
result = run(flow, policy=Static(hosts=1), cloud=Local(tiny, max_hosts=1), target_latency="2s", state_partitions=2)
print("TAKEN", sum(1 for _ in result.replay("source")))
"""


def start(folder: Path, *options: str, last: str = "c d", lasts: str | None = "5s") -> subprocess.Popen[str]:
    program = folder / "small.py"
    program.write_text(textwrap.dedent(PROGRAM).format(last=last, lasts=lasts, out=str(folder / "out")))
    return subprocess.Popen(
        [COMMAND, "run", str(program), "--no-live", "--runs", str(folder / "runs"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def left_over(folder: Path) -> list[str]:
    """Command lines of processes that know of `folder`."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(folder) in line and process.pid != os.getpid():
            found.append(line)
    return found


def wait_until_gone(folder: Path) -> None:
    wait_until(lambda: not left_over(folder), progress=lambda: len(left_over(folder)), otherwise=lambda: left_over(folder))


def assert_ended_in_order(folder: Path, err: str, status: str) -> Recording:
    """The only run in `folder` has ended so: no host is leased, its report is there, and no process of it is left."""
    (run,) = (folder / "runs").iterdir()
    recording = Recording.read(run)
    assert recording.ending is not None
    assert recording.ending.status == status
    assert all(not lease.active for lease in recording.ending.ledger)
    first = recording.ending.ledger[0].ready_at()
    committed = min(file.stat().st_mtime for file in run.glob("checkpoint/*/commits/0"))
    assert first is not None
    assert recording.header.started + first <= committed, "its times count from when it began, not from its first host"
    assert "</html>" in (run / "report.html").read_text()
    assert "Traceback" not in err
    wait_until_gone(folder)
    return recording


@pytest.mark.slow
def test_a_function_that_fails_is_named_in_one_sentence(tmp_path):
    process = start(tmp_path, last="poison", lasts=None)
    _, err = ended(process)
    assert process.returncode == 2, err
    told = [line for line in err.splitlines() if line.startswith("elastream: ")]
    assert len(told) == 1
    assert "operator 'split' failed on the record 'poison': ValueError: bad apple" in told[0]
    assert "Traceback" not in err
    wait_until_gone(tmp_path)


def test_a_run_serves_its_page_while_it_goes_on_and_leaves_nothing(tmp_path):
    process = start(tmp_path, "--page", lasts="8s")
    assert process.stderr is not None
    line = next(each for each in process.stderr if each.startswith("live page: "))
    with httpx.Client(follow_redirects=True) as client:
        assert client.get(line.removeprefix("live page: ").partition("?")[0]).status_code == 401
        assert client.get(line.removeprefix("live page: ").strip()).status_code == 200
    (run,) = (tmp_path / "runs").iterdir()
    assert RunDirectory(run).page.read_text() in line
    _, err = ended(process)
    assert process.returncode == 0, err
    assert not RunDirectory(run).page.exists()
    wait_until_gone(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_for_the_checkpoint_is_named_before_anything_starts(tmp_path):
    disk = tmp_path / "runs"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        process = start(tmp_path)
        _, err = ended(process)
        assert process.returncode == 2
        assert "no room for the checkpoint" in err
        assert str(disk) in err
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    wait_until_gone(tmp_path)


OWN = """
from pathlib import Path

from elastream import Local
from elastream.core.plant import Plan


class Idle:
    name = "idle"

    def plan(self, observation, memory=None):
        return Plan()


class Cloudy(Local):
    pass


class Letters:
    schema = "value string"

    def read(self, spark):
        return spark.readStream.format("rate").option("rowsPerSecond", 20).load().selectExpr("'a b' as value")


class Seen:
    def write(self, rows, batch):
        if found := [row.word for row in rows.collect()]:
            (Path(__file__).parent / "seen.txt").write_text(" ".join(found))


def split(line):
    return line.split()
"""
DOCUMENT = """
dataflow: own
operators:
  lines: {source: "mine.py:Letters"}
  words: {from: lines, flat_map: "mine.py:split", returns: word string}
  out: {from: words, sink: "mine.py:Seen"}
policy: mine.py:Idle
cloud: {"mine.py:Cloudy": {host_type: tiny, max_hosts: 1}}
host_types: {tiny: {cores: 1, slots: 1, memory: 1000}}
"""


@pytest.mark.cluster
def test_policy_cloud_source_and_sink_in_a_file_of_the_user_run(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "own.yaml").write_text(DOCUMENT)
    seen = tmp_path / "seen.txt"
    with subprocess.Popen(
        [COMMAND, "run", "own.yaml", "--no-live"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:

        def written() -> bool:
            assert process.poll() is None, process.communicate()
            return seen.exists()

        wait_until(written, otherwise=lambda: "the sink was given nothing")
        process.send_signal(signal.SIGINT)
        out, err = ended(process)
    assert process.returncode == 130, err
    assert "own: started with policy idle" in out
    assert set(seen.read_text().split()) == {"a", "b"}
    assert_ended_in_order(tmp_path, err, "stopped")
