"""Printed figures of the VISP paper (Hochreiner et al., PeerJ CS 2017): Tables 3 to 6.

Rows are BTU10, BTU30, BTU60, then the threshold: one value if independent of the BTU.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elastream_papers.visp.experiment import BTUS, LEVELS
from elastream_papers.visp.manufacturing import PENALTY

COLUMNS = tuple(f"{policy} {minutes}" for policy in ("btu", "threshold") for minutes in BTUS)
METRICS = (
    "real-time compliance",
    "near-real-time compliance",
    "relaxed compliance",
    "resource cost",
    "real-time total cost",
    "near-real-time total cost",
    "relaxed total cost",
)


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


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table: by metric the values under `"btu 10"`, ... and `"threshold 10"`, ..."""

    name: str
    rows: Mapping[str, Mapping[str, Statistic]]


def _table(name: str, *lines: str) -> PaperTable:
    rows = {}
    for metric, text in zip(METRICS, lines, strict=True):
        percent = "compliance" in metric
        numbers = [float(number) for number in text.split()]
        pairs = [
            Statistic(mean / 100, spread / 100) if percent else Statistic(mean, spread)
            for mean, spread in zip(numbers[::2], numbers[1::2], strict=True)
        ]
        rows[metric] = dict(zip(COLUMNS, pairs[:3] + pairs[3:] * (3 if percent else 1), strict=True))
    return PaperTable(name, rows)


TABLES: Mapping[str, PaperTable] = {
    "stepwise": _table(
        "Table 3",
        "49 1 52 1 53 1 40 1",
        "85 2 90 1 93 1 67 1",
        "89 1 93 1 95 1 71 1",
        "72.33 3.79 92.00 1.73 98.00 3.84 58.00 1.73 79.00 4.58 120.00 6.00",
        "158.91 0.82 173.39 0.68 174.69 4.25 151.83 1.95 172.83 4.93 213.83 6.45",
        "96.85 0.39 108.24 0.50 108.88 3.17 109.59 1.77 130.59 4.73 171.59 6.35",
        "90.96 1.84 103.03 1.04 105.41 2.91 102.97 1.57 123.97 4.49 164.97 6.12",
    ),
    "two-level": _table(
        "Table 4",
        "48 1 50 1 55 1 40 2",
        "84 2 88 0 93 2 68 2",
        "88 2 91 0 95 1 72 2",
        "82.33 5.13 96.00 7.94 104.00 6.93 66.00 0.00 86.00 1.73 122.00 3.46",
        "169.17 6.83 177.62 6.82 175.90 4.77 157.88 2.64 177.88 4.17 213.88 4.16",
        # 155.43 for BTU30 is as printed; 96.00 and 88 % compliance would give about 115.
        "108.35 6.74 155.43 8.18 114.50 6.28 114.62 3.21 134.62 4.19 170.62 2.94",
        "102.37 6.74 110.62 8.18 111.73 6.28 108.83 2.40 128.83 3.37 164.83 2.59",
    ),
    "walk 1": _table(
        "Table 5",
        "49 1 52 2 54 0 39 0",
        "85 2 90 3 93 0 66 1",
        "89 2 93 2 95 1 71 1",
        "69.33 3.51 95.00 1.73 110.00 3.46 61.33 1.53 86.00 1.73 128.00 6.93",
        "158.19 4.99 176.94 4.70 185.95 3.40 158.68 1.54 183.35 1.40 225.35 6.56",
        "94.44 6.14 111.43 5.65 121.61 2.89 115.55 1.14 140.22 1.77 182.22 6.88",
        "88.11 5.86 106.67 4.69 117.91 3.16 107.54 1.47 132.21 2.14 174.21 7.25",
    ),
    "walk 2": _table(
        "Table 6",
        "49 2 51 1 53 0 41 1",
        "87 2 90 1 92 1 70 1",
        # 75 % is the printed deviation of the threshold's relaxed compliance, an evident slip for 1 %.
        "90 2 94 1 95 0 75 75",
        "74.00 6.08 90.00 0.00 106.00 3.46 59.67 4.04 82.00 9.17 118.00 9.17",
        "172.67 5.35 184.03 0.99 195.73 3.33 164.18 3.84 187.41 9.88 223.41 9.88",
        "100.17 6.65 108.91 2.47 120.59 3.59 113.41 3.47 135.98 9.93 171.98 9.93",
        "92.67 7.15 101.96 1.61 115.67 3.48 104.43 2.49 127.19 8.29 163.19 8.29",
    ),
}


def implied_items(pattern: str, level: str, column: str) -> float:
    """Return how many items a run of the paper had, by one column of its table.

    Late items are the paid penalties over the penalty per item; all items are the late items over the late share. Near
    100 % compliance this is imprecise, because the paper prints whole percents.
    """
    row = TABLES[pattern].rows
    penalties = row[f"{level} total cost"][column].mean - row["resource cost"][column].mean
    return penalties / PENALTY / (1 - row[f"{level} compliance"][column].mean)


def implied(pattern: str) -> dict[str, dict[str, float]]:
    """Return the items by level and column, as `implied_items` does."""
    return {level: {column: implied_items(pattern, level, column) for column in COLUMNS} for level in LEVELS}
