"""Blocks of README and docs that need Spark: dataflows of a page run as queries, Autopilot beside a query that exists."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from test_blocks import FIRST_PAGES, PYTHON, folder, needs_spark, started

from elastream import Autopilot, Dataflow
from elastream.core.observation import Composition
from elastream.dataflow.endpoints import KafkaTopic
from elastream.dataflow.graph import Graph
from elastream.dataflow.stages import lay_out
from elastream.recording.directory import RunDirectory
from elastream.spark.queries.compiler import start_queries
from support.doc_blocks import PAGES, ROOT, blocks, ids, page_of
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

__all__ = ["folder"]  # the fixture

DATAFLOWS = [ROOT / "docs/how-to/dataflow.md", ROOT / "docs/how-to/extend.md"]
"""Pages whose dataflows are run."""


@pytest.fixture
def spark(local_spark: SparkSession) -> SparkSession:
    return local_spark


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Iterator[StreamingQuery]:
    counts = spark.readStream.format("rate").load().groupBy("value").count()
    writer = counts.writeStream.outputMode("update").format("noop")
    counting = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    yield counting
    counting.stop()


@pytest.mark.parametrize("page", [page for page in PAGES if needs_spark(page) and page not in FIRST_PAGES], ids=ids)
def test_blocks_beside_a_query_that_exists_work(page, folder, spark, query):
    carried_out = started(folder)
    for block in (each for each in blocks(page) if each.language in PYTHON):
        carried_out.names |= {"spark": spark, "query": query}
        carried_out.execute(block)
        if isinstance(pilot := carried_out.result, Autopilot):
            pilot.stop()  # it may have ended by itself: this session has one executor
            assert not pilot.running
    assert query.isActive


def has_had_records(query: StreamingQuery) -> bool:
    assert query.exception() is None, query.exception()
    return bool(query.lastProgress and query.lastProgress["numInputRows"])


@pytest.mark.slow
@pytest.mark.parametrize("page", DATAFLOWS, ids=ids)
def test_dataflows_of_a_page_run(page, folder, spark):
    carried_out = started(folder)
    for block in (each for each in blocks(page) if each.language in PYTHON):
        carried_out.execute(block)
    flows = [each for name, each in carried_out.names.items() if isinstance(each, Dataflow) and name != "flow"]
    graphs = [flow.graph for flow in flows]
    graphs = [
        g for g in graphs if not any(isinstance(each, KafkaTopic) for o in g.operators for each in (o.reads, o.writes))
    ]
    assert graphs
    for graph in graphs:
        assert_reads_records(graph, folder, spark)


def assert_reads_records(graph: Graph, folder: Path, spark: SparkSession) -> None:
    """Start the queries of a dataflow, and wait until each has had records."""
    directory = RunDirectory.create(folder / "runs", graph.name)
    running = start_queries(
        spark, lay_out(graph), directory, Composition.default(graph), state_partitions=1, batch_seconds=1.0
    )
    try:
        wait_until(lambda: all(has_had_records(each.query) for each in running))
    finally:
        for each in running:
            each.query.stop()


@pytest.mark.parametrize("page", FIRST_PAGES, ids=ids)
def test_first_page_runs_in_an_empty_folder(page, tmp_path, monkeypatch, spark):
    monkeypatch.chdir(tmp_path)
    pasted = page_of(tmp_path, {})
    for block in (each for each in blocks(page) if each.language in PYTHON):
        pasted.execute(block)
    if "pilot" in pasted.names:
        pasted.names["pilot"].stop()
        pasted.names["query"].stop()
    (graph,) = [each.graph for each in pasted.names.values() if isinstance(each, Dataflow)]
    assert_reads_records(graph, tmp_path, spark)
