"""The queries of a dataflow that this package compiled: their telemetry, switches of composition, and drains."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from elastream.core.action import (
    ActionTable,
    Outcome,
    Repartition,
    SetKeyTable,
    SetParallelism,
    Status,
    Switch,
    SwitchAlternate,
    SwitchEdge,
    UpdateCode,
)
from elastream.core.composition import Consistency, Update, update_figures
from elastream.core.frames import Frame
from elastream.core.latency import Basis
from elastream.core.lateness import Diagnosis
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, MicroBatch
from elastream.dataflow.endpoints import DomainSignal
from elastream.dataflow.graph import Graph
from elastream.dataflow.signals import SignalReading, Signals
from elastream.dataflow.stages import Layout
from elastream.dataflow.windows import WindowKind
from elastream.errors import ElastreamError
from elastream.spark.queries.compiled_frames import Telemetry
from elastream.spark.queries.query import Query, QueryAccess, largest_lag, stalled
from elastream.spark.queries.repartitioning import Repartitioning
from elastream.spark.queries.segments import RunningSegment, scalable_operators
from elastream.spark.queries.switching import Switching, TablesInUse, UpdateTracker
from elastream.spark.queries.updating import RunningCode
from elastream.spark.telemetry.batches import Batch
from elastream.spark.telemetry.frames import state_columns
from elastream.spark.telemetry.left_out import LeftOutCounts
from elastream.spark.telemetry.stage_load import PartitionLoads
from elastream.spark.worker.runner import explain_failure
from elastream.spark.worker.signals import Part, SignalRow, folded


class DomainSignals:
    """Signals from the diagnostic branches of `graph`, one value per batch, readable after its commit.

    A part counts once for each batch and task, also after a replay. A batch without records for a signal keeps its last
    value.
    """

    def __init__(self, graph: Graph) -> None:
        self._folds = {o.writes.name: o.writes.fold for o in graph.sinks if isinstance(o.writes, DomainSignal)}
        self._parts: dict[tuple[str, int], dict[str, dict[int, Part]]] = defaultdict(lambda: defaultdict(dict))
        self._newest: dict[str, SignalReading] = {}

    def add_parts(self, rows: Iterable[SignalRow]) -> None:
        for segment, batch, signal, partition, count, value in rows:
            self._parts[segment, batch][signal][partition] = (count, value)

    def committed(self, batches: Iterable[Batch], epoch: float) -> None:
        """Publish the signals of committed `batches`, the oldest of each query first. epoch: start of the run."""
        for batch in batches:
            done = sorted(number for segment, number in self._parts if segment == batch.query and number <= batch.id)
            for number in done:
                # An earlier batch without an observed commit was committed before this one began.
                at = (batch.end if number == batch.id else batch.start) - epoch
                for signal, by_task in self._parts.pop((batch.query, number)).items():
                    if (value := folded(self._folds[signal], by_task.values())) is not None:
                        self._newest[signal] = SignalReading(value, at)

    @property
    def newest(self) -> Signals:
        """The newest reading of each signal, as of the commit of its batch; signals without one are missing."""
        readings: Mapping[str, SignalReading] = dict(self._newest)
        return readings


NAN = float("nan")


class CompiledQueries:
    """One query for each segment of `layout`, as listed in `running`.

    Args:
        target_latency: Seconds.
        left_out: Counts of left-out records; None if operators may not leave out any.
        code: Versions of the operators' code; None if it cannot be updated.
        repartitioning: Changes the number of state partitions; None if the run may not.

    Attributes:
        telemetry: Reports of the queries, for tests and benchmarks.
        caught_up: Called once a bounded run has committed what was there at its start; None for other runs.
    """

    def __init__(  # noqa: PLR0913
        self,
        access: QueryAccess,
        layout: Layout,
        running: Sequence[RunningSegment],
        *,
        partitions: int,
        target_latency: float | None,
        consistency: Consistency = Consistency.BATCH,
        tables: TablesInUse | None = None,
        left_out: LeftOutCounts | None = None,
        code: RunningCode | None = None,
        repartitioning: Repartitioning | None = None,
    ) -> None:
        self._target, self._start, self._repartitioning = target_latency, layout, repartitioning
        self.caught_up: Callable[[CompiledQueries], object] | None = None
        self.running = tuple(running)
        self._speeds = access.speeds
        self._partitions = partitions
        self.scalable = scalable_operators(layout)
        self.live = tuple(_followed(access, each) for each in running)
        self._scalings = Counter(dict.fromkeys(self.scalable, 0))
        self._run_ids = {each.query.runId for each in running}
        self.telemetry = self._reports()
        self._switching = Switching(layout, running, consistency, tables=tables, code=code, changed=self._requested)
        self._updates = UpdateTracker(layout, running, self.telemetry.queues, self._switching.ran)
        self._code = code
        self._signals = DomainSignals(layout.graph)
        self._left_out = left_out
        self._epoch = time.time()
        self._unreported: Sequence[MicroBatch] = ()

    @property
    def layout(self) -> Layout:
        """The dataflow with the alternates of the requested composition."""
        return self._switching.layout

    @property
    def composition(self) -> Composition:
        return self._switching.composition

    @property
    def effective(self) -> Mapping[str, Composition]:
        return self._switching.effective

    @property
    def signals(self) -> Signals:
        return self._signals.newest

    @property
    def updates(self) -> tuple[Update, ...]:
        return self._updates.updates(self._epoch)

    def look(self, now: float, wall: float) -> Sequence[MicroBatch]:
        fresh = [batch for query in self.live for batch in query.look()]
        if step := max((query.stepped for query in self.live), key=abs, default=0.0):
            self.telemetry.stepped(step, wall)
        self.telemetry.add_batches(fresh, wall)
        self._switching.add_batches(fresh)
        self._updates.add_batches(fresh)
        if self._left_out is not None:
            self._left_out.committed({batch.query: batch.id for batch in fresh})
        self._epoch = wall - now
        meters = {id(each.meter): each.meter for each in self.running}.values()
        self.telemetry.metered([row for meter in meters for row in meter.drain()])
        self._signals.add_parts(row for meter in meters for row in meter.drain_signals())
        self._signals.committed(fresh, wall - now)
        before, self._unreported = self._unreported, ()
        return [*before, *(self._described(batch, wall - now) for batch in fresh)]

    def operators(self, wall: float, loads: Mapping[str, PartitionLoads], cores: float, used: float) -> Frame:
        further: dict[Metric, Mapping[str, float]] = {Metric.SCALINGS: self._scalings, **state_columns(loads)}
        further[Metric.LEFT_OUT] = self._left_out_so_far
        return self.telemetry.operators(wall, self._parallelism(), cores, used, further, self._stretch)

    def alternates(self, wall: float) -> Frame:
        return self.telemetry.alternates(wall, self._stretch)

    def application(self, wall: float, cost: float) -> Frame:
        counts = self._left_out_so_far
        left_out = {Metric.LEFT_OUT: sum(counts.values())} if counts else {}
        further = {**self._updates.measured(), **left_out, Metric.WATERMARK_LAG: largest_lag(self.live)}
        return self.telemetry.application(wall, cost, further)

    def latency_basis(self) -> Mapping[str, Basis]:
        return self.telemetry.latency_basis

    def stalled(self, wall: float) -> Mapping[str, float]:
        return stalled(self.live, wall)

    def diagnoses(self, slots: int, wall: float) -> Mapping[str, Diagnosis]:
        """Return nothing: operators of compiled queries are metered."""
        return {}

    def incidents(self) -> Sequence[str]:
        """Return nothing: a failed query ends the run."""
        return ()

    def switch(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        """Apply all possible switches as one new composition; return an outcome for each. Raises if none can be written."""
        return self._switching.apply(switches)

    def settle(self) -> bool:
        """Advance a change that waits until its records are processed. Return True while one waits."""
        return self._switching.settle()

    def handle(self, table: ActionTable) -> None:
        for kind in (SwitchAlternate, SwitchEdge, SetKeyTable, UpdateCode):
            table.on(kind, lambda action: self.switch([action])[0])
        table.answer(SetParallelism, self._scale)
        if self._repartitioning is None:
            table.refuse(Repartition, "the run ends once it has caught up")
        else:
            table.answer(Repartition, self._repartition)

    def _repartition(self, action: Repartition) -> tuple[Status, str]:
        assert self._repartitioning is not None
        if refusal := self._switching.unsettled or self._repartitioning.refusal(action):
            return Status.REFUSED, refusal
        running, status, reason = self._repartitioning.apply(action, self.running, self.composition, self._partitions)
        self._partitions = action.partitions if status is Status.DONE else self._partitions
        self._restarted(running)
        return status, reason

    def _restarted(self, running: Sequence[RunningSegment]) -> None:
        wall = time.time()
        self._unreported = self.look(wall - self._epoch, wall)  # the last batches before
        self.running = tuple(running)
        for query, each in zip(self.live, running, strict=True):
            query.run(each.query.runId)
        self.telemetry = self._reports().after(self.telemetry)
        self._switching.restarted(running)
        self._updates.restarted(running, self.telemetry.queues)

    def _reports(self) -> Telemetry:
        return Telemetry(self._start, self.running, {query.name: query.batches for query in self.live}, self._target)

    def _scale(self, action: SetParallelism) -> tuple[Status, str]:
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
        """Return True once every shaped load has ended and been processed. Raises ElastreamError if a query failed."""
        self._run_ids |= {each.query.runId for each in self.running}
        ended = [each for each in self.running if not each.query.isActive]
        errors = [error for each in ended if (error := each.query.exception()) is not None]
        if errors:
            raise ElastreamError(explain_failure(errors[0]))
        if stopped := [each.segment.name for each in ended if not each.bounded]:
            raise ElastreamError(f"the query of {stopped[0]!r} was stopped")
        if self.caught_up is not None:
            self._finish_bounded(self.caught_up)
            return False  # the run is stopped, not finished: it goes on with later records
        wall = time.time()
        if not all(self.telemetry.exhausted(source.name, wall) for source in self.layout.graph.sources):
            return False
        if not self.telemetry.drained():
            return False
        for each in self.running:
            # Records over Kafka edges arrive last, and windows end one batch after their records.
            if not each.own_source or self._ends_by_time(each):
                each.query.processAllAvailable()
        return self.telemetry.drained()

    def _finish_bounded(self, caught_up: Callable[["CompiledQueries"], object]) -> None:
        if any(each.bounded and each.query.isActive for each in self.running):
            return
        for each in self.running:
            if not each.bounded:
                each.query.processAllAvailable()
        if self.telemetry.drained():
            self.caught_up = lambda queries: None
            caught_up(self)

    def _ends_by_time(self, each: RunningSegment) -> bool:
        """Return True if event time closes windows or states of a query, in a batch that may have no records."""
        operators = [self.layout.graph.operator(name) for name in each.keyed]
        windows = [o for o in operators if o.window is not None and o.window.kind is WindowKind.TIME]
        return bool(windows) or any(o.timeout is not None and o.timeout.by for o in operators)

    def lost(self) -> None:
        """Raise ElastreamError: a run ends with its session."""
        raise ElastreamError("the Spark session was stopped under the run")

    def facts(self) -> Mapping[str, float | str]:
        telemetry = self.telemetry
        return {
            "batches": telemetry.batches,
            "records": telemetry.rows,
            "longest batch": telemetry.longest,
            "query runs": len(self._run_ids),
            **update_figures(self.updates),
            **({"left out": sum(counts.values())} if (counts := self._left_out_so_far) else {}),
        }

    def committed_records(self) -> Mapping[str, tuple[Path, int]]:
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
        """Seconds of a core per second of CPU time."""
        return 1.0 if self._speeds is None else self._speeds.stretch

    def _described(self, batch: Batch, epoch: float) -> MicroBatch:
        ran = self._switching.ran(batch)
        version = NAN if ran is None else float(ran.version)
        return self.telemetry.described(batch, epoch)._replace(number=float(batch.id), version=version)

    def _requested(self, before: Composition, after: Composition) -> None:
        self._updates.requested(time.time(), before, after)
        if self._code is not None and after.code_version != before.code_version:
            changed = self._code.changed(before.code_version, after.code_version)
            self.telemetry.updated(after.code_version, self._code.codec.version, changed)

    def _parallelism(self) -> dict[str, float]:
        widths: dict[str, float] = {}
        for stage in self.layout.stages:
            width = self._partitions if stage.keyed else self.composition.parallelism.get(stage.operators[0])
            if width is not None:
                widths |= dict.fromkeys(stage.operators, float(width))
        return widths


def _followed(access: QueryAccess, each: RunningSegment) -> Query:
    stateless = next((stage.name for stage in each.segment.stages if not stage.keyed), "")
    query = Query(access, each.query.id, each.segment.name, lambda stages: each.keyed, stateless)
    # A bounded query may end before the first look, which would not find it among the running ones.
    query.run(each.query.runId, each.query._jsq.streamingQuery() if each.bounded else None)
    return query
