"""What is kept of a key's state: what fits, what does not, and that states of other alternates are not touched."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from elastream.spark.worker.states import States
from support.property_examples import examples


def schema(*kinds) -> StructType:
    return StructType([StructField(f"f{n}", kind) for n, kind in enumerate(kinds)])


def kept(kind, value):
    """What a state of one field is read as."""
    states = States([schema(kind)], own=False)
    return states.of(states.after(None, 0, (value,)), 0)[0]


WHEN = datetime.datetime(2026, 11, 22, 9, 30, 0, 5)


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (LongType(), np.int64(7), 7),
        (LongType(), True, 1),
        (DoubleType(), 3, 3.0),
        (DoubleType(), np.float32(0.5), 0.5),
        (StringType(), "x", "x"),
        (BooleanType(), np.bool_(True), True),
        (TimestampType(), pd.Timestamp(WHEN), WHEN),
        (DateType(), datetime.date(2026, 1, 2), datetime.date(2026, 1, 2)),
        (DecimalType(5, 2), decimal.Decimal("1.25"), decimal.Decimal("1.25")),
        (ArrayType(LongType()), np.array([1, 2]), [1, 2]),
        (ArrayType(DoubleType()), [1, None, 2.5], [1.0, None, 2.5]),
        (MapType(StringType(), ArrayType(LongType())), {"a": [1]}, {"a": [1]}),
        (schema(LongType(), StringType()), {"f1": "x", "f0": 1}, (1, "x")),
        (ArrayType(schema(LongType())), [(1,), (2,)], [(1,), (2,)]),
        (LongType(), None, None),
    ],
)
def test_values_are_kept_as_pythons_own_of_the_declared_type(kind, value, read):
    found = kept(kind, value)
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (LongType(), "7"),
        (LongType(), 1.5),
        (IntegerType(), 2**31),
        (DoubleType(), "1.5"),
        (StringType(), 5),
        (ArrayType(LongType()), "12"),
        (ArrayType(LongType()), ["1"]),
        (schema(LongType(), StringType()), (1,)),
        (TimestampType(), "2026-11-22"),
    ],
)
def test_a_value_of_another_type_is_refused_and_not_lost(kind, value):
    with pytest.raises(ValueError, match="it left a state that is not"):
        kept(kind, value)


@pytest.mark.parametrize("state", [(), (1, 2), 5, "n", {"f0": 1}])
def test_a_state_with_other_fields_is_refused(state):
    with pytest.raises(ValueError, match="it left a state that is not a tuple of \\(f0 bigint\\)"):
        States([schema(LongType())], own=False).after(None, 0, state)


own = States([schema(LongType()), schema(StringType(), ArrayType(DoubleType())), schema(TimestampType())], own=True)
moments = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30))
left = st.one_of(
    st.tuples(st.just(0), st.none() | st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1))),
    st.tuples(st.just(1), st.none() | st.tuples(st.text(), st.none() | st.lists(st.floats(allow_nan=False)))),
    st.tuples(st.just(2), st.none() | st.tuples(moments)),
)


@settings(max_examples=examples(200))
@given(st.lists(left, max_size=30))
def test_states_of_their_own_stay_byte_for_byte_while_others_run(turns):
    now, expected = None, [None, None, None]
    for alternate, state in turns:
        before, now = now, own.after(now, alternate, state)
        expected[alternate] = state
        for other in {0, 1, 2} - {alternate}:
            assert (now and now[other]) == (before and before[other])
        assert [own.of(now, each) for each in range(3)] == expected
    assert (now is None) == (expected == [None, None, None])
