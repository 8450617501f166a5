"""Thirty days by a clock that jumps, and 10,000 batches on Spark: disk, files, memory and cost of a batch by tenths.

On the simulated clock, everything that a run writes and remembers for months is real: loop, journals, leases, plan,
recording, durable edge, change log. Observations, actions and the clock are simulated. On Spark, on one warm cluster, all
words are known before the first tenth, and each planning round moves something. Details are kept for a day, and for a
minute, so the last tenth must cost no more than the first. Live memory of a JVM is what a full collection leaves. An hour
on two cores; --quick three minutes.
"""

import os
import re
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from _cluster import word_count_flow, wrong_counts
from _common import EXECUTOR, Report, cpu_of_all, files_below, main_of_parts, processes_below, progress

from elastream import Dataflow, HostType, Local, run
from elastream.clouds.provider import Provider
from elastream.control.journal import Journal
from elastream.control.loop import Loop
from elastream.core.action import Action, LeaseHost, MoveTask, Outcome, ReleaseHost, Status, Switch
from elastream.core.frames import Frame, TaskFrame
from elastream.core.hosts import Billing, HostState, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, Context, MicroBatch, Observation
from elastream.core.plant import Plan, Policy
from elastream.core.task_id import TaskId
from elastream.dataflow.endpoints import collect, text_files
from elastream.dataflow.stages import lay_out
from elastream.loads import constant
from elastream.pool.arbiter import ArbiterNode, Entitlement
from elastream.pool.state_log import StateLog
from elastream.recording.directory import RunDirectory
from elastream.recording.lease_log import LeaseLog
from elastream.recording.observer import Observer
from elastream.recording.parts import DAY, PART, Keep
from elastream.recording.recorder import Recorder, Recording
from elastream.report.summary import Summary, summarise
from elastream.report.tally import retention_of
from elastream.sharing.messages import Claim, Offer
from elastream.sharing.rules import ArbiterRules
from elastream.spark.dataflow import change_log, edges
from elastream.spark.dataflow.readers import Steering
from elastream.spark.dataflow.sinks import begin_results, latest
from elastream.spark.dataflow.sources import CORPUS
from elastream.spark.hosts.hosts import HostLedger, HostRecord
from elastream.spark.placement.allocation import AllocationStore
from elastream.spark.worker.composition import CompositionRequest, write_request

EPOCH = 1_700_000_000.0
DAYS = 30.0
KEYS, CHANGED = 2_000, 40  # keys of the result, and keys that a batch changes: a small counting service
PARTITIONS = 16
LEASE_EVERY = 5  # batches from one lease to the next: at 30 days and 10,000 batches one in 22 minutes, 2,000 in all
SMALL = HostType("small", cores=0.5, memory=1500, price=0.02, billing=Billing(60), start=8, stop=3)
SCHEMA = pa.schema([("word", pa.string()), ("count", pa.int64())])


def dataflow() -> Context:
    flow = Dataflow("soak")
    words = flow.source(text_files("books/"), name="lines").flat_map(str.split, returns="word string", name="words")
    words.key_by("word").count(name="count").sink(collect("counts"), name="out")
    able = frozenset({"MoveTask", "LeaseHost", "ReleaseHost"})
    return Context(lay_out(flow.graph), {SMALL.name: SMALL}, 2.0, max_hosts=6, capabilities=able)


class Jumping:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep_until(self, time: float) -> None:
        self.time = max(self.time, time)

    def wall(self) -> float:
        return EPOCH + self.time


class Mayfly(Policy):
    """A policy that moves a task in each round, and now and then replaces the oldest host."""

    name = "mayfly"

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        number = 1 + (memory or 0)
        hosts = sorted(observation.leases, key=lambda name: int(name[1:]))
        stays = hosts[1 + number % (len(hosts) - 1)]  # never the oldest, which may be released in the same round
        actions: list[Action] = [MoveTask(TaskId("count", number % PARTITIONS), stays, why="so that something moves")]
        if number % LEASE_EVERY == 0:
            actions.append(LeaseHost(f"h{observation.next_host}", SMALL.name, why="a change"))
            if len(hosts) > 3:
                actions.append(ReleaseHost(hosts[0], why="a change"))
        return Plan(tuple(actions), memory=number)


class SoakPlant:
    """Carries out a plan at once, and writes the files of a plant on Spark. batch: simulates one batch."""

    def __init__(self, directory: RunDirectory, clock: Jumping, batch: Callable[[], int]) -> None:
        self.clock, self.context, self._batch = clock, dataflow(), batch
        nobody = cast(Provider, SimpleNamespace(owed=lambda: None))
        self.hosts = HostLedger(nobody, clock.now, log := LeaseLog(directory.leases))
        self._log, self.plan = log, AllocationStore(directory.allocation)
        self.finished, self.moves = False, 0
        for number in range(1, 4):
            self._lease(f"h{number}")

    @property
    def ledger(self) -> Sequence[Lease]:
        return tuple(self.hosts.leases.values())

    def incidents(self) -> Sequence[str]:
        return ()

    def observe(self) -> Observation:
        now, rows = self.clock.now(), float(self._batch())
        leases = self.hosts.active
        names, hosts = self.context.graph.order, tuple(leases)
        where = [hosts.index(host) if (host := self.plan.latest.hosts.get(TaskId("count", n))) in hosts else 0
                 for n in range(PARTITIONS)]  # fmt: skip
        wobble = 1 + (now / 7e3) % 1
        return Observation(
            now,
            self.context,
            Frame(names, {m: [wobble * (n + 1.0) for n in range(len(names))] for m in
                          (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE, Metric.BUSY_CORES, Metric.SERVICE_TIME)}),
            application=Frame(("soak",), {
                Metric.THROUGHPUT: [rows], Metric.ARRIVAL_RATE: [rows], Metric.LATENCY_P50: [0.3 * wobble],
                Metric.LATENCY_P99: [1.5 * wobble], Metric.COMPLIANCE: [0.9], Metric.COST: [self.hosts.cost(now)],
            }),
            hosts=Frame(hosts, {Metric.CPU: [0.5] * len(hosts), Metric.TASKS: [4.0] * len(hosts)}),
            tasks=TaskFrame([names.index("count")] * PARTITIONS, range(PARTITIONS), where, names),
            leases=leases,
            composition=Composition.default(self.context.graph),
            next_host=self.hosts.next_number,
            batches=(MicroBatch("out", now, 0.5, rows),),
        )  # fmt: skip

    def apply(self, action: Action) -> Outcome:
        match action:
            case MoveTask(task, host):
                self.plan.publish({task: host}, at=self.clock.now(), why=action.why)
                self.moves += 1
            case LeaseHost(host):
                self._lease(host)
            case ReleaseHost(host):
                with self.hosts._lock:
                    for state in (HostState.RELEASING, HostState.RELEASED):
                        self.hosts._to(host, state)
                    self.hosts._forget_ended()
        return Outcome(action, Status.DONE)

    def switch(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        return tuple(Outcome(each, Status.REFUSED, "nothing can be switched") for each in switches)

    def close(self) -> None:
        self._log.close()
        self.plan.close()

    def facts(self) -> dict[str, float | str]:
        return {"moves": self.moves, **self.hosts.past.facts}

    def _lease(self, host: str) -> None:
        now, book = self.clock.now(), self.hosts
        self._log.requested(host, SMALL, now)
        with book._lock:
            book._enter({host: Lease(host, SMALL, now)})
            book._records[host] = HostRecord(book.provider, milestones={"lease": now})
            for state in (HostState.STARTING, HostState.RUNNING):
                book._to(host, state)


class Edge:
    """A durable edge: each batch is written as its query does, then planned, read and committed by its reader."""

    def __init__(self, directory: RunDirectory, clock: Jumping) -> None:
        self.records, self._clock, self._written = directory.edge("words", "count"), clock, 0
        self.records.mkdir(parents=True)
        write_request(directory.composition_request, CompositionRequest())
        steering = Steering("words-count", directory.composition_request, 2)
        self._reader = edges.EdgeReader(steering, self.records, 1, 1e6, SCHEMA, None)
        self._at = self._reader.initialOffset()
        self.read = 0

    def batch(self, table: pa.Table) -> None:
        folder = self.records / f"batch={self._written}"
        temporary = self.records / f".batch={self._written}"
        temporary.mkdir()
        pq.write_table(table, temporary / "part-00000.parquet")
        os.utime(str(temporary), (self._clock.wall(), self._clock.wall()))
        os.replace(str(temporary), str(folder))
        self._written += 1
        end = self._reader.latestOffset(self._at)
        for part in self._reader.partitions(self._at, end):
            self.read += sum(rows.num_rows for rows in self._reader.read(part))
        self._reader.commit(end)
        self._at = end


class Changes:
    def __init__(self, path: Path, clock: Jumping) -> None:
        self.path, self._clock, self._number = path, clock, 0
        self.counts: dict[str, int] = {}
        begin_results(path, ["word"])

    def batch(self) -> pa.Table:
        first = self._number * 17
        words = [f"word-{(first + step) % KEYS}" for step in range(CHANGED)]
        self.counts |= {word: self.counts.get(word, 0) + 1 for word in words}
        table = pa.table([words, [self.counts[word] for word in words]], SCHEMA)
        change_log.write_changes(cast(Any, SimpleNamespace(toArrow=lambda: table)), self.path, self._number, ["word"], DAY)
        os.utime(self.path / f"batch={self._number}", (self._clock.wall(), self._clock.wall()))
        self._number += 1
        return table


class Manager:
    """The arbiter of a pool, of which one application claims and gives back machines."""

    def __init__(self, path: Path, clock: Jumping) -> None:
        offer = Offer("pool", (SMALL,), 4)
        log = StateLog(path, "arbiter 'pool'")
        machines = {f"m{number}": SMALL.name for number in range(4)}
        self._node = ArbiterNode(offer, ArbiterRules(), log, clock.wall, machines=machines)
        self._key = self._node.join("soak", Entitlement())
        self._number, self._seen = 0, 0
        self._hosts: tuple[Any, ...] = ()

    def round(self) -> None:
        self._number += 1
        wants = self._number % 2
        claim = Claim("soak", self._number, self._seen, tuple(self._hosts) if wants else (), asks=(SMALL.name,) * wants)
        try:
            view = self._node.claim(claim, self._key)
        except Exception:  # the jump of the clock exceeds the allowed silence of a member
            self._key, self._seen, self._hosts = self._node.join("soak", Entitlement()), 0, ()
            return
        self._seen, self._hosts = view.term, tuple(view.hosts)


@dataclass(frozen=True)
class TenthOfRun:
    """A tenth of a run. cost: CPU seconds per batch. files, megabytes: most on disk; memory: megabytes at its end."""

    cost: float
    files: int
    megabytes: float
    memory: float


@dataclass(frozen=True)
class SoakResult:
    """Result of months: tenths, wrong rows of the result, moves of state partitions, and the summary of all of it."""

    tenths: tuple[TenthOfRun, ...]
    wrong: int
    read: int
    written: int
    moves: int
    summary: Summary
    ended_seconds: float


def soak(folder: Path, batches: int, report_progress: Callable[[str], None] = lambda text: None) -> SoakResult:
    step, clock = DAYS * DAY / batches, Jumping()
    directory = RunDirectory.create(folder, "soak")
    now = SimpleNamespace(time=clock.wall)
    with patch.object(change_log, "time", now), patch.object(edges, "time", now):
        changes, edge = Changes(Path(str(directory.results("out"))), clock), Edge(directory, clock)
        manager = Manager(directory.root / "pool.journal", clock)
        tenths: list[TenthOfRun] = []
        process, each, count = psutil.Process(), max(1, batches // 10), 0
        began, most = time.process_time(), (0, 0.0)

        def batch() -> int:
            nonlocal count, began, most
            edge.batch(changes.batch())
            manager.round()
            count += 1
            if count % max(1, each // 10) == 0:
                paused = time.process_time()
                most = max(most[0], (found := files_below(directory.root))[0]), max(most[1], found[1])
                began += time.process_time() - paused
            if count % each == 0 and len(tenths) < 10:
                cost = (time.process_time() - began) / each
                tenths.append(TenthOfRun(cost, *most, process.memory_info().rss / 1e6))
                report_progress(f"tenth {len(tenths)}: {1e3 * cost:.1f} ms a batch, {most[0]:,} files, {most[1]:.1f} MB, "
                     f"memory {tenths[-1].memory:.0f} MB")  # fmt: skip
                began, most = time.process_time(), (0, 0.0)
            plant.finished = count >= batches
            return CHANGED

        plant = SoakPlant(directory, clock, batch)
        # An observation stands for one per second of a step, so parts are smaller by that factor.
        keep = Keep(DAY, retention_of(DAY).summed, max(100_000, round(PART / step)))
        loop = Loop(
            plant, Mayfly(), monitor=step, period=step, observers=[Recorder(directory.recording, keep=keep)],
            journal=Journal(directory.journal), facts=plant.facts,
        )  # fmt: skip
        loop.run()
        ended = time.process_time()
        summary = summarise(Recording.read(directory.root))
        ended = time.process_time() - ended
        found: dict[str, int] = dict(latest(changes.path).itertuples(index=False))
        wrong = sum(found.get(word) != count for word, count in changes.counts.items()) + len(found.keys() - changes.counts)
        return SoakResult(tuple(tenths), wrong, edge.read, CHANGED * count, plant.moves, summary, ended)


BATCH = 0.25  # seconds from one batch to the next at best: two cores take a little less for one of these
RATE = 1_600  # lines/s, some four hundred a batch
HOST = HostType("half", cores=0.5, slots=1, memory=1000.0, price=0.0)
HOSTS, STATES = 2, 4
KEPT = "1m"
LOOKS = 5  # looks at memory in a tenth: a single one depends by chance on the memory of a batch
FILLED = 500
"""Batches before the first tenth, in which every line has been read once: until then the state and its files grow."""
COMPILED = 20  # batches before the first tenth of a short form, which does not prove a constant cost


@dataclass(frozen=True)
class TenthOfSparkRun(TenthOfRun):
    """A tenth of the batches; `memory` is that of the driver. hosts: megabytes of executors. seconds: between batches."""

    hosts: float
    seconds: float


@dataclass(frozen=True)
class SparkSoakResult:
    """wrong: words whose count is not that of a plain count over the records taken. moves: landed. starts: of queries."""

    tenths: tuple[TenthOfSparkRun, ...]
    batches: int
    records: int
    moves: float
    starts: float
    wrong: int


class MoveEachRound(Policy):
    """A policy that moves a state partition to the other host in each round."""

    name = "restless"

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        number, hosts = 1 + (memory or 0), sorted(observation.usable)
        if len(hosts) < HOSTS:
            return Plan(memory=number)
        task = TaskId("count", number % STATES)
        return Plan((MoveTask(task, hosts[(number // STATES) % HOSTS], why="so that something moves"),), memory=number)


class Watch(Observer):
    """An observer that measures the cost of each tenth of `batches`, and ends the load after the last."""

    def __init__(self, folder: Path, batches: int, report_progress: Callable[[str], None]) -> None:
        self.folder, self._each, self._report_progress = folder, max(1, batches // 10), report_progress
        self._before = FILLED if batches >= 10 * FILLED else COMPILED
        self.tenths: list[TenthOfSparkRun] = []
        self.batches, self.facts = 0, dict[str, float | str]()
        self._most = (0, 0.0)
        self._memory: list[tuple[float, float]] = []
        self._last_look = 0.0
        self._from: tuple[int, float, float] | None = None
        self.over = threading.Event()

    def ended(self, ending: Any) -> None:
        self.facts = dict(ending.facts)

    def observed(self, observation: Observation) -> None:
        self.batches += len(observation.batches)
        now = time.monotonic()
        if self._from is None:
            if self.batches >= self._before:  # compiled, both hosts there, and all words known
                self._from = self.batches, cpu_of_all(), now
            return
        if now > self._last_look + 5.0:
            self._last_look, found = now, files_below(self.folder)
            self._most = max(self._most[0], found[0]), max(self._most[1], found[1])
        count, cpu, since = self._from
        if self.batches - count >= (1 + len(self._memory)) * self._each // LOOKS:
            self._memory.append(_memory())
        if self.batches - count < self._each or len(self.tenths) >= 10:
            return
        done, used = self.batches - count, cpu_of_all() - cpu
        memory, hosts = (statistics.median(each) for each in zip(*self._memory, strict=True))
        tenth = TenthOfSparkRun(used / done, *self._most, memory, hosts, (now - since) / done)
        self.tenths.append(tenth)
        self._report_progress(
            f"tenth {len(self.tenths)}: {1e3 * tenth.cost:.0f} ms of CPU a batch, one in {tenth.seconds:.2f} s, "
            f"{tenth.files:,} files, {tenth.megabytes:.1f} MB, memory {memory:.0f} MB, of hosts {hosts:.0f} MB"
        )
        self._memory.clear()
        self._most, self._from = (0, 0.0), (self.batches, cpu_of_all(), time.monotonic())
        if len(self.tenths) == 10:
            self.over.set()


def soak_on_spark(
    folder: Path, batches: int, report_progress: Callable[[str], None] = lambda text: None
) -> SparkSoakResult:
    watch, out = Watch(folder, batches, report_progress), folder / "out"
    threading.Thread(target=_end_after, args=(watch.over,), daemon=True).start()
    run(
        word_count_flow(constant(RATE), out, "soak"),
        policy=MoveEachRound(),
        cloud=Local(HOST, min_hosts=HOSTS, max_hosts=HOSTS),
        state_partitions=STATES,
        batch=BATCH,
        retention=KEPT,
        runs=folder / "runs",
        observers=[watch],
        show=False,
    )
    (path,) = (folder / "runs").iterdir()
    (checkpoint,), (corpus,) = (path / "checkpoint").iterdir(), (path / "control").glob("*/" + CORPUS)
    wrong, committed, records = wrong_counts(checkpoint, corpus, out)
    moves, starts = (float(watch.facts.get(name, 0.0)) for name in ("moves", "query runs"))
    return SparkSoakResult(tuple(watch.tenths), committed + 1, records, moves, starts, wrong)


def _end_after(over: threading.Event) -> None:
    over.wait()
    os.kill(os.getpid(), signal.SIGTERM)


def _memory() -> tuple[float, float]:
    executors = processes_below(EXECUTOR)
    own = max((_live(each) for each in processes_below("java") if each not in executors), default=0.0)
    return psutil.Process().memory_info().rss / 1e6 + own, sum(map(_live, executors))


def _live(process: psutil.Process) -> float:
    def run_jcmd(command: str) -> str:
        return subprocess.run(["jcmd", str(process.pid), command], capture_output=True, text=True, check=False).stdout

    run_jcmd("GC.run")
    # A generational heap has a line for each generation; the memory of classes is no part of a total.
    return sum(float(used) for used in re.findall(r"total \d+K, used (\d+)K", run_jcmd("GC.heap_info"))) / 1e3


BATCHES, QUICK = 10_000, 1_500  # by the clock
ON_SPARK, QUICK_ON_SPARK = 10_000, 200
"""On Spark; the quick form shows that it works, and proves nothing of what is level."""
MEMORY = Path("/dev/shm")
"""Place of the files by the clock: on ext4 a new folder costs more while many are removed, which a jumping clock does."""
BAR = 1.1
NAMES = {"cost": "CPU a batch", "megabytes": "bytes on disk", "files": "files", "memory": "memory"}


def compared(report: Report, tenths: Sequence[TenthOfRun], names: dict[str, str], proves: bool) -> None:
    for name, what in names.items():
        report.figures[what] = [getattr(tenth, name) for tenth in tenths]
        ratio = getattr(tenths[-1], name) / getattr(tenths[0], name)
        if proves:
            report.at_most(f"{what}, last tenth over first", ratio, BAR)
        else:
            report.figures[f"{what}, last tenth over first"] = ratio


def by_clock(report: Report, quick: bool) -> None:
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="soak-", dir=memory) as folder:
        found = soak(Path(folder), QUICK if quick else BATCHES, progress)
    compared(report, found.tenths, NAMES, proves=not quick)
    report.at_most("rows of the result that are wrong", found.wrong, 0)
    report.at_most("records of the edge not read, or read twice", abs(found.read - found.written), 0)
    report.figures |= {
        "days": DAYS, "batches": QUICK if quick else BATCHES, "leases": found.summary.leases, "moves": found.moves,
        "summary at the end, CPU s": found.ended_seconds,
    }  # fmt: skip
    report.environment |= {"kept": "details for a day", "files by the clock": "in memory" if memory else "on disk"}


def on_spark(report: Report, quick: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        found = soak_on_spark(Path(folder), QUICK_ON_SPARK if quick else ON_SPARK, progress)
    names = {**NAMES, "hosts": "memory of hosts"}
    compared(report, found.tenths, {name: f"Spark: {what}" for name, what in names.items()}, proves=not quick)
    report.figures |= {
        "Spark: batches": found.batches, "Spark: records": found.records, "Spark: moves": found.moves,
        "Spark: seconds a batch, median of tenths": statistics.median(tenth.seconds for tenth in found.tenths),
    }  # fmt: skip
    report.at_most("Spark: words counted wrong", found.wrong, 0)
    report.at_most("Spark: starts of the query after its first", found.starts - 1, 0)
    if not quick:
        report.at_least("Spark: batches", found.batches, ON_SPARK)
    report.environment["on Spark"] = f"a batch each {BATCH:g} s at best; details for a minute"


if __name__ == "__main__":
    main_of_parts("soak", __doc__, {"clock": by_clock, "spark": on_spark})
