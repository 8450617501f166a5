"""What the new owner of partitions finds where senders keep tuples until they are acknowledged, and neighbours no copies.

With local state, what the old owner knew is lost; with state in an external store nothing is, and tuples whose
acknowledgement was on its way are processed twice.
"""

from elastream.core.frames import Integers
from elastream.simulator.reducers.nodes import Bools, Node
from elastream.simulator.reducers.settings import Protection


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
