"""What is read of a recorded run, and under what each of its batches ran.

Recordings belong to `control`, which this package does not import: `Recorded` says what is read of one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from elastream.model.action import Outcome
from elastream.model.cloud import HostState, Lease
from elastream.model.observation import Floats, Metric, MicroBatch
from elastream.model.stages import Layout
from elastream.simulation.microbatch import COMING, dealt, landed

__all__ = ["Circumstances", "Recorded", "circumstances_of", "state_at"]

WARMING = 3
"""Batches at the start of a run that show what compiling costs, not what records cost."""


class Done(Protocol):
    """What is read of a planning round."""

    @property
    def time(self) -> float:
        """When it was."""
        ...

    @property
    def done(self) -> Sequence[Outcome]:
        """What took effect."""
        ...


class Recorded(Protocol):
    """What is read of a recording; `control.recording.Recording` is one."""

    @property
    def times(self) -> Floats:
        """Times of the observations, seconds."""
        ...

    @property
    def hosts(self) -> Sequence[Lease]:
        """Every lease."""
        ...

    @property
    def batches(self) -> Sequence[MicroBatch]:
        """Every micro-batch, as they were committed."""
        ...

    @property
    def decisions(self) -> Sequence[Any]:
        """Planning rounds, see `Done`."""
        ...

    @property
    def end(self) -> float:
        """When it ended."""
        ...

    def application(self, metric: Metric) -> Floats:
        """A metric of the dataflow over time."""
        ...

    def operator(self, name: str, metric: Metric) -> Floats:
        """A metric of an operator over time."""
        ...

    def host(self, name: str, metric: Metric) -> Floats:
        """A metric of a host over time."""
        ...

    def parallelism(self, operator: str) -> Floats:
        """Its instances over time."""
        ...

    def tasks(self, operator: str) -> Sequence[Mapping[int, str]]:
        """By observation, the host of each of its tasks that has one."""
        ...


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Under what a batch ran. burden: seconds that a core-second of its records' work takes on the hosts as they were.
    coming: hosts on their way. moved: seconds that a core-second of loading the state of each task that had just moved
    takes. warm: whether the run and all its hosts had batches before."""

    burden: float
    coming: int
    moved: float
    warm: bool


def circumstances_of(
    recording: Recorded, layout: Layout, batches: Sequence[MicroBatch], shares: Mapping[str, float]
) -> list[Circumstances]:
    """What was recorded of hosts and tasks when each batch began."""
    times = recording.times
    widths = {stage.name: recording.parallelism(stage.name) for stage in layout.stages}
    placed = {stage.name: recording.tasks(stage.name) for stage in layout.stages if stage.keyed}
    found = []
    where: dict[str, Mapping[int, str]] = {name: {} for name in placed}
    ended = -math.inf
    for number, batch in enumerate(batches):
        # A wish is sent when a batch has ended, and shows in the observation after it was made.
        wished = min(int(np.searchsorted(times, ended, side="right")), len(times) - 1)
        before, ended = where, batch.end
        where = {name: landed(before[name], of[wished]) for name, of in placed.items()}
        row = max(0, int(np.searchsorted(times, batch.start, side="right")) - 1)
        up = [lease for lease in recording.hosts if state_at(lease, batch.start) in (HostState.RUNNING, HostState.DRAINING)]
        coming = sum(state_at(lease, batch.start) in COMING for lease in recording.hosts)
        burden, moved = 0.0, 0.0
        if up:
            power = {lease.host: lease.type.cores * lease.type.speed for lease in up}
            slots = {lease.host: lease.type.slots for lease in up}
            for stage in layout.stages:
                width = widths[stage.name][row]
                at = _on_hosts(where.get(stage.name), slots, 1 if math.isnan(width) else int(width))
                host = max(at, key=lambda name: at[name] / power[name])
                pace = min(power[host], at[host], slots[host])
                burden += shares[stage.name] * at[host] / sum(at.values()) / pace
            for name, held in where.items():
                there = list(held.values())
                fresh = [host for task, host in held.items() if before[name].get(task, host) != host]
                for host in set(fresh) & set(power):
                    moved = max(moved, fresh.count(host) / min(power[host], there.count(host), slots[host]))
        came = [lease.ready_at() for lease in recording.hosts]
        newest = max([time for time in came if time is not None and time <= batch.start], default=0.0)
        since = sum(other.start > newest for other in batches[:number])
        found.append(Circumstances(burden, coming, moved, since >= WARMING))
    return found


def _on_hosts(held: Mapping[int, str] | None, slots: Mapping[str, int], width: int) -> dict[str, int]:
    """Tasks of a stage on each host: where they were seen, else dealt out as Spark does."""
    seen = [host for host in (held or {}).values() if host in slots]
    if seen:
        return {host: seen.count(host) for host in set(seen)}
    number = dealt(width, np.array(list(slots.values())))
    return {host: int(count) for host, count in zip(slots, number, strict=True) if count}


def state_at(lease: Lease, at: float) -> HostState | None:
    """State of a lease at a time; None before and after it."""
    return next((state for time, state in reversed(lease.history) if time <= at), None)
