"""The dataflow graph: operators, their alternates, and edges, validated once and immutable.

Plants and policies share this structure. User functions are opaque values that only the Spark plant calls.
`elastream.model.flow` is the API to define a graph; `elastream.model.stages` determines which operators run together.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from elastream.model.endpoints import ArrivalPattern, DomainSignal, SinkSpec, SourceSpec
from elastream.model.errors import DataflowError
from elastream.model.signals import Signal
from elastream.model.windows import Timeout, Window

__all__ = ["Alternate", "Delivery", "Edge", "Form", "Graph", "Kind", "Operator", "emits_as_many"]


class Kind(StrEnum):
    """Role of an operator in the graph."""

    SOURCE = "source"
    """No input; emits records read from outside."""
    TRANSFORM = "transform"
    """Stateless: its output depends on the current record alone."""
    KEYED = "keyed"
    """Stateful per key: preceded by a shuffle by key."""
    SINK = "sink"
    """No output; writes records to outside."""


class Form(StrEnum):
    """Calling convention of an alternate's function."""

    ARROW = "arrow"
    """`RecordBatch -> RecordBatch`."""
    PANDAS = "pandas"
    """`DataFrame -> DataFrame`."""
    MAP = "map"
    """One record in, one out. A record is its value if the stream has one column, else a dict by column."""
    FLAT_MAP = "flat_map"
    """One record in, any number out."""
    FILTER = "filter"
    """One record in, a truth value out: whether to keep it."""
    COLUMNS = "columns"
    """Native Spark column expressions (SQL text by column name), evaluated in the JVM."""
    AGGREGATE = "aggregate"
    """Native Spark aggregation per key (SQL text by column name)."""
    STATE = "state"
    """A function with state per key: `(key, rows, state) -> (rows, state)`, pandas in and out."""
    STREAM = "stream"
    """Pull: `Iterator[RecordBatch] -> Iterator[RecordBatch]`, called once per task and micro-batch with its records as
    they come. It may emit before it has read all, any number of records; nothing of it lasts beyond the micro-batch."""
    WINDOW = "window"
    """`(key, rows) -> rows`, pandas in and out, called once for each complete window of a key (`Operator.window`), with its
    records in order. key: the values of the key's columns; in a time window its start and end follow, as timestamps. Which
    alternate: that of the micro-batch in which the window was found complete."""
    JOIN = "join"
    """`(key, left, right) -> rows`, pandas in and out: the records of a key from two inputs (`Edge.port` 0 and 1) whose
    windows correspond, called once both are complete: the same time window, or the n-th of either side. In a time window
    one side may be empty (not both)."""
    ZIP = "zip"
    """No function of the user's: the n-th records of all inputs (`Edge.port` 0, 1, ...) become one record with the columns
    of all, in order of the ports, as soon as all have come (synchronised merge). Its inputs are sequential; it has no key
    and runs in one task. Those that wait are its state."""
    NONE = "none"
    """No function: sources, sinks, and operators that exist in simulation only."""


class Delivery(StrEnum):
    """Which records of an operator are sent over an out-edge."""

    DUPLICATE = "duplicate"
    """Every record is sent over every such edge."""
    ROUND_ROBIN = "round_robin"
    """Records are sent over the operator's round-robin edges in turn."""
    KEYED = "keyed"
    """Every record is sent, to the instance chosen by its key."""


@dataclass(frozen=True, slots=True)
class Alternate:
    """One implementation of an operator (thesis, section 2.2: value, cost and selectivity of an alternate).

    value: relative to the best alternate, in [0, 1]. cost: core-seconds per record on a core of speed 1; None: measured
    only. selectivity: records out per record in; None: measured only. state: schema of a state of its own, where it is not
    that of the operator. returns: schema of its output where it says so itself: it must be that of the operator.
    """

    name: str
    function: Callable[..., Any] | Mapping[str, str] | None = None
    form: Form = Form.NONE
    value: float = 1.0
    cost: float | None = None
    selectivity: float | None = None
    state: str | None = None
    returns: str = ""


@dataclass(frozen=True, slots=True)
class Operator:
    """A step of the dataflow, with its service level and the resources that one instance needs.

    name: unique within the dataflow.
    alternates: at least one for transforms and keyed operators; a run starts with the first.
    returns: schema of its output, as Spark DDL (`"word string, n long"`); empty: that of its input.
    key: columns that a keyed operator groups by.
    max_duration: service level, the most seconds from a record's queueing at the operator to its completion, or None
        without one (VISP's o_slo).
    cores, memory: what one instance needs, in cores of speed 1 and megabytes (VISP's o_cpu, o_memory).
    image: megabytes to fetch before the first instance on a host can start.
    waits: whether it mostly waits (calls a service) and runs on a thread pool as wide as its parallelism.
    record_bytes: size of an emitted record in transit; None if not declared.
    reads, writes: what a source reads and a sink writes (`elastream.model.endpoints`), None where that is only simulated.
    state: schema of the state of a keyed function, as Spark DDL.
    own_state: whether each alternate of a keyed operator has a state of its own (`state_of`) instead of one for all. One
        that is not active keeps its state as it left it; one that never ran finds None.
    selects: columns of the key by which a key table may choose the alternate; empty: one alternate for all records. Of a
        keyed operator they are among those of its key.
    window: of a keyed operator with forms WINDOW, JOIN and AGGREGATE. An AGGREGATE without one is over all records so far;
        with one, always of time, it emits the key, `window_start timestamp, window_end timestamp`, and the aggregates.
    timeout: when the state of a key ends; None: never.
    sequential: whether it keeps the order of its records, in one task: the stage that it runs in has a fixed parallelism
        of 1.
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
    reads: SourceSpec | None = None
    writes: SinkSpec | None = None
    state: str | None = None
    own_state: bool = False
    selects: tuple[str, ...] = ()
    window: Window | None = None
    timeout: Timeout | None = None
    sequential: bool = False

    @property
    def load(self) -> ArrivalPattern | None:
        """The arrival pattern of a source that replays records; None for every other operator."""
        found: ArrivalPattern | None = getattr(self.reads, "load", None)
        return found

    def state_of(self, alternate: Alternate) -> str | None:
        """Schema of the state that `alternate` gets and leaves, as Spark DDL."""
        return alternate.state or self.state

    def alternate(self, name: str) -> Alternate:
        """The alternate named `name`. Raises DataflowError if there is none."""
        for alternate in self.alternates:
            if alternate.name == name:
                return alternate
        known = ", ".join(a.name for a in self.alternates) or "none"
        raise DataflowError(f"operator {self.name!r} has no alternate {name!r} (it has: {known})")


@dataclass(frozen=True, slots=True)
class Edge:
    """A stream from one operator to another.

    durable: the kind of channel between two queries (`"parquet"` or `"kafka"`); None: both ends may run in one query.
    choice: name of a set of out-edges of which the composition selects exactly one; None: the edge is always active. They
        leave one operator and are two or more. A branch may lead to a sink that writes `Nothing`: while it is selected, no
        record goes on.
    value: of a branch of a choice, relative to the best one, in [0, 1], as an alternate's.
    port: the input of a join or zip that it feeds, from 0; streams into one port are merged. 0 for all other operators.
    """

    source: str
    target: str
    delivery: Delivery = Delivery.DUPLICATE
    durable: str | None = None
    choice: str | None = None
    value: float = 1.0
    port: int = 0


@dataclass(frozen=True)
class Graph:
    """A validated, immutable dataflow. Construction raises DataflowError that names the fault.

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
        """Operators of kind SOURCE."""
        return tuple(o for o in self.operators if o.kind is Kind.SOURCE)

    @cached_property
    def loads(self) -> Mapping[str, ArrivalPattern]:
        """Arrival pattern of each source that has one, by name."""
        return {o.name: o.load for o in self.sources if o.load is not None}

    @cached_property
    def sinks(self) -> tuple[Operator, ...]:
        """Operators of kind SINK."""
        return tuple(o for o in self.operators if o.kind is Kind.SINK)

    @cached_property
    def signals(self) -> Mapping[str, Signal]:
        """The domain signals that its diagnostic branches give, by name."""
        return {o.writes.name: o.writes.declared for o in self.sinks if isinstance(o.writes, DomainSignal)}

    @cached_property
    def by_alternate(self) -> Mapping[str, tuple[Operator, Alternate]]:
        """Operator and alternate by the id of their row in observations, `"operator.alternate"`."""
        return {f"{o.name}.{a.name}": (o, a) for o in self.operators for a in o.alternates}

    @cached_property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Selectable sets of out-edges: name of the choice -> targets, the first being the default."""
        found: dict[str, list[str]] = {}
        for edge in self.edges:
            if edge.choice is not None:
                found.setdefault(edge.choice, []).append(edge.target)
        return {name: tuple(targets) for name, targets in found.items()}

    def operator(self, name: str) -> Operator:
        """The operator named `name`. Raises DataflowError if there is none."""
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
                self._fail(f"the edge {edge.source} -> {edge.target} is declared twice")
            if edge.durable not in (None, "parquet", "kafka"):
                self._fail(f"the edge {edge.source} -> {edge.target} is durable as {edge.durable!r}, not parquet or kafka")
            seen.add((edge.source, edge.target))

    def _check_order(self) -> None:
        if len(self.order) != len(self.operators):
            left = set(self.by_name) - set(self.order)
            self._fail(f"it has a cycle: {' -> '.join(self._cycle(left))}")

    def _cycle(self, among: set[str]) -> list[str]:
        # Every operator not reached by the topological sort is on or downstream of a cycle: walking upstream finds one.
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
        if operator.kind is Kind.KEYED and not operator.key and operator.alternates[0].form is not Form.ZIP:
            self._fail(f"keyed operator {name!r} has no key")
        if len({alternate.name for alternate in operator.alternates}) != len(operator.alternates):
            self._fail(f"operator {name!r} has two alternates of one name")
        for alternate in operator.alternates:
            if alternate.form not in (Form.NONE, Form.ZIP) and not alternate.function:
                self._fail(
                    f"operator {name!r} has no function" + (f" for {alternate.name!r}" if alternate.name != name else "")
                )
        if operator.cores < 0 or operator.memory < 0:
            self._fail(f"operator {name!r} needs a negative amount of cores or memory")
        if operator.record_bytes is not None and operator.record_bytes < 0:
            self._fail(f"operator {name!r} emits records of a negative size")
        if operator.max_duration is not None and operator.max_duration <= 0:
            self._fail(f"operator {name!r} has a maximum duration of {operator.max_duration} s; it must be above 0")


_SEVERAL = re.compile(
    r"\b(explode|explode_outer|posexplode|posexplode_outer|inline|inline_outer|stack|json_tuple|variant_explode)\s*\(", re.I
)
"""Spark's functions that give several records for one."""


def emits_as_many(operator: Operator) -> bool:
    """Whether an operator of column expressions emits one record for each: none of them gives several."""
    columns = [alternate.function for alternate in operator.alternates if isinstance(alternate.function, Mapping)]
    return bool(columns) and not any(_SEVERAL.search(text) for each in columns for text in each.values())
