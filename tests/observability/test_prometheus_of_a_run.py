"""A real Prometheus scrapes the page of a run on Spark: what only a real one has, batches and latencies, is in it."""

import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from support.prometheus_server import needs_prometheus, prometheus, promtool, query
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, needs_prometheus]
PORT, SERVER = 25015, 25016
PROGRAM = """
from elastream import Dataflow, HostType, Local, run
from elastream.io import collect, records
from elastream.loads import constant
from elastream.policies import Static

flow = Dataflow("counted")
words = flow.source(records([{"word": "to"}, {"word": "be"}], "word string"), load=constant("50/s", lasts="10 min"))
words.key_by("word").count().sink(collect("counts"))
tiny = HostType("tiny", cores=1.0, slots=1, memory=1000.0, price=0.5)
run(flow, policy=Static(hosts=1), cloud=Local(tiny, max_hosts=1), target_latency="5s", state_partitions=2, currency="EUR")
"""


def test_prometheus_scrapes_batches_latencies_records_and_cost(tmp_path):
    (tmp_path / "counted.py").write_text(PROGRAM)
    command = [sys.executable, "-c", "from elastream.cli.app import app; app()", "run", "counted.py", "--no-live"]
    run = subprocess.Popen(
        [*command, "--metrics", str(PORT)], cwd=tmp_path, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        with prometheus(tmp_path / "prometheus", SERVER, scrapes=PORT) as server:

            def value(expression: str) -> float:
                found = query(server, expression)
                return sum(float(each["value"][1]) for each in found)

            def scraped(expression: str, least: float = 1.0) -> None:
                wait_until(
                    lambda: run.poll() is not None or value(expression) >= least,
                    otherwise=lambda: (expression, query(server, '{__name__=~"elastream_query.*"}')),
                )
                assert run.poll() is None, run.communicate()

            scraped("elastream_query_batch_duration_seconds_count", 3)
            scraped("elastream_query_latency_seconds_count", 3)
            scraped('elastream_query_latency_seconds_bucket{le="+Inf"}', 3)
            scraped("elastream_records_total", 50)
            scraped('elastream_application_cost_total{currency="EUR"}', 0.5)
            assert value("elastream_query_batch_duration_seconds_sum") > 0
            (info,) = query(server, "elastream_build_info")
            assert (info["metric"]["plant"], info["metric"]["policy"]) == ("spark", "static")
        text = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics").read().decode()
        kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
        counters = {name for name, kind in kinds.items() if kind == "counter"}
        assert {"elastream_records_total", "elastream_errors_total", "elastream_application_cost_total"} <= counters
        assert counters == {name for name in kinds if name.endswith("_total")}
        found = promtool("check", "metrics", given=text)
        assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    finally:
        os.killpg(run.pid, signal.SIGINT)
        try:
            run.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()
