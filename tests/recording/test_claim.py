"""The table of `elastream.recording.mirror`, row by row."""

import itertools

import pytest

from elastream.errors import EnvironmentProblem
from elastream.recording.mirror import PATIENCE, SETTLES, DriverClaim
from elastream.recording.paths import RemotePath, write_whole

NUMBER = itertools.count()


@pytest.fixture
def files():
    return RemotePath(f"memory://claims/run{next(NUMBER)}")


class Waits:
    """Pauses that take no time; `then` is done in each."""

    def __init__(self, then=lambda: None):
        self.seconds, self._then = 0.0, then

    def __call__(self, seconds):
        self.seconds += seconds
        self._then()


def test_a_free_run_is_held_at_once_and_free_when_it_ends_in_order(files):
    waits = Waits()
    first, second = DriverClaim(files, waits), DriverClaim(files, waits)
    first.take()
    assert waits.seconds == SETTLES
    first.release()
    second.take()
    assert waits.seconds == 2 * SETTLES


def test_of_two_that_take_it_at_once_the_first_is_refused(files):
    second = DriverClaim(files, Waits())
    first = DriverClaim(files, Waits(second._write))
    with pytest.raises(EnvironmentProblem, match=r"is held by another driver \(process \d+ on .+\), which runs it"):
        first.take()


def test_one_that_is_renewed_is_refused(files):
    holder = DriverClaim(files, Waits())
    holder.take()
    waits = Waits(holder.renew)
    with pytest.raises(EnvironmentProblem, match="is held by another driver"):
        DriverClaim(files, waits).take()
    assert waits.seconds <= PATIENCE
    assert not holder.lost


def test_claim_of_a_killed_driver_is_taken_after_a_while(files):
    killed, waits = DriverClaim(files, Waits()), Waits()
    killed.take()
    heir = DriverClaim(files, waits)
    heir.take()
    assert PATIENCE <= waits.seconds <= PATIENCE + 2 * SETTLES
    killed.renew()
    assert killed.lost
    killed.renew()
    killed.release()
    heir.renew()
    assert not heir.lost


def test_one_that_is_given_up_while_another_waits_is_taken(files):
    holder = DriverClaim(files, Waits())
    holder.take()
    DriverClaim(files, Waits(holder.release)).take()


def test_a_record_that_cannot_be_read_is_waited_for_and_replaced(files):
    write_whole(files / "driver.json", b"{")
    DriverClaim(files, Waits()).take()
    assert (files / "driver.json").read_text().startswith("{")
