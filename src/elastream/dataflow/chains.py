"""Determines which operators of a stage are fused into one walk, and which stay native; refuses what no query can do.

A region is the stateless part of a stage. Column expressions stay native at its borders: after a source, keyed operator or
durable edge that feeds nothing else, or in a chain that ends at a sink, a keyed operator or a durable edge. Between
functions they would need a second transfer into Python, and are refused. Pure functions of the graph: `check` calls them,
and the compiler on Spark builds what they return.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from elastream.dataflow.endpoints import DomainSignal, Nothing
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Delivery, Edge, Form, Kind, Operator
from elastream.dataflow.stages import Segment
from elastream.errors import DataflowError

IN_ORDER = frozenset({Form.WINDOW, Form.JOIN, Form.ZIP})
"""Forms of keyed operators that go by the order of their records."""


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

    target: a sink, a keyed operator, or the durable edge that the records are written to. A join or zip has one outlet for
    each of its ports, in their order.
    """

    inputs: tuple[Edge, ...]
    natives: tuple[Operator, ...]
    target: Operator | Edge
    port: int = 0

    @property
    def name(self) -> str:
        """The operator that the records are for."""
        return self.target.target if isinstance(self.target, Edge) else self.target.name

    @property
    def signal(self) -> DomainSignal | None:
        """The signal that the records are folded into, inside the walk; None: they leave it."""
        writes = self.target.writes if isinstance(self.target, Operator) else None
        return writes if isinstance(writes, DomainSignal) else None

    @property
    def ordered(self) -> bool:
        """Whether the operator that the records are for goes by their order."""
        return isinstance(self.target, Operator) and any(each.form in IN_ORDER for each in self.target.alternates)


@dataclass(frozen=True, slots=True)
class FusedRegion:
    """The stateless part of one stage. steps: operators of its walk, in topological order; empty if all are native.
    No outlet leads to an empty branch: what is sent there ends in the walk.
    """

    inlets: tuple[Inlet, ...]
    steps: tuple[Operator, ...]
    outlets: tuple[Outlet, ...]

    @property
    def plain(self) -> bool:
        """Whether records pass from one inlet to one outlet without a walk."""
        feeds = [edge for inlet in self.inlets for edge in inlet.feeds]
        simple = all(edge.choice is None and edge.delivery is not Delivery.ROUND_ROBIN for edge in feeds)
        walks = any(outlet.signal is not None or outlet.ordered for outlet in self.outlets)
        single = len(self.outlets) == len(self.inlets) == len(feeds) == 1
        return not self.steps and simple and single and not walks

    @property
    def written(self) -> tuple[Outlet, ...]:
        """Outlets by which records leave."""
        return tuple(outlet for outlet in self.outlets if outlet.signal is None)


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
            "a source or precede a sink, a keyed operator or a durable edge: move them there, or use map_arrow",
            ("operators", name, "select"),
        )

    followed = {chain[position].name for chain in trailing.values() for position in range(1, len(chain))}
    steps = tuple(o for name, o in transforms.items() if name not in native)
    emitting = [edge for inlet in inlets for edge in inlet.feeds]
    emitting += [edge for step in steps for edge in graph.outputs[step.name]]
    outlets: dict[Edge | tuple[str, int], Outlet] = {}
    for edge in emitting:
        natives_behind = trailing.get(edge.target, ()) if edge.durable is None and edge.target not in followed else ()
        way = graph.outputs[natives_behind[-1].name][0] if natives_behind else edge
        if (not natives_behind and not _leaves(graph, edge)) or _empty(graph, way.target):
            continue
        key = edge if edge.durable else (edge.target, edge.port)
        before = outlets[key].inputs if key in outlets else ()
        target = way if way.durable else graph.operator(way.target)
        outlets[key] = Outlet((*before, edge), natives_behind, target, way.port)
    for outlet in outlets.values():
        if outlet.signal is not None and outlet.natives:
            raise DataflowError(
                f"dataflow {graph.name!r}: the column expressions of {outlet.natives[0].name!r} are between a function and "
                f"the signal {outlet.signal.name!r}, which is folded where the function runs: use map_arrow",
                ("operators", outlet.natives[0].name, "select"),
            )
    return FusedRegion(tuple(inlets), steps, tuple(sorted(outlets.values(), key=lambda each: each.port)))


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """What the query of a segment is made of: a region, then at most one keyed operator and the region behind it."""

    before: FusedRegion
    keyed: Operator | None = None
    behind: FusedRegion | None = None

    @property
    def updates(self) -> tuple[str, ...]:
        """The key by which its results update earlier ones; empty: each is final."""
        return self.keyed.key if self.keyed is not None and not emits_once(self.keyed) else ()


def emits_once(operator: Operator) -> bool:
    """Whether what the keyed `operator` emits is final: that of complete windows, and of a zip."""
    return operator.window is not None or any(alternate.form in IN_ORDER for alternate in operator.alternates)


def plan_segment(graph: Graph, segment: Segment) -> SegmentPlan:
    """The regions of the query that runs `segment`. Raises DataflowError for what one query cannot do."""
    keyed = [graph.operator(name) for name in segment.operators if graph.operator(name).kind is Kind.KEYED]
    before = [name for stage in segment.stages if not stage.keyed for name in stage.operators]
    if len(keyed) > 1:
        names = " and ".join(repr(operator.name) for operator in keyed)
        raise DataflowError(
            f"dataflow {graph.name!r}: the keyed operators {names} are in one query, and Spark keeps the state of "
            "one exactly: put a durable edge before all but one of them",
            ("operators", keyed[1].name, "from"),
        )
    if not keyed:
        return SegmentPlan(region(graph, before, segment.inputs))
    (operator,), (behind,) = keyed, [stage for stage in segment.stages if stage.keyed]
    late = [edge.target for edge in segment.inputs if edge.target in behind.operators]
    late += [name for name in behind.operators if graph.operator(name).kind is Kind.SOURCE]
    if others := [name for name in late if name != operator.name]:
        raise DataflowError(
            f"dataflow {graph.name!r}: through {others[0]!r}, records go around the keyed operator "
            f"{operator.name!r} and meet its results in one query: put a durable edge behind it",
            ("operators", others[0], "from"),
        )
    first = region(graph, before, segment.inputs)
    ports = {edge.port for edge in graph.inputs[operator.name]}
    written = first.written
    if len(written) != len(ports) or any(outlet.target is not operator for outlet in written):
        besides = [outlet.name for outlet in written if outlet.target is not operator]
        besides += [outlet.natives[0].name for outlet in written if outlet.target is operator and outlet.natives]
        raise DataflowError(
            f"dataflow {graph.name!r}: one query would feed {' and '.join(map(repr, besides))} besides the keyed "
            f"{operator.name!r}: put a durable edge before {operator.name!r}",
            ("operators", operator.name, "from"),
        )
    return SegmentPlan(first, operator, region(graph, behind.operators, ()))


def _is_native(operator: Operator) -> bool:
    forms = {alternate.form for alternate in operator.alternates}
    if Form.COLUMNS not in forms:
        return False
    if len(operator.alternates) > 1:
        raise DataflowError(
            f"operator {operator.name!r} has alternates that are column expressions, which Spark cannot change in a "
            "running query: write them as functions, with map_arrow",
            ("operators", operator.name, "alternates"),
        )
    return True


def _arriving(edge: Edge) -> Edge:
    """A durable edge on its reading side: delivery and choice were applied when the records were written."""
    return Edge(edge.source, edge.target, port=edge.port)


def _only_way(graph: Graph, edge: Edge, native: set[str]) -> bool:
    plain = edge.choice is None and edge.delivery is not Delivery.ROUND_ROBIN and edge.durable is None
    return plain and edge.target in native and len(graph.inputs[edge.target]) == 1


def _empty(graph: Graph, name: str) -> bool:
    return isinstance(graph.operator(name).writes, Nothing)


def _leaves(graph: Graph, edge: Edge) -> bool:
    return edge.durable is not None or graph.operator(edge.target).kind in (Kind.SINK, Kind.KEYED)
