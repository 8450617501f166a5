"""Which composition is wanted and which is effective, for the queries of a dataflow that run on.

All switches of a plan are one version, written at once for all queries; no query is restarted. Per dynamic element:

    state       event                                                       next
    effective   a plan switches it                                          wanted, the action is ACCEPTED
    wanted      a batch is planned under the new version                    in flight
    in flight   that batch is committed in the query that holds it          effective, the action is DONE
    in flight   its query fails and is started again                        in flight: the batch is replayed as it was
    wanted      a plan switches it once more                                wanted; the first action is overtaken
    wanted      no batch comes, because no record does                      wanted: an idle query has no batch to show it in
    effective   the switch cannot be written                                effective, the action is FAILED

`batch` and `wave` differ in what a query behind a durable edge takes for its next version (see `dataflow.readers`).
`drain` puts two states between wanted and in flight; the composition waits meanwhile, and so do the sources:

    state       event                                                       next
    (none)      a plan switches something                                   holding: sources are requested to take no more
    holding     each source has said that it takes none                     draining
    draining    every query has committed all that its durable edges hold   (none): it is written, and the sources go on
    any         a plan switches something more                              the same; it comes with the one that waits

Parallelism is part of a composition and of its version, and changes the meaning of no record: it is written at once.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from elastream.core.action import Outcome, SetKeyTable, SetParallelism, Status, Switch
from elastream.core.composition import Consistency, switched
from elastream.core.observation import Composition
from elastream.dataflow.stages import Layout
from elastream.errors import ElastreamError
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.dataflow.edges import edge_name
from elastream.spark.dataflow.sources import HELD
from elastream.spark.queries.segments import RunningSegment, widths_of
from elastream.spark.telemetry.batches import Batch
from elastream.spark.worker.composition import (
    BatchComposition,
    CompositionRequest,
    latest_batch,
    newest_composition,
    offsets_of,
    write_request,
)

log = logging.getLogger(__name__)

REMEMBERED = 1000
"""Newest compositions that are known by their version; batches are committed far sooner than that many switches later."""

TablesInUse: TypeAlias = Callable[[str, int, Iterable[Composition]], str]
"""Brings a version of an operator's key table into use, given the compositions that batches may still run under; says why
that is not possible, or nothing."""


def switch(layout: Layout, running: Sequence[RunningSegment], composition: Composition, *, held: bool = False) -> None:
    """Let `composition` hold from one of the next batches on, in every segment; nothing is restarted.

    Segments with a source of ours or an edge of files take it with their next batch; others two batches after the newest
    one planned. held: whether sources take no more records. Raises EnvironmentProblem or OSError where that fails.
    """
    code = running[0].codec.encode(composition)
    write_request(running[0].wanted, CompositionRequest(composition.version, code, widths_of(layout, composition), held))
    for each in running:
        if not each.own_source and each.codec.size > 1 and each.log.newest().version != composition.version:
            each.log.switch(each.checkpoint, composition.version, code)


class Switching:
    """Composes for the queries `running`, and knows what they run under.

    composition: the one wanted. effective: by segment, that of its last committed batch; left out before the first. tables:
    None where there are no key tables. changed: told of each change that is requested. `apply` and `settle` may be called
    from two threads.
    """

    def __init__(
        self,
        layout: Layout,
        running: Sequence[RunningSegment],
        consistency: Consistency = Consistency.BATCH,
        *,
        tables: TablesInUse | None = None,
        changed: Callable[[Composition, Composition], None] = lambda before, after: None,
    ) -> None:
        self._tables, self._changed = tables, changed
        self._layout, self._running, self.consistency = layout, tuple(running), consistency
        self.composition = self._written = running[0].began
        self.effective: Mapping[str, Composition] = {}
        self._versions = {self.composition.version: self.composition}
        self._segment = {each.segment.name: each for each in running}
        self._draining: Drain | None = None
        self._lock = threading.RLock()

    def apply(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        """Do all of these that are possible as one new composition, and answer each; raises as `switch` does."""
        with self._lock:
            refused = [each.refusal(self._layout.graph) or self._unusable(each) for each in switches]
            self._compose(switched(self.composition, [s for s, no in zip(switches, refused, strict=True) if not no]))
            return tuple(
                Outcome(each, Status.REFUSED, no) if no else Outcome(each, *self._standing(each))
                for each, no in zip(switches, refused, strict=True)
            )

    def widen(self, action: SetParallelism) -> bool:
        """Set a parallelism; whether that changes anything. Raises as `switch` does."""
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

    def took(self, fresh: Sequence[Batch]) -> None:
        """Take note of committed batches, those of each query in order."""
        found = {}
        for batch in fresh:
            ran = self.ran(batch)
            if ran is not None:
                found[batch.query] = self.under(ran)
        self.effective = {**self.effective, **found}

    def ran(self, batch: Batch) -> BatchComposition | None:
        """What a committed batch ran under; None where that is not known any more."""
        return newest_composition([each.end for each in batch.sources]) or self._segment[batch.query].ran(batch.id)

    def under(self, ran: BatchComposition) -> Composition:
        """The composition of that version; of an earlier controller's, what its code says."""
        with self._lock:
            known = self._versions.get(ran.version)
        return known or self._running[0].codec.decode(ran.code, ran.version)

    def settle(self) -> bool:
        """Take a drain further; whether one is under way. Raises as `switch` does."""
        with self._lock:
            if self._draining is None:
                return False
            if self._draining.over():
                self._write(self.composition)
                self._draining = None
            return self._draining is not None

    def _standing(self, switch: Switch) -> tuple[Status, str]:
        """DONE where the newest committed batch of the query with the element ran so, and all since; else ACCEPTED."""
        effective = self.effective.get(switch.segment(self._layout))
        if effective is not None:
            since = [effective, *(each for version, each in self._versions.items() if version > effective.version)]
            if all(switched(each, [switch]) is each for each in since):
                return Status.DONE, ""
        return Status.ACCEPTED, "in force once a batch that ran under it is committed"

    def _unusable(self, switch: Switch) -> str:
        """Why a key table cannot be used; empty where it can, or `switch` names none."""
        if not isinstance(switch, SetKeyTable) or switch.table == 0:
            return ""
        if self._tables is None:
            return f"this run has no key tables for {switch.operator!r}"
        oldest = min((each.version for each in self.effective.values()), default=0)
        live = [each for version, each in self._versions.items() if version >= oldest]
        return self._tables(switch.operator, switch.table, live)

    def _compose(self, changed: Composition) -> None:
        before = self.composition
        if changed is before:
            return
        if self.consistency is not Consistency.DRAIN or len(self._running) == 1:
            self._write(changed)
        elif self._draining is None:
            switch(self._layout, self._running, self._written, held=True)
            self._draining = Drain(self._running, self._written.version)
        self._remember(changed)
        self._changed(before, changed)

    def _write(self, changed: Composition) -> None:
        """Write `changed` for all queries; where that fails, what was written before is written again."""
        try:
            switch(self._layout, self._running, changed)
        except (ElastreamError, OSError):
            again = replace(self._written, version=changed.version + 1)
            with contextlib.suppress(ElastreamError, OSError):
                switch(self._layout, self._running, again)
            self._written = again
            self._remember(again)
            raise
        self._written = changed
        self._remember(changed)

    def _remember(self, changed: Composition) -> None:
        self.composition = self._versions[changed.version] = changed
        for version in list(self._versions)[:-REMEMBERED]:
            del self._versions[version]


class Drain:
    """Tells when nothing is under way in `running`, whose sources are held at `version`.

    A source that says that it takes no more has nothing under way (`ShapedReader`); then a query that has committed all
    that its durable edges hold writes nothing more to those that follow it. So queries come to rest upstream first.
    """

    def __init__(self, running: Sequence[RunningSegment], version: int) -> None:
        self._running, self._version = running, version
        self._edges = {edge: EdgeLog(records) for each in running for edge, records in each.edges.items()}

    def over(self) -> bool:
        """Whether all is drained."""
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
        taken = {offset["edge"]: int(offset["n"]) for offset in offsets if "edge" in offset}
        for edge in each.edges:
            at = taken.get(edge_name(edge), 0)
            if self._edges[edge].refresh() > at:
                return False
            self._edges[edge].forget(at)
        return True
