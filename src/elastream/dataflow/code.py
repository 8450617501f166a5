"""Code that a running run can exchange: the alternates of operators with Python functions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from elastream.dataflow.graph import Graph
from elastream.dataflow.identity import identity_of
from elastream.dataflow.operators import NATIVE, Alternate, Form, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.dataflow.windows import Pairs

# Alternates by operator.
Code: TypeAlias = Mapping[str, tuple[Alternate, ...]]

_WITHOUT_FUNCTION = frozenset({Form.NONE, Form.ZIP, Form.AGGREGATE, Form.PORT, *NATIVE})


def has_code(operator: Operator) -> bool:
    """Return True if the alternates of `operator` are Python functions."""
    return (
        operator.kind in (Kind.TRANSFORM, Kind.KEYED)
        and bool(operator.alternates)
        and all(each.form not in _WITHOUT_FUNCTION and not isinstance(each.function, Pairs) for each in operator.alternates)
    )


def code_of(graph: Graph) -> Code:
    return {each.name: each.alternates for each in graph.operators if has_code(each)}


def with_code(graph: Graph, code: Code) -> Graph:
    """Return `graph` with the alternates of `code`. Raises DataflowError if they do not fit."""
    return Graph(
        graph.name,
        tuple(replace(each, alternates=code.get(each.name, each.alternates)) for each in graph.operators),
        graph.edges,
    )


def fixed_facts(graph: Graph, mark: Callable[[object], str]) -> dict[str, str]:
    """Return in words, by subject, what no update may change. `mark` tells functions apart."""
    facts = identity_of(lay_out(graph), state_partitions=0, state_store="")
    for operator in graph.operators:
        name = f"of operator {operator.name!r}"
        facts[f"the treatment of failing records {name}"] = operator.on_error.value
        facts[f"the pool of threads {name}"] = "yes" if operator.waits else "no"
        facts[f"the order of records {name}"] = "kept" if operator.sequential else "free"
        if operator.timeout is not None and operator.timeout.function is not None:
            facts[f"the function of the timeout {name}"] = mark(operator.timeout.function)
        if not has_code(operator):
            for each in operator.alternates:
                facts[f"the native code of alternate {each.name!r} {name}"] = mark(each.function)
        elif not operator.own_state:
            facts.pop(f"the alternates {name}", None)
            if operator.kind is Kind.TRANSFORM:
                facts.pop(f"the form {name}", None)
    return facts
