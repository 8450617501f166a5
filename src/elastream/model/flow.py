"""The Python API to define a dataflow: `Dataflow`, and the streams between its operators.

    flow = Dataflow("word_count")
    lines = flow.source(text_files("books/"), load=ramp("5/s", "550/s", over="60s").then_back())
    words = lines.flat_map(split_words, returns="word string", max_duration="50ms", cores=0.25)
    words.key_by("word").count().sink(parquet("out/"))

Nothing is executed: `flow.graph` validates the dataflow and returns the immutable `Graph`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

from elastream.model.endpoints import ArrivalPattern, Replayable, Simulated, SinkSpec, SourceSpec
from elastream.model.errors import DataflowError
from elastream.model.graph import Alternate, Delivery, Edge, Form, Graph, Kind, Operator
from elastream.model.units import duration, memory

__all__ = ["Dataflow", "KeyedStream", "Needs", "Stream"]

Function = Callable[..., Any]
Functions = Function | Sequence[Alternate] | Mapping[str, Function]


class Needs(TypedDict, total=False):
    """Service level and resource needs of an operator: keyword arguments of the methods that add one."""

    max_duration: float | str
    cores: float
    memory: float | str
    image: float | str
    waits: bool
    record_bytes: float


@dataclass(frozen=True, slots=True)
class Tap:
    """An operator's output that later operators attach to, with the properties of the edges to be added."""

    operator: str
    delivery: Delivery = Delivery.DUPLICATE
    durable: str | None = None
    choice: str | None = None


class Dataflow:
    """A dataflow under construction. `graph` is the validated result; it raises DataflowError for an invalid dataflow."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._operators: list[Operator] = []
        self._edges: list[Edge] = []

    def __repr__(self) -> str:
        return f"Dataflow({self.name!r}, {len(self._operators)} operators)"

    @property
    def graph(self) -> Graph:
        """The dataflow so far, validated. Raises DataflowError."""
        if not self._operators:
            raise DataflowError(f"dataflow {self.name!r}: it has no source")
        return Graph(self.name, tuple(self._operators), tuple(self._edges))

    def source(
        self,
        reads: SourceSpec | None,
        *,
        load: ArrivalPattern | None = None,
        name: str = "source",
        **needs: Unpack[Needs],
    ) -> "Stream":
        """Add a source; with `load` its records arrive at that pattern. `reads=None`: for simulation only."""
        if load is not None:
            if reads is not None and not isinstance(reads, Replayable):
                raise DataflowError(f"source {name!r}: a load needs records to replay, such as text_files(...)")
            reads = Simulated(load) if reads is None else replace(reads, load=load)
        returns = reads.schema if reads is not None else ""
        self._operators.append(Operator(name, Kind.SOURCE, returns=returns, reads=reads, **_needs(needs)))
        return Stream(self, (Tap(name),))

    def add(self, operator: Operator, taps: Sequence[Tap], delivery: Delivery | None = None) -> "Stream":
        """Add `operator` downstream of `taps`. For front ends; programs use the methods of `Stream`."""
        self._operators.append(operator)
        self._edges += [
            Edge(tap.operator, operator.name, delivery or tap.delivery, tap.durable, tap.choice) for tap in taps
        ]
        return Stream(self, (Tap(operator.name),))

    def free_name(self, wanted: str) -> str:
        """`wanted`, with a number appended if an operator has that name already."""
        taken = {operator.name for operator in self._operators}
        if wanted not in taken:
            return wanted
        return next(name for n in range(2, len(taken) + 3) if (name := f"{wanted}_{n}") not in taken)


class Stream:
    """The output records of one or more operators, to which further operators are attached."""

    def __init__(self, flow: Dataflow, taps: tuple[Tap, ...]) -> None:
        self._flow = flow
        self._taps = taps

    def map(self, function: Functions, *, returns: str, name: str | None = None, **needs: Unpack[Needs]) -> "Stream":
        """Add an operator with one record in, one record out."""
        return self._then(Form.MAP, function, returns, name, needs)

    def flat_map(self, function: Functions, *, returns: str, name: str | None = None, **needs: Unpack[Needs]) -> "Stream":
        """Add an operator with one record in, any number out (an iterable)."""
        return self._then(Form.FLAT_MAP, function, returns, name, needs)

    def filter(self, function: Functions, *, name: str | None = None, **needs: Unpack[Needs]) -> "Stream":
        """Add an operator that keeps the records for which the function returns a true value."""
        return self._then(Form.FILTER, function, "", name, needs)

    def map_arrow(self, function: Functions, *, returns: str, name: str | None = None, **needs: Unpack[Needs]) -> "Stream":
        """Add an operator `pyarrow.RecordBatch -> pyarrow.RecordBatch`."""
        return self._then(Form.ARROW, function, returns, name, needs)

    def map_pandas(self, function: Functions, *, returns: str, name: str | None = None, **needs: Unpack[Needs]) -> "Stream":
        """Add an operator `pandas.DataFrame -> pandas.DataFrame`."""
        return self._then(Form.PANDAS, function, returns, name, needs)

    def select(self, columns: Mapping[str, str], *, name: str = "select", returns: str = "") -> "Stream":
        """Add native Spark column expressions, SQL text by name of the new column: `select({"word": "lower(value)"})`."""
        chosen = self._flow.free_name(name)
        selected = _expressions(chosen, columns)
        operator = Operator(chosen, Kind.TRANSFORM, (Alternate(chosen, selected, Form.COLUMNS),), returns)
        return self._flow.add(operator, self._taps)

    def key_by(self, *columns: str) -> "KeyedStream":
        """Group records by key, for an operator with state."""
        return KeyedStream(self._flow, self._taps, columns)

    def merge(self, *others: "Stream") -> "Stream":
        """Fan-in: merge streams, which must have the same columns."""
        return Stream(self._flow, self._taps + tuple(tap for other in others for tap in other._taps))

    def deal(self) -> "Stream":
        """Fan-out by round-robin: the attached operators share the records instead of each getting all."""
        return self._tapped(delivery=Delivery.ROUND_ROBIN)

    def durable(self, kind: str = "parquet") -> "Stream":
        """Cut here: a durable channel (`"parquet"` or `"kafka"`); the operators after it run as a separate query."""
        return self._tapped(durable=kind)

    def choice(self, name: str) -> "Stream":
        """Selectable edges: the composition selects one of the operators attached to this stream."""
        return self._tapped(choice=name)

    def sink(self, writes: SinkSpec | None, *, name: str = "sink") -> None:
        """Add a sink. `writes=None`: for simulation only."""
        self._flow.add(Operator(self._flow.free_name(name), Kind.SINK, writes=writes, cores=0.0), self._taps)

    def _tapped(self, **changes: Any) -> "Stream":
        return Stream(self._flow, tuple(replace(tap, **changes) for tap in self._taps))

    def _then(self, form: Form, function: Functions, returns: str, name: str | None, needs: Needs) -> "Stream":
        chosen, alternates = _alternates(self._flow, function, form, name)
        return self._flow.add(Operator(chosen, Kind.TRANSFORM, alternates, returns, **_needs(needs)), self._taps)


class KeyedStream:
    """Records grouped by key, to which operators with state are attached."""

    def __init__(self, flow: Dataflow, taps: tuple[Tap, ...], key: tuple[str, ...]) -> None:
        self._flow = flow
        self._taps = taps
        self._key = key

    def count(self, *, name: str = "count", **needs: Unpack[Needs]) -> Stream:
        """Add a native Spark count of records per key, in a column `count`."""
        return self.aggregate({"count": "count(*)"}, name=name, **needs)

    def aggregate(self, columns: Mapping[str, str], *, name: str = "aggregate", **needs: Unpack[Needs]) -> Stream:
        """Add native Spark aggregates, SQL text by name of the new column: `aggregate({"total": "sum(n)"})`."""
        return self._keyed(name, Form.AGGREGATE, _expressions(self._flow.free_name(name), columns), "", needs)

    def apply(
        self, function: Function, *, returns: str, state: str, name: str | None = None, **needs: Unpack[Needs]
    ) -> Stream:
        """Add a function with state: `(key, rows, state) -> (rows, state)`.

        key: a tuple. rows: a pandas DataFrame of this micro-batch's records of the key. state: a tuple in the schema
        `state`, None at first. It returns a DataFrame in the schema `returns` and the new state.
        """
        wanted = name or str(getattr(function, "__name__", "apply"))
        return self._keyed(wanted, Form.STATE, function, returns, needs, state)

    def _keyed(self, name: str, form: Form, function: Any, returns: str, needs: Needs, state: str | None = None) -> Stream:
        chosen = self._flow.free_name(name)
        alternates = (Alternate(chosen, function, form),)
        operator = Operator(chosen, Kind.KEYED, alternates, returns, self._key, state=state, **_needs(needs))
        return self._flow.add(operator, self._taps, Delivery.KEYED)


def _alternates(flow: Dataflow, function: Functions, form: Form, name: str | None) -> tuple[str, tuple[Alternate, ...]]:
    """Name of the operator and its alternates, from one function, functions by name, or `Alternate` objects."""
    if isinstance(function, Mapping):
        chosen = name or flow.free_name(next(iter(function), form.value))
        return chosen, tuple(Alternate(label, each, form) for label, each in function.items())
    if isinstance(function, Sequence):
        chosen = name or flow.free_name(function[0].name if function else form.value)
        return chosen, tuple(replace(each, form=form) if each.form is Form.NONE else each for each in function)
    label = getattr(function, "__name__", form.value)
    chosen = name or flow.free_name(form.value if label == "<lambda>" else label)
    return chosen, (Alternate(chosen, function, form),)


def _expressions(operator: str, columns: Mapping[str, str]) -> dict[str, str]:
    """`columns` as they are kept; raises DataflowError where they are not SQL texts by the name of a column."""
    texts = isinstance(columns, Mapping) and all(isinstance(text, str) for pair in columns.items() for text in pair)
    if not (texts and columns):
        raise DataflowError(
            f"operator {operator!r}: {columns!r} is not SQL text by column name, such as {{'word': 'lower(value)'}}"
        )
    return dict(columns)


def _needs(needs: Needs) -> dict[str, Any]:
    found: dict[str, Any] = dict(needs)
    if (longest := needs.get("max_duration")) is not None:
        found["max_duration"] = duration(longest)
    for amount in ("memory", "image"):
        if amount in found:
            found[amount] = memory(found[amount])
    return found
