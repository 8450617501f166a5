"""Bars over several runs: confidence interval of the mean (Student's t) or sign test of the median."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from elastream.evaluation.findings import Check
from elastream.evaluation.page import Table

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
        """Return True if the true mean is at least `bar`; None if undecided."""
        return True if self.low >= bar else False if self.high < bar else None

    def at_most(self, bar: float) -> bool | None:
        """Return True if the true mean is at most `bar`; None if undecided."""
        return True if self.high <= bar else False if self.low > bar else None

    def shown(self, digits: int = 4) -> str:
        """Return "mean (low to high)", or the mean alone if no run differs."""
        if math.isnan(self.low):
            return f"{self.mean:.{digits}f}"
        if self.low == self.high:  # nothing that is drawn enters: an interval of no width would claim to be of a sample
            return f"{self.mean:.{digits}f} (in all of {self.runs} runs)"
        return f"{self.mean:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def t_quantile(freedom: int, confidence: float) -> float:
    """Return the t with P(|T| < t) = `confidence` for Student's distribution."""
    return float(stdtrit(freedom, (1 + confidence) / 2))


CHANCE = 0.05  # significance level of the sign test


def mean_at_least(name: str, runs: Sequence[float], bar: float, source: str, digits: int = 4) -> Check:
    """Return a check that the true mean is at least `bar`, by its interval; needs two runs."""
    found = MeanInterval.of(runs)
    return Check(name, found.shown(digits), f">= {bar:g}", found.at_least(bar), source)


def mean_at_most(name: str, runs: Sequence[float], bar: float, source: str, digits: int = 4) -> Check:
    """Return a check that the true mean is at most `bar`, by its interval; needs two runs."""
    found = MeanInterval.of(runs)
    return Check(name, found.shown(digits), f"<= {bar:g}", found.at_most(bar), source)


def ordered(
    name: str, value: str, bound: str, steps: Sequence[Sequence[float]], source: str, tolerances: Sequence[float] = ()
) -> Check:
    """Return a check that none of several true mean `steps` is negative (Bonferroni-corrected).

    steps: differences of the runs, by step. tolerances: permitted decrease by step.
    """
    strict = 1 - (1 - CONFIDENCE) / max(1, len(steps))
    least = [-each for each in tolerances] or [0.0] * len(steps)
    if all(MeanInterval.of(step).at_least(bar) for step, bar in zip(steps, least, strict=True)):
        return Check(name, value, bound, True, source)
    missed = any(MeanInterval.of(step, strict).at_least(bar) is False for step, bar in zip(steps, least, strict=True))
    return Check(name, value, bound, False if missed else None, source)


def median_at_least(name: str, runs: Sequence[float], bar: float, source: str, digits: int = 4) -> Check:
    """Return a check that the population median is at least `bar`, by a sign test; needs five runs."""
    held = sum(run >= bar for run in runs)
    return Check(name, round(statistics.median(runs), digits), f">= {bar:g}", _decided(held, len(runs)), source)


def median_at_most(name: str, runs: Sequence[float], bar: float, source: str, digits: int = 4) -> Check:
    """Return a check that the population median is at most `bar`, by a sign test; needs five runs."""
    held = sum(run <= bar for run in runs)
    return Check(name, round(statistics.median(runs), digits), f"<= {bar:g}", _decided(held, len(runs)), source)


def _decided(held: int, runs: int) -> bool | None:

    def chance(least: int) -> float:
        """Return the probability of at least `least` successes at 1/2."""
        return float(sum(math.comb(runs, number) for number in range(least, runs + 1)) / 2**runs)

    if chance(held) <= CHANCE:
        return True
    return False if chance(runs - held) <= CHANCE else None


def variation_table(varied: Mapping[str, Sequence[Check]]) -> list[Table]:
    """Return the bars' values under each set of assumptions; empty without any."""
    if not varied:
        return []
    header = ("assumed", *(check.name for check in next(iter(varied.values()))))
    rows = tuple((name, *(str(check.value) for check in checks)) for name, checks in varied.items())
    good = tuple(not any(check.missed for check in checks) for checks in varied.values())
    return [Table("The bars under other assumptions, simulated", header, rows, good)]


def shares_of(checks: Sequence[Check], draws: Sequence[Sequence[Check]]) -> dict[str, float]:
    """Return the share of draws in which each bar holds, by position: names may contain results."""
    return {
        check.name: round(sum(each[number].holds is True for each in draws) / len(draws), 4)
        for number, check in enumerate(checks)
        if draws
    }
