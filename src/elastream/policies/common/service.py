"""Service of hosts: cores needed beyond the busy ones, and waits outside of queues.

Under load a micro-batch takes a fixed time and waits for its slowest task, so cores stand idle. Loaded batches show how
many more cores hosts need than records keep busy.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from elastream.core.observation import Observation
from elastream.policies.common.chained import stateless_tasks
from elastream.policies.common.load_history import LoadHistory
from elastream.policies.common.sizing import FIRST_BATCHES

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
            oldest record: what micro-batches alone make a record wait.
        shortest: Seconds of the shortest batch; inf before the first.
    """

    overheads: tuple[float, ...] = ()
    waits: tuple[float, ...] = ()
    shortest: float = math.inf

    def after(self, observation: Observation, before: LoadHistory | None, capacity: float, work: float) -> "Service":
        """Return the service after the batches of `observation`.

        Args:
            before: History of the load before them.
            capacity: Cores of speed 1 of the usable hosts.
            work: Core-seconds that a record keeps busy; NaN if unknown.
        """
        if not observation.batches:
            return self
        slots = observation.cores.slots(observation.working)[0]
        uneven = any(tasks % slots for tasks in stateless_tasks(observation)) if slots else True
        version = observation.composition.version
        several = len(observation.context.layout.segments) > 1
        changed = observation.time - observation.since_change  # earlier batches ran on other cores
        ended = {} if before is None else {**before.ended}
        starts = {} if before is None else {name: end - seconds for name, (end, seconds) in before.last_batches.items()}
        overheads, waits, shortest = [*self.overheads], [*self.waits], self.shortest
        for each in observation.batches:
            earlier, last = ended.get(each.segment, 0), starts.get(each.segment, math.nan)
            ended[each.segment], starts[each.segment] = earlier + 1, each.start
            if earlier < FIRST_BATCHES:
                continue
            shortest = min(shortest, each.seconds)
            alone = each.start - last + each.seconds
            waits.append(min(alone, each.oldest) if each.oldest == each.oldest else alone)
            # Queries on shared hosts slow each other down, so their batches do not show one query's overhead.
            # Nor do batches whose tasks fill the hosts unevenly, as in the round after hosts came or went.
            if several or uneven or not (math.isnan(each.version) or each.version == version):
                continue
            if each.start >= changed and each.seconds >= LOADED_S / 2 and each.records * work > 0:
                overheads.append(each.seconds * capacity / (each.records * work))
        return Service(tuple(overheads[-COUNTED:]), tuple(waits[-RECENT:]), shortest)

    @property
    def overhead(self) -> float:
        """Return the cores that hosts must have over busy ones."""
        if len(self.overheads) < LEAST_COUNTED:
            return FIRST_OVERHEAD
        return min(max(statistics.median(self.overheads), 1.0), MOST_OVERHEAD)

    def budget(self, target: float, *, governed: bool) -> float:
        """Return the seconds that a record may wait in queues within the target latency.

        A record waits for the batch before its own, and for its own. Without a limit on batches, the backlog itself is one
        batch, and the next one waits as long.
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
