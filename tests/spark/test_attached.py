"""How often a stranger's driver is asked; the driver and its session are a few names here."""

import math
from types import SimpleNamespace

import pytest

from elastream.clouds.provider import HostUsage
from elastream.core.action import DrainHost, LeaseHost, MoveTask, ReleaseHost, SwitchAlternate
from elastream.core.alarm import Alarms
from elastream.core.frames import Frame
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.errors import HostsGone
from elastream.settings import AutopilotSettings
from elastream.spark import attach as module
from elastream.spark.attach import Leasing, attach
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.jvm.capabilities import Capabilities
from elastream.spark.jvm.cluster_manager import SessionLimit
from elastream.spark.jvm.executors import AllocationClient, Executors
from elastream.spark.placement.allocation import InMemoryPlan
from elastream.spark.placement.placing import Placing
from elastream.spark.plant import PlantLimits, SparkPlant, is_critical
from elastream.spark.queries.query import QueryAccess
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.reconciler import Reconciler
from support.fake_clock import FakeClock
from support.fake_provider import SMALL, FakeProvider
from support.fake_session import FakeSession, FakeUse, task_line
from support.sessions_without_jvm import without_jvm
from support.waiting import wait_until


class Driver:
    """Has two executors and no queries; a look takes as much CPU as `cost` says."""

    context = None

    def __init__(self):
        self.cost, self._spent, self.also, self.queries = 0.0, 0.0, [], []

    def ask(self, method, *_):
        if method == "queries":
            return self.queries
        if method != "executors":
            return []
        return [["0", "10.0.0.2:7", "1", "0", "0", "0"], ["1", "10.0.0.3:7", "1", "0", "0", "0"], *self.also]

    def cpu_seconds(self):
        # A plant that looks and one reconciler ask it.
        self._spent += self.cost
        return self._spent


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def spark():
    context = SimpleNamespace(isStopped=lambda: False)
    return without_jvm(
        sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context), master="local[2]", applicationId="app-1")
    )


@pytest.fixture
def plant(spark, driver):
    found = attach(spark, Capabilities(driver), AutopilotSettings())
    yield found
    found.close()


def test_a_leased_host_is_warmed_up_and_one_already_there_is_not(spark, driver, monkeypatch):
    warmed = []
    monkeypatch.setattr(module, "warm_up", lambda session, driver, executor, scratch: warmed.append((executor.id, scratch)))
    plant = attach(spark, Capabilities(driver), AutopilotSettings(max_hosts=4), Leasing(FakeProvider()))
    try:
        plant.hosts.lease("leased", SMALL)
        wait_until(lambda: plant.hosts.state("leased") is HostState.STARTING)
        driver.also = [["7", "at leased:7", "1", "0", "0", "0"]]
        wait_until(lambda: plant.observe() and plant.hosts.state("leased") is HostState.RUNNING)
        assert warmed == [("7", None)]
    finally:
        plant.close()


def test_an_executor_that_spark_is_asked_for_is_warmed_up(spark, driver, monkeypatch):
    warmed, session = [], FakeSession({"0": ("10.0.0.2", 1, 0, False)})
    session.executors = Executors(session)
    monkeypatch.setattr(module, "warm_up", lambda session, driver, executor, scratch: warmed.append(executor.id))
    plant = attach(spark, Capabilities(driver), AutopilotSettings(max_hosts=4), Leasing(asks=True), client=session)
    try:
        plant.observe()
        plant.hosts.lease("asked", SMALL)
        session.there["7"] = ("10.0.0.7", 1, 0, False)
        wait_until(lambda: plant.observe() and plant.hosts.state("asked") is HostState.RUNNING)
        assert warmed == ["7"]
    finally:
        plant.close()


def test_observing_changes_no_host(spark, driver):
    plant = attach(spark, Capabilities(driver), AutopilotSettings(observe_only=True))
    try:
        before = plant.ledger
        for _ in range(3):
            plant.observe()
        assert plant.ledger == before
    finally:
        plant.close()


def test_looks_take_at_most_a_twentieth_of_the_time(plant, driver):
    driver.cost = 3600.0
    first = plant.observe()
    again = plant.observe()
    assert plant.looks == 1
    assert again.usable == first.usable == ("h1", "h2")
    assert again.time >= first.time


def test_what_an_action_changes_is_seen_at_once(plant, driver):
    driver.cost = 3600.0
    plant.observe()
    assert plant.apply(DrainHost("h2")).succeeded
    assert plant.observe().usable == ("h1",)
    assert plant.looks == 2


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (SwitchAlternate("count", "other"), "a query that someone else wrote runs as it was written"),
        (ReleaseHost("h1"), "executors cannot be released here"),
        (MoveTask(TaskId("q/count0", 0), "h1"), "there is no task q/count0#0"),
    ],
)
def test_what_cannot_be_done_to_a_strangers_session_is_refused(plant, action, reason):
    plant.observe()
    assert plant.apply(action).reason == reason


def test_move_that_would_lose_files_of_state_is_refused(plant, monkeypatch):
    plant.observe()
    task, query = TaskId("q/count0", 1), SimpleNamespace(operators=("q/count0",), move_refusal="batches are too short")
    monkeypatch.setattr(plant, "queries", SimpleNamespace(live=(query,)))
    monkeypatch.setattr(plant, "placing", SimpleNamespace(tasks=[task], targets=lambda: [task]))
    assert plant.apply(MoveTask(task, "h2")).reason == "batches are too short"


REAL_TIME = ["id-1", "run-1", "7", "0", "in real-time mode", "fraud"]


def test_a_real_time_query_keeps_the_executors_that_run_it(spark, driver, caplog, monkeypatch):
    monkeypatch.setattr(AllocationClient, "request", lambda client, total: None)
    driver.queries = [REAL_TIME]
    use = FakeUse([task_line("1", query="id-1", label="fraud", mode="in real-time mode")])
    can = Capabilities(driver, use=use)
    plant = attach(spark, can, AutopilotSettings(max_hosts=4), Leasing(asks=True, kinds=[SMALL]))
    try:
        for _ in range(2):
            plant._not_before = 0.0
            seen = plant.observe()
            assert seen.operators.ids == (), "it is not looked after"
        why = "1 task of fraud, which runs in real-time mode"
        assert seen.pinned == {"h2": why}
        assert seen.usable == ("h1",)
        assert plant.apply(DrainHost("h2")).reason == plant.apply(ReleaseHost("h2")).reason == f"it must stay: {why}"
        (said,) = [each.message for each in caplog.records if "real-time" in each.message]
        assert said.startswith("query 'fraud' runs in real-time mode: it is left alone")
        plant.hosts.lease("late", SMALL)
        assert plant.apply(ReleaseHost("late")).succeeded, "nothing runs where nothing has come"
        driver.queries, use.lines = [], []
        wait_until(lambda: not plant.hosts.endless("h2"))
        assert plant.apply(DrainHost("h2")).succeeded
    finally:
        plant.close()
    assert use.closed


@pytest.mark.parametrize(("seconds", "usable"), [(40.0, ("h1",)), (3.0, ("h1", "h2"))], ids=["long", "short"])
def test_an_executor_full_of_long_tasks_of_a_batch_job_is_no_capacity(spark, driver, seconds, usable):
    use = FakeUse([task_line("1", seconds=seconds)])
    plant = attach(spark, Capabilities(driver, use=use), AutopilotSettings(max_hosts=4), Leasing(asks=True, kinds=[SMALL]))
    try:
        seen = plant.observe()
        assert (seen.usable, seen.pinned) == (usable, {})
    finally:
        plant.close()


def test_session_s_limit_is_never_exceeded(spark, driver):
    can = Capabilities(driver, limit=SessionLimit(2, "spark.cores.max=2"))
    plant = attach(spark, can, AutopilotSettings(max_hosts=4, min_hosts=3), Leasing(asks=True, kinds=[SMALL]))
    try:
        context = plant.observe().context
        assert (context.min_hosts, context.max_hosts, context.limit) == (2, 2, "spark.cores.max=2")
        assert not plant.apply(LeaseHost("h3", "small")).succeeded
    finally:
        plant.close()


def test_autopilot_stays_beside_a_chosen_query_that_is_left_alone(spark, driver):
    queries = SessionQueries(QueryAccess(spark, driver, Placing({}, lambda: 0.0, InMemoryPlan())))
    driver.queries = [REAL_TIME]
    queries.look(0.0, 0.0)
    assert not queries.finished(1_000.0)
    driver.queries = []
    queries.look(1_001.0, 1_001.0)
    assert queries.finished(1_100.0)


def test_autopilot_until_the_session_ends_outlasts_its_queries(spark, driver):
    access = QueryAccess(spark, driver, Placing({}, lambda: 0.0, InMemoryPlan()))
    queries = SessionQueries(access, stays=True)
    queries.look(0.0, 0.0)
    assert not queries.finished(10_000.0)


@pytest.mark.parametrize(
    ("latency", "target", "critical"),
    [(2.1, 2.0, True), (2.0, 2.0, False), (math.nan, 2.0, False), (9.0, None, False)],
    ids=["above", "at it", "unknown", "no target"],
)
def test_an_application_is_critical_above_its_target_latency(latency, target, critical):
    seen = Frame(("queries",), {Metric.LATENCY: [latency], Metric.LATENCY_P99: [99.0]})
    assert is_critical(seen, target) is critical


@pytest.mark.parametrize("not_before", [0.0, math.inf], ids=["a look is due", "a costly look was shortly before"])
def test_a_session_that_is_stopped_ends_it(plant, driver, spark, not_before):
    plant.observe()
    plant._not_before = not_before
    spark.sparkContext._jsc = None
    driver.ask = None
    seen = plant.observe()
    assert seen.usable == ("h1", "h2"), "what was known last"
    assert plant.finished
    assert not plant.apply(DrainHost("h2")).succeeded


@pytest.mark.parametrize("session", [None, object()], ids=["all hosts were its provider's", "there are others"])
def test_where_all_hosts_are_gone_for_good_the_run_ends_and_says_so(spark, driver, session):
    class Gone(FakeProvider):
        def measure(self):
            raise HostsGone("all is gone")

    class Still(Reconciler):
        def start(self, release, load, *, acts=True):
            pass

    clock, placing = FakeClock(), Placing({}, lambda: 0.0, InMemoryPlan())
    instruments = QueryAccess(spark, driver, placing)
    hosts = Hosts(Executors(driver), Gone(), clock.now, fence=lambda executor: None, session=session)
    queries = SessionQueries(instruments)
    limits = PlantLimits(Gone().terms)
    plant = SparkPlant(
        instruments, queries, hosts, limits, clock, Alarms(clock.now), reconciler=Still, end=lambda plant: None
    )  # fmt: skip
    with pytest.raises(HostsGone):
        plant.observe()
    if session is None:
        with pytest.raises(HostsGone, match="all is gone"):
            assert plant.finished
    else:
        assert not plant.finished


def test_cpu_time_of_a_host_that_others_use_is_not_the_load_s(spark, driver, monkeypatch):
    monkeypatch.setattr(module, "warm_up", lambda *_: None)
    provider, use = FakeProvider(), FakeUse()
    provider.measure = lambda: {"leased": HostUsage(cpu_seconds=5.0, memory=100.0)}
    plant = attach(spark, Capabilities(driver, use=use), AutopilotSettings(max_hosts=4), Leasing(provider))
    try:
        plant.hosts.lease("leased", SMALL)
        driver.also = [["7", "at leased:7", "1", "0", "0", "0"]]
        wait_until(lambda: plant.observe() and plant.hosts.state("leased") is HostState.RUNNING)
        assert plant._measured(plant.hosts.active)["leased"].cpu_seconds == 5.0
        use.lines = [task_line("7")]
        wait_until(lambda: plant.hosts.shared("leased"))
        assert plant._measured(plant.hosts.active)["leased"] == HostUsage(memory=100.0)
    finally:
        plant.close()


def test_leased_host_that_others_use_outlives_autopilot(spark, driver, monkeypatch):
    monkeypatch.setattr(module, "warm_up", lambda *_: None)
    use, stays = FakeUse(), []
    leasing = Leasing(FakeProvider(), gives_back=0.1, staying=stays)
    plant = attach(spark, Capabilities(driver, use=use), AutopilotSettings(max_hosts=4), leasing)
    plant.hosts.lease("leased", SMALL)
    driver.also = [["7", "at leased:7", "1", "0", "0", "0"]]
    wait_until(lambda: plant.observe() and plant.hosts.state("leased") is HostState.RUNNING)
    use.lines = [task_line("7")]
    wait_until(lambda: plant.hosts.others("leased"))
    plant.close()
    assert stays == ["leased"]
