"""Autopilot on YARN: its cost beside a query, and the loss of that query while an executor is given back. 65 minutes.

The cluster is that of the tests: YARN's own ResourceManager and two NodeManagers. overhead: the same query on two
executors, with Autopilot and without, in turn. release: batches every two seconds keep two executors busy; a third one is
leased, gets state partitions, and is given back. The longest batch meanwhile is compared with that of an equal quiet
window.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _common import Report, interleaved, main_of_parts, progress, wait_until
from _stranger import KEYS, STATES, attached, ended, executors, newest, seconds_of, start_work
from pyspark.sql.streaming.query import StreamingQuery

from elastream import Autopilot, HostType
from elastream.clouds import Yarn
from elastream.clouds.executors import memory_settings
from elastream.clouds.local.java import cache_folder
from elastream.core.hosts import HostState
from elastream.spark.attach import AttachedPlant

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
os.environ.setdefault("JARS_OF_TESTS", str(cache_folder() / "tests"))

from support.clusters import YARN_HERE, users_session, yarn  # type: ignore[import-not-found]  # the cluster of the tests is the cluster here
from support.growing_run import Wanted  # type: ignore[import-not-found]

SOURCE = "the project's bar for Autopilot on YARN"
KIND = HostType("container", cores=1, slots=1, memory=700.0, price=0.1)
FIRST, GROWN = 2, 3
STEPS = 2_000  # steps of arithmetic a key: a batch of all keys takes two executors a part of a second
LOADED, EVERY = 250_000, 2.0
"""Steps per key of batches that keep executors busy while one goes, and seconds from one to the next."""
WARM, HOT = 15, 200
"""Batches in which executors compile what they run: enough to work, and until batches no longer get shorter."""


@contextmanager
def on_yarn() -> Iterator[tuple[Any, Yarn, Path]]:
    with tempfile.TemporaryDirectory(prefix="yarn-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        with yarn(root / "cluster") as cluster:
            settings = {
                **YARN_HERE,
                **memory_settings(KIND),
                "spark.yarn.stagingDir": cluster.staging,
                "spark.executor.instances": str(FIRST),
                "spark.sql.shuffle.partitions": str(STATES),
            }
            with users_session("yarn", root / "session", KIND, settings, packaged=True) as spark:
                wait_until(lambda: executors(spark) == FIRST, 180)
                yield spark, Yarn(host_type=KIND, max_hosts=GROWN), root


def measure_overhead(report: Report, quick: bool) -> None:
    rounds, batches, warm = (2, 8, WARM) if quick else (60, 60, HOT)
    with on_yarn() as (spark, _, root):
        query = start_work(spark, root, STEPS)
        ended(query, warm)

        def rate() -> float:
            first = newest(query) + 1
            ended(query, batches)
            return 5 * KEYS / statistics.median(seconds_of(query, first)[:batches])

        def with_autopilot() -> float:
            with Autopilot(spark, min_hosts=FIRST, max_hosts=FIRST, cloud=Yarn(host_type=KIND)).watch(query) as pilot:
                plant = attached(pilot)
                wait_until(lambda: len(plant.observe().tasks) == STATES, 120)
                ended(query, 3)  # attaching happens once, so it does not count
                found = rate()
                assert pilot.running
                return found

        sides = interleaved(with_autopilot, rate, rounds, "records/s, with Autopilot and without:")
        query.stop()
    report.figures["overhead"] = {
        **sides.figures("with Autopilot", "without"),
        "executors": FIRST,
        "batches a side": batches,
    }
    report.median_at_least("records/s on YARN, with Autopilot over without", sides.ratios, 0.97, SOURCE)


def longest(query: StreamingQuery, seconds: float, until: Callable[[], bool] = lambda: True) -> tuple[float, float | None]:
    first, end = newest(query) + 1, time.monotonic() + seconds
    held = None
    while time.monotonic() < end:
        held = time.monotonic() if held is None and until() else held
        time.sleep(0.1)
    ended(query, 1)
    return max(seconds_of(query, first)), held


def carries(plant: AttachedPlant, executor: str) -> bool:
    return [place.executor for place in plant.placing.where().values()].count(executor) >= STATES // GROWN


def one_release(query: StreamingQuery, plant: AttachedPlant, policy: Any, window: float, first: bool) -> dict[str, float]:
    hosts, policy.wanted = plant.hosts, GROWN
    wait_until(lambda: len(hosts.usable) == GROWN and hosts.settled, 180)
    host = hosts.usable[-1]
    executor = hosts.executor(host)
    assert executor is not None
    wait_until(lambda: carries(plant, executor.id) and not plant.placing.targets(), 120)
    ended(query, WARM)
    before = longest(query, window) if first else None
    policy.wanted = FIRST
    began = time.monotonic()
    released, gone = longest(query, window, until=lambda: hosts.state(host) is HostState.RELEASED)
    assert gone, f"{host} was not given back within {window:g} s: {hosts.state(host)}"
    without, _ = before or longest(query, window)
    return {"released": released, "without": without, "s until it was gone": gone - began}


def measure_release(report: Report, quick: bool) -> None:
    rounds, window = (1, 30.0) if quick else (5, 60.0)
    found: list[dict[str, float]] = []
    with on_yarn() as (spark, cloud, root):
        query = start_work(spark, root, LOADED, trigger=f"{EVERY:g} seconds")
        policy = Wanted(FIRST)
        with Autopilot(spark, cloud=cloud, max_hosts=GROWN, period=1.0, policy=policy).watch(query) as pilot:
            plant = attached(pilot)
            ended(query, HOT // 4)
            for number in range(rounds):
                found.append(one_release(query, plant, policy, window, number % 2 == 0))
                share = statistics.median(seconds_of(query, 0)[-30:]) / EVERY
                progress(f"round {number + 1} of {rounds}: {found[-1]}; batches take {share:.0%} of the time")
        query.stop()
    ratios = [each["released"] / each["without"] for each in found]
    report.figures["release"] = {"rounds": found, "ratios": ratios, "window s": window, "batches take of the time": share}
    report.median_at_most("longest batch while an executor is given back, over one without", ratios, 1.15, SOURCE)


PARTS = {"overhead": measure_overhead, "release": measure_release}


if __name__ == "__main__":
    main_of_parts(
        "yarn", __doc__, PARTS, cluster="YARN's own ResourceManager, two NodeManagers of 2 cores, on this machine"
    )
