"""Databricks' enhanced autoscaling: task slot utilisation and task queue size.

From "Enhanced autoscaling" in the documentation of Databricks' declarative pipelines, which publishes no thresholds. The
time to scale down is that of job clusters ("Compute configuration reference", optimized autoscaling).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from elastream.core.action import Action
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Observation
from elastream.policies.rivals.batches import fixed_tasks, widest
from elastream.policies.rivals.groups import Group
from elastream.policies.rivals.rival import ChainedRival, Target
from elastream.units import ROUNDING


class Usage(NamedTuple):
    """Memory: time of the first decision, and (time, busy and waiting tasks) of those within `scale_down`."""

    since: float
    tasks: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Databricks(ChainedRival):
    """Use enough hosts for the busy tasks and the tasks that wait for a slot, averaged over time.

    A stage has a fixed number of tasks. While it runs, those beyond the slots wait, on average half of the time. Hosts are
    added if busy and waiting tasks exceed the slots. They go if these tasks filled less than `utilisation` of the slots for
    `scale_down` seconds. Rate and backlog are ignored.

    Args:
        utilisation: Slots to fill after a scale-down; assumed.
        scale_down: Time of low utilisation before hosts go (seconds).
        interval: Time over which utilisation is averaged, and between decisions (seconds); assumed.
    """

    utilisation: float = 0.7
    scale_down: float = 40.0
    interval: float = 10.0

    name: ClassVar = "databricks"
    needs: ClassVar[Needs] = frozenset({(Rows.OPERATOR, Metric.BUSY_CORES)})
    shares: ClassVar[frozenset[str]] = frozenset({"utilisation"})
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"scale_down"})

    @property
    def timing(self) -> tuple[float, float]:
        return self.interval, self.interval

    def tasks(self, observation: Observation) -> list[Action]:
        return fixed_tasks(observation)

    def target(self, group: Group, memory: object, observation: Observation) -> Target:
        now, slots = observation.time, sum(observation.leases[host].type.width for host in observation.usable)
        queued = max(0, widest(observation) - slots) / 2 * min(1.0, group.load)
        tasks, width, host_count = group.load * slots + queued, slots / group.count, group.count + group.coming
        before = memory if isinstance(memory, Usage) else Usage(now)
        usage = Usage(before.since, (*(each for each in before.tasks if each[0] > now - self.scale_down), (now, tasks)))
        why = f"{group.load:.0%} of {slots} slots are busy, and {queued:.3g} tasks wait"
        if queued and tasks > slots:
            return Target(max(host_count, math.ceil(tasks / width - ROUNDING)), usage, why)
        fewer = math.ceil(max(number for _, number in usage.tasks) / (self.utilisation * width) - ROUNDING)
        if now - usage.since < self.scale_down:
            return Target(host_count, usage)
        return Target(min(host_count, max(1, fewer)), usage, why)
