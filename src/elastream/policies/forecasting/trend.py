"""Robust local linear trend of a rate: its value now and a short time ahead, with the error.

It uses Theil-Sen's slope and medians, because measured rates have outliers. Only samples after the last jump count: a step
is no trend. A slope within its error counts as 0, so that uncertainty does not look like growth.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import dropwhile

import numpy as np

from elastream.core.frames import Floats, Integers

# Seconds for which a surprise counts: long against the start of a host, short against a day.
MEMORY_S = 7200.0
# Surprises of a size within MEMORY_S after which another one is expected: a single one is no pattern.
RECURS = 2
# Part of the expected value by which the level must exceed it. Less fits into the reserve of the hosts.
NOTICED = 0.25

NONE: Floats = np.zeros((3, 0))


@dataclass(frozen=True, eq=False, slots=True)
class Surprises:
    """Jumps of the load above its forecast.

    Rounds of excess less than a horizon apart are one surprise. Its size is the excess that it had for at least half a
    horizon, since single rounds are noise.

    Attributes:
        rounds: Times, levels and forecasts of the last MEMORY_S seconds, oldest first; shape (3, rounds).
        jumps: (time of the last round, largest excesses, descending) of each surprise, oldest first.
    """

    rounds: Floats = field(default_factory=lambda: NONE)
    jumps: tuple[tuple[float, tuple[float, ...]], ...] = ()

    def after(self, time: float, level: float, expected: float, horizon: float, pace: float) -> "Surprises":
        """Return the surprises after the round at `time`. No argument is NaN.

        Args:
            level: Value now.
            expected: Forecast in `horizon` seconds.
            pace: Seconds between rounds.
        """
        times, _, foreseen = self.rounds
        made = int(np.searchsorted(times, time - horizon, side="right")) - 1
        exceeded = level - float(foreseen[made]) if made >= 0 else 0.0
        jumps = tuple(dropwhile(lambda each: each[0] < time - MEMORY_S, self.jumps))
        if made >= 0 and exceeded > NOTICED * foreseen[made]:
            goes_on = bool(jumps) and time - jumps[-1][0] < horizon
            excesses = sorted((exceeded, *(jumps[-1][1] if goes_on else ())), reverse=True)
            now = (time, tuple(excesses[: _lasting(horizon, pace)]))
            jumps = (*(jumps[:-1] if goes_on else jumps), now)
        rounds = self.rounds[:, int(np.searchsorted(times, time - MEMORY_S)) :]
        return Surprises(np.column_stack([rounds, (time, level, expected)]), jumps)

    def upper(self, expected: float, horizon: float, pace: float) -> float:
        """Return the value that `expected` may become within `horizon` seconds, if a jump recurs.

        It is at most the highest level remembered.
        """
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
# Median absolute deviation to standard deviation, for a normal distribution.
NORMAL = 1.4826


@dataclass(frozen=True, slots=True)
class Forecast:
    """Value and growth of a quantity.

    Attributes:
        level: Value now, without noise.
        slope: Growth per second; 0 if uncertain.
        expected: Value at the horizon.
        error: Standard error of `expected`, as a mean over the period asked for.
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
    times, values = _averaged(times, values)
    if not values.size:
        return Forecast(np.nan, np.nan, np.nan, np.nan)
    if (values == values[0]).all():
        level = float(values[0])  # as what follows would find, at once: idle rounds are most rounds of a quiet run
        independent = min(_independent(times, over), times.size)
        return Forecast(level, 0.0, level, FLOOR * level / float(np.sqrt(independent)))
    times, values = _since_jump(times, values)
    independent = _independent(times, over)
    if times.size < LEAST_FOR_SLOPE:
        level = _median(values[-3:]) if times.size > 2 else float(values[-1])
        noise = max(_deviation(values), FLOOR * level)
        return Forecast(level, 0.0, level, float(noise / np.sqrt(min(independent, times.size))))
    since = times - times[-1]
    slope = _theil_sen(since, values)
    noise = max(_deviation(values - slope * since), FLOOR * _median(values))
    apart = since - np.add.reduce(since) / since.size
    slope_error = noise / float(np.sqrt(np.add.reduce(apart**2)))
    if abs(slope) <= SURE * (1 + 4 / (times.size - 2)) * slope_error:  # few points tell little of their own noise
        recent = values[since >= -over] if over > 0 else values[-1:]
        level = _median(recent if recent.size >= 3 else values[-3:])
        return Forecast(level, 0.0, level, float(noise / np.sqrt(independent)))
    level = max(0.0, _median(values - slope * since))
    expected = max(0.0, level + slope * horizon)
    error = np.sqrt(noise**2 / independent + noise**2 / times.size + (slope_error * horizon) ** 2)
    return Forecast(level, slope, expected, float(error))


def _averaged(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    if times.size <= POINTS:
        return times, values
    size = -(-times.size // POINTS)
    cut = times.size % size
    shape = (-1, size)
    first, second = (np.add.reduce(each[cut:].reshape(shape), axis=1) / size for each in (times, values))
    return first, second  # as `mean`, without its checks


def _since_jump(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    if values.size < 4:
        return times, values
    before, after = values[:-1], values[1:]
    steps = after - before
    unusual = np.abs(steps - _median(steps))
    scale = NORMAL * _median(unusual)
    (jump_rows,) = (unusual > np.maximum(JUMP * scale, 10 * FLOOR * np.maximum(before, after))).nonzero()
    last = int(jump_rows[-1]) + 1 if jump_rows.size else 0
    return times[last:], values[last:]


def _theil_sen(times: Floats, values: Floats) -> float:
    later, earlier = _pairs(times.size)
    return _median((values[later] - values[earlier]) / (times[later] - times[earlier]))


@lru_cache(POINTS)
def _pairs(size: int) -> tuple[Integers, Integers]:
    return np.tril_indices(size, -1)


def _independent(times: Floats, over: float) -> float:
    """Return the samples in a mean over `over` seconds, at least one."""
    spacing = (times[-1] - times[0]) / max(1, times.size - 1)
    return max(1.0, float(over / spacing)) if spacing > 0 else 1.0


def _deviation(values: Floats) -> float:
    return NORMAL * _median(np.abs(values - _median(values)))


def _median(values: Floats) -> float:
    """Return the median. `numpy.median`'s checks take longer than the median of a few values."""
    ordered, middle = values.copy(), values.size // 2
    ordered.sort()
    return float(ordered[middle] if values.size % 2 else (ordered[middle - 1] + ordered[middle]) / 2)
