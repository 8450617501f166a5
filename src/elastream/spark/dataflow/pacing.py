"""What the sources of our own share: how large a batch may be, from how long the last ones took, and how it is cut."""

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from elastream.planning.algorithms.governor import Governor

__all__ = ["Pacing", "committed", "shares"]


class Pacing:
    """A governor that is told of each batch by the commit log of its query.

    batch_seconds: what a batch should last at most. commits: folder of the log; None where a batch lasts until the next one
    is planned, for all that is known.
    """

    def __init__(self, batch_seconds: float, commits: Path | None) -> None:
        self._governor = Governor(batch_seconds)
        self._commits = commits
        self._under_way: tuple[int, float] | None = None

    @property
    def batch_seconds(self) -> float:
        """What a batch should last at most."""
        return self._governor.batch_seconds

    @property
    def allowance(self) -> int:
        """Records that the next batch may take."""
        return self._governor.allowance

    def allow(self, records: int) -> None:
        """Let the next batch take at least so many."""
        self._governor = replace(self._governor, allowance=max(self._governor.allowance, records))

    def settle(self, now: float) -> None:
        """A batch is about to be planned, at epoch second `now`: the one before, if any, has ended."""
        if self._under_way is not None:
            records, since = self._under_way
            self._governor = self._governor.after(records, committed(self._commits, since, now) - since)
            self._under_way = None

    def begin(self, records: int, now: float) -> None:
        """A batch of so many was planned at epoch second `now`."""
        self._under_way = (records, now)


def committed(commits: Path | None, since: float, now: float) -> float:
    """When (epoch seconds) the batch planned at `since` was committed: the time of the newest entry of the commit log.

    A query that has done a batch early waits for its next trigger, which is no time that the batch took. `now`, when the
    next one is planned, where the log has no entry that new.
    """
    try:
        entries = [entry.stat().st_mtime for entry in os.scandir(commits) if entry.name.isdecimal()] if commits else []
    except OSError:
        entries = []  # an entry was purged between the two calls
    newest = max(entries, default=now)
    return newest if since < newest <= now else now


def shares(first: int, last: int, width: int) -> list[tuple[int, int]]:
    """Records `first` to `last` (exclusive) as `width` contiguous ranges, as even as can be."""
    return list(pairwise(first + (last - first) * part // width for part in range(width + 1)))
