"""How fast hosts serve records: the cores that a record needs, and the time that it waits outside queues.

A loaded micro-batch takes a fixed time and waits for its slowest task, so hosts need more cores than records keep busy. The
longer a batch may last, the less its fixed part counts.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elastream.core.batch_line import BatchLine
from elastream.core.frames import Floats
from elastream.core.observation import MicroBatch, Observation
from elastream.policies.common.chained import stateless_tasks
from elastream.policies.common.load_history import FIRST_BATCHES, LoadHistory

# Seconds from which a batch counts as loaded.
LOADED_S = 0.5
# Multiple of the cores that records need: where batches are at their limit a queue never shrinks.
MARGIN = 1.03
# Most batches that are remembered: of each size (by factors of the root of 2) on the same cores, and in all. Loaded and
# light batches are counted separately, so that light ones never displace loaded ones.
OF_A_SIZE, COUNTED = 8, 128
# Age from which a batch no longer counts, if enough younger ones are loaded (seconds).
FORGOTTEN_S = 3600.0
# Newest batches, whose deviation from the line corrects it.
NEWEST = 16
# Seconds for which batches on new hosts are not representative: executors compile, and have no quota yet.
SETTLING_S = 10.0
# Least part of a batch's fixed seconds that its records get.
LEAST_PART = 0.1
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
        shown: (seconds, units of work per core, rounded cores of the hosts, begin) of batches of all sizes, oldest first.
        waits: Seconds from the begin of the batch before to the end of each of the last batches, at most the age of the
            oldest record.
        shortest: Seconds of the shortest batch; inf before the first.
        running: Composition that all batches of `shown` ran.
        capacity: Rounded cores of the hosts in the last round; NaN before.
    """

    shown: tuple[tuple[float, float, float, float], ...] = ()
    waits: tuple[float, ...] = ()
    shortest: float = math.inf
    running: object = None
    capacity: float = math.nan

    def after(self, observation: Observation, before: LoadHistory | None, capacity: float) -> "Service":
        """Return the service with the batches of `observation` added. A unit of work is a record.

        Args:
            capacity: Cores of speed 1 of all working hosts, draining ones included.
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
        changed = observation.time - observation.since_change + SETTLING_S
        if before is not None and _rounded(capacity) != self.capacity:
            changed = max(changed, float(before.times[-1]))  # a host left
        return replace(self, capacity=_rounded(capacity)).with_batches(
            observation.batches, ended, starts, compared, 1.0, changed, now.version
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
            starts: When the last one began, by segment.
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
            if not capacity > 0 or not (math.isnan(each.version) or each.version == version):
                continue
            if each.start >= changed and each.seconds > 0 and each.records * work > 0:
                shown.append((each.seconds, each.records * work / capacity, _rounded(capacity), each.start))
        return replace(self, shown=_of_all_sizes(shown), waits=tuple(waits[-RECENT:]), shortest=shortest)

    def needs(self, target: float, limit: float | None, least: float = 0.0, margin: float = MARGIN) -> Floats:
        """Return the core-seconds of hosts for a unit of work, by each batch that shows it; none if unknown.

        Args:
            limit: Seconds to which batches are limited. None: a batch takes all waiting records, within the target latency.
            least: Core-seconds that a unit of work keeps busy. A line shows less if larger batches ran later, on compiled
                code.
        """
        groups = self._groups()
        for each, line in self._lines(groups, least):
            length = planned_seconds(line.fixed, target, limit)
            newest = each[-NEWEST:]
            needs: Floats = margin * length / line.largest(length) * newest[:, 0] / line.seconds(newest[:, 1])
            return needs
        # What a longer batch would save is not known; what a shorter one would cost follows from the shortest batch.
        for each in (group[group[:, 0] >= LOADED_S] for group in groups):
            if len(each) >= LEAST_COUNTED:
                lengths, work = each[-NEWEST:, :2].T
                length = planned_seconds(self.shortest, target, limit)
                shorter = margin * length * (lengths - self.shortest) / (work * (length - self.shortest))
                assumed: Floats = np.where(lengths > length, shorter, lengths / work)
                return assumed
        return np.zeros(0)

    def _groups(self) -> list[Floats]:
        """Return batches on the newest hosts, then all: the fixed part of a batch depends on the hosts."""
        every = np.array(self.shown).reshape(-1, 4)
        late = every[every[:, 3] >= every[-1:, 3] - FORGOTTEN_S]
        every = late if _is_conclusive(late) else every
        newest = every[every[:, 2] == every[-1:, 2]]
        groups = [newest, every] if _is_conclusive(newest) else [every]  # a few may be from a round in which hosts changed
        return [each for each in groups if len(each) >= LEAST_COUNTED]

    def _lines(self, groups: Sequence[Floats], least: float) -> Iterator[tuple[Floats, BatchLine]]:
        """Yield the groups that separate fixed time from work, with their lines."""
        for each in groups:
            line = BatchLine.of(each[:, 1], each[:, 0], self.shortest)
            if line.each < least:
                line = replace(line, fixed=max(0.0, float(np.median(each[:, 0] - least * each[:, 1]))), each=least)
            if line.separable and each[:, 0].max() >= LOADED_S:
                yield each, line

    def budget(self, target: float, limit: float | None, least: float = 0.0, in_a_row: int = 1) -> float:
        """Return the seconds that a record may wait in queues within the target latency.

        A record waits for the batch before its own, and for its own. Without a limit on batches, the backlog is one batch.

        Args:
            limit: As in `needs`; likewise `least`.
            in_a_row: Queries that a record passes, at most. It waits for a batch of each, and one more.
        """
        if (turns := in_a_row + 1) > 2:
            # Batches behind a durable edge have no limit: they take the whole backlog, so their length varies. While one
            # query plans a batch, tasks of another run, so that fixed times cost no cores.
            waits = target * turns / (turns + 1) if limit is None else max(turns * limit, target / 2)
            return max(0.0, target - waits)
        if limit is not None:
            usual = quantile(self.waits, SLOW) if self.waits else 0.0
            return max(0.0, target - max(usual, 2 * limit))
        shortest = self.shortest if self.waits else 0.0
        fixed = next((line.fixed for _, line in self._lines(self._groups(), least)), shortest)
        return max(0.0, target - 2 * planned_seconds(fixed, target, None))


def planned_seconds(fixed: float, target: float, limit: float | None) -> float:
    """Return the length that batches of `fixed` seconds without records are planned with (seconds).

    The governor gives records at least half of the limit. Without one a batch is to take a third of the target latency.
    """
    if limit is None and not target > 0:
        return max(1.0, 2 * fixed)
    if limit is None:
        return max(min(2 * fixed, target / 2), target / 3, fixed * (1 + LEAST_PART))
    return fixed + (fixed if fixed > limit else max(limit - fixed, limit / 2))


def _is_conclusive(batches: Floats) -> bool:
    return bool(np.count_nonzero(batches[:, 0] >= LOADED_S) >= LEAST_COUNTED)


def _rounded(cores: float) -> float:
    return float(f"{cores:.2g}")  # measured speeds vary


def _of_all_sizes(shown: Sequence[tuple[float, float, float, float]]) -> tuple[tuple[float, float, float, float], ...]:
    of_size, of_kind, sample = Counter[tuple[float, int]](), Counter[bool](), []
    for each in reversed(shown):
        size, loaded = (each[2], math.floor(2 * math.log2(each[1]))), each[0] >= LOADED_S
        if of_size[size] < OF_A_SIZE and of_kind[loaded] < COUNTED:
            of_size[size] += 1
            of_kind[loaded] += 1
            sample.append(each)
    return tuple(reversed(sample))


def quantile(values: Sequence[float], level: float) -> float:
    """Return a quantile by linear interpolation; numpy's takes twenty times as long for few values."""
    ordered = sorted(values)
    at = level * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
