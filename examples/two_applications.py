"""Two word counts share three machines: `orders` has priority 2, `clicks` 1, and their peaks are at different times.

python examples/two_applications.py           # starts the arbiter and both, a process each; three to four minutes

While only `clicks` is busy it uses two machines. At the peak of `orders` the arbiter recalls one: `clicks` continues on its
minimum, its query does not restart, and both count every word exactly once.
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

from elastream import Dataflow, run
from elastream.clouds import Pool
from elastream.dataflow.endpoints import parquet, records
from elastream.loads import steps
from elastream.policies import Threshold
from elastream.spark.dataflow.sinks import latest

QUIET, PEAK = "40/s", "260/s"
LOADS = {
    "clicks": steps((QUIET, "20s"), (PEAK, "110s"), (QUIET, "50s")),
    "orders": steps((QUIET, "80s"), (PEAK, "60s"), (QUIET, "40s")),
}
PRIORITIES = {"clicks": 1, "orders": 2}
POOL = httpx.Client(trust_env=False)
WORK = 0.002
"""CPU seconds per line: at its peak an application needs more than one half-core host."""
LINES = [{"value": f"a{n % 7} b{n % 3} c{n % 11}"} for n in range(231)]


def split_slowly(line):
    """Words of a line, after some work."""
    until = time.thread_time() + WORK
    while time.thread_time() < until:
        pass
    return line.split()


def count(application, url, folder):
    """Run one application, a word count on machines of the pool; print as JSON whether it was exact."""
    out = tempfile.mkdtemp(prefix=f"{application}-", dir=folder)
    flow = Dataflow(application)
    words = flow.source(records(LINES, "value string"), load=LOADS[application]).flat_map(
        split_slowly, returns="word string"
    )
    words.key_by("word").count().sink(parquet(out))
    result = run(
        flow,
        policy=Threshold(),
        cloud=Pool(url, application, priority=PRIORITIES[application]),
        target_latency="5s",
        state_partitions=4,
        show=False,  # what this process prints is read by the other
    )
    counted = dict(latest(out).itertuples(index=False))
    expected = Counter(word for line in result.replay("source") for word in line.split())
    facts = result.ending.facts
    print(json.dumps({"exact": counted == expected, "words": expected.total(), **facts}))


def main(folder):
    """Run the arbiter and both applications; returns machines held over time, results, and the bill."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    document = folder / "arbiter.yaml"
    document.write_text(f"arbiter: {{name: two-{port}, listen: 127.0.0.1:{port}, machines: {{small: 3}}}}\n")
    pool = subprocess.Popen([Path(sys.executable).with_name("elastream"), "manager", document])
    started = {}
    seen = []
    try:
        wait_for(url)
        for application in PRIORITIES:
            log = (folder / f"{application}.log").open("w")
            command = [sys.executable, Path(__file__).resolve(), application, url, folder]
            started[application] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        begun = time.monotonic()
        while any(process.poll() is None for process in started.values()):
            holding = held(url)
            if not seen or seen[-1][1] != holding:
                seen.append((round(time.monotonic() - begun), holding))
                print(f"{seen[-1][0]:4} s  " + "  ".join(f"{name} {number}" for name, number in sorted(holding.items())))
            time.sleep(0.5)
        bill = look(url)["bill"]
    finally:
        for process in (*started.values(), pool):
            process.terminate()
            process.wait()
    results = {}
    for application, process in started.items():
        written = (folder / f"{application}.log").read_text()
        if process.returncode:
            raise SystemExit(f"{application} ended with status {process.returncode}:\n{written[-2000:]}")
        results[application] = json.loads(written.splitlines()[-1])
        print(application, results[application])
    print("owed:", ", ".join(f"{name} {money:.2f}" for name, money in sorted(bill.items())))
    return {"held": seen, "results": results, "bill": bill}


def look(url):
    """The pool's status."""
    return POOL.get(url).json()


def held(url):
    """Machines that each application holds now."""
    return {name: about["holds"] for name, about in look(url)["applications"].items()}


def wait_for(url):
    """Wait until the arbiter answers."""
    for _ in range(200):
        try:
            look(url)
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit("the arbiter did not start")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        count(*sys.argv[1:])
    else:
        main(Path(tempfile.mkdtemp(prefix="two-applications-")))
