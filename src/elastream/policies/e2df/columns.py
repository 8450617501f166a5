"""Snapshot for the managers, in columns: a row per host, instance, operator or application.

Written once over columns, a hundred thousand managers decide in the time of a few sorts, each by its own rows.
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
    """Leased hosts."""

    names: tuple[str, ...]
    region: Integers  # row of the region
    slots: Integers  # instances it may hold (C_n)
    cpu: Floats  # utilisation, 0 to 1 (U_n)
    up: Booleans  # false while the host starts
    floating: Integers | None = None  # slots used by instances without a fixed host; None without such

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Row of each host name."""
        return {name: row for row, name in enumerate(self.names)}


@dataclass(frozen=True)
class Instances:
    """Running instances."""

    operator: Integers  # row
    index: Integers  # number among the operator's instances
    host: Integers  # row, -1 if unknown
    utilisation: Floats  # share of its allowed CPU time (S_alpha), NaN if unknown
    # own share of the time, times the number of turns, where operators take turns on slots; else None
    turn: Floats | None = None

    def above(self, level: float) -> Booleans:
        """Return a mask of instances used above `level` that another instance would relieve."""
        used: Booleans = self.utilisation > level
        return used if self.turn is None else used & (self.turn > level)


@dataclass(frozen=True)
class Operators:
    """Operators. `identity` is a number independent of the other rows."""

    names: tuple[str, ...]
    application: Integers
    identity: Identities


@dataclass(frozen=True)
class Applications:
    """Applications with mean response time and target (s), NaN if unknown."""

    names: tuple[str, ...]
    response: Floats
    target: Floats


@dataclass(frozen=True)
class Snapshot:
    """Everything the managers use at `time`."""

    time: float
    regions: tuple[str, ...]
    hosts: LeasedHosts
    instances: Instances
    operators: Operators
    applications: Applications

    @cached_property
    def placed(self) -> Integers:
        """Instances on each host (A_n), shape (hosts,)."""
        on = self.instances.host[self.instances.host >= 0]
        return np.bincount(on, minlength=len(self.hosts.names)).astype(np.int64)

    @cached_property
    def free(self) -> Integers:
        """Free slots of each host (C_n - A_n), at least 0, shape (hosts,)."""
        room: Integers = np.maximum(self.hosts.slots - self.placed, 0)
        return room

    @cached_property
    def spare(self) -> Integers:
        """Free slots not used by floating instances either, shape (hosts,).

        Floating instances take turns with placed ones and block none of them.
        """
        return self.free if self.hosts.floating is None else np.minimum(self.free, self.hosts.slots - self.hosts.floating)

    @cached_property
    def by_host(self) -> tuple[Integers, Integers]:
        """Rows of placed instances sorted by host, and each host's start."""
        placed = np.flatnonzero(self.instances.host >= 0)
        order: Integers = placed[np.argsort(self.instances.host[placed], kind="stable")]
        return order, np.r_[0, np.cumsum(self.placed)].astype(np.int64)

    @cached_property
    def critical(self) -> Booleans:
        """Applications whose known response time is over its target, shape (applications,)."""
        late: Booleans = self.applications.response > self.applications.target
        return late


def identities(names: Sequence[str]) -> Identities:
    """Return a number for each name that depends on nothing else."""
    return np.array([crc32(name.encode()) for name in names], dtype=np.uint64)


def ranks(groups: Integers) -> Integers:
    """Return the position of each element within its group, in the given order."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, dtype=np.int64)
    position = np.empty(len(groups), dtype=np.int64)
    position[order] = np.arange(len(groups)) - np.repeat(first, np.diff(np.r_[first, len(groups)]))
    return position
