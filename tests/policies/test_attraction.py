"""The allocation score and its change, by hand."""

import numpy as np

from elastream.policies.otd import attraction, score_changes
from support.placement_observations import allocation_score, pairs

TRIANGLE = pairs((0, 1, 5.0), (1, 0, 1.0), (0, 2, 4.0), (1, 2, 2.0), (-1, 0, 100.0))
"""Task 0 exchanges 6 with task 1 and 4 with task 2; these two exchange 2."""


def test_the_allocation_score_is_local_less_remote_traffic():
    # Equation 4, by hand: with task 1 on node 0 and task 2 on node 1, task 0 has 6 - 4 on node 0 and 4 - 6 on node 1.
    place = np.array([0, 0, 1])
    assert allocation_score(TRIANGLE, place, 0, 0) == 2.0
    assert allocation_score(TRIANGLE, place, 0, 1) == -2.0
    assert allocation_score(TRIANGLE, place, 0, 7) == -10.0


def test_its_change_is_half_the_difference_of_the_scores():
    # Equation 5, by hand: from node 1, where task 2 is, to node 0, where task 1 is: 6 - 4.
    place = np.array([1, 0, 1])
    change = score_changes(attraction(TRIANGLE, place, 2), place, np.array([0]), np.array([0]), 2)
    assert change == [2.0]


def test_what_comes_from_nowhere_counts_for_no_node():
    assert attraction(pairs((-1, 0, 9.0), (0, 1, 3.0)), np.array([0, -1]), 1).rate.size == 1
    assert attraction(pairs((-1, 0, 9.0)), np.array([0]), 1).rate.size == 0
