"""Turns a dataflow into running Structured Streaming queries, one a segment.

A segment becomes: sources, one fused walk, at most one keyed operator, one fused walk behind it, sinks. What a walk holds
is wired in `regions`, what it does is in `fused`. Where and on what the queries run is left to the plant; their composition
is switched in `switching`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from elastream.core.composition import Consistency, check_consistency
from elastream.core.observation import Composition
from elastream.dataflow.chains import Chain, Inlet, SegmentPlan, emits_once
from elastream.dataflow.compiling import plan_queries
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Edge, Kind, Operator
from elastream.dataflow.stages import Layout, Segment
from elastream.errors import DataflowError, first_line
from elastream.recording.directory import RunDirectory
from elastream.recording.parts import RETENTION
from elastream.recording.places import Place
from elastream.spark.dataflow.chaining import awake, build_walk, inlet_frame, union_inlets
from elastream.spark.dataflow.channels import Outflow, query_writer, read_edge
from elastream.spark.dataflow.edges import edge_name, open_edge
from elastream.spark.dataflow.keyed import Wiring, keyed_frame, schema_from, windowed_frame
from elastream.spark.dataflow.readers import Steering
from elastream.spark.dataflow.shipping import pickled
from elastream.spark.dataflow.sources import HOLD, files_read, open_source
from elastream.spark.jvm.arrow_schemas import arrow_schema
from elastream.spark.queries.segments import (
    SHUFFLED_EACH,
    RunningSegment,
    log_of,
    newest_version,
    ran_under,
    stage_behind,
    widths_of,
)
from elastream.spark.telemetry.left_out import forget_uncommitted
from elastream.spark.worker.composition import (
    BatchComposition,
    CompositionCodec,
    CompositionRequest,
    latest_batch,
    write_request,
)
from elastream.spark.worker.meter import Meter
from elastream.spark.worker.walk import WorkerPaths, stage_function

SHORTEST_INTERVAL = 0.1
"""Seconds between the starts of two batches by default: an idle query polls its source that often."""

EACH_INPUT = {"spark.sql.streaming.statefulOperator.allowMultiple": "false"}
"""Lets every input of a join have a watermark of its own, and Spark go by the slowest: by default it demands one for all,
for queries with several operators with state, and ours have one."""


def start_queries(
    spark: SparkSession,
    layout: Layout,
    directory: RunDirectory,
    composition: Composition,
    *,
    state_partitions: int,
    batch_seconds: float,
    interval: float = SHORTEST_INTERVAL,
    consistency: Consistency = Consistency.BATCH,
    retention: float = RETENTION,
) -> tuple[RunningSegment, ...]:
    """Start one query a segment under `composition`, upstream ones first. Its version goes on from that of earlier runs.

    state_partitions: of keyed operators; fixed for the life of a checkpoint. batch_seconds: what a batch of our own sources
    should last at most. interval: seconds between the starts of two batches, at least: merely having a batch costs each
    state partition's task, however few its records. consistency: what records meet that are under way while the composition
    changes. retention: seconds for which the changes of updated results are kept as they came. Raises DataflowError for
    what cannot be compiled, EnvironmentProblem for what cannot be written; nothing is left running then.
    """
    plans = plan_queries(layout)
    check_consistency(layout, consistency)
    codec, meter = CompositionCodec(layout.graph), Meter(spark.sparkContext)
    codec.encode(composition)
    fresh = all(latest_batch(directory.checkpoint(segment.name)) < 0 for segment in layout.segments)
    if not fresh:  # versions only grow along an edge
        composition = replace(composition, version=max(composition.version, newest_version(layout, directory) + 1))
    common = _Common(
        spark,
        layout.graph,
        directory,
        codec,
        meter,
        composition,
        batch_seconds,
        consistency,
        fresh,
        layout.single,
        retention,
    )
    edges: dict[Edge, StructType] = {}
    running: list[RunningSegment] = []
    wanted = {"spark.sql.shuffle.partitions": str(state_partitions), **EACH_INPUT}
    before = {name: str(spark.conf.get(name)) for name in wanted}
    # A query takes these from the session at its start, and keeps them.
    _set(spark, wanted)
    try:
        write_request(
            directory.wanted,
            CompositionRequest(composition.version, codec.encode(composition), widths_of(layout, composition)),
        )
        for segment in layout.segments:
            compiler = _Compiler(common, segment)
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
        _set(spark, before)
    return tuple(running)


def _set(spark: SparkSession, settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        spark.conf.set(name, value)


def _await_sources(each: RunningSegment) -> None:
    """Return when the sources of a query that has just started are there, or it has failed.

    Each source of ours is planned in a Python process of its own, to which Spark gives 10 s to say hello: those of several
    queries starting all at once on a busy machine take longer than that, and one alone does not.
    """
    while each.own_source and each.query.isActive and each.query.status["message"].startswith("Initializing"):
        time.sleep(SHORTEST_INTERVAL)


@dataclass(frozen=True, slots=True)
class _Common:
    """What all segments of a run have in common.

    fresh: whether no earlier run has left anything in its folder. single: names of stages that run in one task. retention:
    seconds.
    """

    spark: SparkSession
    graph: Graph
    directory: RunDirectory
    codec: CompositionCodec
    meter: Meter
    composition: Composition
    batch_seconds: float
    consistency: Consistency
    fresh: bool
    single: frozenset[str]
    retention: float


class _Compiler:
    """Compiles one segment. `start` is all that others call."""

    def __init__(self, common: _Common, segment: Segment) -> None:
        self.common, self.segment = common, segment
        self.spark, self.graph, self.codec, self.meter = common.spark, common.graph, common.codec, common.meter
        self.composition, self.wave = common.composition, common.consistency is Consistency.WAVE
        directory, graph = common.directory, common.graph
        self.checkpoint, self.control = directory.checkpoint(segment.name), directory.control(segment.name)
        self.inputs = directory.inputs(segment.name)
        members = [graph.operator(name) for name in segment.operators]
        self.sources = [operator for operator in members if operator.kind is Kind.SOURCE]
        self.keyed = [operator for operator in members if operator.kind is Kind.KEYED]
        self.shaped = [operator for operator in self.sources if operator.load is not None]
        self.edges = [edge for edge in segment.inputs if edge.durable == "parquet"]
        self.own = bool(self.shaped or self.edges)

    def start(self, plan: SegmentPlan, edges: dict[Edge, StructType], interval: float) -> RunningSegment:
        """Start the query of `plan`; `edges` are the columns of durable edges, added to as they are compiled."""
        forget_uncommitted(self.common.directory.left_out(self.segment.name), latest_batch(self.checkpoint, "commits"))
        self._announce()
        frames, part = self._inlet_frames(edges), plan.before
        flows = self._walked(part, self.segment.name, [frames[inlet.edge or inlet.origin] for inlet in part.inlets])
        if plan.keyed is not None and plan.behind is not None:
            flows = self._behind(plan.keyed, plan.behind, flows)
        for flow in flows:
            if isinstance(flow.target, Edge):
                edges[flow.target] = flow.part(flow.frame).schema
        writer = query_writer(
            self.graph,
            self.segment.name,
            flows,
            plan.updates,
            self.common.directory,
            composition_of=partial(ran_under, self.checkpoint, self.inputs, self.own),
            versions=self.wave,
            retention=self.common.retention,
        )
        query = writer.trigger(processingTime=f"{interval * 1e3:.0f} milliseconds").start()
        return RunningSegment(
            self.segment,
            query,
            self.checkpoint,
            self.inputs,
            self.common.directory.wanted,
            self.own,
            self.composition,
            tuple(operator.name for operator in self.keyed),
            self.meter,
            self.codec,
            {operator.name: self._control_of(operator) for operator in self.shaped},
            {edge: self._records(edge) for edge in self.edges},
            tuple(inlet.edge or inlet.origin for inlet in part.inlets),
            {o.name: place for o in self.sources if (place := files_read(o, self._inputs_of(o))) is not None},
            interval,
        )

    # -- what holds ----------------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        """Hold the loads, and say which composition the first batch runs under where no source of ours does."""
        code, version = self.codec.encode(self.composition), self.composition.version
        for source in self.shaped:
            self._control_of(source).mkdir(parents=True, exist_ok=True)
            (self._control_of(source) / HOLD).touch()
        if not self.own and self.codec.size > 1:
            log_of(self.inputs).append(latest_batch(self.checkpoint) + 1, version, code)

    def _control_of(self, source: Operator) -> Path:
        """The control folder of a source: the segment's, or one of its own where there are several."""
        return self.control if len(self.sources) == 1 else self.control / source.name

    def _inputs_of(self, source: Operator) -> Place:
        """What tasks read of a source, likewise."""
        return self.inputs if len(self.sources) == 1 else self.inputs / source.name

    def _records(self, edge: Edge) -> Place:
        return self.common.directory.edge(edge.source, edge.target)

    def _steering(self, name: str) -> Steering:
        """How the reader of the source or edge called `name` learns what is wanted; `start_queries` has said it for all."""
        wanted = self.common.directory.wanted
        if not self.wave:
            return Steering(name, wanted)
        # An edge that nothing was written to: of a new run, it is as all began; of one that goes on, it may hold anything.
        before = (
            BatchComposition(self.composition.version, self.codec.encode(self.composition))
            if self.common.fresh
            else BatchComposition(-1)
        )
        edges = {edge_name(edge): self._records(edge) for edge in self.edges}
        return Steering(name, wanted, wave=True, checkpoint=self.checkpoint, edges=edges, before=before)

    def _carrier(self) -> WorkerPaths:
        """How the code reaches a stage: by the offset log, else by the log of the batches; a task reads it once.

        No record carries it: a column more costs a stage of cheap functions a tenth or two of its CPU time.
        """
        lenient = any(self.graph.operator(name).lenient for name in self.segment.operators)
        carrier = WorkerPaths(left_out=self.common.directory.left_out(self.segment.name) if lenient else None)
        if self.codec.size == 1:
            return carrier
        carrier = replace(carrier, tables=self.common.directory.tables_in_use if self.codec.tables else None)
        if self.own:
            return replace(carrier, offsets=self.checkpoint)
        return replace(carrier, log=log_of(self.inputs).directory)

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
            schema,
            self._steering(edge_name(edge)),
            records=self._records(edge),
            rows_each=SHUFFLED_EACH if stage_behind(self.segment, edge).keyed else 1,
            batch_seconds=self.common.batch_seconds,
            checkpoint=self.checkpoint,
        )

    def _open(self, source: Operator) -> DataFrame:
        return open_source(
            self.spark,
            source,
            control=self._control_of(source),
            inputs=self._inputs_of(source),
            steering=self._steering(source.name),
            batch_seconds=self.common.batch_seconds,
            checkpoint=self.checkpoint,
        )

    def _behind(self, operator: Operator, part: Chain, flows: Sequence[Outflow]) -> list[Outflow]:
        wiring = Wiring(self.segment.name, self.codec, self._carrier(), self.meter)
        if emits_once(operator):
            return self._walked(part, operator.name, [windowed_frame(flows, operator, wiring)])
        (flow,) = flows
        return self._walked(part, operator.name, [keyed_frame(flow.part(flow.frame), operator, wiring)])

    def _walked(self, part: Chain, lead: str, frames: Sequence[DataFrame]) -> list[Outflow]:
        """The flows out of a region whose inlets are `frames`."""
        carrier = self._carrier()
        lanes = [self._lane(inlet) for inlet in part.inlets]
        frames = [inlet_frame(*each) for each in zip(frames, part.inlets, lanes, strict=True)]
        if part.plain:
            (outlet,) = part.outlets
            return [Outflow(outlet.target, frames[0], None, outlet.natives)]
        arriving = [self._arrow(frame.schema) for frame in frames]
        walk = build_walk(part, self.segment.name, lead, self.codec, arriving, self._declared)
        shipped = pickled(walk, f"dataflow {self.graph.name!r}")
        into = frames[0] if len(frames) == 1 else union_inlets(frames, lanes)
        function = stage_function(shipped, carrier, self.meter.sink, self.meter.signals)
        out = into.mapInArrow(function, from_arrow_schema(walk.schema))
        if not part.written:  # what it does is done in the walk: no row leaves it
            return [Outflow(part.outlets[0].target, out, awake=lambda code: False)]
        several = len(walk.exits) > 1
        return [
            Outflow(outlet.target, out, number if several else None, outlet.natives, awake(walk, number))
            for number, outlet in enumerate(part.written)
        ]

    def _arrow(self, schema: StructType) -> pa.Schema:
        """`schema` as Spark gives it to Python: times are in the session's time zone."""
        return arrow_schema(schema, self.spark.conf.get("spark.sql.session.timeZone") or "UTC")

    def _declared(self, ddl: str) -> pa.Schema:
        return self._arrow(schema_from(ddl, "what an operator returns"))

    def _lane(self, inlet: Inlet) -> str | None:
        """The stage that the records of an inlet enter, where it runs in one task; behind a shuffle that cannot be set."""
        if inlet.edge is None and inlet.origin in (operator.name for operator in self.keyed):
            return None
        entered = inlet.origin if inlet.edge is None else inlet.edge.target
        (stage,) = (stage for stage in self.segment.stages if entered in stage.operators)
        return stage.name if stage.name in self.common.single else None
