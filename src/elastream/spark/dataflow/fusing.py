"""Determines which operators of a stage are fused into one walk, and which stay native; rejects other shapes.

No session is needed. A region is the stateless part of a stage. Column expressions stay native at its borders: after a
source, keyed operator or durable edge that feeds nothing else, or in a chain that ends at a sink, a keyed operator or a
durable edge. Between functions they would need a second transfer into Python, and are rejected.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from elastream.model.errors import DataflowError
from elastream.model.graph import Delivery, Edge, Form, Graph, Kind, Operator
from elastream.spark.worker.composition import CompositionCodec
from elastream.spark.worker.fused import Exit, Route, Step, Walk, WalkEntry
from elastream.spark.worker.runner import Implementation

__all__ = ["FusedRegion", "Inlet", "Outlet", "region", "wire"]


@dataclass(frozen=True, slots=True)
class Inlet:
    """Where records enter a region. origin: a source, a keyed operator, or the upstream operator of the durable `edge`.

    natives: column expressions applied before the walk. feeds: edges into the walk.
    """

    origin: str
    edge: Edge | None
    natives: tuple[Operator, ...]
    feeds: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Outlet:
    """Where records leave a region. inputs: edges out of the walk. natives: column expressions applied after it.

    target: a sink, a keyed operator, or the durable edge that the records are written to.
    """

    inputs: tuple[Edge, ...]
    natives: tuple[Operator, ...]
    target: Operator | Edge


@dataclass(frozen=True, slots=True)
class FusedRegion:
    """The stateless part of one stage. steps: operators of its walk, in topological order; empty if all are native."""

    inlets: tuple[Inlet, ...]
    steps: tuple[Operator, ...]
    outlets: tuple[Outlet, ...]

    @property
    def plain(self) -> bool:
        """Whether records pass from one inlet to one outlet without a walk."""
        feeds = [edge for inlet in self.inlets for edge in inlet.feeds]
        simple = all(edge.choice is None and edge.delivery is not Delivery.ROUND_ROBIN for edge in feeds)
        return not self.steps and simple and len(self.outlets) == len(self.inlets) == len(feeds) == 1


def region(graph: Graph, operators: Sequence[str], inputs: Sequence[Edge]) -> FusedRegion:
    """The region of one stage with these operators. inputs: the durable edges into it.

    Raises DataflowError for column expressions between functions, or with alternates.
    """
    members = [graph.operator(name) for name in operators]
    transforms = {o.name: o for o in members if o.kind is Kind.TRANSFORM}
    native = {name for name, o in transforms.items() if _is_native(o)}
    heads = [o for o in members if o.kind in (Kind.SOURCE, Kind.KEYED)]

    inlets = []
    for origin, edge in [*((head.name, None) for head in heads), *((edge.source, edge) for edge in inputs)]:
        feeds = (_arriving(edge),) if edge is not None else graph.outputs[origin]
        natives: list[Operator] = []
        while len(feeds) == 1 and _only_way(graph, feeds[0], native):
            natives.append(transforms[feeds[0].target])
            feeds = graph.outputs[feeds[0].target]
        inlets.append(Inlet(origin, edge, tuple(natives), feeds))
    taken = {o.name for inlet in inlets for o in inlet.natives}

    trailing: dict[str, tuple[Operator, ...]] = {}
    for name in reversed(operators):
        if name in native - taken and len(graph.outputs[name]) == 1:
            (way,) = graph.outputs[name]
            if _leaves(graph, way):
                trailing[name] = (transforms[name],)
            elif way.target in trailing and len(graph.inputs[way.target]) == 1 and way.choice is None:
                trailing[name] = (transforms[name], *trailing[way.target])
    for name in native - taken - trailing.keys():
        raise DataflowError(
            f"dataflow {graph.name!r}: the column expressions of {name!r} are between functions; they must directly follow "
            "a source or precede a sink, a keyed operator or a durable edge: move them there, or use map_arrow"
        )

    followed = {chain[position].name for chain in trailing.values() for position in range(1, len(chain))}
    steps = tuple(o for name, o in transforms.items() if name not in native)
    emitting = [edge for inlet in inlets for edge in inlet.feeds]
    emitting += [edge for step in steps for edge in graph.outputs[step.name]]
    outlets: dict[Edge | str, Outlet] = {}
    for edge in emitting:
        natives_behind = trailing.get(edge.target, ()) if edge.durable is None and edge.target not in followed else ()
        way = graph.outputs[natives_behind[-1].name][0] if natives_behind else edge
        if not natives_behind and not _leaves(graph, edge):
            continue
        key = edge if edge.durable else edge.target
        before = outlets[key].inputs if key in outlets else ()
        outlets[key] = Outlet((*before, edge), natives_behind, way if way.durable else graph.operator(way.target))
    return FusedRegion(tuple(inlets), steps, tuple(outlets.values()))


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
    operator without a function or `returns`, or one that merges streams of different columns.
    """
    graph = codec.graph
    nodes = [*(object() for _ in region.inlets), *region.steps, *region.outlets]
    number = {step.name: nodes.index(step) for step in region.steps}
    out_of = {edge: nodes.index(outlet) for outlet in region.outlets for edge in outlet.inputs}

    def routes(edges: Sequence[Edge]) -> tuple[Route, ...]:
        return tuple(_route(edge, out_of.get(edge, number.get(edge.target, -1)), codec) for edge in edges)

    emitted: dict[Edge, pa.Schema] = {}
    for inlet, schema in zip(region.inlets, arriving, strict=True):
        emitted.update(dict.fromkeys(inlet.feeds, schema))
    steps = []
    for operator in region.steps:
        into = [edge for edge in emitted if edge.target == operator.name]
        same = _merged(graph, operator.name, into, emitted)
        schema = _emits(operator, same, schema_of)
        emitted.update(dict.fromkeys(graph.outputs[operator.name], schema))
        steps.append(
            Step(
                operator.name,
                tuple(Implementation(a.name, a.form, _function(operator, a.function)) for a in operator.alternates),
                codec.alternates.get(operator.name),
                codec.widths.get(operator.name),
                schema,
                routes(graph.outputs[operator.name]),
            )
        )
    entries = [
        WalkEntry(inlet.origin, tuple(schema.names), routes(inlet.feeds))
        for inlet, schema in zip(region.inlets, arriving, strict=True)
    ]
    exits = [
        Exit(name := outlet.inputs[0].target, _merged(graph, name, outlet.inputs, emitted)) for outlet in region.outlets
    ]
    return Walk(segment, lead, tuple(entries), tuple(steps), tuple(exits))


def _route(edge: Edge, to: int, codec: CompositionCodec) -> Route:
    dealt = edge.delivery is Delivery.ROUND_ROBIN
    if edge.choice is None or (digit := codec.choices.get(edge.choice)) is None:
        return Route(to, dealt)
    return Route(to, dealt, digit, codec.graph.choices[edge.choice].index(edge.target))


def _emits(operator: Operator, arriving: pa.Schema, schema_of: Callable[[str], pa.Schema]) -> pa.Schema:
    if operator.returns:
        return schema_of(operator.returns)
    if any(alternate.form is not Form.FILTER for alternate in operator.alternates):
        raise DataflowError(f"operator {operator.name!r} needs `returns`, the schema of its output, such as 'word string'")
    return arriving


def _function(operator: Operator, function: object) -> Callable[..., object]:
    if not callable(function):
        raise DataflowError(f"operator {operator.name!r} has no function to run on Spark; it can only be simulated")
    return function


def _merged(graph: Graph, name: str, into: Sequence[Edge], emitted: Mapping[Edge, pa.Schema]) -> pa.Schema:
    first, *others = into
    for other in others:
        if not emitted[other].equals(emitted[first]):
            raise DataflowError(
                f"dataflow {graph.name!r}: {name!r} merges streams with different columns: {first.source!r} has "
                f"{_columns(emitted[first])}, {other.source!r} has {_columns(emitted[other])}"
            )
    return emitted[first]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _is_native(operator: Operator) -> bool:
    forms = {alternate.form for alternate in operator.alternates}
    if Form.COLUMNS not in forms:
        return False
    if len(operator.alternates) > 1:
        raise DataflowError(
            f"operator {operator.name!r} has alternates that are column expressions; only functions can have alternates"
        )
    return True


def _arriving(edge: Edge) -> Edge:
    """A durable edge on its reading side: delivery and choice were applied when the records were written."""
    return Edge(edge.source, edge.target)


def _only_way(graph: Graph, edge: Edge, native: set[str]) -> bool:
    plain = edge.choice is None and edge.delivery is not Delivery.ROUND_ROBIN and edge.durable is None
    return plain and edge.target in native and len(graph.inputs[edge.target]) == 1


def _leaves(graph: Graph, edge: Edge) -> bool:
    return edge.durable is not None or graph.operator(edge.target).kind in (Kind.SINK, Kind.KEYED)
