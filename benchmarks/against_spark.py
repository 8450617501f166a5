"""One job with state under a rising and falling load: plain PySpark, Spark's dynamic allocation, Autopilot, and a dataflow.

    python benchmarks/against_spark.py [--quick] [--rounds N] [--json FILE] [--only WAY] [--search]

Three rounds of five ways take 40 minutes on two cores, `--quick` (one round of a shorter load) 8. The job counts requests
and bytes of each visitor of a web site (`_visitors.py`); the load rises to what four hosts of 0.35 cores can do and falls
again. A cluster fixed at the peak has four of them, one fixed at the mean has what the mean of the load fills. All sides
have the same source, trigger, state partitions and Spark settings, and first hosts that are warm. Order is by chance.

In time: of all records, those whose result was committed within the target. Host time: from a host's request to its return,
between the load's beginning and its last result; with dynamic allocation while an executor occupies it. `--search` tries
settings of dynamic allocation, each once, in 27 minutes (with `--quick` 16), and says what each gave.
"""

import argparse
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from _arms import DYNAMIC, HOST, TARGET, Result, autopilot, dataflow, dynamic, fixed
from _common import Report, main, progress, with_median
from _visitors import UNLIMITED

from elastream.loads import Pattern, constant, ramp

MOST = 4
"""Hosts of the peak."""
LOW, PEAK = 6_800.0, 68_000.0
"""Records/s. At the peak four hosts are busy to 0.6 to 0.75, as this machine is quick or slow; three would be above 0.8."""
SECONDS, QUICK = 120.0, 60.0
"""Length of the load."""
ROUNDS = 3
SOURCE = "the project's bar beside open-source Spark"
SEED = 1

NO_LIMIT = {"limit of a batch": "none"}
"""No setting of Spark: the source gives a batch all that is due, as Kafka's does without `maxOffsetsPerTrigger`."""

SEARCHED: tuple[Mapping[str, str], ...] = (
    {},
    {"spark.dynamicAllocation.executorIdleTimeout": "60s", "spark.dynamicAllocation.shuffleTracking.timeout": "60s"},
    {"spark.dynamicAllocation.executorIdleTimeout": "10s"},
    {"spark.dynamicAllocation.executorIdleTimeout": "1s", "spark.dynamicAllocation.shuffleTracking.timeout": "1s"},
    {"spark.dynamicAllocation.executorIdleTimeout": "3s", "spark.dynamicAllocation.shuffleTracking.timeout": "3s"},
    {
        "spark.dynamicAllocation.schedulerBacklogTimeout": "3s",
        "spark.dynamicAllocation.sustainedSchedulerBacklogTimeout": "3s",
    },
    NO_LIMIT,
    {"spark.locality.wait": "0s"},
    {"spark.locality.wait": "3s"},
    {"spark.dynamicAllocation.minExecutors": "2", "spark.dynamicAllocation.initialExecutors": "2"},
    {"spark.dynamicAllocation.executorAllocationRatio": "0.5"},
)
"""Changes to DYNAMIC that `--search` tries. What people set for streams is shorter timeouts: an executor of a stream has
tasks in every batch, and none is ever idle for Spark's default of 60 s."""


def load_of(seconds: float, peak: float) -> Pattern:
    """A tenth of `peak`, a rise, the peak, a fall, and a tenth again: a daily cycle in brief."""
    low = peak * LOW / PEAK
    rise = constant(low, lasts=0.15 * seconds).then(ramp(low, peak, over=0.35 * seconds)).hold(0.12 * seconds)
    return rise.then(ramp(peak, low, over=0.1 * seconds)).hold(0.28 * seconds)


def mean_hosts(load: Pattern, peak: float) -> int:
    """Hosts that the mean of the load fills no more than its peak fills MOST."""
    mean = load.count(load.seconds) / load.seconds
    return math.ceil(MOST * mean / peak)


def ways_of(load: Pattern, peak: float) -> Mapping[str, Callable[[], Result]]:
    """The five ways by name."""
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
    if arguments.search:
        report.figures = {"dynamic allocation, settings tried": search(load)}
        return report
    ways = ways_of(load, arguments.peak)
    if arguments.only:
        ways = {name: way for name, way in ways.items() if name in arguments.only}
    rounds = 1 if arguments.quick and arguments.rounds is None else arguments.rounds or ROUNDS
    found: dict[str, list[Result]] = {name: [] for name in ways}
    chance = random.Random(SEED)
    for number in range(rounds):
        for name in chance.sample(list(ways), len(ways)):
            progress(f"round {number + 1} of {rounds}: {name}")
            found[name].append(ways[name]())
    for name, results in found.items():
        report.figures |= {f"{name}: {what}": value for what, value in figures(results).items()}
    report.figures["settings of dynamic allocation"] = ", ".join(
        f"{k.removeprefix('spark.dynamicAllocation.')} {v}" for k, v in DYNAMIC.items()
    )
    report.figures["runs"] = {name: [asdict(each) for each in results] for name, results in found.items()}
    if not arguments.only:
        judge(report, found)
    return report


def search(load: Pattern) -> Sequence[Mapping[str, Any]]:
    """What each change to DYNAMIC gave, once."""
    found = []
    for change in SEARCHED:
        short = {key.removeprefix("spark."): value for key, value in change.items()} or "as it is"
        settings = {key: value for key, value in {**DYNAMIC, **change}.items() if key not in NO_LIMIT}
        limit = UNLIMITED if NO_LIMIT.items() <= change.items() else None
        result = dynamic(MOST, load, f"dynamic allocation, {short}", settings, limit)
        found.append({"changed": short, "in time": result.served.in_time, "host-seconds": result.host_seconds})
    return found


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    """Medians, and each round; one round is its figure."""
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
    """The bars, round by round: what slows a round down slows each of its sides."""
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


def line(report: Report) -> str:
    def side(name: str) -> str:
        shown = {what: report.figures[f"{name}: {what}"] for what in ("in time", "host-seconds")}
        middle = {what: value["median"] if isinstance(value, Mapping) else value for what, value in shown.items()}
        return f"{name} {middle['in time']:.1%} in time at {middle['host-seconds']:.0f} host-seconds"

    parts = [side(name) for name in report.figures.get("runs", ())]
    return f"{'; '.join(parts)} (medians; target {TARGET:g} s)" if parts else "settings of dynamic allocation tried"


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, metavar="N", help=f"rounds (default: {ROUNDS}; with --quick 1)")
    parser.add_argument("--only", action="append", metavar="WAY", help="measure this way alone; may be repeated")
    parser.add_argument("--peak", type=float, default=PEAK, help="records/s at the peak, for a faster or slower machine")
    parser.add_argument("--search", action="store_true", help="try settings of dynamic allocation instead")


if __name__ == "__main__":
    main("against_spark", __doc__.splitlines()[0], measure, line, more)
