"""The neutral rows of Nexmark: three tables and the answers that another project's tests expect.

Elastream carries no copy of them. NEXMARK_ROWS names their folder; by default it lies beside the checkout.
"""

import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from elastream.bench.nexmark.events import SCHEMAS

REPOSITORY = Path(__file__).parents[2]
FOLDERS = [
    *(Path(folder) for folder in filter(None, [os.environ.get("NEXMARK_ROWS")])),
    *(parent / "shared" / "data" / "nexmark" for parent in REPOSITORY.parents),
]
# The form of each query that has these answers, for `queries` and, where it differs, for `answers`.
VARIANTS = {
    "q2": {"auctions": (1007, 1020, 2001, 2019, 2087)},
    "q3": {"states": ("or", "id", "ca")},
    "q6": {"lowest": True},
    "q10": {"clock": "hh:mm"},
    "q16": {"clock": "hh:MM"},
}
IN_PANDAS = {"q10": {"clock": "%I:%M"}, "q16": {"clock": "%I:%m"}}
ANSWERED = tuple(f"q{number}" for number in range(23) if number not in (11, 12, 13))


def rows_folder():
    """Return the folder; skip the test if there is none."""
    folder = next((folder for folder in FOLDERS if (folder / "bid.csv").exists()), None)
    if folder is None:
        pytest.skip("the neutral rows of Nexmark are not on this machine: NEXMARK_ROWS names their folder")
    return folder


def neutral_table(kind):
    """Return one of the three tables."""
    texts = pd.read_csv(rows_folder() / f"{kind}.csv", dtype=str, keep_default_na=False)
    return pa.Table.from_arrays([_typed(texts[each.name], each.type) for each in SCHEMAS[kind]], schema=SCHEMAS[kind])


def _typed(texts, kind):
    if pa.types.is_timestamp(kind):
        return pa.array(pd.to_datetime(texts, format="ISO8601", utc=True)).cast(kind)
    return pa.array(texts.astype("int64") if kind == pa.int64() else texts.astype(object)).cast(kind)


def neutral_answer(name, like):
    """Return the expected rows of a query, with the types that its columns have in `like`."""
    (file,) = [file for file in (rows_folder() / "expected").glob("*.csv") if file.stem.split("_")[0] == name]
    texts = pd.read_csv(file, dtype=str, keep_default_na=False).rename(columns={"bidTimeType": "bid_time_type"})
    return pd.DataFrame({column: _like(texts[column], like[column]) for column in texts})


def _like(texts, column):
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        return pd.to_datetime(texts, format="ISO8601", utc=True)
    if isinstance(column.iloc[0], str):
        return texts
    return texts.map(type(column.iloc[0])) if column.dtype == object else texts.astype(column.dtype)
