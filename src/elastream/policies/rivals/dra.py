"""Spark's dynamic resource allocation: executors for the backlog of tasks, removed when idle.

From "Dynamic Resource Allocation" in Spark's documentation (Job Scheduling), sections Request policy and Remove policy.
Options are named below without their prefix `spark.dynamicAllocation.`. An executor is a host.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from elastream.core.action import Action
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Observation
from elastream.policies.rivals.batches import Batches, due_seconds, fixed_tasks, widest, with_new
from elastream.policies.rivals.groups import Group
from elastream.policies.rivals.rival import ChainedRival, Target


@dataclass(frozen=True)
class Executors:
    """Memory: hosts to add next, the time when each host was last busy, and the last batches."""

    adding: int = 1
    busy: Mapping[str, float] = field(default_factory=dict)
    batches: Batches = field(default_factory=dict)


@dataclass(frozen=True)
class Dra(ChainedRival):
    """Request 1, 2, 4, ... hosts while tasks wait for a slot; give up a host that ran no task for `idle_timeout`.

    A stage has a fixed number of tasks. With more tasks than slots, tasks wait until the last wave starts. Requests begin
    anew in each batch, and end where all tasks would run at once. A host is busy if its CPU was used.

    Args:
        backlog_timeout: `schedulerBacklogTimeout`, also used as `sustainedSchedulerBacklogTimeout` (seconds).
        idle_timeout: `executorIdleTimeout` (seconds).
    """

    backlog_timeout: float = 1.0
    idle_timeout: float = 60.0

    name: ClassVar = "dra"
    needs: ClassVar[Needs] = frozenset({(Rows.OPERATOR, Metric.ARRIVAL_RATE)})

    @property
    def timing(self) -> tuple[float, float]:
        """Batches are read, and a decision made, in each round."""
        return 1.0, 0.0

    def tasks(self, observation: Observation) -> list[Action]:
        """Return changes towards a fixed number of tasks."""
        return fixed_tasks(observation)

    def target(self, group: Group, memory: object, observation: Observation) -> Target:
        """Return the hosts after the requests of the last batch, less idle ones. The memory is `Executors`."""
        before, now = memory if isinstance(memory, Executors) else Executors(), observation.time
        batches, there = with_new(before.batches, observation), group.count + group.coming
        cpu = dict(zip(observation.hosts.ids, observation.hosts.column(Metric.CPU).tolist(), strict=True))
        busy = {h: before.busy.get(h, now) if cpu.get(h, math.nan) == 0 else now for h in observation.usable}
        width = max(observation.leases[host].type.width for host in observation.usable)
        needed = math.ceil(widest(observation) / width)
        waits = self.pending(observation, due_seconds(observation, batches, 0.0)) if observation.batches else 0.0
        times, added, adding = int(waits // self.backlog_timeout), 0, 1
        for _ in range(times):
            step = min(adding, needed - there - added)
            if step <= 0:
                break
            added, adding = added + step, 2 * adding
        after = Executors(adding, busy, batches)
        if added:
            return Target(there + added, after, f"tasks wait for a slot for {waits:.2g} s of a batch")
        idle = sum(now - since >= self.idle_timeout for since in busy.values())
        why = f"no task ran for {self.idle_timeout:g} s"
        return Target(max(1, group.count - idle) + group.coming if idle else there, after, why)

    def pending(self, observation: Observation, seconds: float) -> float:
        """Return the seconds of a batch in which tasks wait for a slot: all but its last wave."""
        slots = sum(observation.leases[host].type.width for host in observation.usable)
        waves = math.ceil(widest(observation) / slots)
        return seconds * (waves - 1) / waves if seconds > 0 else 0.0
