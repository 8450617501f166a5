"""Wires a fused region for its workers: edges become routes between numbered nodes, operators get digits and schemas.

No session is needed. What is fused is decided in `dataflow.chains`, and what cannot be compiled refused in
`dataflow.compiling`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pyarrow as pa

from elastream.dataflow.chains import FusedRegion
from elastream.dataflow.compiling import merge_refused
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Delivery, Edge
from elastream.spark.worker.composition import CompositionCodec
from elastream.spark.worker.fused import Route, Step, Walk, WalkEntry
from elastream.spark.worker.leaving import Exit
from elastream.spark.worker.runner import Implementation
from elastream.spark.worker.signals import SignalTap


def wire(
    region: FusedRegion,
    segment: str,
    lead: str,
    codec: CompositionCodec,
    arriving: Sequence[pa.Schema],
    schema_of: Callable[[str], pa.Schema],
) -> Walk:
    """Build the walk of `region`: edges become routes between numbered nodes, operators get their digits and schemas.

    arriving: schemas of the inlets after their native part. schema_of: parses Spark DDL. Raises DataflowError for an
    operator that merges streams whose columns have different types: those of SQL expressions are known only now.
    """
    graph = codec.graph
    ends = [*region.written, *(outlet for outlet in region.outlets if outlet.signal is not None)]
    nodes = [*(object() for _ in region.inlets), *region.steps, *ends]
    number = {step.name: nodes.index(step) for step in region.steps}
    out_of = {edge: nodes.index(outlet) for outlet in ends for edge in outlet.inputs}

    def routes(edges: Sequence[Edge]) -> tuple[Route, ...]:
        ways = [(edge, out_of.get(edge, number.get(edge.target))) for edge in edges]
        return tuple(_route(edge, to, codec) for edge, to in ways if to is not None)  # none leads into an empty branch

    emitted: dict[Edge, pa.Schema] = {}
    for inlet, schema in zip(region.inlets, arriving, strict=True):
        emitted.update(dict.fromkeys(inlet.feeds, schema))
    steps = []
    for operator in region.steps:
        into = [edge for edge in emitted if edge.target == operator.name]
        same = _merged(graph, operator.name, into, emitted)
        schema = schema_of(operator.returns) if operator.returns else same
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


def _route(edge: Edge, to: int, codec: CompositionCodec) -> Route:
    dealt = edge.delivery is Delivery.ROUND_ROBIN
    if edge.choice is None or (digit := codec.choices.get(edge.choice)) is None:
        return Route(to, dealt)
    return Route(to, dealt, digit, codec.graph.choices[edge.choice].index(edge.target))


def _merged(graph: Graph, name: str, into: Sequence[Edge], emitted: Mapping[Edge, pa.Schema]) -> pa.Schema:
    first, *others = into
    for other in others:
        if not emitted[other].equals(emitted[first]):
            raise merge_refused(
                graph, name, (first.source, _columns(emitted[first])), (other.source, _columns(emitted[other]))
            )
    return emitted[first]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
