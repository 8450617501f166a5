"""What a session lacks is said in a sentence each, and only what needs it is left out; the session is a few names here."""

from types import SimpleNamespace

import pytest

from elastream.clouds.provider import UNLIMITED
from elastream.errors import EnvironmentProblem
from elastream.spark.jvm import capabilities
from elastream.spark.jvm.capabilities import probe
from elastream.spark.jvm.cluster_manager import NO_LIMIT, SessionLimit


def session(master="spark://h:7077", allocates=True, **settings):
    conf = SimpleNamespace(get=lambda name: settings.get(name.removeprefix("spark.").replace(".", "_")))
    java = SimpleNamespace(
        lang=SimpleNamespace(Class=SimpleNamespace(forName=lambda name: SimpleNamespace(isInstance=lambda it: allocates)))
    )
    context = SimpleNamespace(
        master=master,
        getConf=lambda: conf,
        _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(schedulerBackend=object, isStopped=lambda: False)),
    )
    streams = SimpleNamespace(stateStoreCoordinator=object)
    return SimpleNamespace(
        sparkContext=context,
        conf=SimpleNamespace(get=lambda name, default: default),
        _jvm=SimpleNamespace(java=java),
        _jsparkSession=SimpleNamespace(streams=lambda: streams),
    )


DRIVER = SimpleNamespace(context=None, ask=lambda *_: [["0", "10.0.0.2:7", "2", "0", "0", "0"]])


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    monkeypatch.setattr(capabilities, "DriverSide", lambda spark: DRIVER)
    monkeypatch.setattr(capabilities, "ExecutorUse", lambda spark: "use")
    monkeypatch.setattr(capabilities, "cluster_limit", lambda spark, slots: NO_LIMIT)
    monkeypatch.setattr(capabilities, "TaskLoads", lambda spark: "tasks")
    monkeypatch.setattr(capabilities, "ExecutorMemory", lambda spark: None)
    monkeypatch.setattr(capabilities, "Recovery", lambda spark: "recovery")


def missing(*_):
    raise EnvironmentProblem("this Spark does not tell")


def test_a_cluster_of_sparks_own_lacks_nothing():
    can = probe(session(executor_cores="2"))
    assert (can.driver, can.task_loads, can.recovery, can.asks, can.slots, can.allowed, can.lacking) == (
        DRIVER, "tasks", "recovery", True, 2, UNLIMITED, ()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (session(dynamicAllocation_enabled="true"), "dynamicAllocation.enabled is on: Spark requests and releases"),
        (session("local[4]", allocates=False), "local[4] has a single executor, the driver"),
    ],
    ids=["dynamic allocation", "local mode"],
)
def test_executors_are_left_to_spark_where_it_has_its_own_ways(given, said):
    can = probe(given)
    assert can.driver is not None
    assert not can.asks
    assert len(can.lacking) == 1
    assert said in can.lacking[0]


@pytest.mark.parametrize("setting", ["dynamicAllocation_enabled", "streaming_dynamicAllocation_enabled"])
def test_dynamic_allocation_is_explained_with_the_settings_that_change_it(setting):
    (said,) = probe(session(**{setting: "true"})).lacking
    named = "spark." + setting.replace("_", ".")
    assert f"start the session with {named}=false, spark.executor.instances executors" in said


def test_spark_returns_to_a_fixed_number_of_executors():
    assert probe(session("yarn", executor_instances="5")).allowed == 5


@pytest.mark.parametrize("wait", ["0", "0s", "0ms"])
def test_tasks_that_do_not_wait_for_their_state_are_warned_of(wait):
    (sentence,) = probe(session(locality_wait=wait)).lacking
    assert "do not stay where they are put" in sentence


def test_a_provider_that_is_none_is_named_and_not_used():
    can = probe(session(), provider="somewhere")
    assert not can.leases
    assert can.lacking[0].startswith("hosts cannot be leased: str is not a provider of hosts: it has no terms, lease")


def test_without_a_way_to_ask_the_driver_nothing_else_is_tried(monkeypatch):
    monkeypatch.setattr(capabilities, "DriverSide", missing)
    can = probe(session())
    assert can.driver is None
    assert can.lacking == ("autopilot does nothing: this Spark does not tell",)


def test_without_telemetry_of_tasks_the_rest_goes_on(monkeypatch):
    monkeypatch.setattr(capabilities, "TaskLoads", missing)
    can = probe(session())
    assert can.driver is not None
    assert can.asks
    assert can.lacking == ("state partitions are not moved: this Spark does not tell",)


def test_executors_are_not_requested_where_their_use_is_unknown(monkeypatch):
    monkeypatch.setattr(capabilities, "ExecutorUse", missing)
    can = probe(session())
    assert not can.asks
    assert can.lacking == ("executors are not requested or released: this Spark does not tell",)


def test_limit_of_the_session_counts_by_the_cores_of_its_executors():
    assert probe(session(cores_max="5")).limit == SessionLimit(2, "spark.cores.max=5")
