"""Whether records that a program or a document holds fit their schema: what Spark's reader would refuse, told beforehand.

Types with parts, decimals and intervals are left to the reader, and so are values that are none of Python's plain ones.
"""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from types import NoneType

from elastream.model.errors import DataflowError
from elastream.model.schema import Columns, in_words, kind_of

__all__ = ["refuse_rows"]

WHOLE: Mapping[str, int] = {"tinyint": 1 << 7, "smallint": 1 << 15, "int": 1 << 31, "bigint": 1 << 63}
"""Whole types, with the number from which on they hold none."""
FITTING: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    **dict.fromkeys(WHOLE, (int, float)),
    "float": (int, float),
    "double": (int, float),
    "date": (date,),
    "timestamp": (datetime, int),
    "timestamp_ntz": (datetime, int),
}
"""What values a column may hold, by its type."""
PLAIN = (str, bool, int, float, date, list, tuple, dict, NoneType)
"""Values that are told here; of other classes, NumPy's, pandas' or decimals, the reader knows what it takes."""
HINTS: Mapping[str, str] = {
    "string": "text is written in quotes",
    "timestamp": "a time, in YAML without quotes: 2026-03-02 09:14:07",
    "timestamp_ntz": "a time, in YAML without quotes: 2026-03-02 09:14:07",
    "date": "a date, in YAML without quotes: 2026-03-02",
}


def refuse_rows(name: str, rows: Sequence[Mapping[str, object]], columns: Columns, at: tuple[str, ...]) -> None:
    """Raise DataflowError, at the keys `at`, for the first of `rows` of source `name` that does not fit `columns`."""
    for number, row in enumerate(rows, start=1):
        for column, value in row.items():
            if column not in columns:
                raise DataflowError(
                    f"record {number} of source {name!r} has a column {column!r}, which is not in its schema "
                    f"({in_words(columns)})", at,
                )  # fmt: skip
            kind = kind_of(given := columns[column]) or ""
            if (value is None and kind == given) or _fits(value, kind):
                continue
            hint = f": {HINTS[kind]}" if kind in HINTS and value is not None else ""
            raise DataflowError(
                f"record {number} of source {name!r} has {value!r} as {column!r}, which is {kind}{hint}", at
            )


def _fits(value: object, kind: str) -> bool:
    wanted = FITTING.get(kind)
    if wanted is None or not isinstance(value, PLAIN):
        return True
    if isinstance(value, bool) or not isinstance(value, wanted):
        return isinstance(value, bool) and kind == "boolean"
    if isinstance(value, int | float) and kind in WHOLE:
        return (isinstance(value, int) or value.is_integer()) and -WHOLE[kind] <= value < WHOLE[kind]
    return True
