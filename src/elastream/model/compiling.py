"""What Spark cannot run of a dataflow, known from the dataflow alone: `check` says so, and a run before it starts anything.

The compiler on Spark relies on it: what is refused here is not refused there again. Left to Spark are the types of SQL
expressions; names of columns, and types that operators declare, are followed through the whole graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastream.model.endpoints import DomainSignal, Files, Fold, KafkaTopic, ParquetSink, Records, Simulated
from elastream.model.errors import DataflowError
from elastream.model.graph import Edge, Form, Graph, Kind, Operator
from elastream.model.grouping import check_column, grouped
from elastream.model.key_table import KEYS
from elastream.model.regions import FusedRegion, Inlet, SegmentPlan, plan_segment
from elastream.model.rows import refuse_rows
from elastream.model.schema import Columns, columns_of, in_words
from elastream.model.sql import check_expressions
from elastream.model.stages import Layout

__all__ = ["Columns", "edge_topic", "merge_refused", "refuse_durable_within", "refuse_uncompilable", "simulated_only"]


def simulated_only(graph: Graph) -> DataflowError | None:
    """Why the dataflow can only be simulated: an end, or an operator, without anything to run; None where it can run."""
    for operator in graph.operators:
        at = ("operators", operator.name)
        if operator.kind is Kind.SOURCE and (operator.reads is None or isinstance(operator.reads, Simulated)):
            return DataflowError(f"source {operator.name!r} reads nothing; it can only be simulated", (*at, "source"))
        if operator.kind is Kind.SINK and operator.writes is None:
            return DataflowError(f"sink {operator.name!r} writes nothing; it can only be simulated", (*at, "sink"))
        if any(alternate.function is None and alternate.form is not Form.ZIP for alternate in operator.alternates):
            return DataflowError(
                f"operator {operator.name!r} has no function to run on Spark; it can only be simulated", at
            )
    return None


def refuse_durable_within(layout: Layout) -> None:
    """Raise DataflowError where a query would read a durable edge that it writes itself: neither plant can run that."""
    for edge in layout.graph.edges:
        if edge.durable is not None and layout.stage_of[edge.source].segment == layout.stage_of[edge.target].segment:
            raise DataflowError(
                f"dataflow {layout.graph.name!r}: the edge {edge.source} -> {edge.target} is durable, but records also get "
                "from one side of it to the other over edges that are not, so that one query would have both: make each of "
                "them durable",
                ("operators", edge.target, "from"),
            )


def refuse_uncompilable(layout: Layout) -> Mapping[str, SegmentPlan]:
    """The plan of each segment's query, by its name. Raises DataflowError for the first thing that Spark cannot run."""
    graph = layout.graph
    if (simulated := simulated_only(graph)) is not None:
        raise simulated
    refuse_durable_within(layout)
    for edge in graph.edges:
        if edge.durable == "kafka":
            edge_topic(graph, edge)
    _refuse_circles(layout)
    _refuse_shared_sinks(graph)
    plans = {segment.name: plan_segment(graph, segment) for segment in layout.segments}
    edges: dict[Edge, Columns] = {}
    for plan in plans.values():
        _follow(graph, plan, edges)
    return plans


def edge_topic(graph: Graph, edge: Edge) -> KafkaTopic:
    """Topic of a Kafka edge, on the servers of the dataflow's first Kafka source or sink. Raises DataflowError."""
    for operator in graph.operators:
        for known in (operator.reads, operator.writes):
            if isinstance(known, KafkaTopic):
                return KafkaTopic(f"{graph.name}-{edge.source}-{edge.target}".replace(" ", "-"), known.servers, {})
    raise DataflowError(
        f"dataflow {graph.name!r}: the edge {edge.source} -> {edge.target} is durable as kafka, but the dataflow has no "
        "Kafka source or sink that names the servers",
        ("operators", edge.target, "from"),
    )


def merge_refused(graph: Graph, name: str, first: tuple[str, str], other: tuple[str, str]) -> DataflowError:
    """That `name` merges streams of different columns. first, other: an operator upstream and its columns in words."""
    return DataflowError(
        f"dataflow {graph.name!r}: {name!r} merges streams with different columns: {first[0]!r} has {first[1]}, "
        f"{other[0]!r} has {other[1]}",
        ("operators", name, "from"),
    )


def _refuse_circles(layout: Layout) -> None:
    """Two queries that each read a durable edge of the other would wait for each other's columns."""
    segment_of = {name: stage.segment for name, stage in layout.stage_of.items()}
    before = {segment.name: {segment_of[edge.source] for edge in segment.inputs} for segment in layout.segments}
    while free := [name for name, inputs in before.items() if not inputs & before.keys()]:
        for name in free:
            del before[name]
    for segment in layout.segments:
        for edge in segment.inputs:
            if segment.name in before and segment_of[edge.source] in before:
                raise DataflowError(
                    f"dataflow {layout.graph.name!r}: the edge {edge.source} -> {edge.target} is durable, and its two "
                    "queries each read what the other writes: make the edges durable that lead back, too",
                    ("operators", edge.target, "from"),
                )


def _refuse_shared_sinks(graph: Graph) -> None:
    """Two sinks in one folder would take each other's files for their own."""
    seen: dict[str, str] = {}
    for operator in graph.sinks:
        if isinstance(operator.writes, ParquetSink) and operator.writes.path:
            if operator.writes.path in seen:
                raise DataflowError(
                    f"dataflow {graph.name!r}: the sinks {seen[operator.writes.path]!r} and {operator.name!r} write to one "
                    f"folder, {operator.writes.path}: give each its own, or merge the streams before one sink",
                    ("operators", operator.name, "sink"),
                )
            seen[operator.writes.path] = operator.name


# -- columns -----------------------------------------------------------------------------------------------------------


def _follow(graph: Graph, plan: SegmentPlan, edges: dict[Edge, Columns]) -> None:
    """Follow columns through the query `plan`; those of the durable edges that it writes are added to `edges`."""
    arriving = [_read(graph, inlet, edges) for inlet in plan.before.inlets]
    leaving = _walked(graph, plan.before, arriving)
    if plan.keyed is not None and plan.behind is not None:
        into = [columns for flow, columns in leaving if flow.target is plan.keyed]
        leaving = _walked(graph, plan.behind, [grouped(plan.keyed, into)])
    merged: dict[str, _Leaving] = {}
    for flow, columns in leaving:
        if isinstance(flow.target, Edge):
            edges[flow.target] = columns
            continue
        before = merged.setdefault(flow.target.name, _Leaving(flow.by, columns))
        if set(before.columns) != set(columns):  # they are united by name
            first, other = (before.by, in_words(before.columns)), (flow.by, in_words(columns))
            raise merge_refused(graph, flow.target.name, first, other)


@dataclass(frozen=True, slots=True)
class _Flow:
    """Records that leave a region. by: the operator that emits them."""

    target: Operator | Edge
    by: str


@dataclass(frozen=True, slots=True)
class _Leaving:
    by: str
    columns: Columns


def _read(graph: Graph, inlet: Inlet, edges: Mapping[Edge, Columns]) -> Columns:
    """Columns of an inlet before its native part; those of a keyed operator are given to `_walked` instead."""
    if inlet.edge is not None:
        return edges[inlet.edge]
    operator = graph.operator(inlet.origin)
    field = "schema" if isinstance(operator.reads, Files | Records) else ""
    at = ("operators", operator.name, "source", *filter(None, (field,)))
    ddl = operator.reads.schema if operator.reads is not None else operator.returns
    columns = columns_of(ddl, f"the schema of source {operator.name!r}", at)
    if isinstance(operator.reads, Records):
        refuse_rows(operator.name, operator.reads.rows, columns, (*at[:-1], "records"))
    return columns


def _walked(graph: Graph, region: FusedRegion, arriving: Sequence[Columns]) -> list[tuple[_Flow, Columns]]:
    """The flows out of a region, with their columns; arriving: columns of each inlet."""
    emitted: dict[Edge, Columns] = {}
    for inlet, columns in zip(region.inlets, arriving, strict=True):
        selected = _selected(inlet.natives, columns)
        emitted.update(dict.fromkeys(inlet.feeds, selected))
    for operator in region.steps:
        into = [edge for edge in emitted if edge.target == operator.name]
        before = _merged(graph, into, emitted)
        for column in operator.selects:
            check_column(operator.name, before, column, KEYS, f"operator {operator.name!r} selects by", "select_by")
        emitted.update(dict.fromkeys(graph.outputs[operator.name], _emits(operator, before)))
    leaving = []
    for outlet in region.outlets:
        columns = _selected(outlet.natives, _merged(graph, outlet.inputs, emitted))
        if isinstance(outlet.target, Operator) and isinstance(outlet.target.writes, DomainSignal):
            _check_signal(outlet.target.name, outlet.target.writes, columns)
        by = outlet.natives[-1].name if outlet.natives else outlet.inputs[0].source
        leaving.append((_Flow(outlet.target, by), columns))
    return leaving


NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def _check_signal(name: str, signal: DomainSignal, columns: Columns) -> None:
    kinds = ("boolean",) if signal.fold in (Fold.ANY, Fold.ALL) else NUMBERS
    if signal.fold is not Fold.COUNT:
        check_column(name, columns, signal.column, kinds, f"the signal {signal.name!r} is of", "signal")


def _selected(natives: Sequence[Operator], columns: Columns) -> Columns:
    for operator in natives:
        expressions = operator.alternates[0].function
        assert isinstance(expressions, Mapping)
        check_expressions(operator.name, expressions, columns)
        columns = dict.fromkeys(expressions)
    return columns


def _merged(graph: Graph, into: Sequence[Edge], emitted: Mapping[Edge, Columns]) -> Columns:
    first, *others = into
    for other in others:
        a, b = emitted[first], emitted[other]
        if list(a) != list(b) or any(x != y for x, y in zip(a.values(), b.values(), strict=True) if x and y):
            raise merge_refused(graph, first.target, (first.source, in_words(a)), (other.source, in_words(b)))
    return emitted[first]


def _emits(operator: Operator, arriving: Columns) -> Columns:
    at = ("operators", operator.name)
    if operator.returns:
        return columns_of(operator.returns, f"what operator {operator.name!r} returns", (*at, "returns"))
    if any(alternate.form is not Form.FILTER for alternate in operator.alternates):
        raise DataflowError(
            f"operator {operator.name!r} needs `returns`, the schema of its output, such as 'word string'", at
        )
    return arriving
