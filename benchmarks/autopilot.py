"""What Autopilot costs, and what it is good for, on queries that someone else wrote.

    python benchmarks/autopilot.py [--quick] [--json FILE] [--html FILE] [--part cost|growth|skew]

cost: queries with 200 state partitions each, a look every 5 s. CPU seconds of this process and of its JVM are read from
/proc, with Autopilot and without, in turn; besides, the CPU time of Autopilot's own threads, Python's and the JVM's, is
read apart. Every look reads the newest batch of every query anew, as if each had ended one since the last look. growth: the
same CPU-bound query on one executor that grows to four, each on a quota of half a core, with Spark alone and with
Autopilot. skew: loads by Zipf's law, planned by its policy, beside the exact solver's packing.
"""

import argparse
import os
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _common import Report, interleaved, local_session, main, progress
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elastream import Autopilot, HostType, Local
from elastream.model.action import Action, MoveTask
from elastream.model.cloud import HostState, Lease
from elastream.model.observation import Context, Frame, Metric, Observation, TaskFrame
from elastream.planning.attached import ByLoad
from elastream.planning.exact import pack
from elastream.spark.attached_frames import layout_of
from elastream.spark.local import LocalCluster
from elastream.spark.session import open_session, settings_for

SOURCE = "the project's bar for Autopilot"
TICKS = os.sysconf("SC_CLK_TCK")


# -- cost --------------------------------------------------------------------------------------------------------------

PERIOD = 5.0


def cpu_of(process: int, thread: int | None = None) -> float:
    """CPU seconds of a process, or of one of its threads, so far."""
    place = f"/proc/{process}/stat" if thread is None else f"/proc/{process}/task/{thread}/stat"
    fields = Path(place).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def jvm_of(spark: SparkSession) -> int:
    """Process id of the session's JVM."""
    found: int = spark._jvm.java.lang.ProcessHandle.current().pid()
    return int(found)


def gateway_threads(jvm: int) -> dict[int, float]:
    """CPU seconds of the JVM's threads that answer Python, by thread: py4j starts one a Python thread."""
    found = {}
    for task in Path(f"/proc/{jvm}/task").iterdir():
        try:
            if re.match(r"Thread-\d+|pool-\d+-thread", (task / "comm").read_text().strip()):
                found[int(task.name)] = cpu_of(jvm, int(task.name))
        except OSError:
            continue
    return found


def idle_queries(spark: SparkSession, root: Path, queries: int, partitions: int) -> list[StreamingQuery]:
    """Counts whose batches come once a minute, each with `partitions` state partitions: many to look at, little to do."""
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    started = []
    for number in range(queries):
        counted = (
            spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
            .groupBy((F.col("value") % 997).alias("k")).count()
        )  # fmt: skip
        writer = counted.writeStream.outputMode("update").format("noop").queryName(f"q{number}")
        trigger = writer.option("checkpointLocation", str(root / f"q{number}")).trigger(processingTime="60 seconds")
        started.append(trigger.start())
    return started


def wait_for_batches(queries: list[StreamingQuery], batches: int, limit: float) -> None:
    """Until each has ended `batches`."""
    until = time.monotonic() + limit
    while not all(query.lastProgress and query.lastProgress["batchId"] >= batches - 1 for query in queries):
        if time.monotonic() > until:
            raise TimeoutError(f"{batches} batches of each query: not within {limit:g} s")
        time.sleep(0.5)


class Rereading:
    """The policy of Autopilot, that lets each look read the newest batches once more: as if they had just ended."""

    name = "by load, all read anew"

    def __init__(self) -> None:
        self.pilot: Autopilot | None = None
        self._plan = ByLoad()

    def plan(self, observation: Observation) -> list[Action]:
        """What `ByLoad` plans."""
        for query in self.pilot.plant.queries if self.pilot and self.pilot.plant else ():
            if query._tasks is not None:
                query._tasks._told = -1
        return self._plan.plan(observation)


def planning_seconds(queries: int, partitions: int, hosts: int = 8) -> float:
    """CPU seconds of one plan for stages whose loads are noise around even: what is planned in vain, round after round."""
    stages = tuple(f"q/s{n}" for n in range(queries))
    random = np.random.default_rng(3)
    observation = observed_stages(stages, np.tile(np.arange(partitions) % hosts, queries),
                                  random.normal(0.01, 0.002, queries * partitions).clip(0.001), hosts)  # fmt: skip
    before = time.process_time()
    for _ in range(10):
        ByLoad(worth=0.0).plan(observation)
    return (time.process_time() - before) / 10


def measure_cost(report: Report, quick: bool) -> None:
    """CPU of driver process and JVM, with Autopilot and without, in turn."""
    queries, partitions = (2, 50) if quick else (10, 200)
    seconds, rounds = (20.0, 2) if quick else (40.0, 2)
    root = Path(tempfile.mkdtemp(prefix="autopilot-cost-"))
    spark = local_session("cost", root, {"spark.sql.streaming.minBatchesToRetain": "2"})
    jvm, this = jvm_of(spark), os.getpid()
    try:
        running = idle_queries(spark, root, queries, partitions)
        wait_for_batches(running, 2, 900)
        apart: list[float] = []
        looks: list[dict[str, float]] = []

        def without() -> float:
            before = cpu_of(this) + cpu_of(jvm)
            time.sleep(seconds)
            return (cpu_of(this) + cpu_of(jvm) - before) / seconds

        def with_autopilot() -> float:
            policy = Rereading()
            with Autopilot(spark, period=PERIOD, policy=policy).watch() as pilot:
                policy.pilot = pilot
                wait_until(lambda: pilot.plant is not None and len(pilot.plant.observe().tasks) > 0, 120)
                # Its first looks read the plans and load classes; what counts is what goes on for days.
                time.sleep(2 * PERIOD)
                own = [each.native_id for each in threading.enumerate() if each.name.startswith("elastream")]
                looked = pilot.plant.looks
                served, spent = gateway_threads(jvm), sum(cpu_of(this, each) for each in own)
                value = without()
                now = gateway_threads(jvm)
                mine = sum(cpu_of(this, each) for each in own) - spent
                theirs = sum(now[each] - served.get(each, 0.0) for each in now)
                number = pilot.plant.looks - looked
                looks.append({"looks": number, "Python's CPU": mine, "the JVM's": theirs, "s": pilot.plant.look_seconds})
                apart.append((mine + theirs) / number)
                assert len(pilot.plant.observe().tasks) == queries * partitions, "not every partition was seen"
                return value

        sides = interleaved(with_autopilot, without, rounds, "cores in use, with Autopilot and without:")
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)
    extra = [a - b for a, b in zip(sides.a, sides.b, strict=True)]
    planning = planning_seconds(queries, partitions)
    report.figures["cost"] = {
        "queries": queries,
        "partitions each": partitions,
        "cores of driver and JVM": sides.figures("with", "without"),
        "extra, by difference": {"median": statistics.median(extra), "runs": extra},
        "CPU seconds a look, of Python's threads and the JVM's that answer them": statistics.median(apart),
        "looks": looks,
        "load": "real queries with batches once a minute, the newest of which every look reads anew",
        "CPU seconds of a plan, 8 hosts, simulated": planning,
    }
    name = f"cores that Autopilot takes at a {PERIOD:g} s period, {queries} queries x {partitions} partitions"
    # On a busy machine it looks less often than it is asked to; the figure is for a look every period all the same.
    report.at_most(name, (statistics.median(apart) + planning) / PERIOD, 0.05, SOURCE)


# -- growth ------------------------------------------------------------------------------------------------------------

HOST = HostType("half", cores=0.5, slots=1, memory=1000.0)
GROWN, KEYS, STATES = 4, 64, 16
BATCH = 2.5
"""Seconds that a batch on one executor is to take. Spark's default for spark.locality.wait is 3 s: tasks of a stage that
lasts longer go elsewhere, their state with them, and Spark alone is then less uneven than with shorter ones."""

WARM = 12
"""Batches in which an executor of half a core compiles what it runs: the first take twice as long as later ones."""


def start_work(spark: SparkSession, root: Path, steps: int) -> StreamingQuery:
    """A count of each key, and then, in the same tasks, `steps` steps of arithmetic a key: CPU in the executor's JVM."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5 * KEYS).option("numPartitions", 2).load()
    counts = rows.groupBy((F.col("value") % KEYS).alias("k")).count()
    worked = counts.selectExpr("k", f"aggregate(sequence(1L, {steps}L), count, (a, x) -> (a * 31 + x) % 1000003) as n")
    writer = worked.writeStream.outputMode("update").format("noop").trigger(processingTime="100 milliseconds")
    return writer.option("checkpointLocation", str(root / f"checkpoint-{steps}")).start()


def steps_for(spark: SparkSession, root: Path) -> int:
    """Steps a key that make a batch last BATCH on one executor, on the line through two that were tried."""
    tried = {}
    for steps in (20_000, 80_000):
        query = start_work(spark, root, steps)
        wait_for_batches([query], WARM, 300)
        tried[steps] = median_batch(query, 5)
        query.stop()
    (few, short), (many, long) = tried.items()
    each = max(1e-9, (long - short) / (many - few))
    steps = int(min(max((BATCH - short) / each + few, few), 20 * many))
    progress(f"seconds a batch by steps a key: {tried}; {steps} steps are taken")
    return steps


@contextmanager
def session_on_one_host(root: Path, ports: range) -> Iterator[tuple[SparkSession, LocalCluster]]:
    """A session with one executor of half a core."""
    cluster = LocalCluster(Local(HOST, max_hosts=GROWN), root / "cluster", ports)
    master = cluster.start()
    spark = None
    try:
        cluster.lease("h1", HOST)
        settings = settings_for(
            driver_address=cluster.driver_address,
            executor_memory=cluster.executor_memory_mb,
            executor_cores=1,
            state_partitions=STATES,
            small=True,
        )
        # Elastream's own sessions wait less for an executor that is gone; a stranger's waits as Spark does.
        spark = open_session(master, "growth", cluster.folder, {**settings, "spark.locality.wait": "3s"})
        wait_until(lambda: executors(spark) == 1, 120)
        yield spark, cluster
    finally:
        cluster.close()
        if spark is not None:
            spark.stop()


def median_batch(query: StreamingQuery, batches: int, limit: float = 300.0) -> float:
    """Median seconds of the next `batches` batches."""
    first = query.lastProgress["batchId"] + 1
    wait_until(lambda: query.lastProgress["batchId"] >= first + batches - 1, limit)
    return statistics.median(
        p["durationMs"]["triggerExecution"] / 1e3 for p in query.recentProgress if p["batchId"] >= first
    )


def grow(watched: bool, steps: int | None, quick: bool) -> dict[str, float]:
    """Seconds of a batch before and after one executor has grown to four. steps: None lets it find out how many."""
    root = Path(tempfile.mkdtemp(prefix="autopilot-growth-"))
    try:
        with session_on_one_host(root, range(25020, 25022)) as (spark, cluster):
            cluster.confine("h1", HOST.cores)
            steps = steps or steps_for(spark, root)
            query = start_work(spark, root, steps)
            wait_for_batches([query], WARM, 300)
            before = median_batch(query, 5)
            pilot = Autopilot(spark, period=2.0).watch(query) if watched else None
            for number in range(2, GROWN + 1):
                cluster.lease(f"h{number}", HOST)
                wait_until(lambda number=number: executors(spark) >= number, 120)
            for number in range(2, GROWN + 1):
                cluster.confine(f"h{number}", HOST.cores)
            grown = time.monotonic()
            settled = query.lastProgress["batchId"] + (15 if quick else 30)
            wait_until(lambda: query.lastProgress["batchId"] >= settled, 300)
            after = median_batch(query, 9 if quick else 15)
            moved = 0.0
            if pilot is not None:
                moved = float(len(pilot.plant.placing.landed))
                pilot.stop()
            assert query.isActive, query.exception()
            seconds = time.monotonic() - grown
            return {"steps": steps, "before": before, "after": after, "moves": moved, "seconds measured": seconds}
    finally:
        shutil.rmtree(root, ignore_errors=True)


def executors(spark: SparkSession) -> int:
    """How many there are."""
    return int(spark.sparkContext._jsc.sc().statusStore().executorList(True).size()) - 1


def wait_until(holds: Any, limit: float) -> None:
    """Until `holds()`."""
    until = time.monotonic() + limit
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {limit:g} s")
        time.sleep(0.2)


def measure_growth(report: Report, quick: bool) -> None:
    """Spark alone and Autopilot, in turn."""
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}

    steps: list[int] = []

    def side(watched: bool) -> float:
        runs[watched].append(grow(watched, steps[0] if steps else None, quick))
        steps.append(int(runs[watched][-1]["steps"]))
        progress(f"{'Autopilot' if watched else 'Spark alone'}: {runs[watched][-1]}")
        return runs[watched][-1]["after"]

    sides = interleaved(lambda: side(True), lambda: side(False), 1 if quick else 3, "seconds a batch on four executors:")
    report.figures["growth"] = {**sides.figures("with Autopilot", "Spark alone"), "runs": runs[True] + runs[False]}
    report.at_most("batch time after one executor grew to four, Autopilot over Spark alone", sides.ratio, 0.5, SOURCE)


# -- skew --------------------------------------------------------------------------------------------------------------


def zipf(seed: int, partitions: int = 64, keys: int = 20_000, exponent: float = 1.2) -> np.ndarray[Any, Any]:
    """What partitions take whose keys are drawn by Zipf's law and hashed, as shares of one core."""
    weights = np.arange(1, keys + 1) ** -exponent
    return np.bincount(np.random.default_rng(seed).integers(0, partitions, keys), weights / weights.sum(), partitions)


def observed_stages(
    stages: tuple[str, ...], place: np.ndarray[Any, Any], busy: np.ndarray[Any, Any], hosts: int
) -> Observation:
    """Partitions of `stages`, as many of each, at `place`, that take `busy` cores, on equal hosts."""
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
    """The busiest executor after six rounds over the best packing, worst of all cases; loads are measured 2 % off."""
    worst, moves, random = 0.0, [], np.random.default_rng(1)
    for hosts in (2, 4, 8):
        for seed in range(3 if quick else 20):
            weights = zipf(seed)
            place = np.zeros(len(weights), dtype=np.int64) if seed % 2 else np.arange(len(weights)) % hosts
            moved = 0
            for _ in range(6):
                noisy = weights * random.normal(1.0, 0.02, len(weights)).clip(0.9, 1.1)
                for action in ByLoad(worth=0.0).plan(observed_stages(("q/s",), place, noisy, hosts)):
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


PARTS = {"skew": measure_skew, "cost": measure_cost, "growth": measure_growth}


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    for name, part in PARTS.items():
        if arguments.part in (None, name):
            part(report, arguments.quick)
    return report


def line(report: Report) -> str:
    return "; ".join(f"{check.name}: {check.value:.3g}" for check in report.checks)


if __name__ == "__main__":
    main("autopilot", __doc__.splitlines()[0], measure, line, lambda p: p.add_argument("--part", choices=tuple(PARTS)))
