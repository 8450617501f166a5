"""Databricks' enhanced autoscaling: task slot utilisation and task queue size.

From "Enhanced autoscaling" in the documentation of Databricks' declarative pipelines. It names these two metrics and says
that machines are shut down though they are not idle. Thresholds are not published. The time to scale down is the 40 s of
job clusters ("Compute configuration reference", optimized autoscaling).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from elastream.core.action import Action
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Observation
from elastream.policies.rivals.batches import fixed_tasks, widest
from elastream.policies.rivals.groups import Group
from elastream.policies.rivals.rival import ChainedRival, Target
from elastream.units import ROUNDING


@dataclass(frozen=True)
class Databricks(ChainedRival):
    """Have the hosts whose slots take the busy tasks and those that wait for a slot, averaged over time.

    A stage has a fixed number of tasks. While it runs, those beyond the slots wait, on average half of the time. Hosts are
    added if busy and waiting tasks exceed the slots. They go if these tasks filled less than `utilisation` of the slots for
    `scale_down` seconds. The rate and the records that wait count for nothing.

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
        """Utilisation of one interval, decided on once an interval."""
        return self.interval, self.interval

    def tasks(self, observation: Observation) -> list[Action]:
        """Return changes towards a fixed number of tasks."""
        return fixed_tasks(observation)

    def target(self, group: Group, memory: object, observation: Observation) -> Target:
        """Return the hosts for the tasks of the interval. The memory has (time, tasks) of the last decisions."""
        now, slots = observation.time, sum(observation.leases[host].type.width for host in observation.usable)
        queued = max(0, widest(observation) - slots) / 2 * min(1.0, group.load)
        tasks, width = group.load * slots + queued, slots / group.count
        past = memory if isinstance(memory, tuple) else ()
        first = min((at for at, _ in past), default=now)
        recent = (*(each for each in past if each[0] > now - self.scale_down), (now, tasks))
        why = f"{group.load:.0%} of {slots} slots are busy, and {queued:.3g} tasks wait"
        there = group.count + group.coming
        if tasks > slots and queued:
            return Target(max(there, math.ceil(tasks / width - ROUNDING)), recent, why)
        fewer = math.ceil(max(number for _, number in recent) / (self.utilisation * width) - ROUNDING)
        keeps = (*(each for each in past if each[0] <= now - self.scale_down), *recent)
        if now - first < self.scale_down or fewer >= there:
            return Target(there, keeps[-len(recent) - 1 :], why)
        return Target(max(1, fewer), keeps[-len(recent) - 1 :], why)
