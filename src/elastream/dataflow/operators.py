"""What a dataflow graph is made of: operators with their alternates, and edges. `elastream.dataflow.graph` joins them.

User functions are opaque values that only the Spark plant calls.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from elastream.dataflow.endpoints import ArrivalPattern, SinkSpec, SourceSpec
from elastream.dataflow.windows import Timeout, Window
from elastream.errors import DataflowError


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


GROUPED = frozenset({Form.STATE, Form.AGGREGATE, Form.WINDOW, Form.JOIN, Form.ZIP})
"""Forms of keyed operators; all others, but NONE, are of operators that see single records."""


class OnError(StrEnum):
    """What becomes of a record on which an operator's function raises, or whose result does not fit the schema."""

    FAIL = "fail"
    """The query fails, and with it the run: nothing is lost, and `--resume` goes on once the function is mended."""
    SKIP = "skip"
    """It is left out, and counted."""
    DEAD_LETTER = "dead_letter"
    """It is left out, counted, and kept in the run's folder with its error."""


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
    reads, writes: what a source reads and a sink writes (`elastream.dataflow.endpoints`), None where that is only
    simulated.
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
    on_error: what becomes of a record on which its function raises.
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
        """The arrival pattern of a source that replays records; None for every other operator."""
        found: ArrivalPattern | None = getattr(self.reads, "load", None)
        return found

    @property
    def lenient(self) -> bool:
        """Whether a record on which its function raises is left out, and the run goes on."""
        return self.on_error is not OnError.FAIL

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


_SEVERAL = re.compile(
    r"\b(explode|explode_outer|posexplode|posexplode_outer|inline|inline_outer|stack|json_tuple|variant_explode)\s*\(", re.I
)
"""Spark's functions that give several records for one."""


def emits_as_many(operator: Operator) -> bool:
    """Whether an operator of column expressions emits one record for each: none of them gives several."""
    columns = [alternate.function for alternate in operator.alternates if isinstance(alternate.function, Mapping)]
    return bool(columns) and not any(_SEVERAL.search(text) for each in columns for text in each.values())
