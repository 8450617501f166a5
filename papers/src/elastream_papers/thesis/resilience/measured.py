"""Chapter 6 of the thesis on Spark: the cost of lost hosts, of joining hosts and of moved intervals, and the use of copies.

All parts run on one cluster, four hosts in two fault zones; each query's state is compared with a batch query's. Jobs and
numbers were chosen before any measurement.
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
from elastream.spark.telemetry.state_files import delta_over_full, folders_of, state_files
from elastream_papers.thesis.resilience.balancing import CORES, balanced_after
from elastream_papers.thesis.resilience.bars import DELTA_RATE
from elastream_papers.thesis.resilience.bed import BATCHES_BEFORE, STEADY, Bed, Mended, Steps, bed
from elastream_papers.thesis.resilience.job import Job
from elastream_papers.thesis.resilience.outside import OutsideStore, count_outside, missing, outside_store
from elastream_papers.thesis.resilience.scene import ResilienceAssumptions

HOSTS, ZONES = 4, 2
STREAM = Job(keys=20_000, rows=5_000, pace=0.25, partitions=8)
"""20,000 records/s, where the thesis has 15,000 messages/s (Fig. 6.13(b)); two state partitions a host of four slots."""
FULL = Job(keys=50_000, rows=100_000, pace=0.0)
"""As fast as it goes: a full batch is always ready."""
MOVED, RATES, PARTS = (1, 2), (5_000, 20_000), 16
"""State partitions of an interval that moves, records of a batch, and state partitions in all, four a host."""
INTERVALS = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds between checkpoints (Fig. 6.12: 1 to 20), which are the ends of batches here."""
VOCABULARY, WORDS = round(ResilienceAssumptions().vocabulary), round(DELTA_RATE)
"""Words of the texts of which checkpoints are compared with the state, and how many come a second: as in the simulated
runs. Checkpoints are ends of batches, so what an interval brings is a batch, however soon the next one comes."""
TOLD = 3
"""Batches after a recovery within which executors have reported which copies were opened (each 0.4 s)."""
SKEW = "a skew is balanced"
"""Part that has a cluster of its own, of slower hosts."""
SEED = 1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How often each is done. faults: of each number of hosts at once. before: batches that a fault is compared with.
    steady: batches that are waited for after a change. moved: state partitions of an interval that moves. window: seconds
    that records/s are taken over.
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
        """Shows that it works, and proves less."""
        return cls(1, 15, 4, 1, 1, MOVED[:1], 1, 5.0, INTERVALS[:2])


@dataclass
class Resilience:
    """Measurements, in seconds unless stated. speeds: records/s by where the state is kept. balanced: batches from a
    skew until the busiest host takes at most 1.25 times the mean; infinite if never. joined: to the first batch on an
    idle host, and on one that had to be leased. moved: longest batch over the median, by (partitions, records a batch).
    deltas: part of the state in a checkpoint, by interval. faults: by hosts killed at once. taken: part of the records
    that a killed host's neighbour takes, before and after. wrong: counts that differ, by part. restarts: by part.
    failed: parts that did not run through, and why. remarks: reasons for what could not be measured.
    """

    speeds: dict[str, list[float]] = field(default_factory=dict)
    balanced: list[float] = field(default_factory=list)
    joined: dict[str, list[float]] = field(default_factory=lambda: {"idle": [], "leased": []})
    moved: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    deltas: dict[float, float] = field(default_factory=dict)
    faults: dict[int, list[Mended]] = field(default_factory=dict)
    steps: dict[int, list[Steps]] = field(default_factory=dict)
    taken: list[tuple[float, float]] = field(default_factory=list)
    wrong: dict[str, int] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def zone(self) -> Sequence[Mended]:
        """Losses of a whole fault zone: of two zones in turn around the ring, hosts without a neighbour are one zone's."""
        return self.faults.get(HOSTS // ZONES, [])

    def figures(self) -> Mapping[str, Any]:
        """JSON-ready; null where what was waited for did not come."""
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
        """Note whether anything of the part, which may come more than once, was lost or started anew."""
        self.restarts[part] = self.restarts.get(part, 0) + int(made.restarted)
        self.wrong[part] = self.wrong.get(part, 0) + made.wrong()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _finite_only(found: Mended | Steps) -> Mapping[str, Any]:
    return {name: _finite(value) for name, value in asdict(found).items()}


NAMES: Mapping[str, str] = {
    "kills": "hosts and a zone killed",
    "moves": "an interval moves",
    "checkpoints": "checkpoints",
    "throughput": "throughput",
    "skew": SKEW,
}
"""Parts, which may be measured alone, and what they are about."""

Part = Callable[[Resilience, Sizes, Bed], None]
"""Measures something with queries of its own on a cluster that is whole."""


def measure(sizes: Sizes, progress: Callable[[str, int, int], None], only: str | None = None) -> Resilience:
    """All parts, one after the other, or `only` that of NAMES; one that fails ends neither the others nor what it has
    measured."""
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
        with bed(STREAM, HOSTS, replicas=1, zones=ZONES, steady=sizes.steady, cores=CORES) as made:
            balancing(found, sizes, made)

    if parts:
        attempt(found, "the cluster", on_one_cluster)
    if count > len(parts):
        attempt(found, SKEW, on_slower_hosts)
    progress("done", count, count)
    return found


def attempt(found: Resilience, name: str, part: Callable[[], None]) -> None:
    """Measure `part`, or note why it did not run through: whatever that is, what was measured in an hour is not lost."""
    try:
        part()
    except Exception as error:
        found.failed[name] = in_one_line(error)
        log.warning("%s: %s", name, found.failed[name], exc_info=not isinstance(error, ElastreamError))


def on_all_hosts(part: Part, found: Resilience, sizes: Sizes, made: Bed) -> None:
    """Measure `part` with one copy of each state partition; hosts that a part before it left missing are leased first."""
    made.whole(HOSTS)
    made.plant.standby.replicas = 1
    part(found, sizes, made)


def killed(found: Resilience, sizes: Sizes, made: Bed) -> None:
    """Figs. 6.13(a) and (b), section 6.6, Fig. 6.11(b): SIGKILL of one host, and of one zone at once, which is half of the
    hosts and no two of them neighbours, r = 1; each time hosts like those are leased and take their part of the state.
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
    """Lease hosts in the place of those that were lost; once they are idle, have each take its part of the state."""
    asked = time.time()
    hosts = made.lease([made.plant.hosts.leases[host].type for host in lost])
    told = time.time()
    made.placed(made.ring())
    there = made.first_batch_on(hosts, told)
    made.settled()
    return {"idle": there - told, "leased": there - asked}


def moving(found: Resilience, sizes: Sizes, made: Bed) -> None:
    """Fig. 6.11(c): a part of an interval moves to the neighbour."""
    for rows in RATES:
        made.run(replace(STREAM, rows=rows, partitions=PARTS))
        for count in sizes.moved:
            for _ in range(sizes.moves):
                found.moved.setdefault((count, rows), []).append(longest_over_median(made, count, sizes.before))
        found.close(f"moved at {rows} records a batch", made)


def longest_over_median(made: Bed, count: int, before: int) -> float:
    """Move the token of the second host back by `count` state partitions: the longest batch until they are there."""
    ring = made.ring()
    made.placed(ring)
    made.settled()
    normal, since = made.normal(before), time.time()
    second = ring.nodes[1]
    made.placed(ring.at(second, ring.tokens[second] - count / made.job.partitions))
    made.settled()
    return max(end - began for began, end in made.batches() if end > since) / normal


def balancing(found: Resilience, sizes: Sizes, made: Bed) -> None:
    """Fig. 6.11(a): keys of one host are repeated, and the policy `ring` moves tokens, on the hosts that there are."""
    for _ in range(sizes.skews):
        found.balanced.append(balanced_after(made))
        found.close(SKEW, made)


def checkpoints(found: Resilience, sizes: Sizes, made: Bed) -> None:
    """Fig. 6.12: what a checkpoint adds, over the whole state, by the time between two."""
    for seconds in sizes.intervals:
        made.run(Job(VOCABULARY, round(WORDS * seconds), pace=0.0, words=True))
        found.deltas[seconds] = delta(made)
        found.close(f"checkpoints every {seconds:g} s", made)


def delta(made: Bed) -> float:
    """What a checkpoint wrote over the whole state, by files: of each partition the newest of which both are there."""
    stage = made.stage

    def ratio() -> float:
        return delta_over_full([state_files(folder) for folders in folders_of(stage) for folder in folders])

    made.until(lambda seen: not math.isnan(ratio()))
    return ratio()


def throughput(found: Resilience, sizes: Sizes, made: Bed) -> None:
    """P. 147: records/s with no copies, one and two of the state, and with state in a server beside Spark."""
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
    """Records/s with so many copies of each state partition."""
    made.plant.standby.replicas = copies
    made.settled()
    return made.rate(window)


def outside(made: Bed, window: float) -> float:
    """Records/s of the same count with its state in Redis."""
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
