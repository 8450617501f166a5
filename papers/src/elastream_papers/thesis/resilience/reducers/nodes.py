"""A host of the ring: its partitions and copies, its queue (first come, first served, hence one moment), and its pending
work.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Integers

Bools = NDArray[np.bool_]


@dataclass(slots=True)
class Waiting:
    """Waiting tuples of the partitions `owned` that arrived from `since` on. weights: their part of each source's
    tuples.
    """

    since: float
    owned: Bools
    weights: Sequence[float]


@dataclass(slots=True)
class Replay:
    """Tuples of the backup that a new owner of `partitions` replays. first, last: numbers by mapper and partition,
    `last` excluded. stamp: of the copy, by partition. done: replayed so far. takeover: its number.
    """

    partitions: Integers
    first: Integers
    last: Integers
    stamp: Floats
    takeover: int
    done: float = 0.0

    @property
    def tuples(self) -> float:
        """How many there are."""
        return float((self.last - self.first).sum())

    @property
    def left(self) -> float:
        """How many are still to be replayed."""
        return max(0.0, self.tuples - self.done)

    @property
    def reached(self) -> Integers:
        """Numbers up to which tuples are replayed, by mapper and partition; they are taken in the order of their times."""
        part = min(1.0, self.done / self.tuples) if self.tuples else 1.0
        found: Integers = self.first + np.floor((self.last - self.first) * part).astype(np.int64)
        return found

    def without(self, gone: Bools) -> None:
        """Leave out partitions, by their mask."""
        kept = ~gone[self.partitions]
        share = self.done / self.tuples if self.tuples else 1.0
        self.partitions, self.stamp = self.partitions[kept], self.stamp[kept]
        self.first, self.last = self.first[:, kept], self.last[:, kept]
        self.done = share * self.tuples


@dataclass(eq=False)
class Node:
    """A running host. Arrays are by mapper and partition, or by partition.

    capacity: cores times speed. core: speed of one. delay: seconds from each mapper. cut: time at which each mapper's link
    failed. own: processed partitions. fed: partitions received as a secondary. has: of these, those with state. seeded:
    state transferred, complete with the next checkpoint. feeds: how often it began to receive a partition.

    covered: tuples in the state, of a copy as of its checkpoint. twice, gone: of those, repeated and lacking. low: oldest
    tuple kept as a secondary. stamp: of a copy's checkpoint. former: stamp of a copy that it once owned. marked: time up to
    which its partitions are checkpointed.

    debt: due core-seconds of background work. busy, served, lags: of the monitoring period: core-seconds, tuples, (seconds
    waited, count). behind: (time, seconds of queue) at which a long queue was noticed.
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
    gone: Integers = field(init=False)
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
        self.covered, self.twice, self.gone, self.low = (np.zeros(self.shape, dtype=np.int64) for _ in range(4))
        self.feeds = np.zeros(partitions, dtype=np.int64)
        self.stamp, self.marked = np.zeros(partitions), np.zeros(partitions)
        self.former = np.full(partitions, -np.inf)
        self.own_weights, self.fed_weights = [0.0] * self.sources, [0.0] * self.sources
        self.queue = [Waiting(0.0, self.own.copy(), [0.0] * self.sources)]

    @property
    def reached(self) -> float:
        """All tuples that arrived before this moment are processed, those that it has yet to replay apart."""
        return self.queue[0].since

    def drop(self, partitions: Bools) -> None:
        """Keep no state and no tuples of these any more."""
        self.fed[partitions] = self.has[partitions] = self.seeded[partitions] = False
        self.former[partitions] = -np.inf
