import math

import numpy as np
import pytest

from elastream.core.frames import OLD, Frame, TableFrame, TaskFrame
from elastream.core.metrics import Metric
from elastream.core.observation import UNMEASURED, Composition, Context, Exchange, MicroBatch, Observation, Sample
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, records
from elastream.dataflow.stages import lay_out


def context():
    flow = Dataflow("f")
    flow.source(records([{"value": "a"}], "value string")).map({"a": len, "b": len}, returns="n int", name="m").sink(
        collect("o")
    )
    return Context(lay_out(flow.graph))


def test_what_was_never_given_is_unknown_and_not_zero():
    frame = Frame(["a", "b"], {Metric.BACKLOG: [3.0, math.nan]})
    assert frame.reading("a", Metric.BACKLOG).value == 3.0
    assert not frame.reading("b", Metric.BACKLOG).known
    assert not frame.reading("a", Metric.CPU).known
    assert not frame.reading("nobody", Metric.BACKLOG).known
    assert np.isnan(frame.column(Metric.CPU)).all()


def test_columns_cannot_be_written_to():
    frame = Frame(["a"], {Metric.CPU: [0.5]})
    with pytest.raises(ValueError):
        frame.column(Metric.CPU)[0] = 1.0


def test_a_column_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="has shape"):
        Frame(["a", "b"], {Metric.CPU: [1.0]})


def test_ages_are_per_frame_or_per_metric():
    assert Frame(["a"], {}, 4.0).age(Metric.CPU) == 4.0
    assert Frame(["a"], {}, {Metric.CPU: 2.0}).age(Metric.CPU) == 2.0


def test_what_is_old_is_unknown_to_whoever_reads_it():
    for age, known in ((OLD, True), (OLD + 1.0, False)):
        frame = Frame(["a"], {Metric.CPU: [0.5], Metric.MEMORY: [1.0]}, {Metric.CPU: age})
        assert frame.reading("a", Metric.CPU).known is known
        assert math.isnan(frame.column(Metric.CPU)[0]) is not known
        assert frame.value("a", Metric.MEMORY) == 1.0
        table = TableFrame({"a": 0}, {Metric.CPU: 0}, np.array([[0.5]]), age)
        assert (table.value("a", Metric.CPU) == 0.5) is known
        assert Exchange([0], [1], [10.0], age=age).known is known
    assert len(Exchange([0], [1], [10.0], age=OLD + 1.0)) == 0


def test_tasks_are_named_after_operator_and_index():
    tasks = TaskFrame([1, 1], [0, 3], [0, -1], ("source", "count"), {Metric.BUSY_CORES: [0.1, 0.2]})
    assert [str(task) for task in tasks.tasks] == ["count#0", "count#3"]
    assert tasks.value("count#3", Metric.BUSY_CORES) == 0.2


def test_a_series_ends_with_what_is_seen_now():
    earlier = Sample(1.0, Frame(["m"], {Metric.BACKLOG: [5.0]}))
    now = Observation(2.0, context(), Frame(["m"], {Metric.BACKLOG: [7.0]}), history=(earlier,))
    times, values = now.series("m", Metric.BACKLOG)
    assert times.tolist() == [1.0, 2.0]
    assert values.tolist() == [5.0, 7.0]
    assert now.series("m", Metric.BACKLOG, last=1)[1].tolist() == [7.0]


def test_a_run_starts_with_the_first_alternate_of_each_operator():
    assert Composition.default(context().graph).alternates == {"m": "a"}


def test_host_names_are_never_reused():
    seen = Observation(0.0, context(), Frame(), next_host=4)
    assert [seen.host_name(), seen.host_name(1)] == ["h4", "h5"]


def test_an_exchange_tells_traffic_within_a_host_from_traffic_between_two():
    exchange = Exchange([0, 0, 1, -1], [1, 2, 2, 0], [5.0, 7.0, 11.0, 100.0])
    assert exchange.split(np.array([0, 0, 1])) == (5.0, 18.0)
    assert exchange.split(np.array([0, -1, 1])) == (0.0, 7.0)


def test_an_exchange_without_entries_is_zero_and_an_unmeasured_one_unknown():
    assert not Observation(0.0, None, Frame()).exchange.known
    assert all(math.isnan(part) for part in UNMEASURED.split(np.array([0, 1])))
    assert Exchange().split(np.array([0, 1])) == (0.0, 0.0)


@pytest.mark.parametrize("columns", [([0], [1], []), ([0], [1], [math.nan]), ([0], [1], [-1.0]), ([0], [1], [1.0], False)])
def test_an_exchange_that_makes_no_sense_is_refused(columns):
    with pytest.raises(ValueError):
        Exchange(*columns)


@pytest.mark.parametrize("value", [1e18, np.inf, -np.inf, -1.0])
@pytest.mark.parametrize("kind", ["frame", "table", "tasks"])
def test_an_impossible_value_reads_as_unknown_and_the_frame_names_it(kind, value):
    column = [3.0, value, np.nan]
    if kind == "tasks":
        frame = TaskFrame([0, 0, 0], [0, 1, 2], [0, 0, 0], ("count",), {Metric.BUSY_CORES: column})
        rows = ["count#0", "count#1", "count#2"]
    else:
        rows = ["a", "b", "c"]
        names = {name: number for number, name in enumerate(rows)}
        frame = (
            TableFrame(names, {Metric.BUSY_CORES: 0}, np.array([column]))
            if kind == "table"
            else Frame(rows, {Metric.BUSY_CORES: column})
        )
    assert frame.value(rows[0], Metric.BUSY_CORES) == 3.0
    assert np.isnan(frame.value(rows[1], Metric.BUSY_CORES))
    assert not frame.reading(rows[1], Metric.BUSY_CORES).known
    assert np.isnan(frame.column(Metric.BUSY_CORES)[1:]).all()
    assert [str(each) for each in frame.implausible] == [
        f"busy cores of {rows[1]} is {value:g}, which is impossible: it counts as unknown"
    ]


def test_columns_of_what_can_be_are_not_copied():
    table = np.array([[1.0, 2.0]])
    frame = TableFrame({"a": 0, "b": 1}, {Metric.BUSY_CORES: 0}, table)
    assert np.shares_memory(frame.column(Metric.BUSY_CORES), table)
    assert frame.implausible == ()


def test_an_impossible_exchange_or_batch_is_unknown():
    assert not Exchange([0], [1], [np.inf]).known
    assert not Exchange([0, 1], [1, 0], [1.0, 1e18]).known
    good = MicroBatch("source", 0.0, 1.0, 10.0)
    odd = [good._replace(seconds=-1.0), good._replace(records=np.inf), good._replace(seconds=1e18)]
    assert list(Observation(1.0, context(), Frame(), batches=[good, *odd]).batches) == [good]
