"""VISP's baseline: observations in, actions out."""

from dataclasses import replace

import pytest

from elastream.core.action import DrainHost, LeaseHost, MoveTask, ReleaseHost, SetParallelism
from elastream.core.decision import Unknown
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric, Rows
from elastream.core.plant import Plan
from elastream.core.task_id import TaskId
from elastream.dataflow.operators import Kind
from elastream.policies.queue_threshold import QueueThreshold
from support.visp_observations import lease, observe, operator


def plan(*args, **kwargs):
    return list(QueueThreshold().plan(observe(*args, **kwargs)).actions)


def keyed(name):
    return replace(operator(name, level=None), kind=Kind.KEYED, key=("k",))


def waiting(items):
    return {"a": {Metric.BACKLOG: items}}


@pytest.mark.parametrize(("items", "added"), [(1.0, 0), (50.0, 0), (51.0, 1), (251.0, 2)])
def test_instances_are_added_above_each_threshold(items, added):
    expected = [SetParallelism("a", 2 + added, on=("h1",) * added)] if added else []
    assert plan([operator("a")], {"h1": ["a", "a"]}, metrics=waiting(items)) == expected


def test_a_host_is_leased_only_when_all_are_full():
    operators = [operator("a", cores=2)]
    assert plan(operators, {"h1": ["a"]}, metrics=waiting(300.0)) == [
        LeaseHost("h2", "docker"),
        SetParallelism("a", 3, on=("h1", "h2")),
    ]


def test_youngest_host_goes_below_the_lower_threshold():
    assert plan([operator("a")], {"h1": ["a", "a"], "h2": ["a"]}, metrics=waiting(0.0)) == [
        SetParallelism("a", 2, without=(TaskId("a", 2),)),
        ReleaseHost("h2"),
    ]


def test_the_last_instance_and_the_last_host_stay():
    assert plan([operator("a")], {"h1": ["a"]}, metrics=waiting(0.0)) == []
    assert plan([operator("a")], {"h1": [], "h2": ["a"]}, metrics=waiting(10.0)) == [ReleaseHost("h1")]


def test_a_host_on_its_way_is_not_released():
    leases = [lease("h1"), lease("h2", state=HostState.STARTING)]
    assert plan([operator("a")], {"h1": ["a"], "h2": []}, metrics=waiting(10.0), leases=leases) == []


def test_an_unknown_queue_changes_nothing_and_is_named():
    found = QueueThreshold().plan(observe([operator("a")], {"h1": ["a", "a"]}))
    assert found == Plan(unknown=(Unknown(Metric.BACKLOG, Rows.OPERATOR, "a"),))


def test_tasks_with_state_are_spread_over_the_hosts_and_keep_none():
    fused = {"fused": True, "scalable": ["in"], "leases": [lease("h1"), lease("h2")]}
    metrics = {"in": {Metric.PARALLELISM: 12.0, Metric.BACKLOG: 100.0}, "a": {Metric.BUSY_CORES: 0.5}}
    stateful = keyed("a")
    busy = plan([stateful], {"h1": ["a"] * 4, "h2": []}, metrics=metrics, **fused)
    assert [action.host for action in busy if isinstance(action, MoveTask)] == ["h2", "h2"]
    metrics["in"] = {Metric.PARALLELISM: 2.0, Metric.BACKLOG: 10.0}
    idle = plan([stateful], {"h1": ["a"] * 2, "h2": ["a"] * 2}, metrics=metrics, **fused)
    assert idle == [DrainHost("h2"), ReleaseHost("h2")]


def test_an_operator_that_the_plant_does_not_place_is_still_scaled():
    metrics = {"in": {Metric.BACKLOG: 0.0, Metric.PARALLELISM: 3.0}}
    assert plan([operator("a")], {"h1": []}, metrics=metrics, scalable=["in"], fused=True) == [SetParallelism("in", 2)]
