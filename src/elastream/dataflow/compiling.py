"""Checks for what Spark cannot run of a dataflow, without a JVM.

They follow column names and declared types through the graph; types of SQL expressions are left to Spark.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from elastream.dataflow.chains import Chain, Inlet, SegmentPlan, plan_segment
from elastream.dataflow.endpoints import DomainSignal, Files, Fold, FrameSource, KafkaTopic, ParquetSink, Records, Simulated
from elastream.dataflow.functions import PORT, Loop
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KEYS
from elastream.dataflow.natives import Native, Select, Where, WithColumns
from elastream.dataflow.operators import Edge, Form, Kind, Operator
from elastream.dataflow.schema import Columns, OpenColumns, check_rows, columns_of, in_words, kind_of
from elastream.dataflow.stages import Layout
from elastream.dataflow.windows import Pairs, WindowKind
from elastream.errors import DataflowError, about

# Words that time functions take in place of a column: `timestampdiff(HOUR, a, b)`.
_UNITS = {
    part + plural
    for part in ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")
    for plural in ("", "s")
}


def check_expressions(
    operator: str,
    expressions: Mapping[str, Any],
    columns: Iterable[str],
    *,
    key: Iterable[str] | None = None,
    field: str = "",
) -> None:
    """Raise DataflowError for an expression that cannot be parsed or names a missing column.

    Args:
        key: Key of an aggregation; its expressions must aggregate all other columns. None: expressions of single records,
            which must not aggregate.
    """
    available, keys = {name.lower() for name in columns}, {name.lower() for name in key or ()}
    closed = not isinstance(columns, OpenColumns)
    for name, text in expressions.items():
        if not isinstance(text, str):
            continue  # a Column, which only Spark reads
        at = ("operators", operator, *((field,) if field else ("select" if key is None else "aggregate", name)))
        where = f"operator {operator!r}: {text!r}, the expression of {name!r},"
        used, aggregates, unsure, wrong = _parse(text)
        if wrong:
            raise DataflowError(f"{where} cannot be read: {wrong}", at)
        if missing := [
            column for column in used if closed and column.lower() not in available and not column.startswith("_metadata")
        ]:
            has = ", ".join(columns)
            raise DataflowError(
                f"{where} names {missing[0]!r}, a column that its records do not have (they have: {has})", at
            )
        if key is None and aggregates:
            raise DataflowError(f"{where} aggregates records: use 'key_by' with 'aggregate' for it", at)
        if key is not None and not aggregates and not unsure and any(column.lower() not in keys for column in used):
            raise DataflowError(f"{where} aggregates nothing: write it as 'max({text})', say, or add it to the key", at)


@lru_cache(maxsize=1024)
def _parse(text: str) -> tuple[tuple[str, ...], bool, bool, str]:
    """Return the columns used, True for an aggregate, True for an unknown function, and the parse error or ""."""
    import sqlglot
    from sqlglot import exp

    try:
        tree: Any = sqlglot.parse_one(text, dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        return (), False, False, _plain(error)
    if not isinstance(tree, exp.Expression) or isinstance(tree, exp.Command | exp.DDL | exp.DML):
        return (), False, False, "it is no expression"
    if tree.find(exp.Query):
        return (), False, True, ""  # a query in it has columns of its own
    windowed = {id(node) for window in tree.find_all(exp.Window) for node in window.walk()}
    aggregates = any(id(node) not in windowed for node in tree.find_all(exp.AggFunc))
    used = [_first(column) for column in tree.find_all(exp.Column)]
    used = [column for column in used if column.lower() not in _UNITS]
    return tuple(dict.fromkeys(used)), aggregates, tree.find(exp.Anonymous, exp.Any) is not None, ""


def _first(column: Any) -> str:
    return str(column.parts[0].name)


def _plain(error: Exception) -> str:
    text = re.sub(r"\x1b\[\d*m", "", str(error)).strip().splitlines()
    sentence = re.sub(r"<class '[\w.]*\.(\w+)'>", r"\1", text[0]) if text else "it is empty"
    sentence = re.sub(r"\.? Line \d+, Col: (\d+)\.?", r" at character \1", sentence)
    return sentence[:1].lower() + sentence[1:]


TIMES = ("timestamp", "timestamp_ntz")
# Columns that an aggregate in a time window emits after its key.
BOUNDS = {"window_start": "timestamp", "window_end": "timestamp"}


def grouped(operator: Operator, arriving: Sequence[Columns]) -> Columns:
    """Return the columns that the keyed `operator` emits, from those that arrive at each port."""
    at = ("operators", operator.name)
    forms = {alternate.form for alternate in operator.alternates}
    for side, columns in enumerate(arriving):
        _check_arriving(operator, _side(side, len(arriving)), columns, forms)
    if forms == {Form.ZIP}:
        return _zip_columns(operator, arriving)
    if forms == {Form.JOIN}:
        _check_joined(operator, arriving)
        pairs = operator.alternates[0].function
        if isinstance(pairs, Pairs) and not operator.returns:
            if any(isinstance(columns, OpenColumns) for columns in arriving):
                return OpenColumns()
            with about(*at, "join"):
                return pairs.columns(*arriving)
    if forms == {Form.STATE}:
        _check_states(operator)
    if forms <= {Form.STATE, Form.WINDOW, Form.JOIN} and len(forms) == 1:
        return columns_of(operator.returns, f"what operator {operator.name!r} returns", (*at, "returns"))
    if forms != {Form.AGGREGATE}:
        raise DataflowError(f"keyed operator {operator.name!r} cannot run as {' and '.join(sorted(forms))}", at)
    if len(operator.alternates) > 1:
        raise DataflowError(
            f"operator {operator.name!r} has alternates that are native aggregates, which Spark cannot change in a running "
            "query: write them as functions with state, with apply",
            (*at, "alternates"),
        )
    return _aggregated(operator, arriving[0])


def check_column(operator: str, columns: Columns, name: str, kinds: Sequence[str], what: str, *field: str) -> None:
    """Raise DataflowError unless `columns` has `name` with a type in `kinds`. Unknown types and empty `kinds` pass."""
    at = ("operators", operator, *field)
    if name not in columns:
        raise DataflowError(f"{what} {name!r}, a column that its records do not have (they have: {', '.join(columns)})", at)
    if kinds and (kind := kind_of(columns[name])) is not None and kind.partition("(")[0].partition(" ")[0] not in kinds:
        raise DataflowError(f"{what} {name!r}, which is {kind} and must be {_one_of(kinds)}", at)


def _one_of(kinds: Sequence[str]) -> str:
    return f"{', '.join(kinds[:-1])} or {kinds[-1]}" if len(kinds) > 1 else kinds[0]


def _side(number: int, sides: int) -> str:
    return "" if sides == 1 else f" ({('left', 'right')[number]})" if sides == 2 else f" (input {number + 1})"


def _check_arriving(operator: Operator, side: str, columns: Columns, forms: set[Form]) -> None:
    name, window, timeout = operator.name, operator.window, operator.timeout
    field = "on" if Form.JOIN in forms else "group_by" if window is not None else "key_by"
    for column in operator.key:
        check_column(name, columns, column, (), f"operator {name!r}{side} is keyed by", field)
    for column in operator.selects:
        check_column(name, columns, column, KEYS, f"operator {name!r} selects by", "select_by")
    if window is not None and window.by:
        kinds = TIMES if window.kind is WindowKind.TIME else ()
        check_column(name, columns, window.by, kinds, f"the window of operator {name!r}{side} goes by", "window", "by")
    if window is not None and window.landmark is not None:
        what = f"the window of operator {name!r}{side} ends at"
        check_column(name, columns, window.landmark, ("boolean",), what, "window", "landmark")
    if timeout is not None and timeout.by:
        check_column(name, columns, timeout.by, TIMES, f"the timeout of operator {name!r}{side} goes by", "timeout", "by")


def _check_joined(operator: Operator, arriving: Sequence[Columns]) -> None:
    left, right = arriving
    for column in operator.key:
        a, b = kind_of(left[column]), kind_of(right[column])
        if a and b and a != b:
            raise DataflowError(
                f"operator {operator.name!r} joins on {column!r}, which is {a} on the left and {b} on the right: give both "
                "one type before it",
                ("operators", operator.name, "on"),
            )


def _zip_columns(operator: Operator, arriving: Sequence[Columns]) -> Columns:
    if any(isinstance(columns, OpenColumns) for columns in arriving):
        return OpenColumns()
    together: dict[str, str | None] = {}
    for columns in arriving:
        if twice := [name for name in columns if name in together]:
            raise DataflowError(
                f"two inputs of {operator.name!r} have a column {twice[0]!r}: rename one before it, with select or map",
                ("operators", operator.name, "zip"),
            )
        together.update(columns)
    return together


def _check_states(operator: Operator) -> None:
    at = ("operators", operator.name)
    for alternate in operator.alternates if operator.own_state else operator.alternates[:1]:
        of = f"{alternate.name!r} of operator {operator.name!r}" if operator.own_state else f"operator {operator.name!r}"
        field = ("alternates", alternate.name, "state") if alternate.state else ("state",)
        columns_of(operator.state_of(alternate) or "", f"the state of {of}", (*at, *field))


def _aggregated(operator: Operator, arriving: Columns) -> Columns:
    aggregates = operator.alternates[0].function
    assert isinstance(aggregates, Mapping)
    check_expressions(operator.name, aggregates, arriving, key=operator.key)
    bounds: Columns = {} if operator.window is None else BOUNDS
    for name in bounds:
        if name in operator.key or name in aggregates:
            raise DataflowError(
                f"operator {operator.name!r} emits {name!r} for its windows: call another column so",
                ("operators", operator.name, "aggregate"),
            )
    return {**{name: arriving[name] for name in operator.key}, **bounds, **dict.fromkeys(aggregates)}


def simulated_only(graph: Graph) -> DataflowError | None:
    """Return an error if the dataflow can only be simulated, otherwise None."""
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


def check_durable_edges(layout: Layout) -> None:
    """Raise DataflowError if a query would read a durable edge that it writes itself."""
    for edge in layout.graph.edges:
        if edge.durable is not None and layout.stage_of[edge.source].segment == layout.stage_of[edge.target].segment:
            raise DataflowError(
                f"dataflow {layout.graph.name!r}: the edge {edge.source} -> {edge.target} is durable, but records also get "
                "from one side of it to the other over edges that are not, so that one query would have both: make each of "
                "them durable",
                ("operators", edge.target, "from"),
            )


def plan_queries(layout: Layout) -> Mapping[str, SegmentPlan]:
    """Return the query plan of each segment by name. Raises DataflowError for the first thing that Spark cannot run."""
    graph = layout.graph
    if (simulated := simulated_only(graph)) is not None:
        raise simulated
    check_durable_edges(layout)
    for edge in graph.edges:
        if edge.durable == "kafka":
            edge_topic(graph, edge)
    _check_circles(layout)
    _check_shared_sinks(graph)
    plans = {segment.name: plan_segment(graph, segment) for segment in layout.segments}
    edges: dict[Edge, Columns] = {}
    for plan in plans.values():
        _follow(graph, plan, edges)
    return plans


def edge_topic(graph: Graph, edge: Edge) -> KafkaTopic:
    """Return the topic of a Kafka edge, on the servers of the first Kafka source or sink, or raise DataflowError."""
    for operator in graph.operators:
        for endpoint in (operator.reads, operator.writes):
            if isinstance(endpoint, KafkaTopic):
                return KafkaTopic(f"{graph.name}-{edge.source}-{edge.target}".replace(" ", "-"), endpoint.servers, {})
    raise DataflowError(
        f"dataflow {graph.name!r}: the edge {edge.source} -> {edge.target} is durable as kafka, but the dataflow has no "
        "Kafka source or sink that names the servers",
        ("operators", edge.target, "from"),
    )


def merge_error(graph: Graph, name: str, first: tuple[str, str], other: tuple[str, str]) -> DataflowError:
    return DataflowError(
        f"dataflow {graph.name!r}: {name!r} merges streams with different columns: {first[0]!r} has {first[1]}, "
        f"{other[0]!r} has {other[1]}",
        ("operators", name, "from"),
    )


def _check_circles(layout: Layout) -> None:
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


def _check_shared_sinks(graph: Graph) -> None:
    """Reject two sinks in one folder: each would read the other's files as its own."""
    folders: dict[str, str] = {}
    for operator in graph.sinks:
        if isinstance(operator.writes, ParquetSink) and operator.writes.path:
            if operator.writes.path in folders:
                raise DataflowError(
                    f"dataflow {graph.name!r}: the sinks {folders[operator.writes.path]!r} and {operator.name!r} write to "
                    f"one folder, {operator.writes.path}: give each its own, or merge the streams before one sink",
                    ("operators", operator.name, "sink"),
                )
            folders[operator.writes.path] = operator.name


# -- columns -----------------------------------------------------------------------------------------------------------


def _follow(graph: Graph, plan: SegmentPlan, edges: dict[Edge, Columns]) -> None:
    arriving = [_columns_in(graph, inlet, edges) for inlet in plan.before.inlets]
    leaving = _columns_out(graph, plan.before, arriving)
    if plan.keyed is not None and plan.behind is not None:
        into = [flow.columns for flow in leaving if flow.target is plan.keyed]
        leaving = _columns_out(graph, plan.behind, [grouped(plan.keyed, into)])
    merged: dict[str, _Flow] = {}
    for flow in leaving:
        if isinstance(flow.target, Edge):
            edges[flow.target] = flow.columns
            continue
        before = merged.setdefault(flow.target.name, flow)
        if _all_closed([before.columns, flow.columns]) and set(before.columns) != set(
            flow.columns
        ):  # they are united by name
            first, other = (before.by, in_words(before.columns)), (flow.by, in_words(flow.columns))
            raise merge_error(graph, flow.target.name, first, other)


@dataclass(frozen=True, slots=True)
class _Flow:
    """Records that leave a chain; `by` is the operator that emits them."""

    target: Operator | Edge
    by: str
    columns: Columns


def _columns_in(graph: Graph, inlet: Inlet, edges: Mapping[Edge, Columns]) -> Columns:
    if inlet.edge is not None:
        return edges[inlet.edge]
    operator = graph.operator(inlet.origin)
    field = "schema" if isinstance(operator.reads, Files | Records) else ""
    at = ("operators", operator.name, "source", *filter(None, (field,)))
    ddl = operator.reads.schema if operator.reads is not None else operator.returns
    if not ddl and isinstance(operator.reads, FrameSource):
        return OpenColumns()
    columns = columns_of(ddl, f"the schema of source {operator.name!r}", at)
    if isinstance(operator.reads, Records):
        check_rows(operator.name, operator.reads.rows, columns, (*at[:-1], "records"))
    return columns


def _columns_out(graph: Graph, chain: Chain, arriving: Sequence[Columns]) -> list[_Flow]:
    emitted: dict[Edge, Columns] = {}
    for inlet, columns in zip(chain.inlets, arriving, strict=True):
        selected = _selected(inlet.natives, columns)
        emitted.update(dict.fromkeys(inlet.feeds, selected))
    for operator in chain.steps:
        into = [edge for edge in emitted if edge.target == operator.name]
        before = _merged(graph, into, emitted)
        for column in operator.selects:
            check_column(operator.name, before, column, KEYS, f"operator {operator.name!r} selects by", "select_by")
        emitted.update(dict.fromkeys(graph.outputs[operator.name], _emits(operator, before)))
    leaving = []
    for outlet in chain.outlets:
        columns = _selected(outlet.natives, _merged(graph, outlet.inputs, emitted))
        if isinstance(outlet.target, Operator) and isinstance(outlet.target.writes, DomainSignal):
            _check_signal(outlet.target.name, outlet.target.writes, columns)
        by = outlet.natives[-1].name if outlet.natives else outlet.inputs[0].source
        leaving.append(_Flow(outlet.target, by, columns))
    return leaving


NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def _check_signal(name: str, signal: DomainSignal, columns: Columns) -> None:
    kinds = ("boolean",) if signal.fold in (Fold.ANY, Fold.ALL) else NUMBERS
    if signal.fold is not Fold.COUNT:
        check_column(name, columns, signal.column, kinds, f"the signal {signal.name!r} is of", "signal")


def _selected(natives: Sequence[Operator], columns: Columns) -> Columns:
    for operator in natives:
        after = [_native_columns(operator.name, alternate.function, columns) for alternate in operator.alternates]
        if operator.returns:
            at = ("operators", operator.name, "returns")
            columns = columns_of(operator.returns, f"what operator {operator.name!r} returns", at)
            continue
        for alternate, others in zip(operator.alternates, after, strict=True):
            if _all_closed([after[0], others]) and list(others) != list(after[0]):
                raise DataflowError(
                    f"the alternates of operator {operator.name!r} return different columns: "
                    f"{operator.alternates[0].name!r} {in_words(after[0])}, {alternate.name!r} {in_words(others)}",
                    ("operators", operator.name, "alternates", alternate.name),
                )
        columns = next((each for each in after if not isinstance(each, OpenColumns)), after[0])
    return columns


def _all_closed(columns: Sequence[Columns]) -> bool:
    return not any(isinstance(each, OpenColumns) for each in columns)


def _native_columns(operator: str, function: object, columns: Columns) -> Columns:
    match function:
        case Mapping():
            check_expressions(operator, function, columns)
            return dict.fromkeys(function)
        case Where(condition):
            check_expressions(operator, {"where": condition}, columns, field="where")
        case WithColumns(expressions):
            check_expressions(operator, expressions, columns)
        case Select(items):
            check_expressions(operator, {str(each): each for each in items}, columns)
    return function.columns(operator, columns) if isinstance(function, Native) else OpenColumns()


def _merged(graph: Graph, into: Sequence[Edge], emitted: Mapping[Edge, Columns]) -> Columns:
    first, *others = into
    for other in others:
        a, b = emitted[first], emitted[other]
        if not _all_closed([a, b]):
            continue
        if list(a) != list(b) or any(x != y for x, y in zip(a.values(), b.values(), strict=True) if x and y):
            raise merge_error(graph, first.target, (first.source, in_words(a)), (other.source, in_words(b)))
    return emitted[first]


def _emits(operator: Operator, arriving: Columns) -> Columns:
    at = ("operators", operator.name)
    forms = {alternate.form for alternate in operator.alternates}
    if forms == {Form.SWITCH}:
        if PORT in arriving:
            raise DataflowError(f"switch {operator.name!r} takes records with a column {PORT!r}, its own: rename it", at)
        return OpenColumns() if isinstance(arriving, OpenColumns) else {**arriving, PORT: "string"}
    if forms == {Form.PORT}:
        return arriving if isinstance(arriving, OpenColumns) else {n: kind for n, kind in arriving.items() if n != PORT}
    if operator.returns:
        columns = columns_of(operator.returns, f"what operator {operator.name!r} returns", (*at, "returns"))
        if any(isinstance(alternate.function, Loop) for alternate in operator.alternates):
            _check_loop(operator, columns, arriving)
        return columns
    if forms != {Form.FILTER}:
        raise DataflowError(
            f"operator {operator.name!r} needs `returns`, the schema of its output, such as 'word string'", at
        )
    return arriving


def _check_loop(operator: Operator, columns: Columns, arriving: Columns) -> None:
    others = any(
        columns[name] and arriving[name] and columns[name] != arriving[name] for name in columns if name in arriving
    )
    if _all_closed([arriving]) and (set(columns) != set(arriving) or others):
        raise DataflowError(
            f"operator {operator.name!r} is a loop, whose records go round: it returns {in_words(columns)}, where "
            f"{in_words(arriving)} arrives",
            ("operators", operator.name, "returns"),
        )
