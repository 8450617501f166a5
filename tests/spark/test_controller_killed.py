"""A controller that is killed while an interval of a ring moves, or hosts start, leaves nothing that the next one cannot
finish or drop.

Controller and driver are one process, which is killed; the next one begins in the same folder, on hosts of its own.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from elastream.clouds.local.hosts import STARTS_PER_CORE
from elastream.spark.dataflow.sinks import latest
from support.pending_leases import killed_while_pending
from support.waiting import ended

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from elastream import Dataflow, HostType, Local
from elastream.io import parquet, records
from elastream.loads import constant
from elastream.core.action import SetTokens
from elastream.recording.directory import RunDirectory
from elastream.settings import RunSettings
from elastream.spark.start import start_plant
from elastream.spark.worker.composition import latest_batch, offsets_of

root, killed = Path(sys.argv[1]), sys.argv[2] == "killed"
flow = Dataflow("crash")
lines = flow.source(records([{"word": f"w{n}"} for n in range(50)], "word string"), load=constant("300/s"))
lines.key_by("word").count().sink(parquet(root / "out"))
tiny = HostType("tiny", cores=0.8, slots=1, memory=1000.0)
plant = start_plant(
    flow.graph,
    RunDirectory(root),
    RunSettings(cloud=Local(tiny, max_hosts=2, min_hosts=2), target_latency=2.0, state_partitions=4),
)

def observe_until(holds):
    while not holds():
        plant.observe()
        time.sleep(0.02)

observe_until(lambda: len(plant.reconciler.locations()) == 4)
if killed:
    plant.apply(SetTokens("count", (("h1", 0.0), ("h2", 0.5))))
    observe_until(lambda: any(each.flips for each in plant.placing.migrations()))
    os.kill(os.getpid(), signal.SIGKILL)
observe_until(lambda: not plant.placing.targets())
seen = plant.queries.telemetry.batches
observe_until(lambda: plant.queries.telemetry.batches > seen + 2 and not plant.placing.targets())
at = {f"{task.index}": host for task, host in plant.reconciler.locations().items()}
running = plant.queries.running[0]
running.query.stop()
committed = latest_batch(running.checkpoint, "commits")
taken = offsets_of(running.checkpoint, committed)[0]["n"]
plant.close()
print(json.dumps({"at": at, "committed": committed, "taken": taken}))
"""


def begin(root: Path, how: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = [sys.executable, "-c", PROGRAM, str(root), how]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True, env=environment, start_new_session=True)


def test_the_next_controller_ends_a_move_and_counts_stay_exact(tmp_path):
    def progress():
        return sorted(each.name for each in (tmp_path / "checkpoint").glob("*/commits/*"))

    first = begin(tmp_path, "killed")
    ended(first, progress=progress)
    assert first.returncode == -signal.SIGKILL
    second = begin(tmp_path, "lives")
    out, err = ended(second, progress=progress)
    assert second.returncode == 0, err
    found = json.loads(out.splitlines()[-1])
    for each in (tmp_path / "out").glob("batch=*"):
        if int(each.name.removeprefix("batch=")) > found["committed"]:
            shutil.rmtree(each)  # of a batch that was cut short
    assert found["at"] == {"0": "h1", "1": "h1", "2": "h2", "3": "h2"}
    counted = dict(latest(tmp_path / "out").itertuples(index=False))
    assert counted == Counter(f"w{n % 50}" for n in range(found["taken"]))


def workers(folder: Path) -> int:
    """Workers of this machine whose files are in `folder`."""
    lines = (" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"]))
    return sum("deploy.worker.Worker" in line and str(folder) in line for line in lines)


def test_a_driver_killed_with_ten_local_requests_leaves_nothing(tmp_path):
    """Beside the first so many hosts start at a time here, and the others wait for them."""
    cloud = {"is": "Local", "cores_each": 0.3, "max_hosts": 11}
    room = min(11, 1 + STARTS_PER_CORE * len(os.sched_getaffinity(0)))
    killed_while_pending(tmp_path, cloud, room=room, granted=lambda: workers(tmp_path))
