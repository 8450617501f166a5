"""Counts rounds: every query finished a batch or is idle.

A host that is released must outlast the batches that were under way, whichever query they are of; one that is new works off
a few. A query that gets no records has no batches, and holds nothing up.
"""

from collections.abc import Collection, Hashable, Mapping
from typing import Any

__all__ = ["Rounds"]


class Rounds:
    """`count`: rounds that have ended. In a round each query ends a batch, or is seen with none under way; at least one
    ends one. After two rounds no batch is under way that was when the first began.
    """

    def __init__(self) -> None:
        self.count = -1
        self._began: Mapping[Hashable, int] = {}

    def look(self, ended: Mapping[Any, int], idle: Collection[Hashable]) -> None:
        """Take the newest ended batch by query, of all that run now, and those that have none under way."""
        further = {query for query, batch in ended.items() if batch > self._began.get(query, -1)}
        if further and all(query in further or query in idle for query in ended):
            self.count, self._began = self.count + 1, dict(ended)
