"""Counts batches where several queries run, each with batches of its own: what has every query left behind?

A host that is released must outlast the batches that were under way, whichever query they are of; one that is new works off
a few. A query that gets no records has no batches, and holds nothing up.
"""

from collections.abc import Sequence

__all__ = ["Rounds"]


class Rounds:
    """`count`: rounds that have ended. In a round each query ends a batch, or is seen with none under way; at least one
    ends one. After two rounds no batch is under way that was when the first began.
    """

    def __init__(self, queries: int) -> None:
        self.count = -1
        self._began = [-1] * queries

    def look(self, ended: Sequence[int], idle: Sequence[bool]) -> None:
        """Take the newest ended batch of each query, and whether it has none under way now."""
        further = [now > then for now, then in zip(ended, self._began, strict=True)]
        if any(further) and all(on or still for on, still in zip(further, idle, strict=True)):
            self.count, self._began = self.count + 1, list(ended)
