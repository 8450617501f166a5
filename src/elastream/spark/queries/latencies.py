"""From when on the records of each batch count, through all queries of a dataflow: over durable edges, back to the sources.

A query behind a durable edge takes records that a batch of the query before it wrote; they count from where that batch's
records did. What the queries report of one another comes in any order: a batch whose forerunners are not known yet waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastream.core.latency import Basis
from elastream.dataflow.operators import Edge
from elastream.dataflow.stages import Layout
from elastream.recording.places import modified_at
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.dataflow.edges import edge_name
from elastream.spark.dataflow.sources import timestamp_of
from elastream.spark.queries.segments import RunningSegment
from elastream.spark.telemetry.batches import Batch
from elastream.spark.telemetry.origins import Moments, Origin, condensed

KEPT = 1000
"""Newest batches of each query whose moments are kept: those behind a durable edge may be that many batches late."""


@dataclass(frozen=True, slots=True)
class KnownBatch:
    """A batch, and the moments of its records by the number of the source or edge; None while forerunners are unknown."""

    batch: Batch
    parts: tuple[Moments | None, ...]

    @property
    def whole(self) -> bool:
        """Whether all of them are known."""
        return None not in self.parts

    @property
    def moments(self) -> Moments:
        """From when on its records count."""
        return [moment for part in self.parts if part is not None for moment in part]


class Latencies:
    """Origins of the sources of `running`, by name, and what is known of each query's batches. queues: logs of edges."""

    def __init__(self, layout: Layout, running: Sequence[RunningSegment], queues: Mapping[Edge, EdgeLog]) -> None:
        self._running = {each.segment.name: each for each in running}
        self._queues = queues
        self._segment_of = {name: stage.segment for name, stage in layout.stage_of.items()}
        self._known: dict[str, dict[int, KnownBatch]] = {name: {} for name in self._running}
        self.origins: dict[str, Origin] = {}
        self._stamped: dict[Edge, Origin] = {}
        for each in running:
            for number, inlet in enumerate(each.reads):
                if isinstance(inlet, Edge):
                    if inlet not in queues:
                        self._stamped[inlet] = Origin(number, each.checkpoint, stamped=edge_name(inlet))
                    continue
                source = layout.graph.operator(inlet)
                stamped = inlet if timestamp_of(source.reads) else None
                self.origins[inlet] = Origin(number, each.checkpoint, source.load, stamped, each.places.get(inlet))

    @property
    def basis(self) -> dict[str, Basis]:
        """What latencies were measured from lately, by source; those without a batch yet are left out."""
        return {name: origin.basis for name, origin in self.origins.items() if origin.basis is not None}

    def took(self, fresh: Sequence[Batch]) -> None:
        """Take note of committed batches, those of each query in order."""
        for batch in fresh:
            running, known = self._running[batch.query], self._known[batch.query]
            parts = [None if isinstance(inlet, Edge) else self.origins[inlet].took(batch) for inlet in running.reads]
            known[batch.id] = KnownBatch(batch, () if batch.stepped else tuple(parts))
            known.pop(batch.id - KEPT, None)
        for name, running in self._running.items():
            for number, each in self._known[name].items():
                if not each.whole:
                    self._known[name][number] = self._completed(running, each)

    def stepped(self) -> None:
        """Forget since when records of batches so far count: that was by a clock which was set meanwhile."""
        for known in self._known.values():
            for number, each in known.items():
                known[number] = KnownBatch(each.batch, ())
        for origin in self.origins.values():
            origin.stepped()

    def of(self, batch: Batch) -> KnownBatch | None:
        """What is known of a batch; None while that is not all."""
        found = self._known[batch.query].get(batch.id)
        return found if found is not None and found.parts and found.whole else None

    def ends(self, batch: Batch) -> tuple[float, float]:
        """Moments of the oldest and the newest record of a batch; NaN where it has none, or they are not known."""
        found = self.of(batch)
        reads = self._running[batch.query].reads
        moments = found.moments if found else []
        if len(reads) == 1 and isinstance(reads[0], str):
            return self.origins[reads[0]].ends(batch, moments)
        times = [at for at, _ in moments] or [float("nan")]
        return min(times), max(times)

    def _completed(self, running: RunningSegment, each: KnownBatch) -> KnownBatch:
        parts = [
            self._along(inlet, number, each.batch) if part is None and isinstance(inlet, Edge) else part
            for number, (inlet, part) in enumerate(zip(running.reads, each.parts, strict=True))
        ]
        return KnownBatch(each.batch, tuple(parts))

    def _along(self, edge: Edge, number: int, batch: Batch) -> Moments | None:
        """Moments of what a batch took from a durable edge."""
        before = self._known[self._segment_of[edge.source]]
        last = max(before, default=-1)
        if (queue := self._queues.get(edge)) is not None:
            queue.refresh()
            written = [(before.get(by), by, at, float(n)) for by, at, n in queue.wrote(*batch.source(number).numbers)]
        else:
            newest = max((each.batch.end for each in before.values()), default=0.0)
            moments = self._stamped[edge].took(batch)
            # What was written after the newest commit known was written by a batch whose progress is not known yet.
            written = [(_during(before, at), last + (at > newest), at, weight) for at, weight in moments]
        found: Moments = []
        for wrote, by, at, weight in written:
            if wrote is not None and not wrote.parts:
                continue  # the clock was set while it ran, or since
            if wrote is not None and wrote.whole and (moments := wrote.moments):
                records = sum(each for _, each in moments)
                found += [(moment, weight * each / records) for moment, each in moments]
            elif (wrote is None and by > last) or (wrote is not None and not wrote.whole):
                return None  # its progress comes with one of the next looks
            else:
                found.append((self._before(edge, by, at), weight))
        return condensed(found)

    def _before(self, edge: Edge, by: int, at: float) -> float:
        """An upper bound for records that batch `by`, whose progress was missed, wrote at second `at`: they came after the
        batch before it was planned, which the checkpoint tells.
        """
        running = self._running[self._segment_of[edge.source]]
        for inlet in running.reads:
            if isinstance(inlet, str):
                self.origins[inlet].basis = Basis.BOUND
        for number in (by - 1, by):
            try:
                return min(at, modified_at(running.checkpoint / "offsets" / str(number)))
            except OSError:  # cleaned up
                continue
        return at


def _during(batches: Mapping[int, KnownBatch], at: float) -> KnownBatch | None:
    """The batch that was under way at epoch second `at`."""
    return next((each for each in batches.values() if each.batch.start <= at <= each.batch.end), None)
