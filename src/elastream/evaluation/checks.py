"""Bars over several runs: confidence interval of the mean (Student's t) or sign test of the median."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from elastream.evaluation.findings import Check

CONFIDENCE = 0.95  # probability that an interval covers the true mean


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """Mean of independent values and its two-sided confidence interval; NaN bounds for fewer than two."""

    mean: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float], confidence: float = CONFIDENCE) -> "MeanInterval":
        """Return the interval of `values`; NaN throughout if there are none."""
        if len(values) < 2:
            return cls(values[0] if values else math.nan, math.nan, math.nan, len(values))
        mean = statistics.fmean(values)
        wide = t_quantile(len(values) - 1, confidence) * statistics.stdev(values, mean) / math.sqrt(len(values))
        return cls(mean, mean - wide, mean + wide, len(values))

    def at_least(self, bar: float) -> bool | None:
        return True if self.low >= bar else False if self.high < bar else None

    def at_most(self, bar: float) -> bool | None:
        return True if self.high <= bar else False if self.low > bar else None

    def within(self, low: float, high: float) -> bool | None:
        """Return True if the true mean is between `low` and `high`; None if undecided."""
        if self.low >= low and self.high <= high:
            return True
        return False if self.high < low or self.low > high else None

    def shown(self, digits: int = 4) -> str:
        """Return "mean (low to high)", or the mean alone if no run differs."""
        if math.isnan(self.low):
            return f"{self.mean:.{digits}f}"
        if self.low == self.high:  # without random input, an interval of width 0 would suggest a sample
            return f"{self.mean:.{digits}f} (in all of {self.runs} runs)"
        return f"{self.mean:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def t_quantile(freedom: int, confidence: float) -> float:
    """Return the t with P(|T| < t) = `confidence` for Student's distribution."""
    return float(stdtrit(freedom, (1 + confidence) / 2))


CHANCE = 0.05  # significance level of the sign test


def mean_at_least(name: str, runs: Sequence[float], bar: float, source: str, digits: int = 4) -> Check:
    """Return a check that the true mean is at least `bar`, by its interval; needs two runs."""
    mean = MeanInterval.of(runs)
    return Check(name, mean.shown(digits), f">= {bar:g}", mean.at_least(bar), source)


def mean_at_most(name: str, runs: Sequence[float], bar: float, source: str, digits: int = 4) -> Check:
    mean = MeanInterval.of(runs)
    return Check(name, mean.shown(digits), f"<= {bar:g}", mean.at_most(bar), source)


def mean_within(name: str, runs: Sequence[float], low: float, high: float, source: str, digits: int = 4) -> Check:
    mean = MeanInterval.of(runs)
    return Check(name, mean.shown(digits), f"{low:g} to {high:g}", mean.within(low, high), source)


def all_within(name: str, runs: Sequence[Sequence[float]], reach: float, source: str) -> Check:
    """Return a check that all true means of `runs` are within `reach` of 0 (Bonferroni-corrected)."""
    value = " / ".join(f"{statistics.fmean(cell):+.1f}" for cell in runs)
    holds = _all(runs, lambda mean: mean.within(-reach, reach))
    return Check(name, value, f"within {reach:g}", holds, source)


def ordered(name: str, value: str, bound: str, steps: Sequence[Sequence[float]], source: str) -> Check:
    """Return a check that none of several true means of `steps` (runs' differences) is negative, corrected likewise."""
    return Check(name, value, bound, _all(steps, lambda mean: mean.at_least(0.0)), source)


def _all(runs: Sequence[Sequence[float]], holds: Callable[[MeanInterval], bool | None]) -> bool | None:
    """Return True if `holds` of every true mean, False if of one it does not (Bonferroni-corrected); None if undecided."""
    if all(holds(MeanInterval.of(each)) for each in runs):
        return True
    strict = 1 - (1 - CONFIDENCE) / max(1, len(runs))
    return False if any(holds(MeanInterval.of(each, strict)) is False for each in runs) else None


def median_at_least(name: str, runs: Sequence[float], bar: float, source: str) -> Check:
    """Return a check that the population median is at least `bar`, by a sign test; needs five runs."""
    successes = sum(run >= bar for run in runs)
    return Check(name, round(statistics.median(runs), 4), f">= {bar:g}", _decided(successes, len(runs)), source)


def median_at_most(name: str, runs: Sequence[float], bar: float, source: str) -> Check:
    successes = sum(run <= bar for run in runs)
    return Check(name, round(statistics.median(runs), 4), f"<= {bar:g}", _decided(successes, len(runs)), source)


def _decided(successes: int, runs: int) -> bool | None:

    def chance(least: int) -> float:
        return float(sum(math.comb(runs, number) for number in range(least, runs + 1)) / 2**runs)

    if chance(successes) <= CHANCE:
        return True
    return False if chance(runs - successes) <= CHANCE else None


def shares_of(checks: Sequence[Check], draws: Sequence[Sequence[Check]]) -> dict[str, float]:
    """Return the share of draws in which each bar holds, by position: names may contain results."""
    return {
        check.name: round(sum(each[number].holds is True for each in draws) / len(draws), 4)
        for number, check in enumerate(checks)
        if draws
    }
