"""A run whose driver is killed at any time goes on with `--resume`: every record counts once."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from elastream.recording.dead_letters import letters
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import read_manifest, run_lock
from elastream.recording.recorder import Recording
from elastream.spark.dataflow.sinks import latest
from support.waiting import ended, wait_until

pytestmark = pytest.mark.spark

COMMAND = Path(sys.executable).with_name("elastream")
RECORDS = 240
LEFT_OUT = len(range(3, RECORDS, 7))
"""Records that the function raises on."""
PROGRAM = """
from elastream import Dataflow, HostType, Local, run
from elastream.io import latest, parquet, records
from elastream.loads import constant
from elastream.policies import Static

flow = Dataflow("small")
rows = [{"value": f"w{n}"} for n in range(7)]
lines = flow.source(records(rows, "value string"), load=constant("40/s", lasts="6s"))
def split(line):
    if line == "w3":
        raise ValueError("no threes")
    return [line, "all"]

words = lines.flat_map(split, returns="word string", name="split", on_error="dead_letter")
words.key_by("word").count().sink(parquet())
tiny = HostType("tiny", cores=1.0, slots=1, memory=1000.0)
result = run(flow, policy=Static(hosts=1), cloud=Local(tiny, max_hosts=1), target_latency="2s", state_partitions=2)
print("COUNTED", sum(latest(result.output())["count"]), "TAKEN", sum(1 for _ in result.replay("source")))
"""
SPLIT = """
def split(line):
    if line == "w3":
        raise ValueError("no threes")
    return [line, "all"]
"""
DOCUMENT = """
dataflow: small
target_latency: 2s
operators:
  source: {source: {records: [%s], schema: value string}, load: {constant: {rate: 40/s, lasts: 6s}}}
  split: {from: source, flat_map: "words.py:split", returns: word string, on_error: dead_letter}
  count: {from: split, key_by: word, aggregate: {count: count(*)}}
  sink: {from: count, sink: {parquet: true}}
policy: {static: {hosts: 1}}
host_types: {tiny: {cores: 1.0, slots: 1, memory: 1000MB}}
cloud: {local: {host_type: tiny, max_hosts: 1}}
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, "run", *arguments, "--no-live"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )


def program(folder: Path) -> Path:
    (folder / "small.py").write_text(textwrap.dedent(PROGRAM))
    return folder / "small.py"


def document(folder: Path) -> Path:
    rows = ", ".join(f"{{value: w{n}}}" for n in range(7))
    (folder / "words.py").write_text(SPLIT)
    (folder / "small.yaml").write_text(DOCUMENT % rows)
    return folder / "small.yaml"


def commits(folder: Path) -> list[int]:
    found = folder.glob("runs/*/checkpoint/source/commits/*")
    return sorted(int(each.name) for each in found if each.name.isdigit())


def kill_after(process: subprocess.Popen[str], folder: Path, batches: int) -> None:
    """SIGKILL to the driver's process group once so many batches were committed."""

    def reached() -> bool:
        assert process.poll() is None, process.communicate()
        return len(commits(folder)) >= batches

    wait_until(reached, progress=lambda: commits(folder))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def assert_exact(run: Path) -> None:
    expected = Counter(f"w{n % 7}" for n in range(RECORDS) if n % 7 != 3) + Counter({"all": RECORDS - LEFT_OUT})
    (results,) = (run / "results").iterdir()
    assert dict(latest(results).itertuples(index=False)) == expected
    found = list(letters(RunDirectory(run).dead_letters))
    assert [(each["operator"], each["record"]) for each in found] == [("split", "w3")] * LEFT_OUT
    ending = Recording.read(run).ending
    assert ending is not None
    assert ending.facts["left out"] == LEFT_OUT


@pytest.mark.cluster
def test_run_killed_by_sigkill_goes_on_with_all_that_it_had(tmp_path):
    process = start(tmp_path, str(program(tmp_path)))
    kill_after(process, tmp_path, batches=2)
    (run,) = (tmp_path / "runs").iterdir()
    was = read_manifest(RunDirectory(run))
    with run_lock(RunDirectory(run)):  # by somebody else
        _, err = ended(start(tmp_path, "--resume", str(run)))
        assert "is held by another process" in err
    process = start(tmp_path, "--resume", f"runs/{run.name}")
    out, err = ended(process, progress=lambda: commits(tmp_path))
    assert process.returncode == 0, err
    assert f"COUNTED {2 * (RECORDS - LEFT_OUT)} TAKEN {RECORDS}" in out
    assert [each.name for each in (tmp_path / "runs").iterdir()] == [run.name]
    assert_exact(run)
    recording = Recording.read(run)
    (resumed,) = recording.header.resumed
    assert resumed["gone"] == ["h1"]
    assert resumed["batches"]["source"] >= 1
    assert f"resumed {recording.header.resumptions[0]}" in out
    assert list(recording.times) == sorted(recording.times)
    assert recording.times[-1] > resumed["time"] >= resumed["seen"] > 0
    assert [decision.round for decision in recording.decisions] == list(range(1, len(recording.decisions) + 1))
    assert recording.ending is not None
    assert {lease.host: lease.state.value for lease in recording.ending.ledger} == {"h1": "lost", "h2": "released"}
    assert recording.ending.facts["records"] == RECORDS
    assert recording.ending.status == "finished"
    assert "</html>" in (run / "report.html").read_text()
    assert "Traceback" not in err
    now = read_manifest(RunDirectory(run))
    assert (now.id, now.started, now.identity) == (was.id, was.started, was.identity)
    process = start(tmp_path, "--resume", str(run))
    _, err = ended(process)
    assert (process.returncode, "has finished: nothing is left to do" in err) == (2, True)


@pytest.mark.slow
def test_a_document_goes_on_alike_and_a_changed_one_is_refused(tmp_path):
    process = start(tmp_path, str(document(tmp_path)))
    kill_after(process, tmp_path, batches=2)
    (run,) = (tmp_path / "runs").iterdir()
    whole = (tmp_path / "small.yaml").read_text()
    (tmp_path / "small.yaml").write_text(whole.replace("key_by: word", "key_by: [word]").replace("count(*)", "sum(1)"))
    process = start(tmp_path, "--resume", str(run))
    _, err = ended(process)
    assert process.returncode == 2
    assert "the aggregates of operator 'count' was count = count(*) and is count = sum(1)" in err
    (tmp_path / "small.yaml").write_text(whole)
    process = start(tmp_path, "--resume", str(run))
    _, err = ended(process, progress=lambda: commits(tmp_path))
    assert process.returncode == 0, err
    assert_exact(run)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_driver_killed_again_and_again_loses_and_doubles_nothing(tmp_path, seed):
    chance = random.Random(seed)
    process = start(tmp_path, str(program(tmp_path)))
    for _ in range(3):
        kill_after(process, tmp_path, batches=len(commits(tmp_path)) + chance.randrange(1, 3))
        (run,) = (tmp_path / "runs").iterdir()
        process = start(tmp_path, "--resume", str(run))
        if chance.random() < 0.5:  # while it starts, before anything of it runs
            wait_until((run / "cluster" / "master.log").exists)
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            process = start(tmp_path, "--resume", str(run))
        if process.poll() is None and len(json.loads((run / "run.json").read_text())["resumed"]) > 2:
            break
    _, err = ended(process, progress=lambda: commits(tmp_path))
    assert process.returncode == 0, err
    assert_exact(run)
