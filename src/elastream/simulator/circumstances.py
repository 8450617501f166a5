"""Conditions of a recorded run's batches, for calibration."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elastream.core.hosts import HostState, Lease
from elastream.core.observation import MicroBatch
from elastream.dataflow.stages import Layout
from elastream.recording.recorder import Recording
from elastream.simulator.microbatch import COMING
from elastream.simulator.partitions import dealt, landed

# Compilation dominates this many batches at the start of a run or host.
WARMING = 3


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Conditions of a batch.

    Attributes:
        burden: Seconds per core-second of its records' work.
        even: Seconds per core-second of work divided equally over stages.
        coming: Hosts starting.
        moved: Seconds to load moved state, at one core-second a task.
        warm: True from WARMING batches after the newest host on.
    """

    burden: float
    even: float
    coming: int
    moved: float
    warm: bool


def circumstances_of(
    recording: Recording, layout: Layout, batches: Sequence[MicroBatch], shares: Mapping[str, float]
) -> list[Circumstances]:
    """Return the conditions at each batch's start; `shares` is each stage's fraction of a record's cost."""
    times = recording.times
    widths = {stage.name: recording.parallelism(stage.name) for stage in layout.stages}
    placed = {stage.name: recording.tasks(stage.name) for stage in layout.stages if stage.keyed}
    conditions = []
    where: dict[str, Mapping[int, str]] = {name: {} for name in placed}
    ended = -math.inf
    for number, batch in enumerate(batches):
        # A move is requested when a batch has ended, and appears in the next observation.
        requested = min(int(np.searchsorted(times, ended, side="right")), len(times) - 1)
        before, ended = where, batch.end
        where = {name: landed(before[name], of[requested]) for name, of in placed.items()}
        row = max(0, int(np.searchsorted(times, batch.start, side="right")) - 1)
        up = [lease for lease in recording.hosts if state_at(lease, batch.start) in (HostState.RUNNING, HostState.DRAINING)]
        coming = sum(state_at(lease, batch.start) in COMING for lease in recording.hosts)
        burden, even, moved = 0.0, 0.0, 0.0
        if up:
            power = {lease.host: lease.type.cores * lease.type.speed for lease in up}
            slots = {lease.host: lease.type.slots for lease in up}
            for stage in layout.stages:
                width = widths[stage.name][row]
                at = _on_hosts(where.get(stage.name), slots, 1 if math.isnan(width) else int(width))
                host = max(at, key=lambda name: at[name] / power[name])
                pace = min(power[host], at[host], slots[host])
                longest = at[host] / sum(at.values()) / pace
                burden += shares[stage.name] * longest
                even += longest / len(layout.stages)
            for name, placement in where.items():
                there = list(placement.values())
                fresh = [host for task, host in placement.items() if before[name].get(task, host) != host]
                for host in set(fresh) & set(power):
                    moved = max(moved, fresh.count(host) / min(power[host], there.count(host), slots[host]))
        came = [lease.ready_at() for lease in recording.hosts]
        newest = max([time for time in came if time is not None and time <= batch.start], default=0.0)
        since = sum(other.start > newest for other in batches[:number])
        conditions.append(Circumstances(burden, even, coming, moved, since >= WARMING))
    return conditions


def _on_hosts(placement: Mapping[int, str] | None, slots: Mapping[str, int], width: int) -> dict[str, int]:
    """Return a stage's tasks per host: as recorded, otherwise dealt as on Spark."""
    hosts = [host for host in (placement or {}).values() if host in slots]
    if hosts:
        return {host: hosts.count(host) for host in set(hosts)}
    number = dealt(width, np.array(list(slots.values())))
    return {host: int(count) for host, count in zip(slots, number, strict=True) if count}


def state_at(lease: Lease, at: float) -> HostState | None:
    return next((state for time, state in reversed(lease.history) if time <= at), None)
