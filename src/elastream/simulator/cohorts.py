"""Operators that serve cohorts (counts with an enqueue time) in time slots, as a fluid: the cost does not grow with items.

Services longer than two slots occupy an instance; shorter ones are served as a rate. Random waiting comes from queueing
theory (`core.qos`) and lengthens durations only.
"""

import math
from statistics import NormalDist

import numpy as np
from numba import njit
from numpy.typing import NDArray

from elastream.core.frames import Floats
from elastream.core.qos import erlang_c, waiting_time
from elastream.dataflow.operators import Operator
from elastream.simulator.draws import EMPIRICAL, EXPONENTIAL, LOGNORMAL, below
from elastream.simulator.settings import Settings
from elastream.simulator.stations import NOTHING, Items, Shape, Station, neighbours, sort_rows
from elastream.units import ROUNDING

# Most parts of a slot in rate mode; splits cohorts larger than one round of the instances.
PARTS = 16
# Most groups of neighbouring cohorts over which percentiles are taken.
GROUPS = 24


@njit(cache=True)
def work_off(  # noqa: PLR0913
    queue: Floats,
    came_times: Floats,
    came_born: Floats,
    came_counts: Floats,
    grain: float,
    finishing: Floats,
    head: int,
    begin: float,
    slots: int,
    width: float,
    mean: float,
    free: Floats,
    crew_busy: Floats,
    weights: Floats,
    first: int,
    occupied: bool,
    each: float,
) -> tuple[Floats, Floats, Floats, int, float, float, float]:
    """Queue cohorts and serve them for `slots` slots of `width` seconds.

    Args:
        came_times, came_born, came_counts: Cohorts, each spread over the time to the next.
        grain: Longest spread (seconds).
        free: Time at which each instance is ready; inf if unplaced.
        crew_busy: Seconds each instance worked; added to.
        each: Items out per item in.

    Returns:
        (Waiting rows, starts, emitted rows of times, born times and counts, ring head, items done, waiting, in service).
    """
    waiting = np.empty((queue.shape[0] + came_times.size, 6))
    waiting[: queue.shape[0]] = queue
    for k in range(came_times.size):
        row = queue.shape[0] + k
        span = grain if k + 1 == came_times.size else min(grain, came_times[k + 1] - came_times[k])
        waiting[row, 0] = waiting[row, 1] = came_times[k] - 0.5 * span
        waiting[row, 2] = came_born[k]
        waiting[row, 3] = waiting[row, 4] = came_counts[k]
        waiting[row, 5] = span
    if slots <= 0:
        return waiting, np.empty((0, 3)), np.empty((3, 0)), head, 0.0, waiting[:, 3].sum(), finishing[:, 0].sum()
    ready = free[free < math.inf]
    if ready.size and ready.max() > begin:
        ready = np.sort(ready)  # otherwise all are ready from the start and order does not matter
    front, starts, finishes, busy, head = _serve(
        waiting, finishing, head, begin, slots, width, mean, ready, weights, first, occupied
    )
    if ready.size:
        for i in range(free.size):
            if free[i] < math.inf:
                crew_busy[i] += busy / ready.size  # work is counted when it begins
    count = finishes.shape[0]
    sort_rows(finishes, count)
    emitted = np.empty((3, count))
    done = 0.0
    for k in range(count):
        emitted[0, k], emitted[1, k], emitted[2, k] = finishes[k, 0], finishes[k, 1], finishes[k, 2] * each
        done += finishes[k, 2]
    left = waiting[front:].copy()
    return left, starts, emitted, head, done, left[:, 3].sum(), finishing[:, 0].sum()


@njit(cache=True)
def _serve(  # noqa: C901, PLR0913
    queue: Floats,
    finishing: Floats,
    head: int,
    begin: float,
    slots: int,
    width: float,
    mean: float,
    ready: Floats,
    weights: Floats,
    first: int,
    occupied: bool,
) -> tuple[int, Floats, Floats, float, int]:
    """Serve `queue` for `slots` slots.

    Args:
        queue: Rows (available, queued, born, count, initial count, span) of items spread evenly over `span` seconds;
            reduced.
        finishing: Ring of items that finish later, rows (count, count x queued, count x born).

    Returns:
        (Cohorts fully taken, starts (time, queued, count), finishes (time, born, count), busy instance-seconds, ring head).
    """
    length = finishing.shape[0]
    starts = np.empty(((PARTS + 2) * slots + queue.shape[0] + 1, 3))
    finishes = np.empty(((PARTS + 2) * slots + queue.shape[0] + 1, 3))
    started = finished = front = 0
    busy = 0.0
    in_service = finishing[:, 0].sum()
    for slot in range(slots):
        now = begin + slot * width
        most = math.inf
        instances = np.searchsorted(ready, now, side="right")
        if occupied:
            done = finishing[head, 0]
            if done > 0.0:
                finishes[finished] = now + 0.5 * width, finishing[head, 2] / done, done
                finished += 1
            idle = max(0.0, instances - in_service)
            freed = max(0.0, instances - in_service + done) - idle
            in_service -= done
            finishing[head] = 0.0
        else:
            idle, freed = 0.0, instances * width / mean
            most = freed * max(mean / width, 1 / PARTS)
        used, entered = 0.0, -1
        while front < queue.shape[0]:
            whole, span = queue[front, 4], queue[front, 5]
            consumed = 1.0 - queue[front, 3] / whole
            available = queue[front, 0] + span * consumed
            if available >= now + width:
                break
            if not occupied and available > now:
                # In rate mode, capacity before the cohort's arrival is lost.
                used = max(used, (available - now) / width * freed)
            room = idle + freed - used
            if room <= ROUNDING:
                break
            count = min(queue[front, 3], room, most)
            if span > 0.0:
                count = min(count, max(1e-6 * whole, whole * (now + width - available) / span))
            shift = span * (consumed + 0.5 * count / whole)
            middle = used + 0.5 * count
            at = now if middle <= idle else now + width * (middle - idle) / freed
            if not occupied:
                # A fluid is served half an item later on average than single items, the first of which do not wait.
                at -= 0.5 * mean
            start = max(queue[front, 0] + shift, at)
            used += count
            queued = queue[front, 1] + shift
            # Parts of a cohort with equal waits in one slot form one entry, and leave as one: arrivals at the next operator
            # are known to a slot only.
            again = not occupied and entered == front
            if again and abs(start - queued - (starts[started - 1, 0] - starts[started - 1, 1])) <= width / PARTS:
                part = count / (starts[started - 1, 2] + count)
                starts[started - 1, 0] += part * (start - starts[started - 1, 0])
                starts[started - 1, 1] += part * (queued - starts[started - 1, 1])
                starts[started - 1, 2] += count
            else:
                starts[started] = start, queued, count
                started += 1
            entered = front
            busy += count * mean
            if occupied:
                # Work of k to k + 1 slots that starts at `phase` of this slot ends in slot k or k + 1 from here, with
                # weights 1 - phase and phase; work that would end in this slot ends in the next.
                phase = min(1.0, max(0.0, (start - now) / width))
                carried = 0.0
                for k in range(first, weights.size):
                    share = count * ((1 - phase) * weights[k] + carried)
                    carried = phase * weights[k]
                    row = (head + max(1, k)) % length
                    finishing[row, 0] += share
                    finishing[row, 1] += share * queue[front, 1]
                    finishing[row, 2] += share * queue[front, 2]
                in_service += count
            elif again:
                part = count / (finishes[finished - 1, 2] + count)
                finishes[finished - 1, 0] += part * (start + mean - finishes[finished - 1, 0])
                finishes[finished - 1, 2] += count
            else:
                finishes[finished] = start + mean, queue[front, 2], count
                finished += 1
            queue[front, 3] -= count
            if queue[front, 3] <= ROUNDING:
                front += 1
        head = (head + 1) % length
    return front, starts[:started], finishes[:finished], busy, head


@njit(cache=True)
def judge(  # noqa: PLR0913
    starts: Floats,
    mean: float,
    before: Floats,
    limits: Floats,
    certain: float,
    points: Floats,
    kind: int,
    shape: float,
    samples: Floats,
) -> tuple[float, float, Floats, Floats, Floats]:
    """Return durations of started items: (items, sum, items within each limit, durations, weights).

    Args:
        points: Equally likely service times over their mean.
    """
    early_mean = before.mean()
    step = (starts.shape[0] + GROUPS - 1) // GROUPS
    groups = (starts.shape[0] + step - 1) // step
    waits, weights = np.zeros(groups), np.zeros(groups)
    within = np.zeros(limits.size)
    for k in range(starts.shape[0]):
        wait, count = starts[k, 0] - starts[k, 1], starts[k, 2]
        waits[k // step] += count * wait
        weights[k // step] += count
        for level in range(limits.size):
            if limits[level] == math.inf:  # without a service level all are within it
                within[level] += count
                continue
            chance = 0.0
            for early in before:
                left = limits[level] - wait - early
                if left >= certain * mean:
                    chance += 1.0
                elif left > 0.0:
                    chance += below(kind, shape, samples, left / mean)
            within[level] += count * chance / before.size
    items = weights.sum()
    durations = np.empty(groups * points.size)
    shares = np.empty(groups * points.size)
    for group in range(groups):
        wait = waits[group] / weights[group] if weights[group] > 0 else 0.0  # after many operators a group may be empty
        for k in range(points.size):
            durations[group * points.size + k] = wait + early_mean + mean * points[k]
            shares[group * points.size + k] = weights[group] / points.size
    return items, waits.sum() + items * (mean + early_mean), within, durations, shares


# Equally likely quantiles that approximate a service-time distribution.
POINTS = 20
# Most slots in a monitoring period for services that occupy an instance.
MOST_SLOTS = 512
# Slots in a monitoring period for rate mode; few suffice, because times are interpolated within a slot.
RATE_SLOTS = 128
# Random waiting applies up to this number of instances and this utilisation, and above this fraction of a service time.
MOST_SERVERS, FULL, NEGLIGIBLE = 64, 0.97, 0.002
# Equally likely quantiles that approximate random waiting.
CHANCES = 4
# Bounds the cost of a long overload; keeps a record's wait to a thousandth.
MOST_ROWS = 2048


def _quantiles(shape: Shape) -> Floats:
    levels = (np.arange(POINTS) + 0.5) / POINTS
    match shape.kind:
        case k if k == LOGNORMAL and shape.spread > 0:
            normal = np.array([NormalDist().inv_cdf(level) for level in levels])
            values = np.exp(shape.spread * normal)
        case k if k == EXPONENTIAL:
            values = -np.log1p(-levels)
        case k if k == EMPIRICAL:
            values = shape.samples[(levels * shape.samples.size).astype(np.int64)]
        case _:
            values = np.ones(POINTS)
    return np.asarray(values / values.mean(), dtype=np.float64)


class CohortStation(Station):
    """An operator whose items are served in cohorts."""

    def __init__(self, operator: Operator, stream: int, settings: Settings, seed: int = 0, inputs: int = 1) -> None:
        super().__init__(operator, stream, settings, seed, inputs)
        self.queue = np.zeros((0, 6))
        self.grain = 0.0
        self.comes = self.leaves = 0.0
        self.finishing = np.zeros((1, 3))
        self.head = 0
        self.width = 0.0
        self.slot = 0
        self.weights = np.zeros(0)
        self.first = 0
        self.points = _quantiles(self.shape)
        self.certain = math.inf
        self.before = np.zeros(1)
        self._planned = (-1.0, -1.0)
        self._means: Floats | None = None
        self._typical, self._instances = 0.0, 0
        self._waits, self._works = 0.0, 0.0

    @property
    def queued(self) -> float:
        return self._waits + (sum(flow.total for flow in self.waiting) if len(self.waiting) > 1 else 0.0)

    @property
    def in_service(self) -> float:
        return self._works

    @property
    def unfinished(self) -> bool:
        return self._waits > 1e-6 or self._works > 1e-6 or any(self.inbox)

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        working = self.in_service
        if not lost or working <= ROUNDING or not rows.size:
            return
        share = rows.size / max(1, int(np.isfinite(self.crew.free).sum()))
        total, queued, born = self.finishing.sum(axis=0)
        self.finishing *= 1 - share
        self._works -= total * share
        self._waits += total * share
        front = np.array([[queued / total, queued / total, born / total, total * share, total * share, 0.0]])
        self.queue = np.concatenate([front, self.queue])

    def advance(self, begin: float, end: float, mean: Floats) -> Items:
        """Serve the slots that end by `end`; return the emitted items, some later than `end`."""
        crew = self.crew
        if mean is not self._means:
            placed = crew.free < math.inf
            self._means, self._instances = mean, int(np.count_nonzero(placed))
            # Fast instances take more items, so together they serve at the harmonic mean of the service times.
            served = float((1 / mean[placed]).sum())
            self._typical = self._instances / served if self._instances else self.work / self.operator.cores
        typical = self._typical
        self._plan(typical, begin)
        arrivals = self._arrived(end)
        slots = int(end / self.width + 1e-6) - self.slot
        self.queue, starts, emitted, self.head, done, self._waits, self._works = work_off(
            self.queue, arrivals.times, arrivals.born, arrivals.counts, self.grain,
            self.finishing, self.head, self.slot * self.width, slots, self.width, typical, crew.free, crew.busy,
            self.weights, self.first, typical >= 2 * self.width, self.selectivity * len(self.waiting),
        )  # fmt: skip
        if self.queue.shape[0] > MOST_ROWS + 1:
            self.queue = paired(self.queue)
        if slots <= 0:
            return NOTHING
        self.slot += slots
        if starts.shape[0]:
            rate = arrivals.total / (end - begin)
            self._count(starts, typical, self._early(rate, typical, self._instances))
        self.period.done += done
        if not done or self.selectivity == 0:
            return NOTHING
        self.period.emitted += done * self.selectivity * len(self.waiting)
        return Items(*emitted)

    def _plan(self, mean: float, begin: float) -> None:
        if self.width and abs(mean / self._planned[0] - 1) < 1e-6:
            return
        monitor = self.settings.monitor
        slots = min(MOST_SLOTS, math.ceil(monitor * self.settings.cohort_slots / mean))
        width = monitor / (slots if mean >= 2 * monitor / slots else RATE_SLOTS)
        old, old_head, old_width = self.finishing, self.head, self.width
        self._planned = (mean, width)
        shape = self.shape
        longest = max(4.0, 3 * float(self.points[-1]))
        count = max(1, math.ceil(longest * mean / width))
        # Slots with a negligible chance of finishing are cut off at both ends.
        chance = np.array([below(*shape, k * width / mean) for k in range(count + 1)])
        self.certain = 2.0
        while below(*shape, self.certain) < 1 - 1e-12:
            self.certain *= 2
        self.first = max(0, int(np.searchsorted(chance, ROUNDING)) - 1)
        count = min(count, int(np.searchsorted(chance, 1 - ROUNDING)) + 1)
        chance = chance[: count + 1]
        chance[-1] = 1.0  # the tail counts as finishing in the last slot
        self.weights = np.append(np.diff(chance), 0.0)  # the extra slot takes what the phase shifts
        self.finishing = np.zeros((count + 1, 3))
        self.head = 0
        if width != old_width:
            self.width = width
            self.slot = int(begin / width + 1e-6)
        for k in range(old.shape[0]):
            row = min(count, int(k * old_width / width)) if old_width else 0
            self.finishing[row] += old[(old_head + k) % old.shape[0]]

    def _early(self, rate: float, mean: float, instances: int) -> Floats:
        """Return equally likely seconds before the fluid queue: messaging plus random waiting."""
        # Allen and Cunneen's G/G/c and Whitt's queueing network analyser (1983). A source's variability is 0, because the
        # flow contains its bursts.
        if self.messaging is not None and not self.before.any():
            self.before = self.messaging.mean * _quantiles(Shape(LOGNORMAL, self.messaging.spread, self.shape.samples))
        if not instances:
            return self.before
        service, usage = self.service.squared_variation, min(1.0, rate * mean / instances)
        self.leaves = 1 + (1 - usage**2) * (self.comes - 1) + usage**2 * (max(service, 0.2) - 1) / math.sqrt(instances)
        if instances > MOST_SERVERS or not 0 < usage < FULL:
            return self.before
        chance = erlang_c(instances, rate * mean)
        waits = waiting_time(rate, mean, instances, self.comes + service - 1, chance)
        if waits < NEGLIGIBLE * mean:
            return self.before
        levels = (np.arange(CHANCES) + 0.5) / CHANCES
        late = np.maximum(0.0, np.log(chance / (1 - levels)))
        if not late.any():
            late[-1] = 1.0
        late *= waits / late.mean()
        return np.asarray((self.before[:, None] + late).ravel(), dtype=np.float64)

    def _count(self, starts: Floats, mean: float, before: Floats) -> None:
        items, delay, within, durations, weights = judge(
            starts, mean, before, self.limits, self.certain, self.points, *self.shape
        )
        self.period.judged += items
        self.period.delay += delay
        self.period.within = self.period.within + within
        self.durations.append(Items(durations, weights, weights))

    def _matched(self) -> Items:
        reach = [np.cumsum(flow.counts) for flow in self.waiting]
        whole = min((float(total[-1]) if total.size else 0.0) for total in reach)
        if whole <= ROUNDING:
            return NOTHING
        cuts = np.unique(np.concatenate([np.minimum(total, whole) for total in reach]))
        counts = np.diff(cuts, prepend=0.0)
        cuts, counts = cuts[counts > ROUNDING], counts[counts > ROUNDING]
        rows = [np.minimum(np.searchsorted(total, cuts - ROUNDING), total.size - 1) for total in reach]
        times = np.max([flow.times[row] for flow, row in zip(self.waiting, rows, strict=True)], axis=0)
        born = np.min([flow.born[row] for flow, row in zip(self.waiting, rows, strict=True)], axis=0)
        self.waiting = [_without(flow, whole) for flow in self.waiting]
        return Items(times, born, counts)


def paired(queue: Floats) -> Floats:
    """Merge neighbouring rows of `queue`, except the first, which may be partly taken."""
    rest = queue[1:]
    ends = rest[:, 0] + rest[:, 5]
    firsts = neighbours(rest[:, 0], ends, MOST_ROWS)
    lasts = np.append(firsts[1:], rest.shape[0]) - 1
    count = np.add.reduceat(rest[:, 4], firsts)
    both = rest[firsts]
    both[:, 2] = np.add.reduceat(rest[:, 2] * rest[:, 4], firsts) / count
    both[:, 3] = both[:, 4] = count
    both[:, 5] = np.maximum(rest[firsts, 5], ends[lasts] - both[:, 0])
    return np.concatenate([queue[:1], both])


def _without(flow: Items, count: float) -> Items:
    left = np.minimum(flow.counts, np.maximum(0.0, np.cumsum(flow.counts) - count))
    keep = left > ROUNDING
    return Items(flow.times[keep], flow.born[keep], left[keep])
