"""The Python API to define a dataflow: `Dataflow`, and the streams between its operators.

    flow = Dataflow("word_count")
    lines = flow.source(text_files("books/"), load=ramp("5/s", "550/s", over="60s").then_back())
    words = lines.flat_map(split_words, returns="word string", max_duration="50ms", cores=0.25)
    words.key_by("word").count().sink(parquet("out/"))

Nothing is executed: `flow.graph` validates the dataflow and returns the immutable `Graph`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NoReturn, Protocol, TypedDict, TypeVar, Unpack

from elastream.dataflow.endpoints import (
    ArrivalPattern,
    Nothing,
    Replayable,
    Simulated,
    SinkSpec,
    SourceSpec,
    domain_signal,
)
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Form, Kind, OnError, Operator
from elastream.dataflow.signals import SignalValue
from elastream.dataflow.windows import Pairs, Timeout, Window
from elastream.errors import DataflowError
from elastream.units import duration, memory

Function = Callable[..., Any]
Functions = Function | Sequence[Alternate] | Mapping[str, Function]
"""One function; functions by the name of the alternate; or alternates with values, costs and selectivities."""


class Needs(TypedDict, total=False):
    """Service level and resource needs of an operator: keyword arguments of the methods that add one.

    select_by: columns of the key by which a key table may choose the alternate.
    on_error: `"fail"`, `"skip"` or `"dead_letter"`: what becomes of a record on which a function raises
    (`elastream.dataflow.operators.OnError`).
    """

    max_duration: float | str
    cores: float
    memory: float | str
    image: float | str
    waits: bool
    record_bytes: float
    select_by: str | Sequence[str]
    on_error: str


@dataclass(frozen=True, slots=True)
class Tap:
    """An operator's output that later operators attach to, with the properties of the edges to be added."""

    operator: str
    delivery: Delivery = Delivery.DUPLICATE
    durable: str | None = None
    choice: str | None = None
    value: float = 1.0
    port: int = 0


S_co = TypeVar("S_co", covariant=True)


class Builder(Protocol[S_co]):
    """A dataflow under construction, to which operators are added; each gives a stream of its output."""

    name: str

    def add(self, operator: Operator, taps: Sequence[Tap], delivery: Delivery | None = None) -> S_co:
        """Add `operator` downstream of `taps`."""
        ...

    def free_name(self, wanted: str) -> str:
        """`wanted`, with a number appended if an operator has that name already."""
        ...


def timeout(
    seconds: float | str, *, by: str = "", late: float | str = 0.0, emits: Callable[..., Any] | None = None
) -> Timeout:
    """When the state of a key ends: `seconds` after its last record, by the clock or by the timestamps in column `by`.

    late: seconds by which records may come late. emits: `(key, state) -> rows`, called once as the state ends.
    """
    return Timeout(duration(seconds), by, duration(late), emits)


def alternates_of(
    flow: Builder[Any], function: Functions, form: Form, name: str | None
) -> tuple[str, tuple[Alternate, ...]]:
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


def expressions_of(operator: str, columns: Mapping[str, str]) -> dict[str, str]:
    """`columns` as they are kept; raises DataflowError where they are not SQL texts by the name of a column."""
    texts = isinstance(columns, Mapping) and all(isinstance(text, str) for pair in columns.items() for text in pair)
    if not (texts and columns):
        nested = isinstance(columns, Mapping) and any(isinstance(each, Mapping) for each in columns.values())
        more = (
            ": native expressions have no alternates, because Spark cannot change them in a running query: write "
            "functions, with map_arrow, or with apply behind key_by"
            if nested
            else ""
        )
        raise DataflowError(
            f"operator {operator!r}: {columns!r} is not SQL text by column name, such as {{'word': 'lower(value)'}}{more}"
        )
    return dict(columns)


def fields_of(needs: Needs) -> dict[str, Any]:
    """Fields of an operator for its `needs`. Raises DataflowError for one that there is none of."""
    for name in needs:
        if name not in Needs.__annotations__:
            raise DataflowError(f"an operator has no {name!r}; {_where(name)}")
    found: dict[str, Any] = dict(needs)
    if (longest := needs.get("max_duration")) is not None:
        found["max_duration"] = duration(longest)
    for amount in ("memory", "image"):
        if amount in found:
            found[amount] = memory(found[amount])
    if (columns := found.pop("select_by", None)) is not None:
        found["selects"] = (columns,) if isinstance(columns, str) else tuple(columns)
    if "on_error" in needs:
        found["on_error"] = _on_error(needs["on_error"])
    return found


def _where(name: str) -> str:
    """Where what operators do not take belongs."""
    if name in (each.name for each in fields(Alternate)):
        return f"it is an alternate's: [Alternate('...', function, {name}=...)]"
    return f"known: {', '.join(Needs.__annotations__)}"


def _on_error(given: str) -> OnError:
    try:
        return OnError(given)
    except ValueError:
        known = ", ".join(repr(each.value) for each in OnError)
        raise DataflowError(f"on_error is {given!r}; it is one of {known}") from None


S = TypeVar("S")


class _Tapped(Protocol):
    @property
    def taps(self) -> tuple[Tap, ...]: ...


class _Groups(Generic[S]):
    """Records grouped by `key`, and by window if there is one."""

    def __init__(self, flow: Builder[S], taps: tuple[Tap, ...], key: tuple[str, ...], window: Window | None = None) -> None:
        self._flow, self._taps, self._key, self._window = flow, taps, key, window

    def count(
        self, *, name: str = "count", cost: float | None = None, selectivity: float | None = None, **needs: Unpack[Needs]
    ) -> S:
        """Add a native Spark count of records per key, in a column `count`. cost, selectivity: as of an `Alternate`."""
        return self.aggregate({"count": "count(*)"}, name=name, cost=cost, selectivity=selectivity, **needs)

    def aggregate(
        self,
        columns: Mapping[str, str],
        *,
        name: str = "aggregate",
        cost: float | None = None,
        selectivity: float | None = None,
        **needs: Unpack[Needs],
    ) -> S:
        """Add native Spark aggregates, SQL text by name of the new column: `aggregate({"total": "sum(n)"})`.

        In windows of time the rows have `window_start` and `window_end` behind the key. cost, selectivity: as of an
        `Alternate`, which an aggregate is not.
        """
        chosen = self._flow.free_name(name)
        made = Alternate(chosen, expressions_of(chosen, columns), Form.AGGREGATE, cost=cost, selectivity=selectivity)
        return self._keyed(chosen, (made,), needs)

    def _keyed(self, name: str, alternates: tuple[Alternate, ...], needs: Needs, **fields: Any) -> S:
        operator = Operator(name, Kind.KEYED, alternates, key=self._key, window=self._window, **fields, **fields_of(needs))
        return self._flow.add(operator, self._taps, Delivery.KEYED)


class KeyedStream(_Groups[S]):
    """Records grouped by key, to which operators with state are attached."""

    def apply(
        self,
        function: Functions,
        *,
        returns: str,
        state: str | Mapping[str, str],
        own_state: bool = False,
        timeout: float | str | Timeout | None = None,
        name: str | None = None,
        **needs: Unpack[Needs],
    ) -> S:
        """Add a function with state: `(key, rows, state) -> (rows, state)`, or several as alternates.

        key: a tuple. rows: a pandas DataFrame of this micro-batch's records of the key. state: a tuple in the schema
        `state`, None at first. It returns a DataFrame in the schema `returns` and the new state.

        Alternates share one state, whichever runs; with `own_state`, or with a schema for each by name, each has its own,
        which stays as it was left while another runs. timeout: how long after its last record the state of a key ends, or
        `elastream.timeout(...)`; None: never.
        """
        chosen, alternates = alternates_of(self._flow, function, Form.STATE, name)
        schemas = {} if isinstance(state, str) else dict(state)
        if unknown := [each for each in schemas if each not in {alternate.name for alternate in alternates}]:
            raise DataflowError(
                f"operator {chosen!r} has no alternate {unknown[0]!r} to have a state (it has: "
                f"{', '.join(alternate.name for alternate in alternates)})"
            )
        alternates = tuple(replace(each, state=schemas.get(each.name, each.state)) for each in alternates)
        fields: dict[str, Any] = {"own_state": own_state or bool(schemas) or any(each.state for each in alternates)}
        fields["state"] = state if isinstance(state, str) else None
        return self._keyed(chosen, alternates, needs, returns=returns, timeout=_timeout(timeout), **fields)


class WindowedGroups(_Groups[S]):
    """Records grouped by key and window."""

    def apply(
        self,
        function: Functions,
        *,
        returns: str,
        timeout: float | str | Timeout | None = None,
        name: str | None = None,
        **needs: Unpack[Needs],
    ) -> S:
        """Add a function `(key, rows) -> rows`, or several as alternates, called once for each complete window of a key.

        rows: a pandas DataFrame of its records. It returns one in the schema `returns`. timeout: after how long without a
        record of its key an incomplete window of count or landmark is emitted as it is; None: never.
        """
        chosen, alternates = alternates_of(self._flow, function, Form.WINDOW, name)
        return self._keyed(chosen, alternates, needs, returns=returns, timeout=_timeout(timeout))


class WindowedStream(Generic[S]):
    """Records in windows, still to be grouped or joined: `stream.window(seconds="30s", by="time").group_by("customer")`."""

    def __init__(self, flow: Builder[S], taps: tuple[Tap, ...], window: Window) -> None:
        self._flow, self._taps, self._window = flow, taps, window

    def group_by(self, *columns: str) -> WindowedGroups[S]:
        """Group the records of a window by key."""
        return WindowedGroups(self._flow, self._taps, columns, self._window)

    def join(
        self,
        other: _Tapped,
        on: str | Sequence[str],
        function: Functions | None = None,
        *,
        returns: str = "",
        timeout: float | str | Timeout | None = None,
        name: str | None = None,
        **needs: Unpack[Needs],
    ) -> S:
        """Join with the stream `other`, window by window, on equal values in the columns `on`.

        Without a function it emits every pair of a left and a right record: the columns `on`, then the left's, then the
        right's. Else `(key, left, right) -> rows` of pandas DataFrames, or several as alternates, in the schema `returns`.
        """
        key = (on,) if isinstance(on, str) else tuple(on)
        wanted = name or ("join" if function is None else None)
        chosen, alternates = alternates_of(self._flow, Pairs(key) if function is None else function, Form.JOIN, wanted)
        taps = (*self._taps, *(replace(tap, port=1) for tap in other.taps))
        groups = _Groups(self._flow, taps, key, self._window)
        return groups._keyed(chosen, alternates, needs, returns=returns, timeout=_timeout(timeout))


def _timeout(given: float | str | Timeout | None) -> Timeout | None:
    return given if given is None or isinstance(given, Timeout) else Timeout(duration(given))


MOST_ROUNDS = 1000
"""Rounds of a loop that is unrolled: each is operators of its own, and more than Spark plans in a minute."""


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
        self._operators.append(Operator(name, Kind.SOURCE, returns=returns, reads=reads, **fields_of(needs)))
        return Stream(self, (Tap(name),))

    def add(self, operator: Operator, taps: Sequence[Tap], delivery: Delivery | None = None) -> "Stream":
        """Add `operator` downstream of `taps`. For front ends; programs use the methods of `Stream`."""
        self._operators.append(operator)
        self._edges += [
            Edge(tap.operator, operator.name, delivery or tap.delivery, tap.durable, tap.choice, tap.value, tap.port)
            for tap in taps
        ]
        return Stream(self, (Tap(operator.name),))

    def keep_order(self, names: Iterable[str]) -> None:
        """Mark the operators called `names` as sequential."""
        marked = set(names)
        self._operators = [replace(each, sequential=True) if each.name in marked else each for each in self._operators]

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
        self.taps = taps

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

    def map_stream(self, function: Functions, *, returns: str, name: str | None = None, **needs: Unpack[Needs]) -> "Stream":
        """Add an operator that pulls: `Iterator[pyarrow.RecordBatch] -> Iterator[pyarrow.RecordBatch]`.

        It is called once per task and micro-batch, with the records that come there; nothing of it lasts beyond.
        """
        return self._then(Form.STREAM, function, returns, name, needs)

    def select(self, columns: Mapping[str, str], *, name: str = "select", returns: str = "") -> "Stream":
        """Add native Spark column expressions, SQL text by name of the new column: `select({"word": "lower(value)"})`."""
        chosen = self._flow.free_name(name)
        selected = expressions_of(chosen, columns)
        operator = Operator(chosen, Kind.TRANSFORM, (Alternate(chosen, selected, Form.COLUMNS),), returns)
        return self._flow.add(operator, self.taps)

    def key_by(self, *columns: str) -> "KeyedStream[Stream]":
        """Group records by key, for an operator with state."""
        return KeyedStream(self._flow, self.taps, columns)

    def window(
        self,
        *,
        seconds: float | str | None = None,
        count: int | None = None,
        landmark: str | None = None,
        every: float | str | None = None,
        by: str = "",
        late: float | str = 0.0,
    ) -> "WindowedStream[Stream]":
        """Group records in windows of each key; `group_by` or `join` follows, which names the key.

        One of: seconds, by the timestamps in the column `by`; count, so many records; landmark, up to a record where that
        boolean column is true. every: a window begins every so many seconds or records; None: they do not overlap. late:
        seconds by which records may come late. `elastream.dataflow.windows.Window` says when a window is complete.
        """
        if count is not None and isinstance(every, str):
            raise DataflowError(f"windows of {count} records begin every so many records, not every {every!r}")
        step = duration(every) if isinstance(every, str) else every
        length = None if seconds is None else duration(seconds)
        return WindowedStream(self._flow, self.taps, Window(length, count, landmark, step, by, duration(late)))

    def group_by(self, *columns: str) -> NoReturn:
        """Refused: it is defined on windows."""
        raise DataflowError(
            f"dataflow {self._flow.name!r}: group_by needs a window, such as window(count=10).group_by(...): "
            "without one, key_by(...) groups records for functions with state and running aggregates"
        )

    def join(self, other: "Stream", on: str | Sequence[str], *_: object, **__: object) -> NoReturn:
        """Refused: it is defined on windows."""
        raise DataflowError(
            f"dataflow {self._flow.name!r}: join needs a window, such as window(seconds='30s', by='time').join(...): "
            "without one, every record would have to be kept for ever"
        )

    def zip(self, *others: "Stream", name: str = "zip", **needs: Unpack[Needs]) -> "Stream":
        """Synchronised merge: the n-th record of this stream and of each other, as one record with the columns of all.

        All streams must be `sequential`: else no record is the n-th.
        """
        chosen = self._flow.free_name(name)
        taps = tuple(replace(tap, port=n) for n, each in enumerate((self, *others)) for tap in each.taps)
        operator = Operator(chosen, Kind.KEYED, (Alternate(chosen, None, Form.ZIP),), **fields_of(needs))
        return self._flow.add(operator, taps, Delivery.KEYED)

    def sequential(self) -> "Stream":
        """Keep the order of records: the operators that this stream comes from, and their stage, run in one task."""
        self._flow.keep_order(tap.operator for tap in self.taps)
        return self

    def unrolled(self, step: "Callable[[Stream, int], Stream]", times: int) -> "Stream":
        """A bounded loop: `step(stream, round)` attaches the operators of one round, rounds count from 1 to `times`.

        Cycles are refused: every round is operators of its own. A superstep of a bulk synchronous program is a round whose
        last operator is keyed.
        """
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise DataflowError(f"dataflow {self._flow.name!r}: a loop is unrolled in 1 round or more, not in {times!r}")
        if times > MOST_ROUNDS:
            raise DataflowError(f"dataflow {self._flow.name!r}: a loop of {times:,} rounds; {MOST_ROUNDS:,} are the most")
        stream = self
        for number in range(1, times + 1):
            stream = step(stream, number)
        return stream

    def merge(self, *others: "Stream") -> "Stream":
        """Fan-in: merge streams, which must have the same columns."""
        return Stream(self._flow, self.taps + tuple(tap for other in others for tap in other.taps))

    def deal(self) -> "Stream":
        """Fan-out by round-robin: the attached operators share the records instead of each getting all."""
        return self._tapped(delivery=Delivery.ROUND_ROBIN)

    def durable(self, kind: str = "parquet") -> "Stream":
        """Cut here: a durable channel (`"parquet"` or `"kafka"`); the operators after it run as a separate query."""
        return self._tapped(durable=kind)

    def choice(self, name: str, *, value: float = 1.0) -> "Stream":
        """Dynamic edges: the composition selects one of the operators attached to this stream, its branches.

        value: of the branches attached to what this returns, relative to the best, in [0, 1].
        """
        return self._tapped(choice=name, value=value)

    def nothing(self, *, name: str | None = None) -> None:
        """An empty branch of a choice: while it is selected, the sub-dataflows of the other branches sleep."""
        choices = {tap.choice for tap in self.taps if tap.choice is not None}
        wanted = name or f"nothing({', '.join(sorted(choices))})"
        self._flow.add(Operator(self._flow.free_name(wanted), Kind.SINK, writes=Nothing(), cores=0.0), self.taps)

    def signal(
        self,
        name: str,
        aggregate: str,
        *,
        stale: float | str | None = None,
        trace: Callable[[float], SignalValue | None] | None = None,
    ) -> None:
        """A diagnostic branch: the signal `name`, for guards, is `aggregate` of the records of a micro-batch.

        aggregate: `count()`, or `sum`, `mean`, `min`, `max`, `any` or `all` of a column: `"mean(error)"`. stale: seconds
        after which a value counts as unknown. trace: its value by seconds since the start, where it is simulated.
        """
        with_stale = {} if stale is None else {"stale": duration(stale)}
        writes = domain_signal(name, aggregate, trace=trace, **with_stale)
        self._flow.add(Operator(self._flow.free_name(f"signal({name})"), Kind.SINK, writes=writes, cores=0.0), self.taps)

    def sink(self, writes: SinkSpec | None, *, name: str = "sink") -> None:
        """Add a sink. `writes=None`: for simulation only."""
        self._flow.add(Operator(self._flow.free_name(name), Kind.SINK, writes=writes, cores=0.0), self.taps)

    def _tapped(self, **changes: Any) -> "Stream":
        return Stream(self._flow, tuple(replace(tap, **changes) for tap in self.taps))

    def _then(self, form: Form, function: Functions, returns: str, name: str | None, needs: Needs) -> "Stream":
        chosen, alternates = alternates_of(self._flow, function, form, name)
        return self._flow.add(Operator(chosen, Kind.TRANSFORM, alternates, returns, **fields_of(needs)), self.taps)
