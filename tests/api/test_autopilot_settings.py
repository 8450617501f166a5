"""What Autopilot refuses before it begins, and its pause; without a session that works."""

from types import SimpleNamespace

import pytest

from conformance.fake_provider import SMALL, FakeProvider
from conformance.fake_session import FakeSession
from elastream.api.autopilot import Autopilot
from elastream.clouds.granted import GrantedExecutors
from elastream.clouds.provider import Terms
from elastream.model.endpoints import kafka
from elastream.model.errors import ElastreamError
from elastream.model.prices import PriceList
from elastream.recording.directory import RunDirectory


def test_what_becomes_of_the_executors_is_one_of_two():
    with pytest.raises(ElastreamError, match="restore is 'gone'; it is 'leave' or 'original'"):
        Autopilot(None, restore="gone")


def test_a_pilot_is_paused_by_the_program_and_by_the_folder(tmp_path):
    pilot = Autopilot(None, folder=tmp_path)
    assert not pilot.paused
    pilot.pause()
    assert pilot.paused
    pilot.unpause()
    assert not pilot.paused
    RunDirectory(tmp_path).pause()
    assert pilot.paused
    pilot.unpause()
    assert not pilot.paused
    assert not RunDirectory(tmp_path).is_paused


def test_a_topic_whose_offsets_are_to_be_committed_has_a_group():
    with pytest.raises(ElastreamError, match="commits: the topic 'orders' has no group to commit its offsets to"):
        Autopilot(None, commits=[kafka("orders")])


CONTEXT = SimpleNamespace(executorMemory=lambda: 1000)
SESSION = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: CONTEXT)))
BY_CORE = PriceList(core_hour=3600.0)
"""A core costs 1 a second."""


@pytest.mark.parametrize(
    ("pilot", "provider", "price"),
    [
        (Autopilot(SESSION), None, 0.0),
        (Autopilot(SESSION, prices=BY_CORE), None, 2.0),
        (Autopilot(SESSION, prices=BY_CORE), FakeProvider(), 2.0),
        (Autopilot(SESSION), GrantedExecutors(Terms((SMALL,), 10), FakeSession()), SMALL.price),
        (Autopilot(SESSION, host_type=SMALL), None, SMALL.price),
    ],
    ids=["no price", "a price list", "beside hosts of another cloud", "of the cloud that is leased of", "declared"],
)
def test_executors_that_a_session_has_anyway_cost_what_is_known_of_them(pilot, provider, price):
    assert pilot._found(provider, SMALL)(2).price == price


class ConnectSession:
    """What a session of Spark Connect answers where it is asked for what only a driver's process has."""

    def __getattr__(self, name):
        raise AttributeError(f"[JVM_ATTRIBUTE_NOT_SUPPORTED] {name}")


def test_a_session_of_spark_connect_is_left_alone_and_the_log_says_what_to_do(caplog, tmp_path):
    pilot = Autopilot(ConnectSession(), folder=tmp_path / "run").watch()
    assert pilot.join(60)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "this one is Spark Connect: make the session with SparkSession.builder.master(...)" in record.message
    assert not (tmp_path / "run").exists()
