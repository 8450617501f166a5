"""One operator of the simulated dataflow: its queue, its instances, and what was counted at it.

State is arrays, one entry an instance (`Crew`); how items pass the queue is `ItemStation` here and `CohortStation` in
`cohorts`, which share everything else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastream.model.graph import Operator
from elastream.model.observation import Floats
from elastream.simulation.draws import DETERMINISTIC, EMPIRICAL, EXPONENTIAL, LOGNORMAL
from elastream.simulation.serving import merged, work_off
from elastream.simulation.settings import Distribution, Messaging, Service

__all__ = ["Crew", "Flow", "ItemStation", "Shape", "Station", "Tally"]

EMPTY: Floats = np.zeros(0)
MESSAGING_STREAM = 500_000
"""Streams of random numbers from here on belong to messaging, those below to operators."""
KINDS = {
    Distribution.DETERMINISTIC: DETERMINISTIC,
    Distribution.LOGNORMAL: LOGNORMAL,
    Distribution.EXPONENTIAL: EXPONENTIAL,
    Distribution.EMPIRICAL: EMPIRICAL,
}


class Flow(NamedTuple):
    """Items on their way, sorted by time. born: when their record entered the dataflow. counts: 1 each for items."""

    times: Floats
    born: Floats
    counts: Floats

    @property
    def total(self) -> float:
        """Items in it."""
        return float(self.counts.sum())

    def before(self, end: float) -> tuple["Flow", "Flow"]:
        """What comes before `end`, and the rest."""
        if not self.times.size or self.times[-1] < end:
            return self, NOTHING
        cut = int(self.times.searchsorted(end))
        return Flow(*(a[:cut] for a in self)), Flow(*(a[cut:] for a in self))


NOTHING = Flow(EMPTY, EMPTY, EMPTY)
NOBODY: Floats = np.zeros((0, 3))
MANY = 5
"""Flows from which on sorting them all is quicker than merging them one after the other."""
ONES: Floats = np.ones(1 << 16)
ONES.flags.writeable = False


def each_one(size: int) -> Floats:
    """`size` ones, read-only: the counts of items that travel alone."""
    return ONES[:size] if size <= ONES.size else np.ones(size)


def joined(flows: Sequence[Flow]) -> Flow:
    """All of `flows`, sorted by time; ties in the order given."""
    if len(flows) != 1:
        flows = [flow for flow in flows if flow.times.size]
    if not flows:
        return NOTHING
    if len(flows) < MANY:
        together = flows[0]
        for flow in flows[1:]:
            together = Flow(*merged(*together, *flow))
        return together
    together = Flow(*(np.concatenate(columns) for columns in zip(*flows, strict=True)))
    order = np.argsort(together.times, kind="stable")
    return Flow(*(column[order] for column in together))


class Shape(NamedTuple):
    """A service-time distribution as the inner loops take it."""

    kind: int
    spread: float
    samples: Floats

    @classmethod
    def of(cls, service: Service) -> "Shape":
        """The shape of `service`, its mean 1."""
        samples = np.sort(np.asarray(service.samples or (1.0,), dtype=np.float64))
        return cls(KINDS[service.distribution], math.sqrt(math.log1p(service.variation**2)), samples / samples.mean())


@dataclass
class Crew:
    """The instances of one operator, an array entry each, sorted by `index`.

    host: row of the host, -1 where placed nowhere. free: when it takes its next item, inf while placed nowhere.
    finish, queued, born: the item in hand, `finish` inf where there is none. busy: seconds worked this period.
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
        """New instances with the lowest indices not in use."""
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
        """Take these rows out; what they have in hand goes with them."""
        self._take(*(np.delete(column, rows) for column in self._columns))

    @property
    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.index, self.host, self.free, self.finish, self.queued, self.born, self.busy

    def _take(self, *columns: NDArray[Any]) -> None:
        self.index, self.host, self.free, self.finish, self.queued, self.born, self.busy = columns


@dataclass
class Tally:
    """What happened at an operator, in a monitoring period or in all.

    judged: items whose duration is known; cohorts are judged as they start. within: those of them within the service level,
    by factor. delay: sum of their seconds from queued to done. given, busy:
    instance-seconds there were and were worked.
    """

    within: Floats
    arrived: float = 0.0
    done: float = 0.0
    emitted: float = 0.0
    delay: float = 0.0
    judged: float = 0.0
    given: float = 0.0
    busy: float = 0.0

    def add(self, other: "Tally") -> None:
        """Add a period to a total."""
        self.within = self.within + other.within
        self.arrived += other.arrived
        self.done += other.done
        self.emitted += other.emitted
        self.delay += other.delay
        self.given += other.given
        self.judged += other.judged
        self.busy += other.busy


class Station:
    """What item and cohort stations share. `inputs` > 1 makes it a join of so many inputs.

    `limits`: seconds that a record may take, by factor of the service level; inf where nothing was promised. `single`:
    whether `durations` are those of single items.
    """

    single = False

    def __init__(self, operator: Operator, stream: int, service: Service, inputs: int, limits: Floats, seed: int) -> None:
        self.operator = operator
        self.name = operator.name
        self.stream = stream
        self.seed = seed
        self.service = service
        self.shape = Shape.of(service)
        self.messaging: Messaging | None = None
        self.limits = limits
        self.crew = Crew()
        self.work = 0.0
        self.selectivity = 1.0
        self.scalings = 0
        self.inbox: list[list[Flow]] = [[] for _ in range(inputs)]
        self.waiting: list[Flow] = [NOTHING] * inputs
        self.period = Tally(np.zeros(limits.size))
        self.total = Tally(np.zeros(limits.size))
        self.durations: list[Flow] = []

    @property
    def limit(self) -> float:
        """The operator's service level, seconds; inf where nothing was promised."""
        return math.inf if self.operator.max_duration is None else self.operator.max_duration

    @property
    def queued(self) -> float:
        """Items that wait, those of a join for their partners too."""
        raise NotImplementedError

    @property
    def in_service(self) -> float:
        """Items being worked on."""
        raise NotImplementedError

    @property
    def unfinished(self) -> bool:
        """Whether an item is queued, worked on or on its way here; the lone half of a join is not."""
        raise NotImplementedError

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Take instances away. What they have in hand they finish, or, where they are lost, it is queued again in front."""
        raise NotImplementedError

    def advance(self, begin: float, end: float, mean: Floats) -> Flow:
        """Work in [begin, end); returns what is emitted. mean: mean service time on each instance, seconds."""
        raise NotImplementedError

    @property
    def backlog(self) -> float:
        """What is reported as queued; NaN where the operator has no queue of its own."""
        return self.queued

    @property
    def needs(self) -> tuple[float, float]:
        """Cores and megabytes that an instance reserves on its host."""
        return self.operator.cores, self.operator.memory

    @property
    def placed(self) -> bool:
        """Whether its instances lie on hosts."""
        return True

    @property
    def shares(self) -> Floats:
        """Part of the operator's records that each instance gets, in the order of the crew: the same for all."""
        return np.full(len(self.crew), 1 / max(1, len(self.crew)))

    def receive(self, flow: Flow, port: int) -> None:
        """Items on their way to input `port`; they may still be travelling."""
        if flow.times.size:
            self.inbox[port].append(flow)

    def _arrived(self, end: float) -> Flow:
        """What reached the queue by `end`: all inputs merged, or what a join could put together."""
        for port, flows in enumerate(self.inbox):
            if flows:
                came, later = joined(flows).before(end)
                self.inbox[port] = [later] if later.times.size else []
                self.period.arrived += float(came.times.size) if self.single else came.total
                if len(self.waiting) == 1:
                    return came
                left = self.waiting[port]
                self.waiting[port] = Flow(*(np.concatenate(pair) for pair in zip(left, came, strict=True)))
        return self._matched() if len(self.waiting) > 1 else NOTHING

    def _matched(self) -> Flow:
        raise NotImplementedError


class Line:
    """Items that wait, oldest first, in arrays with room to spare: adding and taking cost what moves, not what waits."""

    def __init__(self) -> None:
        self._times, self._born = np.empty(256), np.empty(256)
        self._head = self._tail = 0

    def __len__(self) -> int:
        return self._tail - self._head

    @property
    def flow(self) -> Flow:
        """All of them, as views that hold until the next change."""
        head, tail = self._head, self._tail
        return Flow(self._times[head:tail], self._born[head:tail], each_one(tail - head))

    def take(self, count: int) -> None:
        """The first `count` go."""
        self._head += count
        if self._head == self._tail:
            self._head = self._tail = 0

    def add(self, flow: Flow) -> None:
        """More items, which came after those that wait or are sorted in."""
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
    """Items one by one."""

    single = True

    def __init__(self, operator: Operator, stream: int, service: Service, inputs: int, limits: Floats, seed: int) -> None:
        super().__init__(operator, stream, service, inputs, limits, seed)
        self.queue = Line()
        self.leaving = NOBODY
        self.taken = 0
        self.done = 0

    @property
    def queued(self) -> float:
        """Items that wait, those of a join for their partners too."""
        return float(len(self.queue) + sum(flow.times.size for flow in self.waiting))

    @property
    def in_service(self) -> float:
        """Items being worked on."""
        return float(np.isfinite(self.crew.finish).sum() + self.leaving.shape[0])

    @property
    def unfinished(self) -> bool:
        """Whether an item is queued, worked on or on its way here; the lone half of a join is not."""
        return bool(len(self.queue) or self.in_service or any(self.inbox))

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Take instances away. What they have in hand they finish, or, where they are lost, it is queued again in front."""
        crew = self.crew
        held = rows[np.isfinite(crew.finish[rows])]
        if lost:
            again = held[np.argsort(crew.queued[held], kind="stable")]
            behind, self.queue = self.queue.flow, Line()
            self.queue.add(Flow(crew.queued[again], crew.born[again], each_one(again.size)))
            self.queue.add(behind)
        else:
            going = np.column_stack([crew.finish[held], crew.queued[held], crew.born[held]])
            self.leaving = np.concatenate([self.leaving, going])
        crew.finish[rows] = math.inf

    def advance(self, begin: float, end: float, mean: Floats) -> Flow:
        """Work in [begin, end); returns what is emitted. mean: mean service time on each instance, seconds."""
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
            self.queue.add(Flow(*(column[taken:] for column in came)))
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
        self.durations.append(Flow(durations, durations, each_one(done)))
        return Flow(times, born, each_one(times.size))

    def _matched(self) -> Flow:
        whole = min(flow.times.size for flow in self.waiting)
        if not whole:
            return NOTHING
        ready = np.max([flow.times[:whole] for flow in self.waiting], axis=0)
        born = np.min([flow.born[:whole] for flow in self.waiting], axis=0)
        self.waiting = [Flow(*(column[whole:] for column in flow)) for flow in self.waiting]
        return Flow(ready, born, each_one(whole))
