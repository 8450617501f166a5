"""When hosts count as balanced after a skew: not by one batch, which may be so by chance."""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from elastream_papers.thesis.resilience.balancing import GIVEN_UP, STAYS, BalanceWatch, alike

EVEN, UNEVEN = (1.0, 1.1, 0.9, 1.0), (2.0, 0.7, 0.7, 0.6)
FIRST = 10
"""The first batch with a skew."""


def watched(batches: Mapping[int, tuple[float, ...]]) -> tuple[float, int]:
    """(batches until balanced, times that the loop was told to stop), each batch being seen twice."""
    stopped: list[bool] = []
    seen: list[tuple[int, dict[str, float]]] = []
    made: Any = SimpleNamespace(worked=lambda: seen[-1], job=SimpleNamespace(skewed_from=FIRST))
    watch = BalanceWatch(made)
    loop: Any = SimpleNamespace(stop=lambda: stopped.append(True))
    watch.loop = loop
    nothing: Any = None
    for batch, worked in batches.items():
        for _ in range(2):
            seen.append((batch, dict(enumerate(worked))))  # type: ignore[arg-type]
            watch.observed(nothing)
    return watch.after, len(stopped)


def test_hosts_are_alike_up_to_a_quarter_more_than_the_mean() -> None:
    assert alike(EVEN)
    assert alike((1.25, 0.9, 0.95, 0.9))
    assert not alike((1.3, 0.9, 0.9, 0.9))


@pytest.mark.parametrize(
    ("batches", "after"),
    [
        ([UNEVEN, UNEVEN, EVEN, EVEN, EVEN], 3.0),
        ([UNEVEN, EVEN, UNEVEN, EVEN, EVEN, EVEN], 4.0),
        ([UNEVEN, EVEN, EVEN], math.inf),
    ],
    ids=["three in a row", "one of them was by chance", "not three yet"],
)
def test_the_first_of_three_batches_in_a_row_counts(batches: list[tuple[float, ...]], after: float) -> None:
    assert watched({FIRST + number: worked for number, worked in enumerate(batches)}) == (after, after < math.inf)


def test_batches_before_the_skew_say_nothing_and_it_is_given_up_in_the_end() -> None:
    before = dict.fromkeys(range(FIRST), EVEN)
    assert watched(before) == (math.inf, 0)
    assert watched({**before, **{FIRST + number: UNEVEN for number in range(GIVEN_UP)}}) == (math.inf, 1)
    assert STAYS > 1
