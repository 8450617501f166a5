"""The rule of Amadeus' Elastic Scaling for Spark: smoothed batch duration over trigger interval.

From the documentation of AmadeusITGroup/Elastic-Scaling, whose options are named below without their prefix
`com.amadeus.elastic_scaling.`. GumGum scales Structured Streaming by the same ratio.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Observation
from elastream.errors import ElastreamError
from elastream.policies.common.measures import TICK
from elastream.policies.rivals.batches import Batches, due_seconds, with_new
from elastream.policies.rivals.groups import Group
from elastream.policies.rivals.rival import ChainedRival, Target
from elastream.units import ROUNDING

# Trigger interval without a target latency (seconds).
TRIGGER_S = 1.0


@dataclass(frozen=True)
class Smoothed:
    """Sums of the smoothed ratio, the time of its last term, and the batches that predict the next one."""

    ratios: float = 1.0
    weights: float = 1.0
    time: float = -math.inf
    batches: Batches = field(default_factory=dict)


@dataclass(frozen=True)
class Ewma(ChainedRival):
    """Multiply the hosts by the smoothed ratio of batch duration to trigger interval where that leaves its band.

    The ratio begins at 1. Nothing changes while hosts come or leave.

    Args:
        threshold_high: `threshold.high`: ratio above which hosts are added.
        threshold_low: `threshold.low`: ratio below which hosts are taken away.
        smoothing_factor: `executors.smoothing_factor`: weight of the past.
        trigger: Trigger interval (seconds), one decision each. None: half of the target latency, within which a record
            waits for its batch and is processed; 1 s without a target.
    """

    threshold_high: float = 1.0
    threshold_low: float = 0.75
    smoothing_factor: float = 0.6
    trigger: float | None = None

    name: ClassVar = "ewma"
    needs: ClassVar[Needs] = frozenset({(Rows.OPERATOR, Metric.ARRIVAL_RATE)})
    shares: ClassVar[frozenset[str]] = frozenset({"smoothing_factor"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold_low > self.threshold_high:
            raise ElastreamError(f"threshold_low is {self.threshold_low:g}, above threshold_high ({self.threshold_high:g})")

    @property
    def timing(self) -> tuple[float, float]:
        """Batches are read in each round; `target` decides once a trigger interval."""
        return TRIGGER_S, 0.0

    def target(self, group: Group, memory: object, observation: Observation) -> Target:
        """Return the hosts times the smoothed ratio, if it is outside the band. The memory is a `Smoothed`."""
        before, now = memory if isinstance(memory, Smoothed) else Smoothed(), observation.time
        batches = with_new(before.batches, observation)
        trigger = self.trigger or (observation.context.target_latency or 2 * TRIGGER_S) / 2
        seconds = due_seconds(observation, batches, trigger)
        if now - before.time < trigger - TICK or math.isnan(seconds):
            return Target(None, replace(before, batches=batches))
        ratios = before.ratios * self.smoothing_factor + seconds / trigger
        weights = before.weights * self.smoothing_factor + 1
        after, ratio = Smoothed(ratios, weights, now, batches), ratios / weights
        if group.coming or observation.draining:
            return Target(None, after)
        if self.threshold_low <= ratio <= self.threshold_high:
            return Target(group.count, after)
        why = f"batches take {ratio:.2f} of the trigger interval of {trigger:g} s"
        return Target(max(1, math.ceil(group.count * ratio - ROUNDING)), after, why)
