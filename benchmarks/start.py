"""Time of a local host from its lease to its first task, and its cost for working hosts. 16 minutes, --quick 5.

Each way of starting hosts has a process with a cluster and a session of its own; in every round each way starts one host,
in random order. A start ends when its executor has done a task that crosses into Python. `before`: JVMs from class files,
Python workers without a fork server, a tenth of the CPU weight of hosts at work, and one host at a time. Then a word count
runs on one host while three start at once.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from _cluster import HOST, Bench, word_count
from _common import Report, Sides, in_random_order, main, progress, with_median

from elastream import Local
from elastream.clouds.local import archive, hosts, java
from elastream.clouds.local.confinement import TAG
from elastream.clouds.local.hosts import LocalHosts
from elastream.clouds.provider import RunState
from elastream.core.action import LeaseHost, ReleaseHost
from elastream.core.hosts import HostState
from elastream.loads import constant
from elastream.spark.hosts.warmup import _pinned, warm_up
from elastream.spark.jvm import session
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.executors import Executors

TIME_BAR, CPU_BAR, BATCH_BAR = 0.5, 0.75, 1.5
WAYS: Mapping[str, frozenset[str]] = {
    "now": frozenset({"first tier", "archive", "daemon", "forks", "weights"}),
    "before": frozenset({"first tier"}),
    "without the archive": frozenset({"first tier", "daemon", "forks", "weights"}),
    "without the daemon": frozenset({"first tier", "archive", "weights"}),
    "a daemon of its own": frozenset({"first tier", "archive", "daemon", "weights"}),
    "all compiler tiers": frozenset({"archive", "daemon", "forks", "weights"}),
}
"""What each way of starting a host has."""
LOAD = 1000  # lines/s that one host of half a core can carry
AT_ONCE = 3
POLL = 0.02
LIMIT = 180.0


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


class Starter:
    def __init__(self, has: frozenset[str], folder: Path) -> None:
        if "first tier" not in has:
            java.SMALL_JVM = tuple(each for each in java.SMALL_JVM if "Tiered" not in each)  # type: ignore[assignment]
            session.SMALL_JVM = tuple(each for each in session.SMALL_JVM if "Tiered" not in each)  # type: ignore[assignment]
        if "archive" not in has:
            archive.archive_for = lambda java: None
        if "weights" not in has:
            hosts.FIRST_START_WEIGHT = hosts.NEXT_START_WEIGHT = 0.1
        self.provider = Local(HOST, max_hosts=8).open(folder)
        assert isinstance(self.provider, LocalHosts)
        reach = self.provider.terms.endpoint
        assert reach is not None
        settings = session.settings_for(
            driver_address=reach.driver_address,
            executor_memory=reach.executor_memory,
            executor_cores=reach.executor_cores,
            state_partitions=4,
            host_cores=[0.5],
            java_options=reach.java_options,
        )
        if "daemon" not in has:
            settings = {**settings, "spark.python.daemon.module": "pyspark.daemon"}
        if "forks" not in has:
            settings = {**settings, f"spark.executorEnv.{TAG}": ""}  # so that it does not find its cluster's fork server
        self.spark = session.open_session(reach.master, "start", folder, {**settings, **reach.settings}, reach.secret)
        self.driver, self.folder, self.number = DriverSide(self.spark), folder, 0
        self.executors = Executors(self.driver)

    def start(self, count: int = 1, in_turn: bool = False) -> dict[str, float]:
        hosts.STARTS_PER_CORE = 0.5 if in_turn else 2  # type: ignore[assignment]
        names = [f"h{self.number + number}" for number in range(count)]
        self.number += count
        began, parts, ready = time.monotonic(), dict[str, float](), set[str]()
        self.provider.lease(dict.fromkeys(names, HOST))
        while len(ready) < count:
            listed, found = self.provider.hosts(), self.executors.by_address()
            for name in (each for each in names if each not in ready and listed[each].address in found):
                parts["executor registered"] = time.monotonic() - began
                _pinned(self.spark, found[listed[name].address]).mapInArrow(identity, "word string").collect()
                ready.add(name)
                parts.setdefault("first task of the first host", time.monotonic() - began)
                parts["first task"] = time.monotonic() - began
                self.provider.report(RunState(ready=frozenset(ready)))
            if time.monotonic() - began > LIMIT:
                raise TimeoutError(f"{names}: not within {LIMIT:g} s")
            time.sleep(POLL)
        used = self.provider.measure()
        parts["CPU"] = sum(used[name].cpu_seconds or 0.0 for name in names)
        if count == 1:
            warm_up(self.spark, self.driver, found[listed[names[0]].address], self.folder, workers=2)
            parts["warm"] = time.monotonic() - began
            parts["CPU until warm"] = self.provider.measure()[names[0]].cpu_seconds or 0.0
        self.provider.release(names)
        while set(self.provider.hosts()) & set(names) or set(found) & set(self.executors.by_address()):
            time.sleep(POLL)
        return parts

    def close(self) -> None:
        self.provider.close()
        self.spark.stop()


def serve(way: str) -> None:
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        starter = Starter(WAYS[way], Path(folder))
        try:
            for line in sys.stdin:
                print("FOUND " + json.dumps(starter.start(**json.loads(line))), flush=True)
        finally:
            starter.close()


class Server:
    def __init__(self, way: str) -> None:
        command = [sys.executable, __file__, "--serve", way]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, **wanted: Any) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("FOUND "):
                return dict(json.loads(line.removeprefix("FOUND ")))
        raise RuntimeError(f"a way of starting ended with status {self.process.wait()}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def ensure_archive() -> float:
    began = time.monotonic()
    script = Path(__file__).parent.parent / "scripts" / "archive_classes.py"
    subprocess.run([sys.executable, script], check=True)
    return time.monotonic() - began


def starts(rounds: int, ways: Sequence[str]) -> dict[str, list[dict[str, float]]]:
    with contextlib.ExitStack() as stack:
        served = {way: Server(way) for way in ways}
        for each in served.values():
            stack.callback(each.close)
        for each in served.values():
            each.start()  # a session's first job is slower than all others
        alone = in_random_order(ways, rounds, lambda way: served[way].start())
        together = in_random_order(
            ["three at once", "three in turn"],
            max(1, rounds // 3),
            lambda name: served["now"].start(count=AT_ONCE, in_turn=name == "three in turn"),
        )
    return alone | together


@dataclass(frozen=True)
class Window:
    """Longest batches while three hosts start at once (all, until the first takes tasks, after that), and without."""

    during: float
    starting: float
    joining: float
    without: float
    took: float


def longest_batches(windows: int) -> list[Window]:
    measured: list[Window] = []
    with word_count(constant(LOAD, lasts=240.0 * windows), hosts=1, max_hosts=1 + AT_ONCE) as bench:
        bench.steady(25)
        for number in range(windows):
            measured.append(one_window(bench, [f"n{number}{each}" for each in range(AT_ONCE)]))
            progress(f"three at once, {number + 1} of {windows}: {measured[-1]}")
    return measured


def one_window(bench: Bench, names: Sequence[str]) -> Window:
    plant, began = bench.plant, time.time()
    for name in names:
        plant.apply(LeaseHost(name, HOST.name, HOST.region))
    bench.observe_until(lambda: bool(set(names) & set(plant.hosts.usable)), LIMIT, "a host up")
    first = time.time()
    bench.observe_until(lambda: set(names) <= set(plant.hosts.usable), LIMIT, "three hosts up")
    ended = time.time()
    spans = ((began, ended), (began, first), (first, ended))
    during, starting, joining = (max(bench.batches(*span), default=0.0) for span in spans)
    for name in names:
        plant.apply(ReleaseHost(name))
    leases = plant.hosts.leases
    bench.observe_until(lambda: all(leases[name].state is HostState.RELEASED for name in names), LIMIT, "three hosts gone")
    bench.steady(5)
    again = time.time()
    bench.observe_until(lambda: time.time() > again + ended - began, LIMIT, "a window")
    return Window(during, starting, joining, max(bench.batches(again, time.time())), ended - began)


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    report.environment["seconds to make the archive"] = ensure_archive()
    report.environment["hosts"] = f"{HOST.cores:g} core each; {LOAD} lines/s on one of them while three start"
    measure_starts(report, arguments)
    windows = longest_batches(1 if arguments.quick else 5)
    sides = Sides(tuple(each.during for each in windows), tuple(each.without for each in windows))
    report.figures |= {
        "longest batch": sides.figures("while three start", "without"),
        "longest batch until the first takes tasks": [each.starting for each in windows],
        "longest batch from then on": [each.joining for each in windows],
        "seconds until three took tasks": [each.took for each in windows],
    }
    report.median_at_most("longest batch while three hosts start, over without, median", sides.ratios, BATCH_BAR)
    return report


def measure_starts(report: Report, arguments: argparse.Namespace) -> None:
    rounds = 3 if arguments.quick else 6
    found = starts(rounds, list(WAYS)[: 2 if arguments.quick else None])
    for what, bar in (("first task", TIME_BAR), ("CPU", CPU_BAR)):
        sides = Sides(*(tuple(each[what] for each in found[way]) for way in ("now", "before")))
        report.median_at_most(f"from lease to the first task, {what} over before, median", sides.ratios, bar)
        report.figures[f"{what}, now over before"] = sides.figures("now", "before")
    for way, each in found.items():
        parts = {part: [round(run[part], 3) for run in each] for part in each[0]}
        report.figures[way] = {part: with_median(runs) for part, runs in parts.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main("start", __doc__, measure)
