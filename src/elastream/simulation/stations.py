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
from elastream.simulation.draws import DETERMINISTIC, EMPIRICAL, EXPONENTIAL, LOGNORMAL, factors
from elastream.simulation.serving import judge, serve
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
        cut = int(np.searchsorted(self.times, end, side="left"))
        if cut == self.times.size:
            return self, NOTHING
        return Flow(*(a[:cut] for a in self)), Flow(*(a[cut:] for a in self))


NOTHING = Flow(EMPTY, EMPTY, EMPTY)
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
    if len(flows) == 1:
        return flows[0]
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

    `limits`: seconds that a record may take, by factor of the service level; inf where nothing was promised.
    """

    def __init__(self, operator: Operator, stream: int, service: Service, inputs: int, limits: Floats, seed: int) -> None:
        self.operator = operator
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
    def name(self) -> str:
        """The operator's."""
        return self.operator.name

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
                self.period.arrived += came.total
                if len(self.waiting) == 1:
                    return came
                left = self.waiting[port]
                self.waiting[port] = Flow(*(np.concatenate(pair) for pair in zip(left, came, strict=True)))
        return self._matched() if len(self.waiting) > 1 else NOTHING

    def _matched(self) -> Flow:
        raise NotImplementedError


class ItemStation(Station):
    """Items one by one."""

    def __init__(self, operator: Operator, stream: int, service: Service, inputs: int, limits: Floats, seed: int) -> None:
        super().__init__(operator, stream, service, inputs, limits, seed)
        self.queue = NOTHING
        self.leaving: list[tuple[float, float, float]] = []
        self.taken = 0

    @property
    def queued(self) -> float:
        """Items that wait, those of a join for their partners too."""
        return float(self.queue.times.size + sum(flow.times.size for flow in self.waiting))

    @property
    def in_service(self) -> float:
        """Items being worked on."""
        return float(np.isfinite(self.crew.finish).sum() + len(self.leaving))

    @property
    def unfinished(self) -> bool:
        """Whether an item is queued, worked on or on its way here; the lone half of a join is not."""
        return bool(self.queue.times.size or self.in_service or any(self.inbox))

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Take instances away. What they have in hand they finish, or, where they are lost, it is queued again in front."""
        crew = self.crew
        held = rows[np.isfinite(crew.finish[rows])]
        if lost:
            again = held[np.argsort(crew.queued[held], kind="stable")]
            front = Flow(crew.queued[again], crew.born[again], np.ones(again.size))
            self.queue = Flow(*(np.concatenate(pair) for pair in zip(front, self.queue, strict=True)))
        else:
            self.leaving += [(float(crew.finish[i]), float(crew.queued[i]), float(crew.born[i])) for i in held]
        crew.finish[rows] = math.inf

    def advance(self, begin: float, end: float, mean: Floats) -> Flow:
        """Work in [begin, end); returns what is emitted. mean: mean service time on each instance, seconds."""
        came = self._arrived(end)
        if came.times.size:
            self.queue = came if not self.queue.times.size else joined([self.queue, came])
        crew = self.crew
        taken, finish, queued, born = serve(
            self.queue.times, self.queue.born, begin, end, mean, crew.free, crew.finish, crew.queued, crew.born, crew.busy,
            self.shape.kind, self.shape.spread, self.shape.samples, self.seed, self.stream, self.taken,
        )  # fmt: skip
        self.taken += taken
        if taken:
            self.queue = Flow(*(column[taken:] for column in self.queue))
        if self.leaving:
            going = np.array([item for item in self.leaving if item[0] < end]).reshape(-1, 3)
            self.leaving = [item for item in self.leaving if item[0] >= end]
            finish, queued, born = (np.concatenate(pair) for pair in zip((finish, queued, born), going.T, strict=True))
        if not finish.size:
            return NOTHING
        order = np.argsort(finish, kind="stable")
        finish, born = finish[order], born[order]
        delay = finish - queued[order]
        self._count(delay)
        return self._emitted(finish, born)

    def _with_messaging(self, delay: Floats) -> Floats:
        """`delay` and what each item spent in the messaging system before."""
        if self.messaging is None:
            return delay
        first = int(self.total.done + self.period.done)
        stream = MESSAGING_STREAM + self.stream
        return delay + self.messaging.mean * factors(
            LOGNORMAL, self.messaging.spread, EMPTY, self.seed, stream, first, delay.size
        )

    def _count(self, delay: Floats) -> None:
        delay = self._with_messaging(delay)
        durations = Flow(delay, delay, each_one(delay.size))
        total, within = judge(delay, durations.counts, self.limits)
        self.period.done += delay.size
        self.period.judged += delay.size
        self.period.delay += total
        self.period.within = self.period.within + within
        self.durations.append(durations)

    def _emitted(self, finish: Floats, born: Floats) -> Flow:
        before = self.total.done + self.period.done - finish.size
        each = self.selectivity * len(self.waiting)
        if each != 1.0:
            # Whole items, evenly: the k-th item done brings what is emitted to the floor of k times the selectivity.
            due = np.floor((before + np.arange(finish.size + 1)) * each + 1e-9)
            copies = np.diff(due).astype(np.int64)
            finish, born = np.repeat(finish, copies), np.repeat(born, copies)
        self.period.emitted += finish.size
        return Flow(finish, born, each_one(finish.size))

    def _matched(self) -> Flow:
        whole = min(flow.times.size for flow in self.waiting)
        if not whole:
            return NOTHING
        ready = np.max([flow.times[:whole] for flow in self.waiting], axis=0)
        born = np.min([flow.born[:whole] for flow in self.waiting], axis=0)
        self.waiting = [Flow(*(column[whole:] for column in flow)) for flow in self.waiting]
        return Flow(ready, born, each_one(whole))
