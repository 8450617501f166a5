"""What a run sees and does, as Prometheus would scrape it."""

import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from conformance.fake_plant import FakePlant
from elastream.control.loop import Loop
from elastream.model.alarms import Alarm
from elastream.planning.policies.threshold import Threshold
from elastream.services.metrics import PrometheusObserver


def run(observer, **loop):
    plant = FakePlant(hosts=1, arrival_rate=200.0)
    Loop(plant, Threshold(), monitor=1.0, period=2.0, limit=20, observers=[observer], **loop).run()
    return plant


def test_gauges_are_what_was_observed_last_and_actions_are_counted_once():
    registry = CollectorRegistry()
    plant = run(PrometheusObserver(registry))
    running = sum(lease.ready_at() is not None for lease in plant.ledger)
    assert registry.get_sample_value("elastream_hosts", {"state": "running"}) == running > 1
    assert registry.get_sample_value("elastream_tasks", {"host": "h1"}) >= 1
    assert registry.get_sample_value("elastream_busy_cores", {"operator": "count"}) == pytest.approx(1.0)
    leases = registry.get_sample_value("elastream_actions_total", {"action": "lease", "status": "accepted"})
    assert leases == len(plant.ledger) - 1
    assert registry.get_sample_value("elastream_rounds_total") >= 9


def test_what_is_unknown_is_not_zero():
    registry = CollectorRegistry()
    run(PrometheusObserver(registry))
    value = registry.get_sample_value("elastream_batch_seconds")
    assert value != value


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
