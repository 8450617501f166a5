"""One job with state under a rising and falling load: plain PySpark, Spark's dynamic allocation, Autopilot, and a dataflow.

    python benchmarks/against_spark.py [--quick] [--rounds N] [--json FILE] [--only WAY]

Three rounds of five ways take 40 minutes on two cores, `--quick` (one round of a shorter load) 8. The job counts requests
and bytes of each visitor of a web site (`_visitors.py`); the load rises to what four hosts of 0.35 cores can do and falls
again. A cluster fixed at the peak has four of them, one fixed at the mean has what the mean of the load fills. All sides
have the same source, trigger, state partitions and Spark settings. The order is random.

All hosts together have less than two cores, so that the driver keeps its share. A host gets its quota once it has settled.
Every first host is warmed up before the load begins.

In time: of all records, those whose result was committed within the target. Host time: from a host's request to its return,
between the load's beginning and its last result; with dynamic allocation while an executor occupies it.
"""

import argparse
import http.client
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _common import Report, in_random_order, main, progress, wait_until, with_median
from _stranger import session_on_hosts
from _visitors import STATE_PARTITIONS, Served, as_dataflow, is_exact, read_progress, served, start_plain
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream import Autopilot, HostType, Local
from elastream.bench.arms import DYNAMIC_ALLOCATION
from elastream.clouds.local.cluster import LocalCluster
from elastream.control.loop import Loop
from elastream.core.hosts import Billing, Lease
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.stages import lay_out
from elastream.loads import Pattern, constant, ramp
from elastream.policies import Threshold
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
TARGET = 5.0  # seconds from a record being due to its result being committed
SETTLING = 6.0
"""Seconds that a host keeps its quota away after its start: as many as three batches take, as with Elastream's hosts."""
BUSIEST = 8.0  # seconds over which the use of hosts is taken
AFTER = 0.4  # of the load's length, how long late records are waited for after its end

SETTINGS = {"spark.sql.streaming.numRecentProgressUpdates": "400", "spark.sql.streaming.minBatchesToRetain": "10"}
"""The same for all sides; the other settings are Elastream's own, for all of them: files, sockets, locality, JVMs."""


@dataclass(frozen=True)
class Result:
    """What one way gave: `served`, and hosts held from the load's beginning to the last result.

    host_seconds, cost: of these hosts; cost by HOST's billing. most: hosts at once. exact: every result is right. busiest:
    of hosts that are fixed, the part of their cores that was used in the busiest BUSIEST seconds.
    """

    way: str
    served: Served
    host_seconds: float
    cost: float
    most: int
    exact: bool
    spans: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    busiest: float = math.nan


Spans = Sequence[tuple[float, float | None]]
"""When each host was requested and when it was gone, None for not yet; epoch seconds."""


def pace(load: ArrivalPattern) -> float:
    """Return the seconds between batches of the job as a dataflow."""
    return pace_of(TARGET, lay_out(as_dataflow(load, Path()).graph))


def fixed(hosts: int, load: ArrivalPattern, way: str) -> Result:
    with session_on_hosts(hosts, hosts, host=HOST, states=STATE_PARTITIONS, more=SETTINGS) as (spark, cluster, root):
        warm(spark, root)
        job = start_plain(spark, root / "job", load, pace(load))
        started(job.query)
        for number in range(1, hosts + 1):
            cluster.confine(f"h{number}", HOST.cores)
        job.begin()
        used: list[tuple[float, float]] = []
        finish(job.query, load, lambda: used.append((time.monotonic(), cpu_seconds(cluster))))
        found = result(way, job.query, job.out, load, [(0.0, None)] * hosts)
        busy = busiest(used) / (hosts * HOST.cores)
        progress(f"{way}: its hosts were busy to {busy:.0%} in the busiest {BUSIEST:g} s")
        return replace(found, busiest=busy)


def dynamic(most: int, load: ArrivalPattern, way: str) -> Result:
    """Plain PySpark with Spark's dynamic allocation; a host is held while an executor of the job occupies it.

    The workers of all hosts run already: an executor has no host to wait for, which is to its advantage.
    """
    more = {**SETTINGS, **DYNAMIC_ALLOCATION, "spark.dynamicAllocation.maxExecutors": str(most)}
    with (
        session_on_hosts(most, most, host=HOST, states=STATE_PARTITIONS, more=more, at_first=1) as (spark, cluster, root),
        closing(Occupation(cluster, Executors(DriverSide(spark)).by_address)) as occupied,
    ):
        wait_until(lambda: len(listed(cluster)) == most, 120)
        warm(spark, root)
        job = start_plain(spark, root / "job", load, pace(load))
        started(job.query)
        time.sleep(SETTLING)
        job.begin()
        finish(job.query, load)
        return result(way, job.query, job.out, load, occupied.spans())


def autopilot(most: int, load: ArrivalPattern, way: str) -> Result:
    with session_on_hosts(0, most, host=HOST, states=STATE_PARTITIONS, more=SETTINGS) as (spark, _, root):
        job = start_plain(spark, root / "job", load, pace(load))
        pilot = Autopilot(
            spark,
            target_latency=TARGET,
            cloud=Local(HOST, max_hosts=most),
            max_hosts=most,
            period="2s",
            policy=ByLoad(hosts=Threshold()),
            folder=root / "autopilot",
        )
        with pilot.watch(job.query):
            wait_until(lambda: pilot.plant is not None and bool(pilot.plant.hosts.usable), 120)
            warm(spark, root)
            started(job.query)
            time.sleep(SETTLING)
            job.begin()
            finish(job.query, load)
            assert pilot.plant is not None
            spans = spans_of(pilot.plant.hosts.leases.values(), pilot.plant.clock.epoch)
            found = result(way, job.query, job.out, load, spans)
            job.query.stop()
        return found


def dataflow(most: int, load: ArrivalPattern, way: str) -> Result:
    with TemporaryDirectory(prefix="against-spark-") as folder:
        root = Path(folder)
        plant = start_plant(
            as_dataflow(load, root / "out").graph,
            RunDirectory.create(root / "runs", "visitors"),
            RunSettings(
                cloud=Local(HOST, max_hosts=most),
                target_latency=TARGET,
                state_partitions=STATE_PARTITIONS,
                settings=SETTINGS,
            ),
        )
        try:
            (segment,) = plant.queries.running
            (control,) = segment.sources.values()
            (control / HOLD).touch()  # its load waits as those of the others do, until the first host has settled
            loop = Loop(plant, Threshold(), monitor=1.0, period=2.0, to_the_limit=True)
            steering = threading.Thread(target=loop.run, daemon=True)
            steering.start()
            started(segment.query)
            time.sleep(SETTLING)
            (control / HOLD).unlink()
            finish(segment.query, load)
            spans = spans_of(plant.hosts.leases.values(), plant.clock.epoch)
            found = result(way, segment.query, root / "out", load, spans)
            loop.stop()
            steering.join(60)
            return found
        finally:
            plant.close()


class Occupation:
    """Which hosts of a cluster have an executor: holds these to their quota once they have settled, and no others.

    registered: addresses of executors that take tasks. A host settles in SETTLING seconds from then, as Elastream's do.
    """

    def __init__(self, cluster: LocalCluster, registered: Callable[[], Iterable[str]]) -> None:
        self._cluster, self._registered = cluster, registered
        self._ready: dict[str, float] = {}
        self._spans: dict[str, list[list[float | None]]] = {}
        self._confined: set[str] = set()
        self._names = {cluster.address(name): name for name in cluster.status()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def spans(self) -> Spans:
        return [(float(a or 0.0), b) for spans in self._spans.values() for a, b in map(tuple, spans)]

    def close(self) -> None:
        self._over.set()
        self._thread.join(10)

    def _follow(self) -> None:
        while not self._over.wait(0.5):
            used = {worker["host"]: worker["coresused"] > 0 for worker in listed(self._cluster)}
            with suppress(Py4JError):  # the session has ended
                self._look(used, set(self._registered()), time.time())

    def _look(self, used: Mapping[str, bool], registered: Set[str], now: float) -> None:
        for address, busy in used.items():
            if not (busy and address in registered):
                self._ready.pop(address, None)
            else:
                self._ready.setdefault(address, now)
            name = self._names.get(address)
            if name is None:
                continue
            spans = self._spans.setdefault(name, [])
            held = bool(spans) and spans[-1][1] is None
            if busy and not held:
                spans.append([now, None])
            elif held and not busy:
                spans[-1][1] = now
                self._cluster.confine(name, None)
                self._confined.discard(name)
            elif held and name not in self._confined and now - self._ready.get(address, now) > SETTLING:
                self._cluster.confine(name, HOST.cores)
                self._confined.add(name)


def listed(cluster: LocalCluster) -> Sequence[Mapping[str, Any]]:
    address, port = cluster.page.removeprefix("http://").rstrip("/").split(":")
    page = http.client.HTTPConnection(address, int(port), timeout=5.0)
    with closing(page), suppress(OSError, http.client.HTTPException, ValueError):
        page.request("GET", "/json/")
        found: Sequence[Mapping[str, Any]] = json.loads(page.getresponse().read())["workers"]
        return [worker for worker in found if worker["state"] == "ALIVE"]
    return []


def warm(spark: SparkSession, root: Path) -> None:
    driver = DriverSide(spark)
    for executor in Executors(driver).look().values():
        warm_up(spark, driver, executor, root)


def started(query: StreamingQuery) -> None:
    wait_until(lambda: query.lastProgress is not None or not query.isActive, 120)


def cpu_seconds(cluster: LocalCluster) -> float:
    return math.fsum(used.cpu_seconds or 0.0 for used in cluster.measure().values())


def busiest(used: Sequence[tuple[float, float]]) -> float:
    spans = [
        (at - before, cpu - first)
        for number, (at, cpu) in enumerate(used)
        for before, first in used[max(0, number - int(BUSIEST)) : number]
        if at - before >= BUSIEST
    ]
    return max((cpu / seconds for seconds, cpu in spans), default=math.nan)


def finish(query: StreamingQuery, load: ArrivalPattern, each: Callable[[], object] = lambda: None) -> None:
    total, until = load.count(load.seconds), time.monotonic() + (1 + AFTER) * load.seconds

    def taken() -> int:
        newest = query.lastProgress  # the newest alone: to read them all each second would be work for the driver
        return 0 if newest is None else read_progress([newest])[0].last

    while query.isActive and taken() < total and time.monotonic() < until:
        time.sleep(1.0)
        each()
    if (error := query.exception()) is not None:
        raise error


def spans_of(leases: Iterable[Lease], epoch: float) -> Spans:
    return [(epoch + each.since, None if each.until is None else epoch + each.until) for each in leases]


def result(way: str, query: StreamingQuery, out: Path, load: ArrivalPattern, spans: Spans) -> Result:
    seen = served(read_progress(query.recentProgress), load, TARGET)
    whole = seen.taken >= load.count(load.seconds)
    end = seen.ended if whole else time.time()
    clipped = [(max(a, seen.began), min(end if b is None else b, end)) for a, b in spans]
    held = tuple((a - seen.began, b - seen.began) for a, b in clipped if b > a)
    edges = sorted([(a, 1) for a, _ in held] + [(b, -1) for _, b in held])
    at_once, most = 0, 0
    for _, step in edges:
        at_once += step
        most = max(most, at_once)
    found = Result(
        way,
        seen,
        math.fsum(b - a for a, b in held),
        math.fsum(HOST.billing.units(b - a) * HOST.price for a, b in held),
        most,
        is_exact(out, seen.taken),
        tuple((round(a, 1), round(b, 1)) for a, b in held),
    )
    progress(
        f"{way}: {seen.in_time:.1%} in time, {found.host_seconds:.0f} host-seconds, cost {found.cost:g}, longest batch "
        f"{seen.longest:.1f} s, p99 {seen.p99:.1f} s, {seen.taken:,} records in {seen.batches} batches, "
        f"at most {most} hosts, {'exact' if found.exact else 'WRONG'}"
    )
    return found


MOST = 4  # hosts of the peak
LOW, PEAK = 6_800.0, 68_000.0
"""Records/s. At the peak four hosts are busy to 0.6 to 0.75, as this machine is quick or slow; three would be above 0.8."""
SECONDS, QUICK = 120.0, 60.0  # length of the load
ROUNDS = 3
SOURCE = "the project's bar beside open-source Spark"


def load_of(seconds: float, peak: float) -> Pattern:
    low = peak * LOW / PEAK
    rise = constant(low, lasts=0.15 * seconds).then(ramp(low, peak, over=0.35 * seconds)).hold(0.12 * seconds)
    return rise.then(ramp(peak, low, over=0.1 * seconds)).hold(0.28 * seconds)


def mean_hosts(load: Pattern, peak: float) -> int:
    mean = load.count(load.seconds) / load.seconds
    return math.ceil(MOST * mean / peak)


def ways_of(load: Pattern, peak: float) -> Mapping[str, Callable[[], Result]]:
    mean = mean_hosts(load, peak)
    return {
        "fixed at the peak": lambda: fixed(MOST, load, f"fixed at the peak, {MOST} hosts"),
        "fixed at the mean": lambda: fixed(mean, load, f"fixed at the mean, {mean} hosts"),
        "dynamic allocation": lambda: dynamic(MOST, load, "dynamic allocation"),
        "Autopilot": lambda: autopilot(MOST, load, "Autopilot"),
        "dataflow": lambda: dataflow(MOST, load, "dataflow"),
    }


def measure(arguments: argparse.Namespace) -> Report:
    load = load_of(QUICK if arguments.quick else SECONDS, arguments.peak)
    report = Report()
    report.environment["hosts"] = f"at most {MOST} of {HOST.cores:g} cores"
    low = arguments.peak * LOW / PEAK
    report.environment["rates"] = f"{low:,.0f} to {arguments.peak:,.0f} records/s and back in {load.seconds:g} s"
    ways = ways_of(load, arguments.peak)
    if arguments.only:
        ways = {name: way for name, way in ways.items() if name in arguments.only}
    found = in_random_order(list(ways), arguments.rounds, lambda name: ways[name]())
    for name, results in found.items():
        report.figures |= {f"{name}: {what}": value for what, value in figures(results).items()}
    report.figures["settings of dynamic allocation"] = ", ".join(
        f"{k.removeprefix('spark.dynamicAllocation.')} {v}" for k, v in DYNAMIC_ALLOCATION.items()
    )
    report.figures["runs"] = {name: [asdict(each) for each in results] for name, results in found.items()}
    if not arguments.only:
        judge(report, found)
    return report


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    table: Mapping[str, Sequence[float]] = {
        "in time": [each.served.in_time for each in results],
        "host-seconds": [each.host_seconds for each in results],
        "cost": [each.cost for each in results],
        "longest batch, s": [each.served.longest for each in results],
        "99th percentile of latency, s": [each.served.p99 for each in results],
        "rounds with exact results": [float(sum(each.exact for each in results))],
    }
    return {name: runs[0] if len(runs) == 1 else with_median(runs) for name, runs in table.items()}


def judge(report: Report, found: Mapping[str, Sequence[Result]]) -> None:
    peak, spark = found["fixed at the peak"], found["dynamic allocation"]
    for name in ("dataflow", "Autopilot"):
        ours = found[name]
        below = [100 * (p.served.in_time - o.served.in_time) for o, p in zip(ours, peak, strict=True)]
        share = [o.host_seconds / p.host_seconds for o, p in zip(ours, peak, strict=True)]
        above = [100 * (o.served.in_time - s.served.in_time) for o, s in zip(ours, spark, strict=True)]
        ratio = [o.host_seconds / s.host_seconds for o, s in zip(ours, spark, strict=True)]
        report.median_at_most(f"{name}: points in time below the cluster fixed at the peak", below, 1.0, SOURCE)
        report.median_at_most(f"{name}: host time over that of the cluster fixed at the peak", share, 0.7, SOURCE)
        report.median_at_least(f"{name}: points in time above dynamic allocation", above, 0.0, SOURCE)
        report.median_at_most(f"{name}: host time over dynamic allocation's", ratio, 1.0, SOURCE)
    exact = all(each.exact for results in found.values() for each in results)
    report.at_least("results exact, in every round of every way", float(exact), 1, SOURCE)


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", action="append", metavar="WAY", help="measure this way alone; may be repeated")
    parser.add_argument("--peak", type=float, default=PEAK, help="records/s at the peak, for a faster or slower machine")


if __name__ == "__main__":
    main("against_spark", __doc__, measure, more, rounds=ROUNDS)
