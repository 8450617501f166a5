"""What the thesis compares with: Storm, whose tuples are kept by their sender until they are acknowledged.

A host's work goes to another when Storm's time-outs have passed. With local state, what the host knew is lost; with state
in an external store nothing is, and tuples whose acknowledgement was on its way are processed twice.
"""

from typing import TYPE_CHECKING

import numpy as np

from elastream.model.observation import Integers
from elastream.simulation.reducers.nodes import Bools, Node
from elastream.simulation.reducers.settings import Protection

if TYPE_CHECKING:
    from elastream.simulation.reducers.cluster import Reducers

__all__ = ["acknowledged", "from_sender", "reassigned"]


def acknowledged(reducers: "Reducers", node: Node) -> Integers:
    """Numbers up to which senders know that `node` has processed their tuples: a round trip late."""
    earlier = node.reached - 2 * reducers.settings.latency[1] - node.delay
    found: Integers = np.minimum(reducers.streams.numbers(np.minimum(earlier, node.cut)[:, None]), reducers.processed(node))
    return found


def from_sender(node: Node, gained: Bools, before: Integers, protection: Protection) -> int:
    """Have `node` go on with `gained` from what senders kept; returns how many tuples the state lacks from now on.

    before: of the old owners, tuples processed, taken in twice, lacking, and acknowledged, (4, mappers, partitions).
    """
    processed, twice, gone, known = before[:, :, gained]
    node.has[gained] = True
    node.covered[:, gained] = processed
    if protection is Protection.EXTERNAL:
        node.low[:, gained], node.twice[:, gained], node.gone[:, gained] = known, twice, gone
        return 0
    node.low[:, gained], node.twice[:, gained], node.gone[:, gained] = processed, 0, processed
    return int((processed - gone).sum())


def reassigned(reducers: "Reducers", node: Node, now: float) -> None:
    """Give the work of a lost host to the next one of the ring, when Storm's time-outs have passed."""

    def reassign(at: float) -> None:
        if reducers.ring is None or node.name not in reducers.ring:
            return
        left = [each for each in reducers.on_ring if each.alive]
        if not left:
            reducers.agenda.at(at + reducers.settings.reassign, reassign)
            return
        ring = reducers.ring
        for each in reducers.on_ring:
            if not each.alive and each.failed_at <= at - reducers.settings.reassign:
                ring = ring.without(each.name)
        reducers.enact(ring, "recovery", node.failed_at, at)

    reducers.agenda.at(now + reducers.settings.reassign, reassign)
