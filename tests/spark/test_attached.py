"""How often a stranger's driver is asked; the driver and its session are a few names here."""

from types import SimpleNamespace

import pytest

from elastream.model.action import DrainHost, MoveTask, ReleaseHost, SwitchAlternate, TaskId
from elastream.spark.attached import AttachedPlant


class Driver:
    """Has two executors and no queries; a look takes as much CPU as `cost` says."""

    context = None

    def __init__(self):
        self.cost, self._spent = 0.0, 0.0

    def ask(self, method, *_):
        return [["0", "10.0.0.2:7", "1", "0", "0"], ["1", "10.0.0.3:7", "1", "0", "0"]] if method == "executors" else []

    def cpu_seconds(self):
        self._spent += self.cost
        return self._spent


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def plant(driver):
    context = SimpleNamespace(isStopped=lambda: False)
    spark = SimpleNamespace(
        sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context)),
        _jsparkSession=SimpleNamespace(streams=object),
    )
    found = AttachedPlant(spark, driver, None)
    yield found
    found.close()


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
