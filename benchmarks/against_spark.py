"""One job under a varying load: plain PySpark, dynamic allocation, Autopilot, and a dataflow.

A round of seven ways takes 100 minutes on two cores, with `--cycles 1` 45, with `--quick` (one cycle of a minute) 15. For a
job with state (`visitors`) the load rises to what four hosts of 0.35 cores can do, and falls again. For one without
(`--job visits`) it jumps three times a cycle. Two clusters are fixed, with four hosts and with three. Autopilot and
the dataflow run under `threshold` and `horizon`. All have the same source, trigger, state partitions, Spark settings and
warmed hosts.

In time: the share of all records whose result was committed within the target. Host time: from a host's request to its
return, between the load's beginning and its last result; with dynamic allocation while an executor occupies it.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _common import Report, in_random_order, main, progress, wait_until, with_median
from _stranger import session_on_hosts
from _visitors import JOBS, STATE_PARTITIONS, Job
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream import Autopilot, HostType, Local
from elastream.bench import arms
from elastream.bench.arms import DYNAMIC_ALLOCATION, SETTLING_S, Arm, Cluster, Spans, open_arm
from elastream.bench.runs import costs_of
from elastream.bench.service import Service, batches_of, service
from elastream.control.loop import Loop
from elastream.core.hosts import Billing, Lease
from elastream.core.plant import Policy
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.stages import lay_out
from elastream.loads import Pattern, constant, ramp
from elastream.loads.pattern import chain
from elastream.policies import Horizon, Threshold
from elastream.policies.by_load import ByLoad
from elastream.recording.directory import RunDirectory
from elastream.settings import RunSettings
from elastream.spark.dataflow.sources import HOLD
from elastream.spark.hosts.warmup import warm_up
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.executors import Executors
from elastream.spark.start import pace_of, start_plant

HOST = HostType("third", cores=0.35, slots=1, memory=1000.0, price=1.0, billing=Billing(10.0), start=10.0, stop=3.0)
"""Four of them use 1.4 cores of two."""
TARGET = 10.0  # seconds from a record being due to its result being committed
AFTER = 0.4  # wait for late records after the load's end, as a share of its length

RETAINED = {"spark.sql.streaming.minBatchesToRetain": "10"}
SETTINGS = {**arms.SETTINGS, **RETAINED}
"""The same for all sides; the other settings are Elastream's own, for all of them: files, sockets, locality, JVMs."""


@dataclass(frozen=True)
class Result:
    """Result of one way, with cost by HOST's billing, and hosts from the load's beginning to the last result."""

    way: str
    served: Service
    host_seconds: float
    cost: float
    most: int
    exact: bool


def pace(job: Job, load: ArrivalPattern) -> float:
    """Return the seconds between batches of the job as a dataflow."""
    return pace_of(TARGET, lay_out(job.as_dataflow(load, Path()).graph))


@contextmanager
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="against-spark-", ignore_cleanup_errors=True) as root:
        yield Path(root)


def plain(job: Job, load: Pattern, way: str, arm: Arm) -> Result:
    """Run plain PySpark on fixed hosts, or with dynamic allocation, for which the workers of all hosts run already."""
    cluster = Cluster(HOST, MOST, STATE_PARTITIONS, settings=RETAINED)
    with folder() as root, open_arm(cluster, arm, root) as session:
        session.warm_up(root)
        run = job.start_plain(session.spark, root / "job", load, pace(job, load))
        serve(run.query, run.begin, load)
        found = result(way, job, run.query, run.out, load, session.spans)
        run.query.stop()
        return found


def autopilot(job: Job, load: Pattern, way: str, policy: Policy) -> Result:
    with session_on_hosts(0, MOST, host=HOST, states=STATE_PARTITIONS, more=SETTINGS) as (spark, _, root):
        run = job.start_plain(spark, root / "job", load, pace(job, load))
        pilot = Autopilot(
            spark,
            target_latency=TARGET,
            cloud=Local(HOST, max_hosts=MOST),
            max_hosts=MOST,
            period="2s",
            policy=ByLoad(hosts=policy),
            folder=root / "autopilot",
        )
        with pilot.watch(run.query):
            wait_until(lambda: pilot.plant is not None and bool(pilot.plant.hosts.usable), 120)
            warm(spark, root)
            serve(run.query, run.begin, load)
            assert pilot.plant is not None
            spans = spans_of(pilot.plant.hosts.leases.values(), pilot.plant.clock.epoch)
            found = result(way, job, run.query, run.out, load, spans)
            run.query.stop()
        return found


def dataflow(job: Job, load: Pattern, way: str, policy: Policy) -> Result:
    with folder() as root:
        plant = start_plant(
            job.as_dataflow(load, root / "out").graph,
            RunDirectory.create(root / "runs", job.name),
            RunSettings(
                cloud=Local(HOST, max_hosts=MOST),
                target_latency=TARGET,
                state_partitions=STATE_PARTITIONS,
                settings=SETTINGS,
            ),
        )
        try:
            (segment,) = plant.queries.running
            (control,) = segment.sources.values()
            (control / HOLD).touch()  # like the other ways, it waits until the first host has settled
            loop = Loop(plant, policy, monitor=1.0, period=2.0, to_the_limit=True)
            steering = threading.Thread(target=loop.run, daemon=True)
            steering.start()
            serve(segment.query, (control / HOLD).unlink, load)
            spans = spans_of(plant.hosts.leases.values(), plant.clock.epoch)
            found = result(way, job, segment.query, root / "out", load, spans)
            loop.stop()
            steering.join(60)
            return found
        finally:
            plant.close()


def warm(spark: SparkSession, root: Path) -> None:
    driver = DriverSide(spark)
    for executor in Executors(driver).look().values():
        warm_up(spark, driver, executor, root)


def serve(query: StreamingQuery, begin: Callable[[], None], load: Pattern) -> None:
    """Begin the load once the query runs and its first hosts have settled, and wait for its end."""
    wait_until(lambda: query.lastProgress is not None or not query.isActive, 120)
    time.sleep(SETTLING_S)
    begin()
    total, until = load.count(load.seconds), time.monotonic() + (1 + AFTER) * load.seconds

    def taken() -> int:
        newest = query.lastProgress  # only the newest: reading all of them each second would load the driver
        return 0 if newest is None else batches_of([newest])[-1].position

    while query.isActive and taken() < total and time.monotonic() < until:
        time.sleep(1.0)
    if (error := query.exception()) is not None:
        raise error


def spans_of(leases: Iterable[Lease], epoch: float) -> Spans:
    return [(epoch + each.since, None if each.until is None else epoch + each.until) for each in leases]


def result(way: str, job: Job, query: StreamingQuery, out: Path, load: Pattern, spans: Spans) -> Result:
    served = service(batches_of(query.recentProgress), load, TARGET)
    whole = served.events >= load.count(load.seconds)
    held = served if whole else replace(served, seconds=time.time() - served.began)
    found = Result(way, served, *costs_of(spans, held, HOST), job.is_exact(out, served.events))
    progress(
        f"{way}: {served.in_time:.1%} in time, {found.host_seconds:.0f} host-seconds, cost {found.cost:g}, longest batch "
        f"{served.longest_batch:.1f} s, p99 {served.p99:.1f} s, {served.events:,} records, "
        f"at most {found.most} hosts, {'exact' if found.exact else 'WRONG'}"
    )
    return found


MOST = 4  # hosts of the peak
LOW, PEAK = 6_800.0, 68_000.0
"""Records/s. At the peak four hosts are busy to 0.6 to 0.75, as this machine is quick or slow; three would be above 0.8."""
SECONDS, QUICK = 240.0, 60.0  # length of a cycle of the load
CYCLES, ROUNDS = 3, 5
IN_TIME = 0.99
DRA = "dynamic allocation"
FIXED = {f"fixed, {hosts} hosts": hosts for hosts in (MOST, MOST - 1)}
SOURCE = "the project's bar beside open-source Spark"


def waves(seconds: float, peak: float) -> Pattern:
    """A rise to the peak and a fall."""
    low = peak * LOW / PEAK
    rise = constant(low, lasts=0.15 * seconds).then(ramp(low, peak, over=0.35 * seconds)).hold(0.12 * seconds)
    return rise.then(ramp(peak, low, over=0.1 * seconds)).hold(0.28 * seconds)


def bursts(seconds: float, peak: float) -> Pattern:
    """Three jumps of different lengths from a fifth of the peak, two of them to the peak."""
    shape = ((0.2, 0.2), (1.0, 0.08), (0.2, 0.22), (0.7, 0.05), (0.2, 0.15), (1.0, 0.1), (0.2, 0.2))
    return chain(constant(height * peak, lasts=share * seconds) for height, share in shape)


LOADS: Mapping[str, Callable[[float, float], Pattern]] = {"visitors": waves, "visits": bursts}
OURS: Mapping[str, tuple[Callable[[Job, Pattern, str, Policy], Result], Policy]] = {
    "Autopilot, threshold": (autopilot, Threshold()),
    "Autopilot, horizon": (autopilot, Horizon()),
    "dataflow, threshold": (dataflow, Threshold()),
    "dataflow, horizon": (dataflow, Horizon()),
}


def ways_of(job: Job, load: Pattern) -> Mapping[str, Callable[[], Result]]:
    arms = {name: Arm(f"fixed:{hosts}", hosts) for name, hosts in FIXED.items()} | {DRA: Arm("dra")}
    others = {name: partial(plain, job, load, name, arm) for name, arm in arms.items()}
    return others | {name: partial(run, job, load, name, policy) for name, (run, policy) in OURS.items()}


def measure(arguments: argparse.Namespace) -> Report:
    cycle = LOADS[arguments.job](QUICK if arguments.quick else SECONDS, arguments.peak)
    load = chain([cycle] * (1 if arguments.quick else arguments.cycles))
    report = Report(environment={"job": arguments.job})
    report.environment["hosts"] = f"at most {MOST} of {HOST.cores:g} cores"
    report.environment["rates"] = f"up to {arguments.peak:,.0f} records/s, {load.seconds:g} s in all"
    ways = ways_of(JOBS[arguments.job], load)
    if arguments.only:
        ways = {name: way for name, way in ways.items() if name in arguments.only}
    found = in_random_order(list(ways), arguments.rounds, lambda name: ways[name]())
    for name, results in found.items():
        report.figures |= {f"{name}: {what}": value for what, value in figures(results).items()}
    report.figures["settings of dynamic allocation"] = ", ".join(
        f"{k.removeprefix('spark.dynamicAllocation.')} {v}" for k, v in DYNAMIC_ALLOCATION.items()
    )
    report.figures["runs"] = {name: [asdict(each) for each in results] for name, results in found.items()}
    if {*FIXED, DRA} <= found.keys():
        judge(report, found)
    return report


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    table: Mapping[str, Sequence[float]] = {
        "in time": [each.served.in_time for each in results],
        "host-seconds": [each.host_seconds for each in results],
        "cost": [each.cost for each in results],
        "longest batch, s": [each.served.longest_batch for each in results],
        "99th percentile of latency, s": [each.served.p99 for each in results],
        "rounds with exact results": [float(sum(each.exact for each in results))],
    }
    return {name: runs[0] if len(runs) == 1 else with_median(runs) for name, runs in table.items()}


def judge(report: Report, found: Mapping[str, Sequence[Result]]) -> None:
    in_time = {name: statistics.median(each.served.in_time for each in found[name]) for name in FIXED}
    peak, *_ = FIXED
    # The fewest hosts that serve in time, in hindsight; the hosts of the peak if no smaller number does.
    best = next((name for name in reversed(FIXED) if in_time[name] >= IN_TIME), peak)
    report.figures["best constant fleet"] = best
    rivals = ((peak, 0.65), (best, 0.95), (DRA, 1.0))
    for name in (each for each in OURS if each in found):
        ours = found[name]
        report.median_at_least(f"{name}: in time", [each.served.in_time for each in ours], IN_TIME, SOURCE)
        for (rival, bar), what in zip(rivals, ("the fixed peak's", "the best constant fleet's", f"{DRA}'s"), strict=True):
            ratio = [o.host_seconds / r.host_seconds for o, r in zip(ours, found[rival], strict=True)]
            report.median_at_most(f"{name}: host time over {what}", ratio, bar, SOURCE)
        above = [100 * (o.served.in_time - r.served.in_time) for o, r in zip(ours, found[DRA], strict=True)]
        report.median_at_least(f"{name}: points in time above {DRA}", above, 0.0, SOURCE)
    exact = all(each.exact for results in found.values() for each in results)
    report.at_least("results exact, in every round of every way", float(exact), 1, SOURCE)


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", choices=tuple(JOBS), default="visitors", help="the job to measure")
    parser.add_argument("--only", action="append", metavar="WAY", help="measure this way alone; may be repeated")
    parser.add_argument("--cycles", type=int, default=CYCLES, help="rises and falls of the load")
    parser.add_argument("--peak", type=float, default=PEAK, help="records/s at the peak, for a faster or slower machine")


if __name__ == "__main__":
    main("against_spark", __doc__, measure, more, rounds=ROUNDS)
