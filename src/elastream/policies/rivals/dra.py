"""Spark's dynamic resource allocation.

From "Dynamic Resource Allocation" in Spark's documentation (Job Scheduling), sections Request policy and Remove policy.
Options are named below without their prefix `spark.dynamicAllocation.`. An executor is a host.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from elastream.core.action import Action
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.policies.rivals.batches import due_seconds, fixed_tasks, widest
from elastream.policies.rivals.groups import Group
from elastream.policies.rivals.rival import ChainedRival, Target

# Time over which the true processing rate is measured (seconds).
RATES_S = 10.0


@dataclass(frozen=True)
class Dra(ChainedRival):
    """Request hosts while tasks wait for a slot, and release a host that ran no task for `idle_timeout`.

    Requests double (1, 2, 4, ... hosts), begin again with each batch, and end once there are slots for all tasks. CPU use
    shows that a host ran a task.

    Args:
        backlog_timeout: `schedulerBacklogTimeout`, also used as `sustainedSchedulerBacklogTimeout` (seconds).
        idle_timeout: `executorIdleTimeout` (seconds).
    """

    backlog_timeout: float = 1.0
    idle_timeout: float = 60.0

    name: ClassVar = "dra"

    @property
    def timing(self) -> tuple[float, float]:
        return RATES_S, 0.0

    def tasks(self, observation: Observation) -> list[Action]:
        return fixed_tasks(observation)

    def target(self, group: Group, memory: object, observation: Observation) -> Target:
        now, host_count = observation.time, group.count + group.coming
        before = memory if isinstance(memory, Mapping) else {}
        cpu = dict(zip(observation.hosts.ids, observation.hosts.column(Metric.CPU).tolist(), strict=True))
        used = {h: before.get(h, now) if cpu.get(h, math.nan) == 0 else now for h in observation.usable}
        waits = self.pending(observation, due_seconds(group, observation, 0.0))
        slots = sum(observation.leases[host].type.width for host in observation.usable)
        if added := self.requested(host_count, math.ceil(widest(observation) / (slots / group.count)), waits):
            return Target(host_count + added, used, f"tasks wait for a slot for {waits:.2g} s of a batch")
        idle = sum(now - since >= self.idle_timeout for since in used.values())
        return Target(max(1, host_count - idle), used, f"no task ran for {self.idle_timeout:g} s")

    def requested(self, host_count: int, needed: int, waits: float) -> int:
        added = 0
        for number in range(int(waits // self.backlog_timeout)):
            if host_count + added >= needed:
                break
            added = min(needed - host_count, added + 2**number)
        return added

    def pending(self, observation: Observation, seconds: float) -> float:
        slots = sum(observation.leases[host].type.width for host in observation.usable)
        return pending_seconds(widest(observation), slots, seconds)


def pending_seconds(tasks: int, slots: int, seconds: float) -> float:
    """Return the seconds of a batch in which tasks wait for a slot: all but its last wave."""
    waves = math.ceil(tasks / slots)
    return seconds * (waves - 1) / waves if seconds > 0 else 0.0
