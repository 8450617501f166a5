"""Moves of tokens with "delayed transition" (6.5): the ring changes only when every new owner has what it gains.

A host without the state receives the tuples from now on, then state and waiting tuples in the background, and a checkpoint.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from elastream.core.frames import Integers
from elastream.core.ring import Ring
from elastream_papers.thesis.resilience.reducers.checkpoints import Checkpoints
from elastream_papers.thesis.resilience.reducers.nodes import Bools, Node

if TYPE_CHECKING:
    from elastream_papers.thesis.resilience.reducers.cluster import Reducers


@dataclass(frozen=True, slots=True)
class Wish:
    """A ring that is wanted, since when, and when its hosts have agreed on it."""

    ring: Ring
    since: float
    agreed: float


class Handover:
    """The ring that is wanted, and the transfers that lead there. sent: bytes of all transfers so far."""

    def __init__(self, reducers: "Reducers", checkpoints: Checkpoints) -> None:
        self.reducers = reducers
        self.checkpoints = checkpoints
        self.wish: Wish | None = None
        self.sent = 0.0
        self._moving: dict[tuple[str, str], Bools] = {}
        checkpoints.landed = self.look
        reducers.changed.append(self._ring_changed)

    def want(self, ring: Ring, now: float) -> bool:
        """Have `ring` come into force; whether it is so at once. Another wish than the last takes its place."""
        self.wish = Wish(ring, now, now + self._agreement(ring))
        if self.wish.agreed > now:
            self.reducers.agenda.at(self.wish.agreed, self._ring_changed)
        self._ring_changed(now)
        return self.wish is None

    def _agreement(self, ring: Ring) -> float:
        """Seconds of the negotiation: each owner asks the host that is to take over, is answered, and requests it; where
        several intervals move, one after the other (6.5: a neighbour asks its own before it accepts)."""
        reducers, took = self.reducers, 0.0
        for node, gained in self._gained(ring):
            for owner in self._owners(gained):
                if owner.alive:
                    took += 2 * reducers.delay(owner.row, node.row) + reducers.delay(node.row, owner.row)
        return took

    def forget(self, now: float) -> None:
        """Leave the ring as it is."""
        self.wish = None
        self.reducers.wanted.clear()
        self.reducers.share_out(now)

    def look(self, now: float) -> None:
        """Let the ring that is wanted be in force if every new owner has what it gains."""
        if self.wish is None or now < self.wish.agreed:
            return
        if any(missing.any() for _, missing in self._missing(self.wish.ring)):
            return
        wish, self.wish = self.wish, None
        self.reducers.wanted.clear()
        self.reducers.enact(wish.ring, "tokens", wish.since, now)

    def fetch(self, node: Node, missing: Bools, now: float) -> None:
        """Have the state of what `node` gets tuples of, and has none, sent to it by the owners."""
        reducers, given = self.reducers, self.reducers.settings
        for owner in self._owners(missing):
            pair = (owner.name, node.name)
            part = missing & owner.own & ~node.seeded
            if pair in self._moving:
                part &= ~self._moving[pair]
            if not owner.alive or owner is node or not part.any():
                continue
            processed, arrived = reducers.processed(owner)[:, part], reducers.arrived(owner, now)[:, part]
            # What waits at the owner goes along, as the new host got no tuple from before.
            node.low[:, part] = processed
            stamps = reducers.stamps(owner)
            state = float(reducers.keys.held(reducers.streams.emitted_by(stamps), part).sum())
            size = state + given.tuple_bytes * float((arrived - processed).sum())
            self.sent += size
            owner.debt += size * given.serialise
            self._moving[pair] = self._moving.get(pair, np.zeros_like(part)) | part
            ready = now + size * given.serialise / owner.core + size / min(owner.bandwidth, node.bandwidth)
            ready += reducers.delay(owner.row, node.row)
            feeds = node.feeds.copy()
            reducers.agenda.at(ready, partial(self._arrive, owner, node, part, feeds, size))

    def _arrive(self, owner: Node, node: Node, part: Bools, feeds: Integers, size: float, now: float) -> None:
        pair = (owner.name, node.name)
        moving = self._moving.get(pair)
        if moving is not None:
            moving &= ~part
            if not moving.any():
                del self._moving[pair]
        if not owner.alive or not node.alive:
            return
        part = part & node.fed & owner.own & ~node.has & (node.feeds == feeds)
        node.debt += size * self.reducers.settings.merge
        node.seeded |= part
        if part.any():
            self.checkpoints.swap(owner, now)
        if (lacking := self.reducers.lacking(node) & ~node.seeded).any():
            self.fetch(node, lacking, now)

    def _gained(self, ring: Ring) -> list[tuple[Node, Bools]]:
        """By node, what `ring` gives it that it does not own."""
        owners = ring.owners(self.reducers.places)
        nodes = [self.reducers.nodes[name] for name in ring.nodes]
        return [(node, (owners == number) & ~node.own) for number, node in enumerate(nodes)]

    def _owners(self, of: Bools) -> list[Node]:
        """Who owns these partitions, by name."""
        found = {id(owner): owner for p in np.flatnonzero(of).tolist() if (owner := self.reducers.owner[p]) is not None}
        return sorted(found.values(), key=lambda owner: owner.name)

    def _missing(self, ring: Ring) -> list[tuple[Node, Bools]]:
        """The same of what it has no state of, either."""
        return [(node, gained & ~node.has) for node, gained in self._gained(ring)]

    def _prepare(self, now: float) -> None:
        """Have what the wish needs be sent, and copies of what the ring in force asks for."""
        reducers = self.reducers
        if self.wish is not None:
            if any(not reducers.nodes[name].alive for name in self.wish.ring.nodes):
                self.forget(now)
                return
            if now >= self.wish.agreed:
                owners = self.wish.ring.owners(reducers.places)
                reducers.wanted = {
                    name: (owners == number) & ~reducers.nodes[name].own for number, name in enumerate(self.wish.ring.nodes)
                }
                reducers.share_out(now)
        for node in reducers.living:
            if (lacking := reducers.lacking(node)).any():
                self.fetch(node, lacking, now)

    def _ring_changed(self, now: float) -> None:
        self._prepare(now)
        self.look(now)
