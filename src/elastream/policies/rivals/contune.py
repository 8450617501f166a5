"""ContTune: start big, then shrink by conservative Bayesian optimisation.

From Lian et al., "ContTune: continuous tuning by conservative Bayesian optimization for distributed stream data processing
systems" (PVLDB 16, 2023), Algorithm 1, and the acquisition and Gaussian process of its repository.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from elastream.core.frames import Floats
from elastream.core.metrics import Needs
from elastream.core.observation import Observation
from elastream.policies.rivals.groups import Group
from elastream.policies.rivals.rival import RATES_AND_BACKLOG, Rival, Target
from elastream.units import ROUNDING, format_rate

# Length scales of the Gaussian process that are tried, from the published start on; the likeliest one counts.
LENGTHS = np.geomspace(2.5, 64.0, 12)
# Observations of a number of instances whose mean counts.
REMEMBERED = 5
NOISE = 1e-6


@dataclass(frozen=True)
class ContTune(Rival):
    """Double the instances of a late operator; else use the least number near a tried one with enough predicted capacity.

    An operator falls behind if more records wait than arrive in an interval (the paper leaves its big step open). Otherwise
    a Gaussian process over the tried numbers predicts the processing ability. The least number that reaches the rate is
    taken if one within `alpha` was tried; else DS2 decides.

    Args:
        alpha: Largest distance to a number tried before; not fixed by the paper.
        interval: Time between decisions, and of the rates behind one (seconds); that of DS2.
        warm_up_time: Intervals after a change that are ignored; that of DS2.
    """

    alpha: int = 3
    interval: float = 10.0
    warm_up_time: int = 2

    name: ClassVar = "contune"
    needs: ClassVar[Needs] = RATES_AND_BACKLOG
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"warm_up_time", "alpha"})

    @property
    def timing(self) -> tuple[float, float]:
        return self.interval, self.interval

    def target(self, group: Group, memory: object, observation: Observation) -> Target:
        """Return the number of the big or the small phase. The memory holds the capacities measured at each number."""
        samples: Mapping[int, tuple[float, ...]] = memory if isinstance(memory, Mapping) else {}
        if observation.time - group.changed < self.warm_up_time * self.interval or group.coming:
            return Target(None, samples)
        if group.backlog > max(group.rate * self.interval, 1.0):
            why = f"big phase: {group.backlog:,.0f} records wait, more than arrive in {self.interval:g} s"
            return Target(2 * group.count, samples, why)
        if not 0 < group.capacity < math.inf:
            return Target(group.count, samples)
        samples = {**samples, group.count: (*samples.get(group.count, ()), group.capacity)[-REMEMBERED:]}
        count = self._suggested(samples, group.rate)
        how = "Bayesian optimisation"
        if count is None:
            count, how = math.ceil(group.rate / (group.capacity / group.count) - ROUNDING), "DS2"
        return Target(max(1, count), samples, f"small phase: {how} for {format_rate(group.rate)}")

    def _suggested(self, samples: Mapping[int, tuple[float, ...]], rate: float) -> int | None:
        """Return the least number predicted to process `rate`, unless no number near it was tried."""
        numbers = np.array(sorted(samples), dtype=np.float64)
        abilities = np.array([np.mean(samples[int(number)]) for number in numbers])
        candidates = np.arange(1.0, numbers[-1] + self.alpha + 1)
        (enough,) = (predicted(numbers, abilities, candidates) >= rate).nonzero()
        if not enough.size:
            return None
        best = candidates[enough[0]]
        return int(best) if np.abs(numbers - best).min() <= self.alpha else None


def predicted(numbers: Floats, abilities: Floats, candidates: Floats) -> Floats:
    """Return the mean of a Gaussian process (squared exponential kernel) at `candidates`."""
    scale = float(abilities.max())
    values, best, means = abilities / scale, -math.inf, np.zeros(candidates.size)
    apart, towards = (numbers[:, None] - numbers) ** 2, (candidates[:, None] - numbers) ** 2
    for length in LENGTHS:
        kernel = np.exp(-0.5 * apart / length**2) + NOISE * np.eye(numbers.size)
        weights = np.linalg.solve(kernel, values)
        variance = max(float(values @ weights) / numbers.size, 1e-12)  # the likeliest one at this length
        likelihood = -0.5 * (numbers.size * math.log(variance) + float(np.linalg.slogdet(kernel)[1]))
        if likelihood > best:
            best, means = likelihood, np.exp(-0.5 * towards / length**2) @ weights
    return np.asarray(means * scale)
