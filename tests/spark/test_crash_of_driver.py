"""What a query leaves in its checkpoint is enough to go on from, and does not grow for ever.

These are the tests that the quick ways of writing checkpoints (`session.session_settings`) have to pass, for both state
stores: a driver killed in mid-batch and started again counts every record once, and state is snapshotted as time goes by.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from elastream.spark.dataflow.sinks import latest
from support.waiting import ended

pytestmark = pytest.mark.spark

RECORDS = 6000
PROGRAM = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
from elastream import Dataflow
from elastream.io import parquet, records
from elastream.loads import constant
from elastream.core.observation import Composition
from elastream.dataflow.stages import lay_out
from elastream.spark.queries.compiler import start_queries
from elastream.spark.jvm.session import session_settings
from elastream.recording.directory import RunDirectory

root, store, snapshots = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
maintained = {
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",  # on a slow machine the load ends after two batches
}
for name, value in {**session_settings(store), **maintained}.items():
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
    all_taken = progress and '"n": 6000' in str(progress["sources"][0]["endOffset"]).replace("'", '"')
    if all_taken and all(list(root.glob(snapshot)) for snapshot in snapshots):
        break
    if not each.query.isActive:
        raise SystemExit(str(each.query.exception()))
    time.sleep(0.1)
each.query.stop()
"""


def start(root: Path, store: str = "memory", snapshots: Sequence[str] = ()) -> subprocess.Popen[str]:
    """The program, until all records are taken and there are files like each of `snapshots`."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(root), store, *snapshots],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def numbers(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.glob("*") if path.name.isdigit()}


def counted(root: Path) -> bool:
    expected = Counter(f"w{n % 50}" for n in range(RECORDS)) + Counter({"all": RECORDS})
    return dict(latest(root / "out").itertuples(index=False)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("store", "snapshot"), [("memory", "*.snapshot"), ("disk", "*.zip")])
def test_state_snapshots_keep_the_changes_to_read_few(tmp_path, store, snapshot):
    # That there is one of each partition ends the program: it waits for the store's maintenance.
    process = start(tmp_path, store, [f"checkpoint/source/state/0/{partition}/{snapshot}" for partition in range(3)])
    _, err = ended(process, progress=lambda: numbers(tmp_path / "checkpoint" / "source" / "commits"))
    assert process.returncode == 0, err
    assert counted(tmp_path)
