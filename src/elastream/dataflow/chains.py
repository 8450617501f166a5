"""Chains of stateless operators: one Arrow stage each, with native operators at their borders.

Native operators run in the JVM directly after a source, keyed operator or durable edge that feeds nothing else, and
directly before a sink, keyed operator or durable edge. Between functions they would cost a second transfer into Python, and
are rejected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastream.dataflow.endpoints import DomainSignal
from elastream.dataflow.graph import Graph
from elastream.dataflow.natives import DropDuplicates, Sql, Where
from elastream.dataflow.operators import NATIVE, Delivery, Edge, Form, Kind, Operator
from elastream.dataflow.stages import Segment
from elastream.errors import DataflowError

# Keyed operators that depend on the order of their records.
IN_ORDER = frozenset({Form.WINDOW, Form.JOIN, Form.ZIP})


@dataclass(frozen=True, slots=True)
class Inlet:
    """Entry of records into a chain.

    Attributes:
        natives: Native operators applied before the chain's functions.
    """

    origin: str
    edge: Edge | None
    natives: tuple[Operator, ...]
    feeds: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Outlet:
    """Exit of records from a chain. A join or zip has one outlet per port, in the order of ports.

    Attributes:
        natives: Native operators applied after the chain's functions.
        target: A sink, a keyed operator, or the durable edge that is written.
    """

    inputs: tuple[Edge, ...]
    natives: tuple[Operator, ...]
    target: Operator | Edge
    port: int = 0

    @property
    def name(self) -> str:
        return self.target.target if isinstance(self.target, Edge) else self.target.name

    @property
    def signal(self) -> DomainSignal | None:
        """The signal into which the chain folds the records; None if records leave the chain."""
        writes = self.target.writes if isinstance(self.target, Operator) else None
        return writes if isinstance(writes, DomainSignal) else None

    @property
    def ordered(self) -> bool:
        return isinstance(self.target, Operator) and any(each.form in IN_ORDER for each in self.target.alternates)


@dataclass(frozen=True, slots=True)
class Chain:
    """Stateless part of one stage.

    Attributes:
        steps: Operators with functions, in topological order. Empty if all operators are native.
        outlets: Exits of records. Empty branches have none: their records end in the chain.
    """

    inlets: tuple[Inlet, ...]
    steps: tuple[Operator, ...]
    outlets: tuple[Outlet, ...]

    @property
    def plain(self) -> bool:
        """True if records pass from the inlets to one outlet without Python."""
        feeds = [edge for inlet in self.inlets for edge in inlet.feeds]
        simple = all(edge.choice is None and edge.delivery is not Delivery.ROUND_ROBIN for edge in feeds)
        walks = any(outlet.signal is not None or outlet.ordered for outlet in self.outlets)
        single = len(self.outlets) == 1 and len(self.inlets) == len(feeds)
        return not self.steps and simple and single and not walks

    @property
    def written(self) -> tuple[Outlet, ...]:
        return tuple(outlet for outlet in self.outlets if outlet.signal is None)


def chain_of(graph: Graph, operators: Sequence[str], inputs: Sequence[Edge]) -> Chain:
    """Return the chain of a stage.

    Raises:
        DataflowError: Native operators are between functions.
    """
    members = [graph.operator(name) for name in operators]
    transforms = {o.name: o for o in members if o.kind is Kind.TRANSFORM}
    native = {name for name, o in transforms.items() if _is_native(o)}
    heads = [o.name for o in members if o.kind in (Kind.SOURCE, Kind.KEYED)]
    inlets = [_inlet(graph, head, None, native) for head in heads]
    inlets += [_inlet(graph, edge.source, edge, native) for edge in inputs]
    leading = {o.name for inlet in inlets for o in inlet.natives}
    trailing = _trailing(graph, operators, native - leading)
    for name in native - leading - trailing.keys():
        raise DataflowError(
            f"dataflow {graph.name!r}: {native_in_words(graph.operator(name))} are between functions; they must directly "
            "follow a source or precede a sink, a keyed operator or a durable edge: move them there, or use map_arrow",
            ("operators", name, native_key(graph.operator(name))),
        )
    steps = tuple(o for name, o in transforms.items() if name not in native)
    emitting = [edge for inlet in inlets for edge in inlet.feeds]
    emitting += [edge for step in steps for edge in graph.outputs[step.name]]
    return Chain(tuple(inlets), steps, _outlets(graph, emitting, trailing))


def _inlet(graph: Graph, origin: str, edge: Edge | None, native: set[str]) -> Inlet:
    # Delivery and choice of a durable edge were applied when its records were written.
    feeds = graph.outputs[origin] if edge is None else (Edge(edge.source, edge.target, port=edge.port),)
    natives: list[Operator] = []
    while len(feeds) == 1 and _only_way(graph, feeds[0], native):
        natives.append(graph.operator(feeds[0].target))
        feeds = graph.outputs[feeds[0].target]
    return Inlet(origin, edge, tuple(natives), feeds)


def _trailing(graph: Graph, operators: Sequence[str], native: set[str]) -> dict[str, tuple[Operator, ...]]:
    # Behind a union, each of its branches has the operators: they take records one by one.
    trailing: dict[str, tuple[Operator, ...]] = {}
    for name in reversed(operators):
        if name in native and len(graph.outputs[name]) == 1:
            (way,) = graph.outputs[name]
            if _leaves(graph, way):
                trailing[name] = (graph.operator(name),)
            elif way.target in trailing and way.choice is None:
                trailing[name] = (graph.operator(name), *trailing[way.target])
    return trailing


def _outlets(graph: Graph, emitting: Sequence[Edge], trailing: Mapping[str, tuple[Operator, ...]]) -> tuple[Outlet, ...]:
    outlets: dict[Edge | tuple[str, int], Outlet] = {}
    for edge in emitting:
        natives = trailing.get(edge.target, ()) if edge.durable is None else ()
        way = graph.outputs[natives[-1].name][0] if natives else edge
        if (not natives and not _leaves(graph, edge)) or graph.empty(way.target):
            continue
        key = edge if edge.durable else (edge.target, edge.port)
        before = outlets[key].inputs if key in outlets else ()
        outlets[key] = Outlet((*before, edge), natives, way if way.durable else graph.operator(way.target), way.port)
    for outlet in outlets.values():
        if outlet.signal is not None and outlet.natives:
            raise DataflowError(
                f"dataflow {graph.name!r}: {native_in_words(outlet.natives[0])} are between a function and the signal "
                f"{outlet.signal.name!r}, which is folded where the function runs: use map_arrow",
                ("operators", outlet.natives[0].name, native_key(outlet.natives[0])),
            )
    return tuple(sorted(outlets.values(), key=lambda each: each.port))


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Parts of a segment's query: a chain, then at most one keyed operator and the chain after it."""

    before: Chain
    keyed: Operator | None = None
    behind: Chain | None = None

    @property
    def updates(self) -> tuple[str, ...]:
        """Key by which results update earlier ones; empty if every result is final."""
        return self.keyed.key if self.keyed is not None and not emits_once(self.keyed) else ()


def emits_once(operator: Operator) -> bool:
    """Return True if every result of the keyed `operator` is final: complete windows, and zips."""
    return operator.window is not None or any(alternate.form in IN_ORDER for alternate in operator.alternates)


def plan_segment(graph: Graph, segment: Segment) -> SegmentPlan:
    """Return the plan of the query that runs `segment`. Raises DataflowError for what one query cannot do."""
    keyed = [graph.operator(name) for name in segment.operators if graph.operator(name).kind is Kind.KEYED]
    before = [name for stage in segment.stages if not stage.keyed for name in stage.operators]
    if len(keyed) > 1:
        names = " and ".join(repr(operator.name) for operator in keyed)
        raise DataflowError(
            f"dataflow {graph.name!r}: the keyed operators {names} are in one query, and Spark keeps the state of "
            "one exactly: put a durable edge before all but one of them",
            ("operators", keyed[1].name, "from"),
        )
    _check_duplicates(graph, segment, keyed)
    if not keyed:
        return SegmentPlan(chain_of(graph, before, segment.inputs))
    (operator,), (behind,) = keyed, [stage for stage in segment.stages if stage.keyed]
    late = [edge.target for edge in segment.inputs if edge.target in behind.operators]
    late += [name for name in behind.operators if graph.operator(name).kind is Kind.SOURCE]
    if others := [name for name in late if name != operator.name]:
        raise DataflowError(
            f"dataflow {graph.name!r}: through {others[0]!r}, records go around the keyed operator "
            f"{operator.name!r} and meet its results in one query: put a durable edge behind it",
            ("operators", others[0], "from"),
        )
    first = chain_of(graph, before, segment.inputs)
    ports = {edge.port for edge in graph.inputs[operator.name]}
    written = first.written
    if len(written) != len(ports) or any(outlet.target is not operator for outlet in written):
        other_outputs = [outlet.name for outlet in written if outlet.target is not operator]
        other_outputs += [outlet.natives[0].name for outlet in written if outlet.target is operator and outlet.natives]
        raise DataflowError(
            f"dataflow {graph.name!r}: one query would feed {' and '.join(map(repr, other_outputs))} besides the keyed "
            f"{operator.name!r}: put a durable edge before {operator.name!r}",
            ("operators", operator.name, "from"),
        )
    if rows := [outlet.natives for outlet in written if outlet.ordered and any(map(_is_frame, outlet.natives))]:
        raise DataflowError(
            f"dataflow {graph.name!r}: {native_in_words(rows[0][0])} are between a function and {operator.name!r}, which "
            "needs the order of records: put them before the function, or a durable edge behind them",
            ("operators", rows[0][0].name, native_key(rows[0][0])),
        )
    return SegmentPlan(first, operator, chain_of(graph, behind.operators, ()))


def _check_duplicates(graph: Graph, segment: Segment, keyed: Sequence[Operator]) -> None:
    members = [graph.operator(name) for name in segment.operators]
    dropping = [each for each in members if any(isinstance(a.function, DropDuplicates) for a in each.alternates)]
    if len(both := [*dropping, *keyed]) > 1 and dropping:
        raise DataflowError(
            f"dataflow {graph.name!r}: {both[0].name!r} keeps the duplicates that it drops, and {both[1].name!r} keeps "
            "state in the same query: put a durable edge between them",
            ("operators", both[0].name, "from"),
        )


def _is_frame(operator: Operator) -> bool:
    return any(alternate.form is Form.FRAME for alternate in operator.alternates)


def native_in_words(operator: Operator) -> str:
    columns = any(alternate.form is Form.COLUMNS for alternate in operator.alternates)
    return f"the {'column expressions' if columns else 'DataFrame expressions'} of {operator.name!r}"


def native_key(operator: Operator) -> str:
    keys: Mapping[type, str] = {Where: "where", Sql: "sql"}
    return keys.get(type(operator.alternates[0].function), "select")


def _is_native(operator: Operator) -> bool:
    native = [alternate.form in NATIVE for alternate in operator.alternates]
    if any(native) and not all(native):
        python = operator.alternates[native.index(False)]
        raise DataflowError(
            f"operator {operator.name!r} has alternates in Python ({python.form}) and in the JVM: write all as functions "
            "of records, or all as DataFrame code",
            ("operators", operator.name, "alternates"),
        )
    return any(native)


def _only_way(graph: Graph, edge: Edge, native: set[str]) -> bool:
    plain = edge.choice is None and edge.delivery is not Delivery.ROUND_ROBIN and edge.durable is None
    return plain and edge.target in native and len(graph.inputs[edge.target]) == 1


def _leaves(graph: Graph, edge: Edge) -> bool:
    return edge.durable is not None or graph.operator(edge.target).kind in (Kind.SINK, Kind.KEYED)
