"""Subject of guards: a dataflow's dynamic elements, operators and signals, from its graph or a recording."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Observation
from elastream.core.promises import PROMISES, of_application
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Kind
from elastream.dataflow.signals import Signal, SignalKind, SignalReading
from elastream.guards.language import RESERVED
from elastream.recording.observer import Header

_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_METRICS = {metric.value: metric for metric in Metric}


@dataclass(frozen=True)
class Subject:
    flow: str
    operators: Mapping[str, Kind]  # kinds by name
    elements: Mapping[str, Mapping[str, float]]  # declared values of alternates or branches
    both: frozenset[str] = frozenset()  # names that operators with alternates and choices share
    signals: Mapping[str, Signal] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> "Subject":
        return _subject(
            graph.name,
            {operator.name: operator.kind for operator in graph.operators},
            {each.name: {alternate.name: alternate.value for alternate in each.alternates} for each in graph.operators},
            ((edge.choice, edge.target, edge.value) for edge in graph.edges),
            graph.signals,
        )

    @classmethod
    def recorded(cls, header: Header) -> "Subject":
        """Return the subject of a recorded run. Raises KeyError, TypeError or ValueError if the header has none."""
        ones = {each["name"]: [1.0] * len(each["alternates"]) for each in header.operators}
        return _subject(
            header.flow,
            {each["name"]: Kind(each["kind"]) for each in header.operators},
            {
                each["name"]: dict(zip(each["alternates"], each.get("values", ones[each["name"]]), strict=True))
                for each in header.operators
            },
            ((edge["choice"], edge["target"], edge.get("value", 1.0)) for edge in header.edges),
            {
                each["name"]: Signal(
                    each["name"], SignalKind(each["kind"]), math.inf if each["stale"] is None else each["stale"]
                )
                for each in header.signals
            },
        )


def _subject(
    flow: str,
    kinds: Mapping[str, Kind],
    alternates: Mapping[str, Mapping[str, float]],
    edges: Iterable[tuple[str | None, str, float]],
    signals: Mapping[str, Signal],
) -> Subject:
    operators = {name: values for name, values in alternates.items() if len(values) > 1}
    choices: dict[str, dict[str, float]] = {}
    for choice, target, value in edges:
        if choice is not None:
            choices.setdefault(choice, {})[target] = value
    both = frozenset(operators.keys() & choices.keys())
    return Subject(flow, kinds, {**operators, **choices}, both, signals)


def system_signals(subject: Subject | None) -> Iterator[Signal]:
    """Yield metrics that guards can read: `latency_p99`, ... of the application, and `OPERATOR.METRIC`."""
    for metric in Metric:
        if metric in of_application():
            yield Signal(metric.value)
    for name, kind in subject.operators.items() if subject is not None else ():
        if not _PART.match(name) or name in RESERVED:
            continue
        for metric in Metric:
            if any(each.rows is Rows.OPERATOR and kind in each.kinds for each in PROMISES[metric]):
                yield Signal(f"{name}.{metric.value}")


def system_readings(observation: Observation, names: Iterable[str]) -> dict[str, SignalReading]:
    readings, application = {}, observation.application
    whole = application.ids[0] if application.ids else ""
    for name in names:
        operator, _, last = name.rpartition(".")
        if (metric := _METRICS.get(last)) is None or (operator and operator not in observation.operators):
            continue
        reading = observation.operators.reading(operator, metric) if operator else application.reading(whole, metric)
        readings[name] = SignalReading(reading.value, observation.time - reading.age)
    return readings
