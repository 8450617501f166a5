"""What a run sees and does, as Prometheus would scrape it."""

import re
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from elastream.control.loop import Loop
from elastream.core.alarm import Alarm
from elastream.core.frames import Frame
from elastream.core.metrics import Metric, Rows
from elastream.errors import InputError
from elastream.observability import metrics
from elastream.observability.metrics import PrometheusObserver, metric_name
from elastream.policies.threshold import Threshold
from elastream.recording.observer import describe_run
from elastream.settings import Listen
from support.fake_plant import FakePlant

RUN = {"run": "word_count-1", "application": "word_count"}
HEADER = describe_run(
    FakePlant().context, policy="threshold", plant="simulated", started=0.0, environment={"directory": "runs/word_count-1"}
)


def run(observer):
    plant = FakePlant(hosts=1, arrival_rate=200.0)  # which grows in the run, and settles for longer than that
    loop = Loop(plant, Threshold(settle=60.0), monitor=1.0, period=2.0, limit=20, observers=[observer], header=HEADER)
    loop.run()
    return plant


def value(registry, name, **labels):
    return registry.get_sample_value(name, RUN | labels)


@pytest.fixture
def watched():
    """A registry, and an observer of a run that has started."""
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    observer.started(HEADER)
    return registry, observer


def test_gauges_are_what_was_observed_last_and_actions_are_counted_once():
    registry = CollectorRegistry()
    plant = run(PrometheusObserver(registry))
    running = sum(lease.ready_at() is not None for lease in plant.ledger)
    assert value(registry, "elastream_hosts", state="running") == running > 1
    assert value(registry, "elastream_host_tasks", host="h2") >= 1
    held = [value(registry, "elastream_host_tasks", host=lease.host) for lease in plant.ledger]
    assert sum(held) == 4
    assert value(registry, "elastream_operator_busy_cores", query="source", operator="count") == pytest.approx(1.0)
    leases = value(registry, "elastream_actions_total", action="lease", status="accepted")
    assert leases == len(plant.ledger) - 1
    assert value(registry, "elastream_rounds_total") >= 9
    assert value(registry, "elastream_events_total", reason="RunStarted", type="Normal") == 1


def test_what_is_unknown_is_not_zero():
    registry = CollectorRegistry()
    run(PrometheusObserver(registry))
    assert value(registry, "elastream_application_latency_p99_seconds") > 0
    assert value(registry, "elastream_application_batch_duration_seconds") is None


def test_every_series_names_its_run_and_no_series_comes_before_it():
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    assert not [sample for family in registry.collect() for sample in family.samples]
    run(observer)
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert len(samples) > 50
    assert all(sample.labels.items() >= RUN.items() for sample in samples)


def test_cost_without_prices_is_absent(watched):
    registry, observer = watched
    seen = FakePlant().observe()
    free = {name: replace(lease, type=replace(lease.type, price=0.0)) for name, lease in seen.leases.items()}
    application = Frame(seen.application.ids, {Metric.COST: [0.0], Metric.THROUGHPUT: [5.0]})
    observer.observed(replace(seen, application=application, leases=free, time=2.0))
    assert value(registry, "elastream_records_total") == 10
    assert value(registry, "elastream_application_cost_total", currency="") is None
    assert value(registry, "elastream_cost_per_million_records", currency="") is None


@pytest.mark.parametrize(
    ("rows", "metric", "name"),
    [
        (Rows.APPLICATION, Metric.LATENCY_P99, "elastream_application_latency_p99_seconds"),
        (Rows.OPERATOR, Metric.ARRIVAL_RATE, "elastream_operator_arrival_rate_records_per_second"),
        (Rows.OPERATOR, Metric.BUSY_CORES, "elastream_operator_busy_cores"),
        (Rows.HOST, Metric.MEMORY, "elastream_host_memory_bytes"),
        (Rows.HOST, Metric.CPU, "elastream_host_cpu_ratio"),
        (Rows.APPLICATION, Metric.COST, "elastream_application_cost_total"),
    ],
)
def test_the_name_of_a_metric_says_its_rows_and_its_base_unit(rows, metric, name):
    assert metric_name(rows, metric) == name


def test_values_are_exported_in_base_units(watched):
    registry, observer = watched
    observer.observed(replace(FakePlant().observe(), hosts=Frame(("h1",), {Metric.MEMORY: [512.0]})))
    assert value(registry, "elastream_host_memory_bytes", host="h1") == 512e6


def test_standing_alarms_are_counted_by_source(watched):
    registry, observer = watched
    seen = FakePlant().observe()
    observer.observed(replace(seen, alarms=(Alarm("mover", "thread died", 1.0),)))
    assert value(registry, "elastream_alarm", source="mover") == 1
    observer.observed(seen)
    assert value(registry, "elastream_alarm", source="mover") is None


def test_help_texts_name_no_paper():
    texts = [family.documentation for family in PrometheusObserver().collect()]
    assert len(texts) > 30
    assert not [text for text in texts if re.search(r"thesis|VISP|E2DF|\(.*p\. \d", text)]


@pytest.mark.parametrize(
    ("setting", "container", "address"),
    [
        (9400, False, ("127.0.0.1", 9400)),
        ("9400", True, ("0.0.0.0", 9400)),
        ("127.0.0.1:9400", True, ("127.0.0.1", 9400)),
        ("[::1]:9400", False, ("::1", 9400)),
    ],
)
def test_metrics_address_has_a_default_host(monkeypatch, setting, container, address):
    monkeypatch.setattr(metrics, "in_container", lambda: container)
    assert metrics.metrics_address(Listen().read("metrics", setting), None) == address


def test_older_name_of_the_port_still_works_with_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(metrics, "in_container", lambda: False)
    with pytest.deprecated_call(match="metrics_port is now metrics"):
        assert metrics.metrics_address(None, 9400) == ("127.0.0.1", 9400)
    assert "metrics_port is now metrics" in caplog.text


@pytest.mark.parametrize("setting", ["", "x", ":9400", "host:", "::1:9400", "host:70000", 1.5, True])
def test_metrics_address_that_cannot_be_is_refused(setting):
    with pytest.raises(InputError, match=r"metrics is .*; it must be a port from 0 to 65535, or host:port"):
        Listen().read("metrics", setting)


def test_metrics_are_served_while_the_run_lasts_and_not_after():
    observer = PrometheusObserver(port=25011)
    text = urllib.request.urlopen("http://127.0.0.1:25011/metrics").read().decode()
    assert "elastream_hosts" in text
    run(observer)
    with pytest.raises(OSError):
        urllib.request.urlopen("http://127.0.0.1:25011/metrics", timeout=2)
