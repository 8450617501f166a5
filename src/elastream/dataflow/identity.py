"""What of a dataflow must stay as it is for its state, offsets and results to mean the same, when a run goes on.

Free to change between the end of a run and its resumption: functions, costs, values, needs, service levels, loads, guards,
policy, cloud. Functions are the user's to keep compatible with the state that they left.
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

NAMED = 3
"""Differences that a refusal names; of more it says how many."""


def identity_of(layout: Layout, *, state_partitions: int, state_store: str) -> dict[str, str]:
    """Facts, in words, by what they are about; equal ones mean that a checkpoint of one can be continued by the other."""
    graph = layout.graph
    found = {
        "the dataflow": graph.name,
        "the number of state partitions": str(state_partitions),
        "the state store": state_store,
        "the queries": ", ".join(segment.name for segment in layout.segments),
        "the operators": ", ".join(operator.name for operator in graph.operators),
    }
    for operator in graph.operators:
        found |= {f"{what} of operator {operator.name!r}": said for what, said in _operator(operator) if said}
    for edge in graph.edges:
        found[f"the edge from {edge.source!r} to {edge.target!r}"] = _edge(edge)
    return found


def refuse_changed(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise InputError that says what differs, where anything does."""
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if not keys:
        return
    said = [_difference(key, before.get(key), now.get(key)) for key in keys[:NAMED]]
    more = f"; and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    raise InputError(f"the dataflow cannot go on with what the run has on disk: {'; '.join(said)}{more}")


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
    yield "the window", _said(operator.window) if operator.window is not None else ""
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
    """An input or output by kind and place; what may move without harm, such as servers, is left out."""
    kind = type(spec).__name__
    match spec:
        case TextFiles(path) | Files(path) | ParquetSink(path):
            return f"{kind} {'in the run' if not path else path if '://' in path else Path(path).expanduser().resolve()}"
        case KafkaTopic(topic):
            return f"{kind} {topic}"
    return f"{kind} {getattr(spec, 'name', '')}".strip()


def _said(value: Any) -> str:
    """A value of the model as text that is the same in every process: functions do not count."""
    if is_dataclass(value):
        parts = ((each.name, getattr(value, each.name)) for each in fields(value))
        return ", ".join(f"{name} {_said(part)}" for name, part in parts if part is not None and not callable(part))
    return str(value.value) if isinstance(value, Enum) else str(value)
