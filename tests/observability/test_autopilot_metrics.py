"""What a run sees and does, as Prometheus would scrape it."""

import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from elastream.control.loop import Loop
from elastream.core.alarm import Alarm
from elastream.core.frames import Frame
from elastream.core.metrics import Metric, Rows
from elastream.observability.metrics import PrometheusObserver, metric_name
from elastream.policies.threshold import Threshold
from support.fake_plant import FakePlant


def run(observer, **loop):
    plant = FakePlant(hosts=1, arrival_rate=200.0)  # which grows in the run, and settles for longer than that
    Loop(plant, Threshold(settle=60.0), monitor=1.0, period=2.0, limit=20, observers=[observer], **loop).run()
    return plant


def test_gauges_are_what_was_observed_last_and_actions_are_counted_once():
    registry = CollectorRegistry()
    plant = run(PrometheusObserver(registry))
    running = sum(lease.ready_at() is not None for lease in plant.ledger)
    assert registry.get_sample_value("elastream_hosts", {"state": "running"}) == running > 1
    assert registry.get_sample_value("elastream_host_tasks", {"host": "h2"}) >= 1
    held = [registry.get_sample_value("elastream_host_tasks", {"host": lease.host}) for lease in plant.ledger]
    assert sum(held) == 4
    assert registry.get_sample_value(
        "elastream_operator_busy_cores", {"query": "source", "operator": "count"}
    ) == pytest.approx(1.0)
    leases = registry.get_sample_value("elastream_actions_total", {"action": "lease", "status": "accepted"})
    assert leases == len(plant.ledger) - 1
    assert registry.get_sample_value("elastream_rounds_total") >= 9
    started = {"reason": "RunStarted", "type": "Normal"}
    assert registry.get_sample_value("elastream_events_total", started) == 1


def test_what_is_unknown_is_not_zero():
    registry = CollectorRegistry()
    run(PrometheusObserver(registry))
    labels = {"application": "word_count"}
    assert registry.get_sample_value("elastream_application_latency_p99_seconds", labels) > 0
    assert registry.get_sample_value("elastream_application_batch_duration_seconds", labels) is None


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


def test_values_are_exported_in_base_units():
    registry, seen = CollectorRegistry(), FakePlant().observe()
    hosts = Frame(("h1",), {Metric.MEMORY: [512.0]})
    PrometheusObserver(registry).observed(replace(seen, hosts=hosts))
    assert registry.get_sample_value("elastream_host_memory_bytes", {"host": "h1"}) == 512e6


def test_an_alarm_is_a_gauge_while_it_stands():
    registry, seen = CollectorRegistry(), FakePlant().observe()
    observer = PrometheusObserver(registry)
    labels = {"source": "mover", "said": "thread died"}
    observer.observed(replace(seen, alarms=(Alarm("mover", "thread died", 1.0),)))
    assert registry.get_sample_value("elastream_alarm", labels) == 1
    observer.observed(seen)
    assert registry.get_sample_value("elastream_alarm", labels) is None


def test_metrics_are_served_while_the_run_lasts_and_not_after():
    observer = PrometheusObserver(port=25011)
    text = urllib.request.urlopen("http://127.0.0.1:25011/metrics").read().decode()
    assert "elastream_hosts" in text
    run(observer)
    with pytest.raises(OSError):
        urllib.request.urlopen("http://127.0.0.1:25011/metrics", timeout=2)
