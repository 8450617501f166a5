"""A count over a large state on hosts that are killed: how long until batches take what they did, and where that goes.

The query is any user's: native Spark, watched and not compiled. Its records are numbered, so that what must be counted is
known whatever happened, and each batch brings as many of them.
"""

import json
import statistics
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _common import progress, wait_until
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elastream import HostType, Local
from elastream.model.action import LeaseHost, MoveTask
from elastream.recording.directory import RunDirectory
from elastream.spark.jvm.session import StateStore
from elastream.spark.plant import SparkPlant
from elastream.spark.queries.watched import WatchedQueries
from elastream.spark.start import start_beside

__all__ = ["HOST", "Bed", "Fault", "Job", "bed", "timeline"]

HOST = HostType("slot", cores=1.0, slots=1, memory=1400.0)
STEADY = 8
"""Batches whose median is what a batch takes."""
NORMAL = 1.5
"""Times that, a batch is as long as before; batches of one load on two shared cores differ by less."""
PATIENCE = 180.0


@dataclass(frozen=True, slots=True)
class Job:
    """keys: of the state, all of which are there before anything is measured. rows: of a batch. pace: seconds from one
    batch to the next. partitions: of the state.
    """

    keys: int
    rows: int
    pace: float = 1.0
    partitions: int = 8

    @property
    def filling(self) -> int:
        """Batches until each key has been seen."""
        return -(-self.keys // self.rows)

    def counted(self, numbers: DataFrame) -> DataFrame:
        """Count of each key over records `value`. Keys come in an order that strews them over batches and partitions."""
        return numbers.select(((F.col("value") * 7_368_787) % self.keys).alias("key")).groupBy("key").count()

    def start(self, spark: SparkSession, checkpoint: Path) -> StreamingQuery:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self.rows).option("numPartitions", 4)
        writer = self.counted(source.load()).writeStream.outputMode("update").format("noop")
        paced = writer.trigger(processingTime=f"{self.pace:g} seconds")
        return paced.option("checkpointLocation", str(checkpoint)).start()


@dataclass(frozen=True, slots=True)
class Fault:
    """What a fault cost.

    normal: seconds of a batch before it. recovered: seconds from the fault to the end of the first batch that began after
    it and takes NORMAL times that at most. committed: to the end of the first batch that ended after it. longest: of the
    batches until then, in seconds. batches: ended until then.
    """

    normal: float
    recovered: float
    committed: float
    longest: float
    batches: int


class Bed:
    """A running query with its state, on hosts that can be killed."""

    def __init__(self, plant: SparkPlant[WatchedQueries], query: StreamingQuery, job: Job, checkpoint: Path) -> None:
        self.plant, self.query, self.job, self.checkpoint = plant, query, job, checkpoint
        self._run = query.runId

    def batches(self) -> list[tuple[float, float]]:
        """(begin, end) of the recent batches with records, epoch seconds, oldest first."""
        found = []
        for each in self.query.recentProgress:
            if each["numInputRows"]:
                began = datetime.fromisoformat(each["timestamp"].replace("Z", "+00:00")).timestamp()
                found.append((began, began + each["durationMs"]["triggerExecution"] / 1e3))
        return found

    def more(self, count: int, limit: float = PATIENCE) -> None:
        """Wait until `count` batches more have ended."""
        since = time.time()
        self._until(lambda: sum(end > since for _, end in self.batches()) >= count, limit)

    def filled(self) -> None:
        """Wait until the state has all of its keys and batches are steady."""
        self._until(lambda: (self.query.lastProgress or {"batchId": -1})["batchId"] >= self.job.filling, 3 * PATIENCE)
        self.more(STEADY)

    def normal(self) -> float:
        """Seconds of a batch."""
        return statistics.median(end - began for began, end in self.batches()[-STEADY:])

    def spread(self) -> None:
        """Have every host hold as many state partitions as the others, and wait until batches run there, and copies too."""
        hosts = self.plant.hosts.usable
        for number, task in enumerate(sorted(self.plant.placing.tasks)):
            self.plant.apply(MoveTask(task, hosts[number % len(hosts)]))
        self._until(lambda: not self.plant.placing.wanted() and self._copied(), PATIENCE)
        self.more(STEADY)

    def _copied(self) -> bool:
        """Whether every state partition has its copies, none of which is more than a batch behind."""
        seen = self.plant.observe()
        wanted = seen.context.replicas * len(seen.tasks)
        return wanted == 0 or (len(seen.standby) >= wanted and bool((seen.standby.lag <= 1).all()))

    def replace(self, count: int = 1) -> None:
        """Lease `count` hosts and wait until they work."""
        first = self.plant.observe().next_host
        names = [f"h{number}" for number in range(first, first + count)]
        for name in names:
            self.plant.apply(LeaseHost(name, HOST.name))
        self._until(lambda: set(names) <= set(self.plant.hosts.usable), PATIENCE)

    def restart(self) -> None:
        """Stop the query and start it again from its checkpoint: what is left to do without anything of ours."""
        self.query.stop()
        self.query = self.job.start(self.plant.spark, self.checkpoint)

    def kill(self, *hosts: str) -> float:
        """SIGKILL to all of `hosts`; when."""
        cluster: Any = self.plant.hosts.provider
        at = time.time()
        for host in hosts:
            cluster.cluster.kill(host)
        return at

    def after(self, at: float, normal: float) -> Fault:
        """Wait until a batch that began after the fault at `at` is as long as before."""

        def ended() -> list[tuple[float, float]]:
            return [(began, end) for began, end in self.batches() if end > at]

        def as_before() -> list[int]:
            return [n for n, (began, end) in enumerate(ended()) if began > at and end - began <= NORMAL * normal]

        self._until(lambda: bool(as_before()), PATIENCE)
        first, seen = as_before()[0], ended()
        longest = max(end - began for began, end in seen[: first + 1])
        return Fault(normal, seen[first][1] - at, seen[0][1] - at, longest, first + 1)

    def restarted(self) -> bool:
        return self.query.runId != self._run or not self.query.isActive

    def wrong(self) -> int:
        """Stop the query: keys whose count differs from a batch query's over the records of all committed batches."""
        self.query.stop()
        spark = self.plant.spark
        committed = max(int(each.name) for each in (self.checkpoint / "commits").iterdir() if each.name.isdigit()) + 1
        state = spark.read.format("statestore").load(str(self.checkpoint)).selectExpr("key.key", "value.count as n")
        expected = self.job.counted(spark.range(committed * self.job.rows).withColumnRenamed("id", "value"))
        both = state.join(expected.withColumnRenamed("count", "m"), "key", "full_outer")
        return both.where("n is distinct from m").count()

    def _until(self, holds: Any, limit: float) -> None:
        def look() -> bool:
            self.plant.observe()
            if (error := self.query.exception()) is not None:
                raise error
            return bool(holds())

        wait_until(look, limit)


@contextmanager
def bed(
    job: Job,
    hosts: int,
    *,
    replicas: int = 0,
    state_store: StateStore = "memory",
    settings: Mapping[str, str] | None = None,
) -> Iterator[Bed]:
    """`job` on `hosts` hosts with equally many state partitions, with its state and steady."""
    with TemporaryDirectory(prefix="recovery-", ignore_cleanup_errors=True) as folder:
        root, started = Path(folder), []
        plant = start_beside(
            lambda spark: started.append(job.start(spark, root / "checkpoint")),
            Local(HOST, max_hosts=2 * hosts, min_hosts=hosts),
            RunDirectory.create(root / "runs", "recovery"),
            state_partitions=job.partitions,
            state_store=state_store,
            replicas=replicas,
            settings={"spark.sql.streaming.numRecentProgressUpdates": "1000", **(settings or {})},
        )
        try:
            made = Bed(plant, started[0], job, root / "checkpoint")
            made.filled()
            made.spread()
            yield made
        finally:
            plant.close()


# -- where the time goes ---------------------------------------------------------------------------------------------------


def timeline(log: Path, at: float, until: float) -> Sequence[str]:
    """What Spark's event log `log` says happened from `at` to `until`, a line each, with seconds since `at`."""
    rows: list[tuple[float, str]] = []
    for line in log.read_text().splitlines():
        event = json.loads(line)
        rows += _said(event)
    began = [(when, what) for when, what in rows if at - 1.5 <= when <= until]
    return [f"{when - at:+7.3f}  {what}" for when, what in sorted(began)]


def _said(event: Mapping[str, Any]) -> list[tuple[float, str]]:
    match event["Event"]:
        case "SparkListenerExecutorRemoved":
            return [(event["Timestamp"] / 1e3, f"executor {event['Executor ID']} removed: {event['Removed Reason'][:60]}")]
        case "SparkListenerExecutorAdded":
            return [(event["Timestamp"] / 1e3, f"executor {event['Executor ID']} added")]
        case "SparkListenerStageCompleted":
            info = event["Stage Info"]
            name = f"stage {info['Stage ID']}.{info['Stage Attempt ID']}"
            failed = f": failed, {info['Failure Reason'][:90]!r}" if "Failure Reason" in info else ""
            submitted = info.get("Submission Time", info["Completion Time"]) / 1e3
            return [
                (submitted, f"{name} submitted, {info['Number of Tasks']} tasks"),
                (info["Completion Time"] / 1e3, f"{name} ended{failed}"),
            ]
        case "SparkListenerTaskEnd":
            task, reason = event["Task Info"], event["Task End Reason"]["Reason"]
            name = f"task {event['Stage ID']}.{event['Stage Attempt ID']}/{task.get('Partition ID', task['Index'])}"
            where = f"on {task['Executor ID']} ({task['Locality']})"
            metrics = event.get("Task Metrics") or {}
            read = metrics.get("Shuffle Read Metrics", {}).get("Fetch Wait Time", 0)
            took = (task["Finish Time"] - task["Launch Time"]) / 1e3
            said = f"{name} {where} launched; {took:.3f} s, fetch wait {read / 1e3:.3f} s, {reason}"
            return [(task["Launch Time"] / 1e3, said)]
        case kind if kind.endswith("QueryProgressEvent"):
            found = event["progress"]
            found = json.loads(found) if isinstance(found, str) else found
            began = datetime.fromisoformat(found["timestamp"].replace("Z", "+00:00")).timestamp()
            parts = ", ".join(f"{name} {ms / 1e3:.2f}" for name, ms in found["durationMs"].items() if ms > 20)
            end = began + found["durationMs"].get("triggerExecution", 0) / 1e3
            return [(end, f"BATCH {found['batchId']} ended: {parts}")]
    return []


def kinds(log: Path) -> Counter[str]:
    """How many events of each kind: to see that the log is whole."""
    return Counter(json.loads(line)["Event"] for line in log.read_text().splitlines())


def told(name: str, faults: Collection[Fault]) -> None:
    """Progress: what faults cost."""
    for fault in faults:
        progress(f"{name}: {fault.recovered:.2f} s, {fault.recovered / fault.normal:.1f} batches of {fault.normal:.2f} s")
