"""Over which seconds the CPU use of hosts is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.frames import CPU_WINDOW, LONGEST, whole_batches

THE_LAST = (CPU_WINDOW, 0.0)


@pytest.mark.parametrize(
    ("queries", "span"),
    [
        ([[10.0, 12.0, 14.0, 16.0]], (5.0, 1.0)),  # two whole ones are three seconds and more
        ([[15.0, 15.2, 15.4, 15.6]], THE_LAST),  # so short that what is cut off of one says little
        ([[1.0, 16.0]], THE_LAST),  # so long that what was before it says less than the last seconds
        ([[-3.0, 14.0, 15.0, 16.0]], THE_LAST),  # one of them is that long, if not their mean
        ([[0.0, 2.0, 4.0]], THE_LAST),  # no more come
        ([[16.0]], THE_LAST),
        ([[]], THE_LAST),
        ([], THE_LAST),
        ([[13.0, 14.0, 15.0, 16.0], [8.5, 12.0, 15.5]], (5.0, 1.5)),  # those that hosts wait longest for
    ],
)
def test_it_is_told_of_the_newest_whole_batches_or_of_the_last_seconds(queries, span):
    assert whole_batches(queries, 17.0) == span


@given(st.lists(st.lists(st.floats(0.01, 30.0), max_size=12), max_size=4), st.floats(0.0, 30.0))
def test_it_is_never_told_of_less_than_the_window_nor_of_what_was_long_ago(lengths, since):
    queries = []
    for every in lengths:
        ends = [0.0]
        for length in every:
            ends.append(ends[-1] + length)
        queries.append([end - ends[-1] - since for end in ends])
    began, ended = whole_batches(queries, 0.0)
    assert began - ended >= CPU_WINDOW - 1e-9
    assert 0 <= ended <= LONGEST
    assert began <= CPU_WINDOW + 2 * LONGEST
