"""Stages of a simulated query: their tasks, and the hosts of keyed tasks."""

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
    """Tasks of a stage by host.

    Attributes:
        hosts: Rows in the pool.
        loading: Tasks that must load state.
        share: Fraction of the records.
        heaviest: Fraction of the heaviest task.
        copied: Fraction of the state copied there.
    """

    hosts: Integers
    tasks: Integers
    loading: Integers
    share: Floats
    heaviest: Floats
    copied: Floats


class StageStation(Station):
    """A stage with partitions as instances; keyed ones have hosts but reserve no capacity."""

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
        self.standby: Mapping[int, frozenset[int]] = {}

    @property
    def skewed(self) -> bool:
        """True if some state partitions get more records than others."""
        return self.placed and self.name in self.settings.shares

    @property
    def shares(self) -> Floats:
        """Fraction of the records by partition."""
        if not self.skewed:
            return super().shares
        mine = self.settings.by_instance(self.settings.shares, self.name, self.crew.index, self.now)
        return np.asarray(mine / mine.sum()) if mine.sum() > 0 else super().shares

    @property
    def needs(self) -> tuple[float, float]:
        """Token cores: reserve nothing, but make the pool spread partitions evenly."""
        return 1e-6, 0.0

    @property
    def placed(self) -> bool:
        """True if its partitions hold state and stay on hosts."""
        return self.stage.keyed

    @property
    def backlog(self) -> float:
        """Due records not yet taken; NaN before the first batch and in later stages."""
        return self.due if self.served else math.nan

    @property
    def queued(self) -> float:
        return 0.0 if math.isnan(self.due) else self.due

    @property
    def in_service(self) -> float:
        return self.working

    @property
    def unfinished(self) -> bool:
        return self.queued > 1e-6 or self.working > 1e-6

    @property
    def settled(self) -> bool:
        """True if all partitions are on their target hosts with state."""
        if not self.placed:
            return True
        target = {int(i): int(host) for i, host in zip(self.crew.index, self.crew.host, strict=True) if host >= 0}
        return self.where == target and self.fresh == target

    def settle(self) -> None:
        """End a batch: move partitions to new hosts, as far as `landed` allows."""
        target = {int(i): int(host) for i, host in zip(self.crew.index, self.crew.host, strict=True) if host >= 0}
        self.where, self.fresh = landed(self.where, target), self.where

    def locate(self, pool: SimulatedHosts) -> TaskPlaces:
        """Return the partitions' hosts; a standby host loads nothing."""
        if not self.where:
            self.settle()
        now, up = {}, pool.up
        for i, host in zip(self.crew.index.tolist(), self.crew.host.tolist(), strict=True):
            place = self.where.get(i, -1)
            place = place if place >= 0 and up[place] else host
            if place >= 0:
                now[i] = place
        self.where = {**self.where, **now}  # tasks of a lost host move to their targets with this batch
        came = [host for i, host in now.items() if self.fresh.get(i, host) != host and host not in self.standby.get(i, ())]
        self.standby = self._copies(now, pool)
        holders = set(now.values()).union(*self.standby.values())
        hosts = np.array(sorted(holders), dtype=np.int64)
        at = {host: row for row, host in enumerate(hosts.tolist())}
        tasks, loading = np.zeros(hosts.size, dtype=np.int64), np.zeros(hosts.size, dtype=np.int64)
        share, heaviest, copied = (np.zeros(hosts.size) for _ in range(3))
        whole = dict(zip(self.crew.index.tolist(), self.shares.tolist(), strict=True))
        for i, host in now.items():
            tasks[at[host]] += 1
            share[at[host]] += whole[i]
            heaviest[at[host]] = max(heaviest[at[host]], whole[i])
            for other in self.standby.get(i, ()):
                copied[at[other]] += whole[i]
        for host in came:
            loading[at[host]] += 1
        if not self.skewed:  # in equal parts, without the rounding of a sum
            share, heaviest = tasks / max(1, len(now)), (tasks > 0) / max(1, len(now))
        return TaskPlaces(hosts, tasks, loading, share, heaviest, copied)

    def _copies(self, now: Mapping[int, int], pool: SimulatedHosts) -> dict[int, frozenset[int]]:
        """Return each partition's standby hosts: its successors on the ring."""
        r, usable = (
            self.settings.replicas,
            [pool.leases[row].host for row in pool.active.tolist() if pool.up[row] and pool.open[row]],
        )
        if not r or len(usable) < 2:
            return {}
        even = Ring.even(in_zones({host: pool.leases[pool.rows[host]].zone for host in usable}))
        ring = self.ring if self.ring is not None and set(self.ring) <= set(usable) else even
        standby: dict[int, frozenset[int]] = {}
        for i, row in now.items():
            host = pool.leases[row].host
            after = (ring if host in ring else even).successors(host, r) if host in even else ()
            standby[i] = frozenset(pool.rows[each] for each in after)
        return standby

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Remove partitions; after a loss the current batch restarts."""
        self.interrupted = self.interrupted or lost


def landed(where: Mapping[int, Any], target: Mapping[int, Any]) -> dict[int, Any]:
    """Return each task's host in the next batch, on the way from `where` to `target`.

    A host receives at most one moved task a batch, as on Spark.
    """
    taking: set[Any] = set()
    hosts = {}
    for task, host in target.items():
        before = where.get(task, host)
        hosts[task] = before if before != host and host in taking else host
        if before != host:
            taking.add(host)
    return hosts


def dealt(tasks: int, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return tasks per host, dealt one by one, free slots first."""
    dealt = np.zeros(slots.size, dtype=np.int64)
    for _ in range(tasks if slots.size else 0):
        dealt[np.lexsort((dealt, dealt // slots))[0]] += 1
    return dealt
