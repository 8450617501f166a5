"""An application as a range query of Prometheus shows it."""

import json
import math

import pytest

from elastream.advice.advice import advise
from elastream.advice.application import KEPT_BATCHES
from elastream.advice.findings import findings_of
from elastream.advice.sources import read_source
from elastream.errors import InputError
from support.event_logs import only_query
from support.web_pages import served

START, STEP = 1_800_000_000.0, 15.0
GAUGES = "metrics_app_1_driver_spark_streaming_counts_{}_Value"
NAMES = {
    "rate": "inputRate_total",
    "speed": "processingRate_total",
    "latency": "latency",
    "state": "states_rowsTotal",
    "watermark": "eventTime_watermark",
}


def series(name, values, **labels):
    return {"metric": {"__name__": name, **labels}, "values": [[START + STEP * n, str(v)] for n, v in enumerate(values)]}


def gauges(scrapes=120, *, every=5.0, seconds=lambda n, rows: 0.2 + rows / 5000, **more):
    """Return Spark's gauges of a query with a load that rises and falls."""
    rates = [300 + 200 * math.sin(n / 9) for n in range(scrapes)]
    takes = [seconds(n, every * rate) for n, rate in enumerate(rates)]
    speeds = [every * rate / took for rate, took in zip(rates, takes, strict=True)]
    values = {"rate": rates, "speed": speeds, "latency": [round(1e3 * each) for each in takes]}
    values |= {name: [each(n) for n in range(scrapes)] for name, each in more.items()}
    return [series(GAUGES.format(NAMES[name]), each, instance="driver:4040") for name, each in values.items()]


def answering(result):
    return {"/api/v1/query_range": json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})}


def read(result):
    with served(answering(result)) as address:
        return read_source(address)


@pytest.mark.parametrize("wrong", [[{"metric": [], "values": []}], [None], "none"])
def test_result_of_another_form_is_named(wrong):
    with pytest.raises(InputError, match="in a form that is not Prometheus's"):
        read(wrong)


def test_gauges_of_spark_give_batches_and_their_trigger():
    application = read(gauges())
    query = only_query(application)
    assert (application.name, query.name, query.trigger) == ("app_1", "counts", 5.0)
    assert len(query.batches) == pytest.approx(119 * 3, abs=3)
    batch = query.batches[100]
    assert batch.seconds == pytest.approx(0.2 + batch.rows / 5000, rel=0.01)
    assert findings_of(application, 10.0) == ()


def test_sizes_need_the_cores_from_the_user():
    with served(answering(gauges())) as address:
        assert any("give them with --cores" in each for each in advise(address).unknown)
        advice = advise(address, 10.0, 0.1, 4)
    assert advice.sizing.fixed.hosts == 1
    (one, *_, logged) = (point for point in advice.sizing.curve if point.hosts <= 4)
    assert one.p99 > logged.p99


def test_state_that_grows_without_a_watermark_is_found():
    (finding,) = findings_of(read(gauges(state=lambda n: 1000 * n)), 10.0)
    assert "no watermark ends it" in finding.evidence
    bounded = gauges(state=lambda n: 1000, watermark=lambda n: 1e3 * (START + STEP * n - 30))
    assert findings_of(read(bounded), 10.0) == ()


def test_batches_longer_than_the_trigger_follow_each_other():
    query = only_query(read(gauges(seconds=lambda n, rows: 8.0)))
    assert query.batches[9].start - query.batches[8].start == pytest.approx(8.0)


def brief_batches(seconds):
    """Return the gauges of most of a year in which every batch took so long."""
    names = {"inputRate_total": 1e9, "processingRate_total": 1e12, "latency": 1e3 * seconds}
    return [
        {
            "metric": {"__name__": GAUGES.format(name)},
            "values": [[START + 86_400.0 * n, str(value)] for n in range(300)],
        }
        for name, value in names.items()
    ]


def test_newest_of_many_batches_are_kept_and_no_other_is_made():
    query = only_query(read(brief_batches(2e-3)))
    assert len(query.batches) == KEPT_BATCHES
    assert query.batches[-1].start == START + 86_400.0 * 299 - 2.0
    assert query.dropped == 299 * 43_200 - KEPT_BATCHES


def test_batches_shorter_than_any_clock_shows_are_none():
    with pytest.raises(InputError, match="no batch of its streaming query has finished"):
        read(brief_batches(1e-9))


@pytest.mark.parametrize("trigger", [4, 10])
def test_trigger_shows_in_scrapes_that_count_one_batch_more_or_less(trigger):
    labels, duration = {"run": "r1", "query": "counts"}, "elastream_query_batch_duration_seconds"
    number = [sum(each <= 15.0 * n for each in range(1, 2000, trigger)) for n in range(100)]
    result = [
        series(f"{duration}_count", number, **labels),
        series(f"{duration}_sum", [1.5 * n for n in number], **labels),
        series("elastream_query_latency_seconds_count", [400 * n for n in number], **labels),
    ]
    query = only_query(read(result))
    assert query.trigger == trigger
    assert sum(batch.rows for batch in query.batches) == pytest.approx(400 * number[-1], rel=0.02)


def test_metrics_of_elastream_give_its_target_and_alarms():
    labels = {"run": "r1", "application": "shop"}
    duration, latency = "elastream_query_batch_duration_seconds", "elastream_query_latency_seconds"
    result = [
        series(f"{duration}_count", [3 * n for n in range(100)], query="counts", **labels),
        series(f"{duration}_sum", [3 * n * 1.5 for n in range(100)], query="counts", **labels),
        series(f"{latency}_count", [6000 * n for n in range(100)], query="counts", **labels),
        series("elastream_target_latency_seconds", [4.0] * 100, **labels),
        series("elastream_alarm", [1.0] * 100, source="cloud", **labels),
    ]
    with served(answering(result)) as address:
        advice = advise(address)
    batch = only_query(advice.application).batches[5]
    assert (batch.rows, batch.seconds, advice.target) == (pytest.approx(2000), 1.5, 4.0)
    assert [each.evidence for each in advice.findings if "the alarm of cloud stands" in each.evidence]


def test_series_of_several_applications_ask_for_one():
    other = [{**each, "metric": {"__name__": each["metric"]["__name__"].replace("app_1", "app_2")}} for each in gauges()]
    with pytest.raises(InputError, match=r"has 2 applications, such as app_1: give one .* \?query="):
        read([*gauges(), *other])


@pytest.mark.parametrize(
    ("pages", "statuses", "why"),
    [
        (answering([]), {}, "there is no series of Elastream's metrics or Spark's streaming gauges"),
        (answering([series("up", [1])]), {}, "none of 1 series is of Elastream's metrics"),
        ({"/api/v1/query_range": "[]"}, {}, "in a form that is not Prometheus's"),
        ({"/api/v1/query_range": '{"error": "parse error"}'}, {"/api/v1/query_range": 400}, "answers 400 parse error"),
        ({}, {}, "is neither Spark's web interface nor Prometheus"),
    ],
)
def test_odd_answers_of_a_server_are_one_sentence(pages, statuses, why):
    with served(pages, statuses) as address, pytest.raises(InputError, match=why) as raised:
        read_source(address)
    assert "\n" not in str(raised.value)


def test_times_of_the_range_are_checked():
    with served({}) as address, pytest.raises(InputError, match="start=today of the range query must be epoch seconds"):
        read_source(f"{address}/?start=today")
