"""The autoscaler of the Flink Kubernetes Operator.

From its documentation ("Autoscaler") and its code (`AutoScalerOptions`, `ScalingMetricEvaluator`, `JobVertexScaler`; 2026).
Options are named below without their prefix `job.autoscaler.`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from elastream.core.metrics import Needs
from elastream.core.observation import Observation
from elastream.policies.rivals.groups import Group
from elastream.policies.rivals.rival import RATES_AND_BACKLOG, Rival, Target
from elastream.units import ROUNDING, format_rate


class Recommendation(NamedTuple):
    """Smaller number of instances, computed at `time`; `outside`: True if the load was outside the band."""

    time: float
    number: int
    outside: bool


class Delayed(NamedTuple):
    since: float
    recommendations: tuple[Recommendation, ...]


@dataclass(frozen=True)
class Flink(Rival):
    """Fill instances to `utilization_target`, with capacity for a restart and for the backlog.

    The backlog is to be processed within `catch_up`. Each operator has a band of true processing rates without any action.
    After a change, the next decision waits for the `stabilization_interval` and for a full `metrics_window`. An operator
    shrinks once smaller numbers were computed for the whole `scale_down_interval`, to the largest of them. Arguments are
    named after Flink's options; durations are seconds.

    Args:
        utilization_boundary: `target.utilization.boundary`: half the width of the band.
        restart_time: `restart.time`: time for which records wait after a change.
        scale_down_max_factor: `scale-down.max-factor`: largest part of the instances to remove at once.
        lag_threshold: `backlog-processing.lag-threshold`: with more backlog the band reaches from 0 to 1.
        interval: `kubernetes.operator.reconcile.interval`: time between decisions.
    """

    utilization_target: float = 0.7
    utilization_boundary: float = 0.3
    metrics_window: float = 900.0
    stabilization_interval: float = 300.0
    catch_up: float = 1800.0
    restart_time: float = 300.0
    scale_down_interval: float = 3600.0
    scale_down_max_factor: float = 0.6
    lag_threshold: float = 300.0
    interval: float = 60.0

    name: ClassVar = "flink"
    needs: ClassVar[Needs] = RATES_AND_BACKLOG
    shares: ClassVar[frozenset[str]] = frozenset({"utilization_target", "utilization_boundary", "scale_down_max_factor"})
    may_be_zero: ClassVar[frozenset[str]] = frozenset(
        {"utilization_boundary", "stabilization_interval", "restart_time", "scale_down_interval", "catch_up"}
    )

    @property
    def timing(self) -> tuple[float, float]:
        return self.metrics_window, self.interval

    def target(self, group: Group, memory: object, observation: Observation) -> Target:
        now, host_count = observation.time, group.count + group.coming
        delayed = memory if isinstance(memory, Delayed) and memory.since >= group.changed else None
        if now - group.changed < self.stabilization_interval + self.metrics_window or math.isnan(group.capacity):
            return Target(None, delayed)
        factor = self.needed(group, self.utilization_target, restarts=True) / group.capacity
        count = max(1, math.ceil(group.count * max(factor, 1 - self.scale_down_max_factor) - ROUNDING))
        needs = f"{format_rate(group.rate)} and {group.backlog:,.0f} waiting need {factor:.3g} times the capacity"
        if count >= group.count:
            return Target(count if count > group.count and self.outside(group) else host_count, None, needs)
        recommendation = Recommendation(now, count, self.outside(group))
        earlier = delayed.recommendations if delayed else ()
        recommendations = (*(each for each in earlier if each.time >= now - self.scale_down_interval), recommendation)
        delayed = Delayed(delayed.since if delayed else now, recommendations)
        if now - delayed.since < self.scale_down_interval:
            return Target(host_count, delayed)
        largest = max(recommendations, key=lambda each: (each.number, each.time))
        return Target(largest.number if largest.outside else host_count, delayed, needs)

    def needed(self, group: Group, utilisation: float, *, restarts: bool) -> float:
        """Return the capacity for the rate at `utilisation`, plus that to catch up (records/s)."""
        if utilisation <= 0:
            return math.inf
        behind = group.backlog + (group.rate * self.restart_time if restarts else 0.0)
        return group.rate / min(1.0, utilisation) + (behind / self.catch_up if self.catch_up else 0.0)

    def outside(self, group: Group) -> bool:
        low, high = (self.utilization_target + sign * self.utilization_boundary for sign in (-1, 1))
        if group.backlog > self.lag_threshold * group.capacity * group.load:
            low, high = 0.0, 1.0
        least, most = self.needed(group, high, restarts=False), self.needed(group, low, restarts=True)
        return not least <= group.capacity <= most
