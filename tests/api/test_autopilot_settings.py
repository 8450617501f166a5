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
