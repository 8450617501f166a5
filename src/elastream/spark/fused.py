"""The stateless part of a stage, run inside one `mapInArrow`: a walk over a little graph of operators, batch by batch.

Chaining an Arrow stage per operator, or a union per branch, costs several times as much as the operators do (DESIGN.md);
here operators, alternates, fan-out, fan-in and choices share one crossing into Python. It runs on workers and knows only
what `regions` wired for it; which composition holds is read from the records or from the logs beside the checkpoint.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, compress
from operator import length_hint
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import Accumulator, TaskContext, cloudpickle

from elastream.model.graph import Form
from elastream.spark.composition import COLUMN, CompositionLog, Digit, code_in_offsets
from elastream.spark.meter import TaskRow

__all__ = [
    "ENTRY",
    "EXIT",
    "FAILED",
    "Carrier",
    "Entry",
    "Exit",
    "Implementation",
    "OperatorFailed",
    "Route",
    "Step",
    "Walk",
    "batch_number",
    "stage_function",
]

ENTRY = "_entry"
"""Column that tells by which entry a record came in, where a region has several."""
EXIT = "_exit"
"""Column that tells by which exit a record leaves, where a region has several."""
FAILED = "ELASTREAM-OPERATOR-FAILED "
"""What stands before the JSON description of an operator's failure, for `explain_failure` to find."""
SHOWN = 200
"""Characters of a record that an error message shows."""


@dataclass(frozen=True, slots=True)
class Route:
    """An edge inside the walk, to node number `to`; with `choice`, live only while that digit equals `position`."""

    to: int
    dealt: bool = False
    choice: Digit | None = None
    position: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """Where records come in: a source, a durable edge, or the keyed operator before the region."""

    name: str
    columns: tuple[str, ...]
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Implementation:
    """An alternate as workers see it."""

    name: str
    form: Form
    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Step:
    """An operator: its alternates, the digit that picks one, the digit of its pool's width if it waits, what it emits."""

    name: str
    alternates: tuple[Implementation, ...]
    pick: Digit | None
    width: Digit | None
    schema: pa.Schema
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Exit:
    """Where records leave: to a sink, a durable edge, a keyed operator, or native columns before one of these."""

    name: str
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Walk:
    """A region as one walk. Nodes are numbered through `entries`, then `steps` in topological order, then `exits`.

    lead: the operator that the transport of the stage is booked on.
    """

    segment: str
    lead: str
    entries: tuple[Entry, ...]
    steps: tuple[Step, ...]
    exits: tuple[Exit, ...]


@dataclass(frozen=True, slots=True)
class Carrier:
    """How the code of the composition reaches the region.

    stamped: records carry it in a column. Else `offsets` (our own sources put it into the offset log of this checkpoint)
    or `log` (the composition log of foreign sources), looked up by batch; none of them where nothing can be switched.
    """

    stamped: bool = False
    offsets: Path | None = None
    log: Path | None = None

    def code(self, batch: int) -> int:
        """The code of `batch`, where records do not carry it."""
        if self.offsets is not None:
            return code_in_offsets(self.offsets, batch) or 0
        return CompositionLog(self.log).code(batch) if self.log is not None else 0


class OperatorFailed(RuntimeError):
    """A user's function raised, or returned what its schema does not allow. The text is made for `explain_failure`."""

    def __init__(
        self, operator: str, alternate: str, error: BaseException | str, record: object, batch_of: int = 0
    ) -> None:
        what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        shown = repr(record)
        story = {
            "operator": operator,
            "alternate": alternate,
            "error": what.splitlines()[0] if what else "",
            "record": shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "...",
            "batch_of": batch_of,
        }
        super().__init__(FAILED + json.dumps(story))


class Chunk:
    """Some records on their way, as an Arrow batch, as Python values, or both; made from the other when asked for.

    A value is that of the one column, or a dict by column where there are several.
    """

    __slots__ = ("_batch", "_values", "rows", "schema")

    def __init__(self, schema: pa.Schema, batch: pa.RecordBatch | None = None, values: list[Any] | None = None) -> None:
        self.schema = schema
        self._batch = batch
        self._values = values
        self.rows = batch.num_rows if batch is not None else len(values or ())

    def batch(self) -> pa.RecordBatch:
        """As Arrow, in exactly the declared schema; raises what Arrow raises where values do not fit it."""
        if self._batch is None:
            values, names = self._values or [], self.schema.names
            if len(names) == 1:
                columns = [pa.array(values, self.schema.field(0).type)]
            else:
                columns = [pa.array([value[field.name] for value in values], field.type) for field in self.schema]
            self._batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return self._batch

    def values(self) -> list[Any]:
        """As Python values."""
        if self._values is None:
            columns = [_column_values(column) for column in self._batch.columns]
            if len(columns) == 1:
                self._values = columns[0]
            else:
                names = self.schema.names
                self._values = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        return self._values

    def kept(self, keep: list[Any]) -> "Chunk":
        """The records for which `keep` is true."""
        batch = None if self._batch is None else self._batch.filter(pa.array(map(bool, keep), pa.bool_()))
        values = None if self._values is None else list(compress(self._values, keep))
        return Chunk(self.schema, batch, values)

    def dealt(self, first: int, hands: int) -> "Chunk":
        """Every `hands`-th record from number `first` on."""
        if self._batch is None:
            return Chunk(self.schema, values=self._values[first::hands])
        return Chunk(self.schema, self._batch.take(pa.array(range(first, self.rows, hands), pa.int64())))

    def apart(self) -> "Chunk":
        """The same records with Python values of its own, so that a function that changes a dict changes no other's."""
        return Chunk(self.schema, self._batch)


def _column_values(column: pa.Array) -> list[Any]:
    # to_pylist makes a Scalar of each value, five times slower than numpy's loop where that gives the same values.
    kind = column.type
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if pa.types.is_string(kind) or (plain and column.null_count == 0):
        return column.to_numpy(zero_copy_only=False).tolist()
    return column.to_pylist()


def shareable(schema: pa.Schema) -> bool:
    """Whether branches may share Python values: one column, of values that no function can change in place."""
    return len(schema) == 1 and not pa.types.is_nested(schema.field(0).type)


# -- one operator ------------------------------------------------------------------------------------------------------


class Runner:
    """One operator under one composition, in one task."""

    def __init__(self, step: Step, code: int, as_arrow: bool) -> None:
        self.step = step
        self.chosen = step.alternates[step.pick.of(code) if step.pick else 0]
        self.as_arrow = as_arrow
        self.pool = ThreadPoolExecutor(step.width.of(code) + 1) if step.width else None
        self.waited = 0.0

    def __call__(self, chunk: Chunk) -> Chunk:
        """What the operator makes of `chunk`; raises OperatorFailed."""
        form = self.chosen.form
        if form in (Form.ARROW, Form.PANDAS):
            result = self._whole(chunk)
        else:
            result = self._each(chunk)
        if self.as_arrow:
            try:
                result.batch()
            except KeyError as error:
                self._fail(f"it returned a record without the column {error}", self._misfit(result))
            except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
                self._fail(f"it returned a value that is not {self._promised()} ({error})", self._misfit(result))
        return result

    def _each(self, chunk: Chunk) -> Chunk:
        form = self.chosen.form
        answers = self._answers(chunk.values(), form is Form.FLAT_MAP)
        return chunk.kept(answers) if form is Form.FILTER else Chunk(self.step.schema, values=answers)

    def _answers(self, values: list[Any], flat: bool) -> list[Any]:
        """The function over all values; the length of what is left tells the record at fault without slowing the rest."""
        function = self.chosen.function
        if self.pool is not None:
            answers = self._pooled([(value,) for value in values], (lambda v: list(function(v))) if flat else function)
            return list(chain.from_iterable(answers)) if flat else answers
        left = iter(values)
        try:
            return list(chain.from_iterable(map(function, left))) if flat else list(map(function, left))
        except Exception as error:
            raise self._failure(error, values[len(values) - length_hint(left) - 1]) from error

    def _whole(self, chunk: Chunk) -> Chunk:
        batch = chunk.batch()
        call = self._arrow if self.chosen.form is Form.ARROW else self._pandas
        try:
            if self.pool is None:
                return Chunk(self.step.schema, call(batch))
            parts = min(self.pool._max_workers, batch.num_rows)
            cuts = [batch.num_rows * part // parts for part in range(parts + 1)]
            slices = [(batch.slice(start, stop - start),) for start, stop in zip(cuts, cuts[1:], strict=False)]
            return Chunk(self.step.schema, pa.concat_batches(self._pooled(slices, call)))
        except OperatorFailed:
            raise
        except Exception as error:
            first = batch.slice(0, 1).to_pylist()[0]
            raise self._failure(error, first, batch.num_rows) from error

    def _arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return conformed(self.chosen.function(batch), self.step.schema)

    def _pandas(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        frame = self.chosen.function(batch.to_pandas())
        return pa.RecordBatch.from_pandas(frame, schema=self.step.schema, preserve_index=False)

    def _pooled(self, arguments: Sequence[tuple[Any, ...]], function: Callable[..., Any]) -> list[Any]:
        """Results in order; `waited` grows by the seconds that threads were taken."""

        def timed(given: tuple[Any, ...]) -> tuple[Any, float]:
            start = time.perf_counter()
            return function(*given), time.perf_counter() - start

        assert self.pool is not None
        done: list[Any] = []
        try:
            for answer, seconds in self.pool.map(timed, arguments):
                done.append(answer)
                self.waited += seconds
        except Exception as error:
            at_fault = arguments[len(done)][0]
            if isinstance(at_fault, pa.RecordBatch):
                raise self._failure(error, at_fault.slice(0, 1).to_pylist()[0], at_fault.num_rows) from error
            raise self._failure(error, at_fault) from error
        return done

    def _failure(self, error: BaseException | str, record: object, batch_of: int = 0) -> OperatorFailed:
        return OperatorFailed(self.step.name, self.chosen.name, error, record, batch_of)

    def _fail(self, error: str, record: object) -> None:
        raise self._failure(error, record) from None

    def _promised(self) -> str:
        return ", ".join(f"{field.name} {field.type}" for field in self.step.schema)

    def _misfit(self, result: Chunk) -> object:
        for value in result.values():
            try:
                Chunk(result.schema, values=[value]).batch()
            except Exception:
                return value
        return None


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` in `schema`: columns picked by name and cast; raises KeyError for a missing column, ArrowException."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        if (at := batch.schema.get_field_index(field.name)) < 0:
            raise KeyError(f"the batch it returned has no column {field.name!r} (it has: {', '.join(batch.schema.names)})")
        column = batch.column(at)
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# -- the walk ----------------------------------------------------------------------------------------------------------


class Tally:
    """What one operator did in one task under one composition."""

    __slots__ = ("busy", "first", "last", "rows_in", "rows_out")

    def __init__(self) -> None:
        self.rows_in = self.rows_out = 0
        self.busy = 0.0
        self.first = self.last = time.time()


class Walker:
    """One task's walk under one composition; `tallies` by operator name."""

    def __init__(self, walk: Walk, code: int) -> None:
        self.walk = walk
        self.code = code
        nodes = (*walk.entries, *walk.steps, *walk.exits)
        self.routes = [_live(getattr(node, "routes", ()), code) for node in nodes]
        self.steps_from = len(walk.entries)
        self.exits_from = self.steps_from + len(walk.steps)
        self.runners = [
            Runner(step, code, self._needs_arrow(number, step.schema))
            for number, step in enumerate(walk.steps, self.steps_from)
        ]
        self.turns = [0] * len(nodes)
        self.tallies = {name: Tally() for name in (walk.lead, *(step.name for step in walk.steps))}

    def _needs_arrow(self, number: int, schema: pa.Schema) -> bool:
        """Whether what node `number` emits must be Arrow at once: a target wants it, or branches may not share values."""
        routes = self.routes[number]
        return (len(routes) > 1 and not shareable(schema)) or any(
            route.to >= self.exits_from or self._takes_arrow(self.walk.steps[route.to - self.steps_from])
            for route in routes
        )

    def _takes_arrow(self, step: Step) -> bool:
        return step.alternates[step.pick.of(self.code) if step.pick else 0].form in (Form.ARROW, Form.PANDAS)

    def through(self, entry: int, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """What leaves, by number of the exit, when `batch` enters at entry number `entry`."""
        waiting: list[list[Chunk]] = [[] for _ in self.routes]
        self._send(entry, Chunk(batch.schema, batch), waiting)
        for number, runner in enumerate(self.runners, self.steps_from):
            tally = self.tallies[runner.step.name]
            for chunk in waiting[number]:
                begun, started = time.time(), time.thread_time()
                result = runner(chunk)
                if not tally.rows_in:
                    tally.first = begun
                tally.busy += time.thread_time() - started
                tally.last = time.time()
                tally.rows_in += chunk.rows
                tally.rows_out += result.rows
                if result.rows:
                    self._send(number, result, waiting)
        left = []
        for number, (exit, chunks) in enumerate(zip(self.walk.exits, waiting[self.exits_from :], strict=True)):
            if chunks:
                batches = [conformed(chunk.batch(), exit.schema) for chunk in chunks]
                left.append((number, pa.concat_batches(batches) if len(batches) > 1 else batches[0]))
        return left

    def _send(self, number: int, chunk: Chunk, waiting: list[list[Chunk]]) -> None:
        routes = self.routes[number]
        hands = sum(route.dealt for route in routes)
        share = len(routes) == 1 or shareable(chunk.schema)
        turn = self.turns[number]
        seat = 0
        for route in routes:
            part = chunk if share else chunk.apart()
            if route.dealt:
                part = part.dealt((seat - turn) % hands, hands)
                seat += 1
            if part.rows:
                waiting[route.to].append(part)
        if hands:
            self.turns[number] = (turn + chunk.rows) % hands

    def report(self, segment: str, batch: int) -> list[TaskRow]:
        """The tallies, as the meter takes them; operators that saw no record are left out."""
        for runner in self.runners:
            if runner.pool is not None:
                self.tallies[runner.step.name].busy = runner.waited
        return [
            (segment, batch, name, self.code, tally.rows_in, tally.rows_out, tally.busy, tally.first, tally.last)
            for name, tally in self.tallies.items()
            if tally.rows_in
        ]

    def close(self) -> None:
        """End the pools."""
        for runner in self.runners:
            if runner.pool is not None:
                runner.pool.shutdown(wait=False, cancel_futures=True)


def _live(routes: Sequence[Route], code: int) -> tuple[Route, ...]:
    return tuple(route for route in routes if route.choice is None or route.choice.of(code) == route.position)


def batch_number() -> int:
    """The micro-batch that this task belongs to; -1 outside a streaming query."""
    context = TaskContext.get()
    found = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return int(found) if found is not None else -1


@lru_cache(maxsize=64)
def _loaded(pickled: bytes) -> Walk:
    # A worker process serves many tasks: users' functions, and what their modules hold, are loaded once.
    return cloudpickle.loads(pickled)


def stage_function(
    pickled: bytes, carrier: Carrier, sink: Accumulator[list[TaskRow]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: `pickled` is a Walk; `sink` takes what the meter counted."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return walked(_loaded(pickled), carrier, batch_number(), batches, sink.add)

    return run


def walked(
    walk: Walk,
    carrier: Carrier,
    number: int,
    batches: Iterable[pa.RecordBatch],
    report: Callable[[list[TaskRow]], object],
) -> Iterator[pa.RecordBatch]:
    """The records of one task of batch `number` through `walk`. With several exits, rows are tagged (`tagged`)."""
    started, begun = time.thread_time(), time.time()
    walkers: dict[int, Walker] = {}
    fixed = None if carrier.stamped else carrier.code(number)
    schema = tagged_schema(walk.exits) if len(walk.exits) > 1 else None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            code = batch.column(COLUMN)[0].as_py() if fixed is None else fixed
            walker = walkers.get(code) or walkers.setdefault(code, Walker(walk, code))
            entry, records = entered(walk.entries, batch)
            lead = walker.tallies[walk.lead]
            lead.rows_in += records.num_rows
            lead.rows_out += records.num_rows
            for exit, result in walker.through(entry, records):
                yield result if schema is None else tagged(exit, result, schema)
        spent = time.thread_time() - started
        rows: list[TaskRow] = []
        for walker in walkers.values():
            lead = walker.tallies[walk.lead]
            in_steps = sum(walker.tallies[runner.step.name].busy for runner in walker.runners)
            lead.busy, lead.first, lead.last = max(0.0, spent - in_steps), begun, time.time()
            rows += walker.report(walk.segment, number)
        report(rows)
    finally:
        for walker in walkers.values():
            walker.close()


def entered(entries: Sequence[Entry], batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
    """The entry that `batch` came by, and its records in that entry's columns."""
    if len(entries) == 1:
        return 0, batch.select(list(entries[0].columns))
    entry = batch.column(ENTRY)[0].as_py()
    return entry, pa.RecordBatch.from_arrays(batch.column(f"_{entry}").flatten(), names=list(entries[entry].columns))


def tagged_schema(exits: Sequence[Exit]) -> pa.Schema:
    """Rows of several exits in one stream: the number of the exit, and a struct per exit of which one is filled."""
    return pa.schema(
        [pa.field(EXIT, pa.int32()), *(pa.field(f"_{n}", pa.struct(list(exit.schema))) for n, exit in enumerate(exits))]
    )


def tagged(exit: int, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` as rows of `tagged_schema`."""
    rows = batch.num_rows
    columns: list[pa.Array] = [pa.repeat(pa.scalar(exit, pa.int32()), rows)]
    for number in range(len(schema) - 1):
        kind = schema.field(number + 1).type
        filled = number == exit
        columns.append(pa.StructArray.from_arrays(batch.columns, fields=list(kind)) if filled else pa.nulls(rows, kind))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
