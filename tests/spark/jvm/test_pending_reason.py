"""What a cluster manager says of executors that do not come: how it is asked, and that this Spark has what is read."""

import logging
import threading

import pytest

from elastream.clouds.notices import UNTIMED_S
from elastream.clouds.provider import PendingReason
from elastream.errors import EnvironmentProblem
from elastream.spark.jvm import cluster_manager
from elastream.spark.jvm.cluster_manager import NOTICE_INTERVAL_S, SOURCES, CachedReason, ClusterWatch, parse_reason
from elastream.spark.jvm.driver_side import HERE, DriverSide
from support.fake_clock import FakeClock
from support.shared_session import shared_session
from support.waiting import wait_until


class Asked:
    """A cluster manager that answers in turn; a failure is an answer, too."""

    def __init__(self, *answers):
        self.answers, self.registered, self.clock = list(answers), [], FakeClock(100.0)
        self.word = CachedReason(self, self.clock.now)

    def __call__(self, registered):
        self.registered.append(registered)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def after(self, seconds: float, registered: int = 0) -> PendingReason:
        """What it says once the question that is put `seconds` later has been answered."""
        self.clock.advance(seconds)
        self.word(registered)
        wait_until(lambda: not any(each.name == "cluster-word" for each in threading.enumerate()))
        return self.word(registered)


def watch(*answers):
    """A watch over a cluster manager that answers `notices` in turn, and its log of calls."""
    calls, told, clock = [], list(answers), FakeClock(100.0)

    def ask(method, *arguments):
        calls.append((method, *arguments))
        answer = told.pop(0) if method == "notices" else []
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ClusterWatch(ask, clock.now, lambda: 1000.0 + clock.now()), calls, clock


def test_executor_that_goes_has_a_deadline_or_half_a_minute():
    timed, untimed = [["3", "1130000", "its node is being decommissioned"]], [["4", "", "its pod is a target"]]
    cluster, _, clock = watch(timed, untimed, untimed)
    cluster.renew()
    assert cluster._notices == {"3": (1130.0, "its node is being decommissioned")}
    cluster.renew()
    clock.advance(10.0)
    cluster.renew()
    assert cluster._notices == {"4": (1100.0 + UNTIMED_S, "its pod is a target")}


def test_time_that_was_left_at_first_does_not_slide():
    cluster, _, clock = watch(*[[["3", "+60000", "its node is being decommissioned"]]] * 3)
    for _ in range(3):
        cluster.renew()
        clock.advance(10.0)
    assert cluster._notices["3"][0] == 1100.0 + 60.0


def test_executors_with_state_are_protected_until_they_hold_none():
    cluster, calls, _ = watch([], [], [], [])
    for holding in ({"2", "1"}, {"2", "1"}, {"2"}, set()):
        cluster.protect(holding)
        cluster.renew()
    assert [each for each in calls if each[0] == "protect"] == [("protect", "1,2"), ("protect", "2"), ("protect", "")]


def test_marks_of_protected_executors_are_taken_off_at_the_end():
    cluster, calls, _ = watch([], [], [], [])
    cluster.unprotect()
    assert calls == [], "nothing is protected"
    cluster.protect({"1"})
    cluster.renew()
    cluster.unprotect()
    assert [each for each in calls if each[0] == "protect"] == [("protect", "1"), ("protect", "")]


@pytest.mark.parametrize("refused", [["protect"], ["notices", "protect"]])
def test_refused_protection_is_tried_again_only_when_notices_are_due(refused):
    calls, clock = [], FakeClock(100.0)

    def ask(method, *arguments):
        calls.append(method)
        if method in refused:
            raise EnvironmentProblem("pods may not be patched")
        return []

    cluster = ClusterWatch(ask, clock.now, clock.now)
    cluster.protect({"1"})
    for _ in range(20):
        cluster.notices()
        wait_until(lambda: not any(each.name == "cluster-notices" for each in threading.enumerate()))
        clock.advance(NOTICE_INTERVAL_S / 10)
    assert [each for each in calls if each == refused[0]] == refused[:1] * 2


def test_untimed_notice_that_is_given_again_counts_again():
    untimed = [["4", "", "its node has the taint shutdown"]]
    cluster, _, clock = watch(untimed, [], untimed)
    for _ in range(3):
        cluster.renew()
        clock.advance(60.0)
    assert cluster._notices["4"][0] == 1000.0 + clock.now() - 60.0 + UNTIMED_S


def test_watch_that_cannot_ask_warns_once_and_knows_nothing(caplog):
    cluster, _, _ = watch(EnvironmentProblem("no rights"), EnvironmentProblem("no rights"))
    with caplog.at_level(logging.WARNING):
        cluster.renew()
        cluster.renew()
    assert len(caplog.records) == 1
    assert cluster._notices == {}


def test_taints_that_may_not_be_read_are_logged_once(caplog):
    cluster, _, _ = watch(*[[["", "", "nodes is forbidden"], ["4", "1130000", "its pod is being deleted"]]] * 2)
    cluster.renew()
    cluster.renew()
    assert caplog.messages == ["taints of nodes give no notice: nodes is forbidden; let the account list nodes"]
    assert cluster._notices == {"4": (1130.0, "its pod is being deleted")}


def test_lines_become_a_word():
    assert parse_reason([["starting", "2"], ["waits", "no room"]]) == PendingReason("no room", refused=True, starting=2)
    assert parse_reason([["starting", "0"], ["never", "no such image"]]) == PendingReason(
        "no such image", refused=True, never=True
    )
    assert parse_reason([["starting", "0"], ["says", "not yet"]]) == PendingReason("not yet")
    assert parse_reason([]) == PendingReason()


def test_it_is_asked_at_most_every_two_seconds_and_the_newest_answer_holds():
    asked = Asked(PendingReason("full"), PendingReason("free"))
    assert asked.after(0, registered=1).reason == "full"
    assert asked.after(1, registered=1).reason == "full"
    assert asked.after(1, registered=2).reason == "free"
    assert asked.registered == [1, 2]


def test_an_executor_is_starting_from_two_answers_on_until_it_registers():
    asked = Asked(*[PendingReason(starting=1)] * 3)
    assert asked.after(0, registered=1).starting == 0
    assert asked.after(2, registered=1).starting == 1
    assert asked.after(1, registered=2).starting == 0  # an answer of before says nothing of a request of now
    assert asked.after(1, registered=1).starting == 1


def test_an_executor_that_has_just_ended_is_not_one_that_starts():
    asked = Asked(PendingReason(), PendingReason(starting=1), PendingReason())
    said = [asked.after(0, registered=2), asked.after(2, registered=1), asked.after(2, registered=1)]
    assert [each.starting for each in said] == [0, 0, 0]


def test_what_was_said_of_requests_of_long_ago_is_forgotten():
    asked = Asked(PendingReason("full"), PendingReason("free"))
    assert asked.after(0).reason == "full"
    asked.clock.advance(60)
    assert asked.word(0) == PendingReason()


def test_a_manager_that_cannot_be_read_is_a_warning_once_and_asked_again(caplog):
    asked = Asked(ValueError("no such method"), ValueError("no such method"), PendingReason("full"))
    with caplog.at_level(logging.WARNING, cluster_manager.__name__):
        assert asked.after(0) == asked.after(2) == PendingReason()
        assert asked.after(2).reason == "full"
    assert [record.message for record in caplog.records] == [
        "the cluster manager gives no reasons for missing executors: ValueError: no such method"
    ]


@pytest.mark.spark
@pytest.mark.parametrize("source", SOURCES.values())
def test_this_spark_has_what_each_manager_is_read_by(source):
    assert DriverSide(shared_session(), HERE / source)
