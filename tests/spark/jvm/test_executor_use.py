"""What executors are used for, by lines of the driver, and which uses have no known end."""

import pytest

from elastream.spark.jvm.executor_use import UNKNOWN_END_S, ExecutorUse, Kind, Use, read_uses
from elastream.spark.jvm.executors import Executors
from support.fake_session import FakeSession, FakeUse, task_line
from support.shared_session import shared_session


def test_lines_become_uses_and_times_by_query():
    lines = ["busy\t1\tq\t2500", "busy\t1\t\t500", "cache\t1\t\tcached data\t3", "shuffle\t2\t\tjoin\t4", "soon\tfast"]
    read = read_uses([line.split("\t") for line in [*lines, task_line("1", query="q", count=2, seconds=1.5, ended=3)]])
    assert read.busy == {("1", "q"): 2.5, ("1", ""): 0.5}
    assert read.soon == "fast"
    cached, files, tasks = read.uses
    assert (cached.kind, cached.text) == (Kind.CACHE, "3 blocks of cached data")
    assert (files.executor, files.text) == ("2", "4 shuffle files of join")
    assert (tasks.query, tasks.text, tasks.seconds, tasks.ended) == ("q", "2 tasks of nightly", 1.5, 3)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (
            Use("1", Kind.TASK, "q", "fast", 1, mode="with a continuous trigger"),
            "which runs with a continuous trigger",
        ),
        (Use("1", Kind.TASK, "q", "fast", 1, mode="in real-time mode"), "which runs in real-time mode"),
        (Use("1", Kind.TASK, "", "poll", 1, UNKNOWN_END_S), "and no task of its stage has ended"),
        (Use("1", Kind.CHECKPOINT, "", "a local checkpoint", 2), "which nothing can make again"),
    ],
    ids=["continuous", "real time", "unknown end", "local checkpoint"],
)
def test_work_without_a_known_end_is_endless(use, said):
    assert said in use.endless


@pytest.mark.parametrize(
    "use",
    [
        Use("1", Kind.TASK, "", "nightly", 1, UNKNOWN_END_S - 1),
        Use("1", Kind.TASK, "", "nightly", 1, UNKNOWN_END_S, ended=1),
        Use("1", Kind.CACHE, "", "cached data", 2),
        Use("1", Kind.SHUFFLE, "", "join", 2),
    ],
    ids=["short", "others of its stage ended", "cache", "shuffle"],
)
def test_ordinary_work_ends(use):
    assert use.endless == ""


def test_work_of_others_is_not_counted_as_the_watched_queries():
    use = FakeUse(["busy\t0\tq\t1000", "busy\t0\t\t90000", task_line("0", query="q"), task_line("0", count=2)])
    session = FakeSession({"0": ("10.0.0.2", 4, 91_000, False)}, active={"0": 3})
    executor = Executors(session, use, lambda query: query == "q").look()["0"]
    assert (executor.busy, executor.active) == (1.0, 1)
    assert (executor.others_busy, executor.others_active, executor.others) == (90.0, 2, "2 tasks of nightly")


def test_watched_query_with_a_continuous_trigger_is_not_counted_either():
    use = FakeUse([task_line("0", query="q", mode="with a continuous trigger")])
    executor = Executors(FakeSession({"0": ("10.0.0.2", 4, 0, False)}), use, lambda query: True).look()["0"]
    assert (executor.active, executor.others) == (0, "1 task of nightly")


def test_query_that_is_about_to_need_slots_keeps_every_executor():
    use = FakeUse(["soon\tfast"])
    session = FakeSession(dict.fromkeys("01", ("10.0.0.2", 4, 0, False)))
    assert [each.endless for each in Executors(session, use).look().values()] == [
        "fast is about to start, and may need its slots"
    ] * 2


@pytest.mark.spark
def test_this_spark_tells_what_executors_run():
    spark = shared_session()
    use = ExecutorUse(spark)
    use.start()
    try:
        cached = spark.range(10).repartition(2).cache()
        assert cached.count() == 10
        assert use.look().soon == ""
    finally:
        cached.unpersist()
        use.close()


@pytest.mark.spark
def test_second_reader_of_one_thread_is_independent_of_the_first():
    first, second = ExecutorUse(shared_session()), ExecutorUse(shared_session())
    first.start()
    second.start()
    try:
        assert second.look().soon == first.look().soon == ""
    finally:
        first.close()
        second.close()


def test_task_time_of_a_query_stays_after_its_executors():
    use = FakeUse(["busy\t0\tq\t1000", "busy\t1\tq\t500", "busy\t1\tp\t200"])
    executors = Executors(FakeSession({"0": ("10.0.0.2", 4, 91_000, False)}, active={"0": 3}), use)
    executors.look()
    use.lines = ["busy\t0\tq\t1500"]
    executors.look()
    assert executors.task_seconds == {"q": 2.0, "p": 0.2}
