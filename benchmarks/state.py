"""Moves, first batches, notices and memory of hosts with state. An hour, without `shrink` (three) and `grow`.

`heap` and `rocksdb`: bytes that a move loads, predicted over read. Partitions move to a host without state, and back; what
its executor read is what Hadoop's file system counted there. `log`: the same for moves with long logs, with and without a
snapshot requested first. `observed`: throughput with and without observation of bytes. `first`: state by executor after a
query's first batch. `notice`: the longest batch around the loss of a host. `shrink`, `shrink-heap`: executors killed while
hosts go until state would not fit, in RocksDB with a control group for each host, or in heaps. `grow`: hosts that come
while state in heaps grows without end, 20 minutes.
"""

import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from _common import Report, interleaved, main_of_parts, progress
from pyspark.sql import DataFrame, SparkSession

from elastream.clouds.local.confinement import own_groups
from elastream.control.arbitration import arbitrate
from elastream.control.loop import Loop
from elastream.core.action import MoveTask, ReleaseHost
from elastream.core.decision import Decision, Proposal
from elastream.core.hosts import HostState
from elastream.core.memory import RESERVE, memory_uses
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.wording import counted
from elastream.errors import EnvironmentProblem
from elastream.policies.placements import Untouched
from elastream.recording.recorder import Collector
from elastream.settings import StateStore
from elastream.spark.jvm.state_partitions import StatePartitions
from elastream.spark.placement.placing import MigrationLimits
from elastream.spark.telemetry.host_memory import HostMemory
from elastream.spark.telemetry.state_files import DELTAS, StateSizes
from elastream_papers.thesis.resilience.bed import HOST, Bed, bed
from elastream_papers.thesis.resilience.job import Job


class WithPython(Job):
    """A count behind a Python function, whose workers take memory and read the limit of their container."""

    def source(self, spark: SparkSession) -> DataFrame:
        return super().source(spark).mapInArrow(lambda batches: batches, "timestamp timestamp, value long")


class Endless(Job):
    """A count of keys that never come again."""

    @property
    def filling(self) -> int:
        return 3


HOSTS, MOVES, QUICK_MOVES = 3, 6, 2
JOB = Job(keys=400_000, rows=20_000, pace=4.0)
HOT = Job(keys=800_000, rows=800_000, pace=2.0)  # each batch changes each key
BUSY, WINDOW_S, OBSERVED_BAR = Job(keys=200_000, rows=40_000, pace=0.0, partitions=16), 30.0, 0.99
NOTICE = Job(keys=900_000, rows=60_000, pace=3.0)
FIRST_HOSTS, FIRST_PARTITIONS, ROUNDS = 4, (8, 64), 5
# Batches without a loss to compare with: as many as around a notice.
NOTICES, NOTICE_S, UNDISTURBED = 2, 30.0, 20
FULL, FULL_MB = Job(keys=1_600_000, rows=100_000, pace=2.0, partitions=16), 700.0
FULL_DISK, FULL_DISK_MB, FULL_DISK_LIMIT_MB = (
    WithPython(keys=2_000_000, rows=50_000, pace=0.5, partitions=64),
    700.0,
    1300.0,
)
# A host is full after a quarter of an hour.
GROWING, GROWN_HOSTS, GROW_S = Endless(keys=10**9, rows=6_000, pace=4.0, partitions=24), 4, 1320.0
SHRINKINGS, QUICK_SHRINKINGS, UNASKED = 200, 10, 3
TOLERANCE, BAR, SPREAD_BAR, NOTICE_BAR, HOSTS_BAR, LOG_BAR = 0.25, 0.9, 1.3, 1.2, 1.1, 0.5
# Seconds between the figures that an executor writes.
PERIOD = 1


def counting_reads(folder: Path) -> dict[str, str]:
    """Return the settings by which executors write what their file systems read."""
    sink = "spark.metrics.conf.executor.sink.csv"
    return {
        f"{sink}.class": "org.apache.spark.metrics.sink.CsvSink",
        f"{sink}.directory": str(folder),
        f"{sink}.period": str(PERIOD),
        f"{sink}.unit": "seconds",
    }


def read_by(folder: Path, executor: str) -> float:
    """Return the MB that `executor` has read by now."""
    time.sleep(2 * PERIOD)
    (file,) = folder.glob(f"*.{executor}.executor.filesystem.file.read_bytes.csv")
    return float(file.read_text().split()[-1].split(",")[1]) / 1e6


def moved(made: Bed, folder: Path, number: int, empty: str) -> dict[str, Any]:
    """Move a partition to the host without state, and back; return what the first move loaded."""
    placing = made.plant.placing
    task = sorted(placing.tasks)[number % len(placing.tasks)]
    home = made.plant.reconciler.locations()[task]
    executor = next(each for each, host in made.plant.hosts.host_of().items() if host == empty)
    before, so_far = read_by(folder, executor), len(placing.landed)
    outcome = made.plant.apply(MoveTask(task, empty))
    made.until(lambda seen: len(placing.landed) > so_far)
    move = placing.landed[-1]
    predicted, read = move.megabytes, read_by(folder, executor) - before
    made.plant.apply(MoveTask(task, home))
    made.until(lambda seen: len(placing.landed) > so_far + 1)
    made.more(3)  # the old location's store is closed
    return {
        "predicted": predicted,
        "read": read,
        "ratio": predicted / read if read else math.nan,
        "reports": move.flips,
        "said": outcome.reason,
    }


def measured(store: StateStore, moves: int) -> list[dict[str, Any]]:
    found = []
    with tempfile.TemporaryDirectory(prefix="moves-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with bed(JOB, HOSTS, state_store=store, settings=counting_reads(folder), steady=3) as made:
            *others, empty = made.plant.hosts.usable
            for number, task in enumerate(sorted(made.plant.placing.tasks)):
                made.plant.apply(MoveTask(task, others[number % len(others)]))
            made.settled()
            for number in range(moves):
                found.append(moved(made, folder, number, empty))
                progress(f"{store}: {found[-1]}")
    return found


def moves(store: StateStore, report: Report, quick: bool) -> None:
    found = measured(store, QUICK_MOVES if quick else MOVES)
    near = [abs(each["ratio"] - 1) <= TOLERANCE for each in found]
    report.figures[f"moves, {store}"] = found
    report.at_least(f"{store}: share of {len(near)} moves predicted within {TOLERANCE:.0%}", statistics.mean(near), BAR)


def with_log(made: Bed, folder: Path, *, asks: bool) -> tuple[float, float]:
    """Move the partition with the longest log; return the MB that were read, and the longest batch over the median."""
    placing, least = made.plant.placing, 2 * DELTAS
    made.until(lambda seen: max(placing.move_load(each).logs for each in placing.tasks) >= least)
    task = max(placing.tasks, key=lambda each: placing.move_load(each).logs)
    there = made.plant.reconciler.locations()[task]
    host = next(each for each in made.plant.hosts.usable if each != there)
    executor = next(each for each, at in made.plant.hosts.host_of().items() if at == host)
    before, so_far, since, usual = read_by(folder, executor), len(placing.landed), time.time(), made.normal()
    with nullcontext() if asks else patch.object(StatePartitions, "snapshot", return_value=False):
        made.plant.apply(MoveTask(task, host))
        made.until(lambda seen: len(placing.landed) > so_far)
    longest = max(end - start for start, end in made.batches() if end > since)
    progress(
        f"{asks}: {placing.landed[-1].megabytes:.3g} MB predicted, longest batch {longest / usual:.3g} of {usual:.3g} s"
    )
    return read_by(folder, executor) - before, longest / usual


def logs(store: StateStore, report: Report, quick: bool) -> None:
    """Compare moves of partitions whose changes outweigh their snapshot, with and without a new snapshot."""
    longest: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="logs-", ignore_cleanup_errors=True) as name:
        own = {**counting_reads(Path(name)), "spark.sql.streaming.stateStore.maintenanceInterval": "60s"}  # Spark's own
        with bed(HOT, 2, state_store=store, settings=own, steady=1) as made:
            made.plant.reconciler._usual_limits = MigrationLimits(lazy=False)  # all is read once

            def read(asks: bool) -> float:
                megabytes, batch = with_log(made, Path(name), asks=asks)
                longest[asks].append(batch)
                return megabytes

            sides = interleaved(partial(read, True), partial(read, False), 1 if quick else ROUNDS, store)
    report.figures[f"MB that a move reads, {store}"] = sides.figures("with a snapshot asked for", "without")
    report.figures[f"longest batch over median, {store}: with; without"] = list(longest.values())
    what = "moves with long logs, with a snapshot asked for over without"
    report.at_most(f"{store}: MB read by {what}", sides.ratio, LOG_BAR)
    slower = [a / b for a, b in zip(longest[True], longest[False], strict=True)]
    report.median_at_most(f"{store}: longest batch around {what}", slower, 1.0)


def observed(report: Report, quick: bool) -> None:
    """Compare the throughput of one query with and without observation of its bytes.

    The time within the observing calls, over that of all cores, bounds their cost without noise.
    """
    within = list[float]()

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                within.append(time.perf_counter() - began)

        return answer

    with bed(BUSY, 2, steady=1) as made:

        def rate(*, observes: bool) -> float:
            with ExitStack() as stack:
                for kind, name, nothing in ((StateSizes, "look", None), (HostMemory, "columns", {})):
                    call = timed(getattr(kind, name)) if observes else lambda *_, answer=nothing: answer
                    stack.enter_context(patch.object(kind, name, call))
                return made.rate(WINDOW_S)

        sides = interleaved(partial(rate, observes=True), partial(rate, observes=False), 2 if quick else 2 * ROUNDS)
    report.figures["records/s"] = sides.figures("bytes observed", "not observed")
    cores = len(os.sched_getaffinity(0))
    share = math.fsum(within) / (len(sides.ratios) * WINDOW_S * cores)
    report.at_most(f"time within observing calls over that of {counted(cores, 'core')}", share, 1 - OBSERVED_BAR)
    report.median_at_least("records/s while bytes are observed, over without", sides.ratios, OBSERVED_BAR)


def first(report: Report, quick: bool) -> None:
    """Measure the state by executor after the first batch of a new query."""
    ratios: dict[int, list[float]] = {count: [] for count in FIRST_PARTITIONS}
    with bed(JOB, FIRST_HOSTS, host=replace(HOST, cores=0.5), steady=1) as made:
        for count in FIRST_PARTITIONS * (1 if quick else ROUNDS):
            made.start(replace(JOB, partitions=count))
            seen = made.until(lambda seen: made.newest() >= 0 and len(seen.tasks) == made.job.partitions)
            sizes = seen.tasks.column(Metric.STATE_SIZE)
            by_host = np.bincount(seen.tasks.host, sizes, len(seen.hosts))
            ratios[count].append(float(by_host.max() / by_host.sum() * FIRST_HOSTS))
            progress(f"{count} partitions, MB by executor after the first batch: {by_host.round(3).tolist()}")
    report.figures["first batch: largest over mean, by partitions"] = ratios
    for count, each in ratios.items():
        what = f"first batch of {count} partitions on {FIRST_HOSTS} executors: largest over mean bytes"
        report.at_most(f"{what}, worst of {len(each)}", max(each), SPREAD_BAR)


def shrunk(made: Bed, *, asks: bool = True) -> tuple[int, int, str]:
    """Release hosts until arbitration refuses, if it is asked, or one is left.

    Returns:
        Hosts left, the fewest that hold the state, and the refusal.
    """
    plant = made.plant
    while len(plant.hosts.usable) > 1:
        seen = plant.observe()
        release = ReleaseHost(seen.usable[-1])
        (proposal,) = arbitrate([Proposal(release, "benchmark")], seen)
        if asks and proposal.refused:
            return len(seen.usable), fewest(seen), proposal.refused
        made.release(release.host)
        made.more(2)
    return 1, 1, ""


def fewest(seen: Observation) -> int:
    """Return the fewest hosts whose memory, less a reserve, holds the state and each host's other use."""
    (use,) = memory_uses(seen)
    own = use.used - np.bincount(seen.tasks.host, use.tasks, len(seen.hosts))
    room = float(np.nanmean(use.up_to(RESERVE) - own))
    return min(len(seen.hosts), math.ceil(use.total / room)) if room > 0 else len(seen.hosts)  # the present ones


def unasked(made: Bed, groups: "MemoryGroups") -> tuple[list[bool], int]:
    """Release all hosts but one without arbitration; return if batches continued each time, and the killed processes."""
    before, went_on = groups.killed, []
    for _ in range(UNASKED):
        try:
            shrunk(made, asks=False)
            made.more(10)
            went_on.append(True)
        except EnvironmentProblem as problem:
            progress(f"{problem}")
            went_on.append(False)
        made.whole(FIRST_HOSTS)
        made.restart()
        made.more(5)
        made.spread()
    return went_on, groups.killed - before


class MemoryGroups:
    """A control group of at most `megabytes` for all processes of each local host. Version 1, as root."""

    def __init__(self, megabytes: float) -> None:
        self._memory, self._cpu = own_groups("memory")[0], own_groups()[-1]
        self._bytes, self._groups, self._kills = int(megabytes * 1e6), dict[str, Path](), dict[str, int]()
        self._ended, self._thread = threading.Event(), threading.Thread(target=self._join, daemon=True)

    def __enter__(self) -> "MemoryGroups":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _join(self) -> None:
        while not self._ended.wait(0.1):
            hosts = {each.name: each for each in self._cpu.glob("elastream-*-h*")}
            for name, host in hosts.items():
                with suppress(OSError):  # it has ended
                    self._add(name, members(host))
            for name in self._groups.keys() - hosts.keys():
                self._leave(name)
        for name in list(self._groups):
            self._leave(name)

    def _add(self, name: str, processes: set[str]) -> None:
        if name not in self._groups:
            group = self._memory / name
            group.mkdir()
            self._groups[name] = group
            (group / "memory.limit_in_bytes").write_text(f"{self._bytes}")
        for each in processes - members(self._groups[name]):
            with suppress(OSError):  # it has ended
                (self._groups[name] / "cgroup.procs").write_text(each)

    @property
    def killed(self) -> int:
        """Return the processes that the kernel has killed for lack of memory."""
        for name, group in list(self._groups.items()):
            with suppress(OSError):  # it has ended
                self._kills[name] = int((group / "memory.oom_control").read_text().split()[-1])
        return sum(self._kills.values())

    def _leave(self, name: str) -> None:
        self._kills[name] = int((self._groups[name] / "memory.oom_control").read_text().split()[-1])
        with suppress(OSError):  # a process is still alive
            self._groups[name].rmdir()
            del self._groups[name]


def members(group: Path) -> set[str]:
    return set((group / "cgroup.procs").read_text().split())


def shrink(store: StateStore, report: Report, quick: bool) -> None:
    """Give hosts back again and again while their memory is too small for the state to fit on one."""
    left, least, kills = [], [], 0
    job, heap, limit = (FULL, FULL_MB, None) if store == "memory" else (FULL_DISK, FULL_DISK_MB, FULL_DISK_LIMIT_MB)
    host = replace(HOST, memory=heap)
    with (
        MemoryGroups(limit) if limit else nullcontext() as groups,
        bed(job, FIRST_HOSTS, host=host, steady=1, state_store=store, min_hosts=1) as made,
    ):
        made.plant.reconciler._usual_limits = MigrationLimits(per_host=None)  # no latency to keep
        for number in range(QUICK_SHRINKINGS if quick else SHRINKINGS):
            executors = set(made.plant.hosts.host_of())
            hosts, needed, refused = shrunk(made)
            gone = executors - set(made.plant.hosts.host_of())
            lost = sum(each.state is HostState.LOST for each in made.plant.hosts.leases.values())
            kills = max(kills, lost, len(gone) - (FIRST_HOSTS - hosts), groups.killed if groups else 0)
            left.append(hosts)
            least.append(needed)
            progress(f"{number + 1}: {hosts} hosts left, {least[-1]} at least; {kills} killed; {refused}")
            made.whole(FIRST_HOSTS)
            made.spread()
            made.more(5)  # memory of forked workers is read every few seconds
        if groups:
            # Spark's dynamic allocation releases idle executors, whatever state they hold.
            report.figures["all hosts but one given back, state or not: batches went on; killed"] = unasked(made, groups)
    report.figures[f"hosts left; hosts that hold the state, {store}"] = [left, least]
    report.at_most(f"{store}: executors killed in {len(left)} shrinkings", kills, 0)
    report.at_most(f"{store}: hosts left over the fewest that hold the state, mean", sum(left) / sum(least), HOSTS_BAR)


class Filled(Collector):
    """Hosts, MB of state, and shares of the fullest heap and of collections by minute; actions for memory."""

    def __init__(self, made: Bed) -> None:
        super().__init__()
        self._made, self.executors, self.hosts = made, set[str](), set[str]()
        self.minutes: dict[int, tuple[int, float, float, float]] = {}
        self.actions = list[str]()

    def observed(self, observation: Observation) -> None:
        self.executors.update(self._made.plant.hosts.host_of())
        self.hosts.update(observation.leases)
        for use in memory_uses(observation):
            fullest = float(np.nanmax(use.used / use.limit, initial=0.0))
            collecting = float(np.nanmax(observation.hosts.column(Metric.GC_TIME), initial=0.0))
            now = (len(observation.usable), round(use.total), round(fullest, 3), round(collecting, 2))
            if self.minutes.setdefault(int(observation.time / 60), now) is now:
                progress(f"{observation.time:.0f} s: hosts, MB of state, fullest heap, time in collections: {now}")

    def decided(self, decision: Decision) -> None:
        for each in decision.proposals:
            if each.by == "memory":
                refused = f" (refused: {each.refused})" if each.refused else ""
                self.actions.append(f"{decision.time:.0f} s: {each.action.describe()}{refused}")
                progress(self.actions[-1])


def grow(report: Report, quick: bool) -> None:
    """Let state grow until it fills more hosts than there are."""
    with bed(GROWING, 1, host=replace(HOST, memory=FULL_MB), steady=1, min_hosts=1, max_hosts=GROWN_HOSTS) as made:
        made.plant.reconciler._usual_limits = MigrationLimits(per_host=None)  # no latency to keep
        filled = Filled(made)
        Loop(made.plant, Untouched(), period=5.0, observers=[filled], limit=GROW_S, to_the_limit=True).run()
    report.figures["by minute: hosts, MB of state, fullest heap, time in collections; for memory"] = [
        filled.minutes,
        filled.actions,
    ]
    # A host starts another executor in place of one that ran out of memory.
    report.at_most("executors lost while state grows", len(filled.executors) - len(filled.hosts), 0)
    report.at_least("hosts leased for state", len(filled.hosts) - 1, 1)


def kill_host(made: Bed, file: Path | None, host: str) -> tuple[float, float]:
    """Kill `host`, NOTICE_S after a notice in `file`; return the longest batch over the median, and that without a loss."""
    before = [end - start for start, end in made.batches()[-UNDISTURBED:]]
    median, began = statistics.median(before), time.time()
    state = float(np.nansum(made.plant.observe().operators.column(Metric.STATE_HEAP)))
    if file is not None:
        file.write_text(datetime.fromtimestamp(began + NOTICE_S, UTC).isoformat())
        made.until(lambda seen: time.time() >= began + NOTICE_S - 1)
        time.sleep(max(0.0, began + NOTICE_S - time.time()))
    if host in made.plant.hosts.active:
        made.kill(host)
    made.more(5)
    longest = max(end - start for start, end in made.batches() if end > began)
    kind = "notice" if file else "none"
    progress(f"{kind}: {state:.0f} MB of state, median {median:.2f} s, longest {longest:.2f} s; before {max(before):.2f} s")
    return longest / median, max(before) / median


def notice(report: Report, quick: bool) -> None:
    """Measure the longest batch around the loss of a host, with a notice and without."""
    longest: dict[bool, list[float]] = {True: [], False: []}
    undisturbed = []
    with tempfile.TemporaryDirectory(prefix="notices-") as name, bed(NOTICE, 3, notices=f"{name}/{{host}}") as made:
        for number in range(2 if quick else 2 * NOTICES):
            made.more(UNDISTURBED)
            host, tells = made.plant.hosts.usable[-1], number % 2 == 0
            ratio, before = kill_host(made, Path(name, host) if tells else None, host)
            longest[tells].append(ratio)
            undisturbed.append(before)
            made.whole(3)
            made.spread()
    report.figures["longest batch over median, with notice; without; undisturbed"] = [*longest.values(), undisturbed]
    report.median_at_most("longest batch over median, host killed after a notice of 30 s", longest[True], NOTICE_BAR)


PARTS: Mapping[str, Callable[[Report, bool], None]] = {
    "heap": partial(moves, "memory"),
    "rocksdb": partial(moves, "disk"),
    "log": partial(logs, "disk"),
    "log-heap": partial(logs, "memory"),
    "observed": observed,
    "first": first,
    "notice": notice,
    "shrink": partial(shrink, "disk"),
    "shrink-heap": partial(shrink, "memory"),
    "grow": grow,
}

if __name__ == "__main__":
    main_of_parts("state", __doc__, PARTS)
