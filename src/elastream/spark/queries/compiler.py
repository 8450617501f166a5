"""Turns a dataflow into running Structured Streaming queries, one a segment, and switches their composition live.

A segment becomes: sources, one fused walk, at most one keyed operator, one fused walk behind it, sinks. What a walk holds
is wired in `regions`, what it does is in `fused`. Where and on what the queries run is left to the plant.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from elastream.model.compiling import refuse_uncompilable
from elastream.model.errors import DataflowError, first_line
from elastream.model.graph import Edge, Graph, Kind, Operator
from elastream.model.observation import Composition
from elastream.model.regions import FusedRegion, Inlet, SegmentPlan
from elastream.model.stages import Layout, Segment, Stage
from elastream.recording.directory import RunDirectory
from elastream.spark.dataflow.channels import Outflow, read_edge, selected, start_writing
from elastream.spark.dataflow.edges import Channel, edge_name, open_edge
from elastream.spark.dataflow.fusing import wire
from elastream.spark.dataflow.keyed import keyed_frame, schema_from
from elastream.spark.dataflow.shipping import pickled
from elastream.spark.dataflow.sources import HOLD, open_source, place_of
from elastream.spark.worker.composition import (
    COLUMN,
    CompositionCodec,
    CompositionLog,
    latest_batch,
    write_wanted,
)
from elastream.spark.worker.fused import ENTRY, Carrier, stage_function, tagged_schema
from elastream.spark.worker.meter import Meter
from elastream.spark.worker.runner import explain_failure

__all__ = ["RunningSegment", "explain_failure", "led_by_edges", "scalable_operators", "start_queries", "switch"]

SHORTEST_INTERVAL = 0.1
"""Seconds between the starts of two batches by default: an idle query polls its source that often."""

SHUFFLERS, SHUFFLED_EACH = 4, 1000
"""Tasks that read a durable edge whose records only pass to a shuffle, at most, and records that are worth one of them: a
task costs about 16 ms."""


@dataclass(frozen=True)
class RunningSegment:
    """A segment and the query that runs it.

    checkpoint, control: its folders. own_source: whether a source or an edge that it reads is ours, so that its offsets
    carry the composition. keyed: its keyed operators, by name. meter: counts of all segments together. sources: control
    folders of its sources of ours, by name. edges: the durable edges of files that it reads. reads: sources, by name, and
    durable edges, in the order in which the query reads them. places: what sources without a load read, if local files.
    interval: seconds from one batch to the next, at least.
    """

    segment: Segment
    query: StreamingQuery
    checkpoint: Path
    control: Path
    own_source: bool
    keyed: tuple[str, ...]
    meter: Meter
    codec: CompositionCodec
    sources: Mapping[str, Path]
    edges: Mapping[Edge, Channel]
    reads: tuple[str | Edge, ...]
    places: Mapping[str, str]
    interval: float


def start_queries(
    spark: SparkSession,
    layout: Layout,
    directory: RunDirectory,
    composition: Composition,
    *,
    state_partitions: int,
    batch_seconds: float,
    interval: float = SHORTEST_INTERVAL,
) -> tuple[RunningSegment, ...]:
    """Start one query a segment under `composition`, upstream ones first.

    state_partitions: of keyed operators; fixed for the life of a checkpoint. batch_seconds: what a batch of our own sources
    should last at most. interval: seconds between the starts of two batches, at least: merely having a batch costs each
    state partition's task, however few its records. Raises DataflowError for what cannot be compiled,
    EnvironmentProblem for what cannot be written; nothing is left running then.
    """
    plans = refuse_uncompilable(layout)
    codec, meter = CompositionCodec(layout.graph), Meter(spark.sparkContext)
    codec.encode(composition)
    edges: dict[Edge, StructType] = {}
    running: list[RunningSegment] = []
    before = str(spark.conf.get("spark.sql.shuffle.partitions"))
    # A query takes the width of its shuffles from the session at its start, and keeps it.
    spark.conf.set("spark.sql.shuffle.partitions", str(state_partitions))
    try:
        for segment in layout.segments:
            compiler = _Compiler(spark, layout.graph, segment, directory, codec, meter, composition, batch_seconds)
            running.append(compiler.start(plans[segment.name], edges, interval))
            _await_sources(running[-1])
        for each in running:
            for control in each.sources.values():
                (control / HOLD).unlink()  # all queries are there: their loads begin together
    except BaseException as error:
        for each in running:
            each.query.stop()
        if isinstance(error, AnalysisException | ParseException):
            raise DataflowError(f"dataflow {layout.graph.name!r}: {first_line(error)}") from error
        raise
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    return tuple(running)


def _await_sources(each: RunningSegment) -> None:
    """Return when the sources of a query that has just started are there, or it has failed.

    Each source of ours is planned in a Python process of its own, to which Spark gives 10 s to say hello: those of several
    queries starting all at once on a busy machine take longer than that, and one alone does not.
    """
    while each.own_source and each.query.isActive and each.query.status["message"].startswith("Initializing"):
        time.sleep(SHORTEST_INTERVAL)


def switch(running: Sequence[RunningSegment], composition: Composition) -> None:
    """Let `composition` hold from one of the next batches on, in every segment; nothing is restarted.

    Segments with a source of ours or an edge of files take it with their next batch; others two batches after the newest
    one planned.
    """
    for each in running:
        code = each.codec.encode(composition)
        for source, control in each.sources.items():
            width = composition.parallelism.get(source, 1)
            write_wanted(control, composition.version, code, width)
        for edge, channel in each.edges.items():
            write_wanted(channel.control, composition.version, code, _edge_width(each.segment, edge, composition))
        if each.own_source or each.codec.size == 1:
            continue
        if _log(each.control).code(latest_batch(each.checkpoint) + 2) != code:
            _log(each.control).switch(each.checkpoint, composition.version, code)


def scalable_operators(layout: Layout) -> frozenset[str]:
    """Operators whose parallelism can change while the queries run: sources with a load, what `led_by_edges` names, and
    operators that wait."""
    graph = layout.graph
    return frozenset([*graph.loads, *led_by_edges(layout), *(o.name for o in graph.operators if o.waits)])


def led_by_edges(layout: Layout) -> tuple[str, ...]:
    """Operators that lead a stage which reads durable edges of files and no source: its width is theirs, live."""
    inputs = {edge.target: edge.durable for edge in layout.graph.edges if edge.durable is not None}
    heads = {operator.name for operator in layout.graph.sources}
    return tuple(
        stage.operators[0]
        for stage in layout.stages
        if not stage.keyed and not heads & set(stage.operators) and inputs.get(stage.operators[0]) == "parquet"
    )


def _edge_width(segment: Segment, edge: Edge, composition: Composition) -> int:
    """Tasks that read a batch of `edge`, at most: the parallelism of the stage that it leads to."""
    stage = _stage_behind(segment, edge)
    return composition.parallelism.get(stage.operators[0], SHUFFLERS if stage.keyed else 1)


def _stage_behind(segment: Segment, edge: Edge) -> Stage:
    (stage,) = (stage for stage in segment.stages if edge.target in stage.operators)
    return stage


def _log(control: Path) -> CompositionLog:
    return CompositionLog(control / "composition")


class _Compiler:
    """Compiles one segment. `start` is all that others call."""

    def __init__(
        self,
        spark: SparkSession,
        graph: Graph,
        segment: Segment,
        directory: RunDirectory,
        codec: CompositionCodec,
        meter: Meter,
        composition: Composition,
        batch_seconds: float,
    ) -> None:
        self.spark, self.graph, self.segment, self.directory = spark, graph, segment, directory
        self.codec, self.meter, self.composition, self.batch_seconds = codec, meter, composition, batch_seconds
        self.checkpoint, self.control = directory.checkpoint(segment.name), directory.control(segment.name)
        members = [graph.operator(name) for name in segment.operators]
        self.sources = [operator for operator in members if operator.kind is Kind.SOURCE]
        self.keyed = [operator for operator in members if operator.kind is Kind.KEYED]
        self.shaped = [operator for operator in self.sources if operator.load is not None]
        self.edges = [edge for edge in segment.inputs if edge.durable == "parquet"]
        self.own = bool(self.shaped or self.edges)

    def start(self, plan: SegmentPlan, edges: dict[Edge, StructType], interval: float) -> RunningSegment:
        """Start the query of `plan`; `edges` are the columns of durable edges, added to as they are compiled."""
        self._announce()
        frames, part = self._inlet_frames(edges), plan.before
        flows = self._walked(part, self.segment.name, [frames[inlet.edge or inlet.origin] for inlet in part.inlets])
        if plan.keyed is not None and plan.behind is not None:
            flows = self._behind(plan.keyed, plan.behind, flows)
        for flow in flows:
            if isinstance(flow.target, Edge):
                edges[flow.target] = flow.part(flow.frame).schema
        key = self.keyed[0].key if self.keyed else ()
        query = start_writing(self.graph, self.segment.name, flows, key, self.directory, interval)
        return RunningSegment(
            self.segment,
            query,
            self.checkpoint,
            self.control,
            self.own,
            tuple(operator.name for operator in self.keyed),
            self.meter,
            self.codec,
            {operator.name: self._control_of(operator) for operator in self.shaped},
            {edge: self._channel(edge) for edge in self.edges},
            tuple(inlet.edge or inlet.origin for inlet in part.inlets),
            {o.name: place for o in self.sources if (place := place_of(o, self._control_of(o))) is not None},
            interval,
        )

    # -- what holds ----------------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        """Say which composition the first batch runs under, before there is a query."""
        code, version = self.codec.encode(self.composition), self.composition.version
        for source in self.shaped:
            write_wanted(self._control_of(source), version, code, self._width(source))
            (self._control_of(source) / HOLD).touch()
        for edge in self.edges:
            width = _edge_width(self.segment, edge, self.composition)
            write_wanted(self._channel(edge).control, version, code, width)
        if not self.own and self.codec.size > 1:
            _log(self.control).append(latest_batch(self.checkpoint) + 1, version, code)

    def _control_of(self, source: Operator) -> Path:
        """The control folder of a source: the segment's, or one of its own where there are several."""
        return self.control if len(self.sources) == 1 else self.control / source.name

    def _channel(self, edge: Edge) -> Channel:
        return Channel(self.directory.edge(edge.source, edge.target), self.control / edge_name(edge))

    def _width(self, source: Operator) -> int:
        return self.composition.parallelism.get(source.name, 1)

    def _carrier(self, stamped: bool) -> Carrier:
        """How the code reaches a stage: on the records of a single inlet of ours, else through the log of the batches."""
        if self.codec.size == 1:
            return Carrier()
        if stamped:
            return Carrier(stamped=True)
        return Carrier(offsets=self.checkpoint) if self.own else Carrier(log=_log(self.control).directory)

    # -- frames --------------------------------------------------------------------------------------------------------

    def _inlet_frames(self, edges: Mapping[Edge, StructType]) -> dict[str | Edge, DataFrame]:
        frames: dict[str | Edge, DataFrame] = {source.name: self._open(source) for source in self.sources}
        for edge in self.segment.inputs:
            frames[edge] = self._open_edge(edge, edges[edge])
        return frames

    def _open_edge(self, edge: Edge, schema: StructType) -> DataFrame:
        if edge.durable == "kafka":
            return read_edge(self.spark, self.graph, edge, schema)
        return open_edge(
            self.spark,
            edge_name(edge),
            schema,
            channel=self._channel(edge),
            partitions=_edge_width(self.segment, edge, self.composition),
            rows_each=SHUFFLED_EACH if _stage_behind(self.segment, edge).keyed else 1,
            batch_seconds=self.batch_seconds,
            checkpoint=self.checkpoint,
        )

    def _open(self, source: Operator) -> DataFrame:
        return open_source(
            self.spark,
            source,
            control=self._control_of(source),
            partitions=self._width(source),
            batch_seconds=self.batch_seconds,
            checkpoint=self.checkpoint,
        )

    def _behind(self, operator: Operator, part: FusedRegion, flows: Sequence[Outflow]) -> list[Outflow]:
        (flow,) = flows
        counted = keyed_frame(
            flow.part(flow.frame), operator, self.segment.name, self.codec, self._carrier(False), self.meter
        )
        return self._walked(part, operator.name, [counted])

    def _walked(self, part: FusedRegion, lead: str, frames: Sequence[DataFrame]) -> list[Outflow]:
        """The flows out of a region whose inlets are `frames`."""
        stamped = len(frames) == 1 and COLUMN in frames[0].columns
        carrier = self._carrier(stamped)
        frames = [_native(frame, inlet, carrier.stamped) for frame, inlet in zip(frames, part.inlets, strict=True)]
        if part.plain:
            (outlet,) = part.outlets
            return [Outflow(outlet.target, frames[0].drop(COLUMN), None, outlet.natives)]
        arriving = [to_arrow_schema(frame.drop(COLUMN).schema) for frame in frames]
        walk = wire(part, self.segment.name, lead, self.codec, arriving, _schema_of)
        shipped = pickled(walk, f"dataflow {self.graph.name!r}")
        into = frames[0] if len(frames) == 1 else _together(frames)
        several = len(walk.exits) > 1
        schema = tagged_schema(walk.exits) if several else walk.exits[0].schema
        out = into.mapInArrow(stage_function(shipped, carrier, self.meter.sink), from_arrow_schema(schema))
        return [
            Outflow(outlet.target, out, number if several else None, outlet.natives)
            for number, outlet in enumerate(part.outlets)
        ]


def _native(frame: DataFrame, inlet: Inlet, keep: bool) -> DataFrame:
    """`frame` after the native part of an inlet; with `keep`, the composition stays on the records."""
    return selected(frame if keep else frame.drop(COLUMN), inlet.natives, [COLUMN] if keep else [])


def _together(frames: Sequence[DataFrame]) -> DataFrame:
    """Several inlets as one frame: rows say which they came by, and carry their columns in a struct of that inlet's."""
    schemas = [frame.drop(COLUMN).schema for frame in frames]
    tagged = []
    for number, frame in enumerate(frames):
        columns = [F.lit(number).alias(ENTRY)]
        for other, schema in enumerate(schemas):
            empty = F.lit(None).cast(schema)
            columns.append((F.struct(*schema.names) if other == number else empty).alias(f"_{other}"))
        tagged.append(frame.select(*columns))
    result = tagged[0]
    for frame in tagged[1:]:
        result = result.unionAll(frame)
    return result


def _schema_of(ddl: str) -> pa.Schema:
    return to_arrow_schema(schema_from(ddl, "what an operator returns"))
