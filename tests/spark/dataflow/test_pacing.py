"""Before 4.2, Spark asks a reader for the latest offset without saying from which to go on."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from elastream.spark.dataflow.pacing import RangeReader
from elastream.spark.dataflow.steering import Steering


class Queue(RangeReader):
    """A queue that has `there` records, of which a batch takes two at most."""

    def __init__(self, folder, there=0, kept=True):
        super().__init__(Steering("q", folder / "wanted.json"), 1.0, pa.schema([]), folder / "commits" if kept else None)
        self.there = there

    def initialOffset(self):
        return {"n": 0}

    def plan(self, start):
        return {"n": min(self.there, start["n"] + 2)} if self.there > start["n"] else dict(start)

    def due(self):
        return self.there

    def partitions(self, start, end):
        return []

    def read(self, partition):
        return iter(())


def test_from_a_given_offset_a_batch_is_planned_as_it_is(tmp_path):
    assert Queue(tmp_path, 3).latestOffset({"n": 0}, "no limit") == {"n": 2}
    assert not list(tmp_path.iterdir())


def test_without_one_it_goes_on_after_the_last_and_says_what_is_there(tmp_path):
    queue = Queue(tmp_path)
    assert [queue.latestOffset(), queue.latestOffset()] == [{"n": 0}] * 2  # no batch
    queue.there = 3
    assert queue.latestOffset() == {"n": 2, "due": 3}
    assert queue.latestOffset() == {"n": 3, "due": 3}
    assert queue.latestOffset() == {"n": 3, "due": 3}  # no batch


def test_after_a_restart_as_well(tmp_path):
    assert Queue(tmp_path, 3).latestOffset() == {"n": 2, "due": 3}
    assert Queue(tmp_path, 3).latestOffset() == {"n": 3, "due": 3}
    assert Queue(tmp_path, 3, kept=False).latestOffset() == {"n": 2, "due": 3}


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans())))
def test_batches_follow_each_other_whatever_of_them_spark_has_logged(tmp_path_factory, steps):
    """Spark plans a batch from what it has logged to what it is given, which it may lose before it has logged it."""
    folder = tmp_path_factory.mktemp("queue")
    queue, logged = Queue(folder), 0
    for more, lost, restarted in steps:
        queue.there += more
        end = queue.latestOffset()["n"]
        assert logged <= end <= queue.there
        logged = logged if lost else end
        queue = Queue(folder, queue.there) if restarted else queue
    for _ in range(queue.there):
        logged = queue.latestOffset()["n"]
    assert logged == queue.there
