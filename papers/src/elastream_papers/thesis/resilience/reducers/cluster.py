"""The ring: owners and secondaries of partitions, processing, and takeovers.

Tuples are counted by partition and mapper. Other modules change the ring through `enact` alone.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.ring import Ring
from elastream.simulator.draws import uniform
from elastream_papers.thesis.resilience.reducers.keys import KeySpace
from elastream_papers.thesis.resilience.reducers.nodes import Bools, Node, Replay, Waiting
from elastream_papers.thesis.resilience.reducers.settings import Protection, ReducerSettings
from elastream_papers.thesis.resilience.reducers.streams import Streams

Event: TypeAlias = Callable[[float], None]  # called with the time


class Agenda:
    """Events by time."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Event]] = []
        self._entered = 0

    def at(self, time: float, event: Event) -> None:
        """Schedule `event` at `time` (seconds)."""
        heapq.heappush(self._events, (time, self._entered, event))
        self._entered += 1

    @property
    def next(self) -> float:
        """Return the next event's time; inf without one."""
        return self._events[0][0] if self._events else math.inf

    def run_due(self, now: float) -> None:
        """Run all events due by `now`, including those they schedule."""
        while self._events and self._events[0][0] <= now:
            time, _, event = heapq.heappop(self._events)
            event(time)


LINKS, MAPPERS = 3_000_001, 2_000_000  # random stream of links, and its first mapper; hosts have their rows


@dataclass(slots=True)
class Takeover:
    """A takeover of partitions.

    why: "recovery", "tokens" or "start". since: its cause. decided: change of the ring. owners: former ones. restored:
    end of the replay, or NaN. tuples: replayed; repeated: processed again; twice: counted twice; lost: lacking.
    """

    host: str
    why: str
    since: float
    decided: float
    partitions: int
    owners: tuple[str, ...] = ()
    restored: float = float("nan")
    tuples: float = 0.0
    repeated: int = 0
    twice: int = 0
    lost: int = 0

    @property
    def seconds(self) -> float:
        """Return seconds from `since` until restored."""
        return self.restored - self.since


class Reducers:
    """Nodes on a ring that process `streams`.

    cost: core-seconds per tuple. lost: callback with a takeover's lacking tuples.
    """

    def __init__(self, streams: Streams, keys: KeySpace, settings: ReducerSettings, cost: float, seed: int) -> None:
        self.streams, self.keys, self.settings = streams, keys, settings
        self.cost, self.seed = cost, seed
        self.agenda = Agenda()
        self.places: Floats = np.arange(settings.partitions) / settings.partitions
        self.nodes: dict[str, Node] = {}
        self.ring: Ring | None = None
        self.owner: list[Node | None] = [None] * settings.partitions
        self.takeovers: list[Takeover] = []
        self.requested_partitions: dict[str, Bools] = {}
        self.changed: list[Callable[[float], None]] = []
        self.lost: Callable[[int, float], None] = lambda tuples, now: None
        self.mean_delay = sum(settings.latency) / 2
        self.skew = settings.skew * np.array(
            [2 * uniform(seed, LINKS, MAPPERS + mapper) - 1 for mapper in range(settings.mappers)]
        )

    # What there is

    @property
    def copying(self) -> bool:
        """Return True if neighbours have copies."""
        return self.settings.protection is Protection.PEERS and self.settings.replicas > 0

    @property
    def on_ring(self) -> list[Node]:
        """Return nodes of the ring clockwise, with unnoticed losses."""
        return [] if self.ring is None else [self.nodes[name] for name in self.ring.nodes]

    @property
    def living(self) -> list[Node]:
        """Return running nodes, on the ring or not."""
        return [node for node in self.nodes.values() if node.alive]

    def delay(self, source: int, target: int) -> float:
        """Return one-way seconds between two nodes, or from a mapper to one."""
        least, most = self.settings.latency
        return least + (most - least) * uniform(self.seed, LINKS + 1 + source, target)

    def join(self, name: str, row: int, cores: float, speed: float, bandwidth: float, now: float) -> Node:
        """Start a host; it is not on the ring yet."""
        delays = np.array([self.delay(MAPPERS + mapper, row) for mapper in range(self.settings.mappers)])
        shape = (self.settings.mappers, self.settings.partitions)
        node = Node(name, row, cores * speed, speed, bandwidth, delays, shape, len(self.keys.sources))
        node.queue[0].since = now
        self.nodes[name] = node
        return node

    def arrived(self, node: Node, now: float) -> Integers:
        """Return numbers of arrived tuples at `node`, by mapper and partition."""
        return self.streams.numbers(np.minimum(now - node.delay, node.cut)[:, None])

    def processed(self, node: Node) -> Integers:
        """Return numbers of tuples in the state at `node`; of copies, as of their checkpoints."""
        live = self.streams.numbers(np.minimum(node.reached - node.delay, node.cut)[:, None])
        found = np.where(node.own, np.maximum(node.covered, live), node.covered)
        for replay in node.replays:
            found[:, replay.partitions] = replay.reached
        return found

    def acknowledged(self, node: Node) -> Integers:
        """Return acknowledged numbers of `node`'s tuples: a round trip late."""
        earlier = node.reached - 2 * self.settings.latency[1] - node.delay
        found: Integers = np.minimum(self.streams.numbers(np.minimum(earlier, node.cut)[:, None]), self.processed(node))
        return found

    def stamps(self, node: Node) -> Floats:
        """Return by partition the latest stamp in the state: T_s of a checkpoint now."""
        newest = node.reached + float(np.max(self.skew - node.delay))
        found = np.where(node.own, np.maximum(node.stamp, newest), node.stamp)
        for replay in node.replays:
            found[replay.partitions] = replay.stamp
        return found

    def kept_from(self, stamp: Floats) -> Integers:
        """Return the oldest tuple at a secondary, by mapper and partition: T_s - 2 L_n."""
        return self.streams.numbers(stamp[None, :] - 2 * self.settings.bound - self.skew[:, None])

    # What happens

    def restored(self, node: Node, replay: Replay, when: float) -> None:
        """Record the end of a replay at `node`."""
        about = self.takeovers[replay.takeover]
        node.covered[:, replay.partitions] = replay.last
        # Tuples emitted at least one latency before the takeover had arrived, and are replayed.
        node.stamp[replay.partitions] = about.decided - self.settings.latency[1]
        about.restored = when if about.restored != about.restored else max(about.restored, when)

    def enact(self, ring: Ring, why: str, since: float, now: float) -> list[Takeover]:
        """Put `ring` in force: partitions go to their new owners, who replay their backup."""
        nodes = [self.nodes[name] for name in ring.nodes]
        owners = ring.owners(self.places)
        begun = []
        for number, node in enumerate(nodes):
            gained = (owners == number) & ~node.own
            if gained.any():
                begun.append(self._take_over(node, gained, why, since, now))
        self.ring = ring
        self.owner = [nodes[number] for number in owners.tolist()]
        self.share_out(now)
        for each in self.changed:
            each(now)
        return begun

    def _take_over(self, node: Node, gained: Bools, why: str, since: float, now: float) -> Takeover:
        about = Takeover(node.name, why, since, now, int(gained.sum()))
        before = np.zeros((4, *node.shape), dtype=np.int64)  # processed by the old owners, twice, lacking, acknowledged
        for old in {id(each): each for each in self.owner if each is not None and each is not node}.values():
            mine = gained & old.own
            if mine.any():
                about.owners = (*about.owners, old.name)
                of_old = np.stack([self.processed(old), old.twice, old.missing, self.acknowledged(old)])
                before[:, :, mine] = of_old[:, :, mine]
                self._give_up(old, mine, before[0], now)
        arrived = self.arrived(node, now)
        if self.settings.protection is not Protection.PEERS:
            about.lost += from_sender(node, gained, before, self.settings.protection)
        without = gained & ~node.has
        # Without a copy, all earlier tuples are lost; before the start there were none.
        node.covered[:, without] = node.low[:, without] = node.missing[:, without] = arrived[:, without]
        node.twice[:, without] = 0
        about.lost += int(arrived[:, without].sum())
        kept = gained & node.has
        if kept.any():
            self._from_copy(node, kept, before, arrived, about)
        node.drop(gained)
        node.own |= gained
        node.marked[gained] = np.where(kept, node.stamp, now)[gained]
        self.weigh(node, now)
        self.takeovers.append(about)
        if not any(replay.takeover == len(self.takeovers) - 1 for replay in node.replays):
            about.restored = now
        if about.lost:
            self.lost(about.lost, now)
        return about

    def _from_copy(self, node: Node, kept: Bools, before: Integers, arrived: Integers, about: Takeover) -> None:
        """Continue from the copies of `kept`, and replay the rest."""
        low, covered = node.low[:, kept], node.covered[:, kept]
        lacking, again = np.maximum(low - covered, 0), np.maximum(covered - low, 0)
        node.missing[:, kept] += lacking
        node.twice[:, kept] += again
        about.lost += int(lacking.sum())
        about.twice += int(again.sum())
        about.repeated += int(np.maximum(before[0][:, kept] - low, 0).sum())
        last = np.maximum(arrived[:, kept], low)
        node.covered[:, kept] = low
        replay = Replay(np.flatnonzero(kept), low, last, node.stamp[kept], len(self.takeovers))
        about.tuples = replay.tuples
        if replay.tuples:
            node.replays.append(replay)

    def _give_up(self, old: Node, surrendered: Bools, before: Integers, now: float) -> None:
        """End `old`'s ownership; its state becomes a copy where the ring asks for one."""
        stamps = self.stamps(old)
        for segment in old.queue:
            segment.owned &= ~surrendered
            segment.weights = self.streams.part_of(segment.owned)
        for replay in list(old.replays):
            replay.without(surrendered)
            if not replay.tuples:
                old.replays.remove(replay)
        old.own &= ~surrendered
        if not old.alive:
            return
        old.covered[:, surrendered] = old.low[:, surrendered] = before[:, surrendered]
        old.stamp[surrendered] = old.former[surrendered] = stamps[surrendered]
        old.fed |= surrendered
        old.has |= surrendered
        self.weigh(old, now)

    def weigh(self, node: Node, now: float) -> None:
        """Update the load of `node` after a change of its partitions."""
        node.own_weights, node.fed_weights = self.streams.part_of(node.own), self.streams.part_of(node.fed)
        if node.queue[-1].since >= now:
            node.queue.pop()
        node.queue.append(Waiting(now, node.own.copy(), node.own_weights))

    # Who keeps copies

    def share_out(self, now: float) -> None:
        """Route tuples to the current secondaries, and drop other copies."""
        secondaries = self.secondaries()
        for node in self.living:
            required = secondaries.get(node.name, np.zeros(self.settings.partitions, dtype=np.bool_))
            if node.name in self.requested_partitions:
                required = required | self.requested_partitions[node.name]
            required &= ~node.own
            node.drop(node.fed & ~required)
            fresh = required & ~node.fed
            if fresh.any():
                # Mappers learn of the ring a moment later, and send later tuples by it.
                node.low[:, fresh] = self.streams.numbers((now + node.delay)[:, None])[:, fresh]
                node.fed |= fresh
                node.feeds += fresh
            self.weigh(node, now)

    def secondaries(self) -> dict[str, Bools]:
        """Return by node the partitions to copy: those of the r nodes before it."""
        if self.ring is None or not self.copying:
            return {}
        owners, size = self.ring.owners(self.places), len(self.ring)
        behind = (np.arange(size)[:, None] - owners[None, :]) % size  # how far clockwise of the owner
        kept = (behind >= 1) & (behind <= min(self.settings.replicas, size - 1))
        return dict(zip(self.ring.nodes, kept, strict=True))

    def lacking(self, node: Node) -> Bools:
        """Return partitions whose tuples, but no state, `node` has."""
        return node.fed & ~node.has


def from_sender(node: Node, gained: Bools, before: Integers, protection: Protection) -> int:
    """Continue at `node` with `gained` from the senders' tuples; return the tuples its state lacks.

    before: tuples processed, repeated, lacking and acknowledged, (4, mappers, partitions).
    """
    processed, twice, gone, known = before[:, :, gained]
    node.has[gained] = True
    node.covered[:, gained] = processed
    if protection is Protection.EXTERNAL:
        node.low[:, gained], node.twice[:, gained], node.missing[:, gained] = known, twice, gone
        return 0
    node.low[:, gained], node.twice[:, gained], node.missing[:, gained] = processed, 0, processed
    return int((processed - gone).sum())
