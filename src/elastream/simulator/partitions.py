"""The stages of a query in simulation: which tasks each has, and on which hosts those with state are.

Tasks without state are dealt to the running hosts in every batch; those of a keyed stage stay where their state partitions
are, and one that moves loads its state first.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Integers
from elastream.core.ring import Ring, in_zones
from elastream.dataflow.operators import Operator
from elastream.dataflow.stages import Stage
from elastream.simulator.pool import SimulatedHosts
from elastream.simulator.settings import Settings
from elastream.simulator.stations import Station


class TaskPlaces(NamedTuple):
    """The tasks of a stage by host, shape (hosts,) each: rows of the hosts, tasks, those of them that must load state, the
    part of the records that they get together and that the heaviest of them gets, and that of state copied there."""

    hosts: Integers
    tasks: Integers
    loading: Integers
    share: Floats
    heaviest: Floats
    copied: Floats


class StageStation(Station):
    """A stage, whose instances are partitions; those of a keyed stage are placed on hosts but reserve no capacity."""

    def __init__(self, stage: Stage, stream: int, limit: float | None, settings: Settings, seed: int) -> None:
        super().__init__(Operator(stage.name, max_duration=limit, cores=1.0), stream, settings, seed)
        self.stage = stage
        self.due = math.nan
        self.served = False
        self.working = 0.0
        self.where: Mapping[int, int] = {}
        self.fresh: Mapping[int, int] = {}
        self.interrupted = False
        self.now = 0.0
        self.kept: Mapping[int, frozenset[int]] = {}

    @property
    def skewed(self) -> bool:
        """Whether some of its state partitions get more records than others."""
        return self.placed and self.name in self.settings.shares

    @property
    def shares(self) -> Floats:
        """Fraction of the stage's records that each partition gets now."""
        if not self.skewed:
            return super().shares
        mine = self.settings.by_instance(self.settings.shares, self.name, self.crew.index, self.now)
        return np.asarray(mine / mine.sum()) if mine.sum() > 0 else super().shares

    @property
    def needs(self) -> tuple[float, float]:
        """A token amount of cores: reserves nothing, but makes the pool spread partitions evenly."""
        return 1e-6, 0.0

    @property
    def placed(self) -> bool:
        """Whether its partitions hold state and are therefore placed on hosts."""
        return self.stage.keyed

    @property
    def backlog(self) -> float:
        """Records due and not taken; NaN before the first batch and for all stages but the first of a segment."""
        return self.due if self.served else math.nan

    @property
    def queued(self) -> float:
        """`backlog`, with 0 for unknown."""
        return 0.0 if math.isnan(self.due) else self.due

    @property
    def in_service(self) -> float:
        return self.working

    @property
    def unfinished(self) -> bool:
        return self.queued > 1e-6 or self.working > 1e-6

    @property
    def settled(self) -> bool:
        """Whether its partitions are where they are wanted, and have their state."""
        if not self.placed:
            return True
        wanted = {int(i): int(host) for i, host in zip(self.crew.index, self.crew.host, strict=True) if host >= 0}
        return self.where == wanted and self.fresh == wanted

    def settle(self) -> None:
        """End a batch: in the next one, moved partitions run on their new hosts, as far as `landed` allows."""
        wanted = {int(i): int(host) for i, host in zip(self.crew.index, self.crew.host, strict=True) if host >= 0}
        self.where, self.fresh = landed(self.where, wanted), self.where

    def locate(self, pool: SimulatedHosts) -> TaskPlaces:
        """Where its partitions are. One that comes to a host which kept a copy of its state loads nothing."""
        if not self.where:
            self.settle()
        now, up = {}, pool.up
        for i, host in zip(self.crew.index.tolist(), self.crew.host.tolist(), strict=True):
            place = self.where.get(i, -1)
            place = place if place >= 0 and up[place] else host
            if place >= 0:
                now[i] = place
        self.where = {**self.where, **now}  # what a lost host had runs where it is wanted, with this batch
        came = [host for i, host in now.items() if self.fresh.get(i, host) != host and host not in self.kept.get(i, ())]
        self.kept = self._copies(now, pool)
        held = set(now.values()).union(*self.kept.values())
        hosts = np.array(sorted(held), dtype=np.int64)
        at = {host: row for row, host in enumerate(hosts.tolist())}
        tasks, loading = np.zeros(hosts.size, dtype=np.int64), np.zeros(hosts.size, dtype=np.int64)
        share, heaviest, copied = (np.zeros(hosts.size) for _ in range(3))
        whole = dict(zip(self.crew.index.tolist(), self.shares.tolist(), strict=True))
        for i, host in now.items():
            tasks[at[host]] += 1
            share[at[host]] += whole[i]
            heaviest[at[host]] = max(heaviest[at[host]], whole[i])
            for other in self.kept.get(i, ()):
                copied[at[other]] += whole[i]
        for host in came:
            loading[at[host]] += 1
        if not self.skewed:  # in equal parts, without the rounding of a sum
            share, heaviest = tasks / max(1, len(now)), (tasks > 0) / max(1, len(now))
        return TaskPlaces(hosts, tasks, loading, share, heaviest, copied)

    def _copies(self, now: Mapping[int, int], pool: SimulatedHosts) -> dict[int, frozenset[int]]:
        """Rows of the hosts that keep a copy of each partition: those after its own on the ring."""
        r, usable = (
            self.settings.replicas,
            [pool.leases[row].host for row in pool.active.tolist() if pool.up[row] and pool.open[row]],
        )
        if not r or len(usable) < 2:
            return {}
        even = Ring.even(in_zones({host: pool.leases[pool.rows[host]].zone for host in usable}))
        ring = self.ring if self.ring is not None and set(self.ring) <= set(usable) else even
        found: dict[int, frozenset[int]] = {}
        for i, row in now.items():
            host = pool.leases[row].host
            after = (ring if host in ring else even).successors(host, r) if host in even else ()
            found[i] = frozenset(pool.rows[each] for each in after)
        return found

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Remove partitions from a host; if it was lost, the current batch starts again."""
        self.interrupted = self.interrupted or lost


def landed(where: Mapping[int, Any], wanted: Mapping[int, Any]) -> dict[int, Any]:
    """Host of each task in the next batch. where: hosts in the last batch; wanted: requested hosts.

    Each host receives at most one moved task per batch, as on Spark (`spark.placement.placing`); a new task starts on the
    requested host.
    """
    taking: set[Any] = set()
    found = {}
    for task, host in wanted.items():
        before = where.get(task, host)
        found[task] = before if before != host and host in taking else host
        if before != host:
            taking.add(host)
    return found


def dealt(tasks: int, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of tasks per host, dealt one by one, hosts with free slots first; shape (hosts,)."""
    dealt = np.zeros(slots.size, dtype=np.int64)
    for _ in range(tasks if slots.size else 0):
        dealt[np.lexsort((dealt, dealt // slots))[0]] += 1
    return dealt
