"""What Autopilot refuses before it begins, and its pause; without a session that works."""

import pytest

from elastream.api.autopilot import Autopilot
from elastream.model.endpoints import kafka
from elastream.model.errors import ElastreamError
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
