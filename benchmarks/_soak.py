"""Thirty days of a run in minutes: all that is written and remembered for months, driven by a clock that jumps.

Real are the control loop, journal, log of leases, plan, recording with its parts, a manager's journal, the files of a
durable edge with their reader, and a change log; each batch is written, planned, read and committed. Made up are the
observations, what actions do, and the clock. Spark is left out: its own logs keep a fixed number of batches.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from elastream.clouds.provider import Provider
from elastream.control.journal import Journal
from elastream.control.loop import Loop
from elastream.core.action import Action, LeaseHost, MoveTask, Outcome, ReleaseHost, Status, Switch
from elastream.core.frames import Frame, TaskFrame
from elastream.core.hosts import Billing, HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, Context, MicroBatch, Observation
from elastream.core.plant import Plan
from elastream.core.task_id import TaskId
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, text_files
from elastream.dataflow.stages import lay_out
from elastream.pool.arbiter import ArbiterNode, Entitlement
from elastream.pool.state_log import StateLog
from elastream.recording.directory import RunDirectory
from elastream.recording.lease_log import LeaseLog
from elastream.recording.parts import DAY, PART, Keep
from elastream.recording.recorder import Recorder, Recording
from elastream.report.summary import Summary, summarise
from elastream.report.tally import retention_of
from elastream.sharing.messages import Claim, Offer
from elastream.sharing.rules import ArbiterRules
from elastream.spark.dataflow import change_log, edges
from elastream.spark.dataflow.readers import Steering
from elastream.spark.dataflow.sinks import begin_results, latest
from elastream.spark.hosts.hosts import HostLedger
from elastream.spark.placement.allocation import AllocationStore
from elastream.spark.worker.composition import CompositionRequest, write_request

EPOCH = 1_700_000_000.0
DAYS = 30.0
KEYS, CHANGED = 2_000, 40
"""Keys of the result, and how many of them a batch changes: those of a small service that counts."""
PARTITIONS = 16
LEASE_EVERY = 5
"""Batches from one lease to the next: at 30 days and 10,000 batches one in 22 minutes, 2,000 in all."""
SMALL = HostType("small", cores=0.5, memory=1500, price=0.02, billing=Billing(60), start=8, stop=3)
SCHEMA = pa.schema([("word", pa.string()), ("count", pa.int64())])


def dataflow() -> Context:
    """A word count."""
    flow = Dataflow("soak")
    words = flow.source(text_files("books/"), name="lines").flat_map(str.split, returns="word string", name="words")
    words.key_by("word").count(name="count").sink(collect("counts"), name="out")
    able = frozenset({"MoveTask", "LeaseHost", "ReleaseHost"})
    return Context(lay_out(flow.graph), {SMALL.name: SMALL}, 2.0, max_hosts=6, capabilities=able)


class Jumping:
    """A clock that is where it is told to be; it ends when it is woken."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep_until(self, time: float) -> None:
        self.time = max(self.time, time)

    def wall(self) -> float:
        """Epoch seconds."""
        return EPOCH + self.time


class Mayfly:
    """A policy that moves a task in each round, and leases a host now and then, for which the oldest goes."""

    name = "mayfly"

    def plan(self, observation: Observation, memory: Any) -> Plan:
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
    """Does what a policy wants at once, and writes it where a plant on Spark does. batch: makes one batch happen."""

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
            book._records[host] = _record(book, now)
            for state in (HostState.STARTING, HostState.RUNNING):
                book._to(host, state)


def _record(book: HostLedger, now: float) -> Any:
    from elastream.spark.hosts.hosts import HostRecord

    return HostRecord(book.provider, milestones={"lease": now})


class Edge:
    """A durable edge: each batch is written as its query does, then planned, read and committed by its reader."""

    def __init__(self, directory: RunDirectory, clock: Jumping) -> None:
        self.records, self._clock, self._written = directory.edge("words", "count"), clock, 0
        self.records.mkdir(parents=True)
        write_request(directory.wanted, CompositionRequest())
        steering = Steering("words-count", directory.wanted, 2)
        self._reader = edges.EdgeReader(steering, self.records, 1, 1e6, SCHEMA, None)
        self._at = self._reader.initialOffset()
        self.read = 0

    def batch(self, table: pa.Table) -> None:
        folder = self.records / f"batch={self._written}"
        temporary = self.records / f".batch={self._written}"
        temporary.mkdir()
        pq.write_table(table, temporary / "part-00000.parquet")
        os.utime(temporary, (self._clock.wall(), self._clock.wall()))
        os.replace(temporary, folder)
        self._written += 1
        end = self._reader.latestOffset(self._at)
        for part in self._reader.partitions(self._at, end):
            self.read += sum(rows.num_rows for rows in self._reader.read(part))
        self._reader.commit(end)
        self._at = end


class Changes:
    """A change log of counts, and what it has to say."""

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
        self._number, self._seen, self._hosts = 0, 0, ()

    def round(self) -> None:
        self._number += 1
        wants = self._number % 2
        claim = Claim("soak", self._number, self._seen, tuple(self._hosts) if wants else (), asks=(SMALL.name,) * wants)
        try:
            view = self._node.claim(claim, self._key)
        except Exception:  # silent for longer than members may be: the clock has jumped
            self._key, self._seen, self._hosts = self._node.join("soak", Entitlement()), 0, ()
            return
        self._seen, self._hosts = view.term, tuple(view.hosts)


@dataclass(frozen=True)
class Tenth:
    """A tenth of a run. cost: CPU seconds a batch. files, megabytes: most on disk; memory: megabytes at its end."""

    cost: float
    files: int
    megabytes: float
    memory: float


@dataclass(frozen=True)
class Soaked:
    """What a run of months came to. wrong: rows of the result that are not what they should be. moves: of state
    partitions. summary: of all of it.
    """

    tenths: tuple[Tenth, ...]
    wrong: int
    read: int
    written: int
    moves: int
    summary: Summary
    ended_seconds: float


def soak(folder: Path, batches: int, told: Callable[[str], None] = lambda text: None) -> Soaked:
    """Run `batches` batches, evenly over DAYS."""
    step, clock = DAYS * DAY / batches, Jumping()
    directory = RunDirectory.create(folder, "soak")
    before = change_log.time, edges.time
    change_log.time = edges.time = cast(Any, SimpleNamespace(time=clock.wall))
    try:
        changes, edge = Changes(directory.results("out"), clock), Edge(directory, clock)
        manager = Manager(directory.root / "pool.journal", clock)
        tenths: list[Tenth] = []
        process, each, count = psutil.Process(), max(1, batches // 10), 0
        began, most = time.process_time(), (0, 0.0)

        def batch() -> int:
            nonlocal count, began, most
            edge.batch(changes.batch())
            manager.round()
            count += 1
            if count % max(1, each // 10) == 0:
                paused = time.process_time()
                most = max(most[0], (found := _on_disk(directory.root))[0]), max(most[1], found[1])
                began += time.process_time() - paused
            if count % each == 0 and len(tenths) < 10:
                cost = (time.process_time() - began) / each
                tenths.append(Tenth(cost, *most, process.memory_info().rss / 1e6))
                told(f"tenth {len(tenths)}: {1e3 * cost:.1f} ms a batch, {most[0]:,} files, {most[1]:.1f} MB, "
                     f"memory {tenths[-1].memory:.0f} MB")  # fmt: skip
                began, most = time.process_time(), (0, 0.0)
            plant.finished = count >= batches
            return CHANGED

        plant = SoakPlant(directory, clock, batch)
        # An observation stands for as many as there are seconds in a step: parts are that much smaller.
        keep = Keep(DAY, retention_of(DAY).summed, max(100_000, round(PART / step)))
        loop = Loop(
            plant, Mayfly(), monitor=step, period=step, observers=[Recorder(directory.recording, keep=keep)],
            journal=Journal(directory.journal), facts=plant.facts,
        )  # fmt: skip
        loop.run()
        ended = time.process_time()
        summary = summarise(Recording.read(directory.root))
        ended = time.process_time() - ended
        found = dict(latest(changes.path).itertuples(index=False))
        wrong = sum(found.get(word) != count for word, count in changes.counts.items()) + len(found.keys() - changes.counts)
        return Soaked(tuple(tenths), wrong, edge.read, CHANGED * count, plant.moves, summary, ended)
    finally:
        change_log.time, edges.time = before


def _on_disk(folder: Path) -> tuple[int, float]:
    """Files and folders, and megabytes."""
    sizes = [os.lstat(each).st_size for each in _all(folder)]
    return len(sizes), sum(sizes) / 1e6


def _all(folder: Path) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        yield from (os.path.join(root, name) for name in (*folders, *names))
