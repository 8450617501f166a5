"""Python API to declare a dataflow: `Dataflow`, and the streams between its operators.

Declaring runs nothing: `flow.graph` validates the dataflow and returns the immutable `Graph`.
"""

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NoReturn, Protocol, TypedDict, TypeVar, Unpack, cast

from elastream.dataflow import natives
from elastream.dataflow.endpoints import (
    ArrivalPattern,
    Constant,
    ForEachBatch,
    FrameSink,
    FrameSource,
    Nothing,
    Replayable,
    Simulated,
    SinkSpec,
    SourceSpec,
    domain_signal,
)
from elastream.dataflow.functions import Port, Switch, plain, port_name, shares_of
from elastream.dataflow.graph import Graph
from elastream.dataflow.natives import Expression
from elastream.dataflow.operators import Alternate, Delivery, Edge, Form, Kind, OnError, Operator
from elastream.dataflow.schema import Schema, ddl_of
from elastream.dataflow.signals import SignalValue
from elastream.dataflow.windows import Pairs, Timeout, Window
from elastream.errors import DataflowError
from elastream.units import cores, duration, memory, rate

Function = Callable[..., Any]
# One function, functions by the name of the alternate, or alternates with values, costs and selectivities.
Functions = Function | Sequence[Alternate] | Mapping[str, Function]


class Needs(TypedDict, total=False):
    """Service level and resource needs of an operator, as keyword arguments.

    Attributes:
        max_duration: Longest time from queueing at the operator to completion (seconds, or text such as "50ms").
        cores: Cores of speed 1 that one instance needs.
        memory: Memory that one instance needs (MB, or text such as "1 GB").
        image: Data to fetch before the first instance on a host starts (MB, or text).
        waits: True if the function mostly waits, for instance for a service. Calls then overlap on threads.
        record_bytes: Size of an emitted record (bytes).
        select_by: Columns of the key by which a key table chooses the alternate.
        on_error: `"fail"`, `"skip"` or `"dead_letter"`: handling of a record on which a function raises.
    """

    max_duration: float | str
    cores: float | str
    memory: float | str
    image: float | str
    waits: bool
    record_bytes: float
    select_by: str | Sequence[str]
    on_error: str


class NativeNeeds(Needs, total=False):
    """Keyword arguments of a native operator: `Needs`, and figures that simulations cannot measure.

    Attributes:
        cost: Core-seconds per record on a core of speed 1, or text such as "4us".
        selectivity: Records out per record in.
    """

    cost: float | str
    selectivity: float


@dataclass(frozen=True, slots=True)
class Tap:
    operator: str
    delivery: Delivery = Delivery.DUPLICATE
    durable: str | None = None
    choice: str | None = None
    value: float = 1.0
    port: int = 0


S_co = TypeVar("S_co", covariant=True)


class Builder(Protocol[S_co]):
    """Front end that adds operators to a dataflow and returns a stream for each."""

    name: str

    def add(self, operator: Operator, taps: Sequence[Tap], delivery: Delivery | None = None) -> S_co: ...

    def free_name(self, name: str) -> str:
        """Return `name`, with a number appended if an operator has that name."""
        ...


def timeout(
    seconds: float | str, *, by: str = "", late: float | str = 0.0, emits: Callable[..., Any] | None = None
) -> Timeout:
    """Return when the state of a key ends: some time after the key's last record.

    Args:
        seconds: Time after the last record (seconds, or text such as "5m").
        by: Timestamp column that measures the time. Empty: the clock of the cluster.
        late: Time by which records may be late (seconds, or text).
        emits: `(key, state) -> rows`, called once as the state ends.
    """
    return Timeout(duration(seconds), by, duration(late), emits)


def alternates_of(
    flow: Builder[Any], function: Functions, form: Form, name: str | None
) -> tuple[str, tuple[Alternate, ...]]:
    """Return the operator's name and its alternates, or raise DataflowError."""
    several = isinstance(function, Sequence) and not isinstance(function, str)
    if isinstance(function, Sequence) and (not several or not all(isinstance(each, Alternate) for each in function)):
        raise DataflowError(
            f"operator {name or form.value!r}: {function!r} is neither a function nor a list of Alternate(...)"
        )
    if not several and not isinstance(function, Mapping) and not callable(function):
        raise DataflowError(f"operator {name or form.value!r}: {function!r} is not a function")
    if isinstance(function, Mapping):
        function = [Alternate(label, each, form) for label, each in function.items()]
    if isinstance(function, Sequence):
        chosen = name or flow.free_name(function[0].name if function else form.value)
        for each in function:
            native = isinstance(each.function, natives.Native) or each.form not in (Form.NONE, form)
            if not native and not callable(each.function):
                raise DataflowError(
                    f"operator {chosen!r}: alternate {each.name!r} is {each.function!r}, which is not a function"
                )
        return chosen, tuple(replace(each, form=form) if each.form is Form.NONE else each for each in function)
    label = getattr(plain(function), "__name__", form.value)
    chosen = name or flow.free_name(form.value if label == "<lambda>" else label)
    return chosen, (Alternate(chosen, function, form),)


def expressions_of(operator: str, columns: Mapping[str, Expression]) -> dict[str, Expression]:
    mapping = isinstance(columns, Mapping)
    texts = mapping and all(isinstance(name, str) and natives.is_expression(each) for name, each in columns.items())
    if not (texts and columns):
        nested = mapping and any(isinstance(each, Mapping) for each in columns.values())
        more = (
            ": it has no alternates; those of DataFrame code go into transform, those by key into apply behind key_by"
            if nested
            else ""
        )
        raise DataflowError(
            f"operator {operator!r}: {columns!r} is not SQL text by column name, such as {{'word': 'lower(value)'}}{more}"
        )
    return dict(columns)


def fields_of(needs: Needs) -> dict[str, Any]:
    """Return an `Operator`'s fields from keywords such as `memory`. Raises DataflowError."""
    for name in needs:
        if name not in Needs.__annotations__:
            raise DataflowError(f"an operator has no {name!r}; {_hint(name)}")
    values: dict[str, Any] = dict(needs)
    if (longest := needs.get("max_duration")) is not None:
        values["max_duration"] = duration(longest)
    for name, read in (("cores", cores), ("memory", memory), ("image", memory)):
        if name in values:
            values[name] = read(values[name])
    if (columns := values.pop("select_by", None)) is not None:
        values["selects"] = (columns,) if isinstance(columns, str) else tuple(columns)
    if "on_error" in needs:
        values["on_error"] = _on_error(needs["on_error"])
    return values


def _hint(name: str) -> str:
    if name in (each.name for each in fields(Alternate)):
        return f"it is an alternate's: [Alternate('...', function, {name}=...)]"
    return f"known: {', '.join(Needs.__annotations__)}"


def _on_error(text: str) -> OnError:
    try:
        return OnError(text)
    except ValueError:
        choices = ", ".join(repr(each.value) for each in OnError)
        raise DataflowError(f"on_error is {text!r}; it is one of {choices}") from None


S = TypeVar("S")


def _expression(operator: str, expression: Expression) -> Expression:
    if not natives.is_expression(expression) or (isinstance(expression, str) and not expression.strip()):
        raise DataflowError(f"operator {operator!r}: {expression!r} is neither SQL text, such as 'n > 5', nor a Column")
    return expression


class _Tapped(Protocol):
    @property
    def taps(self) -> tuple[Tap, ...]: ...


class _Groups(Generic[S]):
    """Records grouped by `key`, and by window if there is one."""

    def __init__(self, flow: Builder[S], taps: tuple[Tap, ...], key: tuple[str, ...], window: Window | None = None) -> None:
        self._flow, self._taps, self._key, self._window = flow, taps, key, window

    def count(
        self,
        *,
        name: str = "count",
        cost: float | str | None = None,
        selectivity: float | None = None,
        **needs: Unpack[Needs],
    ) -> S:
        """Add a native Spark count of records per key, in the column `count`."""
        return self.aggregate({"count": "count(*)"}, name=name, cost=cost, selectivity=selectivity, **needs)

    def aggregate(
        self,
        columns: Mapping[str, Expression],
        *,
        name: str = "aggregate",
        cost: float | str | None = None,
        selectivity: float | None = None,
        **needs: Unpack[Needs],
    ) -> S:
        """Add native Spark aggregates, SQL text or Columns by new column: `aggregate({"total": "sum(n)"})`.

        In time windows the rows carry `window_start` and `window_end` after the key.
        """
        chosen = self._flow.free_name(name)
        made = Alternate(chosen, expressions_of(chosen, columns), Form.AGGREGATE, cost=_cost(cost), selectivity=selectivity)
        return self._keyed(chosen, (made,), needs)

    def _keyed(self, name: str, alternates: tuple[Alternate, ...], needs: Needs, **fields: Any) -> S:
        operator = Operator(name, Kind.KEYED, alternates, key=self._key, window=self._window, **fields, **fields_of(needs))
        return self._flow.add(operator, self._taps, Delivery.KEYED)


class KeyedStream(_Groups[S]):
    """Records grouped by key, to which stateful operators are attached."""

    def apply(
        self,
        function: Functions,
        *,
        returns: Schema,
        state: Schema | Mapping[str, Schema],
        own_state: bool = False,
        timeout: float | str | Timeout | None = None,
        name: str | None = None,
        **needs: Unpack[Needs],
    ) -> S:
        """Add a stateful function `(key, rows, state) -> (rows, state)`, or several as alternates.

        The function gets the key as a tuple, the key's records of this micro-batch as a pandas DataFrame, and the state as
        a tuple (None at first). It returns a DataFrame and the new state. Alternates share one state by default.

        Args:
            function: The function, or functions by name of the alternate, or `Alternate` objects.
            returns: Schema of the emitted rows, as Spark DDL, StructType, dataclass or pydantic model.
            state: Schema of the state, or one for each alternate by name.
            own_state: Give each alternate a state of its own, which rests while another alternate runs.
            timeout: Time after a key's last record at which its state ends, or `elastream.timeout(...)`. None: never.
        """
        chosen, alternates = alternates_of(self._flow, function, Form.STATE, name)
        schemas = dict(state) if isinstance(state, Mapping) else {}
        if unknown := [each for each in schemas if each not in {alternate.name for alternate in alternates}]:
            raise DataflowError(
                f"operator {chosen!r} has no alternate {unknown[0]!r} to have a state (it has: "
                f"{', '.join(alternate.name for alternate in alternates)})"
            )
        ddl = {each: ddl_of(schema, f"the state of {each!r} of operator {chosen!r}") for each, schema in schemas.items()}
        alternates = tuple(replace(each, state=ddl.get(each.name, each.state)) for each in alternates)
        fields: dict[str, Any] = {"own_state": own_state or bool(schemas) or any(each.state for each in alternates)}
        fields["state"] = None if schemas else ddl_of(state, f"the state of operator {chosen!r}")
        return self._keyed(
            chosen, alternates, needs, returns=_returned(chosen, returns), timeout=_timeout(timeout), **fields
        )


class WindowedGroups(_Groups[S]):
    """Records grouped by key and window."""

    def apply(
        self,
        function: Functions,
        *,
        returns: Schema,
        timeout: float | str | Timeout | None = None,
        name: str | None = None,
        **needs: Unpack[Needs],
    ) -> S:
        """Add a function `(key, rows) -> rows`, or several as alternates, called once per complete window of a key.

        It takes and returns a pandas DataFrame; `returns` is the schema of its rows. After `timeout` without a record of a
        key, the key's incomplete count or landmark window is emitted; None: never.
        """
        chosen, alternates = alternates_of(self._flow, function, Form.WINDOW, name)
        return self._keyed(chosen, alternates, needs, returns=_returned(chosen, returns), timeout=_timeout(timeout))


class WindowedStream(Generic[S]):
    """Records in windows, to be grouped or joined: `stream.window(seconds="30s", by="time").group_by("customer")`."""

    def __init__(self, flow: Builder[S], taps: tuple[Tap, ...], window: Window) -> None:
        self._flow, self._taps, self._window = flow, taps, window

    def group_by(self, *columns: str) -> WindowedGroups[S]:
        """Group the records of each window by key."""
        return WindowedGroups(self._flow, self._taps, columns, self._window)

    def join(
        self,
        other: _Tapped,
        on: str | Sequence[str],
        function: Functions | None = None,
        *,
        returns: Schema = "",
        timeout: float | str | Timeout | None = None,
        name: str | None = None,
        **needs: Unpack[Needs],
    ) -> S:
        """Join with the stream `other`, window by window.

        Args:
            other: The right-hand stream.
            on: Columns with equal values in both streams.
            function: `(key, left, right) -> rows` of pandas DataFrames, or alternates. None: emit every pair of a left and
                a right record, with the columns `on`, then the left's, then the right's.
            returns: Schema of the rows that `function` emits, as Spark DDL.
            timeout: Time without a record after which an incomplete count or landmark window is emitted. None: never.
        """
        key = (on,) if isinstance(on, str) else tuple(on)
        label = name or ("join" if function is None else None)
        chosen, alternates = alternates_of(self._flow, Pairs(key) if function is None else function, Form.JOIN, label)
        taps = (*self._taps, *(replace(tap, port=1) for tap in other.taps))
        groups = _Groups(self._flow, taps, key, self._window)
        return groups._keyed(chosen, alternates, needs, returns=_returned(chosen, returns), timeout=_timeout(timeout))


# Cores of a port, which only filters. Unchained simulations divide by them.
PORT_CORES = 0.01


class SwitchedStream:
    """Ports of a switch: `stream.switch(...)["high"]` is a stream. An unused port drops its records."""

    def __init__(self, flow: "Dataflow", switch: str, shares: Mapping[str, float]) -> None:
        self._flow, self._switch, self._shares = flow, switch, shares
        self._streams: dict[str, Stream] = {}

    def __getitem__(self, port: str) -> "Stream":
        if port not in self._shares:
            raise DataflowError(f"switch {self._switch!r} has no port {port!r} (it has: {', '.join(self._shares)})")
        if port not in self._streams:
            operator = port_of(self._switch, port, self._shares[port])
            self._streams[port] = self._flow.add(operator, (Tap(self._switch),))
        return self._streams[port]


def port_of(switch: str, port: str, share: float) -> Operator:
    """Return the operator of a port that gets `share` of the records."""
    name = port_name(switch, port)
    passing = Alternate(name, cast(Any, Port(port)), Form.PORT, cost=0.0, selectivity=share)
    return Operator(name, Kind.TRANSFORM, (passing,), cores=PORT_CORES)


def switching(alternates: Iterable[Alternate], ports: Iterable[str]) -> tuple[Alternate, ...]:
    """Return `alternates` whose switches check that they name one of `ports`."""
    names = tuple(ports)
    return tuple(
        replace(each, function=Switch(cast(Any, each.function), names)) if each.form is Form.SWITCH else each
        for each in alternates
    )


def _returned(operator: str, schema: Schema) -> str:
    return ddl_of(schema, f"what operator {operator!r} returns")


def _cost(cost: float | str | None) -> float | None:
    return cost if cost is None else duration(cost)


def _timeout(value: float | str | Timeout | None) -> Timeout | None:
    return value if value is None or isinstance(value, Timeout) else Timeout(duration(value))


# Each round is operators of its own; Spark needs about a minute to plan this many.
MAX_UNROLLED_ROUNDS = 1000


class Dataflow:
    """A dataflow under construction. `graph` is the validated result."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._operators: list[Operator] = []
        self._edges: list[Edge] = []

    def __repr__(self) -> str:
        return f"Dataflow({self.name!r}, {len(self._operators)} operators)"

    @property
    def graph(self) -> Graph:
        """The dataflow so far, validated.

        Raises:
            DataflowError: The dataflow is invalid.
        """
        if not self._operators:
            raise DataflowError(f"dataflow {self.name!r}: it has no source")
        return Graph(self.name, tuple(self._operators), tuple(self._edges))

    def source(
        self,
        reads: SourceSpec | None,
        *,
        load: ArrivalPattern | str | None = None,
        name: str = "source",
        **needs: Unpack[Needs],
    ) -> "Stream":
        """Add a source that reads `reads`; None: for simulation only.

        With a `load` its records arrive at that pattern, or at a constant rate such as `"10/s"`.
        """
        if reads is not None and not isinstance(reads, SourceSpec):
            streams = getattr(reads, "isStreaming", False)
            instead = (
                "use flow.from_dataframe(...)" if streams else "take one of elastream.io, or an object with schema and read"
            )
            raise DataflowError(f"source {name!r}: {reprlib.repr(reads)} is not a source: {instead}")
        if isinstance(load, str):
            load = Constant(rate(load))
        if load is not None:
            if not isinstance(load, ArrivalPattern):
                raise DataflowError(
                    f"source {name!r}: {load!r} is not a load: write '10/s', or take one of elastream.loads"
                )
            if reads is not None and not isinstance(reads, Replayable):
                raise DataflowError(f"source {name!r}: a load needs records to replay, such as text_files(...)")
            reads = Simulated(load) if reads is None else replace(reads, load=load)
        returns = reads.schema if reads is not None else ""
        self._operators.append(Operator(name, Kind.SOURCE, returns=returns, reads=reads, **fields_of(needs)))
        return Stream(self, (Tap(name),))

    def from_dataframe(
        self, frame: Any, *, schema: Schema = "", timestamp: str = "", name: str = "source", **needs: Unpack[Needs]
    ) -> "Stream":
        """Add a streaming DataFrame of yours as a source.

        Args:
            frame: The DataFrame, or a function `spark -> DataFrame`, called when the query starts.
            schema: Columns of the records. Empty: those of the DataFrame.
            timestamp: Column with the time at which a record originated, from which its latency counts.
        """
        if not callable(frame) and not getattr(frame, "isStreaming", False):
            raise DataflowError(f"source {name!r}: {frame!r} is not a streaming DataFrame, such as one of spark.readStream")
        columns = schema or ("" if callable(frame) else frame.schema)
        return self.source(
            FrameSource(frame, ddl_of(columns, f"the schema of source {name!r}"), timestamp), name=name, **needs
        )

    def add(self, operator: Operator, taps: Sequence[Tap], delivery: Delivery | None = None) -> "Stream":
        """Add `operator` downstream of `taps`. For front ends; programs use the methods of `Stream`."""
        self._operators.append(operator)
        self._edges += [
            Edge(tap.operator, operator.name, delivery or tap.delivery, tap.durable, tap.choice, tap.value, tap.port)
            for tap in taps
        ]
        return Stream(self, (Tap(operator.name),))

    def keep_order(self, names: Iterable[str]) -> None:
        marked = set(names)
        self._operators = [replace(each, sequential=True) if each.name in marked else each for each in self._operators]

    def free_name(self, name: str) -> str:
        names = {operator.name for operator in self._operators}
        if name not in names:
            return name
        return next(label for n in range(2, len(names) + 3) if (label := f"{name}_{n}") not in names)


@dataclass(frozen=True, slots=True)
class _Halting:
    until: Callable[[Any], Any]

    def __call__(self, record: Any) -> str:
        return "done" if self.until(record) else "again"


class Stream:
    """Output records of one or more operators, to which further operators are attached.

    Methods that add an operator take `returns`, the schema of its output, `name`, and service level and resources as in
    `Needs`. A schema is Spark DDL (`"word string, n long"`), a StructType, a dataclass or a pydantic model. A `function`
    may be one function, functions by name of the alternate, or a sequence of `Alternate` objects.

    Native operators (`transform`, `select`, `where`, ...) run in the JVM. Their expressions are SQL text, or Columns where
    a Spark session exists. They take `cost` and `selectivity` for simulations (see `NativeNeeds`).
    """

    def __init__(self, flow: Dataflow, taps: tuple[Tap, ...]) -> None:
        self._flow = flow
        self.taps = taps

    def map(self, function: Functions, *, returns: Schema, name: str | None = None, **needs: Unpack[Needs]) -> "Stream":
        """Add an operator that returns one record for each record."""
        return self._then(Form.MAP, function, returns, name, needs)

    def flat_map(
        self, function: Functions, *, returns: Schema, name: str | None = None, **needs: Unpack[Needs]
    ) -> "Stream":
        """Add an operator that returns an iterable of records for each record."""
        return self._then(Form.FLAT_MAP, function, returns, name, needs)

    def filter(
        self,
        function: "Functions | Expression | Mapping[str, Expression]",
        *,
        name: str | None = None,
        **needs: Unpack[NativeNeeds],
    ) -> "Stream":
        """Add an operator that keeps the records for which the function, or native `filter("n > 5")`, is true."""
        if natives.is_expression(function):
            return self._native(natives.Where(function), name or "filter", needs)
        if isinstance(function, Mapping) and any(map(natives.is_expression, function.values())):
            if not all(map(natives.is_expression, function.values())):
                raise DataflowError(f"the alternates of filter are functions and expressions: {function!r}; write one kind")
            wheres = {label: natives.Where(each) for label, each in function.items()}
            return self._native(wheres, name or self._flow.free_name("filter"), needs)
        label = name or "filter"
        if costs := [each for each in ("cost", "selectivity") if each in needs]:
            raise DataflowError(
                f"filter {label!r}: {costs[0]} is an alternate's: [Alternate('...', function, {costs[0]}=...)]"
            )
        return self._then(Form.FILTER, function, "", name, needs)

    def switch(
        self,
        function: Functions,
        ports: Sequence[str] | Mapping[str, float],
        *,
        name: str | None = None,
        **needs: Unpack[Needs],
    ) -> SwitchedStream:
        """Add an operator whose function names the port of each record; unknown names fail.

        Args:
            function: Function of a record that returns a port's name, or several as alternates.
            ports: Names, or for simulations the fraction of records by name.
        """
        chosen, alternates = alternates_of(self._flow, function, Form.SWITCH, name)
        shares = shares_of(chosen, ports)
        operator = Operator(chosen, Kind.TRANSFORM, switching(alternates, shares), **fields_of(needs))
        self._flow.add(operator, self.taps)
        return SwitchedStream(self._flow, chosen, shares)

    def where(self, condition: Expression, *, name: str = "where", **needs: Unpack[NativeNeeds]) -> "Stream":
        """As `filter` with an expression."""
        return self._native(natives.Where(_expression("where", condition)), name, needs)

    def transform(
        self, function: Functions, *, returns: Schema = "", name: str | None = None, **needs: Unpack[NativeNeeds]
    ) -> "Stream":
        """Add a function from Spark DataFrame to DataFrame, or several as alternates.

        The function is called when the query starts. It builds on the DataFrame that it gets. Alternates keep no
        state and set no watermark, because what one remembers would rest while another runs.

        Args:
            function: The function, functions by name of the alternate, or `Alternate` objects.
            returns: Schema of the output. Empty: Spark knows it.
        """
        named = isinstance(function, Mapping) or getattr(function, "__name__", "<lambda>") != "<lambda>"
        label = name or (None if named else "transform")
        chosen, alternates = alternates_of(self._flow, function, Form.FRAME, label)
        return self._added(chosen, alternates, needs, _returned(chosen, returns))

    def map_arrow(
        self, function: Functions, *, returns: Schema, name: str | None = None, **needs: Unpack[Needs]
    ) -> "Stream":
        """Add an operator `pyarrow.RecordBatch -> pyarrow.RecordBatch`."""
        return self._then(Form.ARROW, function, returns, name, needs)

    def map_pandas(
        self, function: Functions, *, returns: Schema, name: str | None = None, **needs: Unpack[Needs]
    ) -> "Stream":
        """Add an operator `pandas.DataFrame -> pandas.DataFrame`."""
        return self._then(Form.PANDAS, function, returns, name, needs)

    def map_stream(
        self, function: Functions, *, returns: Schema, name: str | None = None, **needs: Unpack[Needs]
    ) -> "Stream":
        """Add an operator `Iterator[pyarrow.RecordBatch] -> Iterator[pyarrow.RecordBatch]`.

        Spark calls it once per task and micro-batch. It keeps no state between calls.
        """
        return self._then(Form.STREAM, function, returns, name, needs)

    def select(
        self,
        columns: "Mapping[str, Expression] | Expression",
        *more: Expression,
        name: str = "select",
        returns: Schema = "",
        **needs: Unpack[NativeNeeds],
    ) -> "Stream":
        """Add native columns: `select({"word": "lower(value)"})`, or `select("n", "lower(value) AS word")`."""
        chosen = self._flow.free_name(name)
        function: Any
        if isinstance(columns, Mapping) or not natives.is_expression(columns):
            form, function = Form.COLUMNS, expressions_of(chosen, columns)
        else:
            form, function = Form.FRAME, natives.Select(tuple(_expression(chosen, each) for each in (columns, *more)))
        return self._added(chosen, (Alternate(chosen, function, form),), needs, _returned(chosen, returns))

    def with_column(
        self, column: str, expression: Expression, *, name: str = "with_column", **needs: Unpack[NativeNeeds]
    ) -> "Stream":
        """Add or replace a column, natively: `with_column("word", "lower(value)")`."""
        return self._native(natives.WithColumns({column: _expression(name, expression)}), name, needs)

    def with_columns(
        self, columns: Mapping[str, Expression], *, name: str = "with_columns", **needs: Unpack[NativeNeeds]
    ) -> "Stream":
        """Add or replace columns, natively: `with_columns({"word": "lower(value)"})`."""
        return self._native(natives.WithColumns(expressions_of(name, columns)), name, needs)

    def drop(self, *columns: str, name: str = "drop", **needs: Unpack[NativeNeeds]) -> "Stream":
        """Drop columns, natively."""
        return self._native(natives.Drop(columns), name, needs)

    def explode(
        self,
        column: Expression,
        into: str | None = None,
        *,
        outer: bool = False,
        name: str = "explode",
        **needs: Unpack[NativeNeeds],
    ) -> "Stream":
        """Add a native operator that returns a record for each element of an array.

        Args:
            column: The array: a column's name, SQL text such as `"split(value, ' ')"`, or a Column.
            into: Column of the element. None: it replaces the column `column`.
            outer: True: an empty array gives a record, too.
        """
        if into is None and not (isinstance(column, str) and column.isidentifier()):
            raise DataflowError(f"explode: {column!r} is not a column's name: say into='...', the column of the element")
        return self._native(natives.Explode(_expression(name, column), into or str(column), outer), name, needs)

    def union(self, *others: "Stream") -> "Stream":
        """Merge streams with equal columns into one. As `merge`."""
        return self.merge(*others)

    def drop_duplicates(
        self,
        *columns: str,
        within_watermark: float | str | None = None,
        by: str = "",
        name: str = "drop_duplicates",
        **needs: Unpack[NativeNeeds],
    ) -> "Stream":
        """Keep the first record of each value of `columns` (none: of all columns), natively.

        Args:
            *columns: Columns that identify a record.
            within_watermark: Time within which duplicates arrive (seconds, or text). None: every value is kept for ever.
            by: Timestamp column that measures the time.
        """
        if (within_watermark is None) != (not by):
            raise DataflowError(
                f"operator {name!r}: within_watermark and by go together, such as within_watermark='10m', by='time'"
            )
        within = None if within_watermark is None else duration(within_watermark)
        return self._native(natives.DropDuplicates(columns, by, within), name, needs)

    def sql(self, query: str, *, name: str = "sql", returns: Schema = "", **needs: Unpack[NativeNeeds]) -> "Stream":
        """Add a native query over the records: `sql("SELECT word, n + 1 AS n FROM {stream} WHERE n > 5")`."""
        if not isinstance(query, str) or "{stream}" not in query:
            raise DataflowError(f"operator {name!r}: {query!r} does not read {{stream}}: write SELECT ... FROM {{stream}}")
        return self._native(natives.Sql(query), name, needs, returns)

    def key_by(self, *columns: str) -> "KeyedStream[Stream]":
        """Group records by key, for a stateful operator."""
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
        """Group records into windows per key; continue with `group_by` or `join`, which names the key.

        Give exactly one of `seconds`, `count` and `landmark`. See `elastream.dataflow.windows.Window` for when a window is
        complete.

        Args:
            seconds: Length of a time window (seconds, or text such as "30s").
            count: Records in a count window.
            landmark: Boolean column that is true on the last record of a window.
            every: Distance between the starts of windows (seconds, text or records). None: windows do not overlap.
            by: Timestamp column of a time window, or the column that orders the records of a key.
            late: Time by which records of a time window may be late (seconds, or text).
        """
        if count is not None and isinstance(every, str):
            raise DataflowError(f"windows of {count} records begin every so many records, not every {every!r}")
        step = duration(every) if isinstance(every, str) else every
        length = None if seconds is None else duration(seconds)
        return WindowedStream(self._flow, self.taps, Window(length, count, landmark, step, by, duration(late)))

    def group_by(self, *columns: str) -> NoReturn:
        raise DataflowError(
            f"dataflow {self._flow.name!r}: group_by needs a window, such as window(count=10).group_by(...): "
            "without one, key_by(...) groups records for functions with state and running aggregates"
        )

    def join(
        self,
        other: Any,
        on: str | Sequence[str],
        how: str = "inner",
        *,
        name: str = "join",
        **needs: Unpack[NativeNeeds],
    ) -> "Stream":
        """Join with a static DataFrame, natively. Streams are joined in windows: `window(...).join(...)`.

        Args:
            other: A DataFrame, or a function `spark -> DataFrame`, called once when the query starts.
            on: Columns with equal values on both sides.
            how: `"inner"`, `"left"`, `"left_semi"` or `"left_anti"`.
        """
        if isinstance(other, Stream):
            raise DataflowError(
                f"dataflow {self._flow.name!r}: join needs a window, such as window(seconds='30s', by='time').join(...): "
                "without one, every record would have to be kept for ever"
            )
        if not callable(other) and not hasattr(other, "isStreaming"):
            raise DataflowError(f"operator {name!r} joins {other!r}: give a DataFrame, or a function of the Spark session")
        if getattr(other, "isStreaming", False):
            raise DataflowError(f"operator {name!r} joins a streaming DataFrame: make it a source, with from_dataframe")
        key = (on,) if isinstance(on, str) else tuple(on)
        return self._native(natives.JoinTable(other, key, how), name, needs)

    def zip(self, *others: "Stream", name: str = "zip", **needs: Unpack[Needs]) -> "Stream":
        """Merge the n-th records of this stream and of each other into one record with all columns.

        All streams must be `sequential`, so that their records have an order.
        """
        chosen = self._flow.free_name(name)
        taps = tuple(replace(tap, port=n) for n, each in enumerate((self, *others)) for tap in each.taps)
        operator = Operator(chosen, Kind.KEYED, (Alternate(chosen, None, Form.ZIP),), **fields_of(needs))
        return self._flow.add(operator, taps, Delivery.KEYED)

    def sequential(self) -> "Stream":
        """Keep the order of records: run the operators of this stream, and their stage, in one task."""
        self._flow.keep_order(tap.operator for tap in self.taps)
        return self

    def unrolled(
        self, step: "Callable[[Stream, int], Stream]", times: int, *, until: Callable[[Any], Any] | None = None
    ) -> "Stream":
        """Return the stream after at most `times` rounds, written out; `Loop` repeats a single operator.

        To write a superstep of a bulk synchronous program, end each round with a keyed operator.

        Args:
            step: `step(stream, round)` attaches the operators of one round and returns its output. Rounds count from 1.
            times: Number of rounds.
            until: Function that is true of a record that leaves after a round. None: none does.
        """
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise DataflowError(f"dataflow {self._flow.name!r}: a loop is unrolled in 1 round or more, not in {times!r}")
        if times > MAX_UNROLLED_ROUNDS:
            raise DataflowError(
                f"dataflow {self._flow.name!r}: a loop of {times:,} rounds; {MAX_UNROLLED_ROUNDS:,} are the most"
            )
        if until is not None and not callable(until):
            raise DataflowError(f"dataflow {self._flow.name!r}: a loop ends when {until!r}, which is not a function")
        stream, finished = self, []
        for number in range(1, times + 1):
            stream = step(stream, number)
            if until is not None and number < times:
                ports = stream.switch(_Halting(until), ["again", "done"], name=self._flow.free_name(f"until_{number}"))
                finished.append(ports["done"])
                stream = ports["again"]
        return stream.merge(*finished)

    def merge(self, *others: "Stream") -> "Stream":
        """Merge streams with equal columns into one (fan-in)."""
        return Stream(self._flow, self.taps + tuple(tap for other in others for tap in other.taps))

    def deal(self) -> "Stream":
        """Distribute records over the attached operators in turn, instead of sending every record to each."""
        return self._tapped(delivery=Delivery.ROUND_ROBIN)

    def durable(self, kind: str = "parquet") -> "Stream":
        """Insert a durable channel (`"parquet"` or `"kafka"`). The operators after it run as a separate query."""
        return self._tapped(durable=kind)

    def choice(self, name: str, *, value: float = 1.0) -> "Stream":
        """Make the attached operators branches of a choice, of which the composition selects one.

        Args:
            value: Value of the branches attached to the returned stream, relative to the best branch, in [0, 1].
        """
        return self._tapped(choice=name, value=value)

    def nothing(self, *, name: str | None = None) -> None:
        """Attach an empty branch to a choice. While it is selected, the other branches get no records."""
        choices = {tap.choice for tap in self.taps if tap.choice is not None}
        label = name or f"nothing({', '.join(sorted(choices))})"
        self._flow.add(Operator(self._flow.free_name(label), Kind.SINK, writes=Nothing(), cores=0.0), self.taps)

    def signal(
        self,
        name: str,
        aggregate: str,
        *,
        stale: float | str | None = None,
        trace: Callable[[float], SignalValue | None] | None = None,
    ) -> None:
        """Attach a diagnostic branch that reduces each micro-batch to a value for guards.

        Args:
            aggregate: `count()`, or `sum`, `mean`, `min`, `max`, `any` or `all` of a column, such as `"mean(error)"`.
            stale: Age at which a value counts as unknown (seconds, or text).
            trace: Value by seconds since the start, for simulated runs.
        """
        with_stale = {} if stale is None else {"stale": duration(stale)}
        writes = domain_signal(name, aggregate, trace=trace, **with_stale)
        self._flow.add(Operator(self._flow.free_name(f"signal({name})"), Kind.SINK, writes=writes, cores=0.0), self.taps)

    def sink(self, writes: SinkSpec | Callable[[Any, int], object] | None, *, name: str = "sink") -> None:
        """Attach a sink.

        Args:
            writes: The sink, or a function of each micro-batch's DataFrame and its number, as for Spark's `foreachBatch`.
                After a crash the last batch comes again. None: for simulation only.

        Raises:
            DataflowError: `writes` is neither.
        """
        if writes is None or isinstance(writes, SinkSpec):
            spec = writes
        elif callable(writes) and (called := getattr(writes, "__name__", "")) and writes.__module__ == FrameSink.__module__:
            raise DataflowError(f"sink {name!r}: {called} makes a sink; call it: sink({called}(...))")
        elif callable(writes):
            spec = ForEachBatch(writes)
        else:
            raise DataflowError(
                f"sink {name!r}: {writes!r} is not a sink: take one of elastream.io, a function of a micro-batch and its "
                "number, or an object with write"
            )
        self._flow.add(Operator(self._flow.free_name(name), Kind.SINK, writes=spec, cores=0.0), self.taps)

    def to_dataframe(self, writer: Callable[[Any], Any], *, name: str = "sink") -> None:
        """Attach the end of an existing job: `to_dataframe(lambda df: df.where("n > 5").writeStream.format("delta"))`.

        Args:
            writer: Function from the streaming DataFrame to its `DataStreamWriter`. The run adds name, checkpoint, output
                mode and trigger, and starts the query.
        """
        if not callable(writer):
            raise DataflowError(f"sink {name!r}: {writer!r} is not a function from a DataFrame to its writeStream")
        self.sink(FrameSink(writer), name=name)

    def _tapped(self, **changes: Any) -> "Stream":
        return Stream(self._flow, tuple(replace(tap, **changes) for tap in self.taps))

    def _native(self, function: Any, name: str, needs: NativeNeeds, returns: Schema = "") -> "Stream":
        chosen = self._flow.free_name(name)
        named = function if isinstance(function, Mapping) else {chosen: function}
        alternates = tuple(Alternate(label, each, Form.FRAME) for label, each in named.items())
        return self._added(chosen, alternates, needs, _returned(chosen, returns))

    def _added(self, name: str, alternates: tuple[Alternate, ...], needs: NativeNeeds, returns: str) -> "Stream":
        rest: Any = dict(needs)
        costs: Any = {each: rest.pop(each) for each in ("cost", "selectivity") if each in rest}
        filled = tuple(replace(each, **costs) for each in alternates) if costs else alternates
        return self._flow.add(Operator(name, Kind.TRANSFORM, filled, returns, **fields_of(rest)), self.taps)

    def _then(self, form: Form, function: Functions, returns: Schema, name: str | None, needs: Needs) -> "Stream":
        chosen, alternates = alternates_of(self._flow, function, form, name)
        schema = _returned(chosen, returns)
        return self._flow.add(Operator(chosen, Kind.TRANSFORM, alternates, schema, **fields_of(needs)), self.taps)
