"""A robust local linear trend with its error: what a rate is now, and where it will be a short time from now.

Theil-Sen's slope and medians, since measured rates have outliers; only of what came after the last jump, since a trend
across a step is none. A slope that its error cannot tell from noise is 0: a wide error must not look like growth.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import dropwhile

import numpy as np

from elastream.core.frames import Floats, Integers

MEMORY = 7200.0
"""Seconds for which a surprise is remembered: long against the start of a host, short against the cycle of a day."""
RECURS = 2
"""Surprises of a size within MEMORY after which another one of that size is reckoned with: one alone is no pattern."""
NOTICED = 0.25
"""Part of what was expected by which the level must exceed it: less fits into what hosts leave free in any case."""

NONE: Floats = np.zeros((3, 0))


@dataclass(frozen=True, eq=False, slots=True)
class Surprises:
    """rounds: times, levels, and what was expected for the horizon, of the last MEMORY seconds, oldest first, shape
    (3, rounds). found: surprises in them, oldest first: (time of the last round, its largest excesses, descending).

    Rounds of excess that are less than a horizon apart are one surprise: a rise that outruns its forecast is one, however
    long. It counts by the excess that it had for half a horizon at least, since single rounds are noise.
    """

    rounds: Floats = field(default_factory=lambda: NONE)
    found: tuple[tuple[float, tuple[float, ...]], ...] = ()

    def after(self, time: float, level: float, expected: float, horizon: float, pace: float) -> "Surprises":
        """These, and the round at `time`: the level now, and what is expected in `horizon` seconds. None of it NaN.

        pace: seconds from one round to the next.
        """
        times, _, foreseen = self.rounds
        made = int(np.searchsorted(times, time - horizon, side="right")) - 1
        exceeded = level - float(foreseen[made]) if made >= 0 else 0.0
        found = tuple(dropwhile(lambda each: each[0] < time - MEMORY, self.found))
        if made >= 0 and exceeded > NOTICED * foreseen[made]:
            goes_on = bool(found) and time - found[-1][0] < horizon
            excesses = sorted((exceeded, *(found[-1][1] if goes_on else ())), reverse=True)
            now = (time, tuple(excesses[: _lasting(horizon, pace)]))
            found = (*(found[:-1] if goes_on else found), now)
        kept = self.rounds[:, int(np.searchsorted(times, time - MEMORY)) :]
        return Surprises(np.column_stack([kept, (time, level, expected)]), found)

    def upper(self, expected: float, horizon: float, pace: float) -> float:
        """The value that `expected` may become within `horizon` seconds, as it did before.

        At least `expected`, at most the highest level remembered.
        """
        least = _lasting(horizon, pace)
        sizes = sorted((excesses[-1] for _, excesses in self.found if len(excesses) >= least), reverse=True)
        if len(sizes) < RECURS:
            return expected
        return max(expected, min(expected + sizes[RECURS - 1], float(self.rounds[1].max())))


def _lasting(horizon: float, pace: float) -> int:
    """Rounds for which an excess must have lasted."""
    return max(1, round(horizon / max(pace, 1e-9) / 2))


POINTS = 40
"""Most points that a trend is drawn through; more samples are averaged into so many."""
LEAST_FOR_SLOPE = 5
"""Points from which a slope is taken at all: through fewer, one outlier makes any slope."""
JUMP = 6.0
"""Standard deviations of the steps between points beyond which a step is a jump: about once in 10^9 normal ones."""
SURE = 3.0
"""Standard errors that a slope must exceed: a false one in 400 of noise alone, and a decision is taken every few
seconds."""
FLOOR = 0.01
"""Part of the level taken as noise where less is seen: counts over short periods are rounded."""
NORMAL = 1.4826
"""Median absolute deviation to standard deviation, of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """level: the value now, without noise. slope: its growth per second, 0 where none is certain. expected: the value at
    the horizon. error: standard error of `expected`, as a mean over the time that was asked for."""

    level: float
    slope: float
    expected: float
    error: float


def forecast(times: Floats, values: Floats, horizon: float, over: float) -> Forecast:
    """The value `horizon` seconds after the last of `times`, as a mean over `over` seconds.

    times: strictly ascending, seconds; values: not negative, NaN where unknown; shape (samples,) each. NaN all over without
    a known value.
    """
    known = ~np.isnan(values)
    times, values = _averaged(times[known], values[known])
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
    """At most `POINTS` means of neighbouring samples, the newest whole."""
    if times.size <= POINTS:
        return times, values
    size = -(-times.size // POINTS)
    cut = times.size % size
    shape = (-1, size)
    first, second = (np.add.reduce(each[cut:].reshape(shape), axis=1) / size for each in (times, values))
    return first, second  # as `mean`, without its checks


def _since_jump(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """The points after the last jump."""
    if values.size < 4:
        return times, values
    before, after = values[:-1], values[1:]
    steps = after - before
    unusual = np.abs(steps - _median(steps))
    scale = NORMAL * _median(unusual)
    (jumps,) = (unusual > np.maximum(JUMP * scale, 10 * FLOOR * np.maximum(before, after))).nonzero()
    last = int(jumps[-1]) + 1 if jumps.size else 0
    return times[last:], values[last:]


def _theil_sen(times: Floats, values: Floats) -> float:
    """Median of the slopes between all pairs of points."""
    later, earlier = _pairs(times.size)
    return _median((values[later] - values[earlier]) / (times[later] - times[earlier]))


@lru_cache(POINTS)
def _pairs(size: int) -> tuple[Integers, Integers]:
    """Numbers of the later and the earlier point of every pair."""
    return np.tril_indices(size, -1)


def _independent(times: Floats, over: float) -> float:
    """Samples that a mean over `over` seconds has, at least one."""
    spacing = (times[-1] - times[0]) / max(1, times.size - 1)
    return max(1.0, float(over / spacing)) if spacing > 0 else 1.0


def _deviation(values: Floats) -> float:
    return NORMAL * _median(np.abs(values - _median(values)))


def _median(values: Floats) -> float:
    """As `numpy.median`, whose checks take longer than the median of a few values."""
    ordered, middle = np.sort(values), values.size // 2
    return float(ordered[middle] if values.size % 2 else (ordered[middle - 1] + ordered[middle]) / 2)
