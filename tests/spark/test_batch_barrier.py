"""BatchBarrier of batches over several queries."""

from hypothesis import given
from hypothesis import strategies as st

from elastream.spark.reconciler import BatchBarrier

BUSY = ()


def test_a_round_ends_when_each_query_has_ended_a_batch():
    barrier = BatchBarrier()
    barrier.look({0: 3, 1: -1}, BUSY)
    assert barrier.count == -1
    barrier.look({0: 4, 1: 0}, BUSY)
    assert barrier.count == 0
    barrier.look({0: 5, 1: 0}, BUSY)
    assert barrier.count == 0


def test_a_query_without_a_batch_under_way_holds_nothing_up():
    barrier = BatchBarrier()
    barrier.look({0: 0, 1: -1}, {1})
    barrier.look({0: 1, 1: -1}, {1})
    assert barrier.count == 1
    barrier.look({0: 2, 1: -1}, BUSY)  # it has one now
    assert barrier.count == 1


@given(st.lists(st.lists(st.sampled_from(["begin", "end", "wait"]), min_size=2, max_size=2), min_size=1, max_size=60))
def test_two_rounds_outlast_every_batch_under_way_at_their_start(story):
    barrier, ended, under_way = BatchBarrier(), [-1, -1], [False, False]
    fence = None
    for step in story:
        for query, event in enumerate(step):
            if event == "begin" and not under_way[query]:
                under_way[query] = True
            elif event == "end" and under_way[query]:
                under_way[query], ended[query] = False, ended[query] + 1
        barrier.look(dict(enumerate(ended)), {query for query, busy in enumerate(under_way) if not busy})
        if fence is None:
            fence = barrier.count, [number + 1 if busy else None for number, busy in zip(ended, under_way, strict=True)]
        elif barrier.count >= fence[0] + 2:
            assert all(batch is None or ended[query] >= batch for query, batch in enumerate(fence[1]))


def test_a_late_query_counts_from_its_first_batch_and_an_ended_one_never():
    barrier = BatchBarrier()
    barrier.look({"a": 0}, ())
    barrier.look({"a": 1, "b": -1}, ())
    assert barrier.count == 0
    barrier.look({"a": 1, "b": 0}, ())
    assert barrier.count == 1
    barrier.look({"b": 1}, ())
    assert barrier.count == 2
