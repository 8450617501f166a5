"""Test rig of the N-Storm experiment. The checkpoint outlives restarts, so counts prove exactness."""

import contextlib
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elastream.clouds.local.cluster import LocalCluster
from elastream.clouds.local.local import Local
from elastream.core.hosts import HostType
from elastream.core.task_id import TaskId
from elastream.errors import EnvironmentProblem, first_line
from elastream.spark.jvm.driver_side import DriverSide, gateway_of
from elastream.spark.jvm.executors import Executors
from elastream.spark.jvm.session import open_session, settings_for
from elastream.spark.placement.allocation import AllocationStore
from elastream_papers.nstorm.schemes import Follower, Scheme

HOSTS, PARTITIONS = 4, 16  # executors of one slot; state partitions
SENTENCE, VOCABULARY = 8, 20_000  # words per record; size of the vocabulary
ROWS = 2_000  # records per batch: few, for short batches
OPERATOR = "count"
START_LIMIT, SETTLE_LIMIT = 300.0, 300.0  # seconds, on a busy machine
MACHINE = os.cpu_count() or 1
WORKER = HostType("worker", cores=0.35, slots=1, memory=1200.0)  # four use 1.4 of two cores: the driver keeps its share


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A micro-batch: epoch seconds of its trigger and end, and its records."""

    start: float
    end: float
    rows: int


class Rig:
    """Four executors with a word count; must be closed. interval: least seconds between batches; 0: full speed."""

    def __init__(
        self, folder: Path, *, hosts: int = HOSTS, rows: int = ROWS, vocabulary: int = VOCABULARY, interval: float = 0.0
    ) -> None:
        self._size = hosts
        self._folder, self._rows, self._vocabulary, self._interval = folder, rows, vocabulary, interval
        self._confined: set[str] = set()
        self._cluster = LocalCluster(Local(WORKER, max_hosts=self._size, min_hosts=self._size), folder / "cluster")
        self._names: dict[str, str] = {}
        self._spark: SparkSession | None = None
        self._follower: Follower | None = None
        self._traffic: _Traffic | None = None
        self._batches: dict[tuple[str, int], CommittedBatch] = {}

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None
        return self._spark

    @property
    def follower(self) -> Follower:
        assert self._follower is not None
        return self._follower

    @property
    def confinement(self) -> str:
        """Return how the hosts are limited."""
        shared = f"one machine of {MACHINE} cores, each held to {WORKER.cores:g} of them; no network limits"
        return f"{self._size} processes of one slot each on {shared}"

    @property
    def hosts(self) -> list[str]:
        """Return addresses of all hosts with an executor."""
        return sorted(self._names.keys() & self._executors.by_address().keys())

    @property
    def at(self) -> dict[TaskId, str]:
        """Return the planned address of each task."""
        return dict(self.plan.latest.hosts)

    def begin(self, warm: float) -> None:
        """Start everything, spread the tasks evenly, and run for `warm` seconds."""
        self._master = self._cluster.start()
        for number in range(1, self._size + 1):
            self._cluster.spawn(name := f"h{number}")
            self._names[self._cluster.address(name)] = name
        self.plan = AllocationStore(self._folder / "allocation.jsonl")
        self._connect()
        hosts = self.hosts
        even = {TaskId(OPERATOR, index): hosts[index % self._size] for index in range(PARTITIONS)}
        _until(lambda: len(self.follower.placing.where()) == PARTITIONS, START_LIMIT, "the first batch")
        self.plan.publish(even, at=time.time(), why="spread evenly")
        self.settle()
        time.sleep(warm)

    def restart(self, placement: Mapping[TaskId, str], why: str) -> None:
        """End driver and executors, and start them anew with the given placement. Hosts start without their quota."""
        self._note()
        self.follower.close()
        self._follower = None
        self.plan.publish(placement, at=time.time(), why=why)
        for name in self._confined:
            self._cluster.confine(name, None)
        self._confined.clear()
        _end_driver(self.spark)
        self._connect()
        self.settle()

    def _connect(self) -> None:
        """Open a session, and start the query once all executors are there."""
        settings = settings_for(
            driver_address=self._cluster.driver_address,
            executor_memory=self._cluster.executor_memory_mb,
            executor_cores=WORKER.slots,
            state_partitions=PARTITIONS,
            state_store="memory",
            host_cores=[WORKER.cores],
        )
        kept = {"spark.sql.streaming.numRecentProgressUpdates": "400"}
        closed = self._cluster.secrets
        settings = {**settings, **kept, **closed.session_settings}
        self._spark = open_session(self._master, "nstorm", self._cluster.folder, settings, closed.shared)
        self._executors = Executors(DriverSide(self.spark))
        _until(lambda: len(self._executors.by_address()) == self._size, START_LIMIT, f"{self._size} executors")
        self._traffic = _Traffic(self.spark, self._traffic)
        self._follower = Follower(
            self.spark, self._start, AllocationStore(self.plan.path), Scheme.LAZY, operator=OPERATOR, partitions=PARTITIONS
        )

    def fill(self) -> None:
        """Wait until nearly all words have come: three times as many records as words."""
        batches = 3 * self._vocabulary // (self._rows * SENTENCE)
        while self.follower.ended < batches:
            self.next_batch(SETTLE_LIMIT)

    @property
    def state(self) -> float:
        """Return the MB of state in memory."""
        progress = self.follower.query.lastProgress
        return sum(each["memoryUsedBytes"] for each in progress["stateOperators"]) / 1e6 if progress else math.nan

    def settle(self) -> None:
        """Wait until all tasks and executors are in place, and for one more batch."""
        _until(lambda: self._is_settled() and len(self.hosts) >= self._size, SETTLE_LIMIT, "the placement that was planned")
        self._confine()
        self.next_batch(SETTLE_LIMIT)

    def _confine(self) -> None:
        """Confine hosts to their quota once they run tasks; they start without one."""
        for name in set(self._names.values()) - self._confined:
            self._cluster.confine(name, WORKER.cores)
            self._confined.add(name)

    def next_batch(self, limit: float) -> None:
        """Wait for the end of a batch. Raises EnvironmentProblem after `limit` seconds or a failure."""
        ended = self.follower.ended
        _until(lambda: self._check_query() and self.follower.ended > ended, limit, "a batch")

    def arrival(self, asked: float) -> float | None:
        """Return seconds since `asked` (epoch seconds) if all tasks are in place, else None."""
        return time.time() - asked if self._is_settled() else None

    def note(self) -> None:
        """Record the batches since the last call (at most 400 are available)."""
        self._note()

    def take(self) -> tuple[int, int, Counter[str]]:
        """Return restarts, landed migrations and bytes of control traffic; records the batches."""
        self._note()
        assert self._traffic is not None
        bytes_so_far = Counter({"gateway": self._traffic.bytes})
        bytes_so_far["plan written"] = self.plan.bytes_written
        bytes_so_far["plan read"] = self.plan.bytes_read + self.follower.plan.bytes_read
        return self.follower.restarts, len(self.follower.placing.landed), bytes_so_far

    @property
    def batches(self) -> list[CommittedBatch]:
        return list(self._batches.values())

    def finish(self) -> tuple[int, int]:
        """Stop and compare all counts with a batch query's: (batches committed, wrong words)."""
        self._note()
        self.follower.close()
        checkpoint = self._folder / "checkpoint"
        committed = max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit()) + 1
        state = self.spark.read.format("statestore").load(str(checkpoint))
        counted = state.select(F.col("key.word").alias("word"), F.col("value.count").alias("n"))
        # The words of all records are numbered from 0.
        numbers = self.spark.range(committed * self._rows * SENTENCE)
        expected = numbers.select(self._word(F.col("id")).alias("word")).groupBy("word")
        both = counted.join(expected.agg(F.count("*").alias("m")), "word", "full_outer")
        return committed, both.where("n is distinct from m").count()

    def close(self) -> None:
        self._cluster.close()
        if self._spark is not None:
            with contextlib.suppress(Py4JError, PySparkException, OSError):  # its hosts no longer exist
                self._spark.stop()

    def _check_query(self) -> bool:
        if self.follower.failure is not None:
            raise EnvironmentProblem(f"the query failed: {first_line(self.follower.failure)}")
        return True

    def _is_settled(self) -> bool:
        placing = self.follower.placing
        if not self._check_query() or placing.targets() or self.follower.acted != self.plan.latest.version:
            return False
        at, target = placing.where(), {host: self.follower.target(host) for host in set(self.at.values())}
        return all(task in at and at[task] == target[host] for task, host in self.at.items())

    def _start(self) -> StreamingQuery:
        self._note()
        source = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self._rows)
        return (
            self._words(source.option("numPartitions", self._size).load())
            .groupBy("word")
            .count()
            .writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(processingTime=f"{1000 * self._interval:.0f} milliseconds")
            .start()
        )

    def _words(self, records: DataFrame) -> DataFrame:
        words = (self._word(F.col("value") * SENTENCE + k) for k in range(SENTENCE))
        return records.select(F.explode(F.array(*words)).alias("word"))

    def _word(self, number: Column) -> Column:
        return F.pmod(F.hash(number), F.lit(self._vocabulary))

    def _note(self) -> None:
        if self._follower is None:
            return
        query = self._follower.query
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                start = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()
                seconds = progress["durationMs"]["triggerExecution"] / 1000
                self._batches[query.runId, progress["batchId"]] = CommittedBatch(
                    start, start + seconds, progress["numInputRows"]
                )


@dataclass(frozen=True, slots=True)
class Used:
    """CPU seconds so far: of the machine, of this process tree, and available."""

    machine: float
    own: float
    available: float

    @staticmethod
    def now() -> "Used":
        """Return the current values; ended processes are counted at their parents."""
        own = psutil.Process()
        mine = 0.0
        for process in (own, *own.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                mine += sum(process.cpu_times()[:4])
        times = psutil.cpu_times()
        return Used(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice, mine, time.time() * MACHINE)

    def others(self, since: "Used") -> float:
        """Return the part of the cores that other programs have used since `since`."""
        return max(0.0, self.machine - since.machine - (self.own - since.own)) / (self.available - since.available)


class _Traffic:
    """Counts gateway bytes of the threads that follow the plan."""

    def __init__(self, spark: SparkSession, before: "_Traffic | None") -> None:
        self.bytes: int = 0 if before is None else before.bytes
        self._lock = threading.Lock()
        gateway = gateway_of(spark)
        client = gateway._gateway_client
        send = client.send_command

        def counting(command: str, *arguments: Any, **options: Any) -> Any:
            answer = send(command, *arguments, **options)
            if threading.current_thread().name.startswith(("follower", "load-state")):
                with self._lock:
                    self.bytes += len(command) + (len(answer) if isinstance(answer, str) else 0)
            return answer

        client.send_command = counting


def _end_driver(spark: SparkSession) -> None:
    """End the session with its JVM, so that the next one starts a JVM of its own."""
    gateway = SparkContext._gateway
    spark.stop()
    if gateway is not None and gateway.proc is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None


def _until(condition: Any, limit: float, what: str) -> None:
    until = time.monotonic() + limit
    while not condition():
        if time.monotonic() > until:
            raise EnvironmentProblem(f"{what}: not within {limit:g} s")
        time.sleep(0.05)
