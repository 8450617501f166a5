"""The cluster and the query of the N-Storm experiment, and what is measured on them.

One query for all cases: its checkpoint outlives even the cases that stop it, so that the counts at the end prove that no
case has lost or doubled a record.
"""

import contextlib
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elastream.clouds.local.cluster import LocalCluster
from elastream.clouds.local.local import Local
from elastream.model.action import TaskId
from elastream.model.cloud import HostType
from elastream.model.errors import EnvironmentProblem
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.executors import Executors
from elastream.spark.jvm.gateway import gateway_of
from elastream.spark.jvm.session import StateStore, open_session, settings_for
from elastream.spark.placement.allocation import AllocationStore
from elastream.spark.placement.schemes import Cycles, Follower, Scheme

__all__ = ["HOSTS", "PARTITIONS", "ROWS", "CommittedBatch", "Rig", "Used"]

HOSTS, PARTITIONS = 4, 16
"""Executors of one slot each, and state partitions: the project's bar names both."""
SENTENCE, VOCABULARY = 8, 20_000
"""Words a record, and words there are."""
ROWS = 40_000
"""Records a batch: about a second of work for four executors on two cores."""
OPERATOR = "count"
START_LIMIT, SETTLE_LIMIT = 180.0, 90.0
"""Seconds that executors may take to come up, and that a placement may take to settle, on a busy machine."""
CORES = os.cpu_count() or 1
WORKER = HostType("worker", cores=1.0, slots=1, memory=1200.0)


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A micro-batch that was committed: epoch seconds of its trigger and of its end, and the records it took."""

    start: float
    end: float
    rows: int


class Rig:
    """Four executors that word-count as fast as they can. Close it."""

    def __init__(
        self, folder: Path, *, rows: int = ROWS, vocabulary: int = VOCABULARY, state_store: StateStore = "memory"
    ) -> None:
        self._folder, self._rows, self._vocabulary, self._state_store = folder, rows, vocabulary, state_store
        self._cluster = LocalCluster(Local(WORKER, max_hosts=2 * HOSTS, min_hosts=HOSTS), folder / "cluster")
        self._names: dict[str, str] = {}
        self._leased = 0
        self._spark: SparkSession | None = None
        self._follower: Follower | None = None
        self._batches: dict[tuple[str, int], CommittedBatch] = {}

    @property
    def spark(self) -> SparkSession:
        """The session."""
        assert self._spark is not None
        return self._spark

    @property
    def follower(self) -> Follower:
        """What follows the plan."""
        assert self._follower is not None
        return self._follower

    @property
    def confinement(self) -> str:
        """What kind of hosts these are."""
        return f"{HOSTS} processes of one slot each on one machine, sharing its {CORES} cores; no quota, no network limits"

    @property
    def hosts(self) -> list[str]:
        """Addresses of all hosts that have an executor and were not sent away."""
        return sorted(self._names.keys() & self._executors.by_address().keys())

    @property
    def at(self) -> dict[TaskId, str]:
        """Address of each task, as the plan has it."""
        return dict(self.plan.latest.hosts)

    def begin(self, warm: float) -> None:
        """Start everything, spread the tasks evenly, and let it run for `warm` seconds.

        The query runs no Python: nothing but its own batches can warm executors up for it.
        """
        master = self._cluster.start()
        for _ in range(HOSTS):
            self._lease()
        settings = settings_for(
            driver_address=self._cluster.driver_address,
            executor_memory=self._cluster.executor_memory_mb,
            executor_cores=WORKER.slots,
            state_partitions=PARTITIONS,
            state_store=self._state_store,
            small=CORES < HOSTS,
        )
        kept = {"spark.sql.streaming.numRecentProgressUpdates": "5000"}
        self._spark = open_session(master, "nstorm", self._cluster.folder, {**settings, **kept})
        self._executors = Executors(DriverSide(self.spark))
        _until(lambda: len(self._executors.by_address()) == HOSTS, START_LIMIT, f"{HOSTS} executors")
        self.plan = AllocationStore(self._folder / "allocation.jsonl")
        self._traffic = _Traffic(self.spark)
        self._follower = Follower(
            self.spark, self._start, AllocationStore(self.plan.path), Scheme.LAZY, operator=OPERATOR, partitions=PARTITIONS
        )
        hosts = self.hosts
        even = {TaskId(OPERATOR, index): hosts[index % HOSTS] for index in range(PARTITIONS)}
        _until(lambda: len(self.follower.placing.where()) == PARTITIONS, START_LIMIT, "the first batch")
        self.plan.publish(even, at=time.time(), why="spread evenly")
        self.settle()
        time.sleep(warm)

    def switch(self, scheme: Scheme, cycles: Cycles) -> None:
        """Go on under another scheme."""
        self.follower.switch(scheme, cycles)

    def kill(self, address: str) -> None:
        """End a host with all that runs on it, as if its plug had been pulled, and lease another."""
        self.follower.leaving.add(address)
        self._cluster.kill(self._names.pop(address))
        self._lease()

    def decommission(self, address: str) -> None:
        """Ask a host to leave once what it runs is done, and lease another."""
        self.follower.leaving.add(address)
        self._cluster.decommission(self._names.pop(address))
        self._lease()

    def settle(self) -> None:
        """Wait until every task is where the plan has it and every executor is there; returns after one batch more."""
        _until(lambda: self._there() and len(self.hosts) >= HOSTS, SETTLE_LIMIT, "the placement that was planned")
        self.next_batch(SETTLE_LIMIT)

    def next_batch(self, limit: float) -> None:
        """Wait for the end of a batch; raises EnvironmentProblem after `limit` seconds, or where the query failed."""
        ended = self.follower.ended
        _until(lambda: self._works() and self.follower.ended > ended, limit, "a batch")

    def wait_for_hosts(self, count: int, limit: float) -> None:
        """Wait until that many hosts have executors."""
        _until(lambda: self._works() and len(self.hosts) >= count, limit, f"{count} hosts")

    def arrival(self, asked: float) -> float | None:
        """Seconds since `asked` (a clock of `time.time`) where all is as planned, else None."""
        return time.time() - asked if self._there() else None

    def take(self) -> tuple[int, int, Counter[str]]:
        """Restarts, landed migrations and bytes of control traffic so far; batches are noted."""
        self._note()
        bytes_so_far = self._traffic.counted()
        bytes_so_far["plan written"] = self.plan.bytes_written
        bytes_so_far["plan read"] = self.plan.bytes_read + self.follower.plan.bytes_read
        return self.follower.restarts, len(self.follower.placing.landed), bytes_so_far

    @property
    def batches(self) -> list[CommittedBatch]:
        """All batches that were noted."""
        return list(self._batches.values())

    def finish(self) -> tuple[int, int]:
        """Stop, and compare all counts with a batch query over the same records: batches committed, words counted wrong."""
        self._note()
        self.follower.close()
        checkpoint = self._folder / "checkpoint"
        committed = max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit()) + 1
        state = self.spark.read.format("statestore").load(str(checkpoint))
        counted = state.select(F.col("key.word").alias("word"), F.col("value.count").alias("n"))
        # The words of all records are numbered from 0 on.
        numbers = self.spark.range(committed * self._rows * SENTENCE)
        expected = numbers.select(self._word(F.col("id")).alias("word")).groupBy("word")
        both = counted.join(expected.agg(F.count("*").alias("m")), "word", "full_outer")
        return committed, both.where("n is distinct from m").count()

    def close(self) -> None:
        """End everything."""
        self._cluster.close()
        if self._spark is not None:
            with contextlib.suppress(Exception):
                self._spark.stop()

    def _works(self) -> bool:
        if self.follower.failure is not None:
            raise EnvironmentProblem(f"the query failed: {str(self.follower.failure).splitlines()[0]}")
        return True

    def _there(self) -> bool:
        placing = self.follower.placing
        if not self._works() or placing.wanted() or self.follower.acted != self.plan.latest.version:
            return False
        at, target = placing.where(), {host: self.follower.target(host) for host in set(self.at.values())}
        return all(task in at and at[task] == target[host] for task, host in self.at.items())

    def _start(self) -> StreamingQuery:
        self._note()
        source = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self._rows)
        return (
            self._words(source.option("numPartitions", HOSTS).load())
            .groupBy("word")
            .count()
            .writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def _lease(self) -> None:
        self._leased += 1
        name = f"h{self._leased}"
        self._cluster.spawn(name)
        self._names[self._cluster.address(name)] = name

    def _words(self, records: DataFrame) -> DataFrame:
        """SENTENCE words for each record, the same whenever it is asked for."""
        words = (self._word(F.col("value") * SENTENCE + k) for k in range(SENTENCE))
        return records.select(F.explode(F.array(*words)).alias("word"))

    def _word(self, number: Column) -> Column:
        """Word `number` of all that there are."""
        return F.pmod(F.hash(number), F.lit(self._vocabulary))

    def _note(self) -> None:
        """Take over the batches of the query that runs now, before it may be stopped."""
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
    """CPU seconds so far: of the whole machine, of this process with all that it started, and there were to use."""

    machine: float
    own: float
    available: float

    @staticmethod
    def now() -> "Used":
        """As of now. Of a process that has ended, its parent knows what it used."""
        own = psutil.Process()
        mine = 0.0
        for process in (own, *own.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                mine += sum(process.cpu_times()[:4])
        times = psutil.cpu_times()
        return Used(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice, mine, time.time() * CORES)

    def others(self, since: "Used") -> float:
        """Share of the machine's cores that other programs have used since then."""
        return max(0.0, self.machine - since.machine - (self.own - since.own)) / (self.available - since.available)


class _Traffic:
    """Bytes that pass the gateway for the threads that follow the plan, by counting what they send and get."""

    def __init__(self, spark: SparkSession) -> None:
        self._bytes = 0
        self._lock = threading.Lock()
        gateway = gateway_of(spark)
        client = gateway._gateway_client
        send = client.send_command

        def counting(command: str, *arguments: Any, **options: Any) -> Any:
            answer = send(command, *arguments, **options)
            if threading.current_thread().name.startswith(("follower", "load-state")):
                with self._lock:
                    self._bytes += len(command) + (len(answer) if isinstance(answer, str) else 0)
            return answer

        client.send_command = counting

    def counted(self) -> Counter[str]:
        """Bytes so far."""
        return Counter({"gateway": self._bytes})


def _until(condition: Any, limit: float, what: str) -> None:
    until = time.monotonic() + limit
    while not condition():
        if time.monotonic() > until:
            raise EnvironmentProblem(f"{what}: not within {limit:g} s")
        time.sleep(0.05)
