"""Kubernetes' horizontal pod autoscaler on CPU utilisation.

From "Horizontal Pod Autoscaling" in the documentation of Kubernetes (autoscaling/v2), sections Algorithm details and
Default behaviour. Defaults: `--horizontal-pod-autoscaler-sync-period` 15s, `-tolerance` 0.1, `scaleUp` by 4 pods or 100 %
in 15 s, whichever is more, `scaleDown.stabilizationWindowSeconds` 300.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Observation
from elastream.policies.rivals.groups import Group
from elastream.policies.rivals.rival import Rival, Target
from elastream.units import ROUNDING

# Most pods that one scaling policy adds in a sync period; the other doubles them.
MOST_PODS = 4


@dataclass(frozen=True)
class Hpa(Rival):
    """Use the hosts that bring CPU utilisation to `target_utilisation`.

    Pods are hosts if chained, else instances of an operator. The number is the present one times utilisation over target,
    rounded up. Pods that are not ready count as idle where that lowers a rise. A fall follows the highest recommendation of
    the `stabilisation` window. The backlog is ignored.

    Args:
        target_utilisation: `target.averageUtilization`, as a part of the cores. Unset, Kubernetes takes 0.8.
        tolerance: Part of the target by which it may be missed.
        sync_period: Time between decisions, and of the utilisation behind one (seconds).
        stabilisation: Window for a fall (`stabilizationWindowSeconds`).
    """

    target_utilisation: float = 0.7
    tolerance: float = 0.1
    sync_period: float = 15.0
    stabilisation: float = 300.0

    name: ClassVar = "hpa"
    needs: ClassVar[Needs] = frozenset({(Rows.OPERATOR, Metric.BUSY_CORES)})
    shares: ClassVar[frozenset[str]] = frozenset({"target_utilisation"})
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"tolerance", "stabilisation"})

    @property
    def timing(self) -> tuple[float, float]:
        return self.sync_period, self.sync_period

    def target(self, group: Group, memory: object, observation: Observation) -> Target:
        now, present = observation.time, group.count + group.coming
        recommended = self.recommended(group.load, group.count, group.coming)
        past = memory if isinstance(memory, tuple) else ()
        recent = (*(each for each in past if each[0] > now - self.stabilisation), (now, recommended))
        count = min(recommended, max(present + MOST_PODS, 2 * present))
        if count < present:
            count = min(present, max(number for _, number in recent))
        return Target(count, recent, f"CPU is at {group.load:.0%}, and {self.target_utilisation:.0%} is the target")

    def recommended(self, load: float, ready: int, unready: int) -> int:
        """Return the pods that the utilisation requires, before any limit."""
        ratio, counted = load / self.target_utilisation, ready
        if ratio > 1 and unready:
            counted = ready + unready
            ratio *= ready / counted
            if ratio < 1:  # the pods on their way would turn the rise into a fall
                return counted
        if abs(ratio - 1) <= self.tolerance + ROUNDING:
            return ready + unready
        return max(1, math.ceil(ratio * counted - ROUNDING))
