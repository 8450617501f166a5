"""What a run proves (thesis, 6.3): that no state is lost (D1) and no tuple (D2), and how many were taken in twice (D3).

By sequence numbers: of each partition the state at its owner has taken in each mapper's tuples from 0 up to a number,
without those that it is known to lack. D1 and D2 hold if it lacks none, and nothing that was emitted can fail to come:
what lies above is in the owner's queue, in a replay, or with a living secondary.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from elastream.simulator.reducers.cluster import Reducers


@dataclass(frozen=True, slots=True)
class Exactness:
    """Tuples at one moment. emitted; taken_in: of them, in the state of their owners; waiting: the rest, which an owner
    has yet to process. lacking: emitted, and neither in a state nor to come (violates D1 or D2). twice: counted twice by
    a state (violates D3, as the thesis allows). unowned: of partitions whose owner is lost and not yet replaced."""

    emitted: int
    taken_in: int
    waiting: int
    lacking: int
    twice: int
    unowned: int

    @property
    def kept(self) -> bool:
        """Whether D1 and D2 hold: nothing is lacking."""
        return self.lacking == 0

    @property
    def complete(self) -> bool:
        """Whether every tuple is in a state."""
        return self.kept and self.taken_in == self.emitted


def exactness(reducers: "Reducers", now: float) -> Exactness:
    """The proof at `now`: each tuple of each partition is counted in exactly one place."""
    given = reducers.settings
    emitted = reducers.streams.numbers(np.full((given.mappers, 1), now))
    taken = np.zeros_like(emitted)
    lacking, twice = np.zeros_like(emitted), np.zeros_like(emitted)
    owned = np.zeros(given.partitions, dtype=np.bool_)
    for node in reducers.living:
        mine = node.own
        assert not (owned & mine).any(), "a partition has two owners"
        owned |= mine
        taken[:, mine] = np.minimum(reducers.processed(node), emitted)[:, mine]
        lacking[:, mine], twice[:, mine] = node.gone[:, mine], node.twice[:, mine]
    return Exactness(
        int(emitted.sum()),
        int((taken - lacking)[:, owned].sum()),
        int((emitted - taken)[:, owned].sum()),
        int(lacking.sum()),
        int(twice.sum()),
        int(emitted[:, ~owned].sum()),
    )
