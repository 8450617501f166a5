"""The stages of a query in simulation: which tasks each has, and on which hosts those with state are.

Tasks without state are dealt to the running hosts in every batch; those of a keyed stage stay where their state partitions
are, and one that moves loads its state first.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastream.model.graph import Operator
from elastream.model.stages import Stage
from elastream.simulation.settings import Settings
from elastream.simulation.stations import Station


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

    def locate(self, up: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Hosts of its partitions, partitions on each, and those of them that must load state; shape (hosts,) each."""
        if not self.where:
            self.settle()
        now = {}
        for i, host in zip(self.crew.index.tolist(), self.crew.host.tolist(), strict=True):
            place = self.where.get(i, -1)
            place = place if place >= 0 and up[place] else host
            if place >= 0:
                now[i] = place
        hosts, tasks = np.unique(np.array(list(now.values()), dtype=np.int64), return_counts=True)
        came = [host for i, host in now.items() if self.fresh.get(i, host) != host]
        return hosts, tasks, np.array([came.count(host) for host in hosts.tolist()], dtype=np.int64)

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
