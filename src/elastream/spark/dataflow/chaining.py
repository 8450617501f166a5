"""Builds the walk of a chain for its workers, and the frame that enters it."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from elastream.dataflow.chains import Chain
from elastream.dataflow.compiling import merge_error
from elastream.dataflow.functions import PORT
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Delivery, Edge, Form, Operator
from elastream.spark.dataflow.natives import NativeSteps
from elastream.spark.worker.composition import CompositionCodec
from elastream.spark.worker.exits import Exit
from elastream.spark.worker.runner import Implementation
from elastream.spark.worker.signals import SignalTap
from elastream.spark.worker.walk import ENTRY, Route, Step, Walk, WalkEntry


def build_walk(
    region: Chain,
    segment: str,
    lead: str,
    codec: CompositionCodec,
    arriving: Sequence[pa.Schema],
    schema_of: Callable[[str], pa.Schema],
) -> Walk:
    """Build the walk of `region`, for inlets of schemas `arriving`. Raises DataflowError for unequal merged streams."""
    graph = codec.graph
    ends = [*region.written, *(outlet for outlet in region.outlets if outlet.signal is not None)]
    nodes = [*(object() for _ in region.inlets), *region.steps, *ends]
    number = {step.name: nodes.index(step) for step in region.steps}
    out_of = {edge: nodes.index(outlet) for outlet in ends for edge in outlet.inputs}

    def routes(edges: Sequence[Edge]) -> tuple[Route, ...]:
        ways = [(edge, out_of.get(edge, number.get(edge.target))) for edge in edges]
        return tuple(_route(edge, to, codec) for edge, to in ways if to is not None)  # None for an empty branch

    emitted: dict[Edge, pa.Schema] = {}
    for inlet, schema in zip(region.inlets, arriving, strict=True):
        emitted.update(dict.fromkeys(inlet.feeds, schema))
    steps = []
    for operator in region.steps:
        into = [edge for edge in emitted if edge.target == operator.name]
        same = _merged(graph, operator.name, into, emitted)
        schema = schema_of(operator.returns) if operator.returns else _schema_after(operator, same)
        emitted.update(dict.fromkeys(graph.outputs[operator.name], schema))
        steps.append(
            Step(
                operator.name,
                tuple(Implementation(a.name, a.form, cast(Callable[..., object], a.function)) for a in operator.alternates),
                codec.alternates.get(operator.name),
                codec.widths.get(operator.name),
                schema,
                routes(graph.outputs[operator.name]),
                codec.tables.get(operator.name),
                operator.on_error,
            )
        )
    entries = [
        WalkEntry(inlet.origin, tuple(schema.names), routes(inlet.feeds))
        for inlet, schema in zip(region.inlets, arriving, strict=True)
    ]
    schemas = [_merged(graph, outlet.inputs[0].target, outlet.inputs, emitted) for outlet in ends]
    exits = tuple(Exit(outlet.inputs[0].target, schema) for outlet, schema in zip(region.written, schemas, strict=False))
    taps = tuple(SignalTap(each.name, each.fold, each.column) for outlet in ends if (each := outlet.signal) is not None)
    ordered = any(outlet.ordered for outlet in region.written)
    return Walk(segment, lead, tuple(entries), tuple(steps), exits, taps, ordered)


def _schema_after(operator: Operator, schema: pa.Schema) -> pa.Schema:
    match operator.alternates[0].form:
        case Form.SWITCH:
            return schema.append(pa.field(PORT, pa.string()))
        case Form.PORT:
            return schema.remove(schema.get_field_index(PORT))
    return schema


def _route(edge: Edge, to: int, codec: CompositionCodec) -> Route:
    dealt = edge.delivery is Delivery.ROUND_ROBIN
    if edge.choice is None or (digit := codec.choices.get(edge.choice)) is None:
        return Route(to, dealt)
    return Route(to, dealt, digit, codec.graph.choices[edge.choice].index(edge.target))


def _merged(graph: Graph, name: str, into: Sequence[Edge], emitted: Mapping[Edge, pa.Schema]) -> pa.Schema:
    first, *others = into
    for other in others:
        if not emitted[other].equals(emitted[first]):
            raise merge_error(
                graph, name, (first.source, _columns(emitted[first])), (other.source, _columns(emitted[other]))
            )
    return emitted[first]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def open_exits(walk: Walk, code: int) -> frozenset[int]:
    nodes: list[WalkEntry | Step] = [*walk.entries, *walk.steps]
    reached = set(range(len(walk.entries)))
    for number, node in enumerate(nodes):  # steps are in topological order
        if number in reached:
            reached |= {r.to for r in node.routes if r.choice is None or r.choice.of(code) == r.position}
    return frozenset(number - len(nodes) for number in reached if number >= len(nodes))


def awake(walk: Walk, exit: int) -> Callable[[int], bool]:
    """Return a function that tells by code if records can reach `exit`."""

    @lru_cache(maxsize=256)
    def reaches(code: int) -> bool:
        return exit in open_exits(walk, code)

    return reaches


def inlet_frame(frame: DataFrame, natives: NativeSteps, lane: str | None) -> DataFrame:
    """Apply the native part of an inlet; use a single task if it has a `lane`."""
    rows = natives(frame)
    return rows if lane is None else rows.coalesce(1)


def union_inlets(frames: Sequence[DataFrame], lanes: Sequence[str | None]) -> DataFrame:
    """Return several inlets as one frame, with the inlet's number and a struct of its columns."""
    schemas = [frame.schema for frame in frames]
    tagged: dict[str | int, DataFrame] = {}
    for number, frame in enumerate(frames):
        columns = [F.lit(number).alias(ENTRY)]
        for other, schema in enumerate(schemas):
            empty = F.lit(None).cast(schema)
            columns.append((F.struct(*schema.names) if other == number else empty).alias(f"_{other}"))
        lane, rows = lanes[number] or number, frame.select(*columns)
        tagged[lane] = tagged[lane].unionAll(rows).coalesce(1) if lane in tagged else rows
    return reduce(lambda left, right: left.unionAll(right), tagged.values())
