"""Alarms: sounded, repeated, cleared; a thread that dies sounds one."""

from elastream.model.alarms import AlarmedThread, Alarms


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


def test_a_thread_that_dies_sounds_an_alarm_of_one_line_with_its_traceback() -> None:
    alarms = Alarms(lambda: 0.0)

    def work() -> None:
        raise RuntimeError("line one\nline two")

    thread = AlarmedThread(alarms, "mover", work)
    thread.start()
    thread.join()
    (alarm,) = alarms.standing
    assert (alarm.source, alarm.said) == ("mover", "thread mover died: RuntimeError: line one")
    assert "line two" in alarm.traceback
