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
    (alarm,) = alarms.standing
    assert (alarm.said, alarm.since) == ("the disk is still full", 1.0)
    alarms.clear("disk")
    assert alarms.standing == ()


def test_a_dead_thread_raises_an_alarm_of_one_line_with_its_traceback() -> None:
    alarms = Alarms(lambda: 0.0)

    def work() -> None:
        raise RuntimeError("line one\nline two")

    thread = AlarmedThread(alarms, "mover", work, pauses=())
    thread.start()
    thread.join()
    (alarm,) = alarms.standing
    assert (alarm.source, alarm.said) == ("mover", "thread mover died: RuntimeError: line one; it is not started again")
    assert "line two" in alarm.traceback


def test_a_dead_thread_restarts_and_its_alarm_clears_after_a_while() -> None:
    alarms, goes_on, began = Alarms(lambda: 0.0), threading.Event(), []

    def work() -> None:
        began.append(alarms.standing)
        if len(began) < 3:
            raise RuntimeError("passes")
        goes_on.wait()

    thread = AlarmedThread(alarms, "mover", work, pauses=(0.0, 0.0), calm=0.01)
    thread.start()
    wait_until(lambda: len(began) == 3 and not alarms.standing)
    assert [len(standing) for standing in began] == [0, 1, 1]
    goes_on.set()
    thread.join()
