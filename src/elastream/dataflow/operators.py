"""Operators, alternates and edges: the parts of a dataflow graph. Only the Spark plant calls user functions."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from elastream.dataflow.endpoints import ArrivalPattern, SinkSpec, SourceSpec
from elastream.dataflow.natives import Native
from elastream.dataflow.schema import ddl_of
from elastream.dataflow.windows import Timeout, Window
from elastream.errors import DataflowError
from elastream.units import duration


class Kind(StrEnum):
    SOURCE = "source"
    """No input; emits records read from outside."""
    TRANSFORM = "transform"
    """Stateless: its output depends on the current record alone."""
    KEYED = "keyed"
    """Stateful per key: preceded by a shuffle by key."""
    SINK = "sink"
    """No output; writes records to outside."""


class Form(StrEnum):
    ARROW = "arrow"
    """`RecordBatch -> RecordBatch`."""
    PANDAS = "pandas"
    """`DataFrame -> DataFrame`."""
    MAP = "map"
    """One record in, one out. A record is its value if the stream has one column, otherwise a dict by column."""
    FLAT_MAP = "flat_map"
    """One record in, any number out."""
    FILTER = "filter"
    """One record in, a truth value out; records with a true value pass."""
    COLUMNS = "columns"
    """Native Spark column expressions (SQL text by column name), evaluated in the JVM."""
    FRAME = "frame"
    """A function from Spark DataFrame to DataFrame, which the JVM runs, or one of `elastream.dataflow.natives`."""
    AGGREGATE = "aggregate"
    """Native Spark aggregation per key (SQL text by column name)."""
    STATE = "state"
    """Stateful function per key: `(key, rows, state) -> (rows, state)`, pandas in and out."""
    STREAM = "stream"
    """`Iterator[RecordBatch] -> Iterator[RecordBatch]`, called once per task and micro-batch.

    It may emit any number of records at
    any time, and keeps nothing between micro-batches.
    """
    WINDOW = "window"
    """`(key, rows) -> rows`, pandas in and out, called once per complete window of a key with its records in order.

    In a time window the key ends with the window's start and end, as timestamps. The micro-batch that completes the window
    decides which alternate runs.
    """
    JOIN = "join"
    """`(key, left, right) -> rows`, pandas in and out, called once per pair of complete windows of a key.

    Windows pair by time, or by number. In a time window one side may be empty, but not both.
    """
    ZIP = "zip"
    """No function: the n-th records of all inputs become one record with all columns, in the order of ports.

    Inputs are sequential. The operator has no key and runs in one task; its state is the records that wait.
    """
    SWITCH = "switch"
    """One record in, the name of its port out. Ports follow it."""
    PORT = "port"
    """No function: the records of one port of the switch before it."""
    NONE = "none"
    """No function: sources, sinks, and operators that exist in simulation only."""


# Forms of keyed operators. All others, except NONE, process single records.
GROUPED = frozenset({Form.STATE, Form.AGGREGATE, Form.WINDOW, Form.JOIN, Form.ZIP})


# Forms of functions that a loop may repeat.
REPEATABLE = frozenset({Form.MAP, Form.FLAT_MAP, Form.ARROW, Form.PANDAS})


# Forms of stateless operators that the JVM runs.
NATIVE = frozenset({Form.COLUMNS, Form.FRAME})


class OnError(StrEnum):
    """Handling of a record on which a function raises, or whose result does not fit the schema."""

    FAIL = "fail"
    """The query and the run fail. Nothing is lost; `--resume` continues once the function is repaired."""
    SKIP = "skip"
    """The record is dropped and counted."""
    DEAD_LETTER = "dead_letter"
    """The record is dropped, counted, and stored in the run's folder with its error."""


class Delivery(StrEnum):
    """Distribution of an operator's records over its out-edges."""

    DUPLICATE = "duplicate"
    """Every record is sent over every such edge."""
    ROUND_ROBIN = "round_robin"
    """Records are sent over the operator's round-robin edges in turn."""
    KEYED = "keyed"
    """Every record is sent, to the instance of its key."""


@dataclass(frozen=True, slots=True)
class Alternate:
    """One implementation of an operator (thesis, section 2.2).

    Attributes:
        name: Unique within the operator.
        function: The function. Of native forms SQL text by column name, or a value of `elastream.dataflow.natives`.
        form: Calling convention of the function.
        value: Value relative to the best alternate, in [0, 1].
        cost: Core-seconds per record on a core of speed 1, or text such as "4us". None: measured only.
        selectivity: Records out per record in. None: measured only.
        state: Schema of the alternate's own state, if it differs from the operator's.
        returns: Schema of the output. Empty or equal to the operator's.
    """

    name: str
    function: Callable[..., Any] | Mapping[str, Any] | Native | None = None
    form: Form = Form.NONE
    value: float = 1.0
    cost: float | None = None
    selectivity: float | None = None
    state: str | None = None
    returns: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.cost, str):
            object.__setattr__(self, "cost", duration(self.cost))
        for name in ("state", "returns"):
            if not isinstance(schema := getattr(self, name), str | None):
                object.__setattr__(self, name, ddl_of(schema, f"the {name} of alternate {self.name!r}"))


@dataclass(frozen=True, slots=True)
class Operator:
    """Step of the dataflow, with its service level and the resources of one instance. Schemas are Spark DDL ("n long").

    Attributes:
        alternates: At least one for transforms and keyed operators. A run starts with the first.
        returns: Schema of the output. Empty: that of the input.
        max_duration: Longest time from queueing at the operator to completion (seconds; VISP's o_slo). None: no service
            level.
        cores: Cores of speed 1 of one instance (VISP's o_cpu).
        memory: Memory of one instance (MB; VISP's o_memory).
        image: Data to fetch before the first instance on a host starts (MB).
        waits: True if calls mostly wait, so that they overlap on a thread pool as wide as the parallelism.
        record_bytes: Size of an emitted record in transit (bytes). None: not declared.
        reads, writes: Records of a source, destination of a sink. None: simulated only.
        own_state: True if each alternate has its own state. An inactive alternate's state rests; a new one starts with
            None.
        selects: Columns by which a key table chooses the alternate, among `key` for keyed operators. Empty: none.
        window: Window of a keyed operator of form WINDOW, JOIN or AGGREGATE. An AGGREGATE takes time windows only and emits
            the key, `window_start`, `window_end` and the aggregates; without a window it covers all records so far.
        timeout: End of a key's state. None: never.
        sequential: True if the operator keeps the order of records. Its stage then has parallelism 1.
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
    on_error: OnError = OnError.FAIL

    @property
    def load(self) -> ArrivalPattern | None:
        """Arrival pattern of a source that replays records; otherwise None."""
        load: ArrivalPattern | None = getattr(self.reads, "load", None)
        return load

    @property
    def lenient(self) -> bool:
        """True if the run drops records on which the function raises, and continues."""
        return self.on_error is not OnError.FAIL

    def state_of(self, alternate: Alternate) -> str | None:
        return alternate.state or self.state

    def alternate(self, name: str) -> Alternate:
        """Return the alternate named `name`, or raise DataflowError."""
        for alternate in self.alternates:
            if alternate.name == name:
                return alternate
        names = ", ".join(a.name for a in self.alternates) or "none"
        raise DataflowError(f"operator {self.name!r} has no alternate {name!r} (it has: {names})")


@dataclass(frozen=True, slots=True)
class Edge:
    """Stream from one operator to another.

    Attributes:
        durable: Channel between two queries, `"parquet"` or `"kafka"`. None: both ends may run in one query.
        choice: Name of a set of out-edges of one operator, of which the composition selects exactly one. None: always
            active.
        value: Value of a branch relative to the best one, in [0, 1].
        port: Input of a join or zip, from 0. Streams into one port are merged.
    """

    source: str
    target: str
    delivery: Delivery = Delivery.DUPLICATE
    durable: str | None = None
    choice: str | None = None
    value: float = 1.0
    port: int = 0


# Spark functions that return several records for one.
_SEVERAL = re.compile(
    r"\b(explode|explode_outer|posexplode|posexplode_outer|inline|inline_outer|stack|json_tuple|variant_explode)\s*\(", re.I
)


def emits_as_many(operator: Operator) -> bool:
    """Return True if an operator of column expressions emits exactly one record for each."""
    each_has = [getattr(alternate.function, "expressions", alternate.function) for alternate in operator.alternates]
    columns = [expressions for expressions in each_has if isinstance(expressions, Mapping)]
    if len(columns) < len(each_has):
        return False
    return bool(columns) and not any(_SEVERAL.search(str(text)) for each in columns for text in each.values())
