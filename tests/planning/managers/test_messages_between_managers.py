"""Messages survive a trip through JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.planning.managers.messages import (
    Holding,
    RegionOrder,
    RegionReport,
    ScaleIn,
    ScaleOut,
    Verdict,
    View,
    from_json,
    to_json,
)

names = st.text(max_size=5)
many = st.lists(names, max_size=4).map(tuple)
counts = st.integers(0, 2**53)
pairs = st.lists(st.tuples(names, names), max_size=3).map(tuple)
triples = st.lists(st.tuples(names, names, names), max_size=2).map(tuple)
spare = st.lists(st.tuples(names, counts), max_size=3).map(tuple)
use = st.none() | st.floats(0, 1)
messages = st.one_of(
    st.builds(ScaleOut, names, names, counts, names),
    st.builds(ScaleIn, names, names, counts, counts),
    st.builds(Verdict, names, names, counts, names),
    st.builds(RegionReport, names, counts, counts, many, many, many, many, many, use, names, many),
    st.builds(RegionOrder, names, counts, pairs, names, triples, many, counts),
    st.builds(View, names, counts, many, many, counts),
    st.builds(Holding, names, counts, counts, many, many, spare),
)


@given(messages)
def test_a_message_comes_out_of_json_as_it_went_in(message) -> None:
    assert from_json(json.loads(json.dumps(to_json(message), allow_nan=False))) == message


def test_what_is_no_message_is_named() -> None:
    with pytest.raises(ValueError, match="'LeaseHost' is not a message"):
        from_json({"message": "LeaseHost"})
