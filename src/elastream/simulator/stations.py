"""One simulated operator: its queue, instances and counters.

`ItemStation` serves single items; `cohorts.CohortStation` serves cohorts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from elastream.core.frames import Floats
from elastream.core.ring import Ring
from elastream.dataflow.operators import Operator
from elastream.simulator.draws import DETERMINISTIC, EMPIRICAL, EXPONENTIAL, LOGNORMAL, factor, sequence
from elastream.simulator.settings import Distribution, Service, Settings
from elastream.units import ROUNDING


@njit(cache=True)
def _sift_down(heap: NDArray[np.int64], free: Floats, size: int, at: int) -> None:
    moved = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            free[heap[right]] < free[heap[child]] or (free[heap[right]] == free[heap[child]] and heap[right] < heap[child])
        ):
            child = right
        other = heap[child]
        if free[other] < free[moved] or (free[other] == free[moved] and other < moved):
            heap[at] = other
            at = child
        else:
            break
    heap[at] = moved


@njit(cache=True)
def work_off(  # noqa: C901, PLR0913
    queued: Floats,
    born: Floats,
    begin: float,
    end: float,
    mean: Floats,
    free: Floats,
    finish: Floats,
    finish_queued: Floats,
    finish_born: Floats,
    busy: Floats,
    leaving: Floats,
    kind: int,
    shape: float,
    samples: Floats,
    seed: int,
    stream: int,
    number: int,
    messaging: float,
    messaging_shape: float,
    messaging_stream: int,
    each: float,
    done_before: int,
    limits: Floats,
) -> tuple[int, int, Floats, Floats, Floats, float, Floats]:
    """Serve a station's queue in [begin, end).

    Args:
        queued, born: Queueing and dataflow entry times of waiting items.
        mean: Mean service time by instance (seconds).
        free: Time at which each instance can take an item; updated.
        finish, finish_queued, finish_born: Items in service, inf if idle; updated.
        busy: Seconds worked; added to.
        leaving: Rows (finish, queued, born) of items at removed instances; unfinished ones move to the front.
        number: Draw number of the first waiting item.
        messaging: Mean seconds before the queue.
        each: Items out per item in.

    Returns:
        (Items taken, rows left in `leaving`, emitted times and born times, durations, their sum, items within limits).
    """
    instances = free.size
    done = np.empty((queued.size + instances + leaving.shape[0], 3))
    count = 0
    for i in range(instances):
        if finish[i] < math.inf:
            busy[i] += max(0.0, min(finish[i], end) - begin)
            if finish[i] < end:
                done[count] = finish[i], finish_queued[i], finish_born[i]
                count += 1
                finish[i] = math.inf
    started = 0
    if instances > 0 and queued.size > 0:
        service = sequence(seed, stream)
        heap = np.arange(instances)
        for at in range(instances // 2 - 1, -1, -1):
            _sift_down(heap, free, instances, at)
        while started < queued.size:
            i = heap[0]
            start = max(queued[started], free[i], begin)
            if start >= end:
                break
            stop = start + mean[i] * factor(kind, shape, samples, service, number + started)
            free[i] = stop
            _sift_down(heap, free, instances, 0)
            busy[i] += min(stop, end) - start
            if stop < end:
                done[count] = stop, queued[started], born[started]
                count += 1
            else:
                finish[i], finish_queued[i], finish_born[i] = stop, queued[started], born[started]
            started += 1
    remaining = 0
    for k in range(leaving.shape[0]):
        if leaving[k, 0] < end:
            done[count] = leaving[k]
            count += 1
        else:
            leaving[remaining] = leaving[k]
            remaining += 1
    sort_rows(done, count)
    durations = np.empty(count)
    total = 0.0
    within = np.zeros(limits.size)
    emitted = int(math.floor((done_before + count) * each + ROUNDING) - math.floor(done_before * each + ROUNDING))
    times, births = np.empty(emitted), np.empty(emitted)
    before = sequence(seed, messaging_stream)
    out = 0
    for k in range(count):
        duration = done[k, 0] - done[k, 1]
        if messaging > 0.0:
            duration += messaging * factor(1, messaging_shape, samples, before, done_before + k)
        durations[k] = duration
        total += duration
        for level in range(limits.size):
            if duration <= limits[level]:
                within[level] += 1.0
        if each == 1.0:
            times[k], births[k] = done[k, 0], done[k, 2]
            continue
        # After k finished items, floor(k * each) items have been emitted: whole items, evenly spaced.
        due = int(math.floor((done_before + k + 1) * each + ROUNDING) - math.floor(done_before * each + ROUNDING))
        while out < due:
            times[out], births[out] = done[k, 0], done[k, 2]
            out += 1
    return started, remaining, times, births, durations, total, within


@njit(cache=True)
def sort_rows(rows: Floats, count: int) -> None:
    """Sort the first `count` rows by their first column; insertion suits nearly sorted rows."""
    for k in range(1, count):
        if rows[k, 0] >= rows[k - 1, 0]:
            continue
        first, second, third = rows[k, 0], rows[k, 1], rows[k, 2]
        at = k
        while at > 0 and rows[at - 1, 0] > first:
            rows[at] = rows[at - 1]
            at -= 1
        rows[at] = first, second, third


@njit(cache=True)
def paced(times: Floats, gaps: Floats, previous: float) -> tuple[Floats, float]:
    """Send items over a link that each occupies for `gaps` seconds.

    Returns arrival times, and when the link is free again.
    """
    out = np.empty_like(times)
    for k in range(times.size):
        previous = max(previous, times[k]) + gaps[k]
        out[k] = previous
    return out, previous


EMPTY: Floats = np.zeros(0)
# First random-number stream of messaging; lower ones belong to operators.
MESSAGING_STREAM = 500_000
KINDS = {
    Distribution.DETERMINISTIC: DETERMINISTIC,
    Distribution.LOGNORMAL: LOGNORMAL,
    Distribution.EXPONENTIAL: EXPONENTIAL,
    Distribution.EMPIRICAL: EMPIRICAL,
}


class Items(NamedTuple):
    """Items in transit, sorted by time; `born` is the record's entry into the dataflow."""

    times: Floats
    born: Floats
    counts: Floats

    @property
    def total(self) -> float:
        return float(self.counts.sum())

    def before(self, end: float) -> tuple["Items", "Items"]:
        """Split at `end`: the earlier items, and the rest."""
        if not self.times.size or self.times[-1] < end:
            return self, NOTHING
        cut = int(self.times.searchsorted(end))
        return Items(*(a[:cut] for a in self)), Items(*(a[cut:] for a in self))


NOTHING = Items(EMPTY, EMPTY, EMPTY)
NONE_LEAVING: Floats = np.zeros((0, 3))
ONES: Floats = np.ones(1 << 16)
ONES.flags.writeable = False


def each_one(size: int) -> Floats:
    """Return a read-only array of ones, the counts of single items."""
    return ONES[:size] if size <= ONES.size else np.ones(size)


def joined(flows: Sequence[Items]) -> Items:
    """Merge flows by time; ties keep their order."""
    if len(flows) != 1:
        flows = [flow for flow in flows if flow.times.size]
    if not flows:
        return NOTHING
    if len(flows) == 1:
        return flows[0]
    together = Items(*(np.concatenate(columns) for columns in zip(*flows, strict=True)))
    order = np.argsort(together.times, kind="stable")
    return Items(*(column[order] for column in together))


def neighbours(begins: Floats, ends: Floats, most: int) -> NDArray[np.int64]:
    """Return the first rows of pairs to merge in a long queue.

    Pairs that span more than 4 / `most` of it stay separate, so that old rows do not grow each time.
    """
    even = begins.size // 2 * 2
    first = np.ones(begins.size, dtype=np.bool_)
    first[1:even:2] = ends[1:even:2] - begins[:even:2] > 4 / most * (ends[-1] - begins[0])
    return np.flatnonzero(first)


class Shape(NamedTuple):
    kind: int
    spread: float
    samples: Floats

    @classmethod
    def of(cls, service: Service) -> "Shape":
        samples = np.sort(np.asarray(service.samples or (1.0,), dtype=np.float64))
        return cls(KINDS[service.distribution], math.sqrt(math.log1p(service.variation**2)), samples / samples.mean())


@dataclass
class Crew:
    """Instances of one operator, sorted by `index`.

    Attributes:
        free: Time at which it can take an item; inf if unplaced.
        finish, queued, born: Item in service; `finish` is inf without one.
    """

    index: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    host: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    free: Floats = field(default_factory=lambda: np.zeros(0))
    finish: Floats = field(default_factory=lambda: np.zeros(0))
    queued: Floats = field(default_factory=lambda: np.zeros(0))
    born: Floats = field(default_factory=lambda: np.zeros(0))
    busy: Floats = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return self.index.size

    def add(self, hosts: Sequence[int], free: Sequence[float]) -> None:
        count = len(hosts)
        unused = np.setdiff1d(np.arange(len(self) + count), self.index)[:count]
        blank = np.zeros(count)
        self._take(
            np.concatenate([self.index, unused]),
            np.concatenate([self.host, np.asarray(hosts, dtype=np.int64)]),
            np.concatenate([self.free, np.asarray(free, dtype=np.float64)]),
            np.concatenate([self.finish, np.full(count, math.inf)]),
            np.concatenate([self.queued, blank]),
            np.concatenate([self.born, blank]),
            np.concatenate([self.busy, blank]),
        )
        order = np.argsort(self.index)
        self._take(*(column[order] for column in self._columns))

    def remove(self, rows: NDArray[np.int64]) -> None:
        self._take(*(np.delete(column, rows) for column in self._columns))

    @property
    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.index, self.host, self.free, self.finish, self.queued, self.born, self.busy

    def _take(self, *columns: NDArray[Any]) -> None:
        self.index, self.host, self.free, self.finish, self.queued, self.born, self.busy = columns


@dataclass
class Counters:
    """Counters of an operator, for a period or the run.

    Attributes:
        judged: Items of known duration (cohorts: from their start).
        within: Items within the service level, by factor.
        delay: Sum of durations (seconds).
        available, busy: Instance-seconds available and worked.
    """

    within: Floats
    arrived: float = 0.0
    done: float = 0.0
    emitted: float = 0.0
    delay: float = 0.0
    judged: float = 0.0
    available: float = 0.0
    busy: float = 0.0

    def add(self, other: "Counters") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Station:
    """Base of the stations.

    Attributes:
        limits: Longest allowed durations (seconds) by factor.
        single: True if `durations` are of single items.
        ring: Ring that places state partitions; None: most room.
    """

    single = False

    def __init__(self, operator: Operator, stream: int, settings: Settings, seed: int = 0, inputs: int = 1) -> None:
        self.operator = operator
        self.name = operator.name
        self.stream = stream
        self.settings = settings
        self.seed = seed
        self.service = settings.service(operator.name)
        self.shape = Shape.of(self.service)
        self.messaging = settings.messaging.get(operator.name)
        self.limits = np.array(settings.factors) * self.limit
        self.crew = Crew()
        self.work = 0.0
        self.selectivity = 1.0
        self.scalings = 0
        self.inbox: list[list[Items]] = [[] for _ in range(inputs)]
        self.waiting: list[Items] = [NOTHING] * inputs
        self.period = Counters(np.zeros(self.limits.size))
        self.total = Counters(np.zeros(self.limits.size))
        self.durations: list[Items] = []
        self.aside: list[tuple[int, int, Items]] = []
        self.ring: Ring | None = None

    @property
    def limit(self) -> float:
        return math.inf if self.operator.max_duration is None else self.operator.max_duration

    @property
    def queued(self) -> float:
        raise NotImplementedError

    @property
    def in_service(self) -> float:
        raise NotImplementedError

    @property
    def unfinished(self) -> bool:
        """True if an item is queued, in service or in transit to it."""
        raise NotImplementedError

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Remove instances. They finish their items; lost ones return them to the queue's head."""
        raise NotImplementedError

    def advance(self, begin: float, end: float, mean: Floats) -> Items:
        """Serve in [begin, end) with `mean` service times (seconds); return emitted items."""
        raise NotImplementedError

    @property
    def backlog(self) -> float:
        """Items reported as backlog; NaN without a queue."""
        return self.queued + sum(flow.total for _, _, flow in self.aside)

    @property
    def needs(self) -> tuple[float, float]:
        return self.operator.cores, self.operator.memory

    @property
    def placed(self) -> bool:
        return True

    @property
    def shares(self) -> Floats:
        return np.full(len(self.crew), 1 / max(1, len(self.crew)))

    def receive(self, flow: Items, port: int) -> None:
        """Add items in transit to input `port`; times may be in the future."""
        if flow.times.size:
            self.inbox[port].append(flow)

    def _arrived(self, end: float) -> Items:
        for port, flows in enumerate(self.inbox):
            if flows:
                arrivals, later = joined(flows).before(end)
                self.inbox[port] = [later] if later.times.size else []
                self.period.arrived += float(arrivals.times.size) if self.single else arrivals.total
                if len(self.waiting) == 1:
                    return arrivals
                left = self.waiting[port]
                self.waiting[port] = Items(*(np.concatenate(pair) for pair in zip(left, arrivals, strict=True)))
        return self._matched() if len(self.waiting) > 1 else NOTHING

    def _matched(self) -> Items:
        raise NotImplementedError


class ItemQueue:
    """Waiting items in over-allocated arrays, to avoid copies."""

    def __init__(self) -> None:
        self._times, self._born = np.empty(256), np.empty(256)
        self._head = self._tail = 0

    def __len__(self) -> int:
        return self._tail - self._head

    @property
    def flow(self) -> Items:
        head, tail = self._head, self._tail
        return Items(self._times[head:tail], self._born[head:tail], each_one(tail - head))

    def take(self, count: int) -> None:
        self._head += count
        if self._head == self._tail:
            self._head = self._tail = 0

    def add(self, flow: Items) -> None:
        size = flow.times.size
        if not size:
            return
        if len(self) and flow.times[0] < self._times[self._tail - 1]:
            flow = joined([self.flow, flow])
            size, self._head, self._tail = flow.times.size, 0, 0
        if self._tail + size > self._times.size:
            waiting, room = self.flow, max(2 * (len(self) + size), self._times.size)
            self._times, self._born = np.empty(room), np.empty(room)
            self._head, self._tail = 0, waiting.times.size
            self._times[: self._tail], self._born[: self._tail] = waiting.times, waiting.born
        self._times[self._tail : self._tail + size] = flow.times
        self._born[self._tail : self._tail + size] = flow.born
        self._tail += size


class ItemStation(Station):
    single = True

    def __init__(self, operator: Operator, stream: int, settings: Settings, seed: int = 0, inputs: int = 1) -> None:
        super().__init__(operator, stream, settings, seed, inputs)
        self.queue = ItemQueue()
        self.leaving = NONE_LEAVING
        self.next_number = 0
        self.done = 0

    @property
    def queued(self) -> float:
        return float(len(self.queue) + sum(flow.times.size for flow in self.waiting))

    @property
    def in_service(self) -> float:
        return float(np.isfinite(self.crew.finish).sum() + self.leaving.shape[0])

    @property
    def unfinished(self) -> bool:
        return bool(len(self.queue) or self.in_service or any(self.inbox))

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        crew = self.crew
        working = rows[np.isfinite(crew.finish[rows])]
        if lost:
            again = working[np.argsort(crew.queued[working], kind="stable")]
            behind, self.queue = self.queue.flow, ItemQueue()
            self.queue.add(Items(crew.queued[again], crew.born[again], each_one(again.size)))
            self.queue.add(behind)
        else:
            going = np.column_stack([crew.finish[working], crew.queued[working], crew.born[working]])
            self.leaving = np.concatenate([self.leaving, going])
        crew.finish[rows] = math.inf

    def advance(self, begin: float, end: float, mean: Floats) -> Items:
        arrivals = self._arrived(end)
        at_once = not len(self.queue)
        if not at_once:
            self.queue.add(arrivals)
        waiting = arrivals if at_once else self.queue.flow
        crew, shape, messaging = self.crew, self.shape, self.messaging
        started, remaining, times, born, durations, delay, within = work_off(
            waiting.times, waiting.born, float(begin), float(end), mean,
            crew.free, crew.finish, crew.queued, crew.born, crew.busy, self.leaving,
            shape.kind, shape.spread, shape.samples, self.seed, self.stream, self.next_number,
            messaging.mean if messaging else 0.0, messaging.spread if messaging else 0.0, MESSAGING_STREAM + self.stream,
            self.selectivity * len(self.waiting), self.done, self.limits,
        )  # fmt: skip
        if not at_once:
            self.queue.take(started)
        elif started < arrivals.times.size:
            self.queue.add(Items(*(column[started:] for column in arrivals)))
        if remaining < self.leaving.shape[0]:
            self.leaving = self.leaving[:remaining]
        self.next_number += started
        done = durations.size
        if not done:
            return NOTHING
        self.done += done
        period = self.period
        period.done += done
        period.judged += done
        period.delay += delay
        period.within = period.within + within
        period.emitted += times.size
        self.durations.append(Items(durations, durations, each_one(done)))
        return Items(times, born, each_one(times.size))

    def _matched(self) -> Items:
        whole = min(flow.times.size for flow in self.waiting)
        if not whole:
            return NOTHING
        ready = np.max([flow.times[:whole] for flow in self.waiting], axis=0)
        born = np.min([flow.born[:whole] for flow in self.waiting], axis=0)
        self.waiting = [Items(*(column[whole:] for column in flow)) for flow in self.waiting]
        return Items(ready, born, each_one(whole))
