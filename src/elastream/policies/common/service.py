"""Service of hosts: cores needed beyond the busy ones, and waits outside of queues.

A loaded micro-batch takes a fixed time and waits for its slowest task, so hosts need more cores than records keep busy.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elastream.core.batch_line import BatchLine
from elastream.core.observation import MicroBatch, Observation
from elastream.policies.common.chained import stateless_tasks
from elastream.policies.common.load_history import FIRST_BATCHES, LoadHistory

# Seconds that a batch lasts under load: the governor's default. From half of it a batch counts as loaded.
LOADED_S = 1.0
# Loaded batches whose median counts, and the fewest.
COUNTED, LEAST_COUNTED = 64, 6
# Batches from which the usual wait follows.
RECENT = 64
# Cores over busy ones before there are loaded batches: tasks are never quite even. Assumed.
FIRST_OVERHEAD = 1.2
# Most cores over busy ones; above it a source or sink waits.
MOST_OVERHEAD = 3.0
# Quantile of the micro-batches' part of the latency that counts.
SLOW = 0.9


@dataclass(frozen=True, slots=True)
class Service:
    """Service of a dataflow's hosts.

    Attributes:
        overheads: Cores of the hosts over those that records kept busy, for each of the last loaded batches, oldest first.
        waits: Seconds from the begin of the batch before to the end of each of the last batches, at most the age of the
            oldest record.
        shortest: Seconds of the shortest batch; inf before the first.
        lengths: Seconds of the batches of `overheads`.
    """

    overheads: tuple[float, ...] = ()
    waits: tuple[float, ...] = ()
    shortest: float = math.inf
    lengths: tuple[float, ...] = ()

    def after(self, observation: Observation, before: LoadHistory | None, capacity: float, work: float) -> "Service":
        """Return the service after the batches of `observation`.

        Args:
            capacity: Cores of speed 1 of the usable hosts.
            work: Core-seconds that a record keeps busy; NaN if unknown.
        """
        if not observation.batches:
            return self
        slots = observation.cores.slots(observation.working)[0]
        uneven = any(tasks % slots for tasks in stateless_tasks(observation)) if slots else True
        # Queries on shared hosts slow each other down, so their batches do not show one query's overhead.
        # Nor do batches whose tasks fill the hosts unevenly, as in the round after hosts came or went.
        compared = math.nan if uneven or len(observation.context.layout.segments) > 1 else capacity
        ended = {} if before is None else before.ended
        starts = {} if before is None else {name: end - seconds for name, (end, seconds) in before.last_batches.items()}
        changed = observation.time - observation.since_change
        return self.with_batches(
            observation.batches, ended, starts, compared, work, changed, observation.composition.version
        )

    def with_batches(
        self,
        batches: Sequence[MicroBatch],
        ended: Mapping[str, int],
        starts: Mapping[str, float],
        capacity: float,
        work: float,
        changed: float,
        version: float,
    ) -> "Service":
        """Return the service after `batches`.

        Args:
            ended: Earlier batches by segment.
            starts: Begin of the last one by segment.
            capacity: As in `after`; NaN if the batches do not show the overhead.
            changed: When the hosts last changed; earlier batches ran on other cores.
        """
        ended, starts = {**ended}, {**starts}
        overheads, waits, lengths, shortest = [*self.overheads], [*self.waits], [*self.lengths], self.shortest
        for each in batches:
            earlier, last = ended.get(each.segment, 0), starts.get(each.segment, math.nan)
            ended[each.segment], starts[each.segment] = earlier + 1, each.start
            if earlier < FIRST_BATCHES:
                continue
            shortest = min(shortest, each.seconds)
            alone = each.start - last + each.seconds
            waits.append(min(alone, each.oldest) if each.oldest == each.oldest else alone)
            if math.isnan(capacity) or not (math.isnan(each.version) or each.version == version):
                continue
            if each.start >= changed and each.seconds >= LOADED_S / 2 and each.records * work > 0:
                overheads.append(each.seconds * capacity / (each.records * work))
                lengths.append(each.seconds)
        return Service(tuple(overheads[-COUNTED:]), tuple(waits[-RECENT:]), shortest, tuple(lengths[-COUNTED:]))

    @property
    def overhead(self) -> float:
        """Return the cores that hosts must have over busy ones."""
        if len(self.overheads) < LEAST_COUNTED:
            return FIRST_OVERHEAD
        return min(max(statistics.median(self.overheads), 1.0), MOST_OVERHEAD)

    def factors(self, seconds: float) -> list[float]:
        """Return the overhead of batches of `seconds`, by each loaded batch."""
        if not self.lengths:
            return []
        lengths = np.array(self.lengths)
        work = lengths / np.array(self.overheads)  # seconds of a batch without fixed part, on these cores
        line = BatchLine.of(work, lengths, self.shortest)
        length = max(seconds, 2 * line.fixed)
        return [*(length / line.largest(length) * lengths / line.seconds(work)).tolist()]

    def budget(self, target: float, *, governed: bool) -> float:
        """Return the seconds that a record may wait in queues within the target latency.

        A record waits for the batch before its own, and for its own. Without a limit on batches, the backlog is one batch.
        """
        if not governed:
            return max(0.0, target / 2 - (self.shortest if self.waits else 0.0))
        usual = quantile(self.waits, SLOW) if self.waits else 0.0
        return max(0.0, target - max(usual, 2 * LOADED_S))


def quantile(values: Sequence[float], level: float) -> float:
    """Return a quantile, by linear interpolation. For the few values of a round, numpy's takes twenty times as long."""
    ordered = sorted(values)
    at = level * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
