"""Bars over several runs, by a confidence interval of the mean (Student's t) or a sign test of the median."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from elastream.evaluation.findings import Check
from elastream.evaluation.page import Table

CONFIDENCE = 0.95
"""Chance that an interval covers the true mean."""


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """Mean of `runs` independent values and its two-sided confidence interval; NaN bounds for fewer than two."""

    mean: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float], confidence: float = CONFIDENCE) -> "MeanInterval":
        """The interval of `values`; NaN throughout if there are none."""
        if len(values) < 2:
            return cls(values[0] if values else math.nan, math.nan, math.nan, len(values))
        mean = statistics.fmean(values)
        wide = t_quantile(len(values) - 1, confidence) * statistics.stdev(values, mean) / math.sqrt(len(values))
        return cls(mean, mean - wide, mean + wide, len(values))

    def at_least(self, bar: float) -> bool | None:
        """Whether the true mean is at least `bar`; None: the interval holds both answers, or there is none."""
        return True if self.low >= bar else False if self.high < bar else None

    def at_most(self, bar: float) -> bool | None:
        """Whether the true mean is at most `bar`."""
        return True if self.high <= bar else False if self.low > bar else None

    def shown(self, digits: int = 4) -> str:
        """ "mean (low to high)"; the mean alone without an interval, and how many runs all gave it where none differs."""
        if math.isnan(self.low):
            return f"{self.mean:.{digits}f}"
        if self.low == self.high:  # nothing that is drawn enters: an interval of no width would claim to be of a sample
            return f"{self.mean:.{digits}f} (in all of {self.runs} runs)"
        return f"{self.mean:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def t_quantile(freedom: int, confidence: float) -> float:
    """The t with P(|T| < t) = `confidence` for T of Student's distribution with `freedom` >= 1 degrees of freedom."""
    return float(stdtrit(freedom, (1 + confidence) / 2))


CHANCE = 0.05
"""Significance level of the sign test."""


def mean_at_least(name: str, runs: Sequence[float], bar: float, source: str, digits: int = 4) -> Check:
    """A check that the true mean of `runs` is at least `bar`, by its confidence interval; needs two runs."""
    found = MeanInterval.of(runs)
    return Check(name, found.shown(digits), f">= {bar:g}", found.at_least(bar), source)


def mean_at_most(name: str, runs: Sequence[float], bar: float, source: str, digits: int = 4) -> Check:
    """A check that the true mean of `runs` is at most `bar`, by its confidence interval; needs two runs."""
    found = MeanInterval.of(runs)
    return Check(name, found.shown(digits), f"<= {bar:g}", found.at_most(bar), source)


def ordered(
    name: str, value: str, bound: str, steps: Sequence[Sequence[float]], source: str, tolerances: Sequence[float] = ()
) -> Check:
    """A check that none of several true mean `steps` is negative. steps: of each, the differences of its runs.

    Held if each surely is not. Missed if one surely is, at a confidence corrected for their number (Bonferroni).
    tolerances: by how much each may be below 0; 0 for none.
    """
    strict = 1 - (1 - CONFIDENCE) / max(1, len(steps))
    least = [-each for each in tolerances] or [0.0] * len(steps)
    if all(MeanInterval.of(step).at_least(bar) for step, bar in zip(steps, least, strict=True)):
        return Check(name, value, bound, True, source)
    missed = any(MeanInterval.of(step, strict).at_least(bar) is False for step, bar in zip(steps, least, strict=True))
    return Check(name, value, bound, False if missed else None, source)


def median_at_least(name: str, runs: Sequence[float], bar: float, source: str, digits: int = 4) -> Check:
    """A check that the population median of `runs` is at least `bar`, by a sign test; needs at least five runs."""
    held = sum(run >= bar for run in runs)
    return Check(name, round(statistics.median(runs), digits), f">= {bar:g}", _decided(held, len(runs)), source)


def median_at_most(name: str, runs: Sequence[float], bar: float, source: str, digits: int = 4) -> Check:
    """A check that the population median of `runs` is at most `bar`, by a sign test; needs at least five runs."""
    held = sum(run <= bar for run in runs)
    return Check(name, round(statistics.median(runs), digits), f"<= {bar:g}", _decided(held, len(runs)), source)


def _decided(held: int, runs: int) -> bool | None:
    """Sign test: True (held), False (missed) or None (undecided), given that `held` of `runs` runs are within the bar."""

    def chance(least: int) -> float:
        """Probability of at least `least` runs within the bar, each with probability 1/2."""
        return float(sum(math.comb(runs, number) for number in range(least, runs + 1)) / 2**runs)

    if chance(held) <= CHANCE:
        return True
    return False if chance(runs - held) <= CHANCE else None


def variation_table(varied: Mapping[str, Sequence[Check]]) -> list[Table]:
    """The bars' values under each set of assumptions; nothing without any."""
    if not varied:
        return []
    header = ("assumed", *(check.name for check in next(iter(varied.values()))))
    rows = tuple((name, *(str(check.value) for check in checks)) for name, checks in varied.items())
    good = tuple(not any(check.missed for check in checks) for checks in varied.values())
    return [Table("The bars under other assumptions, simulated", header, rows, good)]


def shares_of(checks: Sequence[Check], draws: Sequence[Sequence[Check]]) -> dict[str, float]:
    """Part of the draws in which each bar holds, by its place: names may carry what was found."""
    return {
        check.name: round(sum(each[number].holds is True for each in draws) / len(draws), 4)
        for number, check in enumerate(checks)
        if draws
    }
