"""The frames of tasks and hosts are made of what was measured, and of nothing else; the measurements here are made up."""

import math

import numpy as np
import pytest

from elastream import Dataflow
from elastream.clouds.provider import HostUsage
from elastream.core.frames import Frame
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.dataflow.endpoints import parquet, records
from elastream.loads import constant
from elastream.spark.telemetry.frames import HostCpuUsage, cores_used, seconds_waiting, task_frame
from elastream.spark.telemetry.stage_load import PartitionLoads

HELD = {TaskId("count", 1): "h2", TaskId("count", 0): "h1", TaskId("count", 2): "h9"}


@pytest.fixture
def graph(tmp_path):
    flow = Dataflow("words")
    lines = flow.source(records([{"word": "a"}], "word string"), load=constant("1/s"))
    lines.key_by("word").count().sink(parquet(tmp_path / "out"))
    return flow.graph


@pytest.fixture
def leases():
    return {name: Lease(name, HostType("small", cores=1.0), 0.0) for name in ("h1", "h2")}


def loads(busy):
    column = np.array(busy)
    return PartitionLoads(column, column / 10, 2 * column, 10 * column, 100 * column, 1.5, 1000 * column, 0.25)


@pytest.mark.parametrize(
    ("use", "compiling", "cores"),
    [
        ((0.4, 0.8, 0.6), (), 1.8),
        ((0.4, 0.8, 2.7), ("h3",), 1.8),  # as busy as the others at most
        ((0.4, 0.8, 0.1), ("h3",), 1.3),
        ((1.9, 1.7, 1.8), ("h3",), 4.6),
        ((2.7,), ("h1",), 1.0),
        ((0.4, math.nan, 2.7), ("h3",), math.nan),
        ((0.4, math.nan), ("h2",), math.nan),
        ((), (), 0.0),
    ],
)
def test_a_new_hosts_compilation_is_no_work_of_the_load(use, compiling, cores):
    names = tuple(f"h{number}" for number in range(1, 1 + len(use)))
    working = {name: Lease(name, HostType("small", cores=1.0), 0.0) for name in names}
    found = cores_used(Frame(names, {Metric.CPU: use}), working, compiling)
    assert found == pytest.approx(cores, nan_ok=True)


def host_frame(leases, held, links, measured=None, now=0.0, watch=None):
    return (watch or HostCpuUsage()).frame(leases, held, links, lambda host: 0.25, measured or {}, now)


def test_a_task_has_its_partitions_load_and_unknown_hosts_have_none(graph, leases):
    frame = task_frame(graph, tuple(leases), HELD, {"count": loads([0.1, 0.2, 0.3])})
    assert frame.tasks == (TaskId("count", 0), TaskId("count", 1))
    assert frame.host.tolist() == [0, 1]
    assert frame.column(Metric.BUSY_CORES).tolist() == [0.1, 0.2]
    assert frame.column(Metric.BUSY_CORES_ERROR).tolist() == pytest.approx([0.01, 0.02])
    assert frame.column(Metric.UTILISATION).tolist() == [0.2, 0.4]
    assert frame.column(Metric.TRAFFIC).tolist() == [10, 20]
    assert frame.column(Metric.STATE_SIZE).tolist() == [100, 200]
    assert frame.age(Metric.BUSY_CORES) == 1.5
    assert np.isnan(frame.column(Metric.MEMORY)).all()


def test_a_tasks_backlog_is_its_part_of_what_waits_for_its_query(graph, leases):
    frame = task_frame(graph, tuple(leases), HELD, {"count": loads([0.1, 0.2, 0.3])}, waiting={"count": 2.5})
    assert frame.column(Metric.BACKLOG).tolist() == (2.5 * frame.column(Metric.PROCESSED_RATE)).tolist()
    assert np.isnan(task_frame(graph, tuple(leases), HELD, {"count": loads([0.1] * 3)}).column(Metric.BACKLOG)).all()


@pytest.mark.parametrize(("backlog", "rate", "seconds"), [(50.0, 20.0, 2.5), (0.0, math.nan, 0.0), (5.0, 0.0, math.nan)])
def test_a_query_has_work_waiting_for_its_backlog_at_the_rate_of_now(graph, backlog, rate, seconds):
    (source,) = (each.name for each in graph.sources)
    operators = Frame([source], {Metric.BACKLOG: [backlog], Metric.PROCESSED_RATE: [rate]})
    assert seconds_waiting(graph, operators)["count"] == pytest.approx(seconds, nan_ok=True)


def test_a_host_exchanges_what_goes_over_its_links_in_both_directions(leases):
    links = Frame(("h1>h2", "h2>h1", "h2>h10"), {Metric.TRAFFIC: [1.0, 2.0, 4.0]})
    hosts = host_frame(leases, HELD, links)
    assert hosts.column(Metric.BANDWIDTH).tolist() == [3.0, 7.0]
    assert hosts.column(Metric.TASKS).tolist() == [1.0, 1.0]


def test_a_hosts_use_is_its_providers_measurement_or_that_of_its_tasks(leases):
    running = {name: each.to(HostState.STARTING, 0.0).to(HostState.RUNNING, 0.0) for name, each in leases.items()}
    watch = HostCpuUsage()
    host_frame(running, {}, Frame(), {"h1": HostUsage(cpu_seconds=5.0)}, 0.0, watch)
    frame = host_frame(running, {}, Frame(), {"h1": HostUsage(cpu_seconds=6.0, memory=70.0)}, 2.0, watch)
    assert frame.column(Metric.CPU).tolist() == [0.5, 0.25]
    assert frame.value("h1", Metric.MEMORY) == 70.0
    assert math.isnan(frame.value("h2", Metric.MEMORY))


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, -5.0, 1e18], ids=str)
def test_an_impossible_cpu_counter_makes_its_differences_unknown(leases, odd):
    running = {name: lease.to(HostState.STARTING, 0).to(HostState.RUNNING, 0) for name, lease in leases.items()}
    watch, seen = HostCpuUsage(), []
    for now, seconds in enumerate([5.0, 5.5, odd, odd, 7.0, 7.5]):
        frame = host_frame(running, {}, Frame(), {"h1": HostUsage(cpu_seconds=seconds, memory=odd)}, float(now), watch)
        seen.append(frame.value("h1", Metric.CPU))
        assert not math.isinf(frame.value("h1", Metric.MEMORY))
    assert seen[1] == seen[-1] == 0.5
    assert math.isnan(seen[2])
    assert math.isnan(seen[4])
    assert math.isnan(seen[3]) or seen[3] == 0.0  # a counter that stands still


def test_counter_that_stood_still_spreads_its_growth_over_that_time(leases):
    running = {name: lease.to(HostState.STARTING, 0).to(HostState.RUNNING, 0) for name, lease in leases.items()}
    watch, seen = HostCpuUsage(), []
    for now in range(90):
        seconds = 0.5 * (10 if 10 < now < 80 else now)
        frame = host_frame(running, {}, Frame(), {"h1": HostUsage(cpu_seconds=seconds)}, float(now), watch)
        seen.append(frame.value("h1", Metric.CPU))
    assert np.nanmax(seen) == pytest.approx(0.5)
    assert seen[-1] == pytest.approx(0.5)
