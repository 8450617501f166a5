"""How long changes of the composition took, and which records met two compositions on their way (thesis, p. 50).

All from what the queries report of their batches: the version that a batch ran under is in its offsets, and a record on a
durable edge is known by its number, so by the batch that wrote it. What is not in its own query any more is followed by
shares: of what a batch wrote, as much met this or that version as of what it took.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from elastream.core.composition import Update, changed_operators
from elastream.core.metrics import Metric
from elastream.core.observation import Composition
from elastream.dataflow.operators import Edge
from elastream.dataflow.stages import Layout
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.queries.segments import RunningSegment
from elastream.spark.telemetry.batches import Batch
from elastream.spark.worker.composition import BatchComposition

KEPT = 1000
"""Newest batches of each query that are kept, and newest updates."""

Way: TypeAlias = tuple[tuple[tuple[str, int], ...], frozenset[int]]
"""What records met: the version by query on their way, and the updates of which they met both sides."""
Ways: TypeAlias = Mapping[Way, float]
"""Records by what they met."""


@dataclass
class _Open:
    """An update and the queries with a changed element. waiting: those that committed nothing under it yet."""

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
        self._updates: dict[int, _Open] = {}
        self._mixed_before = 0.0
        self._ways: dict[str, dict[int, Ways]] = {name: {} for name in self._running}
        self._waiting: dict[str, deque[Batch]] = {name: deque() for name in self._running}
        self._last = dict.fromkeys(self._running, -1)

    def requested(self, at: float, before: Composition, after: Composition) -> None:
        """Begin an update; one that changes no element of the dataflow, but its parallelism, is none."""
        changed = changed_operators(self._layout.graph, before, after)
        if changed:
            queries = frozenset(self._layout.stage_of[name].segment for name in changed)
            self._updates[after.version] = _Open(Update(after.version, at), queries, set(queries))
            for version in list(self._updates)[:-KEPT]:
                self._mixed_before += self._updates.pop(version).update.mixed

    def took(self, fresh: Iterable[Batch]) -> None:
        """Take note of committed batches, those of each query in order."""
        for batch in fresh:
            self._date(batch)
            if len(self._running) > 1:
                self._waiting[batch.query].append(batch)
        for name in self._running:  # upstream first
            waiting = self._waiting[name]
            while waiting and self._known(waiting[0]):
                self._follow(waiting.popleft())

    def updates(self, epoch: float = 0.0) -> tuple[Update, ...]:
        """The newest updates, the oldest first, on a clock that began at `epoch`."""
        return tuple(
            replace(u, requested=u.requested - epoch, in_force=u.in_force - epoch, until=u.until - epoch)
            for u in (each.update for each in self._updates.values())
        )

    def measured(self) -> Mapping[Metric, float]:
        """What the updates so far come to; nothing before the first."""
        updates = [each.update for each in self._updates.values()]
        if not updates:
            return {}
        latency = next((u.latency for u in reversed(updates) if not math.isnan(u.latency)), math.nan)
        mixed = self._mixed_before + sum(update.mixed for update in updates)
        return {Metric.UPDATE_LATENCY: latency, Metric.MIXED_RECORDS: mixed}

    def _date(self, batch: Batch) -> None:
        """When updates came into force, and what still ran without them."""
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

    def _known(self, batch: Batch) -> bool:
        """Whether of all that a batch took it is known what it met before; what was missed is not waited for."""
        return all(by <= self._last[self._upstream(edge)] for edge, by, _ in self._taken(batch))

    def _follow(self, batch: Batch) -> None:
        """What the records of a batch met, this batch included."""
        found: dict[Way, float] = defaultdict(float)
        version = ran.version if (ran := self._ran(batch)) is not None else -1
        fed = list(self._taken(batch))
        fresh = float(batch.rows) - sum(rows for _, _, rows in fed)
        if fresh > 0:
            found[((batch.query, version),), frozenset()] += fresh
        for edge, by, rows in fed:
            before = self._ways[self._upstream(edge)].get(by) or {((), frozenset()): 1.0}
            total = sum(before.values())
            for (met, mixed), part in before.items():
                found[self._meet(met, mixed, batch.query, version, rows * part / total)] += rows * part / total
        ways = self._ways[batch.query]
        ways[batch.id] = dict(found)
        ways.pop(batch.id - KEPT, None)
        self._last[batch.query] = batch.id

    def _meet(self, met: tuple[tuple[str, int], ...], mixed: frozenset[int], query: str, version: int, rows: float) -> Way:
        """What records met after one more query; those that now met both sides of an update count as mixed, once."""
        versions = [version, *(each for _, each in met)]
        for number in range(min(versions) + 1, max(versions) + 1):
            each = self._updates.get(number)
            if each is None or number in mixed or query not in each.queries:
                continue
            if any(before in each.queries and (by >= number) != (version >= number) for before, by in met):
                mixed = mixed | {number}
                each.update = replace(each.update, mixed=each.update.mixed + rows)
        return (*met, (query, version)), mixed

    def _taken(self, batch: Batch) -> Iterable[tuple[Edge, int, float]]:
        """What a batch took from durable edges: edge, batch that wrote it, records."""
        for number, inlet in enumerate(self._running[batch.query].reads):
            if isinstance(inlet, Edge) and (queue := self._queues.get(inlet)) is not None:
                queue.refresh()
                for by, _, rows in queue.wrote(*batch.source(number).numbers):
                    yield inlet, by, float(rows)

    def _upstream(self, edge: Edge) -> str:
        return self._layout.stage_of[edge.source].segment


def _later(one: float, other: float) -> float:
    return other if math.isnan(one) else max(one, other)
