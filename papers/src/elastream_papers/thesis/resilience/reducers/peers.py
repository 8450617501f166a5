"""Decentral monitoring (6.6): each node watches its counter-clockwise neighbour by its checkpoints.

After a miss it takes over from all hosts that do not answer.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from elastream.simulator.draws import uniform
from elastream_papers.thesis.resilience.reducers.checkpoints import Checkpoints
from elastream_papers.thesis.resilience.reducers.nodes import Bools, Node

if TYPE_CHECKING:
    from elastream_papers.thesis.resilience.reducers.cluster import Reducers

PHASES = 3_500_001  # random stream of first checkpoints


class Peers:
    """Heartbeats of all nodes. fence: callback for a running node declared dead after a link failure."""

    def __init__(self, reducers: "Reducers", checkpoints: Checkpoints) -> None:
        self.reducers = reducers
        self.checkpoints = checkpoints
        self.fence: Callable[[Node, float], None] = lambda node, now: None

    def start(self, node: Node, now: float) -> None:
        """Start `node`'s checkpoints, at its own phase or the common one, and its neighbour's watch."""
        every, together = self.reducers.settings.checkpoint, self.reducers.settings.together
        if together:
            first = (math.floor(now / every) + 1) * every
        else:
            first = now + every * uniform(self.reducers.seed, PHASES, node.row)
        self.reducers.agenda.at(first, lambda at: self._beat(node, at))
        self._expect(node, first)

    def _expect(self, node: Node, due: float) -> None:
        """Check for a checkpoint due at `due`, after the latency bound."""
        beats = node.beats
        self.reducers.agenda.at(due + 2 * self.reducers.settings.bound, lambda at: self._check(node, beats, at))

    def _beat(self, node: Node, now: float) -> None:
        if not node.alive:
            return
        watcher = self._watcher(node)
        if watcher is None or (node.name, watcher.name) not in self.checkpoints.cut:
            node.beats += 1
        self.checkpoints.swap(node, now)
        due = now + self.reducers.settings.checkpoint
        self.reducers.agenda.at(due, lambda at: self._beat(node, at))
        self._expect(node, due)

    def _watcher(self, node: Node) -> Node | None:
        ring = self.reducers.ring
        if ring is None or node.name not in ring or len(ring) == 1:
            return None
        return self.reducers.nodes[ring.successors(node.name, 1)[0]]

    def _check(self, node: Node, beats: int, now: float) -> None:
        if node.beats > beats:
            return
        watcher = self._watcher(node)
        # If the watcher is dead, its own watcher reaches this node hop by hop.
        if watcher is not None and watcher.alive:
            self._ask_on(watcher, node, now)

    def _ask_on(self, watcher: Node, missed: Node, now: float) -> None:
        """Ask the hosts before the missed one until one answers; each silent one costs a round trip."""
        reducers, ring = self.reducers, self.reducers.ring
        assert ring is not None
        dead, took, name = [missed], 0.0, ring.before(missed.name)
        while name != watcher.name:
            other = reducers.nodes[name]
            if other.alive:
                took += 2 * reducers.delay(watcher.row, other.row)
                break
            took += 2 * reducers.settings.bound
            dead.append(other)
            name = ring.before(name)
        reducers.agenda.at(now + took, lambda at: self._take_over(watcher, dead, at))

    def _take_over(self, watcher: Node, dead: list[Node], now: float) -> None:
        """Take over the intervals of `dead`, nearest first."""
        reducers, ring = self.reducers, self.reducers.ring
        if not watcher.alive or ring is None or watcher.name not in ring:
            return
        dead = [node for node in dead if node.name in ring]
        if not dead:
            return
        for node in dead:
            if node.alive:
                self.fence(node, now)
        since = min(node.failed_at for node in dead)
        if (later := self._fetch(watcher, dead, now)) > now:
            reducers.agenda.at(later, lambda at: self._take_over(watcher, dead, at))
            return
        for node in dead:
            ring = ring.without(node.name)
        reducers.enact(ring, "recovery", since, now)

    def _fetch(self, watcher: Node, dead: list[Node], now: float) -> float:
        """Return when `watcher` has all living copies of `dead`'s partitions; late only after a change of the ring."""
        reducers, settings = self.reducers, self.reducers.settings
        owned = np.any([node.own for node in dead], axis=0)
        ready = now
        for other in reducers.living:
            part: Bools = owned & ~watcher.has & other.has
            if other is watcher or not part.any():
                continue
            state = float(reducers.keys.state_bytes(reducers.streams.emitted_by(other.stamp), part).sum())
            tuples = float((reducers.arrived(other, now) - other.low)[:, part].sum())
            size = state + settings.tuple_bytes * tuples
            other.debt += size * settings.serialise
            took = size * (settings.serialise / other.core + 1 / min(other.bandwidth, watcher.bandwidth))
            took += 2 * reducers.delay(watcher.row, other.row)
            for mine, sent in (
                (watcher.covered, other.covered), (watcher.twice, other.twice), (watcher.missing, other.missing),
                (watcher.low, other.low),
            ):  # fmt: skip
                mine[:, part] = sent[:, part]
            watcher.stamp[part] = other.stamp[part]
            watcher.fed |= part
            watcher.has |= part
            kept = reducers.requested_partitions.setdefault(watcher.name, np.zeros_like(part))
            kept |= part
            reducers.weigh(watcher, now)
            ready = max(ready, now + took)
        return ready
