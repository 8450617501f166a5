"""The dataflow graph: operators, their alternates, and the edges between them, checked once and then immutable.

Both plants and every policy read this one structure. It holds the users' functions as opaque values; only the Spark
plant calls them. How a graph is written down by hand is `elastream.model.flow`; which operators run together is
`elastream.model.stages`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from elastream.model.endpoints import ArrivalPattern
from elastream.model.errors import DataflowError

__all__ = ["Alternate", "Delivery", "Edge", "Form", "Graph", "Kind", "Operator"]


class Kind(StrEnum):
    """What an operator is to its neighbours."""

    SOURCE = "source"
    """Has no input; records arrive from outside."""
    TRANSFORM = "transform"
    """Stateless: what it emits depends on the record at hand alone."""
    KEYED = "keyed"
    """Stateful per key: a shuffle brings all records of a key together before it."""
    SINK = "sink"
    """Has no output; records leave."""


class Form(StrEnum):
    """How the function of an alternate takes its records."""

    ARROW = "arrow"
    """`RecordBatch -> RecordBatch`."""
    PANDAS = "pandas"
    """`DataFrame -> DataFrame`."""
    MAP = "map"
    """One record in, one out. A record is its value where the stream has one column, else a dict by column."""
    FLAT_MAP = "flat_map"
    """One record in, any number out."""
    FILTER = "filter"
    """One record in, truth out: whether to keep it."""
    COLUMNS = "columns"
    """Native Spark column expressions (SQL text by column name); nothing leaves the JVM."""
    AGGREGATE = "aggregate"
    """Native Spark aggregation per key (SQL text by column name)."""
    STATE = "state"
    """A function with state per key: `(key, rows, state) -> rows`, pandas in and out."""
    NONE = "none"
    """No function: sources, sinks, and operators that exist in simulation only."""


class Delivery(StrEnum):
    """Which records of an operator travel over one of its out-edges."""

    DUPLICATE = "duplicate"
    """Every record travels over every such edge."""
    ROUND_ROBIN = "round_robin"
    """Records are dealt over all round-robin edges of the operator in turn."""
    KEYED = "keyed"
    """Every record travels, to the instance that its key chooses."""


@dataclass(frozen=True, slots=True)
class Alternate:
    """One implementation of an operator (thesis, section 2.2: value, cost and selectivity of an alternate).

    `value` is relative to the best alternate, in [0, 1]. `cost` is core-seconds a record on a core of speed 1, or None
    where only measurement can tell; `selectivity` is records out per record in, or None likewise.
    """

    name: str
    function: Callable[..., Any] | Mapping[str, str] | None = None
    form: Form = Form.NONE
    value: float = 1.0
    cost: float | None = None
    selectivity: float | None = None


@dataclass(frozen=True, slots=True)
class Operator:
    """A step of the dataflow, with its service level and what one instance of it needs.

    name: unique within the dataflow.
    alternates: at least one for transforms and keyed operators; the first is the one a run starts with.
    returns: schema of what it emits, as Spark DDL (`"word string, n long"`); empty where the input's is kept.
    key: columns that a keyed operator is keyed by.
    max_duration: service level, seconds a record may take from being queued at the operator to having passed it, or
        None where nobody promised anything (VISP's o_slo).
    cores, memory: what one instance needs, in cores of speed 1 and megabytes (VISP's o_cpu, o_memory).
    image: megabytes to fetch before the first instance on a host can start.
    waits: whether it mostly waits (calls a service) and so runs on a pool whose width is its parallelism.
    record_bytes: size of a record that it emits, as it travels to the next; None where nobody said.
    endpoint: what a source reads or a sink writes; see `elastream.model.endpoints`.
    """

    name: str
    kind: Kind = Kind.TRANSFORM
    alternates: tuple[Alternate, ...] = ()
    returns: str = ""
    key: tuple[str, ...] = ()
    max_duration: float | None = None
    cores: float = 1.0
    memory: float = 0.0
    image: float = 0.0
    waits: bool = False
    record_bytes: float | None = None
    endpoint: Any = None

    @property
    def load(self) -> ArrivalPattern | None:
        """The arrival pattern of a source that replays records; None for every other operator."""
        found: ArrivalPattern | None = getattr(self.endpoint, "load", None)
        return found

    def alternate(self, name: str) -> Alternate:
        """The alternate called `name`; raises DataflowError where there is none."""
        for alternate in self.alternates:
            if alternate.name == name:
                return alternate
        known = ", ".join(a.name for a in self.alternates) or "none"
        raise DataflowError(f"operator {self.name!r} has no alternate {name!r} (it has: {known})")


@dataclass(frozen=True, slots=True)
class Edge:
    """A stream from one operator to another.

    durable: the kind of real channel that carries it between two queries (`"parquet"` or `"kafka"`), or None where both
        ends may run as one.
    choice: name of a set of out-edges of which the composition selects exactly one, or None for an edge always on.
    """

    source: str
    target: str
    delivery: Delivery = Delivery.DUPLICATE
    durable: str | None = None
    choice: str | None = None


@dataclass(frozen=True)
class Graph:
    """A checked, immutable dataflow. Building one raises DataflowError with a sentence that names the fault.

    One without operators is that of a plant where nothing runs yet.
    """

    name: str
    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        self._check_names()
        self._check_edges()
        self._check_order()
        self._check_operators()

    @cached_property
    def by_name(self) -> Mapping[str, Operator]:
        """Operators by name, in declaration order."""
        return {operator.name: operator for operator in self.operators}

    @cached_property
    def inputs(self) -> Mapping[str, tuple[Edge, ...]]:
        """Edges into each operator."""
        return self._incident(lambda edge: edge.target)

    @cached_property
    def outputs(self) -> Mapping[str, tuple[Edge, ...]]:
        """Edges out of each operator."""
        return self._incident(lambda edge: edge.source)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Operator names such that each comes after all it reads from; ties in declaration order."""
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

    @property
    def sources(self) -> tuple[Operator, ...]:
        """Operators that records enter by."""
        return tuple(o for o in self.operators if o.kind is Kind.SOURCE)

    @property
    def loads(self) -> Mapping[str, ArrivalPattern]:
        """Arrival pattern of each source that has one, by name."""
        return {o.name: o.load for o in self.sources if o.load is not None}

    @property
    def sinks(self) -> tuple[Operator, ...]:
        """Operators that records leave by."""
        return tuple(o for o in self.operators if o.kind is Kind.SINK)

    @cached_property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Selectable sets of out-edges: name of the choice -> targets that can be chosen, the first being the default."""
        found: dict[str, list[str]] = {}
        for edge in self.edges:
            if edge.choice is not None:
                found.setdefault(edge.choice, []).append(edge.target)
        return {name: tuple(targets) for name, targets in found.items()}

    def operator(self, name: str) -> Operator:
        """The operator called `name`; raises DataflowError where there is none."""
        try:
            return self.by_name[name]
        except KeyError:
            raise DataflowError(f"dataflow {self.name!r} has no operator {name!r}") from None

    def _incident(self, end: Callable[[Edge], str]) -> Mapping[str, tuple[Edge, ...]]:
        found: dict[str, list[Edge]] = {operator.name: [] for operator in self.operators}
        for edge in self.edges:
            found[end(edge)].append(edge)
        return {name: tuple(edges) for name, edges in found.items()}

    def _fail(self, sentence: str) -> None:
        raise DataflowError(f"dataflow {self.name!r}: {sentence}")

    def _check_names(self) -> None:
        seen: set[str] = set()
        for operator in self.operators:
            if not operator.name:
                self._fail("an operator has no name")
            if operator.name in seen:
                self._fail(f"two operators are called {operator.name!r}")
            seen.add(operator.name)

    def _check_edges(self) -> None:
        names = {operator.name for operator in self.operators}
        seen: set[tuple[str, str]] = set()
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end not in names:
                    self._fail(f"the edge {edge.source} -> {edge.target} names the unknown operator {end!r}")
            if (edge.source, edge.target) in seen:
                self._fail(f"the edge {edge.source} -> {edge.target} stands twice")
            if edge.durable not in (None, "parquet", "kafka"):
                self._fail(f"the edge {edge.source} -> {edge.target} is durable as {edge.durable!r}, not parquet or kafka")
            seen.add((edge.source, edge.target))

    def _check_order(self) -> None:
        if len(self.order) != len(self.operators):
            left = set(self.by_name) - set(self.order)
            self._fail(f"it has a cycle: {' -> '.join(self._cycle(left))}")

    def _cycle(self, among: set[str]) -> list[str]:
        # Every operator left over by the topological sort is on a cycle or behind one: walking back always meets one.
        path = [min(among)]
        while True:
            previous = next(edge.source for edge in self.inputs[path[-1]] if edge.source in among)
            if previous in path:
                return [previous, *reversed(path[path.index(previous) :])]
            path.append(previous)

    def _check_operators(self) -> None:
        if not self.operators:
            return
        if not self.sources:
            self._fail("it has no source")
        if not self.sinks:
            self._fail("it has no sink")
        for operator in self.operators:
            self._check_operator(operator)

    def _check_operator(self, operator: Operator) -> None:
        name, inputs, outputs = operator.name, self.inputs[operator.name], self.outputs[operator.name]
        if operator.kind is Kind.SOURCE and inputs:
            self._fail(f"source {name!r} has an input, {inputs[0].source!r}")
        if operator.kind is not Kind.SOURCE and not inputs:
            self._fail(f"operator {name!r} has no input")
        if operator.kind is Kind.SINK and outputs:
            self._fail(f"sink {name!r} has an output, {outputs[0].target!r}")
        if operator.kind is not Kind.SINK and not outputs:
            self._fail(f"the output of operator {name!r} goes nowhere: give it a sink")
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED) and not operator.alternates:
            self._fail(f"operator {name!r} has no function")
        if operator.kind is Kind.KEYED and not operator.key:
            self._fail(f"keyed operator {name!r} has no key")
        if len({alternate.name for alternate in operator.alternates}) != len(operator.alternates):
            self._fail(f"operator {name!r} has two alternates of one name")
        for alternate in operator.alternates:
            if alternate.form is not Form.NONE and not alternate.function:
                self._fail(
                    f"operator {name!r} has no function" + (f" for {alternate.name!r}" if alternate.name != name else "")
                )
        if operator.cores < 0 or operator.memory < 0:
            self._fail(f"operator {name!r} needs a negative amount of cores or memory")
        if operator.record_bytes is not None and operator.record_bytes < 0:
            self._fail(f"operator {name!r} emits records of a negative size")
        if operator.max_duration is not None and operator.max_duration <= 0:
            self._fail(f"operator {name!r} has a maximum duration of {operator.max_duration} s; it must be above 0")


def names(operators: Iterable[Operator]) -> tuple[str, ...]:
    """The operators' names, in order."""
    return tuple(operator.name for operator in operators)
