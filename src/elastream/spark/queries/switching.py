"""Switches of the composition of running queries: requested, in force, and measured.

All switches of a plan are one version, written at once for all queries; no query restarts.
Parallelism changes the meaning of no record, so it is written at once.

`UpdateTracker` measures how long changes took and which records met two compositions (thesis, p. 50).
"""

import contextlib
import logging
import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from elastream.core.action import Outcome, SetKeyTable, SetParallelism, Status, Switch, UpdateCode
from elastream.core.composition import Consistency, Update, changed_operators, switched
from elastream.core.metrics import Metric
from elastream.core.observation import Composition
from elastream.dataflow.operators import Edge
from elastream.dataflow.stages import Layout
from elastream.errors import ElastreamError
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.dataflow.edges import edge_name
from elastream.spark.dataflow.sources import HELD
from elastream.spark.queries.segments import RunningSegment, widths_of
from elastream.spark.queries.updating import RunningCode
from elastream.spark.telemetry.batches import Batch
from elastream.spark.worker.composition import (
    BatchComposition,
    CompositionRequest,
    latest_batch,
    newest_composition,
    offsets_of,
    write_request,
)

# Per dynamic element:
#
#    state       event                                                       next
#    effective   a plan switches it                                          wanted, the action is ACCEPTED
#    wanted      a batch is planned under the new version                    in flight
#    in flight   that batch is committed in the query that holds it          effective, the action is DONE
#    in flight   its query fails and is started again                        in flight: the batch is replayed as it was
#    wanted      a plan switches it once more                                wanted; the first action is overtaken
#    wanted      no batch comes, because no record does                      wanted: an idle query has no batch
#    effective   the switch cannot be written                                effective, the action is FAILED
#
# `batch` and `wave` differ in a query behind a durable edge (see `dataflow.readers`). `drain` puts two states between
# wanted and in flight; composition and sources wait meanwhile:
#
#    state       event                                                       next
#    (none)      a plan switches something                                   holding: sources are requested to take no more
#    holding     each source has said that it takes none                     draining
#    draining    every query has committed all that its durable edges hold   (none): it is written, and the sources go on
#    any         a plan switches something more                              the same; it comes with the one that waits

log = logging.getLogger(__name__)

# Newest compositions that are remembered by version: batches commit long before that many further switches.
REMEMBERED_VERSIONS = 1000
# Activates a version of an operator's key table, given the compositions of possible batches and the operator's alternates.
# Returns why it cannot, or an empty string.
TablesInUse: TypeAlias = Callable[[str, int, Iterable[Composition], Collection[str]], str]


def switch(
    layout: Layout, running: Sequence[RunningSegment], composition: Composition, *, hold_sources: bool = False
) -> None:
    """Put `composition` in force from one of the next batches on, in every segment, without a restart.

    Segments with our own source or an edge of files take it with their next batch; others two batches after the newest
    planned one. With `hold_sources`, sources take no more records. Raises EnvironmentProblem or OSError.
    """
    code = running[0].codec.encode(composition)
    request = CompositionRequest(composition.version, code, widths_of(layout, composition), hold_sources)
    write_request(running[0].composition_file, request)
    for each in running:
        if not each.own_source and each.codec.varies and each.log.newest().version != composition.version:
            each.log.switch(each.checkpoint, composition.version, code)


class Switching:
    """Writes compositions for the queries `running`, and tracks what they run under.

    `apply` and `settle` may be called from two threads. `tables` activates key tables, `code` versions of the code;
    `changed` is called for each change.
    """

    def __init__(
        self,
        layout: Layout,
        running: Sequence[RunningSegment],
        consistency: Consistency = Consistency.BATCH,
        *,
        tables: TablesInUse | None = None,
        code: RunningCode | None = None,
        changed: Callable[[Composition, Composition], None] = lambda before, after: None,
    ) -> None:
        self._tables, self._code, self._changed = tables, code, changed
        self._start, self._running, self.consistency = layout, tuple(running), consistency
        self.composition = self._written = running[0].began
        # Composition of each segment's last committed batch. A segment is missing before its first batch.
        self.effective: Mapping[str, Composition] = {}
        self._versions = {self.composition.version: self.composition}
        self._segment = {each.segment.name: each for each in running}
        self._draining: Drain | None = None
        self._lock = threading.RLock()

    @property
    def layout(self) -> Layout:
        """The dataflow with the alternates of the requested composition."""
        return self._start if self._code is None else self._code.layout(self.composition.code_version)

    def apply(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        """Apply all possible switches as one new composition; return an outcome for each. Raises as `switch` does."""
        with self._lock:
            graph = self.layout.graph
            updates = [each for each in switches if isinstance(each, UpdateCode)]
            code = {each: each.refusal(graph) or self._not_brought(each) for each in updates}
            # A key table must fit the code that it comes with.
            version = max([self.composition.code_version, *(each.version for each in updates if not code[each])])
            refused = [
                code[each] if isinstance(each, UpdateCode) else each.refusal(graph) or self._unusable(each, version)
                for each in switches
            ]
            self._compose(
                self._fitted(switched(self.composition, [s for s, no in zip(switches, refused, strict=True) if not no]))
            )
            return tuple(
                Outcome(each, Status.REFUSED, no) if no else Outcome(each, *self._status_of(each))
                for each, no in zip(switches, refused, strict=True)
            )

    def widen(self, action: SetParallelism) -> bool:
        """Set a parallelism; return True if that changes it. Raises as `switch` does."""
        with self._lock:
            now = self.composition
            if now.parallelism.get(action.operator) == action.instances:
                return False
            widths = {**now.parallelism, action.operator: action.instances}
            if self._draining is not None:
                self.composition = replace(now, parallelism=widths)
                self._versions[now.version] = self.composition
            else:
                self._write(replace(now, version=now.version + 1, parallelism=widths))
            return True

    def add_batches(self, fresh: Sequence[Batch]) -> None:
        compositions = {batch.query: self.under(ran) for batch in fresh if (ran := self.ran(batch)) is not None}
        self.effective = {**self.effective, **compositions}
        if self._code is not None and len(self.effective) == len(self._running):
            oldest = min(each.version for each in self.effective.values())
            live = [*self.effective.values(), *(each for version, each in self._versions.items() if version >= oldest)]
            self._code.forget(min(each.code_version for each in live))

    def ran(self, batch: Batch) -> BatchComposition | None:
        """Return what a committed batch ran under; None if no longer known."""
        return newest_composition([each.end for each in batch.sources]) or self._segment[batch.query].ran(batch.id)

    def under(self, ran: BatchComposition) -> Composition:
        """Return the composition of a version, decoded if an earlier controller wrote it."""
        with self._lock:
            composition = self._versions.get(ran.version)
        return composition or self._running[0].codec.decode(ran.code, ran.version)

    @property
    def unsettled(self) -> str:
        """Why the queries may not stop: a switch waits; or ""."""
        return "" if self._draining is None else "a switch waits until the queries are drained"

    def restarted(self, running: Sequence[RunningSegment]) -> None:
        with self._lock:
            self._running, self._segment = tuple(running), {each.segment.name: each for each in running}
            self._written = running[0].began
            self._remember(self._written)

    def settle(self) -> bool:
        """Advance a drain; return True while one runs. Raises as `switch` does."""
        with self._lock:
            if self._draining is None:
                return False
            if self._draining.over():
                self._write(self.composition)
                self._draining = None
            return self._draining is not None

    def _status_of(self, switch: Switch) -> tuple[Status, str]:
        effective = [self.effective.get(query) for query in switch.segments(self._start)]
        compositions = [each for each in effective if each is not None]
        if len(compositions) == len(effective):
            oldest = min(each.version for each in compositions)
            since = [*compositions, *(each for version, each in self._versions.items() if version > oldest)]
            if all(switched(each, [switch]) is each for each in since):
                return Status.DONE, ""
        return Status.ACCEPTED, "in force once a batch that ran under it is committed"

    def _fitted(self, composition: Composition) -> Composition:
        """Return `composition` with the first alternate where an update has removed the one that ran."""
        if self._code is None or composition.code_version == self.composition.code_version:
            return composition
        graph = self._code.layout(composition.code_version).graph
        names = {each.name: [a.name for a in each.alternates] for each in graph.operators if each.alternates}
        runs = composition.alternates
        gone = {name: each[0] for name, each in names.items() if runs.get(name, each[0]) not in each}
        return replace(composition, alternates={**runs, **gone}) if gone else composition

    def _not_brought(self, update: UpdateCode) -> str:
        if self._code is None:
            return "this run keeps no code that could be updated"
        if update.part_of(self.composition):
            return ""
        if why := self._code.bring(update.version):
            return why
        unfit = (self._unusable(SetKeyTable(*each), update.version) for each in self.composition.tables.items())
        return next(filter(None, unfit), "")

    def _unusable(self, switch: Switch, code: int) -> str:
        """Return why `switch` cannot be made with version `code` of the code, or ""."""
        if not isinstance(switch, SetKeyTable) or switch.table == 0:
            return ""
        if self._tables is None:
            return f"this run has no key tables for {switch.operator!r}"
        oldest = min((each.version for each in self.effective.values()), default=0)
        live = [each for version, each in self._versions.items() if version >= oldest]
        layout = self._start if self._code is None else self._code.layout(code)
        names = [each.name for each in layout.graph.operator(switch.operator).alternates]
        return self._tables(switch.operator, switch.table, live, names)

    def _compose(self, changed: Composition) -> None:
        before = self.composition
        if changed is before:
            return
        if self.consistency is not Consistency.DRAIN or len(self._running) == 1:
            self._write(changed)
        elif self._draining is None:
            switch(self._start, self._running, self._written, hold_sources=True)
            self._draining = Drain(self._running, self._written.version)
        self._remember(changed)
        self._changed(before, changed)

    def _write(self, changed: Composition) -> None:
        try:
            switch(self._start, self._running, changed)
        except (ElastreamError, OSError):
            again = replace(self._written, version=changed.version + 1)
            with contextlib.suppress(ElastreamError, OSError):
                switch(self._start, self._running, again)
            self._written = again
            self._remember(again)
            raise
        self._written = changed
        self._remember(changed)

    def _remember(self, changed: Composition) -> None:
        self.composition = self._versions[changed.version] = changed
        for version in list(self._versions)[:-REMEMBERED_VERSIONS]:
            del self._versions[version]


class Drain:
    """Detects that no records are in transit in `running`, whose sources are held at `version`.

    A held source has no records in transit (`ShapedReader`). Then a query that has committed all records of its durable
    edges writes nothing more.
    """

    def __init__(self, running: Sequence[RunningSegment], version: int) -> None:
        self._running, self._version = running, version
        self._edges = {edge: EdgeLog(records) for each in running for edge, records in each.edges.items()}

    def over(self) -> bool:
        return all(map(self._held, self._running)) and all(map(self._rests, self._running))

    def _held(self, each: RunningSegment) -> bool:
        try:
            return all(int((control / HELD).read_text()) == self._version for control in each.sources.values())
        except FileNotFoundError:
            return False

    def _rests(self, each: RunningSegment) -> bool:
        committed = latest_batch(each.checkpoint, "commits")
        if latest_batch(each.checkpoint) != committed:
            return False
        offsets = offsets_of(each.checkpoint, committed) if committed >= 0 else []
        positions = {offset["edge"]: int(offset["n"]) for offset in offsets if "edge" in offset}
        for edge in each.edges:
            at = positions.get(edge_name(edge), 0)
            if self._edges[edge].refresh() > at:
                return False
            self._edges[edge].forget(at)
        return True


# Newest batches of each query, and newest updates, that are remembered.
REMEMBERED_BATCHES = 1000

# Versions by query that records met on their way, and the updates of which they met both sides.
Route: TypeAlias = tuple[tuple[tuple[str, int], ...], frozenset[int]]
# Numbers of records by way.
Routes: TypeAlias = Mapping[Route, float]


@dataclass
class _PendingUpdate:
    update: Update
    queries: frozenset[str]
    waiting: set[str] = field(default_factory=set)


class UpdateTracker:
    """Progress of updates of `running`, in epoch seconds. queues: logs of durable edges. ran: composition of a batch."""

    def __init__(
        self,
        layout: Layout,
        running: Sequence[RunningSegment],
        queues: Mapping[Edge, EdgeLog],
        ran: Callable[[Batch], BatchComposition | None],
    ) -> None:
        self._layout, self._queues, self._ran = layout, queues, ran
        self._running = {each.segment.name: each for each in running}
        self._updates: dict[int, _PendingUpdate] = {}
        self._mixed_before = 0.0
        self._routes: dict[str, dict[int, Routes]] = {name: {} for name in self._running}
        self._waiting: dict[str, deque[Batch]] = {name: deque() for name in self._running}
        self._last = dict.fromkeys(self._running, -1)

    def requested(self, at: float, before: Composition, after: Composition) -> None:
        if changed := changed_operators(self._layout.graph, before, after):
            queries = frozenset(self._layout.stage_of[name].segment for name in changed)
            self._updates[after.version] = _PendingUpdate(Update(after.version, at), queries, set(queries))
            for version in list(self._updates)[:-REMEMBERED_BATCHES]:
                self._mixed_before += self._updates.pop(version).update.mixed

    def add_batches(self, fresh: Iterable[Batch]) -> None:
        """Add committed batches, those of each query in order."""
        for batch in fresh:
            self._date(batch)
            if len(self._running) > 1:
                self._waiting[batch.query].append(batch)
        for name in self._running:  # upstream first
            waiting = self._waiting[name]
            while waiting and self._upstream_followed(waiting[0]):
                self._follow(waiting.popleft())

    def restarted(self, running: Sequence[RunningSegment], queues: Mapping[Edge, EdgeLog]) -> None:
        self._running, self._queues = {each.segment.name: each for each in running}, queues

    def updates(self, epoch: float = 0.0) -> tuple[Update, ...]:
        """Return the newest updates, oldest first, on a clock that began at `epoch`."""
        updates = (each.update for each in self._updates.values())
        return tuple(
            replace(u, requested=u.requested - epoch, in_force=u.in_force - epoch, until=u.until - epoch) for u in updates
        )

    def measured(self) -> Mapping[Metric, float]:
        """Return figures over all updates; empty before the first."""
        if not (updates := [each.update for each in self._updates.values()]):
            return {}
        latency = next((u.latency for u in reversed(updates) if not math.isnan(u.latency)), math.nan)
        mixed = self._mixed_before + sum(update.mixed for update in updates)
        return {Metric.UPDATE_LATENCY: latency, Metric.MIXED_RECORDS: mixed}

    def _date(self, batch: Batch) -> None:
        if not any(each.waiting for each in self._updates.values()) or (ran := self._ran(batch)) is None:
            return
        for each in self._updates.values():
            if batch.query not in each.waiting:
                continue
            if ran.version < each.update.version:
                if batch.rows and batch.end > each.update.requested:
                    each.update = replace(each.update, until=_later(each.update.until, batch.end))
                continue
            each.waiting.discard(batch.query)
            if not each.waiting:
                each.update = replace(each.update, in_force=batch.end)

    def _upstream_followed(self, batch: Batch) -> bool:
        return all(by <= self._last[self._upstream(edge)] for edge, by, _ in self._inputs(batch))

    def _follow(self, batch: Batch) -> None:
        records: dict[Route, float] = defaultdict(float)
        version = ran.version if (ran := self._ran(batch)) is not None else -1
        fed = list(self._inputs(batch))
        fresh = float(batch.rows) - sum(rows for _, _, rows in fed)
        if fresh > 0:
            records[((batch.query, version),), frozenset()] += fresh
        for edge, by, rows in fed:
            before = self._routes[self._upstream(edge)].get(by) or {((), frozenset()): 1.0}
            total = sum(before.values())
            for (met, mixed), part in before.items():
                records[self._meet(met, mixed, batch.query, version, rows * part / total)] += rows * part / total
        routes = self._routes[batch.query]
        routes[batch.id] = dict(records)
        routes.pop(batch.id - REMEMBERED_BATCHES, None)
        self._last[batch.query] = batch.id

    def _meet(
        self, met: tuple[tuple[str, int], ...], mixed: frozenset[int], query: str, version: int, rows: float
    ) -> Route:
        """Return the way after one more query. Records that met both sides of an update count as mixed, once."""
        versions = [version, *(each for _, each in met)]
        for number in range(min(versions) + 1, max(versions) + 1):
            each = self._updates.get(number)
            if each is None or number in mixed or query not in each.queries:
                continue
            if any(before in each.queries and (by >= number) != (version >= number) for before, by in met):
                mixed = mixed | {number}
                each.update = replace(each.update, mixed=each.update.mixed + rows)
        return (*met, (query, version)), mixed

    def _inputs(self, batch: Batch) -> Iterable[tuple[Edge, int, float]]:
        for number, inlet in enumerate(self._running[batch.query].reads):
            if isinstance(inlet, Edge) and (queue := self._queues.get(inlet)) is not None:
                queue.refresh()
                for by, _, rows in queue.files_between(*batch.source(number).numbers):
                    yield inlet, by, float(rows)

    def _upstream(self, edge: Edge) -> str:
        return self._layout.stage_of[edge.source].segment


def _later(one: float, other: float) -> float:
    return other if math.isnan(one) else max(one, other)
