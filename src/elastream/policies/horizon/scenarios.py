"""Scenarios of the arrivals over the next minutes, from the load's own past.

Past moments resemble the present by their level and its growth over several windows. The load after each, scaled to the
present level, is one scenario. Moments of strongest growth give one more: the worst jump. Without a past, the last rate and
the spread of rates count.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.policies.common.service import quantile
from elastream.policies.forecasting.trend import Forecast
from elastream.policies.horizon.budget import Grid
from elastream.policies.horizon.compiled import njit
from elastream.units import ROUNDING

# Scenarios of a round; fewer while the past is short.
SCENARIOS = 48
# Share of the moments that may count as alike.
ALIKE = 0.125
# Windows over which the present is compared with the past, in horizons.
WINDOWS = (0.25, 1.0, 4.0, 16.0)
# Most factor, up or down, by which what followed a moment is scaled.
MOST_SCALE = 2.0
# The worst jump is the smallest of this many: a single one is no pattern.
RECURS = 2
# Bins that are remembered: a day of five seconds. Moments are collected again once there are a tenth more.
REMEMBERED, RECOLLECTED = 17_280, 1.1
# Bins whose mean may be the present level: the number that foretold the next horizon best. Before that is known: the first.
PRESENT = (3, 1, 8, 24)
# Bins of the past on which they are compared.
COMPARED = 2000
# Bins whose steps show the noise of one, their quantile, and that quantile for a normal noise of deviation 1.
USUAL, USUAL_PART, NORMAL_STEP = 60, 0.75, 1.627
# Deviations by which the mean of a shorter window must differ for a changed level: once in 3,000 bins of 20 % noise.
CHANGED = 5.0
# Horizons of a past in which moments are compared.
LEAST_PAST = 5


@dataclass(frozen=True, eq=False, slots=True)
class Moments:
    """Moments of a past in which scenarios can begin: the edges between bins.

    Attributes:
        steps: Bins of a horizon.
        total: Records by the edges of the bins, in rates; shape (bins + 1,).
        features: Log level and growth before each edge but the first; shape (bins, windows).
        least: Rate that counts as none.
        collected: Bins from which `least` follows.
    """

    steps: int
    total: Floats
    features: Floats
    least: float
    collected: int

    @classmethod
    def of(cls, rates: Floats, steps: int) -> "Moments":
        total = np.concatenate([[0.0], np.cumsum(rates)])
        least = 1e-3 * total[-1] / rates.size + 1e-9
        return cls(steps, total, _features(total, 1, _windows(steps), least), least, rates.size)

    def after(self, rates: Floats) -> "Moments | None":
        """Return the moments of `rates`, which are one bin longer; None if they must be collected anew."""
        if rates.size != self.total.size or rates.size > RECOLLECTED * self.collected:
            return None
        total = np.append(self.total, self.total[-1] + rates[-1])
        features = np.concatenate([self.features, _features(total, rates.size, _windows(self.steps), self.least)])
        return replace(self, total=total, features=features)


@dataclass(frozen=True, eq=False, slots=True)
class Past:
    """Arrivals of the load in bins of equal length.

    Attributes:
        seconds: Length of a bin.
        rates: Mean rate of each complete bin (records/s), oldest first.
        open: Records and seconds in the bin that is not complete.
        moments: None while the past is short.
    """

    seconds: float
    rates: Floats = field(default_factory=lambda: np.zeros(0))
    open: tuple[float, float] = (0.0, 0.0)
    moments: Moments | None = None

    def after(self, rate: float, seconds: float) -> "Past":
        """Return the past after `seconds` at `rate`. A gap counts at the rate after it."""
        records, filled = self.open[0] + rate * seconds, self.open[1] + seconds
        if (bins := self.bins(seconds)) < 1:
            return replace(self, open=(records, filled))
        rates = np.append(self.rates, np.full(min(bins, REMEMBERED), records / filled))
        if rates.size > RECOLLECTED * REMEMBERED:
            rates = rates[-REMEMBERED:]
        rest = filled - bins * self.seconds
        rest = rest if rest >= self.seconds / 2 else 0.0  # so that bins begin with rounds, which are seldom on time
        opened = (rest * records / filled, rest)
        return Past(self.seconds, rates, opened, None if self.moments is None else self.moments.after(rates))

    def bins(self, seconds: float) -> int:
        """Return how many bins end within the next `seconds`."""
        return int((self.open[1] + seconds) / self.seconds + ROUNDING)

    def with_moments(self, steps: int) -> "Past":
        """Return the past with moments for horizons of `steps` bins, if it is long enough."""
        if self.moments is not None and self.moments.steps == steps:
            return self
        return replace(self, moments=None if self.is_short(steps) else Moments.of(self.rates, steps))

    def is_short(self, steps: int) -> bool:
        """Return True if moments cannot be compared."""
        return self.rates.size < LEAST_PAST * steps

    def level(self, steps: int) -> tuple[float, int, bool]:
        """Return the present rate (records/s; 0 without a past), the bins whose mean it is, and True if it has changed."""
        rates = self.rates[-COMPARED:]
        if not rates.size:
            return (self.open[0] / self.open[1] if self.open[1] > 0 else 0.0), 1, False
        bins = _best_window(rates, steps)
        if rates.size <= PRESENT[0]:
            return float(rates[-bins:].mean()), bins, False
        level, agree = self.steady_level(bins)
        return level, agree, agree < min(bins, rates.size)

    def steady_level(self, bins: int = max(PRESENT)) -> tuple[float, int]:
        """Return the mean rate of the longest window of at most `bins` that agrees with shorter ones, and its bins."""
        rates = self.rates[-COMPARED:]
        noise = quantile(np.abs(np.diff(rates[-USUAL:])).tolist(), USUAL_PART) / NORMAL_STEP
        return _steady_level(rates, bins, noise)


@njit(cache=True)
def _steady_level(rates: Floats, bins: int, noise: float) -> tuple[float, int]:
    """Return mean and bins of the longest window of `PRESENT` up to `bins` that agrees with shorter ones (Lepski 1990)."""
    level, agrees = float(rates[-1]), 1
    windows = sorted(PRESENT)
    for longer in windows:
        if longer > min(bins, rates.size):
            break
        mean = float(rates[-longer:].mean())
        for shorter in windows:
            error = noise * math.sqrt(max(0.0, 1 / shorter - 1 / longer))
            if shorter < longer and abs(rates[-shorter:].mean() - mean) > CHANGED * error:
                return level, agrees
        level, agrees = mean, longer
    return level, agrees


@njit(cache=True)
def _best_window(rates: Floats, steps: int) -> int:
    """Return the number of bins whose mean came closest to the mean of the next `steps` bins."""
    longest = max(PRESENT)
    if rates.size < 2 * (longest + steps):
        return PRESENT[0]
    total = np.zeros(rates.size + 1)
    total[1:] = np.cumsum(rates)
    best, least = PRESENT[0], np.inf
    for bins in PRESENT:
        error = 0.0
        for moment in range(longest, rates.size - steps + 1):
            came = (total[moment + steps] - total[moment]) / steps
            error += abs((total[moment] - total[moment - bins]) / bins - came)
        if error < least:
            best, least = bins, error
    return best


def scenarios(past: Past, grid: Grid, trend: Forecast | None) -> tuple[Floats, Floats]:
    """Return scenarios of the next horizon, and the worst jump.

    Args:
        trend: Of the last minutes, for a short past.

    Returns:
        Rates (records/s) of the scenarios, shape (scenarios, steps), and of the jump, shape (steps,).
    """
    steps = grid.steps
    level, bins, changed = past.level(steps)
    moments = past.with_moments(steps).moments
    if moments is None:
        return _first_scenarios(past, grid, level, trend)
    count = past.rates.size - steps
    alike = _alike(moments.features, count, min(count, SCENARIOS, max(8, int(count * ALIKE))))
    return _continued(past.rates, moments.total, alike, steps, bins, level, changed)


def _first_scenarios(past: Past, grid: Grid, level: float, trend: Forecast | None) -> tuple[Floats, Floats]:
    rates, steps = past.rates, grid.steps
    if trend is None:
        trend = Forecast(level, 0.0, level, math.nan)
    sufficient = rates.size > PRESENT[0] and not math.isnan(trend.error)
    error = min(trend.error, float(rates.std())) if sufficient else 0.0
    # A trend lasts until a host requested now works, however short it was seen; what grows after that is for a later lease.
    growing = np.minimum(np.arange(1, steps + 1), grid.start)
    mean = (level if math.isnan(trend.level) else trend.level) + trend.slope * past.seconds * growing
    paths = np.maximum(0.0, mean + np.linspace(-2.0, 2.0, SCENARIOS)[:, None] * error)
    return paths, paths[-1]


@njit(cache=True)
def _alike(features: Floats, moments: int, count: int) -> Integers:
    """Return the `count` first of `moments` edges that are nearest to the last one, over the spread of each feature."""
    columns = features.shape[1]
    weights = np.zeros(columns)
    for column in range(columns):
        total = squares = 0.0
        for moment in range(moments):
            total += features[moment, column]
        for moment in range(moments):
            squares += (features[moment, column] - total / moments) ** 2
        weights[column] = 1 / (math.sqrt(squares / moments) + 1e-6)
    nearest, apart = np.zeros(count, dtype=np.int64), np.full(count, np.inf)
    farthest = 0
    for moment in range(moments):
        distance = 0.0
        for column in range(columns):
            distance += ((features[moment, column] - features[-1, column]) * weights[column]) ** 2
        if distance < apart[farthest]:
            nearest[farthest], apart[farthest] = moment + 1, distance
            farthest = int(apart.argmax())
    return nearest


@njit(cache=True)
def _continued(
    rates: Floats, total: Floats, alike: Integers, steps: int, bins: int, level: float, changed: bool
) -> tuple[Floats, Floats]:
    """Return what followed the moments `alike`, and the worst jump, both moved to the present `level`.

    Args:
        changed: The level is that of the last `bins` alone.
    """
    least, peak = 0.01 * total[-1] / rates.size + 1e-9, rates.max()
    # A change to a level that was seen before, such as half a bin of a burst, foretells no more than was ever seen.
    limit = peak if changed and level <= rates[:-bins].max() else np.inf
    paths = np.zeros((alike.size, steps))
    for row in range(alike.size):
        begin = alike[row]
        before = _mean_before(total, begin, bins)
        scale = min(max((level + least) / (before + least), 1 / MOST_SCALE), MOST_SCALE)
        shift = level - scale * before  # what no scale explains: a level that was never seen
        for step in range(steps):
            paths[row, step] = min(max(0.0, rates[begin + step] * scale + shift), limit)
    begin = _worst_jump(total, steps, bins)
    jump = rates[begin : begin + steps] - _mean_before(total, begin, bins) + level
    for step in range(steps):
        jump[step] = max(min(max(jump[step], 0.0), peak), level)
    return paths, jump


@njit(cache=True)
def _mean_before(total: Floats, moment: int, bins: int) -> float:
    first = max(moment - bins, 0)
    return float((total[moment] - total[first]) / (moment - first))


@njit(cache=True)
def _growth(total: Floats, moment: int, steps: int, bins: int) -> float:
    return float(total[moment + steps] - total[moment] - steps * _mean_before(total, moment, bins))


@njit(cache=True)
def _worst_jump(total: Floats, steps: int, bins: int) -> int:
    """Return the last moment before the strongest growth that `RECURS` moments reach."""
    strongest = np.full(RECURS, -np.inf)
    last = total.size - 1 - steps
    for moment in range(1, last + 1):
        growth = _growth(total, moment, steps, bins)
        if growth > strongest[0]:
            strongest[0] = growth
            strongest.sort()
    worst = strongest[0] if last > RECURS else strongest[-1]
    for moment in range(last, 0, -1):
        if _growth(total, moment, steps, bins) == worst:
            return moment
    return 1


def _windows(steps: int) -> Integers:
    return np.array([max(1, round(part * steps)) for part in WINDOWS])


@njit(cache=True)
def _features(total: Floats, first: int, windows: Integers, least: float) -> Floats:
    """Return log level and growth before each edge from `first` on; shape (edges, windows)."""
    features = np.zeros((total.size - first, windows.size))
    for row in range(features.shape[0]):
        for column in range(windows.size):
            features[row, column] = np.log(_mean_before(total, first + row, windows[column]) + least)
            if column:
                features[row, column] -= features[row, 0]
    return features
