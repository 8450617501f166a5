"""A query that goes on reads few changes of state: both stores are snapshotted as time goes by."""

import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from test_compile import Run, expected_words, lines, split

from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import parquet
from elastream.spark.dataflow.sinks import latest
from elastream.spark.jvm.session import session_settings
from support.shared_session import forget_jvm

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MAINTAINED = {
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",  # on a slow machine the load ends after two batches
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def spark(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """A session whose JVM looks after its state stores each second."""
    forget_jvm()
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]")
    for name, value in {**session_settings(store), **MAINTAINED}.items():
        builder = builder.config(name, value)
    yield (session := builder.getOrCreate())
    session.stop()
    forget_jvm()


def test_state_snapshots_keep_the_changes_to_read_few(spark, store, tmp_path):
    flow = Dataflow("snapshots")
    lines(flow, 3000, 600).flat_map(split, returns="word string").key_by("word").count().sink(parquet(tmp_path / "out"))
    run = Run.start(spark, flow, tmp_path)
    state = run.directory.checkpoint("source") / "state" / "0"
    kind = {"memory": "*.snapshot", "disk": "*.zip"}[store]
    run.until(lambda: all(list((state / str(partition)).glob(kind)) for partition in range(2)))
    run.finish(3000)
    assert dict(latest(tmp_path / "out").itertuples(index=False)) == expected_words(3000)
