"""How often a stranger's driver is asked; the driver and its session are a few names here."""

from types import SimpleNamespace

import pytest

from conformance.fake_provider import SMALL, FakeProvider
from elastream.model.action import DrainHost, MoveTask, ReleaseHost, SwitchAlternate, TaskId
from elastream.model.cloud import HostState
from elastream.model.observation import Metric
from elastream.spark.attach import AttachedPlant
from elastream.spark.jvm.allocation import AllocationClient


class Driver:
    """Has two executors and no queries; a look takes as much CPU as `cost` says."""

    context = None

    def __init__(self):
        self.cost, self._spent = 0.0, 0.0
        self.first = [["0", "10.0.0.2:7", "1", "0", "0"], ["1", "10.0.0.3:7", "1", "0", "0"]]
        self.more = []

    def ask(self, method, *_):
        return [*self.first, *self.more] if method == "executors" else []

    def cpu_seconds(self):
        self._spent += self.cost
        return self._spent


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def spark():
    context = SimpleNamespace(isStopped=lambda: False)
    return SimpleNamespace(
        sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context)),
        _jsparkSession=SimpleNamespace(streams=object),
    )


@pytest.fixture
def plant(spark, driver):
    found = AttachedPlant(spark, driver, None)
    yield found
    found.close()


def test_who_owns_the_hosts_has_them_back_but_for_the_one_that_does_the_work(spark, driver, monkeypatch):
    monkeypatch.setattr(AllocationClient, "fence", lambda client, executor: None)
    owner = FakeProvider(owes=12.0)
    plant = AttachedPlant(spark, driver, None, provider=owner)
    assert plant.observe().application.value("queries", Metric.COST) == 12.0
    for name in ("h3", "h4"):
        driver.more.append([name, f"at {name}:7", "1", "0", "0"])
        plant._hosts.lease(name, SMALL)
    del driver.first[:]
    plant._observe(plant.clock.now())
    owner.recalled = {"h3", "h4"}
    for _ in range(2):
        plant._observe(plant.clock.now())
    states = {lease.host: lease.state for lease in plant.ledger if lease.active}
    assert sorted(states.values()) == [HostState.RELEASING, HostState.RUNNING]
    assert owner.reports[-1].kept == {host for host, state in states.items() if state is HostState.RUNNING}
    plant.close()


def test_a_look_that_takes_cpu_is_not_repeated_until_it_is_a_twentieth_of_the_time(plant, driver):
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
        (ReleaseHost("h1"), "executors cannot be given back here"),
        (MoveTask(TaskId("q/count0", 0), "h1"), "there is no task q/count0#0"),
    ],
)
def test_what_cannot_be_done_to_a_strangers_session_is_refused(plant, action, reason):
    plant.observe()
    assert plant.apply(action).reason == reason
