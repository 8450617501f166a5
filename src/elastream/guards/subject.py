"""What guards are about: the dynamic elements, operators and signals of a dataflow, as they are checked against.

It follows from a graph, or from what a run recorded of its graph, so that guards for a run can be checked where its program
is not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Kind
from elastream.dataflow.signals import Signal, SignalKind
from elastream.recording.observer import Header


@dataclass(frozen=True)
class Subject:
    """A dataflow as guards see it.

    operators: kinds by name. elements: of each operator with several alternates and of each choice, the declared values of
    its alternates or branches. both: names that are those of an operator with alternates and of a choice. signals: domain
    signals of its diagnostic branches.
    """

    flow: str
    operators: Mapping[str, Kind]
    elements: Mapping[str, Mapping[str, float]]
    both: frozenset[str] = frozenset()
    signals: Mapping[str, Signal] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> "Subject":
        """That of a graph."""
        alternates = {o.name: {a.name: a.value for a in o.alternates} for o in graph.operators if len(o.alternates) > 1}
        branches: dict[str, dict[str, float]] = {}
        for edge in graph.edges:
            if edge.choice is not None:
                branches.setdefault(edge.choice, {})[edge.target] = edge.value
        kinds = {operator.name: operator.kind for operator in graph.operators}
        both = frozenset(alternates.keys() & branches.keys())
        return cls(graph.name, kinds, {**alternates, **branches}, both, graph.signals)

    @classmethod
    def recorded(cls, header: Header) -> "Subject":
        """That of a recorded run. Raises KeyError, TypeError or ValueError for a header that describes none."""
        alternates = {
            each["name"]: dict(zip(each["alternates"], each.get("values", [1.0] * len(each["alternates"])), strict=True))
            for each in header.operators
            if len(each["alternates"]) > 1
        }
        branches: dict[str, dict[str, float]] = {}
        for edge in header.edges:
            if edge["choice"] is not None:
                branches.setdefault(edge["choice"], {})[edge["target"]] = edge.get("value", 1.0)
        kinds = {each["name"]: Kind(each["kind"]) for each in header.operators}
        signals = {
            each["name"]: Signal(
                each["name"], SignalKind(each["kind"]), math.inf if each["stale"] is None else each["stale"]
            )
            for each in header.signals
        }
        both = frozenset(alternates.keys() & branches.keys())
        return cls(header.flow, kinds, {**alternates, **branches}, both, signals)
