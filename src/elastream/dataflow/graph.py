"""The dataflow graph: operators and edges, validated once and immutable."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from elastream.dataflow.checks import check_patterns, check_structure
from elastream.dataflow.endpoints import ArrivalPattern, DomainSignal, Nothing
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.signals import Signal
from elastream.errors import DataflowError


@dataclass(frozen=True)
class Graph:
    """Validated, immutable dataflow. A graph without operators stands for a plant that runs nothing yet.

    Raises:
        DataflowError: The dataflow is invalid; the message names the fault.
    """

    name: str
    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        check_structure(self)
        check_patterns(self)

    @cached_property
    def by_name(self) -> Mapping[str, Operator]:
        return {operator.name: operator for operator in self.operators}

    @cached_property
    def inputs(self) -> Mapping[str, tuple[Edge, ...]]:
        return self._incident(lambda edge: edge.target)

    @cached_property
    def outputs(self) -> Mapping[str, tuple[Edge, ...]]:
        """Edges out of each operator."""
        return self._incident(lambda edge: edge.source)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Operator names in topological order; ties in declaration order."""
        waiting = {name: len(edges) for name, edges in self.inputs.items()}
        ready = [name for name, count in waiting.items() if count == 0]
        order: list[str] = []
        while ready:
            name = ready.pop(0)
            order.append(name)
            for edge in self.outputs[name]:
                waiting[edge.target] -= 1
                if waiting[edge.target] == 0:
                    ready.append(edge.target)
        return tuple(order)

    @cached_property
    def sources(self) -> tuple[Operator, ...]:
        return tuple(o for o in self.operators if o.kind is Kind.SOURCE)

    @cached_property
    def loads(self) -> Mapping[str, ArrivalPattern]:
        return {o.name: o.load for o in self.sources if o.load is not None}

    @cached_property
    def sinks(self) -> tuple[Operator, ...]:
        return tuple(o for o in self.operators if o.kind is Kind.SINK)

    @cached_property
    def signals(self) -> Mapping[str, Signal]:
        return {o.writes.name: o.writes.declared for o in self.sinks if isinstance(o.writes, DomainSignal)}

    @cached_property
    def by_alternate(self) -> Mapping[str, tuple[Operator, Alternate]]:
        """Operator and alternate by `"operator.alternate"`, the id of their row in observations."""
        return {f"{o.name}.{a.name}": (o, a) for o in self.operators for a in o.alternates}

    @cached_property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Targets of each choice by its name; the first is the default."""
        targets_of: dict[str, list[str]] = {}
        for edge in self.edges:
            if edge.choice is not None:
                targets_of.setdefault(edge.choice, []).append(edge.target)
        return {name: tuple(targets) for name, targets in targets_of.items()}

    def empty(self, name: str) -> bool:
        return isinstance(self.by_name[name].writes, Nothing)

    def operator(self, name: str) -> Operator:
        """Return the operator named `name`, or raise DataflowError."""
        try:
            return self.by_name[name]
        except KeyError:
            raise DataflowError(f"dataflow {self.name!r} has no operator {name!r}") from None

    def _incident(self, end: Callable[[Edge], str]) -> Mapping[str, tuple[Edge, ...]]:
        incident: dict[str, list[Edge]] = {operator.name: [] for operator in self.operators}
        for edge in self.edges:
            incident[end(edge)].append(edge)
        return {name: tuple(edges) for name, edges in incident.items()}
