"""Stages between shuffles, and segments between durable edges: the operators that run together, on both plants.

A *segment* runs as one query. In it, a *stage* runs between two shuffles: a keyed operator starts one, stateless operators
are chained to it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Edge, Form, Kind


@dataclass(frozen=True, slots=True)
class Stage:
    """Operators that run in one task and share its parallelism, queue and service time."""

    name: str
    segment: str
    operators: tuple[str, ...]
    keyed: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """Stages that run as one query, named after its first operator. `inputs` and `outputs` are durable edges."""

    name: str
    stages: tuple[Stage, ...]
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(name for stage in self.stages for name in stage.operators)


@dataclass(frozen=True, slots=True)
class Unit:
    """Operators that scale together: those of one stage.

    Attributes:
        name: Operator that `SetParallelism` names.
        operators: Names in topological order.
        cores: Cores of the most demanding operator, because the operators of an instance take turns.
        memory: Memory of all operators together (MB).
        scalable: True if the plant can change its parallelism.
    """

    name: str
    operators: tuple[str, ...]
    cores: float
    memory: float
    scalable: bool


@dataclass(frozen=True)
class Layout:
    """Graph divided into segments and stages, in topological order.

    Attributes:
        unchained: True if each operator is a stage of its own, whose instances reserve cores (simulation only). On Spark
            tasks share the cores of their hosts, even if durable edges make each operator a query of its own.
    """

    graph: Graph
    segments: tuple[Segment, ...]
    unchained: bool = False

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(stage for segment in self.segments for stage in segment.stages)

    @cached_property
    def stage_of(self) -> Mapping[str, Stage]:
        return {name: stage for stage in self.stages for name in stage.operators}

    @cached_property
    def single(self) -> frozenset[str]:
        """Names of stages with one task: an operator keeps the order of records, or pairs them."""
        zips = [each for each in self.graph.operators if any(alternate.form is Form.ZIP for alternate in each.alternates)]
        sequential = [each for each in self.graph.operators if each.sequential]
        return frozenset(self.stage_of[operator.name].name for operator in (*sequential, *zips))

    def units(self, scalable: Collection[str]) -> tuple[Unit, ...]:
        """Return every stage as a unit, in topological order; the plant can scale the operators `scalable`."""
        units = []
        for stage in self.stages:
            members = [self.graph.by_name[name] for name in stage.operators]
            named = [name for name in stage.operators if name in scalable and stage.name not in self.single]
            units.append(
                Unit(
                    named[0] if named else stage.name,
                    stage.operators,
                    max(operator.cores for operator in members),
                    sum(operator.memory for operator in members),
                    bool(named),
                )
            )
        return tuple(units)

    @cached_property
    def simulated_scalable(self) -> frozenset[str]:
        """Operators whose parallelism a simulation can change.

        Unchained, all that work; chained, as on Spark, the first operators of stages without state.
        """
        if self.unchained:
            return frozenset(o.name for o in self.graph.operators if o.kind in (Kind.TRANSFORM, Kind.KEYED))
        return frozenset(stage.name for stage in self.stages if not stage.keyed)

    def keyed_partitions(self, count: int) -> Mapping[str, int]:
        """Map each keyed stage to `count` state partitions, each of which moves by itself; empty if unchained."""
        return {} if self.unchained else {stage.name: count for stage in self.stages if stage.keyed}

    @cached_property
    def in_a_row(self) -> int:
        """Length of the longest path of queries, at least one; a cycle counts once."""
        holder = {name: segment.name for segment in self.segments for name in segment.operators}
        depth: dict[str, int] = {}
        for segment in self.segments:
            depth[segment.name] = 1 + max((depth.get(holder[edge.source], 0) for edge in segment.inputs), default=0)
        return max(depth.values(), default=1)

    @cached_property
    def circular(self) -> bool:
        """True if queries feed each other in a cycle. Otherwise `segments` is in topological order."""
        place = {name: number for number, segment in enumerate(self.segments) for name in segment.operators}
        return any(place[edge.source] > number for number, each in enumerate(self.segments) for edge in each.inputs)


def lay_out(graph: Graph, *, chained: bool = True) -> Layout:
    rank = {name: position for position, name in enumerate(graph.order)}
    keyed = {operator.name for operator in graph.operators if operator.kind is Kind.KEYED}
    segment_of = _components(graph.order, (e for e in graph.edges if e.durable is None), rank)
    stage_of = _components(
        graph.order, (e for e in graph.edges if chained and e.durable is None and e.target not in keyed), rank
    )
    segments = []
    for segment in _ordered(segment_of, rank):
        members = [name for name in graph.order if segment_of[name] == segment]
        stages = tuple(
            Stage(stage, segment, operators, any(name in keyed for name in operators))
            for stage in _ordered({name: stage_of[name] for name in members}, rank)
            if (operators := tuple(name for name in members if stage_of[name] == stage))
        )
        durable = [e for e in graph.edges if e.durable is not None]
        segments.append(
            Segment(
                segment,
                stages,
                tuple(e for e in durable if segment_of[e.target] == segment),
                tuple(e for e in durable if segment_of[e.source] == segment),
            )
        )
    return Layout(graph, _upstream_first(segments, segment_of), unchained=not chained)


def _upstream_first(segments: list[Segment], segment_of: Mapping[str, str]) -> tuple[Segment, ...]:
    left, ordered = list(segments), list[Segment]()
    while left:
        waiting = {segment.name for segment in left}
        ready = next((s for s in left if not any(segment_of[edge.source] in waiting for edge in s.inputs)), left[0])
        left.remove(ready)
        ordered.append(ready)
    return tuple(ordered)


def _components(names: Iterable[str], edges: Iterable[Edge], rank: Mapping[str, int]) -> dict[str, str]:
    """Return the connected component of each name over `edges`, named after its member of lowest rank."""
    parent = {name: name for name in names}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for edge in edges:
        first, second = sorted((root(edge.source), root(edge.target)), key=rank.__getitem__)
        parent[second] = first
    return {name: root(name) for name in parent}


def _ordered(component_of: Mapping[str, str], rank: Mapping[str, int]) -> list[str]:
    by_rank: Callable[[str], int] = rank.__getitem__
    return sorted(set(component_of.values()), key=by_rank)
