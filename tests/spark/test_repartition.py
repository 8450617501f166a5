"""A run is stopped, gets more state partitions, goes on, and its results are exact."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark import __version__ as SPARK

from elastream.checkpoints.repartition import SINCE
from elastream.spark.dataflow.sinks import latest
from elastream.spark.jvm.releases import release_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(release_of(SPARK) < SINCE, reason="this release of Spark cannot repartition state"),
]

RECORDS = 3000
PROGRAM = f"""
from elastream import Dataflow, run
from elastream.clouds import InProcess
from elastream.io import parquet, records
from elastream.loads import constant

flow = Dataflow("keys")
rows = records([{{"k": n % 40}} for n in range(80)], "k int")
source = flow.source(rows, load=constant("100/s", lasts="{RECORDS // 100}s"))
source.key_by("k").aggregate({{"n": "count(*)"}}).sink(parquet())
run(flow, cloud=InProcess(cores=2), state_store="disk", show=False)
"""


def elastream(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from elastream.cli import main; main()", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output


def started(tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start the program; return it and its run's folder once some batches are committed."""
    (tmp_path / "keys.py").write_text(PROGRAM)
    process = elastream("run", "keys.py")
    while not list(tmp_path.glob("runs/*/checkpoint/*/commits/1")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.2)
    (run,) = (tmp_path / "runs").iterdir()
    return process, run


def check_whole(run: Path) -> None:
    """Check the new width and the results of all records."""
    (query,) = json.loads(ended(elastream("state", str(run), "--json")))
    assert query["partitions"] == 5
    (results,) = (each for each in (run / "results").iterdir() if each.is_dir())
    counted = dict(latest(results)[["k", "n"]].itertuples(index=False))
    assert counted == Counter(n % 40 for n in range(RECORDS))


def test_run_goes_on_with_more_state_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, run = started(tmp_path)
    os.kill(first.pid, signal.SIGINT)
    first.communicate()
    repartition = ("repartition", str(run), "--partitions", "5", "--skip-open-batch")
    for _ in range(600):
        if "stop the query first" not in (done := "".join(elastream(*repartition).communicate())):
            break
        time.sleep(1.0)
    assert "equal before and after, in 5 partitions (4 before)" in done
    ended(elastream("run", "--resume", str(run)))
    check_whole(run)


def test_live_run_repartitions_its_state_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    live, run = started(tmp_path)
    done = ended(elastream("repartition", str(run), "--partitions", "5"))
    assert f"{run} has 5 state partitions (4 before): 40 rows of state, equal before and after; paused for" in done
    ended(live)
    check_whole(run)


BY_ITSELF = f"""
import os, signal, sys
import elastream.checkpoints.repartition as changes
from elastream import Dataflow, run
from elastream.actions import Repartition
from elastream.clouds import InProcess
from elastream.core.plant import Plan, Policy
from elastream.io import parquet, records
from elastream.loads import constant


class Wider(Policy):
    def plan(self, observation, memory=None):
        narrow = bool(observation.effective) and set(observation.context.partitions.values()) == {{4}}
        return Plan((Repartition(5),) if narrow and not memory else (), memory=memory or narrow)


def killed(*folders):
    exchange(*folders)
    os.kill(os.getpid(), signal.SIGKILL)


if "kill" in os.environ:
    exchange, changes._exchange = changes._exchange, killed
flow = Dataflow("keys")
rows = records([{{"k": n % 40}} for n in range(80)], "k int")
source = flow.source(rows, load=constant("100/s", lasts="{RECORDS // 100}s"))
source.key_by("k").aggregate({{"n": "count(*)"}}).sink(parquet())
run(flow, policy=Wider(), cloud=InProcess(cores=2), state_store="disk", state_partitions=4, show=False, target_latency="5s",
    repartition={{"when": "* * * * *", "longest_pause": "10min"}})
"""


@pytest.mark.parametrize("kill", [False, True], ids=["goes on", "killed after the exchange"])
def test_run_repartitions_its_state_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill: bool) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys.py").write_text(BY_ITSELF)
    with monkeypatch.context() as patched:
        if kill:
            patched.setenv("kill", "1")
        first = elastream("run", "keys.py")
    _, errors = first.communicate()
    assert first.returncode == (-signal.SIGKILL if kill else 0), errors
    (run,) = (tmp_path / "runs").iterdir()
    if kill:
        ended(elastream("run", "--resume", str(run)))
    else:
        assert "done" in [json.loads(line)["state"] for line in (run / "journal.jsonl").read_text().splitlines()]
    check_whole(run)
