"""What is wrong with the patterns of a graph: forms and ports of operators, windows, timeouts, states, order.

Like `elastream.model.checks`, for every plant, in one sentence each, with the way out.
"""

from elastream.model.checks import Parts, fail
from elastream.model.operators import GROUPED, Form, Kind, Operator
from elastream.model.windows import WindowKind

__all__ = ["refuse_patterns"]


def refuse_patterns(graph: Parts) -> None:
    """Raise DataflowError for the first operator of the well-formed `graph` that is no pattern that can run."""
    for operator in graph.operators:
        _check_forms(graph, operator)
        _check_ports(graph, operator)
        _check_time(graph, operator)
        _check_state(graph, operator)
        _check_selection(graph, operator)
    for operator in graph.operators:
        if _is_zip(operator):
            _check_zip(graph, operator)
        elif operator.sequential:
            _check_sequence(graph, operator)


def _check_forms(graph: Parts, operator: Operator) -> None:
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
    if operator.waits and Form.STREAM in forms:
        fail(
            graph,
            f"operator {name!r} pulls, its calls cannot overlap: leave out `waits`, or write it as map_arrow",
            name,
            "waits",
        )


def _check_ports(graph: Parts, operator: Operator) -> None:
    """A join has two inputs that are told apart, a zip two or more, and every other operator one."""
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


def _check_time(graph: Parts, operator: Operator) -> None:
    """Windows and timeouts: which operators have them."""
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


def _check_state(graph: Parts, operator: Operator) -> None:
    name, forms = operator.name, {alternate.form for alternate in operator.alternates}
    own = [alternate for alternate in operator.alternates if alternate.state]
    if (operator.own_state or own) and (operator.kind is not Kind.KEYED or not forms <= {Form.STATE, Form.NONE}):
        fail(graph, f"operator {name!r} has alternates with states of their own, but is no function with state", name)
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


def _check_selection(graph: Parts, operator: Operator) -> None:
    """An operator that chooses its alternates by key."""
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


def _check_zip(graph: Parts, operator: Operator) -> None:
    """The n-th record of a stream must be the n-th however often a batch is repeated."""
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


def _check_sequence(graph: Parts, operator: Operator) -> None:
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


def _check_ordered(graph: Parts, operator: Operator, name: str) -> None:
    """Raise DataflowError if records come to the sequential operator `name`, `operator`, in no certain order."""
    waiting, seen = [operator], {operator.name}
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
            if edge.durable is None and before.name not in seen:
                waiting.append(before)
                seen.add(before.name)
