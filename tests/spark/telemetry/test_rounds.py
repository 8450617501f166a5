"""Rounds of batches over several queries."""

from hypothesis import given
from hypothesis import strategies as st

from elastream.spark.telemetry.rounds import Rounds

BUSY = [False, False]


def test_a_round_ends_when_each_query_has_ended_a_batch():
    rounds = Rounds(2)
    rounds.look([3, -1], BUSY)
    assert rounds.count == -1
    rounds.look([4, 0], BUSY)
    assert rounds.count == 0
    rounds.look([5, 0], BUSY)
    assert rounds.count == 0


def test_a_query_without_a_batch_under_way_holds_nothing_up():
    rounds = Rounds(2)
    rounds.look([0, -1], [False, True])
    rounds.look([1, -1], [False, True])
    assert rounds.count == 1
    rounds.look([2, -1], BUSY)  # it has one now
    assert rounds.count == 1


def test_nothing_ends_while_all_are_idle():
    rounds = Rounds(2)
    rounds.look([-1, -1], [True, True])
    assert rounds.count == -1


@given(st.lists(st.lists(st.sampled_from(["begin", "end", "wait"]), min_size=2, max_size=2), min_size=1, max_size=60))
def test_after_two_rounds_no_batch_is_under_way_that_was_when_the_first_began(story):
    rounds, ended, under_way = Rounds(2), [-1, -1], [False, False]
    fence = None
    for step in story:
        for query, event in enumerate(step):
            if event == "begin" and not under_way[query]:
                under_way[query] = True
            elif event == "end" and under_way[query]:
                under_way[query], ended[query] = False, ended[query] + 1
        rounds.look(ended, [not each for each in under_way])
        if fence is None:
            fence = rounds.count, [number + 1 if busy else None for number, busy in zip(ended, under_way, strict=True)]
        elif rounds.count >= fence[0] + 2:
            assert all(batch is None or ended[query] >= batch for query, batch in enumerate(fence[1]))
