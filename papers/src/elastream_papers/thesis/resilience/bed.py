"""Test rig that kills hosts of a stateful query (a `Job`), measures the cost of faults, and checks counts for exactness."""

import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.clouds.local.hosts import LocalHosts
from elastream.clouds.local.local import Local
from elastream.core.action import LeaseHost, MoveTask, ReleaseHost, SetTokens
from elastream.core.hosts import HostType
from elastream.core.observation import Observation
from elastream.core.ring import Ring, in_zones
from elastream.errors import EnvironmentProblem, first_line
from elastream.recording.directory import RunDirectory
from elastream.settings import RunSettings, StateStore
from elastream.spark.jvm.standby import OpenedReplica
from elastream.spark.jvm.state_partitions import StatefulStage
from elastream.spark.plant import SparkPlant
from elastream.spark.queries.query import Query
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.start import start_beside
from elastream_papers.thesis.resilience.job import Job

# four tasks at once, as the thesis's virtual machines (p. 145), with room for a neighbour's partitions
HOST = HostType("host", cores=1.0, slots=4, memory=1400.0)
# A normal batch takes at most this multiple of the median of so many before (project's bar)
NORMAL, BATCHES_BEFORE = 1.25, 50
STEADY = 10  # batches to wait after a change
PATIENCE = 180.0  # seconds without progress after which the query counts as hung
MENDING = 60.0  # seconds for a normal batch after a fault: forty times the bar


Moments: TypeAlias = tuple[float, float]  # begin and end, epoch seconds


@dataclass(frozen=True, slots=True)
class RecoveryCost:
    """Cost of a fault (seconds).

    normal: median batch before. recovered: until the first normal batch begun after the fault committed; infinite beyond
    MENDING. committed: until the first commit. longest: batch until then. batches: ended until then.
    """

    normal: float
    recovered: float
    committed: float
    longest: float
    batches: int


@dataclass(frozen=True, slots=True)
class Steps:
    """Times after a kill (seconds).

    detected: until the driver knew of the last loss. placed: until the state was on its successors. NaN if unknown. opened:
    partitions opened from a standby. files: read for them. opening: longest.
    """

    detected: float
    placed: float
    opened: int
    files: int
    opening: float


class Bed:
    """A running stateful query on hosts that can be killed. steady: batches to wait after a change."""

    def __init__(
        self, plant: SparkPlant[SessionQueries], query: StreamingQuery, job: Job, root: Path, steady: int = STEADY
    ) -> None:
        self.plant, self.query, self.job = plant, query, job
        self._root, self.steady, self._jobs = root, steady, 0
        self._run = query.runId

    @property
    def checkpoint(self) -> Path:
        """Return the running query's checkpoint."""
        return checkpoint_in(self._root, self._jobs)

    @property
    def operator(self) -> str:
        """Return the query's stateful stage; waits for a batch of it."""
        if not self._named():
            self.until(lambda seen: bool(self._named()))
        (operator,) = self._named()
        return operator

    @property
    def stage(self) -> StatefulStage:
        operator = self.operator
        return next(each.stages[operator] for each in self._observed_query if each.stages)

    @property
    def _observed_query(self) -> list[Query]:
        """Return the observed query; empty before the first observation."""
        return [each for each in self.plant.queries.live if each.run_id == self._run]

    def _named(self) -> list[str]:
        return [name for each in self._observed_query for name in each.operators]

    def batches(self) -> list[Moments]:
        """Return the recent batches with records, oldest first."""
        return [(batch.start, batch.end) for each in self._observed_query for batch in each.batches if batch.rows]

    def more(self, count: int) -> None:
        """Wait for `count` more batches, each within PATIENCE and its pace."""
        since = time.time()
        for ended in range(count):
            self._more_than(ended, since)

    def rate(self, window: float) -> float:
        """Return records/s over whole batches of `window` seconds, or longer if none is whole."""
        since = time.time()
        self.until(lambda seen: time.time() > since + window, window + PATIENCE)
        self._more_than(0, since, whole=True)
        seen = [(began, end) for began, end in self.batches() if began > since]
        return self.job.rows * len(seen) / (seen[-1][1] - seen[0][0])

    def filled(self) -> None:
        """Wait until the state has all of its keys."""
        self.until(lambda seen: self.newest() >= self.job.filling, 3 * PATIENCE)

    def normal(self, batches: int = BATCHES_BEFORE) -> float:
        """Return median seconds of the last batches."""
        return statistics.median(end - began for began, end in self.batches()[-batches:])

    def spread(self) -> None:
        """Spread the state partitions evenly; wait for it, and for standby copies."""
        hosts = self.ring().nodes
        for number, task in enumerate(sorted(self.plant.placing.tasks)):
            self.plant.apply(MoveTask(task, hosts[number * len(hosts) // len(self.plant.placing.tasks)]))
        self.settled()

    def ring(self) -> Ring:
        """Return the working hosts at even tokens, neighbours in distinct fault zones."""
        leases = self.plant.hosts.leases
        return Ring.even(in_zones({host: leases[host].type.zone for host in self.plant.hosts.usable}))

    def placed(self, ring: Ring) -> None:
        """Move the state to the hosts of `ring`; wait for the first such batch."""
        self.plant.apply(SetTokens(self.operator, tuple(ring.tokens.items())))

    def shares(self) -> Mapping[str, float]:
        """Return the share of the state partitions that each host ran last."""
        found = dict.fromkeys(self.plant.hosts.usable, 0.0)
        for task, host in self.plant.reconciler.locations().items():
            if task.operator == self.operator:
                found[host] = found.get(host, 0.0) + 1 / self.job.partitions
        return found

    def worked(self) -> tuple[int, Mapping[str, float]]:
        """Return (newest batch with reported tasks, core-seconds of its stateful tasks by host)."""
        host_of, found = self.plant.hosts.host_of(), dict.fromkeys(self.plant.hosts.usable, 0.0)
        load = next((each.newest_load(self.operator) for each in self._observed_query), None)
        if load is None:
            return -1, found
        for executor, seconds in zip(load.executor, load.busy.tolist(), strict=True):
            if (host := host_of.get(executor)) is not None:
                found[host] = found.get(host, 0.0) + seconds
        return load.batch, found

    def first_batch_on(self, hosts: Collection[str], since: float) -> float:
        """Wait until a partition moved after `since` ran on one of `hosts`; return that batch's end."""
        epoch = self.plant.clock.epoch

        def landed() -> list[float]:
            moves = [each for each in self.plant.placing.landed if each.host in hosts]
            return [at for each in moves if (at := epoch + each.history[-1][0]) > since]

        self.until(lambda seen: bool(landed()))
        first = min(landed())
        self._more_than(0, first)  # that batch may have been observed later
        return max(end for _, end in self.batches() if end <= first)

    def settled(self) -> None:
        """Wait until no state moves, standby copies exist, and batches are steady."""
        self.until(lambda seen: not self.plant.placing.targets() and copied(seen))
        self.more(self.steady)

    def release(self, host: str) -> None:
        """Release `host` and wait until it is gone."""
        self.plant.apply(ReleaseHost(host))
        self.until(lambda seen: host not in seen.leases)

    def lease(self, types: Sequence[HostType]) -> tuple[str, ...]:
        """Lease hosts of these types; wait until they work and return their names."""
        first = self.plant.observe().next_host
        names = tuple(f"h{number}" for number in range(first, first + len(types)))
        for name, kind in zip(names, types, strict=True):
            self.plant.apply(LeaseHost(name, kind.name))
        self.until(lambda seen: set(names) <= set(self.plant.hosts.usable))
        return names

    def whole(self, hosts: int) -> None:
        """Lease hosts, equally by type, until there are `hosts`."""
        types, leases = self.plant.context.host_types, self.plant.hosts.leases.values()
        leased = Counter(lease.type.name for lease in leases if lease.active)
        if missing := [kind for name, kind in types.items() for _ in range(hosts // len(types) - leased[name])]:
            self.lease(missing)

    def in_place_of(self, hosts: Sequence[str]) -> None:
        """Lease hosts like the killed ones, and spread the state partitions."""
        self.lease([self.plant.hosts.leases[host].type for host in hosts])
        self.spread()

    def restart(self) -> None:
        """Restart the query from its checkpoint."""
        self.query.stop()
        self.query = self.job.start(self.plant.spark, self.checkpoint)
        self._run = self.query.runId

    def run(self, job: Job, start: "Start" = Job.start) -> None:
        """Replace the query with `job` on the same hosts; wait until its state is even."""
        self.start(job, start)
        self.begin()

    def start(self, job: Job, start: "Start" = Job.start) -> None:
        """Replace the query with `job`, without state."""
        self.query.stop()
        self.job, self._jobs = job, self._jobs + 1
        self.plant.spark.conf.set("spark.sql.shuffle.partitions", str(job.partitions))
        self.query = start(job, self.plant.spark, self.checkpoint)
        self._run = self.query.runId

    def begin(self) -> None:
        """Wait until the state is filled and even."""
        self.filled()
        if self.plant.placing.tasks:
            self.spread()

    def kill(self, *hosts: str) -> float:
        """SIGKILL all processes of `hosts`; return epoch seconds of the first."""
        provider = cast(LocalHosts, self.plant.hosts.provider)
        at = time.time()
        for host in hosts:
            provider.cluster.kill(host)
        return at

    def apart(self, count: int, first: int = 0) -> tuple[str, ...]:
        """Return every second host of the ring from place `first`, `count` in all."""
        nodes = self.ring().nodes
        return (*nodes[first:], *nodes[:first])[: 2 * count : 2]

    def after(self, at: float, normal: float) -> RecoveryCost:
        """Wait for a normal batch begun after the fault at `at`, at most MENDING seconds."""

        def first() -> tuple[list[Moments], int]:
            batches = [(began, end) for began, end in self.batches() if end > at]
            as_before = [n for n, (began, end) in enumerate(batches) if began > at and end - began <= NORMAL * normal]
            return batches, as_before[0] if as_before else -1

        self.until(lambda seen: first()[1] >= 0 or time.time() > at + MENDING)
        seen, number = first()
        until = seen if number < 0 else seen[: number + 1]
        recovered = math.inf if number < 0 else seen[number][1] - at
        longest = max((end - began for began, end in until), default=math.inf)
        return RecoveryCost(normal, recovered, seen[0][1] - at if seen else math.inf, longest, len(until))

    def opened(self) -> Sequence[OpenedReplica]:
        """Return standby copies that tasks have opened, as reported so far."""
        desk = self.plant.instruments.copies
        return () if desk is None else desk.opened()

    def steps(self, at: float, before: int) -> Steps:
        """Return the times after the kill at `at`. before: copies opened until then."""
        losses = [] if self.plant.failover is None else [each for each in self.plant.failover.losses if each.at > at]
        opened = self.opened()[before:]
        return Steps(
            max((each.at - at for each in losses), default=math.nan),
            max((each.at + each.took - at for each in losses), default=math.nan),
            len(opened),
            sum(each.files for each in opened),
            max((each.seconds for each in opened), default=math.nan),
        )

    @property
    def restarted(self) -> bool:
        """Return True if the query ended or restarted by itself."""
        live = self.plant.queries.live
        return not self.query.isActive or not live or live[0].run_id != self._run

    def wrong(self) -> int:
        """Stop the query; return keys whose count differs from a batch query's over committed batches."""
        self.query.stop()
        spark = self.plant.spark
        committed = max(int(each.name) for each in (self.checkpoint / "commits").iterdir() if each.name.isdigit()) + 1
        state = spark.read.format("statestore").load(str(self.checkpoint)).selectExpr("key.key", "value.count as n")
        expected = self.job.counted(spark.range(committed * self.job.rows).withColumnRenamed("id", "value"))
        both = state.join(expected.withColumnRenamed("count", "m"), "key", "full_outer")
        return both.where("n is distinct from m").count()

    def until(self, holds: Callable[[Observation], bool], limit: float = PATIENCE) -> Observation:
        """Observe until `holds`. Raises EnvironmentProblem after `limit` seconds or if the query failed."""
        until = time.monotonic() + limit
        while not holds(seen := self.plant.observe()):
            if (error := self.query.exception()) is not None:
                raise EnvironmentProblem(f"the query failed: {first_line(error)}")
            if time.monotonic() > until:
                raise EnvironmentProblem(f"what was waited for did not come within {limit:g} s")
            time.sleep(LOOK)
        return seen

    def newest(self) -> int:
        """Return the newest observed batch's number; -1 before the first."""
        return max((each.newest for each in self._observed_query), default=-1)

    def _more_than(self, ended: int, since: float, *, whole: bool = False) -> None:
        """Wait for more than `ended` batches after `since`; whole: begun after it, too."""

        def more(seen: Observation) -> bool:
            return sum((began if whole else end) > since for began, end in self.batches()) > ended

        self.until(more, PATIENCE + self.job.pace)


LOOK = 0.5  # Seconds between observations while waiting: each costs the driver, and so batches. Times come from batches.


def copied(seen: Observation) -> bool:
    """Return True if every state partition has copies at most a batch behind."""
    required = seen.context.replicas * len(seen.tasks)
    return required == 0 or (len(seen.standby) >= required > 0 and bool((seen.standby.lag <= 1).all()))


# starts a query in place of the job's own, with its checkpoint in the folder
Start: TypeAlias = Callable[[Job, SparkSession, Path], StreamingQuery]


def checkpoint_in(root: Path, number: int) -> Path:
    return root / f"checkpoint-{number}"


@contextmanager
def bed(
    job: Job,
    hosts: int,
    *,
    replicas: int = 0,
    zones: int = 1,
    state_store: StateStore = "memory",
    settings: Mapping[str, str] | None = None,
    steady: int = STEADY,
    host: HostType = HOST,
    **local: Any,
) -> Iterator[Bed]:
    """Run `job` on `hosts` hosts with equal state partitions, its state filled.

    zones: fault zones of equal size. host: each one, but for its zone. local: of `Local`; it keeps all hosts by default.
    """
    types = [replace(host, name=f"{host.name}-{number}", zone=f"zone {number}") for number in range(1, zones + 1)]
    with tempfile.TemporaryDirectory(prefix="recovery-", ignore_cleanup_errors=True) as folder:
        root, started = Path(folder), list[StreamingQuery]()
        plant = start_beside(
            lambda spark: started.append(job.start(spark, checkpoint_in(root, 0))),
            RunDirectory.create(root / "runs", "recovery"),
            RunSettings(
                cloud=Local(host_types=types, **{"max_hosts": 2 * hosts, "min_hosts": hosts // zones, **local}),
                state_partitions=job.partitions,
                state_store=state_store,
                replicas=replicas,
                settings=settings,
            ),
        )
        try:
            made = Bed(plant, started[0], job, root, steady)
            made.whole(hosts)
            made.begin()
            yield made
        finally:
            plant.close()
