"""Service of hosts: cores that records need, and waits outside of queues.

A loaded micro-batch takes a fixed time and waits for its slowest task, so hosts need more cores than records keep busy. The
longer a batch may last, the less its fixed part counts.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elastream.core.batch_line import BatchLine
from elastream.core.frames import Floats
from elastream.core.observation import MicroBatch, Observation
from elastream.policies.common.chained import stateless_tasks
from elastream.policies.common.load_history import FIRST_BATCHES, LoadHistory

# Seconds that a batch lasts under load: the governor's default. From half of it a batch counts as loaded.
LOADED_S = 1.0
# Batches that are remembered: the newest of each size (by factors of the root of 2) on the same cores, and most in all.
OF_A_SIZE, COUNTED = 8, 256
# Fewest batches that show what records need.
LEAST_COUNTED = 6
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
        shown: (seconds, units of work per core, cores of the hosts) of earlier batches of all sizes, oldest first.
        waits: Seconds from the begin of the batch before to the end of each of the last batches, at most the age of the
            oldest record.
        shortest: Seconds of the shortest batch; inf before the first.
        running: Composition that all batches of `shown` ran.
    """

    shown: tuple[tuple[float, float, float], ...] = ()
    waits: tuple[float, ...] = ()
    shortest: float = math.inf
    running: object = None

    def after(self, observation: Observation, before: LoadHistory | None, capacity: float) -> "Service":
        """Return the service after the batches of `observation`; a unit of work is a record.

        Args:
            capacity: Cores of speed 1 of the hosts that work, those that drain among them.
        """
        now = observation.composition
        running = (now.alternates, now.choices, now.tables, now.code)
        if running != self.running:
            return replace(self, shown=(), running=running).after(observation, before, capacity)
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
        return self.with_batches(observation.batches, ended, starts, compared, 1.0, changed, now.version)

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
            capacity: As in `after`; NaN if the batches do not show what records need.
            work: Units of work of a record; NaN if unknown.
            changed: When the hosts last changed; earlier batches ran on other cores.
        """
        ended, starts = {**ended}, {**starts}
        shown, waits, shortest = [*self.shown], [*self.waits], self.shortest
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
            if each.start >= changed and each.seconds > 0 and each.records * work > 0:
                shown.append((each.seconds, each.records * work / capacity, capacity))
        return Service(_of_all_sizes(shown), tuple(waits[-RECENT:]), shortest, self.running)

    def needs(self, seconds: float) -> Floats:
        """Return the core-seconds of hosts for a unit of work in batches of `seconds`, by each batch; none if unknown.

        The fixed part of a batch depends on the hosts, so only batches on the newest ones count if these tell it.
        """
        every = np.array(self.shown).reshape(-1, 3)
        groups = [each for each in (every[every[:, 2] == every[-1:, 2]], every) if len(each) >= LEAST_COUNTED]
        for lengths, work, _ in (each.T for each in groups):
            line = BatchLine.of(work, lengths, self.shortest)
            length = max(seconds, 2 * line.fixed)
            if line.separable:
                needs: Floats = length / line.largest(length) * lengths / line.seconds(work)
                return needs
        # What a longer batch would save is not known; what a shorter one would cost follows from the shortest batch.
        loaded = [each for each in (each[each[:, 0] >= LOADED_S / 2] for each in groups) if len(each) >= LEAST_COUNTED]
        for lengths, work, _ in (each.T for each in loaded):
            length = max(seconds, 2 * self.shortest)
            shorter = length * (lengths - self.shortest) / (work * (length - self.shortest))
            assumed: Floats = np.where(lengths > length, shorter, lengths / work)
            return assumed
        return np.zeros(0)

    def budget(self, target: float, *, governed: bool) -> float:
        """Return the seconds that a record may wait in queues within the target latency.

        A record waits for the batch before its own, and for its own. Without a limit on batches, the backlog is one batch.
        """
        shortest = self.shortest if self.waits else 0.0
        if not governed:
            return max(0.0, target - 2 * max(batch_seconds(target, governed=False), shortest))
        usual = quantile(self.waits, SLOW) if self.waits else 0.0
        return max(0.0, target - max(usual, 2 * LOADED_S))


def _of_all_sizes(shown: Sequence[tuple[float, float, float]]) -> tuple[tuple[float, float, float], ...]:
    counts, kept = Counter[tuple[float, int]](), []
    for each in reversed(shown):
        size = each[2], math.floor(2 * math.log2(each[1]))
        counts[size] += 1
        if counts[size] <= OF_A_SIZE:
            kept.append(each)
    return tuple(reversed(kept[:COUNTED]))


def batch_seconds(target: float, *, governed: bool) -> float:
    """Return the length that batches are planned with, within the target latency (seconds).

    Limited batches get three quarters of their limit: at the limit a queue never shrinks. Without a limit a third of the
    target remains for more records than expected.
    """
    return 0.75 * LOADED_S if governed else max(LOADED_S, target / 3)


def quantile(values: Sequence[float], level: float) -> float:
    """Return a quantile, by linear interpolation. For the few values of a round, numpy's takes twenty times as long."""
    ordered = sorted(values)
    at = level * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
