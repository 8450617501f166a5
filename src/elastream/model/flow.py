"""How a dataflow is written down in Python: `Dataflow`, and the streams between its operators.

    flow = Dataflow("word_count")
    lines = flow.source(text_files("books/"), load=ramp("5/s", "550/s", over="60s").then_back())
    words = lines.flat_map(split_words, returns="word string", max_duration="50ms", cores=0.25)
    words.key_by("word").count().sink(parquet("out/"))

Nothing runs here: `flow.graph` checks it all and returns the immutable `Graph`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

from elastream.model.endpoints import ArrivalPattern, KafkaTopic, SinkSpec, SourceSpec
from elastream.model.errors import DataflowError
from elastream.model.graph import Alternate, Delivery, Edge, Form, Graph, Kind, Operator
from elastream.model.units import duration, memory

__all__ = ["Dataflow", "KeyedStream", "Needs", "Stream"]

Function = Callable[..., Any]
Functions = Function | Sequence[Alternate] | Mapping[str, Function]


class Needs(TypedDict, total=False):
    """Service level and needs of an operator, as keyword arguments of every method that adds one."""

    max_duration: float | str
    cores: float
    memory: float | str
    image: float | str
    waits: bool
    record_bytes: float


@dataclass(frozen=True, slots=True)
class Tap:
    """The upstream end of edges to come."""

    operator: str
    delivery: Delivery = Delivery.DUPLICATE
    durable: str | None = None
    choice: str | None = None


class Dataflow:
    """A dataflow being written. `graph` is the checked result; anything wrong raises DataflowError there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._operators: list[Operator] = []
        self._edges: list[Edge] = []

    def __repr__(self) -> str:
        return f"Dataflow({self.name!r}, {len(self._operators)} operators)"

    @property
    def graph(self) -> Graph:
        """The dataflow so far, checked."""
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
        """Records from outside; with `load` they arrive at that pattern. `reads=None` is a source for simulation only."""
        if load is not None:
            if reads is None or isinstance(reads, KafkaTopic):
                raise DataflowError(f"source {name!r}: a load needs records to draw from, text_files(...) for example")
            reads = replace(reads, load=load)
        returns = reads.schema if reads is not None else ""
        self._operators.append(Operator(name, Kind.SOURCE, returns=returns, endpoint=reads, **_needs(needs)))
        return Stream(self, (Tap(name),))

    def add(self, operator: Operator, taps: Sequence[Tap], delivery: Delivery | None = None) -> "Stream":
        """Append `operator` behind `taps`. For front ends; the methods of `Stream` read better."""
        self._operators.append(operator)
        self._edges += [
            Edge(tap.operator, operator.name, delivery or tap.delivery, tap.durable, tap.choice) for tap in taps
        ]
        return Stream(self, (Tap(operator.name),))

    def free_name(self, wanted: str) -> str:
        """`wanted`, or with a number behind it where an operator is called so already."""
        taken = {operator.name for operator in self._operators}
        if wanted not in taken:
            return wanted
        return next(name for n in range(2, len(taken) + 3) if (name := f"{wanted}_{n}") not in taken)


class Stream:
    """Records on their way from one or more operators to the next."""

    def __init__(self, flow: Dataflow, taps: tuple[Tap, ...]) -> None:
        self._flow = flow
        self._taps = taps

    def map(self, function: Functions, *, returns: str, name: str | None = None, **needs: Unpack[Needs]) -> "Stream":
        """One record in, one out."""
        return self._then(Form.MAP, function, returns, name, needs)

    def flat_map(self, function: Functions, *, returns: str, name: str | None = None, **needs: Unpack[Needs]) -> "Stream":
        """One record in, any number out (an iterable)."""
        return self._then(Form.FLAT_MAP, function, returns, name, needs)

    def filter(self, function: Functions, *, name: str | None = None, **needs: Unpack[Needs]) -> "Stream":
        """Keep the records for which the function says true."""
        return self._then(Form.FILTER, function, "", name, needs)

    def map_arrow(self, function: Functions, *, returns: str, name: str | None = None, **needs: Unpack[Needs]) -> "Stream":
        """`pyarrow.RecordBatch -> pyarrow.RecordBatch`."""
        return self._then(Form.ARROW, function, returns, name, needs)

    def map_pandas(self, function: Functions, *, returns: str, name: str | None = None, **needs: Unpack[Needs]) -> "Stream":
        """`pandas.DataFrame -> pandas.DataFrame`."""
        return self._then(Form.PANDAS, function, returns, name, needs)

    def select(self, *, name: str = "select", returns: str = "", **columns: str) -> "Stream":
        """Native Spark column expressions, SQL text by the name of the new column: `select(word="lower(value)")`."""
        if not columns:
            raise DataflowError(f"operator {name!r} selects no column")
        chosen = self._flow.free_name(name)
        operator = Operator(chosen, Kind.TRANSFORM, (Alternate(chosen, columns, Form.COLUMNS),), returns)
        return self._flow.add(operator, self._taps)

    def key_by(self, *columns: str) -> "KeyedStream":
        """Bring all records of a key together, for an operator with state."""
        return KeyedStream(self._flow, self._taps, columns)

    def merge(self, *others: "Stream") -> "Stream":
        """Fan-in: the records of all these streams, which must have the same columns."""
        return Stream(self._flow, self._taps + tuple(tap for other in others for tap in other._taps))

    def deal(self) -> "Stream":
        """Fan-out by round-robin: the operators that follow share the records instead of each getting all."""
        return self._tapped(delivery=Delivery.ROUND_ROBIN)

    def durable(self, kind: str = "parquet") -> "Stream":
        """Cut here: a real channel (`"parquet"` or `"kafka"`), with what follows a query of its own."""
        return self._tapped(durable=kind)

    def choice(self, name: str) -> "Stream":
        """Selectable edges: of the operators attached to this stream, the composition chooses one."""
        return self._tapped(choice=name)

    def sink(self, writes: SinkSpec | None, *, name: str = "sink") -> None:
        """Records leave. `writes=None` is a sink for simulation only."""
        self._flow.add(Operator(self._flow.free_name(name), Kind.SINK, endpoint=writes, cores=0.0), self._taps)

    def _tapped(self, **changes: Any) -> "Stream":
        return Stream(self._flow, tuple(replace(tap, **changes) for tap in self._taps))

    def _then(self, form: Form, function: Functions, returns: str, name: str | None, needs: Needs) -> "Stream":
        chosen, alternates = _alternates(self._flow, function, form, name)
        return self._flow.add(Operator(chosen, Kind.TRANSFORM, alternates, returns, **_needs(needs)), self._taps)


class KeyedStream:
    """Records brought together by key."""

    def __init__(self, flow: Dataflow, taps: tuple[Tap, ...], key: tuple[str, ...]) -> None:
        self._flow = flow
        self._taps = taps
        self._key = key

    def count(self, *, name: str = "count", **needs: Unpack[Needs]) -> Stream:
        """How many records each key has had, in a column `count`; native Spark."""
        return self.aggregate(name=name, columns={"count": "count(*)"}, **needs)

    def aggregate(self, *, columns: Mapping[str, str], name: str = "aggregate", **needs: Unpack[Needs]) -> Stream:
        """Native Spark aggregates, SQL text by the name of the new column: `aggregate(columns={"total": "sum(n)"})`."""
        return self._keyed(name, Form.AGGREGATE, dict(columns), "", needs)

    def apply(
        self, function: Function, *, returns: str, state: str, name: str | None = None, **needs: Unpack[Needs]
    ) -> Stream:
        """A function with state: `(key, rows, state) -> (rows, state)`.

        `key` is a tuple, `rows` a pandas DataFrame of this micro-batch's records of the key, `state` a tuple in the
        schema `state` (None at first); it returns a DataFrame in the schema `returns` and the new state.
        """
        wanted = name or str(getattr(function, "__name__", "apply"))
        return self._keyed(wanted, Form.STATE, function, returns, needs, state)

    def _keyed(self, name: str, form: Form, function: Any, returns: str, needs: Needs, state: str | None = None) -> Stream:
        chosen = self._flow.free_name(name)
        operator = Operator(
            chosen,
            Kind.KEYED,
            (Alternate(chosen, function, form),),
            returns,
            key=self._key,
            endpoint=state,
            **_needs(needs),
        )
        return self._flow.add(operator, self._taps, Delivery.KEYED)


def _alternates(flow: Dataflow, function: Functions, form: Form, name: str | None) -> tuple[str, tuple[Alternate, ...]]:
    """Name of the operator and its alternates, from one function, functions by name, or alternates made by hand."""
    if isinstance(function, Mapping):
        chosen = name or flow.free_name(next(iter(function), form.value))
        return chosen, tuple(Alternate(label, each, form) for label, each in function.items())
    if isinstance(function, Sequence):
        chosen = name or flow.free_name(function[0].name if function else form.value)
        return chosen, tuple(replace(each, form=form) if each.form is Form.NONE else each for each in function)
    label = getattr(function, "__name__", form.value)
    chosen = name or flow.free_name(form.value if label == "<lambda>" else label)
    return chosen, (Alternate(chosen, function, form),)


def _needs(needs: Needs) -> dict[str, Any]:
    found: dict[str, Any] = dict(needs)
    if (longest := needs.get("max_duration")) is not None:
        found["max_duration"] = duration(longest)
    for amount in ("memory", "image"):
        if amount in found:
            found[amount] = memory(found[amount])
    return found
