"""The queries of a dataflow of ours, for a plant: they know when records were due, switch their composition, and drain."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from elastream.core.action import (
    ActionTable,
    Outcome,
    SetKeyTable,
    SetParallelism,
    Status,
    Switch,
    SwitchAlternate,
    SwitchEdge,
)
from elastream.core.composition import Consistency, Update, update_figures
from elastream.core.frames import Frame
from elastream.core.latency import Basis
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, MicroBatch
from elastream.dataflow.signals import Signals
from elastream.dataflow.stages import Layout
from elastream.dataflow.windows import WindowKind
from elastream.errors import ElastreamError
from elastream.spark.queries.compiled_frames import Telemetry
from elastream.spark.queries.query import Instruments, Query, stalled
from elastream.spark.queries.segments import RunningSegment, scalable_operators
from elastream.spark.queries.switching import Switching, TablesInUse
from elastream.spark.queries.updates import UpdateTracker
from elastream.spark.telemetry.batches import Batch
from elastream.spark.telemetry.frames import state_columns
from elastream.spark.telemetry.left_out import LeftOutCounts
from elastream.spark.telemetry.signals import DomainSignals
from elastream.spark.telemetry.stage_load import PartitionLoads
from elastream.spark.worker.runner import explain_failure

NAN = float("nan")


class CompiledQueries:
    """One query a segment of `layout`, as `running` gives them.

    partitions: of the state of each keyed operator. consistency: the one that they were started with. tables: brings key
    tables into use. left_out: what tasks leave out; None where they may not. telemetry: what they have reported, for
    tests and benchmarks.
    """

    real_time: tuple[str, ...] = ()

    def __init__(
        self,
        instruments: Instruments,
        layout: Layout,
        running: Sequence[RunningSegment],
        *,
        partitions: int,
        target_latency: float | None,
        consistency: Consistency = Consistency.BATCH,
        tables: TablesInUse | None = None,
        left_out: LeftOutCounts | None = None,
    ) -> None:
        self.layout, self.running = layout, tuple(running)
        self._speeds = instruments.speeds
        self._partitions = partitions
        self.scalable = scalable_operators(layout)
        self.live = tuple(_followed(instruments, each) for each in running)
        self._scalings = Counter(dict.fromkeys(self.scalable, 0))
        self._run_ids = {each.query.runId for each in running}
        self.telemetry = Telemetry(layout, running, {query.name: query.batches for query in self.live}, target_latency)
        self._switching = Switching(layout, running, consistency, tables=tables, changed=self._requested)
        self._watch = UpdateTracker(layout, running, self.telemetry.queues, self._switching.ran)
        self._signals = DomainSignals(layout.graph)
        self._left_out = left_out
        self._epoch = time.time()

    @property
    def composition(self) -> Composition:
        """The one wanted."""
        return self._switching.composition

    @property
    def effective(self) -> Mapping[str, Composition]:
        """By segment, that of its last committed batch."""
        return self._switching.effective

    @property
    def signals(self) -> Signals:
        """The newest value of each domain signal, on the clock of the run."""
        return self._signals.newest

    @property
    def updates(self) -> tuple[Update, ...]:
        """How changes of the composition went, on the clock of the run."""
        return self._watch.updates(self._epoch)

    def look(self, now: float, wall: float) -> Sequence[MicroBatch]:
        """Fetch what is new of each."""
        fresh = [batch for query in self.live for batch in query.look()]
        if step := max((query.stepped for query in self.live), key=abs, default=0.0):
            self.telemetry.stepped(step, wall)
        self.telemetry.took(fresh, wall)
        self._switching.took(fresh)
        self._watch.took(fresh)
        if self._left_out is not None:
            self._left_out.committed({batch.query: batch.id for batch in fresh})
        self._epoch = wall - now
        meters = {id(each.meter): each.meter for each in self.running}.values()
        self.telemetry.metered([row for meter in meters for row in meter.drain()])
        self._signals.told(row for meter in meters for row in meter.drain_signals())
        self._signals.committed(fresh, wall - now)
        return [self._described(batch, wall - now) for batch in fresh]

    def operators(self, wall: float, loads: Mapping[str, PartitionLoads], cores: float, used: float) -> Frame:
        """A row per operator."""
        further: dict[Metric, Mapping[str, float]] = {Metric.SCALINGS: self._scalings, **state_columns(loads)}
        further[Metric.LEFT_OUT] = self._left_out_so_far
        return self.telemetry.operators(wall, self._parallelism(), cores, used, further, self._stretch)

    def alternates(self, wall: float) -> Frame:
        """A row per alternate that has run."""
        return self.telemetry.alternates(wall, self._stretch)

    def application(self, wall: float, cost: float) -> Frame:
        """The dataflow."""
        counts = self._left_out_so_far
        left_out = {Metric.LEFT_OUT: sum(counts.values())} if counts else {}
        return self.telemetry.application(wall, cost, {**self._watch.measured(), **left_out})

    def latency_basis(self) -> Mapping[str, Basis]:
        """What latency is measured from, by source."""
        return self.telemetry.latency_basis

    def stalled(self, wall: float) -> Mapping[str, float]:
        """Seconds by query for which a batch has been under way that takes unusually long."""
        return stalled(self.live, wall)

    def switch(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        """Do all of these that are possible as one new composition, and answer each; raises where none could be written."""
        return self._switching.apply(switches)

    def settle(self) -> bool:
        """Take a change further that waits until records are drained; whether one still does."""
        return self._switching.settle()

    def handle(self, table: ActionTable) -> None:
        """Add the handlers of all that concerns queries to `table`."""
        for kind in (SwitchAlternate, SwitchEdge, SetKeyTable):
            table.on(kind, lambda action: self.switch([action])[0])
        table.answer(SetParallelism, self._scale)

    def _scale(self, action: SetParallelism) -> tuple[Status, str]:
        """Let one of the next batches have that parallelism."""
        operator = action.operator
        if operator not in self.layout.graph.by_name:
            return Status.REFUSED, f"there is no operator {operator!r}"
        if operator not in self.scalable:
            return Status.REFUSED, f"the parallelism of {operator!r} is fixed while its query runs"
        if action.instances < 1:
            return Status.REFUSED, f"{action.instances} instances: at least 1 is needed"
        self._scalings[operator] += self._switching.widen(action)
        return Status.DONE, ""

    def finished(self, now: float) -> bool:
        """Whether every shaped load has ended and been processed; raises ElastreamError where a query has failed."""
        self._run_ids |= {each.query.runId for each in self.running}
        for each in self.running:
            if not each.query.isActive:
                error = each.query.exception()
                stopped = f"the query of {each.segment.name!r} was stopped"
                raise ElastreamError(stopped if error is None else explain_failure(error))
        wall = time.time()
        if not all(self.telemetry.exhausted(source.name, wall) for source in self.layout.graph.sources):
            return False
        if not self.telemetry.drained():
            return False
        for each in self.running:
            # What travels over Kafka edges is the last to arrive, and windows end in the batch after that of their records.
            if not each.own_source or self._ends_by_time(each):
                each.query.processAllAvailable()
        return self.telemetry.drained()

    def _ends_by_time(self, each: RunningSegment) -> bool:
        """Whether windows or states of a query end by the time of records, in a batch that may have none."""
        operators = [self.layout.graph.operator(name) for name in each.keyed]
        windows = [o for o in operators if o.window is not None and o.window.kind is WindowKind.TIME]
        return bool(windows) or any(o.timeout is not None and o.timeout.by for o in operators)

    def lost(self) -> None:
        """The session was ours."""
        raise ElastreamError("the Spark session was stopped under the run")

    def facts(self) -> Mapping[str, float | str]:
        """Figures of the whole run."""
        seen = self.telemetry
        return {
            "batches": seen.batches,
            "records": seen.rows,
            "longest batch": seen.longest,
            "query runs": len(self._run_ids),
            **update_figures(self.updates),
            **({"left out": sum(counts.values())} if (counts := self._left_out_so_far) else {}),
        }

    def taken(self) -> Mapping[str, tuple[Path, int]]:
        """Per shaped source, its control folder and the records of it that were committed."""
        return {
            source: (control, int(count))
            for each in self.running
            for source, control in each.sources.items()
            if (count := self.telemetry.committed(source)) == count
        }

    @property
    def _left_out_so_far(self) -> Mapping[str, float]:
        return {} if self._left_out is None else self._left_out.counts

    @property
    def _stretch(self) -> float:
        """Seconds for which a core is taken for a second of CPU."""
        return 1.0 if self._speeds is None else self._speeds.stretch

    def _described(self, batch: Batch, epoch: float) -> MicroBatch:
        ran = self._switching.ran(batch)
        version = NAN if ran is None else float(ran.version)
        return self.telemetry.described(batch, epoch)._replace(number=float(batch.id), version=version)

    def _requested(self, before: Composition, after: Composition) -> None:
        self._watch.requested(time.time(), before, after)

    def _parallelism(self) -> dict[str, float]:
        """Tasks of the stage that each operator runs in, as far as they are set."""
        widths: dict[str, float] = {}
        for stage in self.layout.stages:
            wanted = self._partitions if stage.keyed else self.composition.parallelism.get(stage.operators[0])
            if wanted is not None:
                widths |= dict.fromkeys(stage.operators, float(wanted))
        return widths


def _followed(instruments: Instruments, each: RunningSegment) -> Query:
    query = Query(instruments, each.query.id, each.segment.name, lambda stages: each.keyed)
    query.run(each.query.runId)
    return query
