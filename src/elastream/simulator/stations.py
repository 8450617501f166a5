"""Simulates one operator: its queue, its instances, and its counters.

Instance state is arrays with one entry per instance (`Crew`). `ItemStation` serves single items; `CohortStation` (module
`cohorts`) serves cohorts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats
from elastream.core.ring import Ring
from elastream.dataflow.operators import Operator
from elastream.simulator.draws import DETERMINISTIC, EMPIRICAL, EXPONENTIAL, LOGNORMAL
from elastream.simulator.serving import merged, work_off
from elastream.simulator.settings import Distribution, Service, Settings

EMPTY: Floats = np.zeros(0)
MESSAGING_STREAM = 500_000
"""First random-number stream of messaging; those below belong to operators."""
KINDS = {
    Distribution.DETERMINISTIC: DETERMINISTIC,
    Distribution.LOGNORMAL: LOGNORMAL,
    Distribution.EXPONENTIAL: EXPONENTIAL,
    Distribution.EMPIRICAL: EMPIRICAL,
}


class Items(NamedTuple):
    """Items in transit, sorted by time; shape (entries,) each. born: when their record entered the dataflow. counts: 1 for
    single items."""

    times: Floats
    born: Floats
    counts: Floats

    @property
    def total(self) -> float:
        return float(self.counts.sum())

    def before(self, end: float) -> tuple["Items", "Items"]:
        """Split at `end`: the items with earlier times, and the rest."""
        if not self.times.size or self.times[-1] < end:
            return self, NOTHING
        cut = int(self.times.searchsorted(end))
        return Items(*(a[:cut] for a in self)), Items(*(a[cut:] for a in self))


NOTHING = Items(EMPTY, EMPTY, EMPTY)
NONE_LEAVING: Floats = np.zeros((0, 3))
MANY = 5
"""Number of flows from which sorting all at once is faster than merging pairwise."""
ONES: Floats = np.ones(1 << 16)
ONES.flags.writeable = False


def each_one(size: int) -> Floats:
    """`size` ones, read-only: the counts of single items."""
    return ONES[:size] if size <= ONES.size else np.ones(size)


def joined(flows: Sequence[Items]) -> Items:
    """Merge `flows` by time; ties keep the given order."""
    if len(flows) != 1:
        flows = [flow for flow in flows if flow.times.size]
    if not flows:
        return NOTHING
    if len(flows) < MANY:
        together = flows[0]
        for flow in flows[1:]:
            together = Items(*merged(*together, *flow))
        return together
    together = Items(*(np.concatenate(columns) for columns in zip(*flows, strict=True)))
    order = np.argsort(together.times, kind="stable")
    return Items(*(column[order] for column in together))


def neighbours(begins: Floats, ends: Floats, most: int) -> NDArray[np.int64]:
    """First rows of the groups into which rows of a queue are put together to make it shorter: two neighbours each.

    begins, ends: seconds, of each row. Two that would span more than 4 / `most` of the queue stay apart, so that old rows
    do not grow beyond that each time the queue is made shorter.
    """
    even = begins.size // 2 * 2
    first = np.ones(begins.size, dtype=np.bool_)
    first[1:even:2] = ends[1:even:2] - begins[:even:2] > 4 / most * (ends[-1] - begins[0])
    return np.flatnonzero(first)


class Shape(NamedTuple):
    """A service-time distribution in the form that the compiled loops take (see `draws.factor`)."""

    kind: int
    spread: float
    samples: Floats

    @classmethod
    def of(cls, service: Service) -> "Shape":
        """The shape of `service`, normalised to a mean of 1."""
        samples = np.sort(np.asarray(service.samples or (1.0,), dtype=np.float64))
        return cls(KINDS[service.distribution], math.sqrt(math.log1p(service.variation**2)), samples / samples.mean())


@dataclass
class Crew:
    """Instances of one operator, one array entry each, sorted by `index`.

    host: row of the host, -1 if unplaced. free: when it can take its next item, inf if unplaced. finish, queued, born: of
    the item in service, `finish` inf if there is none. busy: seconds worked in this monitoring period.
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
    """Counters of an operator, for a monitoring period or the whole run.

    judged: items whose duration is known (cohorts: at their start). within: those within the service level, by factor.
    delay: sum of their seconds from queued to done. given, busy: instance-seconds available and worked.
    """

    within: Floats
    arrived: float = 0.0
    done: float = 0.0
    emitted: float = 0.0
    delay: float = 0.0
    judged: float = 0.0
    given: float = 0.0
    busy: float = 0.0

    def add(self, other: "Counters") -> None:
        self.within = self.within + other.within
        self.arrived += other.arrived
        self.done += other.done
        self.emitted += other.emitted
        self.delay += other.delay
        self.given += other.given
        self.judged += other.judged
        self.busy += other.busy


class Station:
    """Base of the stations. inputs: number of inputs that it joins; 1: it merges them.

    limits: largest duration allowed, seconds, by factor of the service level; inf without one. single: whether `durations`
    are those of single items. aside: items of a newer composition than the operator has taken, each flow with its epoch and
    input. ring: by which its state partitions are placed, of hosts that are left; None: where there is room.
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
        """The operator's service level, seconds; inf if it declares none."""
        return math.inf if self.operator.max_duration is None else self.operator.max_duration

    @property
    def queued(self) -> float:
        """Items waiting, including those of a join that wait for a partner."""
        raise NotImplementedError

    @property
    def in_service(self) -> float:
        """Items being worked on."""
        raise NotImplementedError

    @property
    def unfinished(self) -> bool:
        """Whether an item is queued, in service or in transit to here; a join's unmatched items do not count."""
        raise NotImplementedError

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Remove instances. They finish their items in service; if they are lost, these return to the head of the queue."""
        raise NotImplementedError

    def advance(self, begin: float, end: float, mean: Floats) -> Items:
        """Serve in [begin, end); returns the emitted items. mean: mean service time on each instance, seconds."""
        raise NotImplementedError

    @property
    def backlog(self) -> float:
        """Items reported as backlog; NaN if the operator has no queue of its own."""
        return self.queued + sum(flow.total for _, _, flow in self.aside)

    @property
    def needs(self) -> tuple[float, float]:
        """Cores and megabytes that an instance reserves on its host."""
        return self.operator.cores, self.operator.memory

    @property
    def placed(self) -> bool:
        """Whether its instances are placed on hosts."""
        return True

    @property
    def shares(self) -> Floats:
        """Fraction of the operator's records that each instance gets; shape (instances,), equal by default."""
        return np.full(len(self.crew), 1 / max(1, len(self.crew)))

    def receive(self, flow: Items, port: int) -> None:
        """Add items in transit to input `port`; their times may lie in the future."""
        if flow.times.size:
            self.inbox[port].append(flow)

    def _arrived(self, end: float) -> Items:
        """Items that reached the queue before `end`: all inputs merged, or joined items."""
        for port, flows in enumerate(self.inbox):
            if flows:
                came, later = joined(flows).before(end)
                self.inbox[port] = [later] if later.times.size else []
                self.period.arrived += float(came.times.size) if self.single else came.total
                if len(self.waiting) == 1:
                    return came
                left = self.waiting[port]
                self.waiting[port] = Items(*(np.concatenate(pair) for pair in zip(left, came, strict=True)))
        return self._matched() if len(self.waiting) > 1 else NOTHING

    def _matched(self) -> Items:
        raise NotImplementedError


class ItemQueue:
    """Waiting items, oldest first, in over-allocated arrays: adding and taking do not copy the whole queue."""

    def __init__(self) -> None:
        self._times, self._born = np.empty(256), np.empty(256)
        self._head = self._tail = 0

    def __len__(self) -> int:
        return self._tail - self._head

    @property
    def flow(self) -> Items:
        """All waiting items, as views that are valid until the next change."""
        head, tail = self._head, self._tail
        return Items(self._times[head:tail], self._born[head:tail], each_one(tail - head))

    def take(self, count: int) -> None:
        """Remove the first `count` items."""
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
    """An operator that serves single items."""

    single = True

    def __init__(self, operator: Operator, stream: int, settings: Settings, seed: int = 0, inputs: int = 1) -> None:
        super().__init__(operator, stream, settings, seed, inputs)
        self.queue = ItemQueue()
        self.leaving = NONE_LEAVING
        self.taken = 0
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
        held = rows[np.isfinite(crew.finish[rows])]
        if lost:
            again = held[np.argsort(crew.queued[held], kind="stable")]
            behind, self.queue = self.queue.flow, ItemQueue()
            self.queue.add(Items(crew.queued[again], crew.born[again], each_one(again.size)))
            self.queue.add(behind)
        else:
            going = np.column_stack([crew.finish[held], crew.queued[held], crew.born[held]])
            self.leaving = np.concatenate([self.leaving, going])
        crew.finish[rows] = math.inf

    def advance(self, begin: float, end: float, mean: Floats) -> Items:
        came = self._arrived(end)
        at_once = not len(self.queue)
        if not at_once:
            self.queue.add(came)
        waiting = came if at_once else self.queue.flow
        crew, shape, messaging = self.crew, self.shape, self.messaging
        taken, kept, times, born, durations, delay, within = work_off(
            waiting.times, waiting.born, float(begin), float(end), mean,
            crew.free, crew.finish, crew.queued, crew.born, crew.busy, self.leaving,
            shape.kind, shape.spread, shape.samples, self.seed, self.stream, self.taken,
            messaging.mean if messaging else 0.0, messaging.spread if messaging else 0.0, MESSAGING_STREAM + self.stream,
            self.selectivity * len(self.waiting), self.done, self.limits,
        )  # fmt: skip
        if not at_once:
            self.queue.take(taken)
        elif taken < came.times.size:
            self.queue.add(Items(*(column[taken:] for column in came)))
        if kept < self.leaving.shape[0]:
            self.leaving = self.leaving[:kept]
        self.taken += taken
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
