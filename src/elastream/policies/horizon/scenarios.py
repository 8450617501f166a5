"""Scenarios of the arrivals over the next minutes, from the load's own past.

Past moments resemble the present by their level and its growth over several windows. The load after each of them, scaled to
the present level, is one scenario. The moments of strongest growth give one more: the worst jump. Without a past, the last
rate and the spread of rates count.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.policies.forecasting.trend import Forecast
from elastream.policies.horizon.budget import Grid

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
# Bins that are remembered: a day of five seconds.
REMEMBERED = 17_280
# Bins whose mean may be the present level: the number that foretold the next horizon best. Before that is known: the first.
PRESENT = (3, 1, 8, 24)
# Bins of the past on which they are compared.
COMPARED = 2000
# Bins, the quantile of their steps that is usual, and the multiple of it that is a jump. Rates before a jump do not count.
USUAL, USUAL_PART, JUMP = 60, 0.75, 3.0
# Horizons of a past in which moments are compared.
LEAST_PAST = 3
# Spread of rates as a part of the level, while none is measured.
FIRST_SPREAD = 0.2


@dataclass(frozen=True, eq=False, slots=True)
class Past:
    """Arrivals of the load in bins of equal length.

    Attributes:
        seconds: Length of a bin.
        rates: Mean rate of each complete bin (records/s), oldest first.
        open: Records and seconds in the bin that is not complete.
    """

    seconds: float
    rates: Floats = field(default_factory=lambda: np.zeros(0))
    open: tuple[float, float] = (0.0, 0.0)

    def after(self, rate: float, seconds: float) -> "Past":
        """Return the past after `seconds` at `rate`. A gap counts at the rate after it."""
        records, filled = self.open[0] + rate * seconds, self.open[1] + seconds
        if filled < self.seconds * (1 - 1e-9):
            return replace(self, open=(records, filled))
        bins = max(1, round(filled / self.seconds))
        rates = np.append(self.rates, np.full(min(bins, REMEMBERED), records / filled))[-REMEMBERED:]
        return Past(self.seconds, rates)

    def level(self, steps: int) -> tuple[float, int]:
        """Return the present rate (records/s), 0 without a past, and the bins whose mean it is.

        Args:
            steps: Bins of a horizon.
        """
        rates = self.rates[-COMPARED:]
        if not rates.size:
            return (self.open[0] / self.open[1] if self.open[1] > 0 else 0.0), 1
        bins = _best_window(rates, steps)
        recent = rates[-bins:]
        if rates.size > PRESENT[0]:
            changes = np.diff(rates[-USUAL:])
            usual = float(np.quantile(np.abs(changes), USUAL_PART))
            jumps = np.flatnonzero(np.abs(changes[1 - recent.size :]) > JUMP * usual + 0.1 * recent.max())
            recent = recent[int(jumps[-1]) + 1 :] if recent.size > 1 and jumps.size else recent
        return float(recent.mean()), bins


def _best_window(rates: Floats, steps: int) -> int:
    """Return the number of bins whose mean came closest to the mean of the next `steps` bins."""
    longest = max(PRESENT)
    if rates.size < 2 * (longest + steps):
        return PRESENT[0]
    total = np.concatenate([[0.0], np.cumsum(rates)])
    moments = np.arange(longest, rates.size - steps + 1)
    came = (total[moments + steps] - total[moments]) / steps
    errors = [float(np.abs((total[moments] - total[moments - bins]) / bins - came).mean()) for bins in PRESENT]
    return PRESENT[int(np.argmin(errors))]


def scenarios(past: Past, grid: Grid, trend: Forecast) -> tuple[Floats, Floats]:
    """Return scenarios of the next horizon, and the worst jump.

    Args:
        trend: Of the last minutes; it counts while the past is short.

    Returns:
        Rates (records/s) of the scenarios, shape (scenarios, steps), and of the jump, shape (steps,).
    """
    rates, steps = past.rates, grid.steps
    level, bins = past.level(steps)
    if rates.size < LEAST_PAST * steps:
        known = rates.size > PRESENT[0] and not math.isnan(trend.error)
        error = min(trend.error, float(rates.std())) if known else FIRST_SPREAD * level
        # A trend lasts no longer than it was seen, and what grows after a host's start is for a later lease.
        growing = np.minimum(np.arange(1, steps + 1), min(grid.start, rates.size))
        mean = (level if math.isnan(trend.level) else trend.level) + trend.slope * past.seconds * growing
        paths = np.maximum(0.0, mean + np.linspace(-2.0, 2.0, SCENARIOS)[:, None] * error)
        return paths, paths[-1]
    total = np.concatenate([[0.0], np.cumsum(rates)])
    moments = np.arange(1, rates.size - steps + 1)
    features = _features(total, moments, steps)
    apart = (features - _features(total, np.array([rates.size]), steps)) / (features.std(axis=0) + 1e-6)
    distance = (apart**2).sum(axis=1)
    count = min(moments.size, SCENARIOS, max(8, int(moments.size * ALIKE)))
    alike = moments[np.argpartition(distance, count - 1)[:count]]
    present = (total[moments] - total[np.maximum(moments - bins, 0)]) / np.minimum(moments, bins)
    least = 0.01 * total[-1] / rates.size + 1e-9
    scale = np.clip((level + least) / (present[alike - 1] + least), 1 / MOST_SCALE, MOST_SCALE)
    ahead = np.arange(steps)
    growth = total[moments + steps] - total[moments] - steps * present
    jumps = np.partition(growth, -RECURS)[-RECURS] if growth.size > RECURS else growth.max()
    at = int(moments[np.flatnonzero(growth == jumps)[-1]])
    jump = np.clip(rates[at + ahead] - present[at - 1] + level, 0.0, rates.max())
    shift = level - scale * present[alike - 1]  # what no scale explains: a level that was never seen
    paths = rates[alike[:, None] + ahead] * scale[:, None] + shift[:, None]
    return np.maximum(0.0, paths), np.maximum(jump, level)


def _features(total: Floats, moments: Integers, steps: int) -> Floats:
    """Return log level and growth before each moment; shape (moments, windows)."""
    columns = []
    least = 1e-3 * total[-1] / (total.size - 1) + 1e-9
    for window in (max(1, round(part * steps)) for part in WINDOWS):
        before = np.maximum(moments - window, 0)
        columns.append(np.log((total[moments] - total[before]) / (moments - before) + least))
    features = np.stack(columns, axis=1)
    features[:, 1:] -= features[:, :1]
    return features
