"""The frames of tasks and hosts are made of what was measured, and of nothing else; the measurements here are made up."""

import math

import numpy as np
import pytest

from elastream import Dataflow, constant, parquet, records
from elastream.clouds.provider import Measured
from elastream.model.action import TaskId
from elastream.model.cloud import HostType, Lease
from elastream.model.observation import Frame, Metric
from elastream.spark.queries.compiled_tasks import task_frame, weights
from elastream.spark.telemetry.hosts import HostWatch
from elastream.spark.telemetry.stage_load import Mean

HELD = {TaskId("count", 1): "h2", TaskId("count", 0): "h1", TaskId("count", 2): "h9"}


class Still:
    """A provider of hosts that use nothing."""

    def measure(self):
        return {"h1": Measured(0.0), "h2": Measured(0.0)}


@pytest.fixture
def graph(tmp_path):
    flow = Dataflow("words")
    lines = flow.source(records([{"word": "a"}], "word string"), load=constant("1/s"))
    lines.key_by("word").count().sink(parquet(tmp_path / "out"))
    return flow.graph


@pytest.fixture
def leases():
    return {name: Lease(name, HostType("small", cores=1.0), 0.0) for name in ("h1", "h2")}


def mean(busy):
    column = np.array(busy)
    return Mean(column, 2 * column, 10 * column, 100 * column, 1.5)


def test_a_task_has_what_its_partition_costs_and_those_on_unknown_hosts_are_left_out(graph, leases):
    frame = task_frame(graph, leases, HELD, {"count": mean([0.1, 0.2, 0.3])})
    assert frame.tasks == (TaskId("count", 0), TaskId("count", 1))
    assert frame.host.tolist() == [0, 1]
    assert frame.column(Metric.BUSY_CORES).tolist() == [0.1, 0.2]
    assert frame.column(Metric.UTILISATION).tolist() == [0.2, 0.4]
    assert frame.column(Metric.TRAFFIC).tolist() == [10, 20]
    assert frame.age(Metric.BUSY_CORES) == 1.5
    assert np.isnan(frame.column(Metric.MEMORY)).all()


def test_what_moving_a_task_is_good_for_is_what_it_keeps_busy_where_that_is_known(graph, leases):
    frame = task_frame(graph, leases, HELD, {"count": mean([math.nan, 0.2, 0.3])})
    assert weights(frame) == {TaskId("count", 1): 0.2}


def test_what_was_not_measured_yet_is_unknown_and_has_no_age(graph, leases):
    frame = task_frame(graph, leases, HELD, {"count": mean([math.nan] * 3)})
    assert np.isnan(frame.column(Metric.BUSY_CORES)).all()
    assert frame.age(Metric.BUSY_CORES) == 0.0


def test_a_host_exchanges_what_goes_over_its_links_in_both_directions(leases):
    links = Frame(("h1>h2", "h2>h1", "h2>h10"), {Metric.TRAFFIC: [1.0, 2.0, 4.0]})
    hosts = HostWatch(Still()).hosts(leases, HELD, links, 0.0)
    assert hosts.column(Metric.BANDWIDTH).tolist() == [3.0, 7.0]
    assert hosts.column(Metric.TASKS).tolist() == [1.0, 1.0]


def test_a_host_without_links_and_one_whose_links_were_not_measured_exchange_nobody_knows_what(leases):
    for links in (Frame(), Frame(("h1>h2", "h2>h1"), {Metric.TRAFFIC: [math.nan, math.nan]})):
        assert np.isnan(HostWatch(Still()).hosts(leases, {}, links, 0.0).column(Metric.BANDWIDTH)).all()
