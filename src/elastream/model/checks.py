"""What is wrong with a graph for every plant, refused when it is built: one sentence each, with the way out.

What only Spark cannot run is in `elastream.model.compiling`, as is all that needs the columns of records.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NoReturn, Protocol

from elastream.model.endpoints import DomainSignal, Nothing
from elastream.model.errors import DataflowError
from elastream.model.operators import Alternate, Edge, Form, Kind, OnError, Operator
from elastream.model.schema import columns_of, in_words

__all__ = ["Parts", "fail", "refuse_malformed"]


class Parts(Protocol):
    """A graph whose parts are put together, and not yet known to be valid."""

    @property
    def name(self) -> str: ...
    @property
    def operators(self) -> tuple[Operator, ...]: ...
    @property
    def edges(self) -> tuple[Edge, ...]: ...
    @property
    def by_name(self) -> Mapping[str, Operator]: ...
    @property
    def inputs(self) -> Mapping[str, tuple[Edge, ...]]: ...
    @property
    def outputs(self) -> Mapping[str, tuple[Edge, ...]]: ...
    @property
    def order(self) -> tuple[str, ...]: ...


def refuse_malformed(graph: Parts) -> None:
    """Raise DataflowError for the first thing that is wrong with `graph`. One without operators is valid."""
    _check_names(graph)
    _check_edges(graph)
    _check_choices(graph)
    _check_order(graph)
    if not graph.operators:
        return
    if not any(operator.kind is Kind.SOURCE for operator in graph.operators):
        fail(graph, "it has no source")
    _check_sinks(graph)
    for operator in graph.operators:
        _check_ends(graph, operator)
        _check_amounts(graph, operator)
        _check_on_error(graph, operator)
        for alternate in operator.alternates:
            _check_alternate(graph, operator, alternate)


def fail(graph: Parts, sentence: str, *at: str) -> NoReturn:
    """Raise that `sentence` is wrong with `graph`. at: an operator, and what of it, as in a document that declares it."""
    raise DataflowError(f"dataflow {graph.name!r}: {sentence}", ("operators", *at) if at else ())


# -- names, edges, choices ---------------------------------------------------------------------------------------------


def _check_names(graph: Parts) -> None:
    if not all(operator.name for operator in graph.operators):
        fail(graph, "an operator has no name")
    if several := [name for name, count in Counter(operator.name for operator in graph.operators).items() if count > 1]:
        fail(graph, f"two operators are called {several[0]!r}", several[0])


def _check_edges(graph: Parts) -> None:
    seen: dict[tuple[str, str], int] = {}
    for edge in graph.edges:
        way = f"{edge.source} -> {edge.target}"
        for end in (edge.source, edge.target):
            if end not in graph.by_name:
                fail(graph, f"the edge {way} names the unknown operator {end!r}")
        if seen.get((edge.source, edge.target), edge.port) != edge.port:
            fail(
                graph,
                f"{edge.source!r} is on both sides of {edge.target!r}: give one of them an operator of its own, such as "
                "select(...) with other names for its columns",
                edge.target,
            )
        if (edge.source, edge.target) in seen:
            fail(graph, f"the edge {way} is declared twice", edge.target, "from")
        if edge.durable not in (None, "parquet", "kafka"):
            fail(graph, f"the edge {way} is durable as {edge.durable!r}, not parquet or kafka", edge.target, "from")
        if not 0.0 <= edge.value <= 1.0:
            fail(
                graph,
                f"the branch {way} has the value {edge.value:g}: values are relative to the best branch, in [0, 1]",
                edge.target,
                "from",
            )
        if edge.choice is None and edge.value != 1.0:
            fail(graph, f"the edge {way} has a value but is no branch: name its choice", edge.target, "from")
        seen[edge.source, edge.target] = edge.port


def _check_choices(graph: Parts) -> None:
    branches: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        if edge.choice is not None:
            branches.setdefault(edge.choice, []).append(edge)
    for name, edges in branches.items():
        at = (edges[0].target, "from")
        if not name:
            fail(graph, f"the choice of the edge {edges[0].source} -> {edges[0].target} has no name", *at)
        if others := [edge for edge in edges if edge.source != edges[0].source]:
            fail(
                graph,
                f"the branches of choice {name!r} leave {edges[0].source!r} and {others[0].source!r}, and a choice is one "
                "operator's: put an operator behind both and choose there, or give each a choice of its own",
                others[0].target,
                "from",
            )
        if len(edges) == 1:
            fail(
                graph,
                f"choice {name!r} has one branch, {edges[0].target!r}, and needs two: add another, which may be empty "
                "(`nothing`), or leave the choice out",
                *at,
            )
        empty = [edge for edge in edges if isinstance(graph.by_name[edge.target].writes, Nothing)]
        if len(empty) > 1:
            fail(graph, f"choice {name!r} has two empty branches: one is enough", empty[1].target, "from")
        if name in graph.by_name and len(graph.by_name[name].alternates) > 1:
            fail(graph, f"a choice and an operator with alternates are both called {name!r}: guards go by the name", *at)


def _check_order(graph: Parts) -> None:
    if len(graph.order) != len(graph.operators):
        around = _cycle(graph, set(graph.by_name) - set(graph.order))
        fail(
            graph,
            f"it has a cycle, {' -> '.join(around)}, and loops and supersteps must be bounded: write their k rounds one "
            "behind the other, as unrolled(step, k) does",
            around[0],
            "from",
        )


def _cycle(graph: Parts, among: set[str]) -> list[str]:
    # Every operator not reached by the topological sort is on or downstream of a cycle: walking upstream finds one.
    path = [min(among)]
    while True:
        previous = next(edge.source for edge in graph.inputs[path[-1]] if edge.source in among)
        if previous in path:
            return [previous, *reversed(path[path.index(previous) :])]
        path.append(previous)


def _check_sinks(graph: Parts) -> None:
    sinks = [operator for operator in graph.operators if operator.kind is Kind.SINK]
    if not sinks:
        fail(graph, "it has no sink")
    if all(isinstance(sink.writes, Nothing | DomainSignal) for sink in sinks):
        fail(graph, "it has no sink for results: signals and empty branches are none", sinks[0].name)
    seen: dict[str, str] = {}
    for sink in sinks:
        if isinstance(sink.writes, Nothing):
            _check_empty(graph, sink)
        if isinstance(sink.writes, DomainSignal):
            name = sink.writes.name
            if not name.isidentifier() or not name.isascii():
                fail(
                    graph,
                    f"a signal cannot be called {name!r}: guards name it, so write letters, digits and _, such as 'error'",
                    sink.name,
                    "signal",
                )
            if name in seen:
                fail(
                    graph,
                    f"{seen[name]!r} and {sink.name!r} both give the signal {name!r}: give each its own, or merge "
                    "their streams",
                    sink.name,
                    "signal",
                )
            seen[name] = sink.name


def _check_empty(graph: Parts, sink: Operator) -> None:
    for edge in graph.inputs[sink.name]:
        if edge.choice is None:
            fail(
                graph,
                f"{sink.name!r} is empty but no branch: name the choice that it belongs to, or give it a sink that writes",
                sink.name,
                "from",
            )
        if edge.durable is not None:
            fail(graph, f"the empty branch {sink.name!r} is durable: no record goes there", sink.name, "from")


# -- operators ---------------------------------------------------------------------------------------------------------


def _check_ends(graph: Parts, operator: Operator) -> None:
    name, inputs, outputs = operator.name, graph.inputs[operator.name], graph.outputs[operator.name]
    if operator.kind is Kind.SOURCE and inputs:
        fail(graph, f"source {name!r} has an input, {inputs[0].source!r}", name, "from")
    if operator.kind is not Kind.SOURCE and not inputs:
        fail(graph, f"operator {name!r} has no input", name)
    if operator.kind is Kind.SINK and outputs:
        fail(graph, f"sink {name!r} has an output, {outputs[0].target!r}", outputs[0].target, "from")
    if operator.kind is not Kind.SINK and not outputs:
        fail(graph, f"the output of operator {name!r} goes nowhere: give it a sink", name)
    if operator.kind in (Kind.TRANSFORM, Kind.KEYED) and not operator.alternates:
        fail(graph, f"operator {name!r} has no function", name)


def _check_amounts(graph: Parts, operator: Operator) -> None:
    name = operator.name
    if operator.cores < 0 or operator.memory < 0:
        fail(graph, f"operator {name!r} needs a negative amount of cores or memory", name)
    if operator.record_bytes is not None and operator.record_bytes < 0:
        fail(graph, f"operator {name!r} emits records of a negative size", name)
    if operator.max_duration is not None and operator.max_duration <= 0:
        fail(graph, f"operator {name!r} has a maximum duration of {operator.max_duration} s; it must be above 0", name)


NOT_CALLED = {
    Form.COLUMNS: "its expressions run in the JVM: write try_divide, try_cast and the like, which give null",
    Form.AGGREGATE: "its aggregates run in the JVM: write try_divide, try_cast and the like, which give null",
    Form.STREAM: "its function pulls its records by itself, so that nobody else can say which of them it failed on",
    Form.ZIP: "it has no function",
}
"""Why a form has no records on which a function of the user's raises."""


def _check_on_error(graph: Parts, operator: Operator) -> None:
    if operator.on_error is OnError.FAIL:
        return
    ends = "it has no function" if operator.kind in (Kind.SOURCE, Kind.SINK) else ""
    if why := ends or next((NOT_CALLED[each.form] for each in operator.alternates if each.form in NOT_CALLED), ""):
        said = f"{operator.on_error.value!r} says nothing of {operator.name!r}: {why}"
        fail(graph, f"on_error {said}", operator.name, "on_error")


def _check_alternate(graph: Parts, operator: Operator, alternate: Alternate) -> None:
    name, own = operator.name, "" if alternate.name == operator.name else f" for {alternate.name!r}"
    at = (name, "alternates", alternate.name)
    if not alternate.name:
        fail(graph, f"an alternate of operator {name!r} has no name", name, "alternates")
    if [each.name for each in operator.alternates].count(alternate.name) > 1:
        fail(graph, f"operator {name!r} has two alternates of one name", *at)
    if alternate.form not in (Form.NONE, Form.ZIP) and not alternate.function:
        fail(graph, f"operator {name!r} has no function{own}", *at)
    if not 0.0 <= alternate.value <= 1.0:
        fail(
            graph,
            f"alternate {alternate.name!r} of operator {name!r} has the value {alternate.value:g}: values are relative to "
            "the best alternate, in [0, 1]",
            *at,
            "value",
        )
    for what, amount in (("cost", alternate.cost), ("selectivity", alternate.selectivity)):
        if amount is not None and not 0.0 <= amount < float("inf"):
            fail(graph, f"operator {name!r} has a {what} of {amount:g}{own}: it must be 0 or more", *at, what)
    if alternate.returns and alternate.returns != operator.returns:
        promised = columns_of(operator.returns, f"what operator {name!r} returns", ("operators", name, "returns"))
        given = columns_of(alternate.returns, f"what {alternate.name!r} of operator {name!r} returns", ("operators", *at))
        if list(given.items()) != list(promised.items()):
            fail(
                graph,
                f"alternate {alternate.name!r} of operator {name!r} returns {in_words(given)}, where the operator returns "
                f"{in_words(promised)}: alternates of one operator have one schema, others are branches of a choice",
                *at,
                "returns",
            )
