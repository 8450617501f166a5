"""Robust local linear trend of a rate, now and a short time ahead, with its error.

Theil-Sen's slope and medians, over the samples after the last jump. A slope within its error counts as 0.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import dropwhile, pairwise

import numpy as np

from elastream.core.frames import Floats, Integers

# Seconds for which a surprise counts: long compared with the start of a host, short compared with a day.
MEMORY_S = 7200.0
# Surprises of a size within MEMORY_S after which another one is expected: a single one is no pattern.
RECURS = 2
# Part of the expected value by which the level must exceed it. Less fits into the reserve of the hosts.
NOTICED = 0.25

# Rounds that are appended one by one before an array takes them.
NEWER = 64
NONE: Floats = np.zeros((3, 0))


@dataclass(frozen=True, eq=False, slots=True)
class Surprises:
    """Jumps of the load above its forecast.

    Rounds of excess less than a horizon apart are one surprise. Its size is the excess that lasts at least half a horizon.

    Attributes:
        older: Times, levels and forecasts of earlier rounds, oldest first; shape (3, rounds).
        jumps: (time of the last round, largest excesses, descending) of each surprise, oldest first.
        newer: (time, level, forecast) of the rounds after those; at most NEWER.
    """

    older: Floats = field(default_factory=lambda: NONE)
    jumps: tuple[tuple[float, tuple[float, ...]], ...] = ()
    newer: tuple[tuple[float, float, float], ...] = ()

    @property
    def rounds(self) -> Floats:
        """Times, levels and forecasts of the last MEMORY_S seconds, oldest first; shape (3, rounds)."""
        rounds = np.concatenate([self.older, np.array(self.newer).reshape(-1, 3).T], axis=1)
        times = rounds[0]
        return rounds[:, int(times.searchsorted(times[-1] - MEMORY_S)) :] if times.size else rounds

    def after(self, time: float, level: float, expected: float, horizon: float, pace: float) -> "Surprises":
        """Return the surprises after the round at `time`. No argument is NaN."""
        foreseen = self._foreseen(time - horizon)
        exceeded = level - foreseen
        jumps = tuple(dropwhile(lambda each: each[0] < time - MEMORY_S, self.jumps))
        if exceeded > NOTICED * foreseen:
            goes_on = bool(jumps) and time - jumps[-1][0] < horizon
            excesses = sorted((exceeded, *(jumps[-1][1] if goes_on else ())), reverse=True)
            now = (time, tuple(excesses[: _lasting(horizon, pace)]))
            jumps = (*(jumps[:-1] if goes_on else jumps), now)
        older, newer = (self.rounds, ()) if len(self.newer) == NEWER else (self.older, self.newer)
        return Surprises(older, jumps, (*newer, (time, level, expected)))

    def _foreseen(self, time: float) -> float:
        for at, _, expected in reversed(self.newer):
            if at <= time:
                return expected
        row = int(self.older[0].searchsorted(time, side="right")) - 1
        return float(self.older[2, row]) if row >= 0 else math.nan

    def upper(self, expected: float, horizon: float, pace: float) -> float:
        """Return `expected` after a jump that recurs within `horizon` seconds; at most the highest level remembered."""
        least = _lasting(horizon, pace)
        sizes = sorted((excesses[-1] for _, excesses in self.jumps if len(excesses) >= least), reverse=True)
        if len(sizes) < RECURS:
            return expected
        return max(expected, min(expected + sizes[RECURS - 1], float(self.rounds[1].max())))


def _lasting(horizon: float, pace: float) -> int:
    return max(1, round(horizon / max(pace, 1e-9) / 2))


# Most points of a trend; more samples are averaged into so many.
POINTS = 40
# Points needed for a slope: with fewer, one outlier makes any slope.
LEAST_FOR_SLOPE = 5
# Standard deviations of the steps between points from which a step is a jump: about once in 10^9 normal ones.
JUMP = 6.0
# Standard errors that a slope must exceed: one false slope in 400, since a decision is made every few seconds.
SURE = 3.0
# Least noise as a part of the level: counts over short periods are rounded.
FLOOR = 0.01
# Part by which samples may differ that repeat one measurement. Slow growth must differ by more.
HELD = 1e-3
# Median absolute deviation to standard deviation, for a normal distribution.
NORMAL = 1.4826


@dataclass(frozen=True, slots=True)
class Forecast:
    """Value and growth of a quantity.

    Attributes:
        slope: Growth per second; 0 if uncertain.
        error: Standard error of `expected`, as a mean over the requested period.
    """

    level: float
    slope: float
    expected: float
    error: float


def forecast(times: Floats, values: Floats, horizon: float, over: float) -> Forecast:
    """Return the value `horizon` seconds after the last sample, averaged over `over` seconds.

    Args:
        times: Strictly ascending (seconds); shape (samples,).
        values: Not negative, NaN if unknown; shape (samples,).
    """
    unknown = np.isnan(values)
    if unknown.any():
        times, values = times[~unknown], values[~unknown]
    result = _of_points(*_averaged(times, values), horizon, over)
    # A rate that holds for several samples is one measurement: of two such, noise alone makes a sure slope.
    if not (values.size and result.slope):
        return result
    at, means = _measurements(times, values)
    return _of_points(*_averaged(at, means), horizon + float(times[-1] - at[-1]), over)


def _measurements(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    first, begins = math.nan, list[int]()
    for row, value in enumerate(values.tolist()):
        if not abs(value - first) <= HELD * abs(first):
            first = value
            begins.append(row)
    counts = np.diff([*begins, values.size])
    return np.add.reduceat(times, begins) / counts, np.add.reduceat(values, begins) / counts


def _of_points(times: list[float], values: list[float], horizon: float, over: float) -> Forecast:
    """Return the forecast of at most POINTS known values."""
    if not values:
        return Forecast(math.nan, math.nan, math.nan, math.nan)
    if values.count(values[0]) == len(values):
        level = values[0]  # a shortcut with the same result: most rounds of a quiet run are idle
        independent = min(_independent(times, over), len(times))
        return Forecast(level, 0.0, level, FLOOR * level / math.sqrt(independent))
    times, values = _since_jump(times, values)
    independent = _independent(times, over)
    if len(times) < LEAST_FOR_SLOPE:
        level = _median(values[-3:]) if len(times) > 2 else values[-1]
        noise = max(_deviation(values), FLOOR * level)
        return Forecast(level, 0.0, level, noise / math.sqrt(min(independent, len(times))))
    since = [time - times[-1] for time in times]
    slope = _theil_sen(since, values)
    levels = [value - slope * time for time, value in zip(since, values, strict=True)]
    noise = max(_deviation(levels), FLOOR * _median(values))
    mean = sum(since) / len(since)
    slope_error = noise / math.sqrt(sum((time - mean) ** 2 for time in since))
    if abs(slope) <= SURE * (1 + 4 / (len(times) - 2)) * slope_error:  # few points say little about their own noise
        recent = [value for time, value in zip(since, values, strict=True) if time >= -over] if over > 0 else values[-1:]
        level = _median(recent if len(recent) >= 3 else values[-3:])
        return Forecast(level, 0.0, level, noise / math.sqrt(independent))
    level = max(0.0, _median(levels))
    expected = max(0.0, level + slope * horizon)
    error = math.sqrt(noise**2 / independent + noise**2 / len(times) + (slope_error * horizon) ** 2)
    return Forecast(level, slope, expected, error)


def _averaged(times: Floats, values: Floats) -> tuple[list[float], list[float]]:
    if times.size <= POINTS:
        return times.tolist(), values.tolist()
    size = -(-times.size // POINTS)
    cut = times.size % size
    shape = (-1, size)
    first, second = (np.add.reduce(each[cut:].reshape(shape), axis=1) / size for each in (times, values))
    return first.tolist(), second.tolist()  # as `mean`, without its checks


def _since_jump(times: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    if len(values) < 4:
        return times, values
    steps = [after - before for before, after in pairwise(values)]
    middle = _median(steps)
    unusual = [abs(step - middle) for step in steps]
    least = JUMP * NORMAL * _median(unusual)
    for row in range(len(steps) - 1, -1, -1):
        if unusual[row] > max(least, 10 * FLOOR * max(values[row], values[row + 1])):
            return times[row + 1 :], values[row + 1 :]
    return times, values


def _theil_sen(times: list[float], values: list[float]) -> float:
    later, earlier = _pairs(len(times))
    y, x = np.array(values), np.array(times)
    slopes = (y[later] - y[earlier]) / (x[later] - x[earlier])
    slopes.sort()
    middle = slopes.size // 2
    return float(slopes[middle] if slopes.size % 2 else (slopes[middle - 1] + slopes[middle]) / 2)


@lru_cache(POINTS)
def _pairs(size: int) -> tuple[Integers, Integers]:
    return np.tril_indices(size, -1)


def _independent(times: list[float], over: float) -> float:
    """Return the samples in a mean over `over` seconds, at least one."""
    spacing = (times[-1] - times[0]) / max(1, len(times) - 1)
    return max(1.0, over / spacing) if spacing > 0 else 1.0


def _deviation(values: list[float]) -> float:
    middle = _median(values)
    return NORMAL * _median([abs(value - middle) for value in values])


def _median(values: list[float]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
