"""Comparison of a query's final rows with its answer, as bags of rows."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pandas as pd

BATCH = "batch"  # column of the micro-batch that wrote a row
DIGITS = 6  # of a mean


@dataclass(frozen=True)
class Difference:
    rows: int
    missing: int
    surplus: int
    example: str = ""

    def __bool__(self) -> bool:
        return bool(self.missing or self.surplus)


def final_rows(rows: pd.DataFrame, key: Sequence[str], updates: str = "") -> pd.DataFrame:
    """Return the latest row of each key by batch, and by the column `updates` within one; all rows if there is no key."""
    if not key or rows.empty:
        return rows
    order = [BATCH, *([updates] if updates else [])]
    return rows.sort_values(order, kind="stable").drop_duplicates(list(key), keep="last")


def compare(rows: pd.DataFrame, answer: pd.DataFrame, columns: Sequence[str] = ()) -> Difference:
    """Compare two frames as bags, over `columns` or those of the answer. Means are compared to six digits."""
    names = list(columns) or list(answer.columns)
    ours, theirs = (_bag(frame, names) for frame in (rows, answer))
    missing, surplus = theirs - ours, ours - theirs
    example = next((f"{what} {row}" for what, bag in (("lacks", missing), ("adds", surplus)) for row in bag), "")
    return Difference(sum(ours.values()), sum(missing.values()), sum(surplus.values()), example)


def _bag(frame: pd.DataFrame, names: Sequence[str]) -> Counter[tuple[Hashable, ...]]:
    if frame.empty:
        return Counter()
    return Counter(zip(*(map(_plain, frame[name].tolist()) for name in names), strict=True))


def _plain(value: Any) -> Hashable:
    """Return a value that is equal for equal contents: one time zone, one type of number."""
    if isinstance(value, pd.Timestamp):
        return value.tz_convert("UTC").tz_localize(None).value if value.tzinfo else value.value
    if isinstance(value, Decimal):
        return value.normalize()
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, DIGITS)
    return value if isinstance(value, Hashable) else str(value)
