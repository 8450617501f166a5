"""Compiler from a dataflow to running Structured Streaming queries, one per segment.

A segment becomes sources, one fused walk, at most one keyed operator with another fused walk behind it, and sinks.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from elastream.core.composition import Consistency, check_consistency
from elastream.core.observation import Composition
from elastream.dataflow.chains import Chain, Inlet, Outlet, SegmentPlan, emits_once
from elastream.dataflow.compiling import plan_queries
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import NATIVE, Edge, Kind, Operator
from elastream.dataflow.stages import Layout, Segment
from elastream.errors import DataflowError, first_line
from elastream.recording.directory import RunDirectory
from elastream.recording.parts import RETENTION
from elastream.recording.paths import AnyPath
from elastream.spark.dataflow.chaining import awake, build_walk, inlet_frame, union_inlets
from elastream.spark.dataflow.channels import Outflow, query_writer, read_edge
from elastream.spark.dataflow.edges import edge_name, open_edge
from elastream.spark.dataflow.keyed import Wiring, keyed_frame, schema_from, windowed_frame
from elastream.spark.dataflow.natives import NativeSteps
from elastream.spark.dataflow.readers import Steering
from elastream.spark.dataflow.shipping import pickled
from elastream.spark.dataflow.sources import HOLD, files_read, open_source
from elastream.spark.jvm.arrow_schemas import arrow_schema
from elastream.spark.jvm.branches import branches_of
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
from elastream.spark.worker.code import CodeInUse
from elastream.spark.worker.composition import (
    BatchComposition,
    CompositionCodec,
    CompositionRequest,
    latest_batch,
    write_request,
)
from elastream.spark.worker.meter import Meter
from elastream.spark.worker.walk import WorkerPaths, stage_function

log = logging.getLogger(__name__)

# Default seconds between the starts of two batches: an idle query polls its source that often.
SHORTEST_INTERVAL = 0.1

# Spark's error if a Python source has not connected within 10 s, and how often a query is started.
NOT_CONNECTED, SOURCE_ATTEMPTS = "failed to connect back", 3

# Lets every input of a join have its own watermark, the slowest of which counts. By default Spark demands a common one, for
# queries with several stateful operators; ours have one.
EACH_INPUT = {"spark.sql.streaming.statefulOperator.allowMultiple": "false"}


def start_queries(  # noqa: PLR0913
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
    bounded: bool = False,
    codec: CompositionCodec | None = None,
) -> tuple[RunningSegment, ...]:
    """Start one query per segment under `composition`, upstream first. Its version continues that of earlier runs.

    Args:
        state_partitions: Of keyed operators; fixed for the life of a checkpoint.
        batch_seconds: Longest batch of our own sources.
        interval: Least time between the starts of two batches [s].
        consistency: Treatment of records in transit while the composition changes.
        retention: Seconds for which changes of updated results are kept.
        bounded: True: queries that read only sources end once they have read what is there now.
        codec: Encodes compositions, of later versions of the code as well. None: of `layout` alone.

    Raises:
        DataflowError: For what cannot be compiled; no query is left running.
        EnvironmentProblem: For what cannot be written; no query is left running.
    """
    plans = plan_queries(layout)
    check_consistency(layout, consistency)
    codec, meter = codec or CompositionCodec(layout.graph), Meter(spark.sparkContext)
    codec.encode(composition)
    fresh = all(latest_batch(directory.checkpoint(segment.name)) < 0 for segment in layout.segments)
    if not fresh:  # versions only grow along an edge
        composition = replace(composition, version=max(composition.version, newest_version(layout, directory) + 1))
    common = _RunContext(
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
    settings = {"spark.sql.shuffle.partitions": str(state_partitions), **EACH_INPUT}
    before = {name: str(spark.conf.get(name)) for name in settings}
    # A query takes these from the session at its start, and keeps them.
    _set(spark, settings)
    try:
        write_request(
            directory.composition_request,
            CompositionRequest(composition.version, codec.encode(composition), widths_of(layout, composition)),
        )
        for segment in layout.segments:
            each = _start(_Compiler(common, segment), plans[segment.name], edges, interval, bounded and not segment.inputs)
            running.append(each)
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


def _start(
    compiler: "_Compiler", plan: SegmentPlan, edges: dict[Edge, StructType], interval: float, bounded: bool
) -> RunningSegment:
    """Start a query and wait for its sources; repeat if a Python source was too slow to connect."""
    for left in reversed(range(SOURCE_ATTEMPTS)):
        each = compiler.start(plan, edges, interval, bounded)
        _await_sources(each)
        if each.query.isActive or not left or NOT_CONNECTED not in str(each.query.exception()):
            break
        log.warning("a source of %r did not connect in time, the machine is busy: started again", each.segment.name)
    return each


def _await_sources(each: RunningSegment) -> None:
    """Wait until the sources of a query have started, or it has failed."""
    # Spark gives each Python source 10 s to connect; several queries that start together on a busy machine need longer.
    while each.own_source and each.query.isActive and each.query.status["message"].startswith("Initializing"):
        time.sleep(SHORTEST_INTERVAL)


@dataclass(frozen=True, slots=True)
class _RunContext:
    """Context of all segments. `fresh`: no earlier run left files; `single`: stages in one task; `retention` (s)."""

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
    def __init__(self, common: _RunContext, segment: Segment) -> None:
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
        switchable = any(len(each.alternates) > 1 and each.alternates[0].form in NATIVE for each in members)
        self.branches = branches_of(self.spark).of_query(self._code_of) if switchable else None

    def start(self, plan: SegmentPlan, edges: dict[Edge, StructType], interval: float, bounded: bool) -> RunningSegment:
        forget_uncommitted(self.common.directory.left_out(self.segment.name), latest_batch(self.checkpoint, "commits"))
        self._announce()
        frames, part = self._inlet_frames(edges), plan.before
        flows = self._run_walk(part, self.segment.name, [frames[inlet.edge or inlet.origin] for inlet in part.inlets])
        if plan.keyed is not None and plan.behind is not None:
            flows = self._keyed_part(plan.keyed, plan.behind, flows)
        for flow in flows:
            if isinstance(flow.target, Edge):
                edges[flow.target] = flow.part(flow.frame, 0).schema
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
        timed = (
            writer.trigger(availableNow=True)
            if bounded
            else writer.trigger(processingTime=f"{interval * 1e3:.0f} milliseconds")
        )
        query = timed.start()
        return RunningSegment(
            self.segment,
            query,
            self.checkpoint,
            self.inputs,
            self.common.directory.composition_request,
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
            bounded,
        )

    def _code_of(self, batch: int) -> int:
        return ran_under(self.checkpoint, self.inputs, self.own, batch).code

    # -- facts ---------------------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        code, version = self.codec.encode(self.composition), self.composition.version
        for source in self.shaped:
            self._control_of(source).mkdir(parents=True, exist_ok=True)
            (self._control_of(source) / HOLD).touch()
        if not self.own and self.codec.varies:
            log_of(self.inputs).append(latest_batch(self.checkpoint) + 1, version, code)

    def _control_of(self, source: Operator) -> Path:
        return self.control if len(self.sources) == 1 else self.control / source.name

    def _inputs_of(self, source: Operator) -> AnyPath:
        return self.inputs if len(self.sources) == 1 else self.inputs / source.name

    def _records(self, edge: Edge) -> AnyPath:
        return self.common.directory.edge(edge.source, edge.target)

    def _steering(self, name: str) -> Steering:
        requested = self.common.directory.composition_request
        if not self.wave:
            return Steering(name, requested)
        # Composition of an edge without records: in a new run the initial one, in a resumed run unknown.
        before = (
            BatchComposition(self.composition.version, self.codec.encode(self.composition))
            if self.common.fresh
            else BatchComposition(-1)
        )
        edges = {edge_name(edge): self._records(edge) for edge in self.edges}
        return Steering(name, requested, wave=True, checkpoint=self.checkpoint, edges=edges, before=before)

    def _carrier(self) -> WorkerPaths:
        # No record carries it: one more column costs a stage of cheap functions 10 to 20 % of its CPU time.
        lenient = any(self.graph.operator(name).lenient for name in self.segment.operators)
        carrier = WorkerPaths(left_out=self.common.directory.left_out(self.segment.name) if lenient else None)
        if not self.codec.varies:
            return carrier
        version = self.codec.version
        later = None if version is None else CodeInUse(self.common.directory.code_in_use, version)
        carrier = replace(carrier, later=later, tables=self.common.directory.tables_in_use if self.codec.tables else None)
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

    def _keyed_part(self, operator: Operator, part: Chain, flows: Sequence[Outflow]) -> list[Outflow]:
        wiring = Wiring(self.segment.name, self.codec, self._carrier(), self.meter)
        if emits_once(operator):
            return self._run_walk(part, operator.name, [windowed_frame(flows, operator, wiring)])
        (flow,) = flows
        return self._run_walk(part, operator.name, [keyed_frame(flow.part(flow.frame), operator, wiring)])

    def _run_walk(self, part: Chain, lead: str, frames: Sequence[DataFrame]) -> list[Outflow]:
        carrier = self._carrier()
        lanes = [self._lane(inlet) for inlet in part.inlets]
        if part.plain:
            return [self._plain(part, frames, lanes)]
        leading = [self._natives(inlet.natives) for inlet in part.inlets]
        frames = [inlet_frame(*each) for each in zip(frames, leading, lanes, strict=True)]
        leading = [self._natives(inlet.natives) for inlet in part.inlets]
        frames = [inlet_frame(*each) for each in zip(frames, leading, lanes, strict=True)]
        arriving = [self._arrow(frame.schema) for frame in frames]
        walk = build_walk(part, self.segment.name, lead, self.codec, arriving, self._declared)
        shipped = pickled(walk, f"dataflow {self.graph.name!r}")
        into = frames[0] if len(frames) == 1 else union_inlets(frames, lanes)
        function = stage_function(shipped, carrier, self.meter.sink, self.meter.signals)
        out = into.mapInArrow(function, from_arrow_schema(walk.schema))
        if not part.written:  # the walk does its work, so no row leaves it
            return [Outflow(part.outlets[0].target, out, awake=lambda code: False)]
        if len(walk.exits) == 1:
            return [self._single(part.written[0], out, part.written[0].natives, awake(walk, 0))]
        flows = []
        for number, outlet in enumerate(part.written):
            flows.append(Outflow(outlet.target, out, number, self._natives(outlet.natives), awake(walk, number)))
            if not outlet.ordered:
                flows[-1].natives.check_batches(flows[-1].rows(out))
        return flows

    def _natives(self, operators: Sequence[Operator]) -> NativeSteps:
        return NativeSteps(tuple(operators), self.codec, self.branches)

    def _plain(self, part: Chain, frames: Sequence[DataFrame], lanes: Sequence[str | None]) -> Outflow:
        (outlet,) = part.outlets
        if len(frames) == 1 and lanes == [None]:
            return self._single(outlet, frames[0], (*part.inlets[0].natives, *outlet.natives))
        leading = [self._natives(inlet.natives) for inlet in part.inlets]
        united = reduce(DataFrame.unionAll, [inlet_frame(*each) for each in zip(frames, leading, lanes, strict=True)])
        return self._single(outlet, united, outlet.natives)

    def _single(
        self, outlet: Outlet, frame: DataFrame, operators: Sequence[Operator], reached: Callable[[int], bool] | None = None
    ) -> Outflow:
        natives = self._natives(operators)
        if outlet.ordered:  # its rows carry their position, which must stay
            return Outflow(outlet.target, frame, None, natives, reached)
        return Outflow(outlet.target, natives(frame), None, NativeSteps(), reached)

    def _arrow(self, schema: StructType) -> pa.Schema:
        return arrow_schema(schema, self.spark.conf.get("spark.sql.session.timeZone") or "UTC")

    def _declared(self, ddl: str) -> pa.Schema:
        return self._arrow(schema_from(ddl, "what an operator returns"))

    def _lane(self, inlet: Inlet) -> str | None:
        if inlet.edge is None and inlet.origin in (operator.name for operator in self.keyed):
            return None
        entered = inlet.origin if inlet.edge is None else inlet.edge.target
        (stage,) = (stage for stage in self.segment.stages if entered in stage.operators)
        return stage.name if stage.name in self.common.single else None
