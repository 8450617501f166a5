"""What a cluster manager is told of a run: in which form, in which order, and what becomes of it where it may not be."""

import logging
import threading
from types import SimpleNamespace

from elastream.core.event import Reason, RunEvent
from elastream.spark.jvm import cluster_manager
from elastream.spark.jvm.cluster_manager import (
    MAX_MESSAGE_LENGTH,
    MAX_PENDING_EVENTS,
    ClusterEvents,
    kubernetes_event,
)
from support.waiting import wait_until

LIMITED = RunEvent(90.0, Reason.SCALING_LIMITED, "budget: 4 hosts", about="budget", count=3, since=60.0)


def event(message: str, reason: Reason = Reason.SWITCHED) -> RunEvent:
    return RunEvent(1.0, reason, message)


def test_an_event_is_about_the_drivers_pod_and_says_since_when():
    found = kubernetes_event(LIMITED, "streaming", "word-count-0", "spark-1", now=1_700_000_090.0)
    assert found["involvedObject"] == {"apiVersion": "v1", "namespace": "streaming", "kind": "Pod", "name": "word-count-0"}
    assert (found["type"], found["reason"], found["message"]) == ("Warning", "ScalingLimited", "budget: 4 hosts")
    assert (found["count"], found["firstTimestamp"], found["lastTimestamp"]) == (
        3, "2023-11-14T22:14:20Z", "2023-11-14T22:14:50Z",
    )  # fmt: skip


def test_without_a_pod_of_the_driver_it_is_about_the_namespace():
    found = kubernetes_event(LIMITED, "streaming", "", "spark-1", now=0.0)
    assert (found["involvedObject"]["kind"], found["involvedObject"]["name"]) == ("Namespace", "streaming")


def test_a_long_message_is_cut_to_what_a_cluster_keeps():
    found = kubernetes_event(event("x" * 2_000), "n", "", "a", now=0.0)
    assert len(found["message"]) == MAX_MESSAGE_LENGTH


def test_events_are_sent_in_order_and_the_end_of_a_run_is_waited_for():
    sent = []
    tell = ClusterEvents(lambda each, _: sent.append(each.message))
    for number in range(5):
        tell(event(str(number)))
    tell(event("over", Reason.RUN_ENDED))
    assert sent == ["0", "1", "2", "3", "4", "over"]


def test_a_silent_cluster_blocks_nobody_and_the_newest_events_stay():
    sent, answers = [], threading.Event()

    def send(each, _):
        answers.wait()
        sent.append(each.message)

    tell = ClusterEvents(send)
    for number in range(MAX_PENDING_EVENTS + 10):
        tell(event(str(number)))
    answers.set()
    wait_until(lambda: sent and sent[-1] == str(MAX_PENDING_EVENTS + 9))
    assert len(sent) in (MAX_PENDING_EVENTS, MAX_PENDING_EVENTS + 1)  # the first may have been under way


def test_an_event_that_waited_is_told_with_the_time_at_which_it_came(monkeypatch):
    sent, answers, now = [], threading.Event(), [100.0]
    monkeypatch.setattr(cluster_manager, "time", SimpleNamespace(time=lambda: now[0]))

    def send(each, came):
        answers.wait()
        sent.append((each.message, came))

    tell = ClusterEvents(send)
    tell(event("first"))
    now[0] = 160.0
    tell(event("second"))
    now[0] = 500.0
    answers.set()
    wait_until(lambda: len(sent) == 2)
    assert sent == [("first", 100.0), ("second", 160.0)]


def test_what_cannot_be_sent_is_one_warning(caplog):
    def send(each, _):
        raise ValueError("may not")

    tell = ClusterEvents(send)
    with caplog.at_level(logging.WARNING, cluster_manager.__name__):
        tell(event("a"))
        tell(event("b"))
        tell(event("over", Reason.RUN_ENDED))
    assert [record.message for record in caplog.records] == ["events do not reach the cluster: ValueError: may not"]
