import math
from types import SimpleNamespace

import pytest

from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.spark.jvm.executor_memory import Heartbeat, container_size, heap_limit
from elastream.spark.telemetry.host_memory import HostMemory

HOSTS = {"0": "h1"}
FIRST, SECOND = {TaskId("count", 0): "h1"}, {TaskId("count", 0): "h1", TaskId("count", 1): "h1"}


class Beats:
    """Heartbeats of executor 0, given by hand."""

    heap_limit, container = 700.0, None

    def __init__(self):
        self.newest = {}

    def beat(self, at, heap, collecting=0.0):
        self.newest = {"0": Heartbeat(at, heap, 90.0, collecting)}

    def look(self):
        return self.newest


@pytest.mark.parametrize(("master", "most"), [("local[2]", 4096), ("local", 4096), ("local-cluster[2,1,900]", 700)])
def test_heap_limit_is_that_of_the_process_that_runs_tasks(master, most):
    context = SimpleNamespace(master=lambda: master, executorMemory=lambda: 700)
    runtime = SimpleNamespace(maxMemory=lambda: 4096 * 2**20)
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Runtime=SimpleNamespace(getRuntime=lambda: runtime))))
    assert heap_limit(context, jvm) == most * 2**20


def heap_of(memory, at, placements=FIRST):
    return memory.columns(HOSTS, placements, at)[Metric.HEAP]["h1"]


def test_heap_counts_its_least_heartbeat_of_two_minutes():
    beats = Beats()
    memory = HostMemory(beats, None)
    for at, heap in ((0, 300), (10, 200), (20, 500)):
        beats.beat(at, heap)
        least = heap_of(memory, at)
    assert least == 200
    beats.beat(140, 450)
    assert heap_of(memory, 140) == 450


def test_heap_forgets_what_was_live_before_a_task_came():
    beats = Beats()
    memory = HostMemory(beats, None)
    beats.beat(0, 200)
    heap_of(memory, 0)
    beats.beat(10, 500)
    assert heap_of(memory, 10, SECOND) == 500


def test_collections_are_a_share_of_the_time_between_heartbeats():
    beats = Beats()
    memory = HostMemory(beats, None)
    beats.beat(0, 200, 1.0)
    assert math.isnan(memory.columns(HOSTS, FIRST, 0)[Metric.GC_TIME]["h1"])
    beats.beat(10, 200, 1.5)
    assert memory.columns(HOSTS, FIRST, 10)[Metric.GC_TIME]["h1"] == 0.05


def test_host_without_heartbeat_or_probe_has_unknown_memory():
    assert HostMemory(None, None).columns(HOSTS, FIRST, 0) == {}
    columns = HostMemory(Beats(), None).columns(HOSTS, FIRST, 0)
    assert columns == {Metric.HEAP_LIMIT: {"h1": 700.0}}


def test_lower_of_two_memory_limits_counts():
    beats = Beats()
    beats.container = 1000.0
    probes = SimpleNamespace(memory=lambda executor: SimpleNamespace(python=60.0, limit=900.0))
    columns = HostMemory(beats, probes).columns(HOSTS, FIRST, 0)
    assert columns[Metric.MEMORY_LIMIT] == {"h1": 900.0}
    assert columns[Metric.PYTHON_MEMORY] == {"h1": 60.0}


def context(master, **settings):
    def megabytes(name, default):
        return int(settings.get(name.removeprefix("spark."), default).removesuffix("m"))

    conf = SimpleNamespace(get=lambda name, default: default, getSizeAsMb=megabytes)
    return SimpleNamespace(master=lambda: master, conf=lambda: conf, executorMemory=lambda: 1000)


def test_container_holds_the_heap_and_its_overhead():
    assert container_size(context("yarn")) == (1000 + 384) * 2**20 / 1e6
    assert container_size(context("k8s://x", **{"executor.memoryOverhead": "500m"})) == 1500 * 2**20 / 1e6
    assert container_size(context("spark://x")) is None
