import math
from types import SimpleNamespace

import numpy as np
import pytest

from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.spark.jvm.executor_memory import Heartbeat, container_size, heap_limit, is_divided
from elastream.spark.telemetry.frames import state_in_heap
from elastream.spark.telemetry.host_memory import HostMemory
from elastream.spark.telemetry.stage_load import PartitionLoads, StoredState

HOSTS = {"0": "h1"}
FIRST, SECOND = {TaskId("count", 0): "h1"}, {TaskId("count", 0): "h1", TaskId("count", 1): "h1"}


class Beats:
    """Heartbeats of executor 0, given by hand."""

    heap_limit, container, divided = 700.0, None, None

    def __init__(self):
        self.newest = {}

    def beat(self, at, heap, collecting=0.0, full=0, concurrent=0):
        self.newest = {"0": Heartbeat(at, heap, 90.0, full, concurrent, collecting)}

    def look(self):
        return self.newest


@pytest.mark.parametrize(("master", "most"), [("local[2]", 4096), ("local", 4096), ("local-cluster[2,1,900]", 700)])
def test_heap_limit_is_that_of_the_process_that_runs_tasks(master, most):
    context = SimpleNamespace(master=lambda: master, executorMemory=lambda: 700)
    runtime = SimpleNamespace(maxMemory=lambda: 4096 * 2**20)
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Runtime=SimpleNamespace(getRuntime=lambda: runtime))))
    assert heap_limit(context, jvm) == most * 2**20


class Heap:
    """HEAP of executor 0 after each heartbeat."""

    def __init__(self):
        self.beats = Beats()
        self.memory = HostMemory(self.beats, None)

    def __call__(self, at, heap, *, state=100.0, full=0, concurrent=0, tasks=FIRST, coming=()):
        self.beats.beat(at, heap, full=full, concurrent=concurrent)
        sizes = {task: state / len(SECOND) if len(tasks) + len(coming) > 1 else state for task in SECOND}
        targets = dict.fromkeys(coming, "h1")
        return self.memory.columns(HOSTS, tasks, at, sizes, targets)[Metric.HEAP]["h1"]


def test_heap_counts_the_least_use_beside_state():
    heap = Heap()
    assert [heap(0, 300), heap(10, 200), heap(20, 500), heap(30, 400, state=150.0)] == [300, 200, 200, 250]


def test_garbage_counts_until_the_second_collection_after_it():
    heap = Heap()
    for at, use in ((0, 150), (10, 200)):
        heap(at, use)
    assert heap(300, 300) == 200, "no collection: all may be garbage"
    assert heap(600, 400, concurrent=1) == 200
    assert heap(900, 450, concurrent=2) == 400
    assert heap(4600, 500, concurrent=2) == 500, "an hour"


def test_two_minutes_count_however_often_old_memory_is_collected():
    heap = Heap()
    for at, use in ((0, 150), (10, 300), (20, 310), (30, 320)):
        heap(at, use, concurrent=at)
    assert heap(40, 330, concurrent=40) == 300
    assert heap(160, 340, concurrent=160) == 330


def test_collector_that_keeps_a_third_for_new_objects_leaves_the_rest():
    heap = Heap()
    for at in (0, 10):
        heap(at, 150, full=1)
    assert heap(20, 150, full=1) == pytest.approx(150 + Beats.heap_limit / 3)
    assert heap(30, 150, full=1, concurrent=1) == 150, "full collections are its last resort"
    heap.beats.divided = False
    assert heap(40, 150, full=1) == 150, "the settings name it"
    heap.beats.divided = True
    assert heap(50, 150, full=1, concurrent=1) == pytest.approx(150 + Beats.heap_limit / 3)


def test_state_counts_from_the_request_of_its_move_until_it_has_left():
    heap = Heap()
    for at in (0, 10):
        heap(at, 200)
    assert heap(20, 210, state=300.0, coming=SECOND.keys() - FIRST.keys()) == 360, "150 MB are there and 60 beside"
    assert heap(30, 290, state=300.0, tasks=SECOND) == 360, "below its state: it loads"
    assert heap(40, 310, state=300.0, tasks=SECOND) == 310
    assert heap(50, 310) == 110


class Executors:
    """HEAP of two hosts with a task each."""

    def __init__(self):
        self.beats, self.hosts = Beats(), {"0": "h1", "1": "h2"}
        self.memory = HostMemory(self.beats, None)

    def __call__(self, at, *heaps, full=0, second=1):
        beats = zip("01", heaps, strict=False)
        self.beats.newest = {each: Heartbeat(at, heap, 90.0, 0, full, 0.0) for each, heap in beats}
        tasks = {TaskId("count", 0): "h1", TaskId("count", second): "h2"}
        return self.memory.columns(self.hosts, tasks, at, dict.fromkeys(tasks, 100.0))[Metric.HEAP]


def test_executor_whose_tasks_changed_needs_beside_state_what_settled_ones_do():
    heaps = Executors()
    for at, full in ((0, 0), (10, 0), (20, 1), (130, 2)):
        heaps(at, 150.0, 400.0, full=full)
    assert heaps(140, 150.0, 400.0, full=2) == {"h1": 150.0, "h2": 400.0}, "collected twice, and still in use"
    assert heaps(150, 150.0, 400.0, full=2, second=2)["h2"] == 150.0, "50 MB beside, as h1"
    assert heaps(3800, 150.0, 400.0, full=2, second=2)["h2"] == 400.0, "after an hour its own use counts"


def test_executor_without_a_heartbeat_needs_what_others_do():
    heaps = Executors()
    heaps(0, 150.0)
    assert heaps(10, 150.0) == {"h1": 150.0, "h2": 150.0}


def test_heap_of_an_executor_without_a_second_heartbeat_is_its_use():
    heap = Heap()
    assert heap(0, 300) == 300
    assert heap(10, 80, tasks=SECOND, state=200.0) == 200
    assert heap(20, 300, tasks=SECOND, state=200.0) == 300


@pytest.mark.parametrize(
    ("master", "options", "cores", "divided"),
    [
        ("spark://x", "-XX:+UseSerialGC -Xss4m", "4", True),
        ("yarn", "-XX:+UseParallelGC", "4", True),
        ("yarn", "-XX:+UseG1GC", "1", False),
        ("k8s://x", "", "1", None),
        ("k8s://x", "", "4", False),
        ("local[1]", "", "1", False),
    ],
)
def test_settings_tell_the_collector(master, options, cores, divided):
    settings = {"spark.executor.extraJavaOptions": options, "spark.executor.cores": cores}
    conf = SimpleNamespace(get=lambda name, default: settings.get(name, default))
    assert is_divided(SimpleNamespace(master=lambda: master, conf=lambda: conf)) is divided


def test_state_in_heaps_is_divided_by_the_sizes_of_files():
    zeros = [np.zeros(2)] * 5
    heap = PartitionLoads(*zeros, 0.0, np.array([1.0, 3.0]), stored=StoredState(10.0, 80.0, 0.0))
    unknown = PartitionLoads(*zeros, 0.0, np.full(2, np.nan), stored=StoredState(10.0, 40.0, 0.0))
    disk = PartitionLoads(*zeros, 0.0, np.array([1.0, 3.0]), stored=StoredState(10.0, 0.0, 80.0))
    found = state_in_heap({"count": heap, "new": unknown, "disk": disk})
    assert found == {
        TaskId("count", 0): 20.0,
        TaskId("count", 1): 60.0,
        TaskId("new", 0): 20.0,
        TaskId("new", 1): 20.0,
    }


def test_collections_are_a_share_of_the_time_between_heartbeats():
    beats = Beats()
    memory = HostMemory(beats, None)
    beats.beat(0, 200, 1.0)
    assert math.isnan(memory.columns(HOSTS, FIRST, 0)[Metric.GC_TIME]["h1"])
    beats.beat(10, 200, 1.5)
    assert memory.columns(HOSTS, FIRST, 10)[Metric.GC_TIME]["h1"] == 0.05


def test_python_workers_count_by_heartbeats_where_spark_measures_them():
    beats = Beats()
    beats.newest = {"0": Heartbeat(0.0, 200.0, 90.0, 0, 0, 0.0, python=120.0)}
    assert HostMemory(beats, None).columns(HOSTS, FIRST, 0)[Metric.PYTHON_MEMORY] == {"h1": 120.0}


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

    conf = SimpleNamespace(
        get=lambda name, default: settings.get(name.removeprefix("spark."), default), getSizeAsMb=megabytes
    )
    return SimpleNamespace(master=lambda: master, conf=lambda: conf, executorMemory=lambda: 1000)


def test_container_holds_the_heap_and_its_overhead():
    assert container_size(context("yarn")) == (1000 + 384) * 2**20 / 1e6
    assert container_size(context("k8s://x", **{"executor.memoryOverhead": "500m"})) == 1500 * 2**20 / 1e6
    assert container_size(context("spark://x")) is None


def test_pods_of_python_jobs_have_more_overhead():
    python = {"kubernetes.memoryOverheadFactor": "0.4", "executor.minMemoryOverhead": "100m"}
    assert container_size(context("k8s://x", **python)) == (1000 + 400) * 2**20 / 1e6
    assert container_size(context("yarn", **python)) == (1000 + 100) * 2**20 / 1e6
    unused = {"memory.offHeap.size": "500m"}
    assert container_size(context("yarn", **unused)) == (1000 + 384) * 2**20 / 1e6
    assert container_size(context("yarn", **unused, **{"memory.offHeap.enabled": "true"})) == (1000 + 884) * 2**20 / 1e6
