"""What mappers have emitted by a moment, and when they have emitted so much, are one function and its inverse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.simulator import Emissions
from elastream_papers.thesis.resilience.reducers.streams import Streams, weighed

COUNTS = st.lists(st.integers(0, 50), min_size=1, max_size=8)


def streams(*loads: list[int], spread: bool = True) -> Streams:
    named = {f"s{number}": Emissions.every(0.5, counts, spread=spread) for number, counts in enumerate(loads)}
    return Streams(named, np.ones((len(loads), 4)) / 4, 2, 1, 60.0)


@given(st.lists(COUNTS, min_size=1, max_size=3), st.booleans(), st.floats(-1, 5))
def test_one_moment_says_what_the_same_moment_among_many_does(loads, spread, at):
    made = streams(*loads, spread=spread)
    assert made.emitted_by(at).tolist() == made.emitted_by(np.array([at]))[:, 0].tolist()


@given(
    st.lists(COUNTS, min_size=1, max_size=3), st.booleans(), st.floats(0, 4), st.floats(0, 1), st.floats(0, 100),
    st.lists(st.floats(0.01, 2), min_size=3, max_size=3),
)  # fmt: skip
def test_at_the_moment_found_so_many_are_emitted_and_just_before_fewer(loads, spread, begin, lasts, tuples, weights):
    made, latest, weights = streams(*loads, spread=spread), begin + lasts, weights[: len(loads)]

    def until(end: float) -> float:
        return weighed(weights, made.between(begin, end))

    found = made.when(begin, tuples, weights, latest)
    assert begin <= found <= latest
    if found == latest:
        assert until(latest) <= tuples or until(found - 1e-9) <= tuples + 1e-3
    else:
        assert until(found + 1e-9) >= tuples - 1e-6
        assert until(found - 1e-9) <= tuples + 1e-6


def test_tuples_that_come_at_once_are_there_from_that_moment_on():
    made = streams([0, 40], spread=False)
    assert made.when(0.0, 20.0, [1.0], 2.0) == pytest.approx(0.5005, abs=1e-6)
