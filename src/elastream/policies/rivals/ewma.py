"""The rule of Amadeus' Elastic Scaling for Spark.

From the documentation of AmadeusITGroup/Elastic-Scaling, whose options are named below without their prefix
`com.amadeus.elastic_scaling.`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from elastream.core.observation import Observation
from elastream.errors import ElastreamError
from elastream.policies.common.measures import TICK
from elastream.policies.rivals.batches import due_seconds
from elastream.policies.rivals.groups import Group
from elastream.policies.rivals.rival import ChainedRival, Target
from elastream.units import ROUNDING

# Trigger interval without a target latency, and time over which the true processing rate is measured (seconds).
TRIGGER_S, RATES_S = 1.0, 10.0


class Smoothed(NamedTuple):
    ratios: float = 1.0
    weights: float = 1.0
    ends: float = -math.inf


@dataclass(frozen=True)
class Ewma(ChainedRival):
    """Multiply the hosts by the smoothed ratio of batch duration to trigger interval if the ratio leaves its band.

    The ratio begins at 1. Nothing changes while hosts come or leave.

    Args:
        threshold_high: `threshold.high`: ratio above which hosts are added.
        threshold_low: `threshold.low`: ratio below which hosts are removed.
        smoothing_factor: `executors.smoothing_factor`: weight of the past.
        trigger: Trigger interval (seconds). None: half of the target latency, within which a record
            waits for its batch and is processed; 1 s without a target.
    """

    threshold_high: float = 1.0
    threshold_low: float = 0.75
    smoothing_factor: float = 0.6
    trigger: float | None = None

    name: ClassVar = "ewma"
    shares: ClassVar[frozenset[str]] = frozenset({"smoothing_factor"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold_low > self.threshold_high:
            raise ElastreamError(f"threshold_low is {self.threshold_low:g}, above threshold_high ({self.threshold_high:g})")

    @property
    def timing(self) -> tuple[float, float]:
        return RATES_S, 0.0

    def target(self, group: Group, memory: object, observation: Observation) -> Target:
        before, now = memory if isinstance(memory, Smoothed) else Smoothed(), observation.time
        trigger = self.trigger or (observation.context.target_latency or 2 * TRIGGER_S) / 2
        seconds = due_seconds(group, observation, trigger)
        if now < before.ends - TICK or math.isnan(seconds):
            return Target(None, before)
        ratios = before.ratios * self.smoothing_factor + seconds / trigger
        weights = before.weights * self.smoothing_factor + 1
        after, ratio = Smoothed(ratios, weights, now + max(trigger, seconds)), ratios / weights
        if group.coming or observation.recoverable:
            return Target(None, after)
        if self.threshold_low <= ratio <= self.threshold_high:
            return Target(group.count, after)
        why = f"batches take {ratio:.2f} of the trigger interval of {trigger:g} s"
        return Target(max(1, math.ceil(group.count * ratio - ROUNDING)), after, why)
