"""DS2: instances by true processing rates.

From Kalavri et al., "Three steps is all you need: fast, accurate, automatic scaling decisions for distributed streaming
dataflows" (OSDI 2018), Equations 7 and 8. Names and defaults are those of `controller/config/ds2.toml` in its repository.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from elastream.core.observation import Observation
from elastream.policies.rivals.groups import Group
from elastream.policies.rivals.rival import Rival, Target
from elastream.units import ROUNDING, format_rate


@dataclass(frozen=True)
class Ds2(Rival):
    """Use the instances that the offered rate fills, each at its true processing rate.

    The true rate counts records per second of useful time. Chained, operators share cores as in Timely, where the needs of
    all operators add up. DS2 plans for the rate alone, without backlog or reserve. One instance fewer is not worth a
    reconfiguration.

    Args:
        policy_interval: Time between decisions, and of the rates behind one (seconds).
        warm_up_time: Intervals after a change that are ignored.
        activation_time: Intervals that must agree; the highest number counts.
        scaling_factor: Instances on top, as a part of the need.
    """

    policy_interval: float = 10.0
    warm_up_time: int = 2
    activation_time: int = 1
    scaling_factor: float = 0.0

    name: ClassVar = "ds2"
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"warm_up_time", "scaling_factor"})

    @property
    def timing(self) -> tuple[float, float]:
        return self.policy_interval, self.policy_interval

    def target(self, group: Group, memory: object, observation: Observation) -> Target:
        if observation.time - group.changed < self.warm_up_time * self.policy_interval:
            return Target(None)
        if math.isnan(group.capacity):
            return Target(None, memory)
        needed = group.rate / (group.capacity / group.count) * (1 + self.scaling_factor)
        count = max(1, math.ceil(needed - ROUNDING))
        votes = (*(memory if isinstance(memory, tuple) else ()), count)[-self.activation_time :]
        if len(votes) < self.activation_time:
            return Target(None, votes)
        count, host_count = max(votes), group.count + group.coming
        why = f"{format_rate(group.rate)} fills {needed:.3g}, each processing {format_rate(group.capacity / group.count)}"
        return Target(count if count > host_count or count < host_count - 1 else host_count, votes, why)
