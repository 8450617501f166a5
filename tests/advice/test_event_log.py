"""What is read of an event log, and of lines of progress."""

import json
import math
import random

import pytest

from elastream.advice.advice import advise
from elastream.advice.application import Application
from elastream.advice.sources import read_source
from elastream.errors import InputError
from support.event_logs import LogOf, Query, Stage, only_query, progress

METRICS = {"metrics": {"avgOffsetsBehindLatest": "36.5"}}
KAFKA = {
    "startOffset": '{"t":{"0":0,"1":0,"2":0}}',
    "endOffset": '{"t":{"0":60,"1":10,"2":30}}',
    "latestOffset": '{"t":{"0":160,"1":10,"2":40}}',
}


def log_of(*batches, executors=(2, 2), query=None):
    """Return a log of batches of one second each."""
    log, query = LogOf(executors), query or Query()
    log.started(query)
    for number, rows in enumerate(batches):
        log.batch(
            query, number, 10.0 * number, rows, [Stage([0.5, 0.25], rows), Stage([0.2], rows, shuffled=True)], slots=4
        )
    return log


def test_stages_that_run_at_once_stand_in_the_order_of_the_plan(tmp_path):
    log = log_of(*[100] * 12)
    completed = [each["Stage Info"] for each in log.events if each["Event"] == "SparkListenerStageCompleted"]
    for first, second in zip(completed[::4], completed[1::4], strict=True):  # in every other batch
        first["Submission Time"], second["Submission Time"] = second["Submission Time"], first["Submission Time"]
        first["Completion Time"], second["Completion Time"] = second["Completion Time"], first["Completion Time"]
    batches = only_query(read_source(str(log.write(tmp_path / "log")))).batches
    assert {tuple(stage.times.tasks for stage in batch.stages) for batch in batches} == {(2, 1)}


def test_batches_have_the_stages_of_their_tasks(tmp_path):
    application = read_source(str(log_of(100, 120).write(tmp_path / "log")))
    assert (application.name, application.version, application.slots(application.begun + 1)) == ("shop", "4.1.0", 4)
    first, second = only_query(application).batches
    assert [(each.times.tasks, each.times.shuffled) for each in first.stages] == [(2, False), (1, True)]
    assert second.stages[0].times.longest == 0.5
    assert (second.rows, second.stages[0].records, second.stages[1].records) == (120, 120, 120)
    assert second.seconds == pytest.approx(1.0)


def test_trigger_follows_from_the_starts_of_batches(tmp_path):
    assert only_query(read_source(str(log_of(*[100] * 8).write(tmp_path / "log")))).trigger == 10.0
    log = LogOf()
    for number in range(9):
        log.batch(Query(), number, 1.37 * number, 50, [Stage([0.5])])
    assert (
        only_query(read_source(str(log.write(tmp_path / "other")))).trigger
        != only_query(read_source(str(tmp_path / "log"))).trigger
    )


def test_torn_lines_and_unknown_fields_are_skipped_and_counted(tmp_path):
    log = log_of(100, 120, 90)
    log.add("SparkListenerDBCEventLoggingListenerMetadata", Rollover=1)
    log.events[2]["Databricks"] = {"org": 1}
    path = tmp_path / "log"
    path.write_text("\n".join(log.lines()) + '\n{"Event":"SparkListenerTaskEnd","Stage ID":4,"Sta')
    application = read_source(str(path))
    assert len(only_query(application).batches) == 3
    assert application.unreadable == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"Total Cores":2', '"Total Cores":0'),
        ('"Executor Run Time":500', '"Executor Run Time":-7'),
        ('"Completion Time":', '"Completion Time":-'),
        ('"triggerExecution":1000', '"triggerExecution":1e300'),
        ('"batchId":1', '"batchId":null'),
        ('"numInputRows":120', '"numInputRows":1e999'),
        ('"durationMs":{', '"durationMs":' + "[" * 100_000 + "{"),
    ],
    ids=lambda text: text[:20],
)
def test_line_with_a_figure_that_cannot_be_is_skipped_and_counted(old, new, tmp_path):
    lines = log_of(100, 120, 90).lines()
    at = next(number for number, line in enumerate(lines) if old in line and '"batchId":0' not in line)
    lines[at] = lines[at].replace(old, new)
    path = tmp_path / "log"
    path.write_text("\n".join(lines))
    assert read_source(str(path)).unreadable == 1


def test_idle_triggers_are_no_batches(tmp_path):
    log = log_of(100, 120)
    idle = progress(Query(), 1, 15.0, 0.01, 0)
    del idle["durationMs"]["addBatch"]
    log.add("org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent", progress=idle)
    assert len(only_query(read_source(str(log.write(tmp_path / "log")))).batches) == 2


def test_batch_that_ran_again_after_a_restart_counts_once(tmp_path):
    log = log_of(100, 120)
    log.batch(Query(), 1, 60.0, 120, [Stage([0.5], 120)])
    batches = only_query(read_source(str(log.write(tmp_path / "log")))).batches
    assert [batch.number for batch in batches] == [0, 1]


def test_offsets_of_kafka_tell_rows_and_lag(tmp_path):
    lines = [
        progress(Query(source="KafkaV2[Subscribe[t]]"), n, 10.0 * n, 1.0, 200, source=KAFKA | METRICS) for n in range(3)
    ]
    path = tmp_path / "progress.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    batch = only_query(read_source(str(path))).batches[-1]
    assert (batch.rows, batch.behind) == (100, 109.5)
    assert (batch.lag.partition, batch.lag.records, batch.lag.partitions) == ("t-0", 100, 3)


def test_kinesis_lag_in_time_tells_the_records_that_wait(tmp_path):
    metrics = {"metrics": {"avgMsBehindLatest": "40000.0", "maxMsBehindLatest": "60000"}}
    lines = [progress(Query(source="KinesisV2[orders]"), n, 10.0 * n, 1.0, 200, source=metrics) for n in range(3)]
    path = tmp_path / "progress.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    batches = only_query(read_source(str(path))).batches
    assert [batch.behind for batch in batches][1:] == [800, 800]  # 40 s of 20 records/s


@pytest.mark.parametrize("figure", ["-3", "1e999", "NaN"])
def test_backlog_that_cannot_be_is_unknown(figure, tmp_path):
    metrics = {"metrics": {"numFilesOutstanding": figure, "avgMsBehindLatest": figure}}
    lines = [progress(Query(source="DeltaSource[s3://x]"), n, 10.0 * n, 1.0, 200, source=metrics) for n in range(3)]
    (tmp_path / "log").write_text("\n".join(map(json.dumps, lines)))
    batch = only_query(read_source(str(tmp_path / "log"))).batches[-1]
    assert math.isnan(batch.behind)
    assert math.isnan(batch.files_behind)


def test_durations_of_other_forms_are_left_out(tmp_path):
    line = progress(Query(), 0, 0.0, 1.0, 100)
    line["durationMs"] |= {"note": "slow", "none": None, "list": [1]}
    (tmp_path / "log").write_text(json.dumps(line))
    (batch,) = only_query(read_source(str(tmp_path / "log"))).batches
    assert "note" not in batch.durations


def test_progress_may_hold_offsets_as_json_or_as_text(tmp_path):
    source = {name: json.loads(text) for name, text in KAFKA.items()}
    lines = [
        progress(Query(source="KafkaV2[Subscribe[t]]"), n, 10.0 * n, 1.0, 200, source=source | METRICS) for n in range(3)
    ]
    path = tmp_path / "progress.jsonl"
    path.write_text("\n".join(json.dumps({"progress": line}) for line in lines))
    assert only_query(read_source(str(path))).batches[-1].behind == 109.5


def test_failure_of_a_query_is_read(tmp_path):
    log = log_of(100)
    log.ended(Query(), "java.lang.Boom: no disk\n\tat x")
    assert only_query(read_source(str(log.write(tmp_path / "log")))).failure == "java.lang.Boom: no disk"


@pytest.mark.parametrize(
    "exception",
    [
        "org.apache.spark.SparkException: Job 12 cancelled because SparkContext was shut down\n\tat x",
        "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis stopped SparkContext was",
        "org.apache.spark.sql.streaming.StreamingQueryException: Job 3 cancelled because SparkContext was shut down\n===",
        "[STREAM_FAILED] Query [id = x] terminated with exception: java.lang.InterruptedException SQLSTATE: XXKST",
    ],
    ids=["shut down", "stopped", "in a query", "interrupted"],
)
def test_end_of_the_application_is_no_failure_of_its_query(exception, tmp_path):
    log = log_of(100)
    log.ended(Query(), exception)
    query = only_query(read_source(str(log.write(tmp_path / "log"))))
    assert (query.failure, query.failures) == ("", 0)


def test_log_of_a_batch_job_is_refused(tmp_path):
    log = LogOf()
    log.add("SparkListenerJobStart", **{"Job ID": 0, "Submission Time": 1, "Stage IDs": [0], "Properties": {}})
    with pytest.raises(InputError, match="1 job and no streaming query"):
        read_source(str(log.write(tmp_path / "log")))


def test_batches_without_progress_follow_from_their_jobs(tmp_path):
    log = log_of(*[100] * 20)
    log.events = [each for each in log.events if "Query" not in each["Event"]]
    application = read_source(str(log.write(tmp_path / "log")))
    query = only_query(application)
    assert [(each.number, each.rows, len(each.stages)) for each in query.batches] == [
        (number, 100, 2)
        for number in range(19)  # the last one may be unfinished
    ]
    assert (query.name, query.width, query.batches[3].seconds) == ("counts", 2, pytest.approx(0.7))
    assert any("no progress" in each for each in application.unknown)
    assert advise(str(tmp_path / "log")).tables()


def test_query_without_a_finished_batch_is_named(tmp_path):
    log = log_of(100, 120)
    log.started(Query("idle", "99999999-2222-3333-4444-555555555555"))
    application = read_source(str(log.write(tmp_path / "log")))
    assert len(application.queries) == 1
    assert application.unknown == ["anything of idle: it has no finished batch"]
    only = LogOf()
    only.started(Query())
    only.batch(Query(), 0, 0.0, 100, [Stage([70.0], 100)])
    del only.events[-1]
    with pytest.raises(InputError, match="no batch of its streaming query has finished; the first had run for 70"):
        read_source(str(only.write(tmp_path / "only")))


PROGRESS = progress(Query(), 0, 0.0, 1.0, 100)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("hello\n", "neither an event of Spark nor the JSON of a StreamingQueryProgress; .* a driver's log$"),
        ("\n\n", "it is empty"),
        ("[" * 100_000, "neither an event of Spark nor"),
        ('{"a":' * 100_000 + "}", "neither an event of Spark nor"),
        (json.dumps({**PROGRESS, "timestamp": "yesterday"}), "a StreamingQueryProgress: .*yesterday"),
        (json.dumps({name: each for name, each in PROGRESS.items() if name != "id"}), "it lacks 'id'"),
    ],
    ids=lambda text: text[:20],
)
def test_file_of_another_kind_is_refused(content, why, tmp_path):
    (tmp_path / "notes").write_text(content)
    with pytest.raises(InputError, match=why):
        read_source(str(tmp_path / "notes"))


def test_progress_may_be_one_array_as_recent_progress_is(tmp_path):
    (tmp_path / "recent").write_text(json.dumps([PROGRESS, progress(Query(), 1, 10.0, 1.0, 100)]))
    assert len(only_query(read_source(str(tmp_path / "recent"))).batches) == 2


def test_idle_query_without_progress_is_not_unfinished(tmp_path):
    log = log_of(*[100] * 20)
    log.events = [each for each in log.events if "Progress" not in each["Event"]]
    log.add("SparkListenerJobEnd", **{"Job ID": 999, "Completion Time": 1_800_009_000_000})
    assert only_query(read_source(str(log.write(tmp_path / "log")))).unfinished == 0


def without_executors(log, *ids):
    log.events = [e for e in log.events if e["Event"] != "SparkListenerExecutorAdded" or e["Executor ID"] not in ids]
    return log


@pytest.mark.parametrize(("settings", "slots"), [({"spark.executor.cores": "3"}, 3 + 3 + 2), ({}, 3 * 2)])
def test_executors_that_the_log_does_not_add_are_known_by_their_tasks(settings, slots, tmp_path):
    log = without_executors(log_of(*[100] * 12, executors=(2, 2, 2)), "0", "1")
    log.events[1]["Spark Properties"] = settings
    application = read_source(str(log.write(tmp_path / "log")))
    second, last = only_query(application).batches[1].start, application.span[1]
    assert [application.slots(at) for at in (second, last)] == [slots, slots]
    (unknown,) = application.unknown
    cores = 3 if settings else 2
    assert unknown == f"when 2 executors came, and their cores: they count from their first tasks, with {cores} cores each"


def test_executors_of_unknown_cores_are_left_out(tmp_path):
    log = without_executors(log_of(*[100] * 12), "0", "1")
    assert read_source(str(log.write(tmp_path / "log"))).executors == {}
    log.events[1]["Spark Properties"] = {"spark.executor.cores": "many"}
    assert read_source(str(log.write(tmp_path / "log"))).executors == {}


@pytest.mark.parametrize("early", [False, True], ids=["after the start", "before the start"])
def test_applications_in_one_file_count_one_after_the_other(early, tmp_path):
    first, second = log_of(*[100] * 12), LogOf((2, 2, 2))
    for event in second.events[2:]:
        event["Timestamp"] += 1_000_000
    for number in range(12, 24):
        second.batch(Query(), number, 10.0 * number + 1e3, 100, [Stage([0.5] * 6, 100)], slots=6)
    if early:  # as a local master adds its driver
        for log in (first, second):
            log.events.insert(4, log.events.pop(2))
    (tmp_path / "log").write_text("\n".join(first.lines() + second.lines()))
    application = read_source(str(tmp_path / "log"))
    begun, ended = application.span
    assert (application.slots(begun), application.slots(ended)) == (4, 6)
    assert [len(batch.stages) for batch in only_query(application).batches] == [2] * 12 + [1] * 12
    assert application.unknown == ["the applications apart: the file holds 2, one after the other"]


def test_drivers_of_two_applications_stay_drivers(tmp_path):
    first, second = log_of(*[100] * 12, executors=()), LogOf(())
    for event in second.events[2:]:
        event["Timestamp"] += 1_000_000
    second.batch(Query(), 12, 1120.0, 100, [Stage([0.5], 100)])
    (tmp_path / "log").write_text("\n".join(first.lines() + second.lines()))
    assert [each.id for each in read_source(str(tmp_path / "log")).working] == ["driver", "driver"]


LOG4J = "26/01/01 10:00:00 INFO MicroBatchExecution: "
FORMS = {
    "over several lines": lambda lines: "\n".join(json.dumps(each, indent=2) for each in lines),
    "an array over several lines": lambda lines: json.dumps(lines, indent=2),
    "an array in one line": json.dumps,
    "text in JSON": lambda lines: "\n".join(json.dumps({"progress": json.dumps(each)}) for each in lines),
    "a driver's log": lambda lines: (
        3 * f"{LOG4J}Running\n"
        + "\n".join(
            f"{LOG4J}Streaming query made progress: {json.dumps(each, indent=2)}\n{LOG4J}Committed {{offsets}} for batch"
            for each in lines
        )
    ),
    "one line each of a driver's log": lambda lines: "\n".join(
        f"{LOG4J}Streaming query made progress: {json.dumps(each)}" for each in lines
    ),
    "text after each": lambda lines: "\n".join(f"{LOG4J}{json.dumps(each)} (query q)" for each in lines),
    "coloured": lambda lines: "\n".join(f"\x1b[32m{LOG4J}{json.dumps(each, indent=2)}\x1b[0m" for each in lines),
    "quoted": lambda lines: "\n".join(f"'{json.dumps(each)}'" for each in lines),
    "other JSON between": lambda lines: "\n".join(
        f'{json.dumps(each)}\n{LOG4J}{{"progress": 0.5}}\n{LOG4J}{{"a": {{"b": 1}}\n{LOG4J}{{"a" -> 1}}' for each in lines
    ),
    "a structured log": lambda lines: "\n".join(
        json.dumps({"level": "INFO", "msg": f"Streaming query made progress: {json.dumps(each, indent=2)}"})
        + '\n{"level":"INFO","msg":"Committed {offsets}","context":{"batch_id":"1"}}'
        for each in lines
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_progress_is_read_in_the_forms_of_other_languages(form, tmp_path):
    lines = [progress(Query(), number, 10.0 * number, 1.0, 50) for number in range(5)]
    (tmp_path / "log").write_text(form(lines) + "\n")
    application = read_source(str(tmp_path / "log"))
    assert (len(only_query(application).batches), application.unreadable) == (5, 0)


def test_torn_progress_over_several_lines_is_skipped(tmp_path):
    lines = [json.dumps(progress(Query(), number, 10.0 * number, 1.0, 50), indent=2) for number in range(5)]
    (tmp_path / "log").write_text("\n".join([lines[0][40:], lines[1], lines[2][:300], *lines[3:], lines[0][:400]]))
    application = read_source(str(tmp_path / "log"))
    assert len(only_query(application).batches) == 3
    assert application.unreadable >= 3


def test_torn_progress_is_counted_in_a_structured_log_too(tmp_path):
    texts = [json.dumps(progress(Query(), number, 10.0 * number, 1.0, 50), indent=2) for number in range(3)]
    texts[1] = texts[1][:300]
    (tmp_path / "log").write_text("\n".join(json.dumps({"level": "INFO", "msg": text}) for text in texts))
    application = read_source(str(tmp_path / "log"))
    assert (len(only_query(application).batches), application.unreadable) == (2, 1)


ORDERS = [reversed, lambda lines: random.Random(1).sample(lines, len(lines)), lambda lines: 2 * lines]


@pytest.mark.parametrize("order", ORDERS, ids=["newest first", "shuffled", "twice"])
def test_progress_in_any_order_tells_the_same(order, tmp_path):
    lines = [json.dumps(progress(Query(), number, 10.0 * number, 3.0, 1000)) for number in range(60)]
    tables = []
    for each in (lines, list(order(lines))):
        (tmp_path / "log").write_text("\n".join(each))
        tables.append([table.rows for table in advise(str(tmp_path / "log"), cores=8).tables()])
    assert tables[0] == tables[1]


def test_runs_in_lines_of_progress_are_told_by_their_identifiers(tmp_path):
    lines = [progress(Query(), number, 3600.0 * number, 60.0, 1000) | {"runId": f"run-{number}"} for number in range(12)]
    (tmp_path / "log").write_text("\n".join(map(json.dumps, lines)))
    query = only_query(read_source(str(tmp_path / "log")))
    assert len(query.runs) == 12
    assert math.isnan(query.trigger)


@pytest.mark.parametrize(("gap", "bounded"), [(3600.0, True), (30.0, False)], ids=["scheduled", "restarted"])
def test_scheduled_runs_in_lines_of_progress_are_bounded(gap, bounded, tmp_path):
    none, lines, at = {"startOffset": None, "endOffset": None, "latestOffset": None}, [], 0.0
    for number in range(20):
        at += gap * (number % 5 == 0)
        files = Query(source="FileStreamSource[file:/in]")
        lines.append(progress(files, number, at, 60.0, 1000, source=none) | {"runId": f"run-{number // 5}"})
        at += 60.05
    (tmp_path / "log").write_text("\n".join(map(json.dumps, lines)))
    assert only_query(read_source(str(tmp_path / "log"))).bounded == bounded


def test_progress_printed_now_and_then_tells_no_trigger_latency_or_size(tmp_path):
    lines = [progress(Query(), number, 2.0 * number, 1.0, 1000) for number in range(0, 180, 3)]
    (tmp_path / "log").write_text("\n".join(map(json.dumps, lines)))
    advice = advise(str(tmp_path / "log"), cores=4)
    query = only_query(advice.application)
    assert math.isnan(query.trigger)
    assert advice.sizing.curve == ()
    assert any("the log lacks 118 of its 178 batches" in each for each in advice.unknown)
    (figures,) = advice.to_json()["queries"]
    assert figures["rate"] == pytest.approx(500, rel=0.02)
    assert math.isnan(figures["p50"])


def test_torn_first_line_of_progress_is_skipped(tmp_path):
    lines = [json.dumps(progress(Query(), number, 10.0 * number, 1.0, 50)) for number in range(5)]
    (tmp_path / "log").write_text("\n".join([lines[0][40:], *lines]))
    application = read_source(str(tmp_path / "log"))
    assert (len(only_query(application).batches), application.unreadable) == (5, 1)


def test_attempts_of_a_stage_are_stages_of_their_batch(tmp_path):
    log = log_of(100, 100)
    (at, first), *_ = [(n, e) for n, e in enumerate(log.events) if e["Event"] == "SparkListenerStageCompleted"]
    tasks = [e for e in log.events[:at] if e["Event"] == "SparkListenerTaskEnd"]
    again = json.loads(json.dumps([*tasks, first]))
    for each in again:
        each.get("Stage Info", each)["Stage Attempt ID"] = 1
    log.events[at + 1 : at + 1] = again
    first["Stage Info"]["Failure Reason"] = "FetchFailed"
    assert [len(batch.stages) for batch in only_query(read_source(str(log.write(tmp_path / "log")))).batches] == [3, 2]


def test_continuous_query_is_named(tmp_path):
    log = LogOf()
    log.add("SparkListenerJobStart", **{"Job ID": 0, "Stage IDs": [], "Properties": {"__continuous_start_epoch": "0"}})
    with pytest.raises(InputError, match="continuous trigger: advice is for micro-batches"):
        read_source(str(log.write(tmp_path / "log")))


def test_continuous_query_beside_others_is_named(tmp_path):
    log = log_of(100, 120)
    properties = {"__continuous_start_epoch": "0"}
    log.add("SparkListenerJobStart", **{"Job ID": 90, "Stage IDs": [], "Properties": properties})
    log.started(Query("steady", "99999999-2222-3333-4444-555555555555"))
    application = read_source(str(log.write(tmp_path / "log")))
    assert application.unknown == ["anything of steady: it has no finished batch, as with a continuous trigger"]


def test_log_without_its_beginning_is_read_from_the_next_line(tmp_path):
    (tmp_path / "tail").write_bytes(log_of(100, 120).write(tmp_path / "log").read_bytes()[20:])
    application = read_source(str(tmp_path / "tail"))
    assert (len(only_query(application).batches), application.unreadable) == (2, 1)


@pytest.mark.parametrize("name", ["spark.task.cpus", "spark.locality.wait", "spark.dynamicAllocation.enabled"])
def test_setting_of_another_form_counts_as_the_default(name, tmp_path):
    log = log_of(*[100] * 20)
    log.events[1]["Spark Properties"][name] = "as usual"
    assert advise(str(log.write(tmp_path / "log"))).findings == ()


def test_time_without_a_unit_is_in_milliseconds_as_in_spark():
    assert Application("x", "y", settings={"spark.locality.wait": "500"}).time("spark.locality.wait", "3s") == 0.5
