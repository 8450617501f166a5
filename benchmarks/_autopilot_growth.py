"""One executor grows to four: what a batch of somebody else's query takes then, with Spark alone and with Autopilot.

One session goes through both ways in turn, on the same executors and with the same query, so that what one run of it has
compiled or cached the other has too. The first time is Spark alone as anyone finds it; before each further one, all
partitions are put back to where Spark had left them.
"""

import statistics
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from _common import Report, Sides, progress, wait_until
from _stranger import HOST, STATES, ended, executors, seconds_of, session_on_hosts, start_work
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream import Autopilot
from elastream.clouds.local.cluster import LocalCluster
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.state_partitions import StatePartitions

GROWN = 4
BATCH = 2.0
"""Seconds that a batch is to take on one executor. For spark.locality.wait Spark has 3 s, counted from the start of
a stage in which executors stand idle: what is left of a stage that lasts longer goes to whichever is free, its state with
it. What Spark alone leaves at one executor are stages that are shorter, as most of micro-batches are."""
WARM = 8
"""Batches in which an executor compiles what it runs: the first take twice as long as later ones."""
COLD = 4
"""Batches in which executors that have just come compile what they run of stages without state."""
MEASURED = 7
"""Batches of a figure."""
SETTLED = 3
"""Batches in a row without a move, after which Autopilot has done what it had to do."""


@dataclass(frozen=True)
class Phase:
    """What was seen of one way: seconds of a batch, where partitions were, cores that each host used meanwhile."""

    way: str
    seconds: float
    batches: tuple[float, ...]
    partitions: dict[str, int]
    cores: dict[str, float]
    moves: int = 0
    settled_after: float = 0.0
    longest_meanwhile: float = 0.0


def measure_growth(report: Report, quick: bool) -> None:
    """Spark alone and Autopilot in turn, on one session."""
    with session_on_hosts(1, GROWN) as (spark, cluster, root):
        steps = steps_for(spark, cluster, root)
        query = start_work(spark, root, steps)
        ended(query, 4)
        before = observe("one executor", cluster, query, StatePartitions(spark, query, STATES))
        for number in range(2, GROWN + 1):
            cluster.spawn(f"h{number}", HOST)
            wait_until(lambda number=number: executors(spark) >= number, 120)
        for number in range(2, GROWN + 1):
            cluster.confine(f"h{number}", HOST.cores)  # a host starts without a quota
        states = StatePartitions(spark, query, STATES)
        ended(query, COLD)
        left = states.where()
        phases = []
        for _ in range(1 if quick else 5):
            put_back(query, states, left)
            phases.append(observe("Spark alone", cluster, query, states))
            phases.append(watched(spark, cluster, query))
        assert query.isActive, query.exception()
    sides = Sides(tuple(p.seconds for p in phases[1::2]), tuple(p.seconds for p in phases[::2]))
    report.figures["growth"] = {
        **sides.figures("with Autopilot", "Spark alone"),
        "on one executor": before.seconds,
        "steps of arithmetic a key": steps,
        "phases": [asdict(phase) for phase in (before, *phases)],
        "hosts": f"{GROWN} of {HOST.cores:g} cores; {cluster.confinement}",
    }
    name = "batch time after one executor grew to four, Autopilot over Spark alone"
    report.median_at_most(name, sides.ratios, 0.5, "the project's bar for Autopilot")


def put_back(query: StreamingQuery, states: StatePartitions, left: Mapping[int, Location]) -> None:
    """Every partition where Spark alone had left it before Autopilot came; nothing to do the first time."""
    for _ in range(20):
        away = [partition for partition, place in states.where().items() if place != left[partition]]
        if not away:
            return
        for partition in away:
            states.move(partition, left[partition])
        ended(query, 2)
    raise TimeoutError("partitions do not go back to where they were")


def watched(spark: SparkSession, cluster: LocalCluster, query: StreamingQuery) -> Phase:
    """The same with Autopilot, once it moves nothing any more."""
    since, began = int(query.lastProgress["batchId"]) + 1, time.monotonic()
    with Autopilot(spark, period=2.0).watch(query) as pilot:
        wait_until(lambda: pilot.plant is not None, 60)
        placing = pilot.plant.placing
        wait_until(lambda: len(placing.landed) > 0, 120)
        landed = -1
        while placing.targets() or len(placing.landed) > landed:
            landed = len(placing.landed)
            ended(query, SETTLED)
        settled = time.monotonic() - began
        meanwhile = max(seconds_of(query, since))
        seen = observe("with Autopilot", cluster, query, StatePartitions(spark, query, STATES))
        seen = Phase(**{**asdict(seen), "moves": len(placing.landed), "settled_after": settled,
                        "longest_meanwhile": meanwhile})  # fmt: skip
    progress(f"settled after {settled:.0f} s, {seen.moves} moves, longest batch meanwhile {meanwhile:.1f} s")
    return seen


def observe(way: str, cluster: LocalCluster, query: StreamingQuery, states: StatePartitions) -> Phase:
    """The next MEASURED batches."""
    used, since = cpu_seconds(cluster), time.monotonic()
    first = int(query.lastProgress["batchId"]) + 1
    ended(query, MEASURED)
    took = time.monotonic() - since
    batches = tuple(seconds_of(query, first)[:MEASURED])
    seen = Phase(
        way,
        statistics.median(batches),
        batches,
        dict(Counter(place.executor for place in states.where().values())),
        {name: round((now - used[name]) / took, 3) for name, now in cpu_seconds(cluster).items()},
    )
    progress(f"{seen}")
    return seen


def cpu_seconds(cluster: LocalCluster) -> Mapping[str, float]:
    """CPU time that each host has used so far."""
    return {name: used.cpu_seconds or 0.0 for name, used in cluster.measure().items()}


def steps_for(spark: SparkSession, cluster: LocalCluster, root: Path) -> int:
    """Steps a key that make a batch last BATCH on one executor, on the line through two that were tried."""
    tried = {}
    for steps in (10_000, 40_000):
        query = start_work(spark, root, steps)
        ended(query, WARM)
        cluster.confine("h1", HOST.cores)  # a host starts without a quota; from now on it has it
        first = int(query.lastProgress["batchId"]) + 2
        ended(query, 5)
        tried[steps] = statistics.median(seconds_of(query, first))
        query.stop()
    (few, short), (many, long) = tried.items()
    each = max(1e-9, (long - short) / (many - few))
    steps = int(min(max((BATCH - short) / each + few, few), 20 * many))
    progress(f"seconds a batch by steps a key: {tried}; {steps} steps are taken")
    return steps
