"""Unit tests of dataflows: records in, rows out, on a Spark session of this process.

A source gives all of its records at once, at no load. Windows follow the time stamps in the records, and close when a later
record has passed them.
"""

import atexit
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from elastream.clouds.in_process import InProcess
from elastream.clouds.local.java import DRIVER_OPTIONS
from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import Collected, DomainSignal, Nothing, Records
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Operator
from elastream.dataflow.stages import lay_out
from elastream.documents.user_code import near
from elastream.errors import ElastreamError, InputError
from elastream.recording.directory import RunDirectory
from elastream.spark.dataflow.sinks import forget_collected, tables_collected
from elastream.spark.jvm.borrowed import borrowed, open_in_process
from elastream.spark.jvm.session import SMALL_JVM, open_session, own_modules, session_settings, settings_for
from elastream.spark.queries.compiler import start_queries
from elastream.spark.worker.runner import explain_failure
from elastream.systems import check_system

CORES = 2
STATE_PARTITIONS = 2
BATCH_S = 0.1

Row = Mapping[str, Any]


@dataclass(slots=True)
class NoRecords:
    """Source without a record: a folder without a file."""

    folder: Path
    schema: str

    def read(self, spark: SparkSession, /) -> DataFrame:
        self.folder.mkdir(exist_ok=True)
        return spark.readStream.schema(self.schema).parquet(str(self.folder))


def run_records(
    flow: Dataflow | Graph,
    records: Mapping[str, Iterable[Row]],
    *,
    alternates: Mapping[str, str] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Run `flow` over `records` to the end, and return the rows of each sink.

    Nothing is read from its sources or written to its sinks. The Spark session of the process is used; without one, the
    first call opens one, which later calls share. Rows of a keyed operator are its updates, one per key and
    micro-batch.

    Args:
        flow: The dataflow; its loads are ignored.
        records: Records of each source, by its name, as dicts by column.
        alternates: Alternates that run, by operator. Default: the first of each.

    Returns:
        Rows by sink, as dicts by column.

    Raises:
        ElastreamError: An unknown name, or an operator that fails on a record, which the error names.
    """
    check_system("run_records(...)", also=("darwin",))
    graph = flow.graph if isinstance(flow, Dataflow) else flow
    _check_sources(graph, records)
    composition = _composition(graph, alternates or {})
    settings = {name: value for name, value in session_settings().items() if not name.startswith("spark.hadoop.")}
    environment = {"PYTHONPATH": os.pathsep.join(own_modules())}
    with (
        tempfile.TemporaryDirectory(prefix="elastream-testing-", ignore_cleanup_errors=True) as folder,
        borrowed(_session(), settings, {}, environment) as spark,
    ):
        directory = RunDirectory.create(Path(folder), graph.name)
        graph = _isolated(graph, records, directory.root)
        sinks = {sink.writes.name: sink.name for sink in graph.sinks if isinstance(sink.writes, Collected)}
        try:
            _run(spark, graph, directory, composition)
            return {sinks[name]: table.to_pylist() for name, table in tables_collected(sinks).items()}
        finally:
            for name in sinks:
                forget_collected(name)


def _run(spark: SparkSession, graph: Graph, directory: RunDirectory, composition: Composition) -> None:
    running = start_queries(
        spark,
        lay_out(graph),
        directory,
        composition,
        state_partitions=STATE_PARTITIONS,
        batch_seconds=BATCH_S,
        interval=0.0,
    )
    try:
        for each in running:  # upstream first
            each.query.processAllAvailable()
    except StreamingQueryException as error:
        raise ElastreamError(explain_failure(error)) from error
    finally:
        for each in running:
            each.query.stop()


def _check_sources(graph: Graph, records: Mapping[str, Iterable[Row]]) -> None:
    sources = {source.name: source.reads for source in graph.sources}
    for name in records:
        if name not in sources:
            raise InputError(f"there is no source {name!r}{near(name, sources)}", ("records",))
    for name, reads in sources.items():
        if name not in records:
            raise InputError(f"source {name!r} has no records: name it, if only with an empty list", ("records",))
        if not getattr(reads, "schema", ""):
            raise InputError(f"source {name!r} declares no columns: it can only be simulated", ("records",))


def _isolated(graph: Graph, records: Mapping[str, Iterable[Row]], folder: Path) -> Graph:
    def isolated(operator: Operator) -> Operator:
        if operator.name in records:
            schema, rows = getattr(operator.reads, "schema", ""), tuple(dict(row) for row in records[operator.name])
            reads = Records(rows, schema) if rows else NoRecords(folder / f"none-{operator.name}", schema)
            return replace(operator, reads=reads)
        if operator.writes is not None and not isinstance(operator.writes, DomainSignal | Nothing):
            return replace(operator, writes=Collected(f"{graph.name}/{operator.name}"))
        return operator

    return Graph(graph.name, tuple(map(isolated, graph.operators)), graph.edges)


def _composition(graph: Graph, alternates: Mapping[str, str]) -> Composition:
    default = Composition.default(graph)
    for name, alternate in alternates.items():
        if name not in default.alternates:
            raise InputError(
                f"there is no operator with alternates {name!r}{near(name, default.alternates)}", ("alternates",)
            )
        choices: Sequence[str] = [each.name for each in graph.operator(name).alternates]
        if alternate not in choices:
            raise InputError(f"operator {name!r} has no alternate {alternate!r}{near(alternate, choices)}", ("alternates",))
    return replace(default, alternates={**default.alternates, **alternates})


def _session() -> SparkSession:
    if (spark := open_in_process()) is not None:
        return spark
    folder = Path(tempfile.mkdtemp(prefix="elastream-testing-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    reach = InProcess(CORES).open(folder).terms.endpoint
    assert reach is not None
    settings = settings_for(
        driver_address=reach.driver_address,
        executor_memory=reach.executor_memory,
        executor_cores=CORES,
        state_partitions=STATE_PARTITIONS,
    )
    settings = {**settings, DRIVER_OPTIONS: shlex.join([*SMALL_JVM, *reach.java_options])}
    return open_session(reach.master, "elastream.testing", folder, settings)
