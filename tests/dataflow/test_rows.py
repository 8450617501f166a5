"""Records that a program holds are held against their schema before anything starts."""

from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.dataflow.schema import check_rows, columns_of
from elastream.errors import DataflowError

AT = ("operators", "lines", "source", "records")


def refused(schema, *rows):
    check_rows("lines", rows, columns_of(schema, "the schema"), AT)


@pytest.mark.parametrize(
    ("schema", "row", "said"),
    [
        (
            "value string",
            {"vaule": "a"},
            r"record 1 of source 'lines' has a column 'vaule', which is not in its schema \(value",
        ),
        ("value string", {"value": 3}, "has 3 as 'value', which is string: text is written in quotes"),
        ("kwh double", {"kwh": "x"}, "has 'x' as 'kwh', which is double$"),
        ("n long", {"n": 1.5}, "has 1.5 as 'n', which is bigint$"),
        ("n tinyint", {"n": 200}, "has 200 as 'n', which is tinyint$"),
        ("n long", {"n": 2**70}, "as 'n', which is bigint$"),
        ("at timestamp", {"at": date(2026, 3, 2)}, "which is timestamp: a time, in YAML without quotes"),
        ("value string", {"value": date(2026, 3, 2)}, "which is string: text is written in quotes"),
        ("n long", {"n": True}, "has True as 'n', which is bigint$"),
        ("at timestamp", {"at": "2026-03-02T09:14:07Z"}, "which is timestamp: a time, in YAML without quotes"),
        ("n long not null", {"n": None}, "has None as 'n', which is bigint$"),
    ],
)
def test_what_does_not_fit_is_said_with_record_and_column(schema, row, said):
    with pytest.raises(DataflowError, match=said) as error:
        refused(schema, row)
    assert error.value.at == AT


def test_what_fits_passes_whatever_its_python_type():
    one, other = {"n": np.int64(3), "x": np.float32(1.5), "b": True}, {"n": 4.0, "x": 1, "b": None}
    refused("n long, x double, b boolean", one, other)
    refused("value string, x double, at timestamp", {"value": b"a", "x": Decimal("1.5"), "at": np.datetime64("2026-01-01")})
    one = {"at": datetime(2026, 1, 1), "d": date(2026, 1, 1), "a": [1]}
    refused("at timestamp, d date, a array<long>", one, {"at": 0})


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-100, 100), st.floats(allow_nan=False, width=32), st.text(max_size=3),
    st.datetimes(datetime(2000, 1, 1), datetime(2030, 1, 1)),
)  # fmt: skip
ARROW = {"string": pa.string(), "boolean": pa.bool_(), "bigint": pa.int64(), "double": pa.float64()}


@given(kind=st.sampled_from(sorted(ARROW)), value=VALUES)
def test_checks_refuse_only_booleans_and_fractions_that_the_reader_takes(kind, value):
    try:
        pa.Table.from_pylist([{"c": value}], schema=pa.schema([("c", ARROW[kind])]))
    except (pa.ArrowException, TypeError):
        return
    cut_off = kind == "bigint" and isinstance(value, float) and not value.is_integer()
    if not cut_off and not (isinstance(value, bool) and kind != "boolean"):
        refused(f"c {kind}", {"c": value})
