"""Bars of the VISP experiment: Tables 3 to 6 and the discussion, on paired runs."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from elastream.evaluation.checks import MeanInterval, mean_at_least, ordered
from elastream.evaluation.findings import Check
from elastream_papers.visp.experiment import BTUS, COLUMNS, LEVELS, VispRun

REQUIRED_POINTS = 15.0  # BTU60's near-real-time compliance, points above the threshold's (paper: 93 % against 67 %)
REQUIRED_SAVING = 0.20  # BTU60's total near-real-time cost below the threshold's (paper: 36 %)

PRINTED = 0.005  # half of a per cent, the precision of printed compliance: equal values have no order


@dataclass(frozen=True, slots=True)
class Statistic:
    """Mean and sample standard deviation over seeds, without NaN. values: by seed."""

    mean: float
    deviation: float
    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Iterable[float]) -> "Statistic":
        given = tuple(values)
        known = [value for value in given if not math.isnan(value)]
        if not known:
            return cls(math.nan, math.nan, given)
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0, given)

    @property
    def interval(self) -> MeanInterval:
        return MeanInterval.of([value for value in self.values if not math.isnan(value)])


Columns = Mapping[str, Mapping[str, Statistic]]
Figures = Mapping[str, Columns]


def tabulate(runs: Sequence[VispRun]) -> Figures:
    """Return pattern -> column (`"btu 10"`, ..., `"threshold 60"`) -> metric -> values over seeds."""
    found: dict[str, dict[str, dict[str, Statistic]]] = {}
    for pattern in dict.fromkeys(run.case.pattern for run in runs):
        columns = found.setdefault(pattern, {})
        for column in COLUMNS:
            policy, minutes = column.split()
            mine = [
                run.metrics(int(minutes))
                for run in runs
                if run.case.pattern == pattern and run.case.name == policy and run.case.minutes in (None, int(minutes))
            ]
            if mine:
                columns[column] = {name: Statistic.of(each[name] for each in mine) for name in mine[0]}
    return found


def bars(figures: Figures, policy: str = "btu") -> tuple[Check, ...]:
    """Return the bars by pattern, of `policy` ("btu" or "text") against the baseline by seed."""
    return tuple(check for pattern, columns in figures.items() for check in _bars(pattern, columns, policy))


def orders(pattern: str, columns: Columns, policy: str = "btu", tolerance: float = 0.0) -> Iterable[Check]:
    """Yield checks of the paper's order by compliance level. tolerance: between billing units."""
    ranked = ["threshold 10", *(f"{policy} {minutes}" for minutes in BTUS)]
    for level in LEVELS:
        metric = f"{level} compliance"
        yield ordered(
            f"{pattern}: {level} compliance orders threshold < BTU10 <= BTU30 <= BTU60",
            " / ".join(f"{columns[column][metric].mean:.2%}" for column in ranked),
            f"ascending, <= to {100 * tolerance:g} points" if tolerance else "ascending",
            _rises(columns, ranked, metric),
            "our bar, from the paper's Tables 3-6",
            (0.0, *(tolerance for _ in BTUS[1:])),
        )


def _rises(columns: Columns, names: Sequence[str], metric: str, sign: float = 1.0) -> list[list[float]]:
    """Return by step between columns the change in every seed, times `sign`."""
    pairs = ((columns[a][metric].values, columns[b][metric].values) for a, b in pairwise(names))
    return [[sign * (y - x) for x, y in zip(before, after, strict=True)] for before, after in pairs]


def _bars(pattern: str, columns: Columns, policy: str) -> Iterable[Check]:
    def values(column: str, metric: str) -> tuple[float, ...]:
        return columns[column][metric].values

    units = [f"{policy} {minutes}" for minutes in BTUS]
    longest, baseline = units[-1], f"threshold {BTUS[-1]}"
    yield from orders(pattern, columns, policy, PRINTED)
    near = "near-real-time compliance"
    yield mean_at_least(
        f"{pattern}: BTU60's near-real-time compliance over the threshold's (points)",
        [100 * change for change in _rises(columns, [baseline, longest], near)[0]],
        REQUIRED_POINTS,
        "our bar; paper: 93 % against 67 % (Table 3)",
        digits=1,
    )
    total = "near-real-time total cost"
    yield mean_at_least(
        f"{pattern}: near-real-time total cost of BTU60 below the threshold's at the same BTU",
        [1 - ours / theirs for ours, theirs in zip(values(longest, total), values(baseline, total), strict=True)],
        REQUIRED_SAVING,
        "our bar; paper: 36 % (Table 3)",
        digits=3,
    )
    early = [values(column, "early host releases") for column in units]
    text = " / ".join(f"{statistics.fmean(each):.1f}" for each in early)
    none = not any(map(any, early))
    yield Check(f"{pattern}: early host releases of BTU10, BTU30, BTU60, in any run", text, "0", none, "our bar")
    least = min(min(values(f"threshold {minutes}", "early host releases")) for minutes in BTUS)
    yield Check(f"{pattern}: early host releases of threshold, in the run with fewest", least, "> 0", least > 0, "our bar")
    yield ordered(
        f"{pattern}: scaling actions fall as the BTU grows",
        " / ".join(f"{columns[column]['scaling actions'].mean:.1f}" for column in units),
        "descending",
        _rises(columns, units, "scaling actions", -1.0),
        "our bar, from the paper's discussion of Table 3",
    )
