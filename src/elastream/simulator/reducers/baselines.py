"""What the thesis compares with: Storm, whose tuples are kept by their sender until they are acknowledged.

A host's work goes to another when Storm's time-outs have passed; `senders` says what that one finds.
"""

from typing import TYPE_CHECKING

from elastream.simulator.reducers.nodes import Node

if TYPE_CHECKING:
    from elastream.simulator.reducers.cluster import Reducers


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
