"""A count over a state of any size on hosts that are killed: what a fault costs, and whether anything was lost.

The query is any user's: native Spark, watched and not compiled. Its records are numbered, so that what must be counted is
known whatever happened, and each batch brings as many of them.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elastream.clouds.local.hosts import LocalHosts
from elastream.clouds.local.local import Local
from elastream.model.action import LeaseHost, MoveTask, ReleaseHost
from elastream.model.cloud import HostType
from elastream.model.errors import EnvironmentProblem, first_line
from elastream.model.observation import Observation
from elastream.recording.directory import RunDirectory
from elastream.spark.jvm.session import StateStore
from elastream.spark.plant import SparkPlant
from elastream.spark.queries.watched import WatchedQueries
from elastream.spark.start import start_beside

__all__ = ["BATCHES_BEFORE", "HOST", "NORMAL", "Bed", "Job", "Mended", "bed"]

HOST = HostType("host", cores=1.0, slots=4, memory=1400.0)
"""Four tasks at once, as the thesis's virtual machines (p. 145): there is room for a neighbour's state partitions."""
NORMAL, BATCHES_BEFORE = 1.25, 50
"""A batch is as before if it takes at most so many times the median of so many batches before (the project's bar)."""
STEADY = 10
"""Batches that are waited for after anything has changed, before anything is measured."""
PATIENCE = 180.0
"""Seconds without what is waited for after which the query counts as hung."""
STRIDE = 7_368_787
"""Prime: records in a row have keys far apart, so that each batch has keys of all state partitions."""


@dataclass(frozen=True, slots=True)
class Job:
    """keys: of the state, all of which are there before anything is measured. rows: of a batch. pace: seconds from one
    batch to the next, 0 for the next as soon as one has ended. partitions: of the state. zipf: keys come as words do in a
    text (Zipf's law), not evenly; of rare ones some never come.
    """

    keys: int
    rows: int
    pace: float = 1.0
    partitions: int = 8
    zipf: bool = False

    @property
    def filling(self) -> int:
        """Batches until each key has been seen, or has had that many chances to."""
        return -(-self.keys // self.rows)

    def source(self, spark: SparkSession) -> DataFrame:
        """The stream of records, with their numbers as `value`."""
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self.rows).option("numPartitions", 4)
        return source.load()

    def keyed(self, numbers: DataFrame) -> DataFrame:
        """The `key` of each record, by its number alone."""
        return numbers.select(self._key().alias("key"))

    def counted(self, numbers: DataFrame) -> DataFrame:
        """Count of each key."""
        return self.keyed(numbers).groupBy("key").count()

    def start(self, spark: SparkSession, checkpoint: Path) -> StreamingQuery:
        """Start the query, or go on from its checkpoint."""
        writer = self.counted(self.source(spark)).writeStream.outputMode("update").format("noop")
        paced = writer.trigger(processingTime=f"{self.pace:g} seconds")
        return paced.option("checkpointLocation", str(checkpoint)).start()

    def _key(self) -> Column:
        if not self.zipf:
            return F.col("value") * STRIDE % self.keys
        # Uniform in (0, 1) by the number, to the rank: of Zipf's law with exponent 1, log(rank) is uniform.
        uniform = (F.pmod(F.xxhash64("value"), F.lit(1 << 30)) + 0.5) / float(1 << 30)
        return F.floor(F.pow(F.lit(float(self.keys)), uniform)) - 1


@dataclass(frozen=True, slots=True)
class Mended:
    """What a fault cost.

    normal: median seconds of the BATCHES_BEFORE batches before. recovered: seconds from the fault to the commit of the
    first batch that began after it and took at most NORMAL times that. committed: to the commit of the first batch after
    it. longest: of the batches until then, in seconds. batches: ended until then.
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

    def more(self, count: int) -> None:
        """Wait until `count` batches more have ended, each within PATIENCE and its pace of the one before it."""
        since = time.time()
        for ended in range(count):
            self._more_than(ended, since)

    def rate(self, window: float) -> float:
        """Records/s over whole batches of `window` seconds, or longer where none is whole by then."""
        since = time.time()
        self.until(lambda seen: time.time() > since + window, window + PATIENCE)
        self._more_than(0, since, whole=True)
        seen = [(began, end) for began, end in self.batches() if began > since]
        return self.job.rows * len(seen) / (seen[-1][1] - seen[0][0])

    def filled(self) -> None:
        """Wait until the state has all of its keys."""
        self.until(lambda seen: self._newest() >= self.job.filling, 3 * PATIENCE)

    def normal(self) -> float:
        """Median seconds of a batch."""
        return statistics.median(end - began for began, end in self.batches()[-BATCHES_BEFORE:])

    def spread(self) -> None:
        """Have every host hold as many state partitions as the others; wait until that is so, and copies are kept."""
        hosts = self.plant.hosts.usable
        for number, task in enumerate(sorted(self.plant.placing.tasks)):
            self.plant.apply(MoveTask(task, hosts[number * len(hosts) // len(self.plant.placing.tasks)]))
        self.settled()

    def settled(self) -> None:
        """Wait until no state moves, copies are kept, and batches are steady."""
        self.until(lambda seen: not self.plant.placing.wanted() and copied(seen))
        self.more(STEADY)

    def release(self, host: str) -> None:
        """Give `host` back, and wait until it is gone."""
        self.plant.apply(ReleaseHost(host))
        self.until(lambda seen: host not in seen.leases)

    def lease(self, types: Sequence[HostType]) -> tuple[str, ...]:
        """Lease hosts of these types and wait until they work; their names."""
        first = self.plant.observe().next_host
        names = tuple(f"h{number}" for number in range(first, first + len(types)))
        for name, kind in zip(names, types, strict=True):
            self.plant.apply(LeaseHost(name, kind.name))
        self.until(lambda seen: set(names) <= set(self.plant.hosts.usable))
        return names

    def in_place_of(self, hosts: Sequence[str]) -> None:
        """Lease hosts like those that were killed, and spread the state partitions over all."""
        self.lease([self.plant.hosts.leases[host].type for host in hosts])
        self.spread()

    def restart(self) -> None:
        """Stop the query and start it again from its checkpoint."""
        self.query.stop()
        self.query = self.job.start(self.plant.spark, self.checkpoint)
        self._run = self.query.runId

    def kill(self, *hosts: str) -> float:
        """SIGKILL to all processes of `hosts`; epoch seconds of the first."""
        provider = cast(LocalHosts, self.plant.hosts.provider)
        at = time.time()
        for host in hosts:
            provider.cluster.kill(host)
        return at

    def apart(self, count: int) -> tuple[str, ...]:
        """So many hosts, no two of which are neighbours on the ring of the query's first stage with state."""
        ring = self.plant.rings.of(self.plant.queries.live[0].operators[0])
        assert ring is not None
        return ring.nodes[: 2 * count : 2]

    def after(self, at: float, normal: float) -> Mended:
        """Wait until a batch that began after the fault at `at` takes what batches took before."""

        def first() -> tuple[list[tuple[float, float]], int]:
            seen = [(began, end) for began, end in self.batches() if end > at]
            as_before = [n for n, (began, end) in enumerate(seen) if began > at and end - began <= NORMAL * normal]
            return seen, as_before[0] if as_before else -1

        self.until(lambda seen: first()[1] >= 0)
        seen, number = first()
        longest = max(end - began for began, end in seen[: number + 1])
        return Mended(normal, seen[number][1] - at, seen[0][1] - at, longest, number + 1)

    @property
    def restarted(self) -> bool:
        """Whether the query has ended or started anew without `restart`."""
        live = self.plant.queries.live
        return not self.query.isActive or not live or live[0].run_id != self._run

    def wrong(self) -> int:
        """Stop the query: keys whose count differs from a batch query's over the records of all committed batches."""
        self.query.stop()
        spark = self.plant.spark
        committed = max(int(each.name) for each in (self.checkpoint / "commits").iterdir() if each.name.isdigit()) + 1
        state = spark.read.format("statestore").load(str(self.checkpoint)).selectExpr("key.key", "value.count as n")
        expected = self.job.counted(spark.range(committed * self.job.rows).withColumnRenamed("id", "value"))
        both = state.join(expected.withColumnRenamed("count", "m"), "key", "full_outer")
        return both.where("n is distinct from m").count()

    def until(self, holds: Callable[[Observation], bool], limit: float = PATIENCE) -> Observation:
        """Observe until `holds`. Raises EnvironmentProblem after `limit` seconds without, or where the query has failed."""
        until = time.monotonic() + limit
        while not holds(seen := self.plant.observe()):
            if (error := self.query.exception()) is not None:
                raise EnvironmentProblem(f"the query failed: {first_line(error)}")
            if time.monotonic() > until:
                raise EnvironmentProblem(f"what was waited for did not come within {limit:g} s")
            time.sleep(LOOK)
        return seen

    def _more_than(self, ended: int, since: float, *, whole: bool = False) -> None:
        """Wait until more than so many batches have ended after `since`; whole: have begun after it, too."""

        def more(seen: Observation) -> bool:
            return sum((began if whole else end) > since for began, end in self.batches()) > ended

        self.until(more, PATIENCE + self.job.pace)

    def _newest(self) -> int:
        newest = self.query.lastProgress
        return -1 if newest is None else int(newest["batchId"])


LOOK = 0.2
"""Seconds between two observations while something is waited for: times are read from batches, not from these."""


def copied(seen: Observation) -> bool:
    """Whether every state partition has its copies, none of which is more than a batch behind."""
    wanted = seen.context.replicas * len(seen.tasks)
    return wanted == 0 or (len(seen.standby) >= wanted > 0 and bool((seen.standby.lag <= 1).all()))


@contextmanager
def bed(
    job: Job,
    hosts: int,
    *,
    replicas: int = 0,
    zones: int = 1,
    state_store: StateStore = "memory",
    settings: Mapping[str, str] | None = None,
    start: Callable[[Job, SparkSession, Path], StreamingQuery] = Job.start,
) -> Iterator[Bed]:
    """`job` on `hosts` hosts with equally many state partitions, its state filled.

    zones: fault zones, each with as many hosts. start: starts the query in place of the job's own.
    """
    types = [replace(HOST, name=f"{HOST.name}-{number}", zone=f"zone {number}") for number in range(1, zones + 1)]
    with tempfile.TemporaryDirectory(prefix="recovery-", ignore_cleanup_errors=True) as folder:
        root, started = Path(folder), list[StreamingQuery]()
        plant = start_beside(
            lambda spark: started.append(start(job, spark, root / "checkpoint")),
            Local(host_types=types, max_hosts=2 * hosts, min_hosts=hosts // zones),
            RunDirectory.create(root / "runs", "recovery"),
            state_partitions=job.partitions,
            state_store=state_store,
            replicas=replicas,
            settings={"spark.sql.streaming.numRecentProgressUpdates": "1000", **(settings or {})},
        )
        try:
            made = Bed(plant, started[0], job, root / "checkpoint")
            made.lease([type for type in types[1:] for _ in range(hosts // zones)])
            made.filled()
            if plant.placing.tasks:
                made.spread()
            yield made
        finally:
            plant.close()
