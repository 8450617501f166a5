"""Autopilot's cost and gain on queries that someone else wrote.

cost: CPU seconds of Autopilot's own threads, Python's and the JVM's, with ten idle queries of 200 state partitions each and
a look every 5 s; also the CPU seconds of driver and JVM with and without Autopilot, in turn. growth: a CPU-bound query on
one executor that grows to four, each of a third of a core, with Spark alone and with Autopilot in turn. skew: loads by
Zipf's law, planned by its policy, beside the exact solver's packing. live-skew: a query with such keys on three executors.
On two free cores cost and growth take about 15 minutes each, live-skew 5, skew 2.
"""

import os
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from _common import Report, Sides, interleaved, local_session, main_of_parts, progress, wait_until, with_median
from _stranger import HOST, STATES, attached, await_executors, ended, newest, seconds_of, session_on_hosts, start_work
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elastream import Autopilot, HostType
from elastream.clouds.local.cluster import LocalCluster
from elastream.core.action import MoveTask
from elastream.core.frames import Frame, TaskFrame
from elastream.core.hosts import HostState, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Context, Observation
from elastream.core.plant import Plan, Policy
from elastream.policies.by_load import ByLoad
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.state_partitions import StatePartitions
from elastream.spark.queries.watched import layout_of
from elastream_papers.elastic_allocator.exact import pack

SOURCE = "the project's bar for Autopilot"


def zipf(seed: int, partitions: int = 64, keys: int = 20_000, exponent: float = 1.2) -> np.ndarray[Any, Any]:
    weights = np.arange(1, keys + 1) ** -exponent
    return np.bincount(np.random.default_rng(seed).integers(0, partitions, keys), weights / weights.sum(), partitions)


def observed_stages(
    stages: tuple[str, ...], place: np.ndarray[Any, Any], busy: np.ndarray[Any, Any], hosts: int
) -> Observation:
    layout = layout_of((("q", stages),))
    names = tuple(layout.graph.by_name)
    kind = HostType("executor", cores=1.0)
    leases = {
        f"h{n}": Lease(f"h{n}", kind, 0.0).to(HostState.STARTING, 0.0).to(HostState.RUNNING, 0.0) for n in range(hosts)
    }
    width = len(place) // len(stages)
    operators = np.repeat([names.index(stage) for stage in stages], width)
    tasks = TaskFrame(operators, np.tile(np.arange(width), len(stages)), place, names, {Metric.BUSY_CORES: busy})
    return Observation(1.0, Context(layout), Frame(names), hosts=Frame(tuple(leases)), tasks=tasks, leases=leases)


def measure_skew(report: Report, quick: bool) -> None:
    worst, moves, random = 0.0, [], np.random.default_rng(1)
    for hosts in (2, 4, 8):
        for seed in range(3 if quick else 20):
            weights = zipf(seed)
            place = np.zeros(len(weights), dtype=np.int64) if seed % 2 else np.arange(len(weights)) % hosts
            moved = 0
            for _ in range(6):
                noisy = weights * random.normal(1.0, 0.02, len(weights)).clip(0.9, 1.1)
                for action in ByLoad(worth=0.0).plan(observed_stages(("q/s",), place, noisy, hosts)).actions:
                    assert isinstance(action, MoveTask)
                    place[action.task.index] = int(action.host[1:])
                    moved += 1
            best = float(pack(weights, [1.0] * hosts, seconds=5.0).bound)
            worst = max(worst, float(np.bincount(place, weights, hosts).max()) / best)
            moves.append(moved)
    report.figures["skew (simulated loads)"] = {
        "worst over the solver's bound": worst,
        "moves, mean": statistics.mean(moves),
    }
    name = "busiest executor after 6 rounds over the best packing (Zipf 1.2, 64 partitions, simulated)"
    report.at_most(name, worst, 1.05, SOURCE)


HOSTS, ROUNDS, PERIOD = 3, 6, 8.0
"""A period is long enough for three batches: what a partition takes is known by then, also after a move."""
STEPS = 400_000
ZIPF = "pow(1 + k, -1.2)"


class Rounds(Policy):
    """Autopilot's policy. It also remembers the work of each host in its planning rounds."""

    name = "by load, remembered"

    def __init__(self) -> None:
        self.loads: list[tuple[float, ...]] = []
        self.weights: np.ndarray[Any, Any] = np.zeros(0)
        self._plan = ByLoad()

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        busy = observation.tasks.column(Metric.BUSY_CORES)
        if len(busy) == STATES and not np.isnan(busy).any():
            hosts = np.bincount(observation.tasks.host, busy, len(observation.hosts.ids))
            self.loads.append(tuple(float(load / busy.sum()) for load in hosts))
            self.weights = busy / busy.sum()
            progress(f"shares of the load: {[round(load, 3) for load in self.loads[-1]]}")
        return self._plan.plan(observation)


def measure_live_skew(report: Report, quick: bool) -> None:
    with session_on_hosts(HOSTS, HOSTS) as (spark, cluster, root):
        query = start_work(spark, root, STEPS, ZIPF)
        ended(query, 10)
        for number in range(1, HOSTS + 1):
            cluster.confine(f"h{number}", HOST.cores)
        ended(query, 2)
        first = newest(query) + 1
        ended(query, 5)
        before = statistics.median(seconds_of(query, first))
        policy = Rounds()
        with Autopilot(spark, period=PERIOD, policy=policy).watch(query) as pilot:
            wait_until(lambda: len(policy.loads) > ROUNDS, 180)
            moves = len(attached(pilot).placing.landed)
        first = newest(query) + 1
        ended(query, 5)
        after = statistics.median(seconds_of(query, first))
    bound = float(pack(policy.weights, [1.0] * HOSTS, seconds=5.0).bound)
    busiest = [max(loads) for loads in policy.loads[: ROUNDS + 1]]
    report.figures["skew, live"] = {
        "load": f"{STATES} partitions, keys by Zipf's law (1.2), on {HOSTS} hosts of {HOST.cores:g} cores",
        "busiest executor's share of the load, round by round": busiest,
        "the best packing's": bound,
        "moves": moves,
        "seconds a batch": {"before": before, "after": after},
    }
    name = f"busiest executor after {ROUNDS} rounds over the best packing (Zipf 1.2, {STATES} partitions, live)"
    report.at_most(name, busiest[-1] / bound, 1.05, SOURCE)


GROWN = 4
BATCH = 2.0
"""Seconds of a batch on one executor: shorter than spark.locality.wait, so that Spark alone moves no task, as usual."""
WARM = 8  # batches in which an executor compiles what it runs: the first take twice as long as later ones
COLD = 4  # batches in which executors that have just come compile what they run of stages without state
MEASURED = 7  # batches of a figure
SETTLED = 3  # batches in a row without a move, after which Autopilot has finished


@dataclass(frozen=True)
class Phase:
    """Observations of one way: seconds per batch, locations of partitions, cores that each host used."""

    way: str
    seconds: float
    batches: tuple[float, ...]
    partitions: dict[str, int]
    cores: dict[str, float]
    moves: int = 0
    settled_after: float = 0.0
    longest_meanwhile: float = 0.0


def measure_growth(report: Report, quick: bool) -> None:
    with session_on_hosts(1, GROWN) as (spark, cluster, root):
        steps = steps_for(spark, cluster, root)
        query = start_work(spark, root, steps)
        ended(query, 4)
        before = observe("one executor", cluster, query, StatePartitions(spark, query, STATES))
        for number in range(2, GROWN + 1):
            cluster.spawn(f"h{number}", HOST)
            await_executors(spark, number)
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
    report.median_at_most(name, sides.ratios, 0.5, SOURCE)


def put_back(query: StreamingQuery, states: StatePartitions, left: Mapping[int, Location]) -> None:
    for _ in range(20):
        away = [partition for partition, place in states.where().items() if place != left[partition]]
        if not away:
            return
        for partition in away:
            states.move(partition, left[partition])
        ended(query, 2)
    raise TimeoutError("partitions do not go back to where they were")


def watched(spark: SparkSession, cluster: LocalCluster, query: StreamingQuery) -> Phase:
    since, began = newest(query) + 1, time.monotonic()
    with Autopilot(spark, period=2.0).watch(query) as pilot:
        placing = attached(pilot).placing
        wait_until(lambda: len(placing.landed) > 0, 120)
        landed = -1
        while placing.targets() or len(placing.landed) > landed:
            landed = len(placing.landed)
            ended(query, SETTLED)
        settled = time.monotonic() - began
        meanwhile = max(seconds_of(query, since))
        seen = observe("with Autopilot", cluster, query, StatePartitions(spark, query, STATES))
        seen = replace(seen, moves=len(placing.landed), settled_after=settled, longest_meanwhile=meanwhile)
    progress(f"settled after {settled:.0f} s, {seen.moves} moves, longest batch meanwhile {meanwhile:.1f} s")
    return seen


def observe(way: str, cluster: LocalCluster, query: StreamingQuery, states: StatePartitions) -> Phase:
    used, since = cpu_seconds(cluster), time.monotonic()
    first = newest(query) + 1
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
    return {name: used.cpu_seconds or 0.0 for name, used in cluster.measure().items()}


def steps_for(spark: SparkSession, cluster: LocalCluster, root: Path) -> int:
    tried = {}
    for steps in (10_000, 40_000):
        query = start_work(spark, root, steps)
        ended(query, WARM)
        cluster.confine("h1", HOST.cores)  # hosts start without a quota, and have one from now on
        first = newest(query) + 2
        ended(query, 5)
        tried[steps] = statistics.median(seconds_of(query, first))
        query.stop()
    (few, short), (many, long) = tried.items()
    each = max(1e-9, (long - short) / (many - few))
    steps = int(min(max((BATCH - short) / each + few, few), 20 * many))
    progress(f"seconds a batch by steps a key: {tried}; {steps} steps are taken")
    return steps


TICKS = os.sysconf("SC_CLK_TCK")
LOOK_PERIOD = 5.0
BATCHES = 3  # batches of each query before it is idle: as many as a known load needs


def cpu_of(process: int, thread: int | None = None) -> float:
    place = f"/proc/{process}/stat" if thread is None else f"/proc/{process}/task/{thread}/stat"
    fields = Path(place).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def jvm_of(spark: SparkSession) -> int:
    jvm: Any = spark._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


def gateway_threads(jvm: int) -> dict[int, float]:
    found = {}
    for task in Path(f"/proc/{jvm}/task").iterdir():
        try:
            if re.match(r"Thread-\d+|pool-\d+-thread", (task / "comm").read_text().strip()):
                found[int(task.name)] = cpu_of(jvm, int(task.name))
        except OSError:
            continue
    return found


def idle_queries(spark: SparkSession, root: Path, queries: int, partitions: int) -> list[StreamingQuery]:
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    words = root / "words"
    words.mkdir()
    for number in range(BATCHES):
        (words / f"{number}.txt").write_text("\n".join(f"{n}" for n in range(1000)))
    started = []
    for number in range(queries):
        rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(str(words))
        counted = rows.groupBy(F.col("value").alias("k")).count()
        writer = counted.writeStream.outputMode("update").format("noop").queryName(f"q{number}")
        trigger = writer.option("checkpointLocation", str(root / f"q{number}")).trigger(processingTime="10 seconds")
        started.append(trigger.start())
    return started


class Rereading(Policy):
    """Autopilot's policy. It makes each look read the newest batches again, as if they had just ended."""

    name = "by load, all read anew"

    def __init__(self) -> None:
        self.pilot: Autopilot | None = None
        self._plan = ByLoad()

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        for query in self.pilot.plant.queries.all if self.pilot and self.pilot.plant else ():
            if query._tasks is not None:
                query._tasks._newest = -1
        return self._plan.plan(observation)


def planning_seconds(queries: int, partitions: int, hosts: int = 8) -> float:
    stages = tuple(f"q/s{n}" for n in range(queries))
    random = np.random.default_rng(3)
    observation = observed_stages(stages, np.tile(np.arange(partitions) % hosts, queries),
                                  random.normal(0.01, 0.002, queries * partitions).clip(0.001), hosts)  # fmt: skip
    before = time.process_time()
    for _ in range(10):
        ByLoad(worth=0.0).plan(observation)
    return (time.process_time() - before) / 10


def measure_cost(report: Report, quick: bool) -> None:
    queries, partitions = (2, 50) if quick else (10, 200)
    seconds, rounds = (20.0, 1) if quick else (30.0, 2)
    with local_session("cost", {"spark.sql.streaming.minBatchesToRetain": "2"}) as (spark, root):
        jvm, this = jvm_of(spark), os.getpid()
        running = idle_queries(spark, root, queries, partitions)
        wait_until(lambda: all(newest(query) + 1 >= BATCHES for query in running), 900)
        apart: list[float] = []
        looks: list[dict[str, float]] = []

        def without() -> float:
            before = cpu_of(this) + cpu_of(jvm)
            time.sleep(seconds)
            return (cpu_of(this) + cpu_of(jvm) - before) / seconds

        def with_autopilot() -> float:
            policy = Rereading()
            with Autopilot(spark, period=LOOK_PERIOD, policy=policy).watch() as pilot:
                policy.pilot = pilot
                plant = attached(pilot)
                wait_until(lambda: len(plant.observe().tasks) > 0, 120)
                # The first looks read plans and load classes; only the cost of later looks counts, which lasts for days.
                time.sleep(2 * LOOK_PERIOD)
                own = [each.native_id for each in threading.enumerate() if each.name.startswith("elastream")]
                looked = plant.looks
                served, spent = gateway_threads(jvm), sum(cpu_of(this, each) for each in own)
                value = without()
                now = gateway_threads(jvm)
                mine = sum(cpu_of(this, each) for each in own) - spent
                theirs = sum(now[each] - served.get(each, 0.0) for each in now)
                number = plant.looks - looked
                look = {"looks": number, "Python's CPU": mine, "the JVM's": theirs, "s": plant.look_seconds}
                looks.append({**look, "CPU by the plant": plant.look_cpu_seconds / plant.looks})
                apart.append((mine + theirs) / number)
                seen = len(plant.observe().tasks)
                assert seen == queries * partitions, f"{seen} of {queries * partitions} partitions were seen"
                return value

        sides = interleaved(with_autopilot, without, rounds, "cores in use, with Autopilot and without:")
    extra = [a - b for a, b in zip(sides.a, sides.b, strict=True)]
    planning = planning_seconds(queries, partitions)
    report.figures["cost"] = {
        "queries": queries,
        "partitions each": partitions,
        "cores of driver and JVM": sides.figures("with", "without"),
        "extra, by difference": with_median(extra),
        "CPU seconds a look, of Python's threads and the JVM's that answer them": statistics.median(apart),
        "looks": looks,
        "load": "real queries that have read all there is; every look reads the newest batch of each anew",
        "CPU seconds of a plan, 8 hosts, simulated": planning,
    }
    name = f"cores that Autopilot takes at a {LOOK_PERIOD:g} s period, {queries} queries x {partitions} partitions"
    report.at_most(name, (statistics.median(apart) + planning) / LOOK_PERIOD, 0.05, SOURCE)
    happened = min(look["looks"] for look in looks) / (seconds / LOOK_PERIOD)
    report.at_least("looks that happened, of those that were asked for", happened, 0.85, "a figure for a look that happens")


PARTS = {"skew": measure_skew, "live-skew": measure_live_skew, "cost": measure_cost, "growth": measure_growth}


if __name__ == "__main__":
    main_of_parts("autopilot", __doc__, PARTS)
