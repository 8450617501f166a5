"""Runs the chained operators of a stage inside one `mapInArrow`: a walk over their graph, batch by batch."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, TaskContext, cloudpickle

from elastream.dataflow.operators import Form, OnError
from elastream.recording.paths import AnyPath
from elastream.spark.worker.code import CodeInUse, later_code
from elastream.spark.worker.composition import CompositionLog, Digit, code_in_offsets, freeze_imports
from elastream.spark.worker.exits import Exit, ExitRows, exit_schema
from elastream.spark.worker.left_out import LeaveOut, LeftOut, attempt_of
from elastream.spark.worker.meter import MeteredRunner, TaskRow, cpu_seconds
from elastream.spark.worker.records import Chunk, conform, is_shareable
from elastream.spark.worker.runner import ARROW_INPUT, Implementation, Runner, run_stream
from elastream.spark.worker.signals import Folding, SignalRow, SignalTap
from elastream.spark.worker.table_lookup import KeyTableRunner, lookup

# Column with the number of a record's entry, in a chain with several entries.
ENTRY = "_entry"


@dataclass(frozen=True, slots=True)
class Route:
    """An edge to node number `to`, active while the digit `choice` equals `position`."""

    to: int
    round_robin: bool = False
    choice: Digit | None = None
    position: int = 0


@dataclass(frozen=True, slots=True)
class WalkEntry:
    """An entry of records: a source, a durable edge, or a keyed operator."""

    name: str
    columns: tuple[str, ...]
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """An operator of a walk.

    Attributes:
        pick: Digit of the composition's code that names the alternate; None with one alternate.
        width: Digit that gives the threads of its pool, minus one; None without a pool.
        table: Digit that names the key table; None without any.
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
        """Return the number of the alternate that `code` names; with a key table, it is that of keys without a row."""
        return self.pick.of(code) if self.pick else 0

    def by_table(self, code: int) -> int:
        """Return the number of the key table that `code` names; 0 if it names none."""
        return self.table.of(code) if self.table else 0

    def may_run(self, code: int) -> Sequence[Implementation]:
        """Return the alternates that records may meet under `code`."""
        return self.alternates if self.by_table(code) else (self.alternates[self.chosen(code)],)


@dataclass(frozen=True, slots=True)
class Walk:
    """A chain as one walk. Nodes are numbered: `entries`, `steps` in topological order, `exits`, `taps`.

    Attributes:
        lead: Operator that accounts for the stage's transport.
        ordered: True if rows carry their position in the micro-batch.
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
        return exit_schema(self.exits, self.ordered)


@dataclass(frozen=True, slots=True)
class WorkerPaths:
    """Paths that tasks read the composition and key tables from and write left-out records to.

    Attributes:
        offsets: Checkpoint of a query with Elastream's sources.
        later: Later versions of the operators' code.
    """

    offsets: AnyPath | None = None
    log: AnyPath | None = None
    tables: AnyPath | None = None
    left_out: AnyPath | None = None
    later: CodeInUse | None = None

    def code(self, batch: int) -> int:
        if self.offsets is not None:
            return code_in_offsets(self.offsets, batch) or 0
        return CompositionLog(self.log).at(batch).code if self.log is not None else 0


class Walker:
    """The walk of one task under one composition."""

    def __init__(
        self,
        walk: Walk,
        code: int,
        tables: AnyPath | None = None,
        foldings: Sequence[Folding] = (),
        left_out: LeftOut | None = None,
    ) -> None:
        self.walk = walk
        self.code = code
        self.foldings = foldings
        self.left_out = left_out
        ends = len(walk.exits) + len(walk.taps)
        routes = [*(entry.routes for entry in walk.entries), *(step.routes for step in walk.steps)]
        self.routes = [*(_live(each, code) for each in routes), *[()] * ends]
        self.steps_from = len(walk.entries)
        self.exits_from = self.steps_from + len(walk.steps)
        self.taps_from = self.exits_from + len(walk.exits)
        self.steps = [self._step(number, step, tables) for number, step in enumerate(walk.steps, self.steps_from)]
        pulling = {n: step for n, step in enumerate(self.steps, self.steps_from) if isinstance(step, MeteredRunner)}
        self.buffers = {
            n: (run, deque[pa.RecordBatch]()) for n, run in pulling.items() if run.runner.chosen.form is Form.STREAM
        }
        self.turns = [0] * len(self.routes)

    def _step(self, number: int, step: Step, tables: AnyPath | None) -> MeteredRunner | KeyTableRunner:
        as_arrow = self._needs_arrow(number, step.schema)
        width = step.width.of(self.code) + 1 if step.width else None

        def make(alternate: int) -> Runner:
            implementation = step.alternates[alternate]
            return Runner(step.name, implementation, step.schema, width, as_arrow, self._leaves_out(step, implementation))

        chosen = step.chosen(self.code)
        if not (digit := step.by_table(self.code)):
            return MeteredRunner(make(chosen))
        assert tables is not None
        table = lookup(tables, step.name, digit, [each.name for each in step.alternates])
        return KeyTableRunner(make, table, chosen, step.schema)

    def _leaves_out(self, step: Step, implementation: Implementation) -> LeaveOut | None:
        if step.on_error is OnError.FAIL or self.left_out is None:
            return None
        return self.left_out.by(step.name, implementation.name, keep=step.on_error is OnError.DEAD_LETTER)

    def metered(self) -> Iterator[MeteredRunner]:
        for step in self.steps:
            yield from step.runs.values() if isinstance(step, KeyTableRunner) else (step,)

    def _needs_arrow(self, number: int, schema: pa.Schema) -> bool:
        routes = self.routes[number]
        return (len(routes) > 1 and not is_shareable(schema)) or any(
            route.to >= self.exits_from
            or any(each.form in ARROW_INPUT for each in self.walk.steps[route.to - self.steps_from].may_run(self.code))
            for route in routes
        )

    def through(self, entry: int, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """Process `batch` from entry number `entry`; return pairs of exit number and records."""
        return self._onward(entry, Chunk(batch.schema, batch))

    def finish(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Run the operators that pull, after the task's last record."""
        for number, (run, buffer) in self.buffers.items():
            runner = run.runner
            results = run_stream(runner.name, runner.chosen, runner.schema, buffer) if buffer else iter(())
            while (chunk := _next(run, results)) is not None:
                yield from self._onward(number, chunk)

    def _onward(self, emitter: int, chunk: Chunk) -> list[tuple[int, pa.RecordBatch]]:
        waiting: list[list[Chunk]] = [[] for _ in self.routes]
        self._send(emitter, chunk, waiting)
        for number in range(max(emitter + 1, self.steps_from), self.exits_from):
            if number in self.buffers:
                run, buffer = self.buffers[number]
                for chunk in waiting[number]:
                    run.count(time.time(), 0.0, chunk.rows, 0)
                    buffer.append(chunk.batch())
                continue
            step = self.steps[number - self.steps_from]
            for chunk in waiting[number]:
                result = step(chunk)
                if result.rows:
                    self._send(number, result, waiting)
        left, ending = [], waiting[self.exits_from : self.taps_from]
        for number, (exit, chunks) in enumerate(zip(self.walk.exits, ending, strict=True)):
            if chunks:
                batches = [conform(chunk.batch(), exit.schema) for chunk in chunks]
                left.append((number, pa.concat_batches(batches) if len(batches) > 1 else batches[0]))
        for folding, chunks in zip(self.foldings, waiting[self.taps_from :], strict=True):
            for chunk in chunks:
                folding.add(chunk.batch())
        return left

    def _send(self, number: int, chunk: Chunk, waiting: list[list[Chunk]]) -> None:
        routes = self.routes[number]
        hands = sum(route.round_robin for route in routes)
        share = len(routes) == 1 or is_shareable(chunk.schema)
        turn = self.turns[number]
        seat = 0
        for route in routes:
            part = chunk if share else chunk.without_values()
            if route.round_robin:
                part = part.every((seat - turn) % hands, hands)
                seat += 1
            if part.rows:
                waiting[route.to].append(part)
        if hands:
            self.turns[number] = (turn + chunk.rows) % hands

    def report(self, batch: int, task: int, entered: int, busy: float, begun: float) -> list[TaskRow]:
        """Return the meter's rows for operators that processed records.

        Args:
            entered: Records of the stage's lead.
            busy: Its time (seconds).
            begun: When the task began (epoch seconds).
        """
        segment, rows = self.walk.segment, list[TaskRow]()
        for run in self.metered():
            if run.rows_in:
                occupied = run.busy if run.runner.pool is None else run.runner.waited
                counts = (self.code, run.rows_in, run.rows_out, occupied, run.first, run.last)
                rows.append((segment, batch, run.runner.name, *counts, run.runner.chosen.name, task))
        if entered:
            counts = (self.code, entered, entered, busy, begun, time.time())
            rows.append((segment, batch, self.walk.lead, *counts, "", task))
        return rows

    def close(self) -> None:
        for run in self.metered():
            if run.runner.pool is not None:
                run.runner.pool.shutdown(wait=False, cancel_futures=True)


def _next(run: MeteredRunner, results: Iterator[Chunk]) -> Chunk | None:
    begun, started = time.time(), cpu_seconds()
    chunk = next(results, None)
    run.count(begun, cpu_seconds() - started, 0, 0 if chunk is None else chunk.rows)
    return chunk


def with_later_code(walk: Walk, code_in_use: CodeInUse | None, code: int) -> Walk:
    """Return `walk` with the alternates that run under `code`, if they are later than those of the start."""
    later = {step.name: each for step in walk.steps if (each := later_code(code_in_use, step.name, code)) is not None}
    if not later:
        return walk
    return replace(
        walk,
        steps=tuple(
            step if (each := later.get(step.name)) is None else replace(step, alternates=each.alternates, pick=each.pick)
            for step in walk.steps
        ),
    )


def _live(routes: Sequence[Route], code: int) -> tuple[Route, ...]:
    return tuple(route for route in routes if route.choice is None or route.choice.of(code) == route.position)


def batch_number() -> int:
    """Return the number of this task's micro-batch; -1 outside a streaming query."""
    context = TaskContext.get()
    number = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return int(number) if number is not None else -1


def task_number() -> int:
    """Return this task's number in its stage, also in a replay; 0 outside Spark."""
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


@lru_cache(maxsize=64)
def _loaded(pickled: bytes) -> Walk:
    # A worker process executes many tasks: user functions and their modules are loaded once.
    walk: Walk = cloudpickle.loads(pickled)
    return walk


def stage_function(
    pickled: bytes,
    paths: WorkerPaths,
    sink: Accumulator[list[TaskRow]],
    signals: Accumulator[list[SignalRow]] | None = None,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Build the function for `mapInArrow` of a pickled Walk; `sink` and `signals` are accumulators."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report_signals = signals.add if signals is not None else None
        return run_walk(_loaded(pickled), paths, batch_number(), batches, sink.add, report_signals, task_number())

    return run


def run_walk(
    walk: Walk,
    paths: WorkerPaths,
    number: int,
    batches: Iterable[pa.RecordBatch],
    report: Callable[[list[TaskRow]], object],
    report_signals: Callable[[list[SignalRow]], object] | None = None,
    task: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Process one task of batch `number` and yield rows in the walk's schema."""
    freeze_imports()
    started, begun = cpu_seconds(), time.time()
    foldings = tuple(map(Folding, walk.taps))
    left_out = LeftOut(paths.left_out, number, walk.lead, task, attempt_of(TaskContext.get()))
    code = paths.code(number)
    walker = Walker(with_later_code(walk, paths.later, code), code, paths.tables, foldings, left_out)
    leaving, entered = ExitRows(walk.exits, walk.ordered, task), 0
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            entered += batch.num_rows
            for entry, records in split_by_entry(walk.entries, batch):
                for exit, result in walker.through(entry, records):
                    yield leaving(exit, result)
        for exit, result in walker.finish():
            yield leaving(exit, result)
        left_out.flush()
        busy = max(0.0, cpu_seconds() - started - sum(run.busy for run in walker.metered()))
        report(walker.report(number, task, entered, busy, begun))
        if report_signals is not None and (counted := [f for f in foldings if f.count]):
            report_signals([(walk.segment, number, folding.tap.name, task, *folding.part) for folding in counted])
    finally:
        walker.close()


def split_by_entry(entries: Sequence[WalkEntry], batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split `batch` by entry, in that entry's columns. A task may read several entries in turn."""
    if len(entries) == 1:
        yield 0, batch.select(list(entries[0].columns))
        return
    numbers = batch.column(ENTRY).to_numpy()
    changes = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    for first, behind in pairwise([0, *changes, batch.num_rows]):
        entry = int(numbers[first])
        columns = batch.column(f"_{entry}").slice(first, behind - first).flatten()
        yield entry, pa.RecordBatch.from_arrays(columns, names=list(entries[entry].columns))
