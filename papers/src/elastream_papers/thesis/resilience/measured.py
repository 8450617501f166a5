"""Chapter 6 of the thesis on Spark: cost of lost and joining hosts, of moved intervals, and use of standby copies.

One cluster of four hosts in two fault zones; states are compared with a batch query's. Jobs were fixed before measuring.
"""

import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elastream.errors import ElastreamError, in_one_line
from elastream.spark.telemetry.state_files import folders_of, local_path
from elastream_papers.thesis.resilience.balancing import CORES, balanced_after
from elastream_papers.thesis.resilience.bars import DELTA_RATE
from elastream_papers.thesis.resilience.bed import BATCHES_BEFORE, HOST, STEADY, Bed, RecoveryCost, Steps, bed
from elastream_papers.thesis.resilience.checkpoint_files import delta_over_full, state_files
from elastream_papers.thesis.resilience.job import Job
from elastream_papers.thesis.resilience.outside import OutsideStore, count_outside, missing, outside_store
from elastream_papers.thesis.resilience.scene import ResilienceAssumptions

HOSTS, ZONES = 4, 2
# 20,000 records/s (thesis: 15,000 messages/s, Fig. 6.13(b)); two state partitions per host
STREAM = Job(keys=20_000, rows=5_000, pace=0.25, partitions=8)
FULL = Job(keys=50_000, rows=100_000, pace=0.0)  # full speed: a full batch is always ready
# partitions of an interval that moves, records of a batch, and partitions in all
MOVED, RATES, PARTS = (1, 2), (5_000, 20_000), 16
INTERVALS = (1.0, 2.0, 5.0, 10.0, 20.0)  # seconds between checkpoints (Fig. 6.12: 1 to 20): ends of batches here
# Words of the texts for checkpoint sizes, and words per second, as in the simulated runs. An interval's records come as one
# batch, since checkpoints end batches.
VOCABULARY, WORDS = round(ResilienceAssumptions().vocabulary), round(DELTA_RATE)
TOLD = 3  # batches until executors report opened copies (each 0.4 s)
SKEW = "a skew is balanced"  # part with its own cluster, of slower hosts
SEED = 1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of measurements.

    faults: by number of hosts at once. before, steady: batches to compare with, and to wait. moved: partitions. window:
    seconds.
    """

    faults: int = 10
    before: int = BATCHES_BEFORE
    steady: int = STEADY
    rounds: int = 5
    moves: int = 5
    moved: Sequence[int] = MOVED
    skews: int = 5
    window: float = 20.0
    intervals: Sequence[float] = INTERVALS

    @classmethod
    def quick(cls) -> "Sizes":
        """Return the sizes of a functional check."""
        return cls(1, 15, 4, 1, 1, MOVED[:1], 1, 5.0, INTERVALS[:2])


@dataclass
class Resilience:
    """Measurements, in seconds unless stated.

    speeds: records/s by place of the state. balanced: batches from a skew until balance; infinite if never. joined: to
    the first batch on an idle host, and on a leased one. moved: longest batch over the median, by (partitions, records).
    deltas: part of the state in a checkpoint, by interval. faults: by hosts killed. taken: part of the records on the
    neighbour, before and after. wrong: counts that differ, by part. restarts: by part. failed: incomplete parts with
    reasons. remarks: reasons for missing values.
    """

    speeds: dict[str, list[float]] = field(default_factory=dict)
    balanced: list[float] = field(default_factory=list)
    joined: dict[str, list[float]] = field(default_factory=lambda: {"idle": [], "leased": []})
    moved: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    deltas: dict[float, float] = field(default_factory=dict)
    faults: dict[int, list[RecoveryCost]] = field(default_factory=dict)
    steps: dict[int, list[Steps]] = field(default_factory=dict)
    taken: list[tuple[float, float]] = field(default_factory=list)
    wrong: dict[str, int] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def zone(self) -> Sequence[RecoveryCost]:
        """Return losses of a whole fault zone: with two zones, hosts apart on the ring are one zone's."""
        return self.faults.get(HOSTS // ZONES, [])

    def figures(self) -> Mapping[str, Any]:
        """Return JSON-ready figures; null for infinite ones."""
        return {
            "records a second": self.speeds,
            "batches until balanced": [_finite(each) for each in self.balanced],
            "seconds to the first batch on a new host": self.joined,
            "longest over median batch while an interval moves": {
                f"{count} partitions, {rows} records a batch": runs for (count, rows), runs in self.moved.items()
            },
            "delta over the whole state": {f"{seconds:g} s": part for seconds, part in self.deltas.items()},
            "recovery": {
                f"{count} at once": [_finite_only(each) for each in all_of] for count, all_of in self.faults.items()
            },
            "steps of a recovery": {
                f"{count} at once": [_finite_only(each) for each in all_of] for count, all_of in self.steps.items()
            },
            "records of the neighbour, before and after": self.taken,
            "wrong counts": self.wrong,
            "restarts": self.restarts,
            "failed": self.failed,
            "not measured": self.remarks,
        }

    def close(self, part: str, made: Bed) -> None:
        """Record if a part lost anything or restarted; callable more than once."""
        self.restarts[part] = self.restarts.get(part, 0) + int(made.restarted)
        self.wrong[part] = self.wrong.get(part, 0) + made.wrong()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _finite_only(found: RecoveryCost | Steps) -> Mapping[str, Any]:
    return {name: _finite(value) for name, value in asdict(found).items()}


# parts that can be measured alone, with their topics
NAMES: Mapping[str, str] = {
    "kills": "hosts and a zone killed",
    "moves": "an interval moves",
    "checkpoints": "checkpoints",
    "throughput": "throughput",
    "skew": SKEW,
}

Part = Callable[[Resilience, Sizes, Bed], None]  # measures with its own queries on a whole cluster


def measure(sizes: Sizes, progress: Callable[[str, int, int], None], only: str | None = None) -> Resilience:
    """Measure all parts, or `only` one of NAMES; a failure does not affect other results."""
    found = Resilience()
    every: Mapping[str, Part] = {"kills": killed, "moves": moving, "checkpoints": checkpoints, "throughput": throughput}
    parts = {name: part for name, part in every.items() if only in (None, name)}
    count = len(parts) + (only in (None, "skew"))

    def on_one_cluster() -> None:
        progress("a cluster of four hosts starts", 0, count)
        with bed(STREAM, HOSTS, replicas=1, zones=ZONES, steady=sizes.steady) as made:
            for number, (name, part) in enumerate(parts.items()):
                progress(NAMES[name], number, count)
                attempt(found, NAMES[name], partial(on_all_hosts, part, found, sizes, made))

    def on_slower_hosts() -> None:
        progress(SKEW, len(parts), count)
        with bed(STREAM, HOSTS, replicas=1, zones=ZONES, steady=sizes.steady, host=replace(HOST, cores=CORES)) as made:
            balancing(found, sizes, made)

    if parts:
        attempt(found, "the cluster", on_one_cluster)
    if count > len(parts):
        attempt(found, SKEW, on_slower_hosts)
    progress("done", count, count)
    return found


def attempt(found: Resilience, name: str, part: Callable[[], None]) -> None:
    """Measure `part`, or record its failure."""
    try:
        part()
    except Exception as error:
        found.failed[name] = in_one_line(error)
        log.warning("%s: %s", name, found.failed[name], exc_info=not isinstance(error, ElastreamError))


def on_all_hosts(part: Part, found: Resilience, sizes: Sizes, made: Bed) -> None:
    """Measure `part` with one standby copy; first leases hosts that are missing."""
    made.whole(HOSTS)
    made.plant.standby.replicas = 1
    part(found, sizes, made)


def killed(found: Resilience, sizes: Sizes, made: Bed) -> None:
    """Kill one host, then one zone (r = 1), and let new hosts take their state (Figs. 6.11(b) and 6.13).

    A zone is half of the hosts, no two of them neighbours.
    """
    chance = random.Random(SEED)
    counts = [count for count in range(1, HOSTS // 2 + 1) for _ in range(sizes.faults)]
    chance.shuffle(counts)
    for count in counts:
        made.more(sizes.before)
        normal, hosts = made.normal(sizes.before), made.apart(count, chance.randrange(HOSTS))
        if count == 1:
            heir = made.ring().successors(hosts[0], 1)[0]
            before = made.shares()[heir]
        opened = len(made.opened())
        time.sleep(chance.random() * max(normal, STREAM.pace))
        at = made.kill(*hosts)
        found.faults.setdefault(count, []).append(made.after(at, normal))
        made.more(TOLD)
        found.steps.setdefault(count, []).append(made.steps(at, opened))
        if count == 1:
            found.taken.append((before, made.shares()[heir]))
        for kind, seconds in joined(made, hosts).items():
            found.joined[kind].append(seconds)
    found.close("hosts and a zone killed", made)


def joined(made: Bed, lost: Sequence[str]) -> Mapping[str, float]:
    """Lease hosts in place of lost ones; once idle, each takes its part of the state."""
    asked = time.time()
    hosts = made.lease([made.plant.hosts.leases[host].type for host in lost])
    told = time.time()
    made.placed(made.ring())
    there = made.first_batch_on(hosts, told)
    made.settled()
    return {"idle": there - told, "leased": there - asked}


def moving(found: Resilience, sizes: Sizes, made: Bed) -> None:
    """Move part of an interval to the neighbour (Fig. 6.11(c))."""
    for rows in RATES:
        made.run(replace(STREAM, rows=rows, partitions=PARTS))
        for count in sizes.moved:
            for _ in range(sizes.moves):
                found.moved.setdefault((count, rows), []).append(longest_over_median(made, count, sizes.before))
        found.close(f"moved at {rows} records a batch", made)


def longest_over_median(made: Bed, count: int, before: int) -> float:
    """Move the second host's token back by `count` partitions; return the longest batch until done."""
    ring = made.ring()
    made.placed(ring)
    made.settled()
    normal, since = made.normal(before), time.time()
    second = ring.nodes[1]
    made.placed(ring.at(second, ring.tokens[second] - count / made.job.partitions))
    made.settled()
    return max(end - began for began, end in made.batches() if end > since) / normal


def balancing(found: Resilience, sizes: Sizes, made: Bed) -> None:
    """Repeat one host's keys, and let the policy `ring` move tokens (Fig. 6.11(a))."""
    for _ in range(sizes.skews):
        found.balanced.append(balanced_after(made))
        found.close(SKEW, made)


def checkpoints(found: Resilience, sizes: Sizes, made: Bed) -> None:
    """Measure checkpoint size relative to state size, by interval (Fig. 6.12)."""
    for seconds in sizes.intervals:
        made.run(Job(VOCABULARY, round(WORDS * seconds), pace=0.0, words=True))
        found.deltas[seconds] = delta(made)
        found.close(f"checkpoints every {seconds:g} s", made)


def delta(made: Bed) -> float:
    """Return a checkpoint's bytes over the state's, from the newest files of each partition."""
    stage = made.stage

    def ratio() -> float:
        folders = [folder for stores in folders_of(stage) for folder in stores]
        return delta_over_full([state_files(f"{local_path(stage.root)}/{folder}") for folder in folders])

    made.until(lambda seen: not math.isnan(ratio()))
    return ratio()


def throughput(found: Resilience, sizes: Sizes, made: Bed) -> None:
    """Measure records/s with none, one and two standby copies, and with state in a server (p. 147)."""
    chance, kept_outside = random.Random(SEED), not (why := missing())
    if why:
        found.remarks.append(f"state kept outside: {why}")

    def copied() -> None:
        made.run(FULL)
        for copies in chance.sample(range(3), 3):
            found.speeds.setdefault(f"r = {copies}", []).append(speed_of(made, copies, sizes.window))
        found.close("throughput", made)

    def beside() -> None:
        if kept_outside:
            found.speeds.setdefault("outside", []).append(outside(made, sizes.window))

    for _ in range(sizes.rounds):
        for way in chance.sample((copied, beside), 2):
            way()


def speed_of(made: Bed, copies: int, window: float) -> float:
    """Return records/s with so many copies of each state partition."""
    made.plant.standby.replicas = copies
    made.settled()
    return made.rate(window)


def outside(made: Bed, window: float) -> float:
    """Return records/s of the same count with state in Redis."""
    with TemporaryDirectory(prefix="outside-") as folder, outside_store(Path(folder) / "store") as store:
        made.run(FULL, partial(keeping_outside, store))
        made.more(made.steady)
        speed = made.rate(window)
        made.query.stop()
    return speed


def keeping_outside(store: OutsideStore, job: Job, spark: SparkSession, checkpoint: Path) -> StreamingQuery:
    """Start `job` with its state in `store`."""
    keys = job.keyed(job.source(spark)).select(F.col("key").cast("string").alias("word"))
    return count_outside(keys, store, checkpoint, "outside")
