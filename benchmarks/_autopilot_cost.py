"""What looking after ten queries with 200 state partitions each costs, in CPU time of the driver's process and of its JVM.

The queries have nothing to do while it is measured: a driver that is busy is looked at less often, and what Autopilot
itself takes is what is asked. Every look reads the newest batch of every query anew, as if each had just ended one.
"""

import os
import re
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from _autopilot_skew import observed_stages
from _common import Report, interleaved, local_session, wait_until, with_median
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elastream import Autopilot
from elastream.core.observation import Observation
from elastream.core.plant import Plan
from elastream.policies.by_load import ByLoad

SOURCE = "the project's bar for Autopilot"
TICKS = os.sysconf("SC_CLK_TCK")
PERIOD = 5.0
BATCHES = 3
"""Batches of each query before it stands idle: so many must have been seen for a load to be known."""


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
    """Counts with `partitions` state partitions each, of files that are soon read: many to look at, nothing to do."""
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


def ended(query: StreamingQuery) -> int:
    """Batches that it has ended."""
    return 0 if query.lastProgress is None else int(query.lastProgress["batchId"]) + 1


class Rereading:
    """The policy of Autopilot, that lets each look read the newest batches once more: as if they had just ended."""

    name = "by load, all read anew"

    def __init__(self) -> None:
        self.pilot: Autopilot | None = None
        self._plan = ByLoad()

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """What `ByLoad` plans."""
        for query in self.pilot.plant.queries.all if self.pilot and self.pilot.plant else ():
            if query._tasks is not None:
                query._tasks._newest = -1
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
    seconds, rounds = (20.0, 1) if quick else (30.0, 2)
    root = Path(tempfile.mkdtemp(prefix="autopilot-cost-"))
    spark = local_session("cost", root, {"spark.sql.streaming.minBatchesToRetain": "2"})
    jvm, this = jvm_of(spark), os.getpid()
    try:
        running = idle_queries(spark, root, queries, partitions)
        wait_until(lambda: all(ended(query) >= BATCHES for query in running), 900)
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
                looks.append(
                    {
                        "looks": number,
                        "Python's CPU": mine,
                        "the JVM's": theirs,
                        "s": pilot.plant.look_seconds,
                        "CPU by the plant": pilot.plant.look_cpu_seconds / pilot.plant.looks,
                    }
                )
                apart.append((mine + theirs) / number)
                seen = len(pilot.plant.observe().tasks)
                assert seen == queries * partitions, f"{seen} of {queries * partitions} partitions were seen"
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
        "extra, by difference": with_median(extra),
        "CPU seconds a look, of Python's threads and the JVM's that answer them": statistics.median(apart),
        "looks": looks,
        "load": "real queries that have read all there is; every look reads the newest batch of each anew",
        "CPU seconds of a plan, 8 hosts, simulated": planning,
    }
    name = f"cores that Autopilot takes at a {PERIOD:g} s period, {queries} queries x {partitions} partitions"
    report.at_most(name, (statistics.median(apart) + planning) / PERIOD, 0.05, SOURCE)
    happened = min(look["looks"] for look in looks) / (seconds / PERIOD)
    report.at_least("looks that happened, of those that were asked for", happened, 0.85, "a figure for a look that happens")
