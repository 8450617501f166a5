"""Daedalus: capacity by regression, forecast of the load, and a target for the recovery time.

From Pfister et al., "Daedalus: self-adaptive horizontal autoscaling for resource efficiency of distributed stream
processing systems" (ICPE 2024), with rules and defaults of its repository.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from elastream.core.frames import Floats
from elastream.core.metrics import Needs
from elastream.core.observation import Observation
from elastream.policies.rivals.groups import Group
from elastream.policies.rivals.rival import RATES_AND_BACKLOG, Rival, Target
from elastream.units import format_rate

# Seconds without processing after a rescaling up and down; seconds of records read again from the last checkpoint.
DOWN_UP_S, DOWN_DOWN_S, CHECKPOINT_S = 30, 15, 10
# Seconds after a rescaling without any change, with necessary changes only, and with samples that do not count.
STABLE_S, CALM_S, WARM_UP_S = 180.0, 600.0, 120.0
# Most hosts or instances that are examined.
MOST = 200
# Seconds forecast by the series and by the line; error from which the line is used; most and fewest loops to fit; order of
# the model.
AHEAD_S, LINE_S, WORST_ERROR, LOOPS, FEWEST, ORDER = 900, 600, 0.25, 120, 10, 2


@dataclass(frozen=True)
class Knowledge:
    """Memory: sums of the regression, capacity by number, load by loop and its forecast."""

    sums: tuple[float, ...] = (0.0,) * 5
    capacities: Mapping[int, float] = field(default_factory=dict)
    loads: tuple[float, ...] = ()
    expected: float = math.nan
    rescaled: float = -math.inf


@dataclass(frozen=True)
class Daedalus(Rival):
    """Use the least number that serves the forecast load and recovers from its own rescaling within `recovery_target`.

    The capacity is where the line through utilisation and throughput reaches full utilisation; numbers that never ran have
    one in proportion. An autoregressive model forecasts 15 minutes (the authors search an ARIMA model), or a line through
    the last loop while that errs. Hosts are equal here, so no worker limits the others.

    Args:
        recovery_target: `target_recovery_time` (seconds).
        loop_time: Time between decisions, and of the figures behind one (seconds).
        max_scaleout: Most hosts or instances (18 in its experiments). None: `max_hosts`, at most MOST.
    """

    recovery_target: float = 600.0
    loop_time: float = 60.0
    max_scaleout: int | None = None

    name: ClassVar = "daedalus"
    needs: ClassVar[Needs] = RATES_AND_BACKLOG

    @property
    def timing(self) -> tuple[float, float]:
        return self.loop_time, self.loop_time

    def target(self, group: Group, memory: object, observation: Observation) -> Target:
        now, before = observation.time, memory if isinstance(memory, Knowledge) else Knowledge()
        knowledge = with_samples(before, group)
        forecast, loads = forecast_of(knowledge, group, self.loop_time), knowledge.loads
        knowledge = replace(knowledge, expected=_autoregressive(loads, 1)[0] if len(loads) >= FEWEST else math.nan)
        capacity, since = knowledge.capacities.get(group.count, 0.0), now - knowledge.rescaled
        soon = max(group.rate, forecast[: int(self.loop_time)].max())
        if since < STABLE_S or group.coming or not capacity > 0 or (since < CALM_S and capacity > soon):
            return Target(None, knowledge)
        most = min(self.max_scaleout or MOST, observation.context.max_hosts)
        count = self.least(group, knowledge.capacities, forecast, most)
        why = f"{format_rate(group.rate)}, at most {format_rate(float(forecast.max()))} forecast; {count} recover in time"
        return Target(count, knowledge if count == group.count else replace(knowledge, rescaled=now), why)

    def least(self, group: Group, capacities: Mapping[int, float], forecast: Floats, most: int) -> int:
        """Return the least number that suffices, `most` if none does."""
        each = capacities[group.count] / group.count
        for count in range(1, most):
            capacity = capacities.get(count, count * each)
            if not capacity > group.rate:
                continue
            recovery = recovery_time(group, capacity, forecast, down=count < group.count)
            if recovery > self.recovery_target or capacity < forecast[: int(recovery)].max():
                continue
            if count == group.count:
                return count
            behind = count < group.count and capacities[group.count] < group.backlog
            if capacity > forecast.max() and not behind:
                return count
        return most


def with_samples(before: Knowledge, group: Group) -> Knowledge:
    """Return the knowledge with the samples of the last loop: regression by Welford's sums, and capacity."""
    warm = group.times >= group.changed + WARM_UP_S
    count, mean_x, mean_y, var_x, cov_xy = before.sums
    for x, y in zip(group.busy[warm], group.processed[warm] / group.count, strict=True):
        if not math.isnan(x + y):
            count, deviation = count + 1, x - mean_x
            mean_x, mean_y = mean_x + deviation / count, mean_y + (y - mean_y) / count
            var_x, cov_xy = var_x + deviation * (x - mean_x), cov_xy + deviation * (y - mean_y)
    capacities = dict(before.capacities)
    if count and mean_x > 0:
        slope = cov_xy / var_x if var_x > 0 else 0.0
        full = mean_y + slope * (1 - mean_x) if slope > 0 else mean_y / mean_x
        capacities[group.count] = (capacities.get(group.count, group.count * full) + group.count * full) / 2
    loads = (*before.loads, group.rate)[-LOOPS:]
    return replace(before, sums=(count, mean_x, mean_y, var_x, cov_xy), capacities=capacities, loads=loads)


def forecast_of(knowledge: Knowledge, group: Group, step: float) -> Floats:
    """Return the load of each coming second: by the series of `step` seconds if its last forecast held, else by a line."""
    if group.rate > 0 and abs(group.rate - knowledge.expected) / group.rate < WORST_ERROR:
        values = np.concatenate([[group.rate], _autoregressive(knowledge.loads, math.ceil(AHEAD_S / step))])
        return np.asarray(np.interp(np.arange(1, AHEAD_S + 1), step * np.arange(values.size), values))
    usable = ~np.isnan(group.arriving)
    times, loads = group.times[usable] - group.times[-1], group.arriving[usable]
    slope, level = np.polyfit(times, loads, 1) if times.size > 1 else (0.0, group.rate)
    return np.asarray(np.maximum(0.0, level + slope * np.arange(1, LINE_S + 1)))


def _autoregressive(loads: tuple[float, ...], steps: int) -> Floats:
    """Return the next `steps` values of a series whose differences depend on the last ORDER ones."""
    differences = np.diff(loads)
    past = np.column_stack([differences[lag : differences.size - ORDER + lag] for lag in range(ORDER)])
    weights = np.linalg.lstsq(past, differences[ORDER:], rcond=None)[0]
    recent, values = list(differences[-ORDER:]), [loads[-1]]
    for _ in range(steps):
        recent = [*recent[1:], float(np.dot(weights, recent))]
        values.append(max(0.0, values[-1] + recent[-1]))
    return np.array(values[1:])


def recovery_time(group: Group, capacity: float, forecast: Floats, *, down: bool) -> float:
    """Return the seconds until the backlog of a rescaling is processed; an hour if beyond the forecast."""
    stopped = DOWN_DOWN_S if down else DOWN_UP_S
    waiting = group.rate * CHECKPOINT_S + float(forecast[:stopped].sum()) + group.backlog
    spare = np.maximum(0.0, capacity - forecast[stopped:]).cumsum()
    (caught_up,) = (spare > waiting).nonzero()
    return float(caught_up[0]) + stopped if caught_up.size else 3600.0
