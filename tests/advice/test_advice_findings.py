"""Findings: one planted fault each, and none in healthy jobs."""

import json
import math
import random
from dataclasses import replace

import pytest

from elastream.advice.advice import advise
from elastream.advice.application import Application
from elastream.advice.event_log import EventLog
from elastream.advice.findings import Sureness, findings_of
from support.event_logs import LogOf, Query, Stage, iso, ms, only_query

QUERY = Query()
KAFKA = Query(source="KafkaV2[Subscribe[t]]")
FUNCTION = Query(sink="ForeachBatchSink")
TABLE = Query(source="DeltaSource[s3://shop/orders]")
FILES_IN = Query(source="FileStreamSource[file:/in]")
FILES = Query(sink="FileSink[/out]")
NOOP = Query(sink="org.apache.spark.sql.execution.datasources.noop.NoopTable$@1")
BIG = Query("big", "99999999-2222-3333-4444-555555555555")


def read(log: LogOf) -> Application:
    return EventLog("log").read(json.dumps(event, separators=(",", ":")).encode() for event in log.events)


def job(  # noqa: PLR0913
    stages, *, query=QUERY, batches=40, every=5.0, rows=1000, executors=(2, 2), settings=None, back_to_back=False, idle=(),
    slots=4, **more,
):  # fmt: skip
    """Return the log of a job; stages: those of batch `number` with `rows`; more: arguments of each batch, or functions.

    idle: Batches after which nothing comes for a trigger.
    """
    log, chance, at = LogOf(executors, settings=settings or {}), random.Random(1), 0.0
    log.started(query)
    for number in range(batches):
        count = round(rows * chance.uniform(0.7, 1.3)) if isinstance(rows, int) else rows(number)
        arguments = {name: each(number) if callable(each) else each for name, each in more.items()}
        end = log.batch(query, number, at, count, stages(number, count), slots=slots, **arguments)
        late = sum(each <= number for each in idle)
        at = end if back_to_back else max(every * (number + 1 + late), end)
    return log


def usual(number, rows):
    """Return a source stage and a shuffle of four even tasks."""
    return [Stage([0.1 + rows / 8000] * 4, rows), Stage([0.05 + rows / 20_000] * 4, rows, shuffled=True)]


def kafka(number, left):
    """Return offsets of four partitions of about 250 records each; left: records that wait in each, by number of batch."""
    waits = left(number)
    ends = [{str(p): 250 * n + 100 * (n % 3) for p in range(4)} for n in (number, number + 1)]
    return {
        "startOffset": json.dumps({"t": ends[0]}),
        "endOffset": json.dumps({"t": ends[1]}),
        "latestOffset": json.dumps({"t": {p: end + waits[int(p)] for p, end in ends[1].items()}}),
        "metrics": {"avgOffsetsBehindLatest": str(sum(waits) / 4)},
    }


def files_left(left):
    """Return offsets of a Delta table of which so many files wait."""
    return {"startOffset": None, "endOffset": None, "latestOffset": None, "metrics": {"numFilesOutstanding": str(left)}}


NO_OFFSETS = {"startOffset": None, "endOffset": None, "latestOffset": None}


def burst(number, of=9, rows=90_000):
    """Return offsets of a Kafka partition with 1000 records a batch, but `rows` in batch `of`."""
    ends = [1000 * n + (rows if n > of else 0) for n in (number, number + 1)]
    return {name: json.dumps({"t": {"0": end}}) for name, end in zip(("startOffset", "endOffset"), ends, strict=True)}


def few_after_a_cold_start(number):
    return 100 + 40 * (number % 9) if number else 5000


def other_jobs(log):
    """Add a job that no query has."""
    log.add("SparkListenerJobStart", **{"Job ID": 900, "Submission Time": 1_800_000_000_000, "Stage IDs": []})
    log.add("SparkListenerJobEnd", **{"Job ID": 900, "Completion Time": 1_800_000_100_000})
    return log


def without(event, log):
    log.events = [each for each in log.events if event not in each["Event"]]
    return log


def bounded(
    *, query=KAFKA, runs=1, batches=20, rows=lambda n: 1000, source=lambda n: kafka(3 * n, lambda _: [350 * (19 - n)] * 4),
    files=0, exception=None,
):  # fmt: skip
    """Return the log of hourly runs that each read what is there and end, as with availableNow."""
    log = LogOf((2, 2))
    for run in range(runs):
        at = 3600.0 * run
        log.started(query, at)
        for number in range(run * batches, (run + 1) * batches):
            more = {"files": files(number) if callable(files) else files, "source": source(number), "slots": 4}
            at = log.batch(query, number, at, rows(number), [Stage([12.0] * 4, rows(number))], **more)
        log.ended(query, exception)
    return log


def stopped():
    log = job(usual, batches=20)
    log.batch(QUERY, 20, 100.0, 1000, [Stage([1.0] * 4, 1000)], slots=4)
    log.events.pop()
    log.ended(QUERY)
    for number in range(40):
        log.batch(BIG, number, 110.0 + 5 * number, 1000, [Stage([0.5] * 4, 1000)], slots=4)
    return log


def kinds(log, target=10.0):
    return {finding.kind for finding in findings_of(read(log), target)}


HEALTHY = {
    "usual": lambda: job(usual),
    "without a trigger": lambda: job(usual, back_to_back=True),
    "bounded state": lambda: job(usual, state=lambda n: min(500, 50 * n)),
    "state behind a watermark": lambda: job(
        usual,
        state=lambda n: 100 * min(n, 5),
        removed=lambda n: 90,
        watermark=lambda n: 5.0 * n - 20,
        newest=lambda n: 5.0 * n,
    ),
    "kafka": lambda: job(usual, query=KAFKA, source=lambda n: kafka(n, lambda n: [10 * (n % 3)] * 4)),
    "files of many sizes": lambda: job(usual, query=FILES, files=lambda n: 1 + n % 3),
    "one file for each trigger": lambda: job(usual, query=FILES_IN, files=1, rows=lambda n: 1000),
    "small batches every 5 seconds": lambda: job(lambda n, rows: [Stage([0.05] * 4, rows)], driver=0.1),
    "files of a long trigger": lambda: job(
        lambda n, rows: [Stage([0.05] * 4, rows)], query=FILES, every=8.0, driver=0.1
    ),
    "garbage of few seconds": lambda: job(lambda n, rows: [Stage([0.2] * 4, rows, gc=0.4)], batches=8),
    "garbage of a few batches": lambda: job(
        lambda n, rows: [Stage([0.5] * 4, rows, gc=3.0 if n % 10 == 5 else 0.01)], batches=60
    ),
    "a quick function": lambda: job(usual, query=FUNCTION, driver=0.6),
    "a function with room": lambda: job(usual, query=FUNCTION, driver=1.6),
    "one executor": lambda: job(usual, executors=(4,)),
    "short": lambda: job(usual, batches=5),
    "as many tasks as slots, with room": lambda: job(lambda n, rows: [Stage([rows / 500] * 4, rows)]),
    "work by records, back to back": lambda: job(
        lambda n, rows: [Stage([rows / 2000] * 4, rows)], back_to_back=True, driver=0.05
    ),
    "a large batch in time": lambda: job(
        usual, query=KAFKA, source=lambda n: burst(n, rows=20_000), rows=lambda n: 20_000 if n == 9 else 1000
    ),
    "tasks that are launched late, with others": lambda: other_jobs(
        job(lambda n, rows: [Stage([0.5] * 4, rows, late=1.0)])
    ),
    "tasks that are launched a little late": lambda: job(lambda n, rows: [Stage([0.5] * 4, rows, late=0.4)]),
    "idle executors of dynamic allocation": lambda: job(
        lambda n, rows: [Stage([2.0] * 4, rows)], settings={"spark.dynamicAllocation.enabled": "true"}
    ),
    "idle executors beside a shuffle service": lambda: job(
        usual, executors=(2, 2, 2),
        settings={"spark.dynamicAllocation.enabled": "true", "spark.shuffle.service.enabled": "true"},
    ),
    "idle executors without a shuffle": lambda: job(
        lambda n, rows: [Stage([0.1] * 4, rows)], executors=(2, 2, 2), settings={"spark.dynamicAllocation.enabled": "true"}
    ),
    "as many idle executors as asked for": lambda: job(
        usual, executors=(2, 2, 2),
        settings={"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.minExecutors": "3"},
    ),
    "a table of one file beside each batch": lambda: job(usual, back_to_back=True, files=1, rows=lambda n: 1000),
    "many partitions of its source": lambda: job(lambda n, rows: [Stage([0.04] * 100, rows)]),
    "a log without its executors": lambda: without(
        "ExecutorAdded", job(lambda n, rows: [Stage([0.2] * 16, rows), Stage([0.3] * 16, rows, shuffled=True)])
    ),
    "what was there, read in full batches": lambda: bounded(),
    "files of hourly runs": lambda: bounded(query=FILES_IN, runs=4, batches=5, source=lambda n: NO_OFFSETS, files=100),
    "hourly runs of one batch": lambda: bounded(runs=12, batches=1, source=lambda n: kafka(3 * n, lambda _: [0] * 4)),
    "files of a table in hourly runs": lambda: bounded(
        query=TABLE, runs=3, batches=5, source=lambda n: files_left(100 * (4 - n % 5)), files=100
    ),
    "files of the only run": lambda: bounded(
        query=FILES_IN, batches=5, source=lambda n: NO_OFFSETS, files=lambda n: 40 if n == 4 else 100
    ),
    "a file that is missing once": lambda: job(
        usual, query=FILES_IN, files=1, rows=lambda n: 1000, every=4.0, idle=(20,)
    ),
    "a query that stops in a batch while others go on": lambda: stopped(),
    "files that come during a batch": lambda: job(usual, query=TABLE, source=lambda n: files_left(3 + n % 3)),
    "even state on all executors": lambda: job(
        lambda n, rows: [Stage([1.2] * 8, rows, shuffled=True)], executors=(2, 2, 2, 2), state=lambda n: 500
    ),
}  # fmt: skip


@pytest.mark.parametrize("healthy", HEALTHY.values(), ids=HEALTHY)
def test_healthy_job_has_no_finding(healthy):
    assert findings_of(read(healthy()), 10.0) == ()


PLANTED = {
    "partitions": lambda: job(lambda n, rows: [Stage([0.2] * 4, rows), Stage([0.04] * 200, rows, shuffled=True)]),
    "state": lambda: job(usual, state=lambda n: 800 * n),
    "trigger": lambda: job(usual, every=60.0),
    "limit": lambda: job(usual, query=KAFKA, source=lambda n: kafka(3 * n, lambda n: [5000] * 4)),
    "partition lag": lambda: job(usual, query=KAFKA, source=lambda n: kafka(n, lambda n: [900 + n, 3, 5, 2])),
    "long_task": lambda: job(lambda n, rows: [Stage([0.2] * 4, rows), Stage([2.5, 0.2, 0.2, 0.2], rows, shuffled=True)]),
    "sink": lambda: job(lambda n, rows: [Stage([2.5] * 4, rows, cpu=0.02)]),
    "driver": lambda: job(usual, query=FUNCTION, driver=3.0),
    "planning": lambda: job(usual, back_to_back=True, driver=14.0, queryPlanning=13.0),
    "hosts": lambda: job(lambda n, rows: [Stage([1.1] * 64, rows)], back_to_back=True),
    "few_tasks": lambda: job(lambda n, rows: [Stage([12.0], rows)], back_to_back=True),
    "backlog": lambda: job(usual, query=TABLE, source=lambda n: files_left(1000 + 20 * n), back_to_back=True),
    "spill": lambda: job(lambda n, rows: [Stage([0.5] * 4, rows, spilled=10**8)]),
    "garbage": lambda: job(lambda n, rows: [Stage([0.5] * 4, rows, gc=0.3)]),
    "small files": lambda: job(lambda n, rows: [Stage([0.2] * 8, rows, written=10_000)], query=FILES),
    "failed tasks": lambda: job(lambda n, rows: [Stage([0.2] * 4, rows, failed=1)]),
    "idle executors": lambda: job(lambda n, rows: [Stage([1.2] * 4, rows)], executor="0"),
    "growth": lambda: job(lambda n, rows: [Stage([3.0 + rows / 2000] * 4, rows, shuffled=True)]),
    "short trigger": lambda: job(usual, back_to_back=True, driver=0.4, rows=few_after_a_cold_start),
    "surge": lambda: job(usual, query=KAFKA, source=burst, rows=lambda n: 90_000 if n == 9 else 1000),
    "locality": lambda: job(lambda n, rows: [Stage([0.5] * 4, rows, late=3.0)]),
    "dynamic allocation": lambda: job(
        usual, executors=(2, 2, 2), settings={"spark.dynamicAllocation.enabled": "true"}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "planted"), PLANTED.items(), ids=PLANTED)
def test_planted_fault_is_found_alone(kind, planted):
    assert kinds(planted()) == {kind}


def test_two_late_batches_name_a_cause_if_there_are_no_others():
    log = job(lambda n, rows: [Stage([45.0, 2.0, 2.0, 2.0], rows, shuffled=True)], batches=2, back_to_back=True)
    assert kinds(log) == {"long_task"}


def test_batch_that_the_log_does_not_end_is_found():
    log = job(usual)
    log.batch(QUERY, 40, 200.0, 9000, [Stage([120.0] * 4, 9000)], slots=4)
    log.events = [event for event in log.events if event.get("progress", {}).get("batchId") != 40]
    assert kinds(log) == {"unfinished"}


def test_batch_that_ends_with_its_stopped_query_is_found():
    log = job(usual, batches=2)
    log.batch(QUERY, 2, 20.0, 9000, [Stage([50.0] * 4, 9000)], slots=4)
    begun = max(n for n, event in enumerate(log.events) if event["Event"] == "SparkListenerJobStart")
    del log.events[begun + 1 :]  # its tasks and its job end later
    log.add("org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd", executionId=2, time=ms(70.0))
    log.ended(QUERY)
    assert kinds(log) == {"unfinished"}
    log.started(QUERY, 90.0)
    log.batch(QUERY, 2, 90.0, 9000, [Stage([1.0] * 4, 9000)], slots=4)
    assert kinds(log) == set()


def test_fewer_partitions_come_before_more_hosts():
    log = job(lambda n, rows: [Stage([0.3] * 200, rows, shuffled=True)], batches=20, back_to_back=True)
    assert kinds(log) == {"partitions"}


def test_partitions_that_leave_time_for_two_batches_are_found():
    log = job(lambda n, rows: [Stage([0.3] * 200, rows, shuffled=True)], batches=2, back_to_back=True)
    assert kinds(log) == {"partitions"}


def test_partitions_of_a_first_batch_without_records_are_found():
    log = job(lambda n, rows: [Stage([0.3] * 200, 0, shuffled=True)], batches=1, rows=lambda n: 0)
    assert kinds(log) == {"partitions"}


WATERMARK = {"watermark": lambda n: 5.0 * n - 20, "newest": lambda n: 5.0 * n}
WINDOW = "(((timestamp#0-T20000ms - 0) % {0}) + {0}) ELSE 0 END) - 0) + {0}), LongType, TimestampType))) AS window#6"
RANGE = "(bt#57-T20000ms >= at#45-T20000ms + INTERVAL '-{}) AND (bt#57-T20000ms <= at#45-T20000ms + INTERVAL '01' MINUTE)"
SESSION = "knownnullable(precisetimestampconversion(precisetimestampconversion(timestamp#20-T20000ms + {}, TimestampType"


def test_watermark_that_removes_no_state_is_found():
    log = job(usual, state=lambda n: 800 * n, plan="StateStoreSave", **WATERMARK)
    (finding,) = findings_of(read(log), 10.0)
    assert "its watermark removed nothing" in finding.evidence


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        (WINDOW.format(3_600_000_000), set()),
        (WINDOW.format(60_000_000), {"state"}),
        (RANGE.format("03' HOUR"), set()),
        (RANGE.format("00:02:30' HOUR TO SECOND"), set()),
        (RANGE.format("01:30' MINUTE TO SECOND"), {"state"}),
        (SESSION.format("20 minutes"), set()),
        (SESSION.format("30 seconds"), {"state"}),
        ("", set()),
    ],
)
def test_watermark_ends_state_only_after_windows_and_ranges(tmp_path, plan, found):
    log = job(usual, state=lambda n: 800 * n, plan=plan, **WATERMARK)  # for 197 seconds
    advice = advise(str(log.write(tmp_path / "log")), 10.0)
    assert {each.kind for each in advice.findings} == found
    assert any("whether the watermark of counts ends its state" in each for each in advice.unknown) == (not found)


def test_files_that_are_held_back_are_found():
    log = job(usual, query=FILES_IN, back_to_back=True, files=1, rows=lambda n: 1000)
    (finding,) = findings_of(read(log), 10.0)
    assert "always reads 1 file" in finding.evidence
    assert finding.change == "raise maxFilesPerTrigger"


def test_files_that_come_for_each_trigger_may_hide_a_limit(tmp_path):
    log = job(usual, query=FILES_IN, files=1, rows=lambda n: 1000)
    advice = advise(str(log.write(tmp_path / "log")))
    assert advice.findings == ()
    assert "whether a limit holds back files of counts, or as many come for each batch: each read 1" in advice.unknown
    late = job(usual, query=FILES_IN, files=1, rows=lambda n: 1000, driver=lambda n: 9.0 if n == 0 else 0.3)
    assert kinds(late) == {"limit"}


WRITER = Query(sink="ForeachWriterTable(org.apache.spark.sql.execution.python.streaming.PythonForeachWriter@1)")


@pytest.mark.parametrize(
    ("query", "stage", "found"),
    [
        (WRITER, {}, "sink"),
        (FUNCTION, {"writes": True}, "sink"),
        (FUNCTION, {"python": True}, "growth"),
        (NOOP, {}, "wait"),
    ],
    ids=["a row writer", "foreachPartition", "a plan with Python", "nothing to write to"],
)
def test_tasks_without_cpu_wait_for_a_sink_only_if_they_write(query, stage, found):
    of_tasks = lambda seconds: lambda n, rows: [Stage([seconds] * 4, rows, cpu=0.0, **stage)]  # noqa: E731
    assert kinds(job(of_tasks(2.5), query=query)) == set()  # there is room until the next batch
    (finding,) = findings_of(read(job(of_tasks(3.5), query=query)), 10.0)
    assert finding.kind == found
    assert ("sink" in finding.evidence) == (found == "sink")


def test_slow_sink_shows_in_two_batches_that_make_each_other_late():
    slow = lambda n, rows: [Stage([6.0] * 2, rows, cpu=0.0, writes=True)]  # noqa: E731
    assert kinds(job(slow, query=FUNCTION, batches=4, back_to_back=True)) == {"sink"}
    assert kinds(job(slow, query=FUNCTION, batches=4, back_to_back=True), target=30.0) == set()


@pytest.mark.parametrize("driver", [0.4, 2.5])
def test_trigger_may_be_short_for_long_batches(driver):
    log = lambda work, batches=8: job(  # noqa: E731
        lambda n, rows: [Stage([0.1 + work * rows] * 4, rows)],
        back_to_back=True, driver=driver, batches=batches, rows=few_after_a_cold_start,
    )  # fmt: skip
    assert kinds(log(0.0)) == {"short trigger"}
    assert "short trigger" not in kinds(log(0.0), target=1.1 * driver)  # a longer trigger would be too long
    assert "short trigger" not in kinds(log(0.01))  # there are records to work on
    assert kinds(log(0.0, batches=6)) == set()  # they may catch up


def test_trigger_that_some_batches_keep_is_not_far_too_short():
    log, at = LogOf((2, 2)), 0.0
    log.started(QUERY)
    for number in range(40):
        stage = Stage([0.4 if number % 6 > 3 else 2.0] * 4, 100)
        end = log.batch(QUERY, number, at, 100 + 40 * (number % 9), [stage], slots=4)
        at = max(end, 2.0 * (at // 2.0 + 1))
    assert "short trigger" not in kinds(log)


def test_long_trigger_shows_in_two_starts():
    log = job(usual, batches=3, every=40.0)
    assert kinds(log, target=80.0) == {"trigger"}


def test_two_starts_that_a_short_interval_may_explain_by_chance_are_no_trigger():
    (query,) = read(job(usual, batches=3, every=4.0)).queries.values()
    assert math.isnan(query.trigger)


@pytest.mark.parametrize(("interval", "idle"), [(4.0, 0.15), (40.0, 0.5)])
def test_busy_driver_between_two_batches_hides_no_trigger(interval, idle):
    log, at = LogOf((2, 2)), 0.07
    log.started(QUERY)
    for number in range(10):
        stage = Stage([(1.25 if number < 4 else 0.5) * interval] * 4, 1000)
        end = log.batch(QUERY, number, at, 1000, [stage], slots=4)
        at = end + idle if number < 4 else interval * math.ceil(end / interval)
    (query,) = read(log).queries.values()
    assert query.trigger == interval


@pytest.mark.parametrize(("tasks", "found"), [([1.0] * 32, {"slots"}), ([7.0] * 4, set())], ids=["many", "long"])
def test_queries_that_starve_each_other_show_in_few_batches(tasks, found):
    log, at = LogOf((2, 2)), 0.0
    for number in range(5):
        end = log.batch(BIG, number, at, 1000, [Stage(tasks, 1000)], slots=4)
        log.batch(QUERY, number, at + 0.5, 100, [Stage([0.1, 0.1], 100, late=6.5)], slots=4)
        at = end + 4.0
    assert {each.kind for each in findings_of(read(log), 100.0) if each.subject == "counts"} == found


def test_batch_without_its_stages_makes_no_trigger_short():
    app = read(job(lambda n, rows: [Stage([rows / 2000] * 4, rows)], back_to_back=True, driver=0.05))
    query = next(iter(app.queries.values()))
    query.batches[3] = replace(query.batches[3], stages=())
    assert list(findings_of(app, 10.0)) == []


def test_rare_batches_that_are_in_time_are_not_late():
    rare = job(lambda n, rows: [Stage([6.5] * 4, rows)], batches=4, every=607.0)
    assert list(findings_of(read(rare), 10.0)) == []


def test_stage_of_another_query_that_leaves_slots_starves_none():
    log, at = LogOf((2, 2)), 0.0
    for number in range(5):
        end = log.batch(BIG, number, at, 1000, [Stage([0.5] * 4, 1000, waits=7.0)], slots=4)
        log.batch(QUERY, number, at + 0.5, 100, [Stage([0.1, 0.1], 100, late=3.0)], slots=4)
        at = end + 1.0
    assert "slots" not in {each.kind for each in findings_of(read(log), 100.0) if each.subject == "counts"}


@pytest.mark.parametrize("batches", [2, 4])
def test_limit_that_lets_a_batch_exceed_the_target_is_found_in_few_batches(batches):
    waits = kafka(0, lambda n: [50_000] * 4)
    log = job(
        lambda n, rows: [Stage([14.0] * 4, rows)],
        query=KAFKA,
        batches=batches,
        back_to_back=True,
        source=lambda n: waits,
    )
    assert "large limit" in kinds(log)
    assert "large limit" not in kinds(log, target=30.0)
    (found,) = (each for each in findings_of(read(log), 10.0) if each.kind == "large limit")
    assert found.change == "maxOffsetsPerTrigger of at most 490 records"


def test_limit_fills_the_first_batches_of_a_short_log_too():
    log = job(usual, query=KAFKA, batches=12, rows=lambda n: 500, source=lambda n: kafka(3 * n, lambda n: [5000] * 4))
    assert "limit" in kinds(log)


def test_failed_tasks_of_few_batches_are_found():
    assert kinds(job(lambda n, rows: [Stage([0.2] * 8, rows, failed=1)], batches=3)) == {"failed tasks"}


def test_late_records_of_two_warm_batches_are_no_finding():
    assert kinds(job(usual, batches=4, driver=lambda n: 12.0 if n == 2 else 0.3)) == set()


def test_unfinished_batch_is_late_too():
    log = job(lambda n, rows: [Stage([30.0] * 2, rows)], batches=3, back_to_back=True, rows=lambda n: 100 * n)
    del log.events[-1]
    (finding,) = findings_of(read(log), 25.0)
    assert finding.kind == "few_tasks"


def test_tasks_that_spark_joined_in_a_function_name_their_setting():
    log = job(lambda n, rows: [Stage([12.0], rows, shuffled=True)], back_to_back=True, query=FUNCTION)
    (finding,) = findings_of(read(log), 10.0)
    assert "spark.sql.adaptive.coalescePartitions.enabled=false" in finding.evidence


@pytest.mark.parametrize(
    ("operator", "watermark", "change"),
    [
        ("symmetricHashJoin", False, "withWatermark on both sides"),
        ("symmetricHashJoin", True, "a range of both event times in the join's condition"),
        ("dedupe", True, "dropDuplicatesWithinWatermark, or"),
        ("transformWithStateInPandasExec", False, "a TTL or a timer"),
        ("applyInPandasWithState", False, "a time-out of the state"),
        ("stateStoreSave", False, "withWatermark, and a window"),
    ],
)
def test_change_for_growing_state_fits_its_operator(operator, watermark, change):
    times = WATERMARK if watermark else {}
    (finding,) = findings_of(read(job(usual, state=lambda n: 800 * n, operator=operator, plan=operator, **times)), 10.0)
    assert finding.change.startswith(change)


def test_small_files_of_a_function_are_found():
    assert kinds(job(lambda n, rows: [Stage([0.2] * 8, rows, written=10_000)], query=FUNCTION)) == {"small files"}


def test_state_on_one_of_four_executors_is_found():
    stages = lambda n, rows: [Stage([1.2] * 8, rows, shuffled=True)]  # noqa: E731
    log = job(stages, executors=(2, 2, 2, 2), executor="0", state=lambda n: 500)
    (finding,) = findings_of(read(log), 10.0)
    assert "3 executors of 4 did less than 10% of the mean work" in finding.evidence
    assert "so that its state spreads" in finding.change


def test_executors_of_two_applications_with_one_number_are_two():
    first, second = job(lambda n, rows: [Stage([2.0] * 4, rows, shuffled=True)], state=lambda n: 500), LogOf()
    for event in second.events[2:]:
        event["Timestamp"] += 300_000
    for number in range(40, 46):
        second.batch(QUERY, number, 5.0 * number + 100, 100, [Stage([0.1] * 2, 100, shuffled=True)], state=500)
    first.events += second.events
    application = read(first)
    assert only_query(application).shuffled == {
        "0 of application 1": pytest.approx(160.0),
        "1 of application 1": pytest.approx(160.0),
        "0": pytest.approx(1.2),
    }
    assert findings_of(application, 10.0) == ()


def of_state(on, partitions=4, seconds=1.0):
    """Return the stages of a batch: an even one, then tasks with state on one executor, or on each in turn."""
    return lambda n, rows: [Stage([0.3] * 8, rows), Stage([seconds] * partitions, rows, shuffled=True, executor=on)]


def test_state_on_few_executors_is_found_beside_even_work():
    log = job(of_state("0"), executors=(2, 2, 2, 2), state=lambda n: 500)
    (finding,) = findings_of(read(log), 10.0)
    assert finding.kind == "idle executors"
    assert "all 4 tasks with state of counts run on 1 executor of 4" in finding.evidence


@pytest.mark.parametrize(
    ("stages", "executors", "more"),
    [
        (of_state(None), (2, 2, 2, 2), {"state": lambda n: 500}),
        (of_state("0"), (2, 2, 2, 2), {}),
        (of_state("0", seconds=0.3), (2, 2, 2, 2), {"state": lambda n: 500}),
        (of_state("0"), (4, 4), {"state": lambda n: 500}),
        (of_state("0", partitions=1), (1, 1, 1, 1), {"state": lambda n: 500}),
    ],
    ids=["spread", "without state", "little work", "a slot for each", "one partition"],
)
def test_tasks_with_state_may_share_executors_that_suffice(stages, executors, more):
    assert "idle executors" not in kinds(job(stages, executors=executors, **more))


@pytest.mark.parametrize(
    ("tasks", "seconds", "found"),
    [(16, 2.0, {"growth"}), (16, 1.0, set()), (24, 2.0, set()), (16, 3.5, {"growth"})],
    ids=["half", "with room", "most slots", "full"],
)
def test_few_tasks_bound_growth_before_their_batches_are_late(tasks, seconds, found):
    stages = lambda n, rows: [Stage([seconds] * tasks, rows, shuffled=True)]  # noqa: E731
    assert kinds(job(stages, executors=(4,) * 8, slots=32)) == found


def test_records_that_came_in_during_a_slow_batch_are_no_surge():
    def stages(number, rows):
        return [Stage([20.0 if number < 2 else 0.1 + rows / 1000] * 4, rows)]

    log = job(stages, query=FILES_IN, rows=lambda n: 10_000 if n == 2 else 1000, batches=120)
    assert "surge" not in kinds(log)


def test_finding_says_what_to_change_and_how_sure_it_is():
    (finding,) = findings_of(read(PLANTED["partitions"]()), 10.0)
    assert "200 partitions on 4 slots" in finding.evidence
    assert finding.change == "spark.sql.shuffle.partitions=8; with state, elastream repartition or a new checkpoint"
    assert finding.sure is Sureness.HIGH


def test_long_trigger_is_no_finding_within_a_target_that_was_given():
    assert findings_of(read(PLANTED["trigger"]()), 300.0, explicit=True) == ()


def test_failed_query_is_a_finding():
    log = job(usual)
    log.ended(QUERY, "java.lang.OutOfMemoryError: Java heap space")
    assert kinds(log) == {"failure"}


def test_long_trigger_of_a_table_makes_its_files_large():
    stages = lambda n, rows: [Stage([0.5] * 4, rows, written=10**8)]  # noqa: E731
    assert kinds(job(stages, query=Query(sink="DeltaSink[/out]"), every=60.0), 120.0) == set()


def test_failures_before_a_restart_are_counted():
    log = job(usual)
    for _ in range(3):
        log.ended(QUERY, "java.io.IOException: reset")
        log.started(QUERY, 1e3)
    (finding,) = findings_of(read(log), 10.0)
    assert finding.evidence == "counts failed 3 times, the last: java.io.IOException: reset"


def test_waiting_files_of_unknown_size_leave_latency_unknown(tmp_path):
    log = job(usual, query=TABLE, source=lambda n: files_left(3 + n % 3))
    advice = advise(str(log.write(tmp_path / "log")))
    assert math.isnan(advice.sizing.logged.p99)
    assert not advice.sizing.curve
    assert any(": 4 files wait" in each for each in advice.unknown)
    known = job(usual, query=TABLE, source=lambda n: files_left(3 + n % 3), files=2, rows=lambda n: 1000)
    (query,) = read(known).queries.values()
    assert [batch.behind for batch in query.batches][:3] == [1500, 2000, 2500]


@pytest.mark.parametrize("runs", [1, 3])
def test_what_was_there_has_no_latency_and_no_sizes(runs, tmp_path):
    log = bounded(runs=runs, source=lambda n: kafka(3 * n, lambda _: [350 * (19 - n % 20)] * 4))
    advice = advise(str(log.write(tmp_path / "log")))
    assert not advice.sizing.curve
    assert math.isnan(advice.to_json()["queries"][0]["p99"])
    assert any("ended after 4.1 min" in each for each in advice.unknown)
    assert any("it read what was there, as with availableNow" in each for each in advice.unknown)


def test_partitions_of_hourly_runs_of_one_batch_are_found():
    log = LogOf((2, 2))
    for run in range(4):
        log.started(FILES_IN, 3600.0 * run)
        log.batch(FILES_IN, run, 3600.0 * run, 100, [Stage([0.04] * 200, 100, shuffled=True)], slots=4)
        log.ended(FILES_IN)
    assert kinds(log) == {"partitions"}


@pytest.mark.parametrize("how", ["in a batch", "after a wait", "failed", "as records come", "after a full batch"])
def test_query_that_is_stopped_is_not_bounded(how):
    left = [0] * 4 if how == "as records come" else [5000] * 4
    source = (lambda n: kafka(3 * n, lambda _: left)) if how == "as records come" else (lambda n: NO_OFFSETS)
    query = KAFKA if how == "as records come" else FILES_IN
    files = 20 if how == "after a full batch" else lambda n: 10 if n == 19 else 20
    log = bounded(query=query, source=source, files=files, exception="java.lang.Boom" if how == "failed" else None)
    ended = log.events.pop()
    if how == "in a batch":
        log.batch(query, 20, 260.0, 1000, [Stage([12.0] * 4, 1000)])
        del log.events[-2:]
    if how == "after a wait":
        log.add("org.apache.spark.sql.streaming.StreamingQueryListener$QueryIdleEvent", id=query.id, timestamp=iso(300.0))
    log.events.append(ended)
    (logged,) = read(log).queries.values()
    assert not logged.bounded


def test_time_between_runs_is_no_trigger():
    log = bounded(runs=4, batches=4, exception="java.io.IOException: reset")
    (query,) = read(log).queries.values()
    assert math.isnan(query.trigger)


def test_queries_that_take_each_others_slots_are_found():
    log, at = LogOf((2, 2)), 0.0
    for number in range(20):
        log.batch(BIG, number, at, 1000, [Stage([6.0] * 8, 1000)], slots=4)
        # Two short tasks whose stage lasts while the other query's tasks hold the slots.
        at = log.batch(QUERY, number, at, 100, [Stage([0.1, 0.1], 100, waits=11.5)], slots=4)
    (finding,) = (each for each in findings_of(read(log), 10.0) if each.kind == "slots")
    assert finding.evidence.endswith("most of those of others are of big")
    assert "spark.scheduler.mode=FAIR" in finding.change
    log.events[1]["Spark Properties"] = {"spark.scheduler.mode": "FAIR"}
    (finding,) = (each for each in findings_of(read(log), 10.0) if each.kind == "slots")
    assert finding.change == "more hosts, or more weight for its scheduler pool"


def test_late_batches_among_others_name_their_cause():
    log, at = LogOf((2, 2)), 0.0
    for number in range(60):
        waits = 13.0 if number % 10 == 4 else 0.0
        if waits:
            log.batch(BIG, number // 10, at, 1000, [Stage([6.0] * 8, 1000)], slots=4)
        end = log.batch(QUERY, number, at, 100, [Stage([0.1, 0.1], 100, waits=waits)], slots=4)
        at = max(at + 2.0, end)
    (finding,) = (each for each in findings_of(read(log), 10.0) if each.subject == "counts")
    assert finding.kind == "slots"
    assert "of big" in finding.evidence


def test_queries_that_leave_each_other_slots_are_no_finding():
    log = LogOf((2, 2))
    for number in range(20):
        log.batch(BIG, number, 5.0 * number, 1000, [Stage([1.5] * 4, 1000)], slots=4)
        log.batch(QUERY, number, 5.0 * number, 100, [Stage([0.1, 0.1], 100, waits=1.5)], slots=4)
    assert kinds(log) == set()
