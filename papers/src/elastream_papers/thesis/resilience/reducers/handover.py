"""Moves of tokens with "delayed transition" (6.5): the ring changes once every new owner has its state.

Until then it receives new tuples, and state in the background.
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
class RequestedRing:
    """A requested ring, its time, and the time of agreement."""

    ring: Ring
    since: float
    agreed: float


class Handover:
    """The requested ring and its transfers. sent: bytes so far."""

    def __init__(self, reducers: "Reducers", checkpoints: Checkpoints) -> None:
        self.reducers = reducers
        self.checkpoints = checkpoints
        self.requested: RequestedRing | None = None
        self.sent = 0.0
        self._moving: dict[tuple[str, str], Bools] = {}
        checkpoints.landed = self.look
        reducers.changed.append(self._ring_changed)

    def request_ring(self, ring: Ring, now: float) -> bool:
        """Request `ring`, replacing another request; return True if it is in force at once."""
        self.requested = RequestedRing(ring, now, now + self._agreement(ring))
        if self.requested.agreed > now:
            self.reducers.agenda.at(self.requested.agreed, self._ring_changed)
        self._ring_changed(now)
        return self.requested is None

    def _agreement(self, ring: Ring) -> float:
        """Return seconds of the negotiation: request, answer and acceptance, interval by interval (6.5)."""
        reducers, took = self.reducers, 0.0
        for node, gained in self._gained_partitions(ring):
            for owner in self._owners(gained):
                if owner.alive:
                    took += 2 * reducers.delay(owner.row, node.row) + reducers.delay(node.row, owner.row)
        return took

    def forget(self, now: float) -> None:
        """Cancel the request."""
        self.requested = None
        self.reducers.requested_partitions.clear()
        self.reducers.share_out(now)

    def look(self, now: float) -> None:
        """Put the requested ring in force if every new owner has its state."""
        if self.requested is None or now < self.requested.agreed:
            return
        if any(missing.any() for _, missing in self._missing(self.requested.ring)):
            return
        requested, self.requested = self.requested, None
        self.reducers.requested_partitions.clear()
        self.reducers.enact(requested.ring, "tokens", requested.since, now)

    def fetch(self, node: Node, missing: Bools, now: float) -> None:
        """Let owners send the state that `node` lacks."""
        reducers, settings = self.reducers, self.reducers.settings
        for owner in self._owners(missing):
            pair = (owner.name, node.name)
            part = missing & owner.own & ~node.seeded
            if pair in self._moving:
                part &= ~self._moving[pair]
            if not owner.alive or owner is node or not part.any():
                continue
            processed, arrived = reducers.processed(owner)[:, part], reducers.arrived(owner, now)[:, part]
            # The owner's waiting tuples move along, because the new host has no earlier tuples.
            node.low[:, part] = processed
            stamps = reducers.stamps(owner)
            state = float(reducers.keys.state_bytes(reducers.streams.emitted_by(stamps), part).sum())
            size = state + settings.tuple_bytes * float((arrived - processed).sum())
            self.sent += size
            owner.debt += size * settings.serialise
            self._moving[pair] = self._moving.get(pair, np.zeros_like(part)) | part
            ready = now + size * settings.serialise / owner.core + size / min(owner.bandwidth, node.bandwidth)
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

    def _gained_partitions(self, ring: Ring) -> list[tuple[Node, Bools]]:
        """Return by node the partitions it gains with `ring`."""
        owners = ring.owners(self.reducers.places)
        nodes = [self.reducers.nodes[name] for name in ring.nodes]
        return [(node, (owners == number) & ~node.own) for number, node in enumerate(nodes)]

    def _owners(self, of: Bools) -> list[Node]:
        found = {id(owner): owner for p in np.flatnonzero(of).tolist() if (owner := self.reducers.owner[p]) is not None}
        return sorted(found.values(), key=lambda owner: owner.name)

    def _missing(self, ring: Ring) -> list[tuple[Node, Bools]]:
        """Return by node the gained partitions without state."""
        return [(node, gained & ~node.has) for node, gained in self._gained_partitions(ring)]

    def _prepare(self, now: float) -> None:
        reducers = self.reducers
        if self.requested is not None:
            if any(not reducers.nodes[name].alive for name in self.requested.ring.nodes):
                self.forget(now)
                return
            if now >= self.requested.agreed:
                owners = self.requested.ring.owners(reducers.places)
                reducers.requested_partitions = {
                    name: (owners == number) & ~reducers.nodes[name].own
                    for number, name in enumerate(self.requested.ring.nodes)
                }
                reducers.share_out(now)
        for node in reducers.living:
            if (lacking := reducers.lacking(node)).any():
                self.fetch(node, lacking, now)

    def _ring_changed(self, now: float) -> None:
        self._prepare(now)
        self.look(now)
