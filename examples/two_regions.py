"""Two word counts under E2DF on hosts of two regions: managers are processes of their own; one is killed and comes back.

python examples/two_regions.py                # an arbiter, two region managers, two applications; three to four minutes

`orders` has priority 2, `clicks` 1. Each application has its operator and application managers within; the arbiter is
the infrastructure manager; the managers of `east` and `west` lease the hosts. The manager of `east` is killed under load:
what was granted stays granted, and it continues from its journal. At the peak of `orders` a host of `clicks` is recalled.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
from two_applications import LINES, PEAK, PRIORITIES, QUIET, split_slowly

from elastream import Dataflow, run
from elastream.clouds import Pool
from elastream.dataflow.endpoints import parquet, records
from elastream.loads import steps
from elastream.policies import E2df
from elastream.spark.dataflow.sinks import latest

LOADS = {
    "clicks": steps((QUIET, "10s"), (PEAK, "130s"), (QUIET, "30s")),
    "orders": steps((QUIET, "75s"), (PEAK, "70s"), (QUIET, "30s")),
}
REGIONS = {"east": 2, "west": 1}
"""Hosts that each can have."""
TYPE = {"cores": 0.5, "memory": "1GB", "btu": "30s"}
KILLED_AFTER, BACK_AFTER = 45.0, 10.0
"""Seconds after which both have a host that the manager of `east` is killed, and for which it stays away."""


def count(application, url, folder):
    """One of the two applications; prints as JSON whether it was exact."""
    out = tempfile.mkdtemp(prefix=f"{application}-", dir=folder)
    flow = Dataflow(application)
    words = flow.source(records(LINES, "value string"), load=LOADS[application]).flat_map(
        split_slowly, returns="word string"
    )
    words.key_by("word").count().sink(parquet(out))
    result = run(
        flow,
        # The worker's JVM takes part of a half-core host, and operators are measured without it: the threshold is low.
        policy=E2df(infrastructure="shared", scale_out=0.3, period=4, infrastructure_period=8, initial=1),
        cloud=Pool(url, application, priority=PRIORITIES[application]),
        target_latency="5s",
        state_partitions=4,
        show=False,  # what this process prints is read by the other
    )
    counted = dict(latest(out).itertuples(index=False))
    expected = Counter(word for line in result.replay("source") for word in line.split())
    print(
        json.dumps(
            {"exact": counted == expected, "words": expected.total(), "run": str(result.directory), **result.ending.facts}
        )
    )


def write_documents(folder, url):
    """The documents of the three managers."""
    kinds = {region: f"small-{region}" for region in REGIONS}
    arbiter = {
        "name": f"regions-{url.rpartition(':')[2]}",
        "listen": url.removeprefix("http://"),
        "regions": {region: {"capacity": capacity} for region, capacity in REGIONS.items()},
        "host_types": {kinds[region]: {**TYPE, "region": region} for region in REGIONS},
        "settle": "5s",
    }
    (folder / "arbiter.yaml").write_text(json.dumps({"arbiter": arbiter}))
    for region in REGIONS:
        manager = {
            "name": region,
            "arbiter": url,
            "period": "1s",
            "spare": 0,
            "host_types": {kinds[region]: TYPE},
            "hosts": {"directory": f"hosts/{region}"},
        }
        (folder / f"{region}.yaml").write_text(json.dumps({"region": manager}))


def start_manager(folder, name):
    """A manager's process."""
    with (folder / f"{name}.log").open("a") as log:
        return subprocess.Popen(
            [Path(sys.executable).with_name("elastream"), "manager", folder / f"{name}.yaml"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def main(folder):  # noqa: C901
    """Run all of it; returns who held what over time, recalls that were seen, leases by region, and results."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    write_documents(folder, url)
    client = httpx.Client(trust_env=False, timeout=10)
    started = {"arbiter": start_manager(folder, "arbiter")}
    seen, recalled, killed, gone, back = [], set(), None, False, False
    try:
        wait_for(client, url)
        started |= {region: start_manager(folder, region) for region in REGIONS}
        applications = {}
        for application in PRIORITIES:
            with (folder / f"{application}.log").open("w") as log:
                command = [sys.executable, Path(__file__).resolve(), application, url, folder]
                applications[application] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        started |= applications
        begun = time.monotonic()
        while any(process.poll() is None for process in applications.values()):
            passed = time.monotonic() - begun
            if killed is None and len({owner for holding in seen for owner in holding[1].values()}) == 2:
                killed = passed + KILLED_AFTER
            if killed is not None and not gone and passed > killed:
                gone = True
                started["east"].kill()
                started["east"].wait()
                print(f"{passed:4.0f} s  the manager of east is killed")
            if gone and not back and passed > killed + BACK_AFTER:
                back = True
                started["east"] = start_manager(folder, "east")
                print(f"{passed:4.0f} s  the manager of east is back")
            shown = client.get(url).json()
            held = {host: about["owner"] for host, about in shown["hosts"].items() if about["owner"]}
            recalled |= {
                (host, about["owner"], about["why"])
                for host, about in shown["hosts"].items()
                if about["tenure"] == "recalled"
            }
            if not seen or seen[-1][1] != held:
                seen.append((round(passed), held))
                print(f"{passed:4.0f} s  " + "  ".join(f"{host}: {owner}" for host, owner in sorted(held.items())))
            time.sleep(0.5)
        bill = client.get(url).json()["bill"]
    finally:
        for process in started.values():
            process.terminate()
        for process in started.values():
            process.wait()
    results = {}
    for application, process in applications.items():
        written = (folder / f"{application}.log").read_text()
        if process.returncode:
            raise SystemExit(f"{application} ended with status {process.returncode}:\n{written[-2000:]}")
        results[application] = json.loads(written.splitlines()[-1])
        print(application, results[application])
    for host, owner, why in sorted(recalled):
        print(f"{host} was recalled from {owner}: {why}")
    logs = {region: folder / "hosts" / region / "history.log" for region in REGIONS}
    history = {region: log.read_text().splitlines() if log.exists() else [] for region, log in logs.items()}
    return {"held": seen, "recalled": recalled, "history": history, "results": results, "bill": bill}


def wait_for(client, url):
    """Wait until the arbiter answers."""
    for _ in range(200):
        try:
            client.get(url)
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit("the arbiter did not start")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        count(*sys.argv[1:])
    else:
        main(Path(tempfile.mkdtemp(prefix="two-regions-")))
