"""What a query leaves in its checkpoint is enough to go on from, and does not grow for ever.

These are the tests that the quick ways of writing checkpoints (`session.session_settings`) have to pass, for both state
stores: a driver killed in mid-batch and started again counts every record once, and state is snapshotted as time goes by.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from elastream import latest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

RECORDS = 6000
PROGRAM = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from elastream import Dataflow, constant, parquet, records
from elastream.model.observation import Composition
from elastream.model.stages import lay_out
from elastream.spark.queries.compiler import start_queries
from elastream.spark.jvm.session import session_settings
from elastream.recording.directory import RunDirectory

root, store = Path(sys.argv[1]), sys.argv[2]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
for name, value in {**session_settings(store), "spark.sql.streaming.stateStore.maintenanceInterval": "1s"}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
flow = Dataflow("crash")
lines = flow.source(records([{"value": f"w{n}"} for n in range(50)], "value string"), load=constant("600/s", lasts="10s"))
words = lines.flat_map(lambda line: [line, "all"], returns="word string", name="split")
words.key_by("word").count().sink(parquet(root / "out"))
layout = lay_out(flow.graph)
(each,) = start_queries(
    spark, layout, RunDirectory(root), Composition.default(flow.graph, {"source": 2}), state_partitions=3, batch_seconds=0.5
)
while True:
    progress = each.query.lastProgress
    if progress and '"n": 6000' in str(progress["sources"][0]["endOffset"]).replace("'", '"'):
        break
    if not each.query.isActive:
        raise SystemExit(str(each.query.exception()))
    time.sleep(0.1)
each.query.stop()
"""


def start(root: Path, store: str = "memory") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(root), store],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def numbers(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.glob("*") if path.name.isdigit()}


def wait_for_a_batch_under_way(root: Path, process: subprocess.Popen[str], after: int) -> None:
    until = time.monotonic() + 100
    checkpoint = root / "checkpoint" / "source"
    while not any(
        batch > after and batch not in numbers(checkpoint / "commits") for batch in numbers(checkpoint / "offsets")
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.005)


def counted(root: Path) -> bool:
    expected = Counter(f"w{n % 50}" for n in range(RECORDS)) + Counter({"all": RECORDS})
    return dict(latest(root / "out").itertuples(index=False)) == expected


@pytest.mark.parametrize(
    ("store", "snapshot"), [("memory", "*.snapshot"), pytest.param("disk", "*.zip", marks=pytest.mark.slow)]
)
def test_state_is_snapshotted_so_that_a_partition_that_moves_reads_few_changes(tmp_path, store, snapshot):
    process = start(tmp_path, store)
    _, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    assert counted(tmp_path)
    written = {path.parent.name for path in (tmp_path / "checkpoint" / "source" / "state" / "0").glob(f"*/{snapshot}")}
    assert written == {"0", "1", "2"}


@pytest.mark.slow
def test_a_driver_killed_in_mid_batch_goes_on_where_it_was(tmp_path):
    process = start(tmp_path)
    wait_for_a_batch_under_way(tmp_path, process, after=3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    process = start(tmp_path)
    _, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    checkpoint = tmp_path / "checkpoint" / "source"
    taken = json.loads((checkpoint / "offsets" / str(max(numbers(checkpoint / "commits")))).read_text().splitlines()[2])[
        "n"
    ]
    assert taken == RECORDS
    assert counted(tmp_path)
