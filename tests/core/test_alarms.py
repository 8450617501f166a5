"""Alarms: sounded, repeated, cleared; a thread that dies sounds one."""

import threading

from elastream.core.alarm import AlarmedThread, Alarms
from support.waiting import wait_until


def test_an_alarm_keeps_its_time_until_it_is_cleared() -> None:
    now = [1.0]
    alarms = Alarms(lambda: now[0])
    alarms.sound("disk", "the disk is full")
    now[0] = 5.0
    alarms.sound("disk", "the disk is still full")
    (alarm,) = alarms.active
    assert (alarm.said, alarm.since) == ("the disk is still full", 1.0)
    alarms.clear("disk")
    assert alarms.active == ()


def test_failed_thread_sounds_an_alarm_with_its_traceback() -> None:
    alarms = Alarms(lambda: 0.0)

    def work() -> None:
        raise RuntimeError("line one\nline two")

    thread = AlarmedThread(alarms, "mover", work, pauses=())
    thread.start()
    thread.join()
    (alarm,) = alarms.active
    assert (alarm.source, alarm.said) == ("mover", "thread mover died: RuntimeError: line one; it is not started again")
    assert "line two" in alarm.traceback


def test_failed_thread_restarts_and_its_alarm_is_cleared() -> None:
    alarms, goes_on, began = Alarms(lambda: 0.0), threading.Event(), []

    def work() -> None:
        began.append(alarms.active)
        if len(began) < 3:
            raise RuntimeError("passes")
        goes_on.wait()

    thread = AlarmedThread(alarms, "mover", work, pauses=(0.0, 0.0), healthy_after=0.01)
    thread.start()
    wait_until(lambda: len(began) == 3 and not alarms.active)
    assert [len(standing) for standing in began] == [0, 1, 1]
    goes_on.set()
    thread.join()
