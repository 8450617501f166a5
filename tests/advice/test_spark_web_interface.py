"""A running application, or one of a history server, through Spark's web interface."""

import json
from datetime import UTC, datetime

import pytest

from elastream.advice.findings import findings_of
from elastream.advice.sizing import size
from elastream.advice.sources import read_source
from elastream.errors import InputError
from support.event_logs import only_query
from support.web_pages import served

ID, RUN = "c349b995-737d-4239-8127-fbc0f88c52da", "3a42e9cb-74ff-4247-b32f-ba4ec1e82fd7"
START_MS = 1_800_000_000_000
APP = {
    "id": "app-1",
    "name": "shop",
    "attempts": [{"startTimeEpoch": START_MS, "appSparkVersion": "4.1.0", "completed": False}],
}


def stamp(ms):
    return datetime.fromtimestamp(ms / 1e3, UTC).isoformat(timespec="milliseconds").replace("+00:00", "GMT")


def stage(number, batch, *, run=400, cpu=300e6, tasks=4, longest=110, shuffled=0, details="java"):
    begun = START_MS + 5_000 * batch + 200
    return {
        "stageId": number,
        "status": "COMPLETE",
        "numTasks": tasks,
        "numFailedTasks": 0,
        "submissionTime": stamp(begun),
        "completionTime": stamp(begun + 300),
        "executorRunTime": run,
        "executorCpuTime": cpu,
        "jvmGcTime": 5,
        "diskBytesSpilled": 0,
        "shuffleReadBytes": shuffled,
        "shuffleReadRecords": shuffled,
        "inputRecords": 0,
        "details": details,
        "description": f"counts\nid = {ID}\nrunId = {RUN}\nbatch = {batch}",
        "taskMetricsDistributions": {"quantiles": [1.0], "executorRunTime": [longest]},
    }


def statistics_page(batches, *, state=None, name="counts", rows=lambda n: 100 + 50 * (n % 9)):
    """Return what Spark 4.1 writes for a query: data of its plots. state: rows of state by batch."""
    times = [START_MS + 5_000 * n for n in range(batches)]
    clock = {at: datetime.fromtimestamp(at / 1e3, UTC).strftime("%H:%M:%S.000") for at in times}

    def points(values):
        return json.dumps([{"x": at, "y": y} for at, y in zip(times, values, strict=True)])

    parts = ",".join(f'{{x: "{clock[at]}", "addBatch": "700.0","walCommit": "50.0"}}' for at in times)
    lines = [
        f"<div><strong>Name: </strong>{name}</div><div><strong>Id: </strong>{ID}</div>",
        *(f"timeFormat[{at}] = '{text}';" for at, text in clock.items()),
        *(f"timeTipStrings[{at}] = 'batch {n} ({clock[at]})';" for n, at in enumerate(times)),
        f"var v1 = {points([float(rows(n)) for n in range(batches)])};",
        f"var v2 = {points([800.0] * batches)};",
        f"var v3 = [{parts}];",
        'var v4 = ["addBatch","walCommit"];',
        "drawTimeline('#input-rows-timeline', v1, 1, 2, 0.0, 9.0, 'records');",
        "drawTimeline('#batch-duration-timeline', v2, 1, 2, 0.0, 9.0, 'ms');",
        "drawAreaStack('#duration-area-stack', v4, v3)",
    ]
    if state is not None:
        lines += [
            f"var v5 = {points([float(state(n)) for n in range(batches)])};",
            "drawTimeline('#aggregated-num-total-state-rows-timeline', v5, 1, 2, 0.0, 9.0, 'records');",
        ]
    return "\n".join(lines)


def pages(*, batches=30, root="", stages=stage, **more):
    rest = "/api/v1/applications/app-1"
    executors = [
        {"id": str(n), "totalCores": cores, "addTime": stamp(START_MS), "totalDuration": 9000}
        for n, cores in (("driver", 0), ("0", 2), ("1", 2))
    ]
    answers = {
        "/api/v1/version": {"spark": "4.1.0"},
        "/api/v1/applications": [APP],
        rest: APP,
        f"{rest}/environment": {"sparkProperties": [["spark.locality.wait", "5s"]]},
        f"{rest}/allexecutors": executors,
        f"{rest}/jobs": [{"submissionTime": stamp(0), "completionTime": stamp(9), "description": "hourly report"}],
        f"{rest}/stages": [stages(n, n) for n in range(batches)],
    }
    texts = {path: json.dumps(each) for path, each in answers.items()}
    texts[f"{root}/StreamingQuery/"] = f'<a href="{root}/StreamingQuery/statistics/?id={RUN}">'
    return texts | {f"{root}/StreamingQuery/statistics/": statistics_page(batches, **more)}


@pytest.mark.parametrize(
    ("shown", "name"), [("R&amp;D, &lt;new&gt;", "R&D, <new>"), ("&lt;no name&gt;", f"query {ID[:8]}")]
)
def test_name_of_a_query_is_as_its_job_gave_it(shown, name):
    with served(pages(name=shown)) as address:
        assert only_query(read_source(address)).name == name


def test_running_application_has_batches_with_stages_and_sizes():
    with served(pages()) as address:
        application = read_source(address)
    query = only_query(application)
    assert (application.name, application.version, application.slots(START_MS / 1e3 + 9)) == ("shop", "4.1.0", 4)
    assert (query.name, len(query.batches), query.trigger) == ("counts", 30, 5.0)
    batch = query.batches[4]
    assert (batch.rows, batch.seconds, batch.durations["addBatch"]) == (300, 0.8, 0.7)
    assert (batch.stages[0].times.run, batch.stages[0].times.longest) == (0.4, 0.11)
    assert application.others == [(0.0, 0.009)]
    assert findings_of(application, 10.0) == ()
    assert size(application, 10.0, 0.1, {}).fixed.hosts == 1


@pytest.mark.parametrize("path", ["/jobs/", "/StreamingQuery/statistics?id=3", "/api/v1/applications/app-1", "/"])
def test_address_may_be_that_of_any_page(path):
    with served(pages()) as address:
        assert read_source(address + path).name == "shop"


def test_application_of_a_history_server_is_named_in_the_address():
    with served(pages(root="/history/app-1")) as address:
        assert len(only_query(read_source(f"{address}/history/app-1/jobs/")).batches) == 30


def test_growing_state_is_found_on_the_page_of_the_query():
    with served(pages(state=lambda n: 100 * n)) as address:
        (finding,) = findings_of(read_source(address), 10.0)
    assert "no watermark ends it" in finding.evidence


def test_python_that_hides_its_work_is_no_slow_sink():
    slow = {"run": 2800, "cpu": 1e6, "longest": 700}
    for details, python in (("org.apache.spark", False), ("py4j.GatewayConnection", True)):
        batches = pages(stages=lambda n, batch, details=details: stage(n, batch, details=details, **slow))
        with served(batches) as address:
            assert only_query(read_source(address)).batches[5].stages[0].times.python is python


def test_several_applications_ask_for_one():
    with (
        served(pages() | {"/api/v1/applications": json.dumps([APP, APP])}) as address,
        pytest.raises(InputError, match=r"several applications: name one, as in http.*/history/app-1"),
    ):
        read_source(address)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"/api/v1/version": '"4"'}, "neither Spark's web interface nor Prometheus"),
        ({"/api/v1/version": "<html>log in"}, "something else than JSON, such as a login page"),
        ({"/api/v1/applications": "[]"}, "has no application"),
        ({"/api/v1/applications/app-1/stages": '[{"description": 7}]', "/StreamingQuery/": ""}, "no streaming query"),
        ({"/api/v1/applications/app-1/environment": "{}"}, "in a form that is not Spark's: KeyError"),
        ({"/StreamingQuery/": "<html>nothing"}, "has 1 job and no streaming query"),
    ],
)
def test_odd_answers_are_one_sentence(changed, why):
    with served(pages() | changed) as address, pytest.raises(InputError, match=why) as raised:
        read_source(address)
    assert "\n" not in str(raised.value)


def test_password_of_the_address_is_sent_and_never_shown():
    with served({}) as address:
        pass
    with pytest.raises(InputError, match="does not answer") as raised:
        read_source(address.replace("http://", "http://me:s3cret@"))
    assert "s3cret" not in str(raised.value)
    with served(pages(), login="me:s3cret") as address:
        with pytest.raises(InputError, match="answers 401"):
            read_source(address)
        application = read_source(address.replace("http://", "http://me:s3cret@"))
    assert (application.name, application.source) == ("shop", address)


def test_address_without_a_whole_host_is_one_sentence():
    with pytest.raises(InputError, match=r"http://\[::1 is not an address"):
        read_source("http://[::1")


def test_nobody_at_the_address_is_one_sentence():
    with served({}) as address:
        pass
    with pytest.raises(InputError, match="does not answer: Connection refused"):
        read_source(address)
