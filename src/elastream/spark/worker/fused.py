"""Executes the stateless operators of a stage inside one `mapInArrow`: a walk over their graph, batch by batch.

A chain of Arrow stages per operator, or a union per branch, costs several times as much as the operators themselves; here
operators, alternates, fan-out, fan-in and choices share one transfer into Python. `spark.dataflow.fusing` builds the walk;
the composition is read from the logs next to the checkpoint.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, TaskContext, cloudpickle

from elastream.dataflow.operators import Form, OnError
from elastream.recording.places import Place
from elastream.spark.worker.by_key import ByKey, Metered
from elastream.spark.worker.composition import CompositionLog, Digit, code_in_offsets, freeze_imports
from elastream.spark.worker.leaving import Exit, Leaving, leaving_schema
from elastream.spark.worker.left_out import LeaveOut, LeftOut, attempt_of
from elastream.spark.worker.meter import TaskRow, cpu_seconds
from elastream.spark.worker.pulling import pulled
from elastream.spark.worker.records import Chunk, conformed, shareable
from elastream.spark.worker.runner import WHOLE, Implementation, Runner
from elastream.spark.worker.signals import Folding, SignalRow, SignalTap
from elastream.spark.worker.table_lookup import lookup

ENTRY = "_entry"
"""Column with the number of the entry of a record, in a region with several entries."""


@dataclass(frozen=True, slots=True)
class Route:
    """An edge inside the walk, to node number `to`; with `choice`, active only while that digit equals `position`."""

    to: int
    dealt: bool = False
    choice: Digit | None = None
    position: int = 0


@dataclass(frozen=True, slots=True)
class WalkEntry:
    """Where records enter: a source, a durable edge, or the keyed operator before the region."""

    name: str
    columns: tuple[str, ...]
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """An operator. schema: output. Digits: pick chooses its alternate, width that of its pool, table its key table.

    on_error: what becomes of records on which its function raises.
    """

    name: str
    alternates: tuple[Implementation, ...]
    pick: Digit | None
    width: Digit | None
    schema: pa.Schema
    routes: tuple[Route, ...]
    table: Digit | None = None
    on_error: OnError = OnError.FAIL

    def chosen(self, code: int) -> int:
        """Number of the alternate under `code`; with a key table, that for keys which it does not name."""
        return self.pick.of(code) if self.pick else 0

    def by_table(self, code: int) -> int:
        """The digit of its key table under `code`; 0 for none."""
        return self.table.of(code) if self.table else 0

    def may_run(self, code: int) -> Sequence[Implementation]:
        """The alternates that records under `code` may meet."""
        return self.alternates if self.by_table(code) else (self.alternates[self.chosen(code)],)

    def wide(self, code: int) -> int | None:
        """Threads of its pool under `code`; None if it has no pool."""
        return self.width.of(code) + 1 if self.width else None


@dataclass(frozen=True, slots=True)
class Walk:
    """A region as one walk. Nodes are numbered: `entries`, then `steps` in topological order, then `exits`, then `taps`.

    lead: the operator to which the stage's transport is attributed. ordered: whether rows say which place they have.
    """

    segment: str
    lead: str
    entries: tuple[WalkEntry, ...]
    steps: tuple[Step, ...]
    exits: tuple[Exit, ...]
    taps: tuple[SignalTap, ...] = ()
    ordered: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Of the rows that leave it."""
        return leaving_schema(self.exits, self.ordered)


@dataclass(frozen=True, slots=True)
class Carrier:
    """Where the region reads the code of the composition.

    offsets: from the offset log of this checkpoint (Elastream's sources). log: from the composition log (foreign sources).
    Both unset: the region has nothing to switch. tables: folder of key tables in use. left_out: folder for what tasks
    leave out; None: nothing may be left out.
    """

    offsets: Place | None = None
    log: Place | None = None
    tables: Place | None = None
    left_out: Place | None = None

    def code(self, batch: int) -> int:
        """The code of `batch`."""
        if self.offsets is not None:
            return code_in_offsets(self.offsets, batch) or 0
        return CompositionLog(self.log).ran(batch).code if self.log is not None else 0


class Tally:
    """Counters of what leads the stage, in one task under one composition."""

    __slots__ = ("busy", "first", "last", "rows_in")

    def __init__(self) -> None:
        self.rows_in = 0
        self.busy = 0.0
        self.first = self.last = time.time()


class Walker:
    """One task's walk under one composition.

    tables: folder of key tables in use. foldings: of its taps, in their order. left_out: takes records that are left out.
    """

    def __init__(
        self,
        walk: Walk,
        code: int,
        tables: Place | None = None,
        foldings: Sequence[Folding] = (),
        left_out: LeftOut | None = None,
    ) -> None:
        self.walk = walk
        self.code = code
        self.foldings = foldings
        self.left_out = left_out
        nodes = (*walk.entries, *walk.steps, *walk.exits, *walk.taps)
        self.routes = [_live(getattr(node, "routes", ()), code) for node in nodes]
        self.steps_from = len(walk.entries)
        self.exits_from = self.steps_from + len(walk.steps)
        self.taps_from = self.exits_from + len(walk.exits)
        self.steps = [self._step(number, step, tables) for number, step in enumerate(walk.steps, self.steps_from)]
        pulling = {n: step for n, step in enumerate(self.steps, self.steps_from) if isinstance(step, Metered)}
        self.kept = {
            n: (run, deque[pa.RecordBatch]()) for n, run in pulling.items() if run.runner.chosen.form is Form.STREAM
        }
        self.turns = [0] * len(nodes)
        self.lead = Tally()

    def _step(self, number: int, step: Step, tables: Place | None) -> Metered | ByKey:
        as_arrow, width = self._needs_arrow(number, step.schema), step.wide(self.code)

        def made(alternate: int) -> Runner:
            implementation = step.alternates[alternate]
            return Runner(step.name, implementation, step.schema, width, as_arrow, self._leaves_out(step, implementation))

        chosen = step.chosen(self.code)
        if not (digit := step.by_table(self.code)):
            return Metered(made(chosen))
        assert tables is not None
        table = lookup(tables, step.name, digit, [each.name for each in step.alternates])
        return ByKey(made, table, chosen, step.schema)

    def _leaves_out(self, step: Step, implementation: Implementation) -> LeaveOut | None:
        if step.on_error is OnError.FAIL or self.left_out is None:
            return None
        return self.left_out.by(step.name, implementation.name, keep=step.on_error is OnError.DEAD_LETTER)

    def metered(self) -> Iterator[Metered]:
        """What ran, alternate by alternate."""
        for step in self.steps:
            yield from step.runs.values() if isinstance(step, ByKey) else (step,)

    def _needs_arrow(self, number: int, schema: pa.Schema) -> bool:
        """Whether node `number` must emit Arrow: a target needs it, or branches must not share mutable values."""
        routes = self.routes[number]
        return (len(routes) > 1 and not shareable(schema)) or any(
            route.to >= self.exits_from
            or any(each.form in WHOLE for each in self.walk.steps[route.to - self.steps_from].may_run(self.code))
            for route in routes
        )

    def through(self, entry: int, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """Process `batch` from entry number `entry`; returns (exit number, records) pairs."""
        return self._onward(entry, Chunk(batch.schema, batch))

    def finish(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Let the operators that pull have what was kept for them; behind the last record of the task."""
        for number, (run, held) in self.kept.items():
            runner = run.runner
            results = pulled(runner.name, runner.chosen, runner.schema, held) if held else iter(())
            while (chunk := _next(run, results)) is not None:
                yield from self._onward(number, chunk)

    def _onward(self, emitter: int, chunk: Chunk) -> list[tuple[int, pa.RecordBatch]]:
        """Send what node number `emitter` emitted through the nodes behind it."""
        waiting: list[list[Chunk]] = [[] for _ in self.routes]
        self._send(emitter, chunk, waiting)
        for number in range(max(emitter + 1, self.steps_from), self.exits_from):
            if number in self.kept:
                run, held = self.kept[number]
                for chunk in waiting[number]:
                    run.took(time.time(), 0.0, chunk.rows, 0)
                    held.append(chunk.batch())
                continue
            step = self.steps[number - self.steps_from]
            for chunk in waiting[number]:
                result = step(chunk)
                if result.rows:
                    self._send(number, result, waiting)
        left, ending = [], waiting[self.exits_from : self.taps_from]
        for number, (exit, chunks) in enumerate(zip(self.walk.exits, ending, strict=True)):
            if chunks:
                batches = [conformed(chunk.batch(), exit.schema) for chunk in chunks]
                left.append((number, pa.concat_batches(batches) if len(batches) > 1 else batches[0]))
        for folding, chunks in zip(self.foldings, waiting[self.taps_from :], strict=True):
            for chunk in chunks:
                folding.add(chunk.batch())
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

    def report(self, segment: str, batch: int, task: int) -> list[TaskRow]:
        """Rows of the meter, for operators that processed records."""
        rows: list[TaskRow] = []
        for run in self.metered():
            if run.rows_in:
                busy = run.busy if run.runner.pool is None else run.runner.waited
                counts = (self.code, run.rows_in, run.rows_out, busy, run.first, run.last)
                rows.append((segment, batch, run.runner.name, *counts, run.runner.chosen.name, task))
        if (lead := self.lead).rows_in:
            counts = (self.code, lead.rows_in, lead.rows_in, lead.busy, lead.first, lead.last)
            rows.append((segment, batch, self.walk.lead, *counts, "", task))
        return rows

    def close(self) -> None:
        """Shut down the thread pools."""
        for run in self.metered():
            if run.runner.pool is not None:
                run.runner.pool.shutdown(wait=False, cancel_futures=True)


def _next(run: Metered, results: Iterator[Chunk]) -> Chunk | None:
    begun, started = time.time(), cpu_seconds()
    chunk = next(results, None)
    run.took(begun, cpu_seconds() - started, 0, 0 if chunk is None else chunk.rows)
    return chunk


def _live(routes: Sequence[Route], code: int) -> tuple[Route, ...]:
    return tuple(route for route in routes if route.choice is None or route.choice.of(code) == route.position)


def batch_number() -> int:
    """Number of the micro-batch of this task; -1 outside a streaming query."""
    context = TaskContext.get()
    found = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return int(found) if found is not None else -1


def task_number() -> int:
    """Number of this task among those of its stage in the batch; 0 outside Spark. A replay gives it the same records."""
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


@lru_cache(maxsize=64)
def _loaded(pickled: bytes) -> Walk:
    # A worker process executes many tasks: user functions and their modules are loaded once.
    walk: Walk = cloudpickle.loads(pickled)
    return walk


def stage_function(
    pickled: bytes,
    carrier: Carrier,
    sink: Accumulator[list[TaskRow]],
    signals: Accumulator[list[SignalRow]] | None = None,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Build the function for `mapInArrow`. pickled: a Walk; sink, signals: accumulators of the meter."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tell = signals.add if signals is not None else None
        return walked(_loaded(pickled), carrier, batch_number(), batches, sink.add, tell, task_number())

    return run


def walked(
    walk: Walk,
    carrier: Carrier,
    number: int,
    batches: Iterable[pa.RecordBatch],
    report: Callable[[list[TaskRow]], object],
    tell: Callable[[list[SignalRow]], object] | None = None,
    task: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Process the records of one task of batch `number`, in the schema of the walk; with several exits rows are `tagged`.

    report, tell: take counts and signals when the task is done. task: its number in the batch.
    """
    freeze_imports()
    started, begun = cpu_seconds(), time.time()
    foldings = tuple(map(Folding, walk.taps))
    left_out = LeftOut(carrier.left_out, number, walk.lead, task, attempt_of(TaskContext.get()))
    walker = Walker(walk, carrier.code(number), carrier.tables, foldings, left_out)
    leaving = Leaving(walk.exits, walk.ordered, task)
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            walker.lead.rows_in += batch.num_rows
            for entry, records in entered(walk.entries, batch):
                for exit, result in walker.through(entry, records):
                    yield leaving(exit, result)
        for exit, result in walker.finish():
            yield leaving(exit, result)
        left_out.flush()
        lead = walker.lead
        lead.busy = max(0.0, cpu_seconds() - started - sum(run.busy for run in walker.metered()))
        lead.first, lead.last = begun, time.time()
        report(walker.report(walk.segment, number, task))
        if tell is not None and (told := [f for f in foldings if f.count]):
            tell([(walk.segment, number, folding.tap.name, task, *folding.part) for folding in told])
    finally:
        walker.close()


def entered(entries: Sequence[WalkEntry], batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The records of `batch` by WalkEntry number, in that entry's columns; one task may read several entries in turn."""
    if len(entries) == 1:
        yield 0, batch.select(list(entries[0].columns))
        return
    numbers = batch.column(ENTRY).to_numpy()
    changes = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    for first, behind in pairwise([0, *changes, batch.num_rows]):
        entry = int(numbers[first])
        columns = batch.column(f"_{entry}").slice(first, behind - first).flatten()
        yield entry, pa.RecordBatch.from_arrays(columns, names=list(entries[entry].columns))
