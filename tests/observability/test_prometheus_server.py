"""A real Prometheus scrapes a run's own page, and loads the rules and the dashboard's expressions that are shipped."""

import json
import re
import urllib.request

import pytest

from elastream.control.loop import Loop
from elastream.observability.metrics import PrometheusObserver
from elastream.observability.monitoring import FILES, write_files
from elastream.policies.threshold import Threshold
from support.fake_plant import FakePlant
from support.prometheus_server import needs_prometheus, prometheus, promtool, query, samples
from support.waiting import wait_until

PORT, SERVER = 25013, 25014

pytestmark = needs_prometheus


class Unending:
    """An observer whose run has not ended: it goes on to serve."""

    def __init__(self, observer):
        self.started, self.observed, self.decided = observer.started, observer.observed, observer.decided

    def ended(self, ending):
        pass


@pytest.fixture(scope="module")
def page():
    """What a run serves: one that grew, and whose rule refused more."""
    observer = PrometheusObserver(port=PORT)
    plant = FakePlant(hosts=1, arrival_rate=900.0, max_hosts=4)
    Loop(plant, Threshold(host_type="small"), monitor=1.0, period=2.0, limit=30, observers=[Unending(observer)]).run()
    yield f"http://127.0.0.1:{PORT}/metrics"
    observer.ended(None)


def test_the_page_keeps_the_rules_for_metrics(page):
    text = urllib.request.urlopen(page).read().decode()
    found = promtool("check", "metrics", given=text)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_the_rules_and_the_configuration_are_valid(tmp_path):
    write_files(tmp_path)
    for what, name in (("rules", "alerts.yaml"), ("config", "prometheus.yaml")):
        found = promtool("check", what, tmp_path / name)
        assert found.returncode == 0, found.stdout + found.stderr


@pytest.fixture(scope="module")
def server(page, tmp_path_factory):
    """The address of a Prometheus with the shipped files that has scraped the page several times."""
    with prometheus(tmp_path_factory.mktemp("prometheus"), SERVER, scrapes=PORT) as address:
        wait_until(lambda: len(samples(address, "elastream_rounds_total[1m]", "values")) >= 3)
        yield address


def test_prometheus_has_what_the_run_came_to(server):
    assert samples(server, "elastream_max_hosts", "value")[1] == "4"
    assert float(samples(server, "elastream_recommended_hosts", "value")[1]) > 4
    assert samples(server, 'elastream_hosts{state="running"}', "value")[1] == "4"
    assert int(samples(server, 'elastream_events_total{reason="ScaledUp"}', "value")[1]) >= 1
    assert query(server, "elastream_build_info")[0]["metric"]["policy"] == "threshold"


def test_every_alert_rule_loads_and_too_few_hosts_is_pending(server):
    def groups():
        return json.load(urllib.request.urlopen(f"{server}/api/v1/rules"))["data"]["groups"]

    (group,) = groups()
    states = {rule["name"]: rule for rule in group["rules"]}
    assert len(states) >= 10
    wait_until(lambda: all(rule["health"] == "ok" for rule in groups()[0]["rules"]))
    wait_until(lambda: {r["name"]: r["state"] for r in groups()[0]["rules"]}["ElastreamWantsMoreHosts"] == "pending")


def expressions(node):
    """Every expression in the dashboard, for all runs."""
    if isinstance(node, dict):
        if isinstance(node.get("expr"), str):
            yield node["expr"].replace("$run", ".*")
        for each in node.values():
            yield from expressions(each)
    if isinstance(node, list):
        for each in node:
            yield from expressions(each)


def test_every_dashboard_expression_names_metrics_that_are_served(server, page, tmp_path):
    write_files(tmp_path)
    dashboard = json.loads((tmp_path / FILES[0]).read_text())
    found = sorted(set(expressions(dashboard)))
    assert len(found) > 20
    known = set(re.findall(r"^# TYPE (\S+)", urllib.request.urlopen(page).read().decode(), re.MULTILINE))
    for expression in found:
        query(server, expression)  # an error is a status above 400, and raises
        names = {re.sub("_(bucket|count|sum)$", "", each) for each in re.findall(r"elastream_\w+", expression)}
        assert names <= known, expression
