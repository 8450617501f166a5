"""Incremental checkpoints, asynchronous and without acknowledgement (thesis, 6.4.3 and 6.4.4, Fig. 6.5).

A checkpoint sends the active fragment and merges it into the master state; secondaries evict tuples stamped below T_s -
2 L_n. Fragments are bytes here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream_papers.thesis.resilience.reducers.nodes import Bools, Node

if TYPE_CHECKING:
    from elastream_papers.thesis.resilience.reducers.cluster import Reducers

RECENT = 1_000_000  # checkpoint sizes to store


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint. delta, full: bytes of the fragment and of the whole state at `time`."""

    host: str
    time: float
    delta: float
    full: float


@dataclass(frozen=True, slots=True)
class Fragment:
    """An inactive fragment in transit: the state of `owned` at the swap, and its stamps."""

    owner: Node
    owned: Bools
    covered: Integers
    twice: Integers
    missing: Integers
    stamps: Floats


class Checkpoints:
    """Checkpoints of all nodes.

    landed: callback for a node that may have new copies. made: sizes. cut: failure time of the link between two hosts.
    """

    def __init__(self, reducers: "Reducers") -> None:
        self.reducers = reducers
        self.made: list[Checkpoint] = []
        self.cut: dict[tuple[str, str], float] = {}
        self.landed: Callable[[float], None] = lambda now: None

    def targets(self, node: Node) -> list[tuple[Node, Bools]]:
        """Return the holders of copies of `node`'s partitions, and the partitions with state."""
        found = []
        for other in self.reducers.living:
            kept = other.fed & node.own & (other.has | other.seeded)
            if other is not node and (node.name, other.name) not in self.cut and kept.any():
                found.append((other, kept))
        return found

    def swap(self, node: Node, now: float) -> None:
        """Begin a checkpoint, after one under way."""
        if not node.alive:
            return
        if node.sending:
            node.again = True
            return
        targets = self.targets(node)
        if not targets:
            return
        reducers, settings = self.reducers, self.reducers.settings
        stamps = reducers.stamps(node)
        emitted = reducers.streams.emitted_by(stamps)
        delta = float(reducers.keys.updated(emitted - reducers.streams.emitted_by(node.marked), node.own).sum())
        if len(self.made) < RECENT:
            self.made.append(Checkpoint(node.name, now, delta, float(reducers.keys.state_bytes(emitted, node.own).sum())))
        node.marked[node.own] = stamps[node.own]
        fragment = Fragment(node, node.own.copy(), reducers.processed(node), node.twice.copy(), node.missing.copy(), stamps)
        node.sending = True
        node.checkpoints += 1
        node.debt += delta * settings.serialise
        ready = now + delta * settings.serialise / node.core + delta / node.bandwidth
        reducers.agenda.at(ready, lambda at: self._sent(fragment, targets, delta, at))

    def _sent(self, fragment: Fragment, targets: list[tuple[Node, Bools]], delta: float, now: float) -> None:
        node, settings = fragment.owner, self.reducers.settings
        node.sending = False
        if not node.alive:
            return  # the sender failed in mid-transfer: a partial checkpoint is useless
        node.debt += delta * settings.merge
        for other, kept in targets:
            arrival = now + self.reducers.delay(node.row, other.row)
            part = delta * float(kept.sum()) / max(1, int(fragment.owned.sum()))
            self.reducers.agenda.at(arrival, partial(self._arrive, fragment, other, kept, part))
        if node.again:
            node.again = False
            self.swap(node, now)

    def _arrive(self, fragment: Fragment, node: Node, kept: Bools, delta: float, now: float) -> None:
        """Apply a checkpoint at a secondary, and evict the tuples it replaces."""
        reducers = self.reducers
        if not node.alive:
            return
        same = np.array([owner is fragment.owner for owner in reducers.owner])
        kept = kept & node.fed & same & (node.has | node.seeded)
        # A former owner's state is newer than a checkpoint that the new owner makes during its replay. The former owner has
        # not kept the tuples that it processed, so it accepts only checkpoints that surely contain all of them.
        kept &= fragment.stamps - 2 * reducers.settings.bound >= node.former
        if not kept.any():
            return
        fresh = bool((kept & ~node.has).any())
        node.debt += delta * reducers.settings.merge
        for mine, sent in (
            (node.covered, fragment.covered),
            (node.twice, fragment.twice),
            (node.missing, fragment.missing),
        ):
            mine[:, kept] = sent[:, kept]
        node.stamp[kept] = fragment.stamps[kept]
        node.former[kept] = -np.inf
        node.low[:, kept] = np.maximum(node.low[:, kept], reducers.kept_from(fragment.stamps)[:, kept])
        node.has |= kept
        node.seeded &= ~kept
        if fresh:
            self.landed(now)
