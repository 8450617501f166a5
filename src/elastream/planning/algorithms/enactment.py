"""VISP's three algorithms: when an operator needs one more instance, where it is placed, and which operator can lose one.

From "Cost-efficient enactment of stream processing topologies" (Hochreiner et al., PeerJ CS 2017), Algorithms 1 to 3;
`policies.btu` makes plans of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elastream.model.metrics import Metric
from elastream.model.observation import Floats, Observation
from elastream.model.stages import Unit
from elastream.planning.algorithms.draft import Draft

__all__ = [
    "DownscalingWeights",
    "best_host",
    "downscaling_utility",
    "host_suitability",
    "last_duration",
    "needs_upscaling",
    "predicted_duration",
]


@dataclass(frozen=True, slots=True)
class DownscalingWeights:
    """Constants of Algorithm 3: W1 to W4, the queue load QL, and the penalty P for one delayed item."""

    instances: float = 1.0
    queue_load: float = 1.0
    delay: float = 1.0
    scalings: float = 1.0
    idle_bonus: float = 100.0
    penalty: float = 0.0001


def predicted_duration(durations: Sequence[float] | Floats) -> float:
    """The duration one observation ahead, by least squares over the last N (Algorithm 1, lines 5 to 9), seconds.

    durations: seconds, oldest first, NaN (unknown) ignored; NaN if fewer than two are known. The paper numbers the newest
    observation 1, so that its N + 1 would lie in the past, and its printed slope lacks a minus sign; both are corrected:
    beta = sum((i - mean i) (d_i - mean d)) / sum((i - mean i)^2) over i = 1 (oldest) to N, and the line's value at N + 1.
    """
    values = np.asarray(durations, dtype=np.float64)
    index = np.arange(1.0, len(values) + 1)
    seen = ~np.isnan(values)
    if seen.sum() < 2:
        return float("nan")
    observation_mean, duration_mean = index[seen].mean(), values[seen].mean()
    deviation = index[seen] - observation_mean
    slope = float((deviation * (values[seen] - duration_mean)).sum() / (deviation**2).sum())
    return float(duration_mean - slope * observation_mean) + slope * (len(values) + 1)


def needs_upscaling(
    duration: float, service_level: float, durations: Sequence[float] | Floats, queue: float, scaling_threshold: float
) -> bool:
    """Whether an operator needs one more instance (Algorithm 1).

    duration, service_level: current and allowed seconds (o_d, o_slo). durations: the last N, oldest first. queue: items
    waiting (o_queue). True if the current or predicted duration exceeds the level and more than `scaling_threshold` items
    wait. Unknown values (NaN) exceed nothing.
    """
    delayed = duration > service_level or predicted_duration(durations) > service_level
    return delayed and queue > scaling_threshold


def host_suitability(draft: Draft, unit: Unit, cache_factor: float) -> Floats:
    """Suitability of each host for one more instance of `unit`, -1 if infeasible (Algorithm 2); lowest is best; (hosts,).

    feasibility = min(h_cpu* / o_cpu, h_memory* / o_memory); with the instance placed, difference = |remaining cpu / h_cpu
    - remaining memory / h_memory|; suitability = difference / feasibility, times CF if the host has the image. The paper's
    pseudocode lacks minus signs and divisions, which its prose gives. It calls a negative value feasible in one sentence
    and infeasible in all others; here it is infeasible.
    """
    feasibility = draft.feasibility(unit)
    cores, memory = draft.needs[unit.name]
    remaining_cores = (draft.free_cores - cores) / draft.cores
    remaining_memory = (draft.free_memory - memory) / draft.memory
    fits = feasibility >= 1
    suitability = np.abs(remaining_cores - remaining_memory) / np.where(fits, feasibility, 1.0)
    suitability = np.where(draft.cached(unit), suitability * cache_factor, suitability)
    return np.where(fits, suitability, -1.0)


def best_host(draft: Draft, unit: Unit, cache_factor: float, *, ready: bool = False) -> str | None:
    """The host with the lowest non-negative suitability, the older lease on a tie; None if none fits.

    ready: consider running hosts only; a migration must not wait for a host to boot.
    """
    suitability = host_suitability(draft, unit, cache_factor)
    if ready:
        suitability = np.where(draft.ready, suitability, -1.0)
    ranked = np.where(suitability >= 0, suitability, np.inf)
    if not len(ranked) or np.isinf(ranked.min()):
        return None
    return draft.hosts[int(ranked.argmin())]


def downscaling_utility(
    instances: int,
    all_instances: Sequence[int],
    duration: float,
    service_level: float | None,
    scalings: float,
    all_scalings: float,
    queue: float,
    weights: DownscalingWeights,
) -> float:
    """Utility of removing an instance of an operator (Algorithm 3); negative: not allowed; the highest is removed first.

    1 + W1 instances + W2 queue load - W3 delay - W4 scalings, where instances = (o# - min O#) / (max O# - min O#), 0 if all
    operators have equally many; queue load = QL if less than one item waits, else 0; delay = o_d / o_slo (1 + P), 0 without
    a service level; scalings = o_s / sum of O_s, 0 before any scaling. -1 below two instances. The paper does not define an
    unknown duration or queue; here both forbid the removal.
    """
    if instances < 2 or math.isnan(queue):
        return -1.0
    least, most = min(all_instances), max(all_instances)
    relative_instances = (instances - least) / (most - least) if most > least else 0.0
    queue_load = weights.idle_bonus if queue < 1 else 0.0
    delay = 0.0 if service_level is None else duration / service_level * (1 + weights.penalty)
    if math.isnan(delay):
        return -1.0
    relative_scalings = scalings / all_scalings if all_scalings > 0 and not math.isnan(scalings) else 0.0
    return (
        1
        + weights.instances * relative_instances
        + weights.queue_load * queue_load
        - weights.delay * delay
        - weights.scalings * relative_scalings
    )


def last_duration(observation: Observation, operator: str) -> float:
    """The last known duration of an operator (o_d): with rare items, it holds until the next item; NaN if unknown."""
    for operators in (observation.operators, *(sample.operators for sample in reversed(observation.history))):
        duration = operators.value(operator, Metric.DURATION)
        if not math.isnan(duration):
            return duration
    return math.nan
