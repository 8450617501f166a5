"""Repartitions of state in RocksDB, by `elastream repartition` in a process of its own. Two hours; 8 GB of disk.

`kills`: SIGKILL at every line of a repartition, and at random moments. Afterwards the checkpoint has the old or new width,
its query continues, and its rows equal a batch query's. `pauses`: seconds, predicted over real.
"""

import multiprocessing
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, TypeAlias

import pytest
from _common import Report, local_session, main_of_parts, progress
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from elastream.checkpoints import repartition as changes
from elastream.checkpoints.repartition import PAUSES, QUIET_S, predicted, read_pauses
from elastream.checkpoints.state import checkpoint_state
from elastream.clouds.local.java import cache_folder
from elastream.spark.jvm.session import session_settings

FILES, KEYS, OLD, NEW = 12, 2_000, 4, 6
RANDOM, QUICK_LINES, QUICK_RANDOM, AGAIN = 40, 4, 3, 10
NARROW, WIDE, LONGS, ROWS_A_MB = 16, 64, 13, 8_700
SIZES_MB, QUICK_SIZES_MB, ROUNDS = (10, 100, 1000), (10,), 2
TOLERANCE = 0.25
# Of sessions that live for a minute.
YOUNG_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
FORKS = multiprocessing.get_context("fork")
Outcome: TypeAlias = tuple[int, str, str]  # width after a kill, any error, and the kill


@dataclass(frozen=True, slots=True)
class Query:
    """A count by key over numbers in files, one batch a file. `longs`: of a key; they do not compress."""

    folder: Path
    keys: int
    rows: int
    longs: int = 1

    def put(self, spark: SparkSession, file: int) -> None:
        numbers = spark.range(file * self.rows, (file + 1) * self.rows, numPartitions=1).withColumnRenamed("id", "n")
        numbers.write.mode("append").parquet(str(self.folder))

    def counted(self, numbers: DataFrame) -> DataFrame:
        keys = [F.xxhash64(F.col("n") % self.keys, F.lit(each)).alias(f"k{each}") for each in range(self.longs)]
        keyed = numbers.select("n", *keys).groupBy(*(f"k{each}" for each in range(self.longs)))
        return keyed.agg(F.count("*").alias("count"), F.sum("n").alias("sum"))

    def run(self, spark: SparkSession, checkpoint: Path) -> None:
        """Process the files that have come since the checkpoint."""
        numbers = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).parquet(str(self.folder))
        writer = self.counted(numbers).writeStream.outputMode("update").format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()

    def is_exact(self, spark: SparkSession, checkpoint: Path) -> bool:
        """Return True if the state has the rows of a batch query over all files."""
        state = spark.read.format("statestore").load(str(checkpoint)).selectExpr("key.*", "value.count", "value.sum")
        return _digest(state) == _digest(self.counted(spark.read.parquet(str(self.folder))))


def _digest(frame: DataFrame) -> Sequence[object]:
    return tuple(frame.agg(F.count("*"), F.sum(F.xxhash64(*frame.columns).cast("decimal(38, 0)"))).first() or ())


@contextmanager
def session(partitions: int) -> Iterator[SparkSession]:
    settings = {
        **session_settings("disk"),
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.driver.extraJavaOptions": YOUNG_JVM,
        "spark.network.timeout": "1h",  # on a machine that freezes for minutes
    }
    with local_session("width", settings) as (spark, _):
        yield spark


@contextmanager
def workplace() -> Iterator[Path]:
    """Yield a folder, and keep the times of repartitions in it."""
    with TemporaryDirectory(prefix="width-") as name, pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", f"{name}/cache")
        yield Path(name)


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill before a line of the repartition first runs, or after seconds: of the process, or only its JVM."""

    line: int = 0
    seconds: float = 0.0
    victim: str = "process"

    def now(self) -> None:
        if self.victim == "process":
            os.killpg(0, signal.SIGKILL)
        os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)  # type: ignore[union-attr]  # a session is open


def attempt(checkpoint: Path, kill: Kill, own: SparkSession | None) -> None:
    """Repartition until killed, in a process of its own. own: the session of the process before; None: a new one."""
    os.setsid()
    tempfile.tempdir = str(checkpoint.parent)
    lines: list[int] = []

    def line(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != changes.__file__:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
            if frame.f_lineno == kill.line:
                kill.now()
        return line

    with session(NEW) if own is None else nullcontext(own) as spark:
        if kill.seconds:
            timer = threading.Timer(kill.seconds, kill.now)
            timer.daemon = True
            timer.start()
        sys.settrace(line)
        changes.repartition(spark, checkpoint, NEW, lambda _: None, stopped=True)
        sys.settrace(None)
    checkpoint.with_name("lines").write_text(" ".join(map(str, lines)))


class Trials:
    """Killed repartitions of copies of a checkpoint."""

    def __init__(self, whole: Path, name: str) -> None:
        self._whole, self._name, self.made = whole, name, dict[Path, Kill]()

    def run(self, kill: Kill, own: SparkSession | None = None) -> Path:
        """Repartition a new copy, killed or not."""
        checkpoint = self._whole.with_name(f"{self._name}-{len(self.made)}") / "checkpoint"
        shutil.rmtree(checkpoint.parent, ignore_errors=True)
        shutil.copytree(self._whole, checkpoint)
        process = FORKS.Process(target=attempt, args=(checkpoint, kill, own))
        process.start()
        process.join()
        if process.exitcode:
            self.made[checkpoint] = kill
            progress(f"{len(self.made)}: {kill}, status {process.exitcode}, width {checkpoint_state(checkpoint).width}")
        return checkpoint

    def checked(self, spark: SparkSession, query: Query) -> list[Outcome]:
        return [
            (*checked(spark, query, checkpoint, again=number % AGAIN == 0), str(kill))
            for number, (checkpoint, kill) in enumerate(self.made.items())
        ]


def kills(report: Report, quick: bool) -> None:
    """Kill repartitions; then go on, and repartition some once more."""
    with workplace() as root:
        query, whole = Query(root / "numbers", KEYS, KEYS // 4), root / "whole"
        found = in_process(killed_at_lines, query, whole, quick)
        trials, chance = Trials(whole, "moment"), random.Random(1)
        trials.run(Kill())
        seconds = read_pauses(cache_folder() / PAUSES)[-1].seconds
        while len(trials.made) < (QUICK_RANDOM if quick else RANDOM):
            trials.run(Kill(0, chance.uniform(0.01, seconds), chance.choice(("process", "JVM"))))
        with session(OLD) as spark:
            found += trials.checked(spark, query)
    report.figures["kills: width after, what is wrong, kill"] = found
    failures = sum(bool(wrong) for _, wrong, _ in found)
    report.at_most(f"of {len(found)} killed repartitions, neither width or rows not exact", failures, 0)


def in_process(function: Callable[..., list[Outcome]], *arguments: object) -> list[Outcome]:
    with ProcessPoolExecutor(1, FORKS) as pool:
        return pool.submit(function, *arguments).result()


def killed_at_lines(query: Query, whole: Path, quick: bool) -> list[Outcome]:
    """Make the checkpoint and kill one repartition before each line, all in one JVM."""
    trials = Trials(whole, "line")
    with session(OLD) as spark:
        for file in range(FILES):
            query.put(spark, file)
        query.run(spark, whole)
        lines = [*map(int, trials.run(Kill(), spark).with_name("lines").read_text().split())]
        steps = sorted(set(lines))
        for number in random.Random(1).sample(steps, QUICK_LINES) if quick else steps:
            trials.run(Kill(number), spark)
        query.put(spark, FILES)
        return trials.checked(spark, query)


def checked(spark: SparkSession, query: Query, checkpoint: Path, *, again: bool) -> tuple[int, str]:
    """Continue from a checkpoint, and perhaps repartition it again; return its width and any error."""
    width, problem = checkpoint_state(checkpoint).width, ""
    query.run(spark, checkpoint)
    if checkpoint_state(checkpoint).width != width or width not in (OLD, NEW):
        problem = f"width {width}"
    elif not query.is_exact(spark, checkpoint):
        problem = "rows after the kill"
    elif again:
        changes.repartition(spark, checkpoint, OLD + NEW - width, lambda _: None, stopped=True)
        if not query.is_exact(spark, checkpoint):
            problem = "rows after another repartition"
    progress(f"{checkpoint.parent.name}: width {width}, {problem or 'exact'}")
    return width, problem


def commanded(checkpoint: Path, partitions: int) -> None:
    command = [sys.executable, "-c", "from elastream.cli import main; main()", "repartition", str(checkpoint)]
    subprocess.run([*command, "--partitions", str(partitions)], check=True, capture_output=True)


def pauses(report: Report, quick: bool) -> None:
    """Repartition there and back by size; the first round predicts the later ones."""
    sizes, found = QUICK_SIZES_MB if quick else SIZES_MB, []
    with workplace() as root:
        queries = {size: Query(root / f"numbers-{size}", size * ROWS_A_MB, size * ROWS_A_MB // 4, LONGS) for size in sizes}
        with session(NARROW) as spark:
            for size, query in queries.items():
                for file in range(4):
                    query.put(spark, file)
                query.run(spark, root / f"{size}")
                progress(f"{size}: {checkpoint_state(root / str(size)).megabytes:.1f} MB")
        written, chance = dict.fromkeys(sizes, time.time()), random.Random(1)
        for number, width in product(range(ROUNDS), (WIDE, NARROW)):
            for size in chance.sample(sizes, len(sizes)):
                checkpoint = root / f"{size}"
                state = checkpoint_state(checkpoint)
                time.sleep(max(0.0, written[size] + QUIET_S - time.time()))
                pause = predicted(state, width)
                commanded(checkpoint, width)
                written[size], seconds = time.time(), read_pauses(cache_folder() / PAUSES)[-1].seconds
                shutil.rmtree(root / f"{size}.{state.width}-partitions")
                found.append((number, size, width, state.megabytes, pause, seconds))
                progress(f"round {number + 1}, {size} MB to {width}: {pause.text} predicted, {seconds:.1f} s")
        with session(NARROW) as spark:
            wrong = [size for size, query in queries.items() if not query.is_exact(spark, root / f"{size}")]
    report.figures["pauses: round, MB, partitions, MB of files, prediction, seconds"] = found
    report.at_most(f"of {len(sizes)} sizes, rows not exact after {2 * ROUNDS} repartitions", len(wrong), 0)
    last = [(*ends, seconds) for number, *_, ends, seconds in found if number == ROUNDS - 1]
    near = [
        (1 - TOLERANCE) * seconds <= shortest and longest <= (1 + TOLERANCE) * seconds
        for shortest, longest, seconds in last
    ]
    report.at_least(f"share of {len(near)} pauses predicted within {TOLERANCE:.0%}", statistics.mean(near), 1.0)


PARTS: Mapping[str, Callable[[Report, bool], None]] = {"kills": kills, "pauses": pauses}

if __name__ == "__main__":
    main_of_parts("width", __doc__, PARTS)
