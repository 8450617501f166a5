"""Identity of a dataflow: properties that must not change between a run and its resumption.

Functions, costs, values, needs, service levels, loads, guards, policy and cloud may change. The user keeps functions
compatible with the stored state.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from elastream.dataflow.endpoints import Files, KafkaTopic, ParquetSink, TextFiles
from elastream.dataflow.operators import Edge, Operator
from elastream.dataflow.stages import Layout
from elastream.errors import InputError

# Differences that the error names; it counts the rest.
NAMED_DIFFERENCES = 3


def identity_of(layout: Layout, *, state_partitions: int, state_store: str) -> dict[str, str]:
    """Return facts in words, by subject. A checkpoint can be continued by a dataflow with equal facts."""
    graph = layout.graph
    facts = {
        "the dataflow": graph.name,
        "the number of state partitions": str(state_partitions),
        "the state store": state_store,
        "the queries": ", ".join(segment.name for segment in layout.segments),
        "the operators": ", ".join(operator.name for operator in graph.operators),
    }
    for operator in graph.operators:
        facts |= {f"{what} of operator {operator.name!r}": text for what, text in _operator(operator) if text}
    for edge in graph.edges:
        facts[f"the edge from {edge.source!r} to {edge.target!r}"] = _edge(edge)
    return facts


def check_identity(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise InputError with the differences, if there are any."""
    if text := differences(before, now):
        raise InputError(f"the dataflow cannot continue from the run's files: {text}")


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the facts that differ, in words; empty if none do."""
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    named = [_difference(key, before.get(key), now.get(key)) for key in keys[:NAMED_DIFFERENCES]]
    more = [f"and {len(keys) - NAMED_DIFFERENCES} more"] if len(keys) > NAMED_DIFFERENCES else []
    return "; ".join([*named, *more])


def _difference(what: str, before: str | None, now: str | None) -> str:
    if before is None:
        return f"{what} is new ({now})"
    return f"{what} is gone (it was {before})" if now is None else f"{what} was {before} and is {now}"


def _operator(operator: Operator) -> Iterator[tuple[str, str]]:
    yield "the kind", operator.kind.value
    yield "the alternates", ", ".join(alternate.name for alternate in operator.alternates)
    yield "the form", ", ".join(dict.fromkeys(alternate.form.value for alternate in operator.alternates))
    yield "the key", ", ".join(operator.key)
    yield "the schema", operator.returns
    yield "the state", operator.state or ", ".join(f"{a.name}: {a.state}" for a in operator.alternates if a.state)
    yield "the owner of the state", "each alternate" if operator.own_state else ""
    yield "the key that chooses the alternate", ", ".join(operator.selects)
    yield "the window", _text(operator.window) if operator.window is not None else ""
    yield "the timeout", "" if operator.timeout is None else f"by {operator.timeout.by or 'the clock'}"
    if operator.key and operator.alternates and isinstance(columns := operator.alternates[0].function, Mapping):
        yield "the aggregates", ", ".join(f"{name} = {text}" for name, text in columns.items())
    if operator.reads is not None:
        yield "the input", _endpoint(operator.reads) + (" at a load" if operator.load is not None else "")
    if operator.writes is not None:
        yield "the output", _endpoint(operator.writes)


def _edge(edge: Edge) -> str:
    parts = [edge.delivery.value, edge.durable and f"durable ({edge.durable})", edge.choice and f"choice {edge.choice!r}"]
    return ", ".join([*filter(None, parts), *([f"port {edge.port}"] if edge.port else [])])


def _endpoint(spec: object) -> str:
    kind = type(spec).__name__
    match spec:
        case TextFiles(path) | Files(path) | ParquetSink(path):
            return f"{kind} {'in the run' if not path else path if '://' in path else Path(path).expanduser().resolve()}"
        case KafkaTopic(topic):
            return f"{kind} {topic}"
    return f"{kind} {getattr(spec, 'name', '')}".strip()


def _text(value: Any) -> str:
    """Return a value as text that is equal in every process; functions are left out."""
    if is_dataclass(value):
        parts = ((each.name, getattr(value, each.name)) for each in fields(value))
        return ", ".join(f"{name} {_text(part)}" for name, part in parts if part is not None and not callable(part))
    return str(value.value) if isinstance(value, Enum) else str(value)
