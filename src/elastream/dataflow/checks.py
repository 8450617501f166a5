"""Checks of a graph that hold for every plant; `elastream.dataflow.compiling` has Spark's and those of columns."""

from collections import Counter
from typing import TYPE_CHECKING, NoReturn

from elastream.dataflow.endpoints import DomainSignal, Nothing
from elastream.dataflow.functions import Loop, receiver_of
from elastream.dataflow.natives import DropDuplicates
from elastream.dataflow.operators import GROUPED, NATIVE, REPEATABLE, Alternate, Edge, Form, Kind, OnError, Operator
from elastream.dataflow.schema import columns_of, in_words
from elastream.dataflow.windows import WindowKind
from elastream.errors import DataflowError

if TYPE_CHECKING:  # which these checks are part of
    from elastream.dataflow.graph import Graph


def check_structure(graph: "Graph") -> None:
    """Raise DataflowError for the first structural fault of `graph`, which may be empty."""
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


def fail(graph: "Graph", sentence: str, *at: str) -> NoReturn:
    """Raise DataflowError with `sentence`; `at` is the operator and its key in a document."""
    raise DataflowError(f"dataflow {graph.name!r}: {sentence}", ("operators", *at) if at else ())


# -- names, edges, choices ---------------------------------------------------------------------------------------------


def _check_names(graph: "Graph") -> None:
    if not all(operator.name for operator in graph.operators):
        fail(graph, "an operator has no name")
    if (odd := next((each.name for each in graph.operators if not isinstance(each.name, str)), None)) is not None:
        fail(graph, f"an operator is called {odd!r}: names are text")
    if several := [name for name, count in Counter(operator.name for operator in graph.operators).items() if count > 1]:
        fail(graph, f"two operators are called {several[0]!r}", several[0])


def _check_edges(graph: "Graph") -> None:
    ports: dict[tuple[str, str], int] = {}
    for edge in graph.edges:
        way = f"{edge.source} -> {edge.target}"
        for end in (edge.source, edge.target):
            if end not in graph.by_name:
                fail(graph, f"the edge {way} names the unknown operator {end!r}")
        if ports.get((edge.source, edge.target), edge.port) != edge.port:
            fail(
                graph,
                f"{edge.source!r} is on both sides of {edge.target!r}: give one of them an operator of its own, such as "
                "select(...) with other names for its columns",
                edge.target,
            )
        if (edge.source, edge.target) in ports:
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
            fail(graph, f"the edge {way} has a value but is not a branch: name its choice", edge.target, "from")
        ports[edge.source, edge.target] = edge.port


def _check_choices(graph: "Graph") -> None:
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


def _check_order(graph: "Graph") -> None:
    if len(graph.order) != len(graph.operators):
        around = _cycle(graph, set(graph.by_name) - set(graph.order))
        fail(
            graph,
            f"it has a cycle, {' -> '.join(around)}, and no edge leads back: repeat an operator with Loop, or write rounds "
            "one behind the other with unrolled",
            around[0],
            "from",
        )


def _cycle(graph: "Graph", among: set[str]) -> list[str]:
    # Every operator not reached by the topological sort is on or downstream of a cycle: walking upstream finds one.
    path = [min(among)]
    while True:
        previous = next(edge.source for edge in graph.inputs[path[-1]] if edge.source in among)
        if previous in path:
            return [previous, *reversed(path[path.index(previous) :])]
        path.append(previous)


def _check_sinks(graph: "Graph") -> None:
    sinks = [operator for operator in graph.operators if operator.kind is Kind.SINK]
    if not sinks:
        fail(graph, "it has no sink")
    if all(isinstance(sink.writes, Nothing | DomainSignal) for sink in sinks):
        fail(graph, "it has no sink for results: signals and empty branches are none", sinks[0].name)
    branches: dict[str, str] = {}
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
            if name in branches:
                fail(
                    graph,
                    f"{branches[name]!r} and {sink.name!r} both give the signal {name!r}: give each its own, or merge "
                    "their streams",
                    sink.name,
                    "signal",
                )
            branches[name] = sink.name


def _check_empty(graph: "Graph", sink: Operator) -> None:
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


def _check_ends(graph: "Graph", operator: Operator) -> None:
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


def _check_amounts(graph: "Graph", operator: Operator) -> None:
    name = operator.name
    if operator.cores < 0 or operator.memory < 0:
        fail(graph, f"operator {name!r} needs a negative amount of cores or memory", name)
    if operator.record_bytes is not None and operator.record_bytes < 0:
        fail(graph, f"operator {name!r} emits records of a negative size", name)
    if operator.max_duration is not None and operator.max_duration <= 0:
        fail(graph, f"operator {name!r} has a maximum duration of {operator.max_duration} s; it must be above 0", name)


# Forms without records on which a user's function could raise, with the reason.
NOT_CALLED = {
    Form.COLUMNS: "its expressions run in the JVM: write try_divide, try_cast and the like, which give null",
    Form.FRAME: "its DataFrame code runs in the JVM: write try_divide, try_cast and the like, which give null",
    Form.AGGREGATE: "its aggregates run in the JVM: write try_divide, try_cast and the like, which give null",
    Form.STREAM: "its function pulls its records by itself, so that nobody else can say which of them it failed on",
    Form.ZIP: "it has no function",
    Form.PORT: "it has no function",
}


def _check_on_error(graph: "Graph", operator: Operator) -> None:
    if operator.on_error is OnError.FAIL:
        return
    ends = "it has no function" if operator.kind in (Kind.SOURCE, Kind.SINK) else ""
    if why := ends or next((NOT_CALLED[each.form] for each in operator.alternates if each.form in NOT_CALLED), ""):
        message = f"{operator.on_error.value!r} says nothing of {operator.name!r}: {why}"
        fail(graph, f"on_error {message}", operator.name, "on_error")


def _check_alternate(graph: "Graph", operator: Operator, alternate: Alternate) -> None:
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
        columns = columns_of(alternate.returns, f"what {alternate.name!r} of operator {name!r} returns", ("operators", *at))
        if list(columns.items()) != list(promised.items()):
            fail(
                graph,
                f"alternate {alternate.name!r} of operator {name!r} returns {in_words(columns)}, where the operator "
                f"returns {in_words(promised)}: alternates of one operator have one schema, others are branches of a "
                "choice",
                *at,
                "returns",
            )


def check_patterns(graph: "Graph") -> None:
    """Raise DataflowError for the first operator of the well-formed `graph` that is not a supported pattern."""
    for operator in graph.operators:
        _check_forms(graph, operator)
        _check_functions(graph, operator)
        _check_ports(graph, operator)
        _check_time(graph, operator)
        _check_state(graph, operator)
        _check_selection(graph, operator)
    for operator in graph.operators:
        if _is_zip(operator):
            _check_zip(graph, operator)
        elif operator.sequential:
            _check_sequence(graph, operator)


def _check_forms(graph: "Graph", operator: Operator) -> None:
    name = operator.name
    forms = sorted({alternate.form for alternate in operator.alternates} - {Form.NONE})
    if operator.kind is Kind.KEYED:
        if not operator.key and Form.ZIP not in forms:
            fail(graph, f"keyed operator {name!r} has no key", name)
        if plain := [form for form in forms if form not in GROUPED]:
            fail(
                graph,
                f"keyed operator {name!r} has a function of the form {plain[0]}, which sees single records: by key it is "
                "(key, rows, state) -> (rows, state)",
                name,
            )
        if len(forms) > 1:
            fail(graph, f"the alternates of keyed operator {name!r} are of different forms: {', '.join(forms)}", name)
    elif grouped := [form for form in forms if form in GROUPED]:
        fail(
            graph,
            f"operator {name!r} has a function of the form {grouped[0]} but no key: group by one",
            name,
        )
    if NATIVE.intersection(forms):
        _check_native(graph, operator)
    if operator.waits and Form.STREAM in forms:
        fail(
            graph,
            f"operator {name!r} pulls, its calls cannot overlap: leave out `waits`, or write it as map_arrow",
            name,
            "waits",
        )


def _check_functions(graph: "Graph", operator: Operator) -> None:
    name = operator.name
    for alternate in operator.alternates:
        if isinstance(alternate.function, Loop) and alternate.form not in REPEATABLE:
            allowed = "map, flat_map, map_arrow and map_pandas"
            fail(graph, f"operator {name!r} is a loop of the form {alternate.form}: a loop goes with {allowed}", name)
        if alternate.form in NATIVE and receiver_of(alternate.function) is not None:
            fail(graph, f"operator {name!r} is DataFrame code, which is called once and gets no messages", name, "message")
    if any(alternate.form is Form.SWITCH for alternate in operator.alternates):
        _check_switch(graph, operator)


def _check_switch(graph: "Graph", operator: Operator) -> None:
    name = operator.name
    if any(alternate.form is not Form.SWITCH for alternate in operator.alternates):
        fail(graph, f"operator {name!r} is a switch and has an alternate that is none", name, "alternates")
    for edge in graph.outputs[name]:
        forms = {alternate.form for alternate in graph.by_name[edge.target].alternates}
        if forms != {Form.PORT}:
            fail(graph, f"{edge.target!r} takes records of switch {name!r} without a port: name one", edge.target, "from")


def _check_native(graph: "Graph", operator: Operator) -> None:
    name = operator.name
    if operator.waits:
        fail(graph, f"operator {name!r} runs in the JVM, its calls cannot overlap: leave out `waits`", name, "waits")
    if len(operator.alternates) > 1 and any(isinstance(each.function, DropDuplicates) for each in operator.alternates):
        fail(
            graph,
            f"operator {name!r} drops duplicates and has alternates: what one remembers would rest and be wrong while "
            "another runs; give the alternates an operator of their own",
            name,
            "alternates",
        )
    if operator.selects:
        fail(
            graph,
            f"operator {name!r} selects by key, but DataFrame code meets the records of all keys: write it as map_arrow",
            name,
            "select_by",
        )


def _check_ports(graph: "Graph", operator: Operator) -> None:
    name, ports = operator.name, sorted({edge.port for edge in graph.inputs[operator.name]})
    forms = {alternate.form for alternate in operator.alternates}
    if Form.JOIN in forms and ports != [0, 1]:
        fail(graph, f"the join {name!r} needs a left and a right input (ports 0 and 1; it has {ports})", name, "join")
    if Form.ZIP in forms and (len(ports) < 2 or ports != list(range(len(ports)))):
        fail(graph, f"the zip {name!r} needs two inputs or more (ports 0, 1, ...; it has {ports})", name, "zip")
    if Form.ZIP in forms and len(operator.alternates) > 1:
        fail(graph, f"the zip {name!r} has alternates, and there is only one way to do it", name, "alternates")
    simulated = operator.kind is Kind.KEYED and forms == {Form.NONE}
    if not forms & {Form.JOIN, Form.ZIP} and not simulated and ports not in ([], [0]):
        fail(graph, f"operator {name!r} has inputs of ports {ports}, which only joins and zips have", name, "from")


def _check_time(graph: "Graph", operator: Operator) -> None:
    name, window, timeout = operator.name, operator.window, operator.timeout
    forms = {alternate.form for alternate in operator.alternates}
    if window is not None and operator.kind is not Kind.KEYED:
        fail(graph, f"operator {name!r} has a window but no key: group_by or join gives one", name, "window")
    if window is None and forms & {Form.WINDOW, Form.JOIN}:
        what = "joins" if Form.JOIN in forms else "groups"
        fail(
            graph,
            f"operator {name!r} {what} records without a window, so that none could ever be complete: give it one, such as "
            "window(count=10); a running result by key is key_by with a function with state",
            name,
        )
    if window is not None and Form.STATE in forms:
        fail(
            graph,
            f"operator {name!r} has a window and a function with state: in windows a function is (key, rows) -> rows, "
            "without one it is key_by(...).apply",
            name,
            "window",
        )
    if window is not None and Form.AGGREGATE in forms and window.kind is not WindowKind.TIME:
        fail(
            graph,
            f"operator {name!r} has native aggregates in windows of {window.kind}, and Spark has them in windows of time "
            "only: write it as a function, (key, rows) -> rows, with apply",
            name,
            "aggregate",
        )
    if timeout is None:
        return
    if window is not None and window.kind is WindowKind.TIME:
        fail(graph, f"operator {name!r} has a timeout, but windows of time end anyway: leave it out", name, "timeout")
    if not forms <= {Form.STATE, Form.WINDOW, Form.JOIN, Form.NONE} or operator.kind is not Kind.KEYED:
        fail(
            graph,
            f"operator {name!r} has a timeout, but no function with state and no window that could end: leave it out, or "
            "write it as key_by(...).apply",
            name,
            "timeout",
        )
    if timeout.function is not None and Form.STATE not in forms:
        fail(
            graph,
            f"the timeout of operator {name!r} emits through a function, but a window that ends is emitted as it is: leave "
            "the function out",
            name,
            "timeout",
        )


def _check_state(graph: "Graph", operator: Operator) -> None:
    name, forms = operator.name, {alternate.form for alternate in operator.alternates}
    own = [alternate for alternate in operator.alternates if alternate.state]
    if (operator.own_state or own) and (operator.kind is not Kind.KEYED or not forms <= {Form.STATE, Form.NONE}):
        fail(graph, f"operator {name!r} has alternates with states of their own, but is not a function with state", name)
    if own and not operator.own_state:
        fail(
            graph,
            f"alternate {own[0].name!r} of operator {name!r} declares a state, but all share one: say own_state, or give "
            "the operator the schema",
            name,
            "alternates",
            own[0].name,
            "state",
        )


def _check_selection(graph: "Graph", operator: Operator) -> None:
    name = operator.name
    if not operator.selects:
        return
    if len(operator.alternates) < 2:
        fail(graph, f"operator {name!r} selects by key but has no alternates to select from", name, "select_by")
    if len(set(operator.selects)) != len(operator.selects):
        fail(graph, f"operator {name!r} selects by one column twice", name, "select_by")
    if operator.kind is Kind.KEYED and (others := [column for column in operator.selects if column not in operator.key]):
        fail(
            graph,
            f"keyed operator {name!r} selects by {others[0]!r}, which is not of its key ({', '.join(operator.key)}): all "
            "records of a key meet one alternate",
            name,
            "select_by",
        )
    if any(alternate.form is Form.STREAM for alternate in operator.alternates):
        fail(
            graph,
            f"operator {name!r} selects by key, but a function that pulls meets the records of all keys: write it as "
            "map_arrow",
            name,
            "select_by",
        )


# -- order -------------------------------------------------------------------------------------------------------------


def _is_zip(operator: Operator) -> bool:
    return any(alternate.form is Form.ZIP for alternate in operator.alternates)


def _check_zip(graph: "Graph", operator: Operator) -> None:
    """Check that inputs of a zip are ordered, so that a replayed batch pairs the same records."""
    for edge in graph.inputs[operator.name]:
        before = graph.by_name[edge.source]
        if not before.sequential and not _is_zip(before):
            fail(
                graph,
                f"{operator.name!r} puts n-th records together, but {before.name!r} emits in no certain order: make it "
                "sequential",
                operator.name,
                "zip",
            )


def _check_sequence(graph: "Graph", operator: Operator) -> None:
    name = operator.name
    if operator.kind is Kind.SINK:
        fail(graph, f"sink {name!r} cannot be sequential: make the operator before it so", name, "sequential")
    if operator.waits:
        fail(
            graph,
            f"operator {name!r} is sequential, its calls cannot overlap: leave out `waits`",
            name,
            "sequential",
        )
    _check_ordered(graph, operator, name)


def _check_ordered(graph: "Graph", operator: Operator, name: str) -> None:
    waiting, visited = [operator], {operator.name}
    while waiting:
        each = waiting.pop()
        if _is_zip(each):
            continue
        if each.kind is Kind.KEYED:
            fail(
                graph,
                f"operator {name!r} cannot be sequential: the shuffle before {each.name!r} has lost the order of records; "
                "make the operators before it sequential, or sort the records of a window",
                name,
                "sequential",
            )
        for edge in graph.inputs[each.name]:
            before = graph.by_name[edge.source]
            if edge.durable is not None and not before.sequential and not _is_zip(before):
                fail(
                    graph,
                    f"operator {name!r} cannot be sequential: {before.name!r} writes the durable edge before it from "
                    f"several tasks; make {before.name!r} sequential, too",
                    name,
                    "sequential",
                )
            if edge.durable is None and before.name not in visited:
                waiting.append(before)
                visited.add(before.name)
