"""Chapter 6 of the thesis on Spark: what lost hosts, hosts that join and intervals that move cost, and what copies do.

Each part has a cluster of its own, four hosts on this machine, and ends with its state compared with a batch query's.
`on_spark` shows what came of it. Jobs and numbers were chosen before anything was measured with them.
"""

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import functions as F

from elastream.experiments.resilience.bed import HOST, Bed, Job, Mended, bed
from elastream.experiments.resilience.outside import count_outside, missing, outside_store
from elastream.model.action import SetTokens
from elastream.model.metrics import Metric
from elastream.model.ring import Ring

__all__ = ["HOSTS", "PARTS", "Resilience", "Sizes", "measure"]

HOSTS = 4
STREAM = Job(keys=20_000, rows=5_000, pace=0.25, partitions=8)
"""20,000 records/s, where the thesis has 15,000 messages/s (Fig. 6.13(b)); two state partitions a host of four slots."""
FULL = Job(keys=50_000, rows=100_000, pace=0.0)
"""As fast as it goes: a full batch is always ready."""
MOVED, RATES, PARTS = (1, 2), (5_000, 20_000), 16
"""State partitions of an interval that moves, records of a batch, and state partitions in all, four a host."""
INTERVALS = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds between checkpoints (Fig. 6.12: 1 to 20), which are the ends of batches here."""
VOCABULARY, WORDS = 20_000, 10_000
"""Keys of the state whose checkpoints are compared with it, and records a second: as many words come as are said in
ten hours a second, so that at 20 s most of the words have come again."""
SEED = 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """How often each is done. faults: of each number of hosts at once. window: seconds that records/s are taken over."""

    faults: int = 10
    rounds: int = 5
    moves: int = 5
    window: float = 20.0
    intervals: Sequence[float] = INTERVALS

    @classmethod
    def quick(cls) -> "Sizes":
        """Shows that it works, and proves less."""
        return cls(1, 1, 1, 10.0, (1.0, 5.0))


@dataclass
class Resilience:
    """What was found; seconds where nothing else is said.

    speeds: records/s by what keeps or copies the state. joined: to the first batch on an idle leased host, and on one
    that had to be leased. moved: longest batch over the median one, by (partitions, records a batch). deltas: part of the
    state that a checkpoint holds, by interval. faults: by hosts killed at once. zone: all hosts of a fault zone.
    wrong: counts that differ from a batch query's, by part. restarts: of queries, by part. remarks: what could not be
    measured, and why.
    """

    speeds: dict[str, list[float]] = field(default_factory=dict)
    joined: dict[str, list[float]] = field(default_factory=lambda: {"idle": [], "leased": []})
    moved: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    deltas: dict[float, float] = field(default_factory=dict)
    faults: dict[int, list[Mended]] = field(default_factory=dict)
    zone: list[Mended] = field(default_factory=list)
    wrong: dict[str, int] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def figures(self) -> Mapping[str, Any]:
        """JSON-ready."""
        return {
            "records a second": self.speeds,
            "seconds to the first batch on a new host": self.joined,
            "longest over median batch while an interval moves": {
                f"{count} partitions, {rows} records a batch": runs for (count, rows), runs in self.moved.items()
            },
            "delta over the whole state": {f"{seconds:g} s": part for seconds, part in self.deltas.items()},
            "recovery": {f"{count} at once": [asdict(each) for each in found] for count, found in self.faults.items()},
            "recovery from a lost zone": [asdict(each) for each in self.zone],
            "wrong counts": self.wrong,
            "restarts": self.restarts,
            "not measured": self.remarks,
        }

    def close(self, part: str, made: Bed) -> None:
        """Note whether anything of the part was lost or started anew."""
        self.restarts[part] = int(made.restarted)
        self.wrong[part] = made.wrong()


def measure(sizes: Sizes, progress: Callable[[str, int, int], None]) -> Resilience:
    """All parts, one after the other."""
    found = Resilience()
    parts: Mapping[str, Callable[[Resilience, Sizes], None]] = {
        "hosts killed": killed,
        "a zone lost": zone_lost,
        "a host joins, an interval moves": moving,
        "checkpoints": checkpoints,
        "throughput": throughput,
    }
    for number, (name, part) in enumerate(parts.items()):
        progress(name, number, len(parts))
        part(found, sizes)
    progress("done", len(parts), len(parts))
    return found


def killed(found: Resilience, sizes: Sizes) -> None:
    """Fig. 6.13(b): SIGKILL of 1 to n / (r + 1) hosts at once, no two neighbours, r = 1."""
    chance = random.Random(SEED)
    counts = [count for count in range(1, HOSTS // 2 + 1) for _ in range(sizes.faults)]
    chance.shuffle(counts)
    with bed(STREAM, HOSTS, replicas=1) as made:
        for count in counts:
            made.more(50)
            normal = made.normal()
            hosts = made.apart(count)
            time.sleep(chance.random() * max(normal, STREAM.pace))
            fault = made.after(made.kill(*hosts), normal)
            found.faults.setdefault(count, []).append(fault)
            made.in_place_of(hosts)
        found.close("hosts killed", made)


def zone_lost(found: Resilience, sizes: Sizes) -> None:
    """Section 6.6: one of two zones, half of all hosts, at once."""
    del sizes
    with bed(STREAM, HOSTS, replicas=1, zones=2) as made:
        made.more(50)
        normal, leases = made.normal(), made.plant.hosts.leases
        first = leases[made.plant.hosts.usable[0]].type.zone
        found.zone.append(
            made.after(made.kill(*(h for h in made.plant.hosts.usable if leases[h].type.zone == first)), normal)
        )
        found.close("a zone lost", made)


def moving(found: Resilience, sizes: Sizes) -> None:
    """Figs. 6.11(b) and (c): a host takes half of another's interval; a part of an interval moves to the neighbour."""
    for rows in RATES:
        job = replace(STREAM, rows=rows, partitions=PARTS)
        with bed(job, HOSTS, replicas=1) as made:
            for count, _ in itertools.product(MOVED, range(sizes.moves)):
                found.moved.setdefault((count, rows), []).append(longest_over_median(made, count))
            if rows == RATES[0]:
                for _ in range(sizes.moves):
                    for kind, seconds in joined(made).items():
                        found.joined[kind].append(seconds)
            found.close(f"moved at {rows} records a batch", made)


def ring_now(made: Bed) -> Ring:
    """The hosts that work, at tokens by which each owns as many state partitions, to within one."""
    return Ring.even(made.plant.hosts.usable)


def placed(made: Bed, ring: Ring) -> None:
    """Place the state by `ring`, and wait until that is so and batches are steady."""
    set_ring(made, ring)
    made.settled()


def set_ring(made: Bed, ring: Ring) -> None:
    (operator,) = made.plant.queries.live[0].operators
    made.plant.apply(SetTokens(operator, tuple(ring.tokens.items())))


def longest_over_median(made: Bed, count: int) -> float:
    """Move the token of the second host back by `count` state partitions: the longest batch until they are there."""
    ring = ring_now(made)
    placed(made, ring)
    normal, since = made.normal(), time.time()
    second = ring.nodes[1]
    set_ring(made, ring.at(second, ring.tokens[second] - count / made.job.partitions))
    made.settled()
    return max(end - began for began, end in made.batches() if end > since) / normal


def joined(made: Bed) -> Mapping[str, float]:
    """Lease a host; once it is idle have it take half of the first host's interval; and give it back."""
    placed(made, ring_now(made))
    ring, asked = ring_now(made), time.time()
    (host,) = made.lease([HOST_TYPE])
    told = time.time()
    begin, end = ring.interval(ring.nodes[0])
    set_ring(made, ring.with_node(host, begin + (end - begin) / 2))
    made.until(lambda seen: host in made.plant.mover.ran().values())
    there = max(end for _, end in made.batches())
    made.settled()
    made.release(host)
    return {"idle": there - told, "leased": there - asked}


def checkpoints(found: Resilience, sizes: Sizes) -> None:
    """Fig. 6.12: what a checkpoint adds, over the whole state, by the time between two."""
    for seconds in sizes.intervals:
        job = Job(VOCABULARY, round(WORDS * seconds), pace=seconds, zipf=True)
        with bed(job, 2) as made:
            found.deltas[seconds] = delta(made)


def delta(made: Bed) -> float:
    """What the newest checkpoint wrote over the size of the whole state."""
    (operator,) = made.plant.queries.live[0].operators
    seen = made.until(lambda seen: seen.operators.reading(operator, Metric.CHECKPOINT_DELTA).known)
    return seen.operators.value(operator, Metric.CHECKPOINT_DELTA)


def throughput(found: Resilience, sizes: Sizes) -> None:
    """P. 147: records/s with no copies, one and two of the state, and with state in a server beside Spark."""
    chance, ways = random.Random(SEED), ["r = 0", "r = 1", "r = 2"]
    if why := missing():
        found.remarks.append(f"state kept outside: {why}")
    else:
        ways.append("outside")
    for _ in range(sizes.rounds):
        for way in chance.sample(ways, len(ways)):
            speed = outside(sizes.window) if way == "outside" else speed_of(int(way[-1]), sizes.window)
            found.speeds.setdefault(way, []).append(speed)


def speed_of(replicas: int, window: float) -> float:
    """Records/s with so many copies."""
    with bed(FULL, HOSTS, replicas=replicas) as made:
        return rate(made, window)


def rate(made: Bed, window: float) -> float:
    """Records/s over whole batches of `window` seconds."""
    since = time.time()
    made.until(lambda seen: time.time() > since + window)
    seen = [(began, end) for began, end in made.batches() if began >= since]
    return made.job.rows * len(seen) / (seen[-1][1] - seen[0][0])


def outside(window: float) -> float:
    """Records/s of the same count with its state in Redis."""
    with TemporaryDirectory(prefix="outside-") as folder, outside_store(Path(folder) / "store") as store:

        def start(job: Job, spark: Any, checkpoint: Path) -> Any:
            keys = job.keyed(job.source(spark)).select(F.col("key").cast("string").alias("word"))
            return count_outside(keys, store, checkpoint, "outside")

        with bed(FULL, HOSTS, start=start) as made:
            return rate(made, window)


HOST_TYPE = replace(HOST, name=f"{HOST.name}-1", zone="zone 1")
"""What `bed` leases where there is one zone."""
