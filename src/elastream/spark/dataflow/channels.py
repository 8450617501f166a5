"""Builds the writer of a segment's query with its sinks and durable edges, and opens Kafka edges.

A single append-only flow uses Spark's own sink; everything else shares one `foreachBatch`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from elastream.dataflow.compiling import edge_topic
from elastream.dataflow.endpoints import (
    Collected,
    DomainSignal,
    FrameSink,
    KafkaTopic,
    Nothing,
    ParquetSink,
    SinkSpec,
    StreamWriter,
)
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Edge, Operator
from elastream.errors import DataflowError, EnvironmentProblem, first_line
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import run_id
from elastream.recording.parts import RETENTION
from elastream.recording.paths import AnyPath, is_address, path_of
from elastream.spark.dataflow.change_log import write_changes
from elastream.spark.dataflow.edges import edge_name
from elastream.spark.dataflow.kafka import kafka_admin, sink_options, source_options
from elastream.spark.dataflow.natives import NativeSteps
from elastream.spark.dataflow.sinks import (
    as_messages,
    as_records,
    begin_results,
    collect_batch,
    forget_collected,
    skip_batch,
    write_batch,
)
from elastream.spark.dataflow.stamps import with_stamps
from elastream.spark.jvm.driver_side import jvm_of
from elastream.spark.worker.composition import BatchComposition, latest_batch
from elastream.spark.worker.exits import EXIT


@dataclass(frozen=True)
class Outflow:
    """Records that leave a chain to a sink, a keyed operator or a durable edge; `awake` tells by code if any pass."""

    target: Operator | Edge
    frame: DataFrame
    exit: int | None = None
    natives: NativeSteps = field(default_factory=NativeSteps)
    awake: Callable[[int], bool] | None = None

    @property
    def name(self) -> str:
        return self.target.target if isinstance(self.target, Edge) else self.target.name

    def part(self, frame: DataFrame, code: int | None = None) -> DataFrame:
        """Return the records of this flow in `frame`; `code` is a batch's."""
        return self.natives(self.rows(frame), code=code)

    def rows(self, frame: DataFrame) -> DataFrame:
        """Return the records of this flow in `frame`, before the native operators."""
        if self.exit is None:
            return frame
        return frame.where(F.col(EXIT) == self.exit).select(f"_{self.exit}.*")


# -- durable edges -----------------------------------------------------------------------------------------------------


def read_edge(spark: SparkSession, graph: Graph, edge: Edge, schema: StructType) -> DataFrame:
    topic = edge_topic(graph, edge)
    _make_topic(spark, topic)
    messages = spark.readStream.format("kafka").options(**source_options(topic)).load()
    messages = with_stamps(messages, "timestamp", edge_name(edge))
    return messages.select(F.from_json(F.col("value").cast("string"), schema).alias("record")).select("record.*")


def _make_topic(spark: SparkSession, topic: KafkaTopic) -> None:
    # With the broker's defaults: a query cannot subscribe to a missing topic.
    jvm = jvm_of(spark)
    unset = jvm.java.util.Optional.empty()
    try:
        with kafka_admin(spark, topic) as admin:
            definition = jvm.org.apache.kafka.clients.admin.NewTopic(topic.topic, unset, unset)
            admin.createTopics(jvm.java.util.Collections.singleton(definition)).all().get()
    except Py4JError as error:
        if "TopicExistsException" not in str(error):
            raise EnvironmentProblem(f"Kafka at {topic.servers} did not create the topic {topic.topic!r}") from error


# -- sinks -------------------------------------------------------------------------------------------------------------


def query_writer(
    graph: Graph,
    name: str,
    flows: Sequence[Outflow],
    key: tuple[str, ...],
    directory: RunDirectory,
    *,
    composition_of: Callable[[int], BatchComposition],
    versions: bool = False,
    retention: float = RETENTION,
) -> DataStreamWriter:
    """Return the writer of the query `name`, which writes `flows` from their common frame. Raises EnvironmentProblem."""
    checkpoint = directory.checkpoint(name)
    fresh = latest_batch(checkpoint) < 0
    grouped: dict[Edge | str, list[Outflow]] = {}
    for flow in flows:
        grouped.setdefault(flow.target if isinstance(flow.target, Edge) else flow.target.name, []).append(flow)
    parts = []
    for group in grouped.values():
        target = group[0].target
        sink = _destination(graph, target, directory)
        if isinstance(target, Operator):
            _begin(sink, key, run_id(directory), fresh)
        if isinstance(target, Edge) and isinstance(sink, ParquetSink):
            parts.append(_edge_part(group, path_of(sink.path), composition_of if versions else lambda _: None))
        else:
            parts.append(_Part(tuple(group), _batch_writer(target, sink, key, retention)))
    frame, mode = flows[0].frame, "update" if key else "append"
    native = isinstance(sink, KafkaTopic) or (isinstance(sink, ParquetSink) and isinstance(target, Operator))
    if own := [(flow, written) for flow in flows if (written := _frame_sink(flow)) is not None]:
        writer = _user_writer(*own[0], flows).outputMode(mode)
    elif len(flows) == 1 and not key and native:
        writer = _native_writer(flows[0].part(frame), target, sink)
    else:
        writer = frame.writeStream.outputMode(mode).foreachBatch(_into_parts(parts, composition_of))
    return writer.queryName(f"{graph.name}.{name}").option("checkpointLocation", str(checkpoint))


def _destination(graph: Graph, target: Operator | Edge, directory: RunDirectory) -> SinkSpec:
    if isinstance(target, Edge):
        if target.durable == "kafka":
            return edge_topic(graph, target)
        return ParquetSink(str(directory.edge(target.source, target.target)))
    assert target.writes is not None  # checked before the start
    return ParquetSink(str(directory.results(target.name))) if target.writes == ParquetSink() else target.writes


def _begin(sink: SinkSpec, key: tuple[str, ...], run: str, fresh: bool) -> None:
    match sink:
        case ParquetSink(path) if not is_address(path) or key:
            begin_results(path_of(path), key, run=run, fresh=fresh)
        case Collected(name) if fresh:
            forget_collected(name)


def _messages(frame: DataFrame, target: Operator | Edge, key: tuple[str, ...]) -> DataFrame:
    return as_records(frame) if isinstance(target, Edge) else as_messages(frame, key)


def _native_writer(frame: DataFrame, target: Operator | Edge, sink: SinkSpec) -> DataStreamWriter:
    if isinstance(sink, ParquetSink):
        return frame.writeStream.outputMode("append").format("parquet").option("path", sink.path)
    assert isinstance(sink, KafkaTopic)
    writer = _messages(frame, target, ()).writeStream.outputMode("append").format("kafka")
    return writer.options(**sink_options(sink))


def _frame_sink(flow: Outflow) -> FrameSink | None:
    writes = flow.target.writes if isinstance(flow.target, Operator) else None
    return writes if isinstance(writes, FrameSink) else None


def _user_writer(flow: Outflow, sink: FrameSink, flows: Sequence[Outflow]) -> DataStreamWriter:
    if len(flows) > 1:
        other = next(each for each in flows if each is not flow)
        raise DataflowError(
            f"sink {flow.name!r} starts from a streaming DataFrame, and its query also writes to {other.name!r}: put a "
            f"durable edge before {flow.name!r}"
        )
    try:
        writer = sink.writer(flow.part(flow.frame))
    except Exception as error:
        raise DataflowError(
            f"the function of sink {flow.name!r} failed: {type(error).__name__}: {first_line(error)}"
        ) from error
    if not isinstance(writer, DataStreamWriter):
        raise DataflowError(
            f"the function of sink {flow.name!r} returned a {type(writer).__name__}: it must return df.writeStream, not "
            "started"
        )
    return writer


BatchWriter = Callable[[DataFrame, int], None]


@dataclass(frozen=True)
class _Part:
    """The writer of one destination; `rest` replaces it in batches without records."""

    flows: tuple[Outflow, ...]
    write: BatchWriter
    rest: Callable[[int], None] = lambda _: None


def _edge_part(
    flows: Sequence[Outflow], records: AnyPath, composition_of: Callable[[int], BatchComposition | None]
) -> _Part:
    # Readers find batches by number, so empty ones are written, too.
    return _Part(
        tuple(flows),
        lambda frame, batch: write_batch(frame, records, batch, composition_of(batch)),
        lambda batch: skip_batch(records, batch, composition_of(batch)),
    )


def _batch_writer(target: Operator | Edge, sink: SinkSpec, key: tuple[str, ...], retention: float) -> BatchWriter:
    match sink:
        case ParquetSink(path):
            if key:
                return lambda frame, batch: write_changes(frame, path_of(path), batch, key, retention)
            return lambda frame, batch: write_batch(frame, path_of(path), batch)
        case Collected(name):
            return lambda frame, batch: collect_batch(frame, name, batch)
        case KafkaTopic():
            options = sink_options(sink)
            return lambda frame, _: _messages(frame, target, key).write.format("kafka").options(**options).save()
        case Nothing() | DomainSignal() | FrameSink():  # nothing to write, or the user's own writer does it
            return lambda _frame, _batch: None
        case StreamWriter():
            return sink.write


# Text of JVM failures in a query that was stopped in the middle of a batch.
STOPPED = re.compile(r"Interrupted(IO)?Exception|ClosedByInterruptException|SPARK_JOB_CANCELLED")


def short_if_stopped(error: Exception) -> Exception:
    """Shorten the error of a stopped query to three lines with the interruption that Spark expects."""
    # Spark searches the traceback (StreamExecution.PROXY_ERROR) with a regular expression that overflows its thread's
    # stack at 1,250 characters; a JVM stack trace has ten times as many.
    call, *lines = str(error).split("\n")
    if not STOPPED.search("\n".join(lines)):
        return error
    summary = f"py4j.protocol.Py4JJavaError: {call[:200]}\n{lines[0][:200]}\n"
    return RuntimeError(
        f"{summary}Caused by: java.lang.InterruptedException: the query was stopped in the middle of a batch"
    )


def _into_parts(parts: Sequence[_Part], composition_of: Callable[[int], BatchComposition]) -> BatchWriter:
    def write(frame: DataFrame, batch: int) -> None:
        code = composition_of(batch).code
        awake = [[flow for flow in part.flows if flow.awake is None or flow.awake(code)] for part in parts]
        # Each part is a separate job; without persist each would execute the walk again.
        several = sum(map(len, awake)) > 1
        whole = frame.persist() if several else frame
        try:
            for part, flows in zip(parts, awake, strict=True):
                if not flows:
                    part.rest(batch)
                    continue
                rows = flows[0].part(whole, code)
                for flow in flows[1:]:
                    rows = rows.unionByName(flow.part(whole, code))
                part.write(rows, batch)
            if not any(awake):  # operators still run, and state needs a version for each batch
                frame.write.format("noop").mode("overwrite").save()
        except Py4JJavaError as error:
            raise short_if_stopped(error) from None
        finally:
            if several:
                whole.unpersist()

    return write
