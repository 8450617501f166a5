"""What tasks report, added up."""

from hypothesis import given
from hypothesis import strategies as st

from elastream.spark.worker.meter import Meter, MeterRow, merged

rows = st.tuples(
    st.sampled_from(["one", "two"]),
    st.integers(0, 2),
    st.sampled_from(["split", "clean"]),
    st.integers(0, 1),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.floats(0, 10),
    st.floats(100, 200),
    st.floats(200, 300),
    st.sampled_from(["", "quick"]),
    st.integers(0, 2),
)


@given(st.lists(rows, max_size=30))
def test_no_record_and_no_second_is_lost_or_counted_twice(reported):
    found = merged(reported)
    reported = list({(*row[:4], *row[9:]): row for row in reported}.values())  # a task that ran again counts once
    assert sum(row.tasks for row in found) == len(reported)
    assert sum(row.rows_in for row in found) == sum(row[4] for row in reported)
    assert sum(row.rows_out for row in found) == sum(row[5] for row in reported)
    assert abs(sum(row.busy for row in found) - sum(row[6] for row in reported)) < 1e-6
    assert len({(row.segment, row.batch, row.operator, row.code, row.alternate) for row in found}) == len(found)


def test_tasks_of_one_batch_become_one_row_from_first_to_last():
    first, second = (
        ("s", 4, "split", 0, 10, 30, 0.5, 101.0, 103.0, "a", 0),
        ("s", 4, "split", 0, 20, 60, 0.25, 100.0, 102.0, "a", 1),
    )
    reported = [first, second]
    assert merged(reported) == [MeterRow("s", 4, "split", 0, 30, 90, 0.75, 100.0, 103.0, 2, "a")]


class Reported:
    """An accumulator as the meter reads it."""

    def __init__(self, *rows):
        self.value = list(rows)


def test_a_replayed_task_replaces_its_earlier_report():
    meter = Meter.__new__(Meter)
    meter._reported = {}
    tasks = [("s", 4, "split", 0, 10, 30, 0.5, 101.0, 103.0, "a", task) for task in range(2)]
    meter.sink = Reported(*tasks)
    assert [(row.rows_in, row.tasks) for row in meter.drain()] == [(20, 2)]
    meter.sink = Reported(tasks[1])
    assert [(row.rows_in, row.tasks) for row in meter.drain()] == [(20, 2)]
    meter.sink = Reported(("s", 5, *tasks[0][2:]))
    assert [(row.batch, row.rows_in) for row in meter.drain()] == [(5, 10)]
    assert meter.drain() == []
