"""Bars of the VISP experiment: Tables 3 to 6 and the discussion, on paired runs."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from elastream.evaluation.checks import all_within, mean_within, ordered
from elastream.evaluation.findings import Check
from elastream_papers.visp.experiment import BTUS, COLUMNS, LEVELS, VispRun
from elastream_papers.visp.manufacturing import CALIBRATED_ON
from elastream_papers.visp.paper import TABLES, Statistic

POINTS, PERCENT, SAVED = 3.0, 10.0, 0.10  # reach of a bar around printed compliance, cost and share of cost saved
RANKED = ("threshold 10", *(f"btu {minutes}" for minutes in BTUS))
UNITS = RANKED[1:]
BASELINES = tuple(f"threshold {minutes}" for minutes in BTUS)

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


def bars(figures: Figures) -> tuple[Check, ...]:
    """Return the bars by pattern: the text's rule and the baseline by seed.

    Printed values are bars where the load is the paper's: its walks are not known.
    """
    return tuple(
        check
        for pattern, columns in figures.items()
        for check in (*_orders(pattern, columns), *(() if "walk" in pattern else _printed(pattern, columns)))
    )


def _orders(pattern: str, columns: Columns) -> Iterable[Check]:
    source = "paper, Tables 3-6"
    for level in LEVELS:
        metric = f"{level} compliance"
        yield ordered(
            f"{pattern}: {level} compliance orders threshold < BTU10 <= BTU30 <= BTU60",
            " / ".join(f"{columns[column][metric].mean:.2%}" for column in RANKED),
            "ascending",
            _rises(columns, RANKED, metric),
            source,
        )
    yield ordered(
        f"{pattern}: scaling actions fall as the BTU grows",
        " / ".join(f"{columns[column]['scaling actions'].mean:.1f}" for column in UNITS),
        "descending",
        _rises(columns, UNITS, "scaling actions", -1.0),
        "paper, discussion of Table 3",
    )
    early = [columns[column]["early host releases"].values for column in UNITS]
    none = not any(map(any, early))
    text = " / ".join(f"{statistics.fmean(each):.1f}" for each in early)
    yield Check(f"{pattern}: early host releases of BTU10, BTU30, BTU60, in any run", text, "0", none, "our bar")
    least = min(min(columns[column]["early host releases"].values) for column in BASELINES)
    yield Check(f"{pattern}: early host releases of threshold, in the run with fewest", least, "> 0", least > 0, "our bar")


def _printed(pattern: str, columns: Columns) -> Iterable[Check]:
    """Yield the bars around the values that the paper prints."""
    table = TABLES[pattern]

    def points(column: str, level: str) -> list[float]:
        metric = f"{level} compliance"
        return [100 * (value - table.rows[metric][column].mean) for value in columns[column][metric].values]

    def percent(column: str) -> list[float]:
        printed = table.rows["resource cost"][column].mean
        return [100 * (value / printed - 1) for value in columns[column]["resource cost"].values]

    for level in LEVELS:
        yield all_within(
            f"{pattern}: {level} compliance of BTU10, BTU30, BTU60 off the printed (points)",
            [points(column, level) for column in UNITS],
            POINTS,
            f"paper, {table.name}",
        )
    yield all_within(
        f"{pattern}: {', '.join(LEVELS)} compliance of threshold off the printed (points)",
        [points(BASELINES[0], level) for level in LEVELS],
        POINTS,
        f"paper, {table.name}",
    )
    for columns_named in (UNITS, BASELINES):
        predicted = [column for column in columns_named if (pattern, column) != CALIBRATED_ON]
        yield all_within(
            f"{pattern}: resource cost of {', '.join(predicted)} off the printed (per cent)",
            [percent(column) for column in predicted],
            PERCENT,
            f"paper, {table.name}",
        )
    total = "near-real-time total cost"
    btu, baseline = UNITS[-1], BASELINES[-1]
    saved = 1 - table.rows[total][btu].mean / table.rows[total][baseline].mean
    pairs = zip(columns[btu][total].values, columns[baseline][total].values, strict=True)
    yield mean_within(
        f"{pattern}: near-real-time total cost of BTU60 below the threshold's at the same BTU",
        [1 - ours / theirs for ours, theirs in pairs],
        round(saved - SAVED, 3),
        round(saved + SAVED, 3),
        f"paper, {table.name}",
        digits=3,
    )


def _rises(columns: Columns, names: Sequence[str], metric: str, sign: float = 1.0) -> list[list[float]]:
    """Return by step between columns the change in every seed, times `sign`."""
    pairs = ((columns[a][metric].values, columns[b][metric].values) for a, b in pairwise(names))
    return [[sign * (y - x) for x, y in zip(before, after, strict=True)] for before, after in pairs]
