"""A real Prometheus, and its tool that checks files and pages; both from the system's packages."""

import contextlib
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastream.observability.monitoring import write_files
from support.waiting import wait_until

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")

needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None,
    reason="prometheus and promtool are missing: 'apt-get install prometheus' has them, in Debian and Ubuntu",
)


def promtool(*words, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROMTOOL, *map(str, words)], input=given, capture_output=True, text=True, timeout=60)


@contextlib.contextmanager
def prometheus(folder: Path, port: int, *, scrapes: int) -> Iterator[str]:
    """The address of a Prometheus at `port` with the shipped files, which reads the page at `scrapes` each second."""
    write_files(folder)
    config = folder / "prometheus.yaml"
    config.write_text(
        config.read_text().replace("9400", str(scrapes)).replace("scrape_interval: 5s", "scrape_interval: 1s")
    )
    command = [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: ready(address))
        yield address
    finally:
        process.terminate()
        process.wait(30)


def ready(address: str) -> bool:
    try:
        return urllib.request.urlopen(f"{address}/-/ready").status == 200
    except OSError:
        return False


def query(address, expression):
    asked = urllib.parse.urlencode({"query": expression})
    return json.load(urllib.request.urlopen(f"{address}/api/v1/query?{asked}"))["data"]["result"]


def samples(address, expression, key):
    found = query(address, expression)
    return found[0][key] if found else []
