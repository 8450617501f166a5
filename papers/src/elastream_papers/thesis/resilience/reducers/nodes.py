"""A host of the ring: partitions, copies, queue and pending work."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Integers

Bools = NDArray[np.bool_]


@dataclass(slots=True)
class Waiting:
    """Waiting tuples of the partitions `owned` since `since`. weights: their part by source."""

    since: float
    owned: Bools
    weights: Sequence[float]


@dataclass(slots=True)
class Replay:
    """Backup tuples that a new owner of `partitions` replays.

    first, last: numbers by mapper and partition, `last` excluded. stamp: of the copy. done: replayed so far.
    """

    partitions: Integers
    first: Integers
    last: Integers
    stamp: Floats
    takeover: int
    done: float = 0.0

    @property
    def tuples(self) -> float:
        return float((self.last - self.first).sum())

    @property
    def left(self) -> float:
        """Return the tuples still to replay."""
        return max(0.0, self.tuples - self.done)

    @property
    def reached(self) -> Integers:
        """Return replayed numbers by mapper and partition, in order of time."""
        part = min(1.0, self.done / self.tuples) if self.tuples else 1.0
        found: Integers = self.first + np.floor((self.last - self.first) * part).astype(np.int64)
        return found

    def without(self, excluded: Bools) -> None:
        """Exclude partitions by mask."""
        kept = ~excluded[self.partitions]
        share = self.done / self.tuples if self.tuples else 1.0
        self.partitions, self.stamp = self.partitions[kept], self.stamp[kept]
        self.first, self.last = self.first[:, kept], self.last[:, kept]
        self.done = share * self.tuples


@dataclass(eq=False)
class Node:
    """A running host, with arrays by (mapper and) partition.

    capacity: cores times speed. core: speed of one. delay: seconds from each mapper. cut: failure time of its link. own:
    processed partitions. fed: received as a secondary. has: of these, with state. seeded: complete with the next
    checkpoint. feeds: times it began to receive. covered: tuples in the state. twice, missing: of those, repeated and
    lacking. low: oldest tuple stored. stamp: of a copy's checkpoint. former: of a copy once owned. marked: checkpointed
    up to. debt: core-seconds of background work due. busy, served, lags: of the period: core-seconds, tuples, (seconds
    waited, count). behind: (time, seconds of queue).
    """

    name: str
    row: int
    capacity: float
    core: float
    bandwidth: float
    delay: Floats
    shape: tuple[int, int]
    sources: int
    alive: bool = True
    failed_at: float = np.inf
    cut: Floats = field(init=False)
    own: Bools = field(init=False)
    fed: Bools = field(init=False)
    has: Bools = field(init=False)
    seeded: Bools = field(init=False)
    feeds: Integers = field(init=False)
    covered: Integers = field(init=False)
    twice: Integers = field(init=False)
    missing: Integers = field(init=False)
    low: Integers = field(init=False)
    stamp: Floats = field(init=False)
    former: Floats = field(init=False)
    marked: Floats = field(init=False)
    own_weights: Sequence[float] = field(init=False)
    fed_weights: Sequence[float] = field(init=False)
    queue: list[Waiting] = field(init=False)
    replays: deque[Replay] = field(default_factory=deque)
    debt: float = 0.0
    sending: bool = False
    again: bool = False
    beats: int = 0
    checkpoints: int = 0
    busy: float = 0.0
    served: float = 0.0
    lags: list[tuple[float, float]] = field(default_factory=list)
    behind: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        mappers, partitions = self.shape
        self.cut = np.full(mappers, np.inf)
        self.own, self.fed, self.has, self.seeded = (np.zeros(partitions, dtype=np.bool_) for _ in range(4))
        self.covered, self.twice, self.missing, self.low = (np.zeros(self.shape, dtype=np.int64) for _ in range(4))
        self.feeds = np.zeros(partitions, dtype=np.int64)
        self.stamp, self.marked = np.zeros(partitions), np.zeros(partitions)
        self.former = np.full(partitions, -np.inf)
        self.own_weights, self.fed_weights = [0.0] * self.sources, [0.0] * self.sources
        self.queue = [Waiting(0.0, self.own.copy(), [0.0] * self.sources)]

    @property
    def reached(self) -> float:
        """Return the time before which all tuples are processed, apart from replays."""
        return self.queue[0].since

    def drop(self, partitions: Bools) -> None:
        """Drop state and tuples of these partitions."""
        self.fed[partitions] = self.has[partitions] = self.seeded[partitions] = False
        self.former[partitions] = -np.inf
