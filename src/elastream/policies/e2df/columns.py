"""What the managers see, as columns: a row a host, a replica, an operator, an application.

A region manager sees the hosts of its region and an operator manager the replicas of its operator; their rules are written
once over columns, so that a hundred thousand of them decide in the time of a few sorts. That each still sees only its own
rows is held by a test: managers decide together as they do one by one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Integers

Booleans: TypeAlias = NDArray[np.bool_]
Identities: TypeAlias = NDArray[np.uint64]


@dataclass(frozen=True)
class LeasedHosts:
    """Leased hosts. region: row of its region. slots: replicas it may hold (C_n). cpu: its utilisation, 0 to 1 (U_n).

    up: takes replicas; where False it is still coming. afloat: slots that instances take which are placed nowhere; None
    where there are none.
    """

    names: tuple[str, ...]
    region: Integers
    slots: Integers
    cpu: Floats
    up: Booleans
    afloat: Integers | None = None

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Row by name."""
        return {name: row for row, name in enumerate(self.names)}


@dataclass(frozen=True)
class Replicas:
    """Running replicas. operator, host: rows, host -1 where the plant does not say. index: among those of its operator.

    utilisation: fraction of the CPU time that it may use (S_alpha), NaN where unknown. turn: where operators take turns on
    the same slots, how much of the time its own takes, times the number of turns; None where they do not.
    """

    operator: Integers
    index: Integers
    host: Integers
    utilisation: Floats
    turn: Floats | None = None

    def above(self, level: float) -> Booleans:
        """Replicas that are used above `level`, and another of which would help; shape (replicas,).

        Of operators that take turns, one whose own takes less than its equal part of `level` does not.
        """
        used: Booleans = self.utilisation > level
        return used if self.turn is None else used & (self.turn > level)


@dataclass(frozen=True)
class Operators:
    """Operators. application: row. identity: a number that is the operator's own in whatever company it is looked at."""

    names: tuple[str, ...]
    application: Integers
    identity: Identities


@dataclass(frozen=True)
class Applications:
    """Applications. response, target: mean response time and its target, seconds; NaN where unknown or not given."""

    names: tuple[str, ...]
    response: Floats
    target: Floats


@dataclass(frozen=True)
class Snapshot:
    """All of it at `time`. regions: names of the regions that `LeasedHosts.region` counts."""

    time: float
    regions: tuple[str, ...]
    hosts: LeasedHosts
    replicas: Replicas
    operators: Operators
    applications: Applications

    @cached_property
    def placed(self) -> Integers:
        """Replicas on each host (A_n); shape (hosts,)."""
        on = self.replicas.host[self.replicas.host >= 0]
        return np.bincount(on, minlength=len(self.hosts.names)).astype(np.int64)

    @cached_property
    def free(self) -> Integers:
        """Free slots of each host (C_n - A_n), never below 0; shape (hosts,)."""
        room: Integers = np.maximum(self.hosts.slots - self.placed, 0)
        return room

    @cached_property
    def spare(self) -> Integers:
        """Of these, slots that no instance takes either which is placed nowhere; shape (hosts,).

        It takes turns with what is placed there, and keeps none of it away.
        """
        return self.free if self.hosts.afloat is None else np.minimum(self.free, self.hosts.slots - self.hosts.afloat)

    @cached_property
    def by_host(self) -> tuple[Integers, Integers]:
        """Rows of placed replicas, host by host, and where each host's begin: shapes (placed,) and (hosts + 1,)."""
        placed = np.flatnonzero(self.replicas.host >= 0)
        order: Integers = placed[np.argsort(self.replicas.host[placed], kind="stable")]
        return order, np.r_[0, np.cumsum(self.placed)].astype(np.int64)

    @cached_property
    def critical(self) -> Booleans:
        """Applications whose response time is known to be over its target; shape (applications,)."""
        late: Booleans = self.applications.response > self.applications.target
        return late


def identities(names: Sequence[str]) -> Identities:
    """A number for each name that depends on nothing else; shape (names,)."""
    return np.array([crc32(name.encode()) for name in names], dtype=np.uint64)


def ranks(groups: Integers) -> Integers:
    """Of each element its position among those of its group, in the order given; shape as `groups`."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, dtype=np.int64)
    found = np.empty(len(groups), dtype=np.int64)
    found[order] = np.arange(len(groups)) - np.repeat(first, np.diff(np.r_[first, len(groups)]))
    return found
